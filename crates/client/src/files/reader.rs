//! A reader of one file. It returns the bytes in order and reconnects as often as necessary.
//!
//! ```text
//!            ┌─ disconnected, silent: `Range` from the current offset, `If-Match` the same version ─┐
//!            ▼                                                                                      │
//! request ──▶ read ── bytes ──▶ caller ── calls `next` again ───────────────────────────────────────┘
//!               └──── digest of this response matches ──▶ end; after a reconnect, the whole file's hash must match too
//! ```

use api::files::{BLAKE3_TRAILER, FILE_TRAILER, FILE_WHOLE, FileInfo, FileKind, FilePath, not_regular};
use api::{ErrorCode, Layer, Ran, Retry};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use reqwest::StatusCode;
use reqwest::header::{HeaderMap, IF_MATCH, RANGE, TE};

use super::{BLAKE3, Files, finished};
use crate::error::Error;
use crate::link::{ApiRequest, FailedAttempt};
use crate::patience::Attempts;

/// A reader of one version of one file.
pub struct FileReader {
    files: Files,
    path: FilePath,
    info: FileInfo,
    position: u64,
    /// Hash state of all bytes read so far.
    whole: blake3::Hasher,
    answer: Option<ContentResponse>,
    attempts: Attempts,
    /// True if a single response digest cannot verify the file, because the file needed more than one
    /// response or a response had no digest. The hash of the whole file is then compared at the end.
    pieced: bool,
    ended: bool,
    /// True if the file changed during the read, so that it must be read again from the start.
    spoiled: bool,
}

/// A response that is being read.
struct ContentResponse {
    body: reqwest::Body,
    /// Offset of the response's first byte. The response's digest is checked only if this is 0; otherwise the
    /// hash of the whole file is compared at the end.
    from: u64,
}

impl Files {
    /// Returns a reader of the current version of a regular file.
    ///
    /// # Errors
    /// Returns an error if the path is not a regular file (`not_regular`) or does not exist.
    pub async fn reader(&self, path: &FilePath) -> Result<FileReader, Error> {
        let info = self.stat(path).await?;
        if info.kind != FileKind::File {
            return Err(Error::Refused(not_regular(&info.path, info.kind)));
        }
        let attempts = self.client.link.attempts();
        Ok(FileReader {
            files: self.clone(),
            path: path.clone(),
            info,
            position: 0,
            whole: blake3::Hasher::new(),
            answer: None,
            attempts,
            pieced: false,
            ended: false,
            spoiled: false,
        })
    }
}

impl FileReader {
    /// Returns the file's metadata at the start of the read.
    pub fn info(&self) -> &FileInfo {
        &self.info
    }

    /// Returns true if the file changed during the read, so that it must be read again from the start.
    pub fn is_spoiled(&self) -> bool {
        self.spoiled
    }

    /// Returns the next bytes, or `None` once all bytes have been read and verified.
    ///
    /// # Errors
    /// Returns an error if the file changed (`conflict`) or is gone, or the server no longer responds.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        while !self.ended {
            match self.step().await {
                Ok(Some(bytes)) => {
                    self.attempts.progress();
                    self.position += bytes.len() as u64;
                    self.whole.update(&bytes);
                    return Ok(Some(bytes));
                }
                Ok(None) => {}
                Err(failure) => {
                    self.answer = None;
                    let link = &self.files.client.link;
                    link.pause(&mut self.attempts, failure).await?;
                }
            }
        }
        Ok(None)
    }

    async fn step(&mut self) -> Result<Option<Bytes>, FailedAttempt> {
        let Some(answer) = &mut self.answer else {
            // The connection broke after the last byte, so only the hash remains to be checked.
            if self.pieced && self.position == self.info.size_bytes {
                return self.compare().await.map(|()| None);
            }
            self.answer = Some(self.open().await?);
            self.pieced |= self.position > 0;
            return Ok(None);
        };
        let link = &self.files.client.link;
        let silence = link.options.answer_within;
        match tokio::time::timeout(silence, answer.body.frame()).await {
            Ok(Some(Ok(frame))) => match frame.into_data() {
                Ok(bytes) => {
                    if self.position + bytes.len() as u64 > self.info.size_bytes {
                        return Err(fatal(
                            link.protocol("received more bytes than the size of the file".into()),
                        ));
                    }
                    Ok((!bytes.is_empty()).then_some(bytes))
                }
                Err(frame) => {
                    let trailers = frame.into_trailers().unwrap_or_default();
                    self.finish(&trailers).await.map(|()| None)
                }
            },
            Ok(None) => {
                // The response ended without trailers, for example because a proxy removed them.
                self.finish(&HeaderMap::new()).await.map(|()| None)
            }
            Ok(Some(Err(error))) => {
                self.pieced = true;
                Err(link.cut(crate::link::root_cause(&error)))
            }
            Err(_) => {
                self.pieced = true;
                Err(link.cut(format!("received no data for {silence:?}")))
            }
        }
    }

    /// Requests the rest of the file.
    async fn open(&mut self) -> Result<ContentResponse, FailedAttempt> {
        let link = &self.files.client.link;
        let route = self.files.route("/content", &[("path", &self.path)]) + BLAKE3;
        let mut ask = ApiRequest::get(route).header(TE, "trailers");
        ask = ask.header(IF_MATCH, &format!("\"{}\"", self.info.version));
        if self.position > 0 {
            ask = ask.header(RANGE, &format!("bytes={}-", self.position));
        }
        let response = match link.open(&ask).await {
            Ok(response) => response,
            Err(failure) => {
                self.spoiled |= failure.error.code() == Some(ErrorCode::Conflict);
                return Err(failure);
            }
        };
        let wanted = if self.position > 0 { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
        if response.status() != wanted {
            let what = format!(
                "unexpected status {} for a request for bytes from offset {}",
                response.status(),
                self.position
            );
            return Err(fatal(link.protocol(what)));
        }
        Ok(ContentResponse { body: response.into(), from: self.position })
    }

    /// Verifies a complete response.
    async fn finish(&mut self, trailers: &HeaderMap) -> Result<(), FailedAttempt> {
        let text = |name: &str| trailers.get(name).and_then(|value| value.to_str().ok());
        let Some(answer) = self.answer.take() else { return Ok(()) };
        match text(BLAKE3_TRAILER) {
            Some(told) if answer.from == 0 && told != finished(&self.whole).digits() => {
                self.spoiled = true;
                let what = "the content of the file does not match the hash that the server sent";
                return Err(fatal(Error::Refused(changed(&self.info, what))));
            }
            Some(_) => {}
            None => self.pieced = true,
        }
        if text(FILE_TRAILER).is_some_and(|state| state != FILE_WHOLE) {
            self.spoiled = true;
            return Err(fatal(Error::Refused(changed(&self.info, "the file changed while it was read"))));
        }
        if self.position < self.info.size_bytes {
            let link = &self.files.client.link;
            let (at, size) = (self.position, self.info.size_bytes);
            return Err(fatal(link.protocol(format!("the response ended after {at} of {size} bytes"))));
        }
        if self.pieced { self.compare().await } else { self.end() }
    }

    /// Verifies that all bytes that were read match the file in the sandbox.
    async fn compare(&mut self) -> Result<(), FailedAttempt> {
        let there = self.files.blake3(&self.path).await.map_err(fatal)?;
        if there.file.version != self.info.version || there.hash != finished(&self.whole) {
            self.spoiled = true;
            return Err(fatal(Error::Refused(changed(&self.info, "the file changed while it was read"))));
        }
        self.end()
    }

    #[allow(clippy::unnecessary_wraps, reason = "both ways to the end are one expression")]
    fn end(&mut self) -> Result<(), FailedAttempt> {
        self.ended = true;
        Ok(())
    }
}

fn fatal(error: Error) -> FailedAttempt {
    FailedAttempt { error, trouble: None, pause: None }
}

/// Returns the error for a file that could not be read consistently.
pub fn changed(info: &FileInfo, what: &str) -> api::Error {
    api::Error {
        code: ErrorCode::Conflict,
        message: format!("{:?}: {what}", info.path),
        layer: Layer::UserCode,
        ran: Ran::No,
        retry: Retry::Safe,
        fix:
            "Wait until no program writes to the file, or copy the file inside the sandbox and read the copy."
                .into(),
    }
}
