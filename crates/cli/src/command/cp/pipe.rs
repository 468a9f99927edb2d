//! A pipe between blocking threads, which access local files, and async tasks, which use connections.

use std::io::{self, Read, Write};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::mpsc;

/// Size of a chunk in bytes.
const PIECE_BYTES: usize = 256 << 10;
/// Maximum number of chunks that wait in the pipe.
const PIECES_WAITING: usize = 2;

/// Write end of the pipe.
pub struct PipeWriter {
    sender: mpsc::Sender<io::Result<Bytes>>,
    held: BytesMut,
}

/// Read end of the pipe, for blocking and for async readers.
pub struct PipeReader {
    receiver: mpsc::Receiver<io::Result<Bytes>>,
    piece: Bytes,
    /// True if the writer has marked the end. If the writer was dropped without marking the end, the transfer
    /// was interrupted.
    ended: bool,
}

/// Creates a pipe.
pub fn pipe() -> (PipeWriter, PipeReader) {
    let (sender, receiver) = mpsc::channel(PIECES_WAITING);
    (PipeWriter { sender, held: BytesMut::new() }, PipeReader { receiver, piece: Bytes::new(), ended: false })
}

impl PipeWriter {
    /// Sends a chunk from an async task.
    pub async fn push(&mut self, piece: Bytes) -> io::Result<()> {
        self.sender.send(Ok(piece)).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Marks the end of the data from an async task.
    pub async fn end(self) {
        let _ = self.sender.send(Ok(Bytes::new())).await;
    }

    /// Marks the end of the data from a blocking thread. If `done` is an error, sends the error to the reader
    /// instead.
    pub fn finish(mut self, done: io::Result<()>) {
        let end = done.and_then(|()| self.flush()).map(|()| Bytes::new());
        let _ = self.sender.blocking_send(end);
    }
}

impl Write for PipeWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.held.extend_from_slice(bytes);
        if self.held.len() >= PIECE_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.held.is_empty() {
            return Ok(());
        }
        let piece = self.held.split().freeze();
        self.sender.blocking_send(Ok(piece)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl PipeReader {
    fn accept(&mut self, came: Option<io::Result<Bytes>>) -> io::Result<()> {
        match came {
            Some(Ok(piece)) => {
                self.ended = piece.is_empty();
                self.piece = piece;
                Ok(())
            }
            Some(Err(error)) => Err(error),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl Read for PipeReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.piece.is_empty() && !self.ended {
            let came = self.receiver.blocking_recv();
            self.accept(came)?;
        }
        let count = buffer.len().min(self.piece.len());
        self.piece.split_to(count).copy_to_slice(buffer.get_mut(..count).unwrap_or_default());
        Ok(count)
    }
}

impl AsyncRead for PipeReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.piece.is_empty() && !self.ended {
            let came = ready!(self.receiver.poll_recv(context));
            self.accept(came)?;
        }
        let count = buffer.remaining().min(self.piece.len());
        let piece = self.piece.split_to(count);
        buffer.put_slice(&piece);
        Poll::Ready(Ok(()))
    }
}
