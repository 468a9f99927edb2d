//! Streamed bodies of any length between clients and sandboxes.
//!
//! A separate task forwards each response. It holds a call to the sandbox and one of the project's stream
//! permits, and releases both when the client disconnects or accepts no data for [`IDLE_MAX`]. A body that
//! cannot be completed is aborted, so that the client detects the truncation.

use std::sync::Arc;
use std::time::Duration;

use api::Error;
use api::files::{
    ARCHIVE_TRAILER, BLAKE3_TRAILER, DIGEST_HEADER, FILE_CHANGED, FILE_TRAILER, FILE_WHOLE, Hash, Hashing,
    WatchLine,
};
use api::server::HEARTBEAT_MS;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use node::{Call, FileDownload, ReadChunk, Watching};
use streamed::Feed;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

pub use crate::body::{Coming, IDLE_MAX};
use crate::output::written;
use crate::rejection::{Answer, Rejection};
use control::platform::Platform;

/// Maximum number of chunks that are buffered for the client.
const PIECES_WAITING: usize = 2;

/// Resources that a stream holds until it ends.
pub struct StreamGuard {
    platform: Arc<Platform>,
    call: Call,
    _place: OwnedSemaphorePermit,
}

impl StreamGuard {
    /// Creates the guard of a stream that uses this call and this permit.
    pub fn new(platform: Arc<Platform>, call: Call, place: OwnedSemaphorePermit) -> Self {
        platform.metrics.streams.inc();
        Self { platform, call, _place: place }
    }

    /// Returns the stream's call to the sandbox.
    pub fn call(&self) -> &Call {
        &self.call
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.platform.metrics.streams.dec();
    }
}

/// Returns a body that streams a file or an archive. Its trailers contain the file's digest or the report on
/// the archive.
pub fn outward(held: StreamGuard, mut reading: FileDownload) -> Body {
    let (sender, body) = streamed::body(PIECES_WAITING);
    tokio::spawn(async move {
        let _held = held;
        loop {
            match reading.next().await {
                Ok(ReadChunk::Data(bytes)) => {
                    if !matches!(timeout(IDLE_MAX, sender.send(bytes)).await, Ok(Ok(()))) {
                        return sender.abort(std::io::ErrorKind::TimedOut.into());
                    }
                }
                Ok(ReadChunk::Read { hash, changed }) => {
                    let state = if changed { FILE_CHANGED } else { FILE_WHOLE };
                    let name = digest_trailer(hash.kind());
                    let told = match hash {
                        Hash::Sha256(digits) => digest(&digits),
                        Hash::Blake3(digits) => digits,
                    };
                    let trailers = [(name, told), (FILE_TRAILER, state.to_owned())];
                    return finish(sender, &trailers);
                }
                Ok(ReadChunk::Packed(report)) => {
                    let report = serde_json::to_string(&report).unwrap_or_default();
                    return finish(sender, &[(ARCHIVE_TRAILER, report)]);
                }
                Err(error) => return sender.abort(std::io::Error::other(error)),
            }
        }
    });
    Body::new(body)
}

/// Returns a body that streams events about changed files, one per line.
pub fn told(held: StreamGuard, mut watching: Watching) -> Body {
    let (sender, body) = streamed::body(PIECES_WAITING);
    tokio::spawn(async move {
        let _held = held;
        let mut line = WatchLine::Watching;
        loop {
            let is_last = matches!(line, WatchLine::Error { .. });
            let sent = timeout(IDLE_MAX, sender.send(written(&[line]))).await;
            if is_last || !matches!(sent, Ok(Ok(()))) {
                return;
            }
            line = match timeout(Duration::from_millis(HEARTBEAT_MS), watching.next()).await {
                Err(_) => WatchLine::Heartbeat,
                Ok(Ok(event)) => WatchLine::Changed { event },
                Ok(Err(error)) => WatchLine::Error { error: Rejection::from(error).error().clone() },
            };
        }
    });
    Body::new(body)
}

/// Returns the declared length of a request's body.
pub fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Returns the name of the trailer that carries this kind of digest.
pub fn digest_trailer(kind: Hashing) -> &'static str {
    match kind {
        Hashing::Sha256 => DIGEST_HEADER,
        Hashing::Blake3 => BLAKE3_TRAILER,
    }
}

/// Formats a body's SHA-256 digest as RFC 9530 specifies.
pub fn digest(sha256: &str) -> String {
    let pairs = sha256.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap_or_default());
    let bytes: Vec<u8> = pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap_or_default()).collect();
    format!("sha-256=:{}:", STANDARD.encode(bytes))
}

/// Returns the SHA-256 hash that a request's headers declare, as 64 hexadecimal digits.
///
/// # Errors
/// Returns an error if a digest header is malformed.
pub fn promised(headers: &HeaderMap) -> Answer<Option<String>> {
    let wrong =
        || Error::invalid("content-digest is invalid", "Use the format of RFC 9530: `sha-256=:BASE64:`.");
    for value in headers.get_all(DIGEST_HEADER) {
        for member in value.to_str().map_err(|_| wrong())?.split(',') {
            let Some((name, value)) = member.trim().split_once('=') else { return Err(wrong().into()) };
            if name.eq_ignore_ascii_case("sha-256") {
                let base64 = value.strip_prefix(':').and_then(|value| value.strip_suffix(':'));
                let bytes = base64.and_then(|base64| STANDARD.decode(base64).ok());
                let bytes: [u8; 32] = bytes.and_then(|bytes| bytes.try_into().ok()).ok_or_else(wrong)?;
                return Ok(Some(control::audit::hex(&bytes)));
            }
        }
    }
    Ok(None)
}

fn finish(sender: Feed, trailers: &[(&'static str, String)]) {
    let mut headers = HeaderMap::new();
    for (name, value) in trailers {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    sender.end(headers);
}

/// Returns true if the client accepts trailers.
pub fn reads_trailers(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::TE).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|word| word.trim().eq_ignore_ascii_case("trailers"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_written_and_read_alike() {
        let hash = "ab".repeat(32);
        let mut headers = HeaderMap::new();
        let text = format!("md5=:AAAA:, {}", digest(&hash));
        headers.insert(DIGEST_HEADER, HeaderValue::from_str(&text).unwrap());
        assert_eq!(promised(&headers).unwrap(), Some(hash));
        for wrong in ["sha-256", "sha-256=abc", "sha-256=:!:", "sha-256=:AAAA:"] {
            headers.insert(DIGEST_HEADER, HeaderValue::from_static(wrong));
            assert!(promised(&headers).is_err(), "{wrong}");
        }
        assert_eq!(promised(&HeaderMap::new()).unwrap(), None);
    }
}
