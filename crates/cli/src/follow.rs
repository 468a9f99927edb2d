//! Follows an exec on a server: shows its output, and forwards standard input and interrupts to it.

use std::time::{Duration, Instant};

use api::exec::ExecEnd;
use api::{Error, ExecId, SandboxId};
use client::{Client, Event, Exec};
use tokio::io::AsyncReadExt as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::connect::explain;
use crate::output::Output;
use crate::show;

/// Size of the buffer for reading standard input.
const STDIN_CHUNK_BYTES: usize = 64 * 1024;
/// Timeout for sending a cancellation to the server.
const CANCEL_WITHIN: Duration = Duration::from_secs(5);

/// Minimum time between two distinct interrupts. The terminal and the parent process may both deliver the
/// same interrupt.
const SAME_INTERRUPT: Duration = Duration::from_millis(500);

/// Effect of an interrupt.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Interrupt {
    /// Cancels the exec. A second interrupt detaches without waiting for the end of the exec.
    Cancels,
    /// Detaches the client. The exec keeps running.
    Leaves,
}

/// Reason why the client stopped following an exec.
pub enum Followed {
    /// The exec has ended.
    Ended(ExecEnd),
    /// All output so far has been shown. The exec keeps running.
    CaughtUp,
    /// The client detached. The exec may still be running.
    Left,
}

/// Exec to follow, and its sandbox.
pub struct Followee<'a> {
    /// Client for the server.
    pub client: &'a Client,
    /// Sandbox of the exec.
    pub sandbox: &'a SandboxId,
    /// True if standard input is sent to the exec.
    pub stdin: bool,
    /// Effect of an interrupt.
    pub interrupt: Interrupt,
}

impl Followee<'_> {
    /// Shows output until the exec ends or an interrupt detaches the client.
    pub async fn follow(&self, mut exec: Exec, output: &mut Output) -> Result<Followed, Error> {
        let (mut interrupt, mut terminate) =
            (watch(SignalKind::interrupt())?, watch(SignalKind::terminate())?);
        let id = exec.id().clone();
        let feeding = async {
            if self.stdin {
                feed(self.client, self.sandbox, &id).await;
            }
            std::future::pending::<()>().await;
        };
        tokio::pin!(feeding);
        let mut interrupted: Option<Instant> = None;
        loop {
            let event = tokio::select! {
                event = exec.next() => Some(event.map_err(|error| explain(&error))?),
                () = &mut feeding => continue,
                _ = interrupt.recv() => None,
                _ = terminate.recv() => None,
            };
            match event {
                Some(Some(Event::Data { stream, bytes, .. })) => output.take(stream, &bytes)?,
                Some(Some(Event::Gap { stream, from, to })) => output.miss(stream, to - from),
                Some(Some(Event::Result { line, .. })) => output.result(line)?,
                Some(Some(Event::End(end))) => return Ok(Followed::Ended(end)),
                Some(None) => return Ok(Followed::CaughtUp),
                None if self.interrupt == Interrupt::Leaves => return Ok(Followed::Left),
                None if interrupted.is_some_and(|first| first.elapsed() > SAME_INTERRUPT) => {
                    return Ok(Followed::Left);
                }
                None if interrupted.is_some() => {}
                None => {
                    interrupted = Some(Instant::now());
                    let cancelling = self.client.cancel(self.sandbox, &id);
                    note_failure(tokio::time::timeout(CANCEL_WITHIN, cancelling).await);
                }
            }
        }
    }
}

fn note_failure(cancelled: Result<Result<(), client::Error>, tokio::time::error::Elapsed>) {
    let why = match cancelled {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the server does not respond".into(),
    };
    show::note(&format!("cannot cancel the command: {why}; interrupt again to detach"));
}

/// Sends standard input to the exec until standard input or the exec ends.
async fn feed(client: &Client, sandbox: &SandboxId, exec: &ExecId) {
    let (mut ours, mut theirs) = (tokio::io::stdin(), client.stdin(sandbox, exec));
    let mut buffer = vec![0; STDIN_CHUNK_BYTES];
    loop {
        let count = ours.read(&mut buffer).await.unwrap_or(0);
        if count == 0 {
            // The error is ignored, because a command that has ended does not need the end of its input.
            let _ = theirs.close().await;
            return;
        }
        let bytes = bytes::Bytes::copy_from_slice(buffer.get(..count).unwrap_or_default());
        if theirs.write(bytes).await.is_err() {
            return;
        }
    }
}

/// Starts watching for a signal.
pub fn watch(kind: SignalKind) -> Result<Signal, Error> {
    signal(kind).map_err(|error| crate::platform(format!("cannot install a signal handler: {error}")))
}
