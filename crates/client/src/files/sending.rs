//! Streamed request bodies. Only a few chunks are held in memory, regardless of the length of the body.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use api::limits;
use bytes::BytesMut;
use serde::de::DeserializeOwned;
use streamed::Feed;
use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::error::Error;
use crate::link::{ApiRequest, FailedAttempt, ServerLink};

/// Size of the chunks in which data is read and sent.
const PIECE_BYTES: usize = 256 << 10;
/// Maximum number of chunks that wait to be sent.
const PIECES_WAITING: usize = 2;
/// Maximum time without progress. A server that is merely slow either accepts data or reports an error within
/// 60 s.
const STALL_MAX: Duration = Duration::from_secs(75);
/// Minimum rate at which a sandbox is expected to hash data. A lower rate points to a broken disk.
const SLOWEST_BYTES_PER_SECOND: u64 = 4 << 20;
/// Minimum rate of a usable connection. At a lower rate, 16 MiB would take more than four minutes, which is
/// too slow for file transfers.
const SLOWEST_LINK_BYTES_PER_SECOND: u64 = 64 << 10;
/// Interval between progress checks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A request with a streamed body.
pub struct Sending<'a> {
    pub link: &'a ServerLink,
    pub ask: &'a ApiRequest,
    /// Number of bytes that the server already has. They extend the timeout for the response, because the
    /// sandbox hashes the whole file.
    pub before: u64,
    /// Progress callback. Receives the number of bytes sent, including `before`.
    pub seen: &'a (dyn Fn(u64) + Send + Sync),
}

/// Result of sending a body.
enum Fed {
    /// The whole body was sent.
    All,
    /// The connection no longer accepts data.
    Unwanted,
}

impl Sending<'_> {
    /// Sends everything that `from` returns, calls `passed` for each chunk, and parses the response.
    pub async fn send<T: DeserializeOwned>(
        &self,
        from: &mut (impl AsyncRead + Unpin),
        passed: &mut impl FnMut(&[u8]),
    ) -> Result<T, FailedAttempt> {
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
                        return Err(FailedAttempt { error, trouble: None, pause: None });
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
            FailedAttempt { error, trouble: None, pause: None }
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
                    // Abort the body instead of ending it regularly, so that the server does not mistake the
                    // partial body for a complete one.
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

/// Returns the maximum time that a sandbox may take to process this many bytes.
pub fn worked(bytes: u64) -> Duration {
    STALL_MAX + Duration::from_secs(bytes / SLOWEST_BYTES_PER_SECOND)
}

/// Returns the maximum time for transferring and processing a body of this many bytes.
pub fn carried(bytes: u64) -> Duration {
    worked(bytes) + Duration::from_secs(bytes / SLOWEST_LINK_BYTES_PER_SECOND)
}
