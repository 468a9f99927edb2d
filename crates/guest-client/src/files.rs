//! The host side of file operations in a sandbox.
//!
//! A process in the sandbox performs the operations with the rights of user code. The host opens no path; it
//! only checks the responses, and treats all of them as hostile. A response may contain a part that is too
//! large or out of order, belong to a different request, contain more bytes than announced, or report an
//! error that a sandbox must not report. Each of these violations fails only its own request, with a typed
//! error.

mod answer;
mod parts;

use std::sync::Arc;
use std::time::Duration;

use api::files::{
    ArchiveReport, FileAnswer, FileAsk, FileEnd, FileEvent, Hash, Hashing, PART_BYTES_MAX, Part, PartKind,
};
use bytes::{BufMut, Bytes, BytesMut};
use host::error::Error;
use hyper::body::Incoming;
use hyper::{Method, Response};
use streamed::{Feed, Streamed};
use tokio::time::Instant;

use crate::exec::ANSWER_WITHIN;
use crate::link::{GuestLink, GuestRequest};
use crate::sandbox::Sandbox;
use answer::{Break, FileResponse};
use parts::DecodedPart;

/// Routes of file requests on the channel, as the sandbox's user and as root.
const ROUTE: &str = "/files";
const ROUTE_AS_ROOT: &str = "/files?uid=0";
/// Timeout for operations on a single path or directory. Even at full load, with every limit exhausted, these
/// operations take less time.
const LOOK_WITHIN: Duration = Duration::from_secs(60);
/// Slowest rate at which files on a working disk are hashed, copied or removed.
const SLOWEST_BYTES_PER_SECOND: u64 = 4 << 20;
/// Maximum time without progress in a transfer, after which it fails.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// Timeout for the process in the sandbox to exit after an interrupted transfer. Before it exits, it writes
/// the bytes that are still in its pipe, or removes a file.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);
/// Maximum number of chunks that are buffered for a guest that does not read. Each chunk is as large as the
/// caller's chunk.
const PIECES_WAITING: usize = 2;
/// Maximum size of a file event in bytes: one path with worst-case escaping.
const EVENT_BYTES_MAX: usize = 64 << 10;

/// The files of one sandbox.
pub struct Files {
    link: Arc<GuestLink>,
    /// Size of the sandbox's disk in bytes, from which timeouts are derived.
    disk_bytes: u64,
    /// True if files are opened as root.
    as_root: bool,
}

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

/// A stream of file events.
pub struct Watching {
    answer: FileResponse,
    /// The bytes of an incomplete event.
    held: BytesMut,
}

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

impl Sandbox {
    /// Returns the files of the sandbox, whose disk has `disk_bytes` bytes.
    pub fn files(&self, disk_bytes: u64) -> Files {
        Files { link: self.shared_link(), disk_bytes, as_root: false }
    }
}

impl Files {
    /// Returns access to the same files as root.
    #[must_use]
    pub fn as_root(self) -> Self {
        Self { as_root: true, ..self }
    }

    fn route(&self) -> &'static str {
        if self.as_root { ROUTE_AS_ROOT } else { ROUTE }
    }

    /// Sends a request that transfers no file content.
    ///
    /// # Errors
    /// Returns an error if the sandbox refuses the request or has ended, or no valid response arrives.
    pub async fn ask(&self, ask: &FileAsk) -> Result<FileAnswer, Error> {
        let within = self.within(ask);
        let deadline = Instant::now() + within;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut answer = self.open(ask, left).await?;
            match answer.head(left).await {
                Ok(head) => {
                    let head = answer::fitting(ask, head)?;
                    answer.close().await?;
                    return Ok(head);
                }
                // The connection broke during the response; a read-only request can be repeated.
                Err(Break::Cut) if ask.only_looks() && !left.is_zero() => {}
                Err(broken) => return Err(answer.explain(broken).await),
            }
        }
    }

    /// Opens a file or an archive for reading.
    ///
    /// # Errors
    /// Fails like [`Files::ask`].
    pub async fn read(&self, ask: &FileAsk) -> Result<(FileAnswer, FileDownload), Error> {
        let (head, answer) = self.begin(ask).await?;
        let left = match &head {
            FileAnswer::Content { from, to, .. } => Some(to - from),
            FileAnswer::Streams => None,
            FileAnswer::Refused { .. }
            | FileAnswer::Info { .. }
            | FileAnswer::Page { .. }
            | FileAnswer::Whole { .. }
            | FileAnswer::Done { .. }
            | FileAnswer::Edited { .. }
            | FileAnswer::Unpacked { .. } => return Err(answer::misplaced()),
        };
        let digest = if let FileAsk::Read { digest, .. } = ask { *digest } else { Hashing::default() };
        Ok((head, FileDownload { answer, left, digest }))
    }

    /// Watches files. Events are reported from the moment when this method returns.
    ///
    /// # Errors
    /// Fails like [`Files::ask`].
    pub async fn watch(&self, ask: &FileAsk) -> Result<Watching, Error> {
        let (_, answer) = self.begin(ask).await?;
        Ok(Watching { answer, held: BytesMut::new() })
    }

    /// Opens a file or an archive for writing.
    ///
    /// # Errors
    /// Returns an error if the sandbox has ended or cannot start an additional process. The first `push` or
    /// `finish` returns errors about the path.
    pub async fn write(&self, ask: FileAsk) -> Result<FileUpload, Error> {
        ask.check().map_err(Error::Request)?;
        let (sender, body) = streamed::body(PIECES_WAITING);
        // This does not block: the queue has space for the head, although nothing is read from the queue
        // before the request is sent.
        sender.send(head(&ask)?).await.map_err(|_| answer::misplaced())?;
        let request = GuestRequest { method: Method::POST, path: self.route().into(), body: Bytes::new() };
        let response = self.once(&request, Some(body), ANSWER_WITHIN).await?;
        let answer = FileResponse::new(response.into_body(), &ask, Arc::clone(&self.link));
        Ok(FileUpload { ask, way: Some(UploadChannel { sender, answer }), sent: 0 })
    }

    /// Sends a request whose response contains data.
    async fn begin(&self, ask: &FileAsk) -> Result<(FileAnswer, FileResponse), Error> {
        let mut answer = self.open(ask, ANSWER_WITHIN).await?;
        match answer.head(LOOK_WITHIN).await {
            Ok(head) => Ok((answer::fitting(ask, head)?, answer)),
            Err(broken) => Err(answer.explain(broken).await),
        }
    }

    async fn open(&self, ask: &FileAsk, within: Duration) -> Result<FileResponse, Error> {
        ask.check().map_err(Error::Request)?;
        let mut body = BytesMut::from(&head(ask)?[..]);
        body.extend_from_slice(&end());
        let request = GuestRequest { method: Method::POST, path: self.route().into(), body: body.freeze() };
        let within = within.min(ANSWER_WITHIN);
        let response = if ask.only_looks() {
            self.link.ask(&request, within).await?
        } else {
            self.once(&request, None, within).await?
        };
        Ok(FileResponse::new(response.into_body(), ask, Arc::clone(&self.link)))
    }

    /// Sends a request that must not be repeated.
    async fn once(
        &self,
        request: &GuestRequest,
        body: Option<Streamed>,
        within: Duration,
    ) -> Result<Response<Incoming>, Error> {
        match self.link.ask_once(request, body, within).await {
            // Either the sandbox has ended, or only the connection broke. `explain` finds out which.
            Err(Error::Lost(_)) => Err(answer::explain(&self.link, false, Break::Cut).await),
            answer => answer,
        }
    }

    /// Returns the timeout for the response to a request.
    fn within(&self, ask: &FileAsk) -> Duration {
        match ask {
            FileAsk::Stat { .. }
            | FileAsk::List { .. }
            | FileAsk::Read { .. }
            | FileAsk::Make { .. }
            | FileAsk::Edit { .. }
            | FileAsk::Watch { .. }
            | FileAsk::Pack { .. } => LOOK_WITHIN,
            FileAsk::Hash { .. }
            | FileAsk::Move { .. }
            | FileAsk::Copy { .. }
            | FileAsk::Remove { .. }
            | FileAsk::Write { .. }
            | FileAsk::Unpack { .. } => worked(self.disk_bytes),
        }
    }
}

impl FileDownload {
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

impl Watching {
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

impl FileUpload {
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

/// Returns the timeout for processing this many bytes.
pub fn worked(bytes: u64) -> Duration {
    LOOK_WITHIN + Duration::from_secs(bytes / SLOWEST_BYTES_PER_SECOND)
}

fn head(ask: &FileAsk) -> Result<Bytes, Error> {
    let json = serde_json::to_vec(ask).map_err(|error| Error::Protocol(error.to_string()))?;
    let mut bytes = BytesMut::from(&header(PartKind::Head, json.len())[..]);
    bytes.put_slice(&json);
    Ok(bytes.freeze())
}

fn end() -> Bytes {
    let mut bytes = BytesMut::from(&header(PartKind::End, 2)[..]);
    bytes.put_slice(b"{}");
    bytes.freeze()
}

/// Builds the header of a part. The length fits, because no payload exceeds a part's maximum size.
fn header(kind: PartKind, length: usize) -> Bytes {
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    Bytes::copy_from_slice(&Part { kind, length }.encode())
}
