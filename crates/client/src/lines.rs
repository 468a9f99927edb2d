//! Lines of JSON from a response body of unlimited length.

use std::marker::PhantomData;
use std::time::Duration;

use api::output::LINE_BYTES_MAX;
use bytes::{Buf as _, BytesMut};
use reqwest::Response;
use serde::de::DeserializeOwned;

use crate::link;

/// A line-by-line reader of one response body. Holds at most one line and the chunk that completed it.
pub(crate) struct Lines<T> {
    response: Response,
    buffer: BytesMut,
    /// Number of bytes at the start of the buffer that are known to contain no line feed.
    scanned: usize,
    of: PhantomData<fn() -> T>,
}

/// Reason why no next line is available.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LineError {
    /// The connection was closed or fell silent, either within a line or between two lines.
    Cut(String),
    /// The data received is not a valid line.
    Nonsense(String),
}

impl<T: DeserializeOwned> Lines<T> {
    pub fn new(response: Response) -> Self {
        Self { response, buffer: BytesMut::new(), scanned: 0, of: PhantomData }
    }

    /// Returns the next line if one arrives within `silence`. Cancel-safe: a dropped call loses no data.
    pub async fn next(&mut self, silence: Duration) -> Result<T, LineError> {
        loop {
            if let Some(line) = self.line()? {
                return serde_json::from_slice(&line)
                    .map_err(|error| LineError::Nonsense(format!("malformed line: {error}")));
            }
            match tokio::time::timeout(silence, self.response.chunk()).await {
                Ok(Ok(Some(bytes))) => self.buffer.extend_from_slice(&bytes),
                Ok(Ok(None)) => return Err(LineError::Cut("the response ended before its last line".into())),
                Ok(Err(error)) => return Err(LineError::Cut(link::root_cause(&error))),
                Err(_) => return Err(LineError::Cut(format!("received no data for {silence:?}"))),
            }
        }
    }

    /// Removes a complete line from the buffer and returns it.
    fn line(&mut self) -> Result<Option<BytesMut>, LineError> {
        let fresh = self.buffer.get(self.scanned..).unwrap_or_default();
        match fresh.iter().position(|byte| *byte == b'\n') {
            Some(at) => {
                let line = self.buffer.split_to(self.scanned + at);
                self.buffer.advance(1);
                self.scanned = 0;
                Ok(Some(line))
            }
            None if self.buffer.len() > LINE_BYTES_MAX => {
                Err(LineError::Nonsense(format!("a line has more than {LINE_BYTES_MAX} bytes")))
            }
            None => {
                self.scanned = self.buffer.len();
                Ok(None)
            }
        }
    }
}
