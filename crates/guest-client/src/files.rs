//! The host side of file operations in a sandbox.
//!
//! A process in the sandbox performs the operations with the rights of user code. The host opens no path; it
//! only checks the responses, and treats all of them as hostile. A response may contain a part that is too
//! large or out of order, belong to a different request, contain more bytes than announced, or report an
//! error that a sandbox must not report. Each of these violations fails only its own request, with a typed
//! error.

mod answer;
mod download;
mod parts;
mod request;
mod upload;
mod watching;

use std::sync::Arc;
use std::time::Duration;

use api::files::{FileAnswer, FileAsk, Hashing};
use bytes::{Bytes, BytesMut};
use host::error::Error;
use hyper::body::Incoming;
use hyper::{Method, Response};
use streamed::Streamed;
use tokio::time::Instant;

pub use download::{FileDownload, ReadChunk};
pub use upload::FileUpload;
pub use watching::Watching;

use crate::exec::ANSWER_WITHIN;
use crate::link::{GuestLink, GuestRequest};
use crate::sandbox::Sandbox;
use answer::{Break, FileResponse};
use request::{end, head};

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
/// Maximum number of chunks that are buffered for a guest that does not read. Each chunk is as large as the
/// caller's chunk.
const PIECES_WAITING: usize = 2;

/// The files of one sandbox.
pub struct Files {
    link: Arc<GuestLink>,
    /// Size of the sandbox's disk in bytes, from which timeouts are derived.
    disk_bytes: u64,
    /// True if files are opened as root.
    as_root: bool,
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
        Ok((head, FileDownload::new(answer, left, digest)))
    }

    /// Watches files. Events are reported from the moment when this method returns.
    ///
    /// # Errors
    /// Fails like [`Files::ask`].
    pub async fn watch(&self, ask: &FileAsk) -> Result<Watching, Error> {
        let (_, answer) = self.begin(ask).await?;
        Ok(Watching::new(answer))
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
        Ok(FileUpload::new(ask, sender, answer))
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

/// Returns the timeout for processing this many bytes.
pub fn worked(bytes: u64) -> Duration {
    LOOK_WITHIN + Duration::from_secs(bytes / SLOWEST_BYTES_PER_SECOND)
}
