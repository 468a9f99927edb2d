//! Files of a sandbox, as they are asked for from here.
//!
//! The work is done inside, by a process with the rights of user code; here its answers are checked. Every byte of them is hostile:
//! a part over its bound or out of its order, an answer to another question, more bytes than were said, an error that is not the
//! sandbox's to make: each ends its own request, with a typed error, and no other. The host opens no path.

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
use crate::link::{Ask, Link};
use crate::sandbox::Sandbox;
use answer::{Answer, Break};
use parts::Found;

/// The route of the channel.
const ROUTE: &str = "/files";
const ROUTE_AS_ROOT: &str = "/files?uid=0";
/// What looks at a path or a directory and no more takes less, under a full load of every limit too.
const LOOK_WITHIN: Duration = Duration::from_secs(60);
/// A disk that hashes, copies or removes slower than this is broken.
const SLOWEST_BYTES_PER_SECOND: u64 = 4 << 20;
/// No byte for so long, in a stream that has more to come or to go, and it is given up.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// What a process does with bytes that broke off takes no longer: it writes what is in its pipe, or removes a file.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);
/// Pieces waiting for a guest that does not take them: each is as large as what came from a caller at once.
const PIECES_WAITING: usize = 2;
/// An event names one path, escaped at worst.
const EVENT_BYTES_MAX: usize = 64 << 10;

/// The files of one sandbox.
pub struct Files {
    link: Arc<Link>,
    /// What of it can be large.
    disk_bytes: u64,
    /// Whether they are opened as root.
    as_root: bool,
}

/// Bytes of a file or an archive, as they come.
pub struct Reading {
    answer: Answer,
    /// Bytes of a file that are still to come; none for an archive, whose length nobody knows.
    left: Option<u64>,
    /// The hash of a file that was asked for.
    digest: Hashing,
}

/// What a [`Reading`] gives.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    /// Bytes.
    Data(Bytes),
    /// All bytes of a file that were asked for have come.
    Read {
        /// Their hash, as the sandbox has it, of the kind that was asked for.
        hash: Hash,
        /// Whether the file was written to meanwhile.
        changed: bool,
    },
    /// All of an archive has come.
    Packed(ArchiveReport),
}

/// What happens to files, as it happens.
pub struct Watching {
    answer: Answer,
    /// An event that is not whole yet.
    held: BytesMut,
}

/// Bytes on their way into a file or an archive. Dropping it breaks off: nothing half-done is shown as done.
pub struct Writing {
    ask: FileAsk,
    /// There until it is finished or dropped.
    way: Option<Way>,
    sent: u64,
}

/// Both directions of a request whose bytes are being sent.
struct Way {
    sender: Feed,
    answer: Answer,
}

impl Sandbox {
    /// Its files, on a disk of so many bytes.
    pub fn files(&self, disk_bytes: u64) -> Files {
        Files { link: self.shared_link(), disk_bytes, as_root: false }
    }
}

impl Files {
    /// The same files, opened as root.
    #[must_use]
    pub fn as_root(self) -> Self {
        Self { as_root: true, ..self }
    }

    fn route(&self) -> &'static str {
        if self.as_root { ROUTE_AS_ROOT } else { ROUTE }
    }

    /// Asks something to which no bytes belong, on either side.
    ///
    /// # Errors
    /// What the sandbox refused; its end; an answer that is none, or does not come.
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
                // The connection broke under the answer: what only looks can be asked again.
                Err(Break::Cut) if ask.only_looks() && !left.is_zero() => {}
                Err(broken) => return Err(answer.explain(broken).await),
            }
        }
    }

    /// Opens a file or an archive to read.
    ///
    /// # Errors
    /// As [`Files::ask`].
    pub async fn read(&self, ask: &FileAsk) -> Result<(FileAnswer, Reading), Error> {
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
        Ok((head, Reading { answer, left, digest }))
    }

    /// Watches files. From when this returns, what happens is told.
    ///
    /// # Errors
    /// As [`Files::ask`].
    pub async fn watch(&self, ask: &FileAsk) -> Result<Watching, Error> {
        let (_, answer) = self.begin(ask).await?;
        Ok(Watching { answer, held: BytesMut::new() })
    }

    /// Opens a file or an archive to write.
    ///
    /// # Errors
    /// The sandbox has ended, or starts no more processes. What is wrong with the path is said by the first bytes, or by the end.
    pub async fn write(&self, ask: FileAsk) -> Result<Writing, Error> {
        ask.check().map_err(Error::Request)?;
        let (sender, body) = streamed::body(PIECES_WAITING);
        // It has room, and nobody takes anything out before the request is sent.
        sender.send(head(&ask)?).await.map_err(|_| answer::misplaced())?;
        let request = Ask { method: Method::POST, path: self.route().into(), body: Bytes::new() };
        let response = self.once(&request, Some(body), ANSWER_WITHIN).await?;
        let answer = Answer::new(response.into_body(), &ask, Arc::clone(&self.link));
        Ok(Writing { ask, way: Some(Way { sender, answer }), sent: 0 })
    }

    /// Asks for something whose answer has data.
    async fn begin(&self, ask: &FileAsk) -> Result<(FileAnswer, Answer), Error> {
        let mut answer = self.open(ask, ANSWER_WITHIN).await?;
        match answer.head(LOOK_WITHIN).await {
            Ok(head) => Ok((answer::fitting(ask, head)?, answer)),
            Err(broken) => Err(answer.explain(broken).await),
        }
    }

    async fn open(&self, ask: &FileAsk, within: Duration) -> Result<Answer, Error> {
        ask.check().map_err(Error::Request)?;
        let mut body = BytesMut::from(&head(ask)?[..]);
        body.extend_from_slice(&end());
        let request = Ask { method: Method::POST, path: self.route().into(), body: body.freeze() };
        let within = within.min(ANSWER_WITHIN);
        let response = if ask.only_looks() {
            self.link.ask(&request, within).await?
        } else {
            self.once(&request, None, within).await?
        };
        Ok(Answer::new(response.into_body(), ask, Arc::clone(&self.link)))
    }

    /// Asks what must not be done twice.
    async fn once(
        &self,
        request: &Ask,
        body: Option<Streamed>,
        within: Duration,
    ) -> Result<Response<Incoming>, Error> {
        match self.link.ask_once(request, body, within).await {
            // The sandbox has ended, or only its connection has.
            Err(Error::Lost(_)) => Err(answer::explain(&self.link, false, Break::Cut).await),
            answer => answer,
        }
    }

    /// How long an answer may take.
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

impl Reading {
    /// The next bytes, or that this was all.
    ///
    /// # Errors
    /// It cannot go on: what came so far is not the whole.
    pub async fn next(&mut self) -> Result<Piece, Error> {
        let found = match self.answer.next(IDLE_MAX).await {
            Ok(found) => found,
            Err(broken) => return Err(self.answer.explain(broken).await),
        };
        match found {
            Found::Data(bytes) => {
                if let Some(left) = &mut self.left {
                    let fits = left.checked_sub(bytes.len() as u64);
                    *left = fits.ok_or_else(|| Error::Protocol("more bytes than announced".into()))?;
                }
                Ok(Piece::Data(bytes))
            }
            Found::End(FileEnd::Read { hash, changed }) if self.left == Some(0) => {
                answer::checked_hash(&hash, self.digest)?;
                Ok(Piece::Read { hash, changed })
            }
            Found::End(FileEnd::Packed { report }) if self.left.is_none() => Ok(Piece::Packed(report)),
            Found::End(FileEnd::Failed { error }) => Err(answer::refused(error)),
            Found::End(FileEnd::Read { .. } | FileEnd::Packed { .. }) | Found::Head(_) => {
                Err(answer::misplaced())
            }
        }
    }
}

impl Watching {
    /// The next thing that happens; waits for it as long as it takes. Can be dropped and asked again: nothing is lost.
    ///
    /// # Errors
    /// Nothing more will be told.
    pub async fn next(&mut self) -> Result<FileEvent, Error> {
        loop {
            let found = match self.answer.next(Duration::MAX).await {
                Ok(found) => found,
                Err(broken) => return Err(self.answer.explain(broken).await),
            };
            match found {
                Found::Data(bytes) if self.held.len() + bytes.len() <= EVENT_BYTES_MAX => {
                    self.held.extend_from_slice(&bytes);
                    if !self.answer.is_open() {
                        return answer::event(&self.held.split());
                    }
                }
                Found::Data(_) => {
                    return Err(Error::Protocol("a file event exceeds the maximum length".into()));
                }
                Found::End(FileEnd::Failed { error }) => return Err(answer::refused(error)),
                Found::End(FileEnd::Read { .. } | FileEnd::Packed { .. }) | Found::Head(_) => {
                    return Err(answer::misplaced());
                }
            }
        }
    }
}

impl Writing {
    /// Sends bytes; waits while the sandbox does not take them.
    ///
    /// # Errors
    /// What the sandbox refused, or its end. Nothing more can be sent then.
    pub async fn push(&mut self, mut bytes: Bytes) -> Result<(), Error> {
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(PART_BYTES_MAX));
            self.sent += piece.len() as u64;
            self.send(header(PartKind::Data, piece.len())).await?;
            self.send(piece).await?;
        }
        Ok(())
    }

    /// Says that this was all, and takes the answer.
    ///
    /// # Errors
    /// As [`Writing::push`].
    pub async fn finish(mut self) -> Result<FileAnswer, Error> {
        self.send(end()).await?;
        let Way { sender, mut answer } = self.way.take().ok_or_else(answer::misplaced)?;
        drop(sender);
        let before = if let FileAsk::Write { offset: Some(offset), .. } = &self.ask { *offset } else { 0 };
        // A file that was written on is hashed from its beginning.
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
            // Nobody takes any more: there is an answer, or the connection is gone.
            Ok(Err(_)) => {
                let early = way.answer.head(ANSWER_WITHIN).await;
                Err(way.early(early).await)
            }
        }
    }
}

impl Way {
    /// An answer before all was sent is a refusal.
    async fn early(&self, answer: Result<FileAnswer, Break>) -> Error {
        match answer {
            Ok(FileAnswer::Refused { error }) => answer::refused(error),
            Ok(_) => Error::Protocol("a write was confirmed before all its bytes were sent".into()),
            Err(broken) => self.answer.explain(broken).await,
        }
    }
}

impl Drop for Writing {
    /// The process inside learns from the missing end that there will be none, keeps or removes what came, and ends by itself.
    /// It is killed only if it does not.
    fn drop(&mut self) {
        let (Some(Way { sender, mut answer }), Ok(executor)) =
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

/// How long work on so many bytes may take.
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

/// No payload is longer than a part may be.
fn header(kind: PartKind, length: usize) -> Bytes {
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    Bytes::copy_from_slice(&Part { kind, length }.encode())
}
