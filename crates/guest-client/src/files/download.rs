//! The content of a file or an archive, as a stream from a sandbox.

use api::files::{ArchiveReport, FileEnd, Hash, Hashing};
use bytes::Bytes;
use host::error::Error;

use super::IDLE_MAX;
use super::answer::{self, FileResponse};
use super::parts::DecodedPart;

/// The content of a file or an archive, as a stream.
pub struct FileDownload {
    answer: FileResponse,
    /// Number of bytes of a file that have not arrived yet. `None` for an archive, whose length is not known
    /// in advance.
    left: Option<u64>,
    /// The kind of hash that was requested for a file.
    digest: Hashing,
}

/// An item of a [`FileDownload`].
#[derive(Debug, PartialEq, Eq)]
pub enum ReadChunk {
    /// A chunk of the content.
    Data(Bytes),
    /// The end of a file: all requested bytes have arrived.
    Read {
        /// The hash of all requested bytes, of the requested kind, as computed in the sandbox.
        hash: Hash,
        /// True if the file was modified while it was read.
        changed: bool,
    },
    /// The end of an archive.
    Packed(ArchiveReport),
}

impl FileDownload {
    pub(super) fn new(answer: FileResponse, left: Option<u64>, digest: Hashing) -> Self {
        Self { answer, left, digest }
    }

    /// Returns the next bytes, or the end of the file or archive.
    ///
    /// # Errors
    /// Returns an error if the transfer failed. The content received so far is then incomplete.
    pub async fn next(&mut self) -> Result<ReadChunk, Error> {
        let found = match self.answer.next(IDLE_MAX).await {
            Ok(found) => found,
            Err(broken) => return Err(self.answer.explain(broken).await),
        };
        match found {
            DecodedPart::Data(bytes) => {
                if let Some(left) = &mut self.left {
                    let fits = left.checked_sub(bytes.len() as u64);
                    *left = fits.ok_or_else(|| Error::Protocol("more bytes than announced".into()))?;
                }
                Ok(ReadChunk::Data(bytes))
            }
            DecodedPart::End(FileEnd::Read { hash, changed }) if self.left == Some(0) => {
                answer::checked_hash(&hash, self.digest)?;
                Ok(ReadChunk::Read { hash, changed })
            }
            DecodedPart::End(FileEnd::Packed { report }) if self.left.is_none() => {
                Ok(ReadChunk::Packed(report))
            }
            DecodedPart::End(FileEnd::Failed { error }) => Err(answer::refused(error)),
            DecodedPart::End(FileEnd::Read { .. } | FileEnd::Packed { .. }) | DecodedPart::Head(_) => {
                Err(answer::misplaced())
            }
        }
    }
}
