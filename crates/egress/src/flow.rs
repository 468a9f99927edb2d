//! An outbound connection that is metered, limited to the policy's rate, and closed when the policy no longer
//! allows it.

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
use crate::party::{OutboundRequest, Party};
use crate::place::ConnectionPermit;

/// The reason for refusing requests after the byte limit is reached.
pub const SPENT: &str = "this sandbox has used all the bytes that its policy allows";

/// A request, with the rule that allows it.
#[derive(Clone)]
pub struct AllowedRequest {
    pub asked: OutboundRequest,
    pub allowed: Allowed,
}

/// An outbound connection.
pub struct Flow {
    stream: TcpStream,
    party: Arc<Party>,
    policy: watch::Receiver<Policy>,
    /// The request for which the connection was opened.
    pub asked: OutboundRequest,
    /// The rule that allows the request.
    pub allowed: Allowed,
    /// The delay that must pass before more bytes may be carried.
    pause: Option<Pin<Box<Sleep>>>,
    /// Cancelled when the policy no longer allows the connection.
    pub revoked: CancellationToken,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    _watch: AbortOnDropHandle<()>,
    /// The slot of the program's connection. It stays occupied as long as this outbound connection exists.
    _place: Option<ConnectionPermit>,
}

impl Flow {
    /// Creates a flow for a connection that was allowed by the latest policy that the receiver `policy` has
    /// seen.
    pub fn new(
        stream: TcpStream,
        place: Option<ConnectionPermit>,
        party: Arc<Party>,
        policy: watch::Receiver<Policy>,
        request: AllowedRequest,
    ) -> Self {
        let cut = CancellationToken::new();
        let watching = watch(Arc::clone(&party), policy.clone(), request.clone(), cut.clone());
        let watch = tokio::spawn(watching);
        let AllowedRequest { asked, allowed } = request;
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

    /// Resets the connection, so that the peer cannot mistake the failure for a normal close.
    pub fn break_off(self) {
        let _ = self.stream.set_zero_linger();
    }

    /// Reports that the content of the connection is not allowed.
    pub fn refuse(&self, why: &str) {
        self.party.tell(&self.asked, Err(why));
    }

    /// Returns `Poll::Ready` when bytes may be carried, or when the connection must end with an error.
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
            // Checked before any bytes are carried, so that a program cannot avoid the delay by opening a new
            // connection for each chunk.
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

/// Closes the flow when the policy no longer allows it, or requires a different inspection: a connection that
/// was opened without inspection cannot become an inspected one, or vice versa.
async fn watch(
    party: Arc<Party>,
    mut policy: watch::Receiver<Policy>,
    request: AllowedRequest,
    cut: CancellationToken,
) {
    let AllowedRequest { asked, allowed } = request;
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
