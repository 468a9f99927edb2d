//! Sends a request on a separate connection and receives the response head, with limits on the head's size
//! and on the time until it is complete.
//!
//! Hosts are untrusted: without limits, a host that sends an endless head would use up server memory on each
//! of a sandbox's connections.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::Refusal;
use crate::body::HEAD_BYTES_MAX;

/// Timeout for the response head, counted from the last byte of the request, because an upload may take
/// longer than this. A host that computes its response may need minutes.
const ANSWER_WITHIN: Duration = Duration::from_secs(300);
/// Timeout for completing a response head, counted from its first byte, or from the last byte of the request
/// if that comes later. Hosts normally send the whole head at once; a slower host only ties up a connection.
const HEAD_WITHIN: Duration = Duration::from_secs(60);

/// A connection wrapper that records the progress of the request and the response.
struct Watched<S> {
    stream: S,
    /// Time when the most recent byte of the request was written.
    written: watch::Sender<Instant>,
    /// Time of the response's first byte, or of the request's last byte if that was later. `None` until the
    /// response begins.
    begun: watch::Sender<Option<Instant>>,
}

/// Sends a request on this connection, and returns the response once its head has arrived.
pub async fn send<S>(
    request: Request<Incoming>,
    stream: S,
    authority: &str,
) -> Result<Response<Incoming>, Refusal>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let failed = |why: String| Refusal::unreachable(format!("no response from {authority}: {why}"));
    let (begun, seen) = watch::channel(None);
    let (written, progress) = watch::channel(Instant::now());
    let made = client().handshake(TokioIo::new(Watched { stream, written, begun })).await;
    let (mut sender, connection) = made.map_err(|error| failed(error.to_string()))?;
    let connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let answered = tokio::select! {
        answered = sender.send_request(request) => answered.map_err(|error| failed(error.to_string())),
        () = unanswered(progress) => Err(failed(format!("no data was received for {ANSWER_WITHIN:?}"))),
        () = overdue(seen) => Err(failed(format!("the response headers were not complete within {HEAD_WITHIN:?}"))),
    };
    let answered = answered?;
    // From here on, the response body keeps the connection open.
    drop(connection.detach());
    Ok(answered)
}

/// Returns an HTTP client with a size limit on response heads.
fn client() -> http1::Builder {
    let mut client = http1::Builder::new();
    if !api::defence::is_off("N-30") {
        client.max_buf_size(HEAD_BYTES_MAX);
    }
    client
}

/// Returns once the request has made no progress for [`ANSWER_WITHIN`].
async fn unanswered(written: watch::Receiver<Instant>) {
    loop {
        let until = *written.borrow() + ANSWER_WITHIN;
        if until <= Instant::now() {
            return;
        }
        tokio::time::sleep_until(until).await;
    }
}

/// Returns once the response has begun but its head has not been completed within [`HEAD_WITHIN`].
async fn overdue(mut begun: watch::Receiver<Option<Instant>>) {
    loop {
        let since = *begun.borrow_and_update();
        let late = async {
            match since {
                Some(since) => tokio::time::sleep_until(since + HEAD_WITHIN).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = late => return,
            changed = begun.changed() => if changed.is_err() {
                // The connection is gone; the request itself reports that error.
                return std::future::pending().await;
            },
        }
    }
}

impl<S> Watched<S> {
    /// Starts the timer for the response head at the response's first byte (`begins` is true), and restarts
    /// it at each later byte of the request (`begins` is false).
    fn note(&self, begins: bool) {
        let now = Instant::now();
        self.begun.send_if_modified(|begun| {
            let counts = begun.is_some() != begins;
            if counts {
                *begun = Some(now);
            }
            counts
        });
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, into))?;
        if into.filled().len() > before {
            self.note(true);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let count = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.written.send_replace(Instant::now());
        self.note(false);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[tokio::test(start_paused = true)]
    async fn a_head_that_has_begun_ends_in_time_and_one_that_has_not_may_take_longer() {
        let (near, mut far) = tokio::io::duplex(1 << 10);
        let (begun, seen) = watch::channel(None);
        let written = watch::Sender::new(Instant::now());
        let mut watched = Watched { stream: near, written, begun };
        let late = |seen: &watch::Receiver<Option<Instant>>| {
            let seen = seen.clone();
            async move { tokio::time::timeout(HEAD_WITHIN * 2, overdue(seen)).await.is_ok() }
        };
        watched.write_all(b"request").await.unwrap();
        assert!(!late(&seen).await, "a host may think before it answers");
        far.write_all(b"HTTP/1.1 100 Continue\r\n").await.unwrap();
        let mut said = [0; 23];
        watched.read_exact(&mut said).await.unwrap();
        tokio::time::sleep(HEAD_WITHIN / 2).await;
        watched.write_all(b"a large body").await.unwrap();
        let since = Instant::now();
        assert!(late(&seen).await);
        assert_eq!(since.elapsed(), HEAD_WITHIN, "counted from the last byte of the request");
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_may_take_longer_than_the_host_may_take_to_respond() {
        let (near, mut far) = tokio::io::duplex(1 << 10);
        let (written, progress) = watch::channel(Instant::now());
        let mut watched = Watched { stream: near, written, begun: watch::Sender::new(None) };
        let upload = async {
            for _ in 0..3 {
                watched.write_all(b"part").await.unwrap();
                far.read_exact(&mut [0; 4]).await.unwrap();
                tokio::time::sleep(ANSWER_WITHIN * 2 / 3).await;
            }
        };
        tokio::select! {
            () = upload => {}
            () = unanswered(progress.clone()) => panic!("the upload made progress"),
        }
        let since = Instant::now();
        unanswered(progress).await;
        assert_eq!(since.elapsed(), ANSWER_WITHIN / 3, "counted from the last byte of the request");
    }
}
