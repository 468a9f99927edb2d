//! Responses in transmission. If the client does not read a response, the server drops it to release its
//! memory.
//!
//! hyper requests the next chunk of a response only after it has passed on the previous one, so responses are
//! handed over in small chunks. If hyper does not request the next chunk, the client is not reading: either
//! the stream's flow-control window or the socket buffer is full. hyper passes on a chunk as soon as a single
//! byte of it fits into the window, so on HTTP/2, the last byte of a response is a chunk of its own. Once
//! hyper has passed it on, all data that h2 still buffers fits into the window.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::rt::Executor;
use tokio::time::{Instant, timeout};

use super::Reserved;
use super::idle::{AuthenticationHandle, UnderWay};

/// Maximum time that a client may take to read a chunk. After that, the response is dropped.
pub(super) const TAKEN_WITHIN: Duration = Duration::from_secs(30);
/// Additional time before a single stream is dropped. An unauthenticated connection is closed, with all its
/// streams, before this time is over.
const STREAM_GRACE: Duration = Duration::from_secs(2);
/// Maximum length of a chunk. This is the length of an HTTP/2 frame, unless the client accepts larger frames.
const PIECE_BYTES: usize = 16 << 10;
/// Length of the final part of a response. Chunks in this part are copied; otherwise, the few chunks that
/// hyper and h2 may still buffer would keep the whole response in memory.
const TAIL_BYTES: usize = 128 << 10;

/// Time at which the latest chunk was handed over, if the client has not read the chunk yet.
#[derive(Clone, Default)]
pub(super) struct Taking(Arc<Mutex<Option<Instant>>>);

/// A response body that counts as in progress until its last byte.
pub(super) struct Answered {
    body: axum::body::Body,
    rest: Bytes,
    is_http2: bool,
    under_way: UnderWay,
    /// The request's slot, and the memory that is reserved for its response.
    _held: (AuthenticationHandle, Option<Reserved>),
}

/// Executor of HTTP/2 streams. Each stream runs until its response is read or dropped.
#[derive(Clone, Copy)]
pub(super) struct Streams;

tokio::task_local! {
    /// State of the latest chunk on the stream that the current task runs.
    static STREAM: Arc<OnceLock<Taking>>;
}

impl Taking {
    pub(super) fn handed(&self) {
        *self.lock() = Some(Instant::now());
    }

    pub(super) fn taken(&self) {
        *self.lock() = None;
    }

    /// Returns the time that the client has left to read, or `None` if no chunk is waiting.
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
        held: (AuthenticationHandle, Option<Reserved>),
    ) -> Self {
        // The stream's executor checks this state.
        let _ = STREAM.try_with(|stream| drop(stream.set(under_way.taking.clone())));
        Self { body, rest: Bytes::new(), is_http2, under_way, _held: held }
    }

    /// Returns the next chunk of the buffered response data.
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
            // When the time is over, the loop ends. Dropping the stream then resets it.
            while left() != Some(Duration::ZERO) {
                if timeout(left().unwrap_or(TAKEN_WITHIN), &mut running).await.is_ok() {
                    return;
                }
            }
        });
    }
}
