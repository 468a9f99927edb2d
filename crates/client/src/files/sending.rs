//! Bodies that are made while they are sent. One piece is held at a time, whatever the length.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use api::limits;
use bytes::BytesMut;
use serde::de::DeserializeOwned;
use streamed::Feed;
use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::error::Error;
use crate::link::{Ask, Failure, Link};

/// What is read and sent at once.
const PIECE_BYTES: usize = 256 << 10;
/// Pieces waiting for the connection.
const PIECES_WAITING: usize = 2;
/// A server that takes nothing for so long is gone; one that is merely slow takes something within 60 s or says so.
const STALL_MAX: Duration = Duration::from_secs(75);
/// A sandbox that hashes slower than this has a broken disk.
const SLOWEST_BYTES_PER_SECOND: u64 = 4 << 20;
/// A link that carries less is of no use for files: 16 MiB would take longer than four minutes.
const SLOWEST_LINK_BYTES_PER_SECOND: u64 = 64 << 10;
/// How often it is looked whether anything moves.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// One request with such a body.
pub struct Sending<'a> {
    pub link: &'a Link,
    pub ask: &'a Ask,
    /// Bytes that are there already: the answer takes time for these too.
    pub before: u64,
    /// Is told how many bytes are there, with those.
    pub seen: &'a (dyn Fn(u64) + Send + Sync),
}

/// What a body came to.
enum Fed {
    /// All of it was taken.
    All,
    /// Nobody takes any more.
    Unwanted,
}

impl Sending<'_> {
    /// Sends everything that comes out of `from`, telling `passed` of each piece, and understands the answer.
    pub async fn send<T: DeserializeOwned>(
        &self,
        from: &mut (impl AsyncRead + Unpin),
        passed: &mut impl FnMut(&[u8]),
    ) -> Result<T, Failure> {
        let (sender, body) = streamed::body(PIECES_WAITING);
        let moved = AtomicU64::new(0);
        let asking = self.link.open_with(self.ask, reqwest::Body::wrap(body));
        let feeding = self.feed(from, passed, sender, &moved);
        tokio::pin!(asking, feeding);
        let (mut fed, mut last, mut since) = (false, 0, Instant::now());
        let response = loop {
            tokio::select! {
                response = &mut asking => break response?,
                result = &mut feeding, if !fed => {
                    fed = true;
                    since = Instant::now();
                    if let Err(error) = result {
                        return Err(Failure { error, trouble: None, pause: None });
                    }
                }
                () = tokio::time::sleep(LOOK_EVERY) => {
                    let now = moved.load(Ordering::Relaxed);
                    if now != last {
                        (last, since) = (now, Instant::now());
                    }
                    let most = if fed { worked(self.before + now) } else { STALL_MAX };
                    if since.elapsed() > most {
                        return Err(self.link.cut(format!("the server accepted no data for {most:?}")));
                    }
                }
            }
        };
        let body = self.link.body(self.ask, response, limits::BODY_BYTES_MAX).await?;
        serde_json::from_slice(&body).map_err(|error| {
            let error = self.link.protocol(format!("malformed response: {error}"));
            Failure { error, trouble: None, pause: None }
        })
    }

    async fn feed(
        &self,
        from: &mut (impl AsyncRead + Unpin),
        passed: &mut impl FnMut(&[u8]),
        sender: Feed,
        moved: &AtomicU64,
    ) -> Result<Fed, Error> {
        loop {
            let mut piece = BytesMut::with_capacity(PIECE_BYTES);
            match from.read_buf(&mut piece).await {
                Ok(0) => return Ok(Fed::All),
                Ok(_) => {}
                Err(error) => {
                    let why = error.to_string();
                    // Without an end, so that nobody takes what came for all there is.
                    sender.abort(error);
                    return Err(Error::Local { act: "read the data to send".into(), why });
                }
            }
            passed(&piece);
            let count = piece.len() as u64;
            if sender.send(piece.freeze()).await.is_err() {
                return Ok(Fed::Unwanted);
            }
            let there = self.before + moved.fetch_add(count, Ordering::Relaxed) + count;
            (self.seen)(there);
        }
    }
}

/// How long a sandbox may work on so many bytes.
pub fn worked(bytes: u64) -> Duration {
    STALL_MAX + Duration::from_secs(bytes / SLOWEST_BYTES_PER_SECOND)
}

/// How long a body of so many bytes may be on its way, and worked on.
pub fn carried(bytes: u64) -> Duration {
    worked(bytes) + Duration::from_secs(bytes / SLOWEST_LINK_BYTES_PER_SECOND)
}
