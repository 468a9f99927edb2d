//! One connection to the outside: counted, slowed to the policy's rate, and cut when the policy no longer allows it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use api::policy::Policy;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Sleep;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tokio_util::task::AbortOnDropHandle;

use crate::decide::{Allowed, decide};
use crate::party::{Asked, Party};
use crate::place::Place;

/// Why nothing more is carried.
pub const SPENT: &str = "this sandbox has used all the bytes that its policy allows";

/// One connection to the outside.
pub struct Flow {
    stream: TcpStream,
    party: Arc<Party>,
    policy: watch::Receiver<Policy>,
    /// What it was made for.
    pub asked: Asked,
    /// What allows it.
    pub allowed: Allowed,
    /// Until then nothing is carried.
    pause: Option<Pin<Box<Sleep>>>,
    /// Is cancelled when the policy does not allow it any more.
    pub revoked: CancellationToken,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    _watch: AbortOnDropHandle<()>,
    /// The place of the connection that it was made for.
    _place: Option<Place>,
}

impl Flow {
    /// A connection that was allowed under the policy as `policy` has seen it.
    pub fn new(
        (stream, place): (TcpStream, Option<Place>),
        party: Arc<Party>,
        policy: watch::Receiver<Policy>,
        asked: Asked,
        allowed: Allowed,
    ) -> Self {
        let cut = CancellationToken::new();
        let watching =
            watch(Arc::clone(&party), policy.clone(), (asked.clone(), allowed.clone()), cut.clone());
        let watch = tokio::spawn(watching);
        Self {
            stream,
            party,
            policy,
            asked,
            allowed,
            pause: None,
            revoked: cut.clone(),
            cut: Box::pin(cut.cancelled_owned()),
            _watch: AbortOnDropHandle::new(watch),
            _place: place,
        }
    }

    /// Sees to it that the other side does not take the end of this for one.
    pub fn break_off(self) {
        let _ = self.stream.set_zero_linger();
    }

    /// Says that what goes on inside is not what was allowed.
    pub fn refuse(&self, why: &str) {
        self.party.tell(&self.asked, Err(why));
    }

    /// Whether bytes may be carried now.
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.cut.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::ConnectionReset,
                "the policy has changed",
            )));
        }
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            // Looked at before anything is carried: whoever makes a new connection for each piece waits as well.
            let wait = self.party.wait(&self.policy.borrow());
            match wait {
                Some(Duration::ZERO) => return Poll::Ready(Ok(())),
                Some(wait) => self.pause = Some(Box::pin(tokio::time::sleep(wait))),
                None => {
                    self.refuse(SPENT);
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::QuotaExceeded, SPENT)));
                }
            }
        }
    }

    fn carried(&mut self, bytes: usize) {
        self.party.carried(bytes, &self.policy.borrow());
    }
}

impl AsyncRead for Flow {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_ready(context))?;
        let before = into.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, into))?;
        let count = into.filled().len() - before;
        self.carried(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Flow {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_ready(context))?;
        let count = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.carried(count);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Waits for a policy that does not allow it any more, or not in the same way: what was not looked into cannot become what is.
async fn watch(
    party: Arc<Party>,
    mut policy: watch::Receiver<Policy>,
    (asked, allowed): (Asked, Allowed),
    cut: CancellationToken,
) {
    while policy.changed().await.is_ok() {
        let now = decide(&policy.borrow_and_update(), &asked.host, asked.port, &asked.ask);
        if now.is_ok_and(|now| (now.by_name, now.bound) == (allowed.by_name, allowed.bound)) {
            continue;
        }
        party.tell(&asked, Err("disconnected: the policy has changed"));
        cut.cancel();
        return;
    }
}
