//! Transfers of many files as one archive. The server creates an archive while the client reads it, so an
//! interrupted download must start again from the beginning.

use api::files::{ARCHIVE_TRAILER, ArchiveReport, FilePath};
use api::layer::Compression;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use reqwest::Method;
use reqwest::header::TE;
use tokio::io::AsyncRead;

use super::Files;
use super::sending::Sending;
use crate::error::Error;
use crate::link::ApiRequest;

/// An archive that is being downloaded.
pub struct Archive {
    files: Files,
    body: reqwest::Body,
    report: Option<ArchiveReport>,
}

impl Files {
    /// Downloads a file, or a directory with its content, as an archive.
    ///
    /// # Errors
    /// Returns an error if the path does not exist or cannot be read.
    pub async fn pack(&self, path: &FilePath, compression: Compression) -> Result<Archive, Error> {
        let link = &self.client.link;
        let route = self.route("/archive", &[("path", path)]);
        let ask =
            ApiRequest::get(format!("{route}&compression={}", compression.name())).header(TE, "trailers");
        let mut attempts = link.attempts();
        let response = loop {
            match link.open(&ask).await {
                Ok(response) => break response,
                Err(failure) => link.pause(&mut attempts, failure).await?,
            }
        };
        Ok(Archive { files: self.clone(), body: response.into(), report: None })
    }

    /// Extracts an archive into a directory, which is created if necessary. Does not retry, because the
    /// reader can be read only once.
    ///
    /// # Errors
    /// Returns an error if the data is not a valid archive or if there is not enough space. Files that were
    /// extracted before the error remain.
    pub async fn unpack(
        &self,
        path: &FilePath,
        compression: Compression,
        from: &mut (impl AsyncRead + Unpin),
    ) -> Result<ArchiveReport, Error> {
        let route = self.route("/archive", &[("path", path)]);
        let ask = ApiRequest::new(Method::PUT, format!("{route}&compression={}", compression.name()));
        let sending = Sending { link: &self.client.link, ask: &ask, before: 0, seen: &|_| {} };
        sending.send(from, &mut |_| {}).await.map_err(|failure| failure.error)
    }
}

impl Archive {
    /// Returns the next bytes, or `None` at the end.
    ///
    /// # Errors
    /// Returns an error if the download was interrupted. The bytes received so far are then incomplete.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let link = &self.files.client.link;
        let silence = link.options.answer_within;
        loop {
            match tokio::time::timeout(silence, self.body.frame()).await {
                Err(_) => return Err(link.cut(format!("received no data for {silence:?}")).error),
                Ok(Some(Err(error))) => return Err(link.cut(crate::link::root_cause(&error)).error),
                Ok(None) => return Ok(None),
                Ok(Some(Ok(frame))) => match frame.into_data() {
                    Ok(bytes) if bytes.is_empty() => {}
                    Ok(bytes) => return Ok(Some(bytes)),
                    Err(frame) => {
                        let trailers = frame.into_trailers().unwrap_or_default();
                        let report = trailers.get(ARCHIVE_TRAILER).and_then(|value| value.to_str().ok());
                        self.report = report.and_then(|report| serde_json::from_str(report).ok());
                    }
                },
            }
        }
    }

    /// Returns the server's report on the archive. It is available after the whole archive has been read.
    pub fn report(&self) -> Option<ArchiveReport> {
        self.report
    }
}
