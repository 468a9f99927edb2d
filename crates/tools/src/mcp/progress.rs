//! Progress of a call: its output while it runs.
//!
//! Output is buffered as fast as it arrives and sent at most ten times per second, so that a slow client
//! never slows down the run. Output that is still buffered when the call ends is not sent separately, because
//! the answer contains it.

use std::convert::Infallible;
use std::future::pending;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RoleServer};
use tokio::sync::{Notify, mpsc};
use tokio::time::{sleep, timeout};

use super::CallProgress;

/// Maximum number of queued chunks of output. A task moves them to a buffer immediately.
pub(super) const QUEUE: usize = 64;
/// Minimum interval between two notifications. It is short enough for a person to see live output, and limits
/// a loop that prints to ten messages per second.
const APART: Duration = Duration::from_millis(100);
/// Interval between keepalive notifications while a call produces no output. Many clients time out after 60 s
/// without a message.
const SILENCE: Duration = Duration::from_secs(15);
/// Maximum size of the text in one notification, in bytes: several screens.
const MESSAGE_BYTES_MAX: usize = 4096;

/// Sender of progress notifications to the client of a call.
pub(super) struct Teller {
    peer: Peer<RoleServer>,
    token: ProgressToken,
    told: f64,
}

/// Output that has not been sent yet. If it is too long for one notification, only its end is kept.
#[derive(Default)]
struct Gathered {
    text: Mutex<String>,
    added: Notify,
}

/// Runs a call to its end. While it runs, sends its output to the client if the client requested progress
/// notifications.
pub(super) async fn follow<F: Future>(
    call: F,
    output: mpsc::Receiver<CallProgress>,
    teller: Option<Teller>,
) -> F::Output {
    let gathered = Gathered::default();
    tokio::select! {
        biased;
        answer = call => answer,
        never = gather(output, &gathered) => match never {},
        never = tell(teller, &gathered) => match never {},
    }
}

async fn gather(mut output: mpsc::Receiver<CallProgress>, gathered: &Gathered) -> Infallible {
    while let Some(CallProgress::Output { text, .. }) = output.recv().await {
        gathered.add(&text);
    }
    pending().await
}

async fn tell(teller: Option<Teller>, gathered: &Gathered) -> Infallible {
    let Some(mut teller) = teller else { return pending().await };
    loop {
        let text = timeout(SILENCE, gathered.next()).await.ok();
        teller.tell(text).await;
        sleep(APART).await;
    }
}

impl Teller {
    pub(super) fn new(peer: Peer<RoleServer>, token: ProgressToken) -> Self {
        Self { peer, token, told: 0.0 }
    }

    async fn tell(&mut self, text: Option<String>) {
        self.told += 1.0;
        let mut progress = ProgressNotificationParam::new(self.token.clone(), self.told);
        progress.message = text;
        // A send error is ignored, because the task that reads from the client notices a disconnect.
        let _ = self.peer.notify_progress(progress).await;
    }
}

impl Gathered {
    fn add(&self, more: &str) {
        if more.is_empty() {
            return;
        }
        let mut text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        text.push_str(more);
        if text.len() > MESSAGE_BYTES_MAX {
            *text = end_of(&text);
        }
        self.added.notify_one();
    }

    async fn next(&self) -> String {
        loop {
            let text = std::mem::take(&mut *self.text.lock().unwrap_or_else(PoisonError::into_inner));
            if !text.is_empty() {
                return text;
            }
            self.added.notified().await;
        }
    }
}

/// Returns the end of a text that is too long for one notification, with an ellipsis in place of the omitted
/// part.
fn end_of(text: &str) -> String {
    const CUT: &str = "…";
    let from = text.ceil_char_boundary(text.len().saturating_sub(MESSAGE_BYTES_MAX - CUT.len()));
    format!("{CUT}{}", text.get(from..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_output_is_cut_to_its_end() {
        let gathered = Gathered::default();
        for _ in 0..3 {
            gathered.add(&"ü".repeat(MESSAGE_BYTES_MAX));
        }
        gathered.add("end");
        let text = gathered.text.lock().unwrap();
        assert!(
            text.len() <= MESSAGE_BYTES_MAX && text.starts_with("…ü") && text.ends_with("üend"),
            "{}",
            text.len()
        );
    }

    #[tokio::test]
    async fn a_call_that_nobody_listens_to_is_not_held_up() {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let call = async move {
            for _ in 0..10 * QUEUE {
                sender.send(CallProgress::Output { stderr: false, text: "line\n".into() }).await.unwrap();
            }
            7
        };
        assert_eq!(follow(call, receiver, None).await, 7);
    }
}
