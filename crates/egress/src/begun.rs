//! A connection from a program in the sandbox to the broker. Its first byte can be inspected without being
//! consumed, and the connection is not reset while its last bytes are in transit.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

use crate::place::ConnectionPermit;

/// Timeout for a program to close its side after the broker has closed its own.
const CLOSED_WITHIN: Duration = Duration::from_secs(10);
/// Maximum number of bytes that are read from the program and discarded while the broker waits for the
/// program to close its side.
const UNHEARD_BYTES_MAX: u64 = 1 << 20;

/// A connection from a program in the sandbox to the broker.
pub struct Begun<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> {
    first: Option<u8>,
    /// `Some` until this value is dropped.
    stream: Option<S>,
    shut: bool,
    /// The connection's slot under the connection limits, which stays occupied until the connection is closed
    /// completely.
    place: Option<ConnectionPermit>,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Begun<S> {
    /// Wraps a new connection.
    pub fn new(stream: S) -> Self {
        Self { first: None, stream: Some(stream), shut: false, place: None }
    }

    /// Attaches the connection's slot, which then stays occupied until the connection is closed completely.
    pub fn take(&mut self, place: ConnectionPermit) {
        self.place = Some(place);
    }

    /// Returns the first byte without consuming it, or `None` at the end of the stream.
    pub async fn first(&mut self) -> io::Result<Option<u8>> {
        let mut byte = [0];
        let count = self.read(&mut byte).await?;
        self.first = (count == 1).then_some(byte[0]);
        Ok(self.first)
    }

    fn stream(&mut self) -> io::Result<Pin<&mut S>> {
        self.stream.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> AsyncRead for Begun<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(first) = self.first.take_if(|_| into.remaining() > 0) {
            into.put_slice(&[first]);
            return Poll::Ready(Ok(()));
        }
        self.stream()?.poll_read(context, into)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> AsyncWrite for Begun<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shut = true;
        self.stream()?.poll_shutdown(context)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Drop for Begun<S> {
    /// After an orderly shutdown, keeps the connection open until the program has closed its side. Closing
    /// the connection at once would reset it, and bytes in transit to the program would be lost.
    fn drop(&mut self) {
        let (true, Some(stream), Ok(executor)) =
            (self.shut, self.stream.take(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        let place = self.place.take();
        executor.spawn(async move {
            let _place = place;
            let (mut rest, mut nobody) = (stream.take(UNHEARD_BYTES_MAX), tokio::io::sink());
            let unheard = tokio::io::copy(&mut rest, &mut nobody);
            let _ = tokio::time::timeout(CLOSED_WITHIN, unheard).await;
        });
    }
}
