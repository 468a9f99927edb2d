//! Answers on their way. One of which nothing is taken is given up, and with it what it holds.
//!
//! hyper asks for the next piece of an answer when it has handed on the one before. So an answer is handed over in small pieces, and one
//! whose next piece is not asked for is not being taken: the window of its stream, or the socket, is full. The last byte of a piece goes
//! alone on HTTP/2, because hyper hands a piece on when one byte of it fits: what is left in h2 fits the window.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::rt::Executor;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout};

use super::idle::{Known, UnderWay};

/// An answer of which nothing is taken for so long is given up.
pub(super) const TAKEN_WITHIN: Duration = Duration::from_secs(30);
/// A stream is given up so much later than a connection: that of a stranger ends with what is on it, not after it.
const STREAM_GRACE: Duration = Duration::from_secs(2);
/// The largest piece: a frame of HTTP/2, unless its client wants larger ones.
const PIECE_BYTES: usize = 16 << 10;
/// The end of a large answer is copied, so that what is left of it does not hold all of it: what hyper and h2 may keep.
const TAIL_BYTES: usize = 128 << 10;

/// Since when a piece has been handed over that was not taken.
#[derive(Clone, Default)]
pub(super) struct Taking(Arc<Mutex<Option<Instant>>>);

/// An answer, under way up to its last byte.
pub(super) struct Answered {
    body: axum::body::Body,
    rest: Bytes,
    is_http2: bool,
    under_way: UnderWay,
    /// Its room among the answers of its project, and its place among the requests.
    _held: (Known, Option<OwnedSemaphorePermit>),
}

/// Runs the streams of HTTP/2, each until its answer was taken or is given up.
#[derive(Clone, Copy)]
pub(super) struct Streams;

tokio::task_local! {
    /// The answer of the stream that this task runs.
    static STREAM: Arc<OnceLock<Taking>>;
}

impl Taking {
    pub(super) fn handed(&self) {
        *self.lock() = Some(Instant::now());
    }

    pub(super) fn taken(&self) {
        *self.lock() = None;
    }

    /// How long it may go on like this; none where nothing was handed over.
    pub(super) fn left(&self) -> Option<Duration> {
        self.left_of(TAKEN_WITHIN)
    }

    fn left_of(&self, within: Duration) -> Option<Duration> {
        let since = *self.lock();
        since.filter(|_| !api::defence::is_off("H-36")).map(|since| within.saturating_sub(since.elapsed()))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Answered {
    pub(super) fn new(
        body: axum::body::Body,
        under_way: UnderWay,
        is_http2: bool,
        held: (Known, Option<OwnedSemaphorePermit>),
    ) -> Self {
        // Whoever runs the stream looks at it.
        let _ = STREAM.try_with(|stream| drop(stream.set(under_way.taking.clone())));
        Self { body, rest: Bytes::new(), is_http2, under_way, _held: held }
    }

    /// The next piece of what there is.
    fn piece(&mut self) -> Bytes {
        let length = match self.rest.len() {
            most if most > PIECE_BYTES => PIECE_BYTES,
            all if self.is_http2 && all > 1 => all - 1,
            all => all,
        };
        let is_tail = length < self.rest.len() && self.rest.len() <= TAIL_BYTES;
        let piece = self.rest.split_to(length);
        if is_tail { Bytes::copy_from_slice(&piece) } else { piece }
    }
}

impl Body for Answered {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let me = self.get_mut();
        me.under_way.taking.taken();
        if me.rest.is_empty() {
            match ready!(Pin::new(&mut me.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => me.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                end => return Poll::Ready(end),
            }
        }
        let piece = me.piece();
        me.under_way.taking.handed();
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (hint, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut all = SizeHint::new();
        all.set_lower(hint.lower().saturating_add(rest));
        if let Some(upper) = hint.upper() {
            all.set_upper(upper.saturating_add(rest));
        }
        all
    }
}

impl<F> Executor<F> for Streams
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let answer = Arc::new(OnceLock::<Taking>::new());
        let running = STREAM.scope(Arc::clone(&answer), stream);
        tokio::spawn(async move {
            let left = || answer.get().and_then(|answer| answer.left_of(TAKEN_WITHIN + STREAM_GRACE));
            tokio::pin!(running);
            // Dropping it resets the stream.
            while left() != Some(Duration::ZERO) {
                if timeout(left().unwrap_or(TAKEN_WITHIN), &mut running).await.is_ok() {
                    return;
                }
            }
        });
    }
}
