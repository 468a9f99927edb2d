//! The new content of a file, or an archive to unpack, as a stream to a sandbox.

use std::time::Duration;

use api::files::{FileAnswer, FileAsk, PART_BYTES_MAX, PartKind};
use bytes::Bytes;
use host::error::Error;
use streamed::Feed;

use super::answer::{self, Break, FileResponse};
use super::request::{end, header};
use super::{IDLE_MAX, worked};
use crate::exec::ANSWER_WITHIN;

/// Timeout for the process in the sandbox to exit after an interrupted transfer. Before it exits, it writes
/// the bytes that are still in its pipe, or removes a file.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

/// An upload of a file or an archive. Dropping it aborts the upload, which is then never reported as
/// complete.
pub struct FileUpload {
    ask: FileAsk,
    /// `Some` until the upload is finished or dropped.
    way: Option<UploadChannel>,
    sent: u64,
}

/// Both directions of an upload.
struct UploadChannel {
    sender: Feed,
    answer: FileResponse,
}

impl FileUpload {
    pub(super) fn new(ask: FileAsk, sender: Feed, answer: FileResponse) -> Self {
        Self { ask, way: Some(UploadChannel { sender, answer }), sent: 0 }
    }

    /// Sends bytes. Waits while the sandbox does not read.
    ///
    /// # Errors
    /// Returns an error if the sandbox refused the upload or has ended. No further bytes can be sent.
    pub async fn push(&mut self, mut bytes: Bytes) -> Result<(), Error> {
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(PART_BYTES_MAX));
            self.sent += piece.len() as u64;
            self.send(header(PartKind::Data, piece.len())).await?;
            self.send(piece).await?;
        }
        Ok(())
    }

    /// Ends the upload, and returns the response.
    ///
    /// # Errors
    /// Fails like [`FileUpload::push`].
    pub async fn finish(mut self) -> Result<FileAnswer, Error> {
        self.send(end()).await?;
        let UploadChannel { sender, mut answer } = self.way.take().ok_or_else(answer::misplaced)?;
        drop(sender);
        let before = if let FileAsk::Write { offset: Some(offset), .. } = &self.ask { *offset } else { 0 };
        // If bytes were written at an offset, the sandbox hashes the whole file, including the bytes before
        // the offset.
        match answer.head(worked(before.saturating_add(self.sent))).await {
            Ok(head) => {
                let head = answer::fitting(&self.ask, head)?;
                answer.close().await?;
                Ok(head)
            }
            Err(broken) => Err(answer.explain(broken).await),
        }
    }

    async fn send(&mut self, bytes: Bytes) -> Result<(), Error> {
        let way = self.way.as_mut().ok_or_else(answer::misplaced)?;
        let sent = tokio::select! {
            biased;
            sent = tokio::time::timeout(IDLE_MAX, way.sender.send(bytes)) => sent,
            early = way.answer.head(Duration::MAX) => return Err(way.early(early).await),
        };
        match sent {
            Ok(Ok(())) => Ok(()),
            Err(_) => Err(Error::Deadline { what: "sending file content to the sandbox", after: IDLE_MAX }),
            // The sandbox has stopped reading: it has sent a response, or the connection is gone.
            Ok(Err(_)) => {
                let early = way.answer.head(ANSWER_WITHIN).await;
                Err(way.early(early).await)
            }
        }
    }
}

impl UploadChannel {
    /// Returns the error for a response that arrived before all bytes were sent.
    async fn early(&self, answer: Result<FileAnswer, Break>) -> Error {
        match answer {
            Ok(FileAnswer::Refused { error }) => answer::refused(error),
            Ok(_) => Error::Protocol("a write was confirmed before all its bytes were sent".into()),
            Err(broken) => self.answer.explain(broken).await,
        }
    }
}

impl Drop for FileUpload {
    /// Aborts the upload. The process in the sandbox detects the missing end, keeps or removes the bytes
    /// received, and exits. It is killed if it does not exit in time.
    fn drop(&mut self) {
        let (Some(UploadChannel { sender, mut answer }), Ok(executor)) =
            (self.way.take(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        drop(sender);
        executor.spawn(async move {
            let _ = answer.head(LEAVE_WITHIN).await;
        });
    }
}
