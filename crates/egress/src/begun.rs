//! The connection of a program inside: its first byte was taken to see what it is, and it is not broken off while its last bytes are
//! on their way.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

use crate::place::Place;

/// A program that was told the end closes its side within this.
const CLOSED_WITHIN: Duration = Duration::from_secs(10);
/// What it may still say meanwhile, and nobody hears.
const UNHEARD_BYTES_MAX: u64 = 1 << 20;

/// Such a connection.
pub struct Begun<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> {
    first: Option<u8>,
    /// There until it is dropped.
    stream: Option<S>,
    shut: bool,
    /// Its place among the connections of the sandbox, until the last of it is gone.
    place: Option<Place>,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Begun<S> {
    /// One that has just been made.
    pub fn new(stream: S) -> Self {
        Self { first: None, stream: Some(stream), shut: false, place: None }
    }

    /// Gives it its place.
    pub fn take(&mut self, place: Place) {
        self.place = Some(place);
    }

    /// Its first byte, which stays the first that is read; none if it has none.
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
    /// What was ended in good order is held until the program has ended its side: dropped at once, it would be reset, and with it
    /// what is still on its way to the program.
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
