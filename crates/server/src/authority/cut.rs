//! Streams and bodies that end together with their key. A stream is aborted when the key that opened it is
//! revoked or expires. A request body is aborted in the same way and is then never complete, so a request
//! that outlives its key has no effect.

use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Body as _, Frame, SizeHint};
use node::clock;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use control::authority::Grant;

/// Maximum interval between checks of the wall clock. Checks are necessary because the clock may be set at
/// any time.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Slot for a request's [`Ends`], the event that ends its grant. Authentication fills the slot; the request
/// and response bodies read it.
#[derive(Clone, Default)]
pub struct Slot(Arc<OnceLock<Ends>>);

/// The event that ends a grant: revocation or expiry.
#[derive(Clone)]
pub struct Ends {
    revoked: CancellationToken,
    until_ms: Option<u64>,
}

/// A body that is aborted when its grant ends.
struct Cuttable {
    body: Body,
    /// Empty until the grant is known, because a request body is wrapped before authentication.
    slot: Slot,
    ended: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Slot {
    /// Stores the end of a grant. Later calls have no effect, because a request has only one credential.
    pub fn fill(&self, grant: &Grant) {
        let _ = self.0.set(Ends::of(grant));
    }

    /// Wraps a response so that it is aborted when its request's grant ends. A response without a grant
    /// remains unchanged.
    pub fn guard(&self, response: Response) -> Response {
        if self.0.get().is_none() || api::defence::is_off("H-26") {
            response
        } else {
            response.map(|body| self.cut(body))
        }
    }

    /// Wraps a request so that its body is aborted when its grant ends.
    pub fn guard_request(&self, request: Request) -> Request {
        if api::defence::is_off("H-42") { request } else { request.map(|body| self.cut(body)) }
    }

    fn cut(&self, body: Body) -> Body {
        if body.is_end_stream() {
            return body;
        }
        Body::new(Cuttable { body, slot: self.clone(), ended: None })
    }
}

impl Ends {
    /// Returns the end of this grant.
    pub fn of(grant: &Grant) -> Self {
        Self { revoked: grant.account.revoked.clone(), until_ms: grant.until_ms() }
    }

    /// Returns an end that occurs when this token is cancelled.
    pub fn by(revoked: CancellationToken) -> Self {
        Self { revoked, until_ms: None }
    }

    /// Waits until the grant has ended.
    pub async fn wait(self) {
        let revoked: WaitForCancellationFutureOwned = self.revoked.cancelled_owned();
        match self.until_ms {
            None => revoked.await,
            Some(until_ms) => {
                let mut revoked = pin!(revoked);
                // Check both the elapsed time and the wall clock, so that setting the clock forwards or
                // backwards cannot delay the end.
                let mut left = Duration::from_millis(until_ms.saturating_sub(clock::wall_ms()));
                while !left.is_zero() && clock::wall_ms() < until_ms {
                    let nap = left.min(LOOK_EVERY);
                    if tokio::time::timeout(nap, &mut revoked).await.is_ok() {
                        return;
                    }
                    left = left.saturating_sub(nap);
                }
            }
        }
    }

    /// Returns a slot that already contains this end.
    pub fn slot(self) -> Slot {
        Slot(Arc::new(OnceLock::from(self)))
    }

    /// Runs a future until it completes or the grant ends.
    pub async fn limit(self, work: impl Future<Output = ()>) {
        tokio::select! {
            () = work => {}
            () = self.wait() => {}
        }
    }
}

impl hyper::body::Body for Cuttable {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        if this.ended.is_none() {
            this.ended = this.slot.0.get().map(|ends| Box::pin(ends.clone().wait()) as _);
        }
        if this.ended.as_mut().is_some_and(|ended| ended.as_mut().poll(context).is_ready()) {
            let ended = std::io::Error::other("the key was revoked or has expired");
            return Poll::Ready(Some(Err(axum::Error::new(ended))));
        }
        Pin::new(&mut this.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
