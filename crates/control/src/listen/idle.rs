//! How long a connection may say nothing between two requests.
//!
//! Clients keep connections for minutes, and a request on one that is just being closed fails. So whoever has shown a key or a token may stay
//! longer than clients keep theirs. Everybody else has to say something.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::Instant;

/// E2B's SDKs keep theirs for 300 s, others for 90.
pub(super) const KNOWN_FOR: Duration = Duration::from_secs(330);

/// Whether somebody on a connection is known.
#[derive(Clone, Debug, Default)]
pub struct Known(Arc<AtomicBool>);

/// What happens on one connection.
#[derive(Clone, Debug)]
pub(super) struct Idle {
    known: Known,
    now: Arc<Mutex<Now>>,
}

#[derive(Debug)]
struct Now {
    under_way: usize,
    /// Since when nothing is.
    since: Instant,
}

/// A request that is under way.
pub(super) struct UnderWay(Arc<Mutex<Now>>);

/// An answer, which is under way to its last byte.
pub(super) struct Whole {
    pub(super) body: axum::body::Body,
    pub(super) _under_way: UnderWay,
}

impl Known {
    /// From now on.
    pub fn now(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Idle {
    /// A connection that was made now.
    pub(super) fn new() -> Self {
        let now = Now { under_way: 0, since: Instant::now() };
        Self { known: Known::default(), now: Arc::new(Mutex::new(now)) }
    }

    /// For whoever finds out.
    pub(super) fn known(&self) -> Known {
        self.known.clone()
    }

    /// A request has come.
    pub(super) fn begin(&self) -> UnderWay {
        lock(&self.now).under_way += 1;
        UnderWay(Arc::clone(&self.now))
    }

    /// How long it may go on like this; none where nothing is waited for.
    pub(super) fn left(&self, within: Duration) -> Option<Duration> {
        let now = lock(&self.now);
        let waits = now.under_way == 0 && !self.known.0.load(Ordering::Acquire);
        waits.then(|| within.saturating_sub(now.since.elapsed()))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut now = lock(&self.0);
        now.under_way = now.under_way.saturating_sub(1);
        now.since = Instant::now();
    }
}

impl Body for Whole {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn lock(now: &Mutex<Now>) -> MutexGuard<'_, Now> {
    now.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn who_is_not_known_is_waited_for_between_requests_only() {
        let idle = Idle::new();
        tokio::time::advance(Duration::from_secs(20)).await;
        assert_eq!(idle.left(WITHIN), Some(Duration::from_secs(10)), "from the connection on");
        let (one, other) = (idle.begin(), idle.begin());
        tokio::time::advance(Duration::from_secs(100)).await;
        assert_eq!(idle.left(WITHIN), None, "an answer takes as long as it takes");
        drop(one);
        assert_eq!(idle.left(WITHIN), None);
        drop(other);
        assert_eq!(idle.left(WITHIN), Some(WITHIN));
        tokio::time::advance(Duration::from_secs(31)).await;
        assert_eq!(idle.left(WITHIN), Some(Duration::ZERO));
        idle.known().now();
        assert_eq!(idle.left(WITHIN), None, "whoever is known may stay");
    }
}
