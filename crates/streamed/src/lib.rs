//! A body that is made while it is sent: what was put in comes out, all of it, before its end does.
//!
//! `http_body_util::channel` does not promise that where its two ends are on different threads. Its end comes by another way than its
//! pieces, and a body that looks for a piece, finds none and then finds the end has passed over the piece that came in between. Here
//! there is one queue, and the end is the end of it.

#![forbid(unsafe_code)]

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame};
use tokio::sync::mpsc::{self, OwnedPermit};

/// A piece, or why there will be no more.
type Piece = io::Result<Frame<Bytes>>;

/// The end that is read.
#[derive(Debug)]
pub struct Streamed {
    pieces: mpsc::Receiver<Piece>,
}

/// The end that is written. Whoever drops it says that this was all; [`Feed::abort`] says that it was not.
#[derive(Debug)]
pub struct Feed {
    pieces: mpsc::Sender<Piece>,
    /// Room for the last word, however full it is.
    last: Option<OwnedPermit<Piece>>,
}

/// Nobody reads any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the reader has disconnected")]
pub struct Unread;

/// A body in which so many pieces may wait.
#[must_use]
pub fn body(waiting: usize) -> (Feed, Streamed) {
    let (sender, pieces) = mpsc::channel(waiting.saturating_add(1));
    let last = sender.clone().try_reserve_owned().ok();
    (Feed { pieces: sender, last }, Streamed { pieces })
}

impl Feed {
    /// Puts a piece in; waits while too many wait.
    ///
    /// # Errors
    /// Nobody reads any more.
    pub async fn send(&self, piece: Bytes) -> Result<(), Unread> {
        self.pieces.send(Ok(Frame::data(piece))).await.map_err(|_| Unread)
    }

    /// Says that this was all, and what is known of it now.
    pub fn end(self, trailers: HeaderMap) {
        self.say(Ok(Frame::trailers(trailers)));
    }

    /// Says that what came is not the whole.
    pub fn abort(self, why: io::Error) {
        self.say(Err(why));
    }

    fn say(mut self, word: Piece) {
        if let Some(last) = self.last.take() {
            last.send(word);
        }
    }
}

impl Body for Streamed {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Piece>> {
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
