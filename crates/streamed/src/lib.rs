//! A response body that is produced while it is being sent. The reader receives every chunk before the end of
//! the body.
//!
//! `http_body_util::channel` does not guarantee this if its two ends are on different threads. It signals the
//! end separately from the data, so a reader that polls for data, finds none and then sees the end misses a
//! chunk that arrived in between. This crate uses a single queue for both, and the body ends when the queue
//! ends.

#![forbid(unsafe_code)]

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame};
use tokio::sync::mpsc::{self, OwnedPermit};

/// A chunk, or the error that ends the body early.
type ChunkResult = io::Result<Frame<Bytes>>;

/// The reading end of a body.
#[derive(Debug)]
pub struct Streamed {
    pieces: mpsc::Receiver<ChunkResult>,
}

/// The writing end of a body. Dropping it ends the body normally; [`Feed::abort`] ends it with an error.
#[derive(Debug)]
pub struct Feed {
    pieces: mpsc::Sender<ChunkResult>,
    /// Reserved queue slot for the final frame or error, available even if the queue is full.
    last: Option<OwnedPermit<ChunkResult>>,
}

/// The error for a body whose reader has disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the reader has disconnected")]
pub struct Unread;

/// Creates a body with a queue of at most `waiting` chunks.
#[must_use]
pub fn body(waiting: usize) -> (Feed, Streamed) {
    let (sender, pieces) = mpsc::channel(waiting.saturating_add(1));
    let last = sender.clone().try_reserve_owned().ok();
    (Feed { pieces: sender, last }, Streamed { pieces })
}

impl Feed {
    /// Queues a chunk. Waits while the queue is full.
    ///
    /// # Errors
    /// Returns an error if the reader has disconnected.
    pub async fn send(&self, piece: Bytes) -> Result<(), Unread> {
        self.pieces.send(Ok(Frame::data(piece))).await.map_err(|_| Unread)
    }

    /// Ends the body normally, with these trailers.
    pub fn end(self, trailers: HeaderMap) {
        self.say(Ok(Frame::trailers(trailers)));
    }

    /// Ends the body with an error, which tells the reader that the content is incomplete.
    pub fn abort(self, why: io::Error) {
        self.say(Err(why));
    }

    fn say(mut self, word: ChunkResult) {
        if let Some(last) = self.last.take() {
            last.send(word);
        }
    }
}

impl Body for Streamed {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<ChunkResult>> {
        self.pieces.poll_recv(context)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_last_piece_comes_however_soon_the_end_does() {
        for round in 0..20_000_u32 {
            let (feed, body) = body(2);
            let reading = tokio::spawn(body.collect());
            for piece in ["one ", "two ", "three"] {
                feed.send(Bytes::from_static(piece.as_bytes())).await.unwrap();
            }
            drop(feed);
            assert_eq!(reading.await.unwrap().unwrap().to_bytes(), "one two three", "round {round}");
        }
    }

    #[tokio::test]
    async fn what_is_broken_off_has_no_end_however_full_it_was() {
        let (feed, mut body) = body(1);
        feed.send(Bytes::from_static(b"one")).await.unwrap();
        feed.abort(io::ErrorKind::TimedOut.into());
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "one");
        assert_eq!(body.frame().await.unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(body.frame().await.is_none());
    }

    #[tokio::test]
    async fn what_is_known_at_the_end_comes_after_all_of_it() {
        let (feed, body) = body(1);
        feed.send(Bytes::from_static(b"one")).await.unwrap();
        let trailers = HeaderMap::from_iter([(http::header::ETAG, http::HeaderValue::from_static("x"))]);
        feed.end(trailers.clone());
        let read = body.collect().await.unwrap();
        assert_eq!(read.trailers(), Some(&trailers));
        assert_eq!(read.to_bytes(), "one");
    }

    #[tokio::test]
    async fn whoever_writes_learns_that_nobody_reads() {
        let (feed, body) = body(1);
        drop(body);
        assert_eq!(feed.send(Bytes::from_static(b"one")).await, Err(Unread));
    }
}
