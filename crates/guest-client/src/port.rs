//! A connection to a port inside a sandbox: bytes in both directions over the channel.
//!
//! Both directions distinguish an orderly end from an abort: a connection that is dropped without a shutdown
//! is aborted in the sandbox at once. The sandbox counts as in use while the connection exists.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use hyper::body::{Body, Frame, Incoming};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio_util::sync::PollSender;

/// Maximum number of bytes sent in one chunk.
const PIECE_BYTES: usize = 64 * 1024;
/// Maximum number of chunks that are buffered for a guest that does not read.
const PIECES_WAITING: usize = 2;

/// A value that is held for as long as a connection exists, and is dropped with it.
pub type Guard = Box<dyn Send + Sync>;

/// A connection to a port inside a sandbox.
pub struct Port {
    heard: Incoming,
    /// Bytes that were received but have not been read yet.
    rest: Bytes,
    say: PortSender,
    _guard: Option<Guard>,
}

/// The sending half of a connection.
pub(crate) struct PortSender {
    pieces: PollSender<Bytes>,
    shut: Arc<AtomicBool>,
}

/// The body of the request that carries the bytes to the guest. It ends after a shutdown, and fails if the
/// sending half is dropped without one.
pub(crate) struct Inwards {
    pieces: mpsc::Receiver<Bytes>,
    shut: Arc<AtomicBool>,
    ended: bool,
}

/// Creates the sending half of a connection, and the request body that carries its bytes to the guest.
pub(crate) fn inwards() -> (PortSender, Inwards) {
    let (send, pieces) = mpsc::channel(PIECES_WAITING);
    let shut = Arc::new(AtomicBool::new(false));
    let said = PortSender { pieces: PollSender::new(send), shut: Arc::clone(&shut) };
    (said, Inwards { pieces, shut, ended: false })
}

impl Port {
    pub(crate) fn new(heard: Incoming, say: PortSender, guard: Option<Guard>) -> Self {
        Self { heard, rest: Bytes::new(), say, _guard: guard }
    }
}

impl Body for Inwards {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let piece = ready!(self.pieces.poll_recv(context));
        self.ended = piece.is_none();
        Poll::Ready(match piece {
            Some(bytes) => Some(Ok(Frame::data(bytes))),
            None if self.shut.load(Ordering::Acquire) => None,
            None => Some(Err(io::ErrorKind::ConnectionAborted.into())),
        })
    }
}

impl AsyncRead for Port {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.rest.is_empty() {
            match ready!(Pin::new(&mut self.heard).poll_frame(context)) {
                None => return Poll::Ready(Ok(())),
                Some(Err(error)) => {
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionReset, error)));
                }
                Some(Ok(frame)) => self.rest = frame.into_data().unwrap_or_default(),
            }
        }
        let count = self.rest.len().min(into.remaining());
        into.put_slice(self.rest.get(..count).unwrap_or_default());
        self.rest.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Port {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let broken = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        ready!(self.say.pieces.poll_reserve(context)).map_err(broken)?;
        let count = bytes.len().min(PIECE_BYTES);
        let piece = Bytes::copy_from_slice(bytes.get(..count).unwrap_or_default());
        self.say.pieces.send_item(piece).map_err(broken)?;
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Nothing remains to be flushed: every chunk is handed to the connection when it is written.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.say.shut.store(true, Ordering::Release);
        self.say.pieces.close();
        Poll::Ready(Ok(()))
    }
}
