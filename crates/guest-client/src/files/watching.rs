//! File events, as a stream from a sandbox.

use std::time::Duration;

use api::files::{FileEnd, FileEvent};
use bytes::BytesMut;
use host::error::Error;

use super::answer::{self, FileResponse};
use super::parts::DecodedPart;

/// Maximum size of a file event in bytes: one path with worst-case escaping.
const EVENT_BYTES_MAX: usize = 64 << 10;

/// A stream of file events.
pub struct Watching {
    answer: FileResponse,
    /// The bytes of an incomplete event.
    held: BytesMut,
}

impl Watching {
    pub(super) fn new(answer: FileResponse) -> Self {
        Self { answer, held: BytesMut::new() }
    }

    /// Waits for the next event, without a timeout. Cancel-safe: a dropped future loses no event.
    ///
    /// # Errors
    /// Returns an error if the stream has failed. No further events follow.
    pub async fn next(&mut self) -> Result<FileEvent, Error> {
        loop {
            let found = match self.answer.next(Duration::MAX).await {
                Ok(found) => found,
                Err(broken) => return Err(self.answer.explain(broken).await),
            };
            match found {
                DecodedPart::Data(bytes) if self.held.len() + bytes.len() <= EVENT_BYTES_MAX => {
                    self.held.extend_from_slice(&bytes);
                    if !self.answer.is_open() {
                        return answer::event(&self.held.split());
                    }
                }
                DecodedPart::Data(_) => {
                    return Err(Error::Protocol("a file event exceeds the maximum length".into()));
                }
                DecodedPart::End(FileEnd::Failed { error }) => return Err(answer::refused(error)),
                DecodedPart::End(FileEnd::Read { .. } | FileEnd::Packed { .. }) | DecodedPart::Head(_) => {
                    return Err(answer::misplaced());
                }
            }
        }
    }
}
