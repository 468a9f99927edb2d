//! Lists the folders of a sandbox, and copies chosen files out of it.
//!
//! All data comes from the guest, which is not trusted, so this module counts and hashes the bytes. Listings
//! are processed page by page, so that no complete listing is ever held in memory.

use api::artifact::{Artifact, Artifacts, Keep, LISTED_MAX, Why};
use api::files::{DEPTH_MAX, FileAnswer, FileAsk, FileInfo, FileKind, FilePath, Hashing, PAGE_MAX};
use api::{ErrorCode, Retry};
use tokio::time::Instant;

use super::choice::{Choice, ChoiceTally, Chosen, Marks};
use super::shelf::{CollectionRequest, Shelf};
use guest_client::files::{Files, ReadChunk};
use host::error::{Error, chain};
use host::ledger;

/// Number of attempts for a request that fails with a transient error.
const TRIES: u32 = 3;
const AGAIN_AFTER: std::time::Duration = std::time::Duration::from_millis(200);
/// Number of attempts to read a file that changes while it is being read.
const READS: u32 = 2;

/// The result of listing the folders.
#[derive(Default)]
struct Look {
    /// True if there are more entries than were listed.
    unseen: bool,
    /// Error of the first folder that could not be listed.
    error: Option<api::Error>,
}

/// The result of copying one file.
enum Fetched {
    Whole(Artifact),
    Left(Why),
    /// The file was changed or removed while it was being copied.
    Changed,
}

/// Lists the files in the folders before a run. The flag is true if there are more entries than were listed.
pub async fn before(files: &Files, keep: &Keep) -> Result<(Marks, bool), Error> {
    let mut marks = Marks::default();
    let look = walk(files, keep, |_, path, info| marks.note(&path, &info)).await?;
    match look.error {
        // A transient error is returned: without the complete list, existing files would count as new.
        Some(error) if error.retry == Retry::Safe => Err(Error::Guest(error)),
        // A permanent error is ignored, because the path may become a folder during the run.
        Some(_) | None => Ok((marks, look.unseen)),
    }
}

/// A collection with a deadline.
pub struct Collection<'a> {
    pub files: &'a Files,
    pub shelf: &'a Shelf,
    pub wanted: &'a CollectionRequest,
    pub deadline: Instant,
}

impl Collection<'_> {
    /// Collects new and changed files. If the collection fails, the artifacts collected so far are kept, and
    /// the first error is returned.
    pub async fn collect(&self, into: &mut Artifacts) -> Result<(), Error> {
        let mut choice = Choice::new(&self.wanted.keep, &self.wanted.before);
        let looking =
            walk(self.files, &self.wanted.keep, |folder, path, info| choice.see(folder, path, info));
        let looked = self.in_time(looking).await;
        let (chosen, mut tally) = choice.end();
        let mut taken = Ok(());
        let mut left_bytes = self.wanted.keep.bytes_max;
        for one in &chosen {
            if looked.is_err() || taken.is_err() {
                tally.leave(&one.info, Why::Unreadable);
                continue;
            }
            let number = u32::try_from(into.items.len()).unwrap_or(u32::MAX);
            let fetch = Fetch { of: self, number, left_bytes };
            match self.in_time(fetch.repeatedly(one)).await {
                Ok(Ok(artifact)) => {
                    left_bytes = left_bytes.saturating_sub(artifact.size_bytes);
                    into.items.push(artifact);
                }
                Ok(Err(why)) => tally.leave(&one.info, why),
                Err(error) => {
                    tally.leave(&one.info, Why::Unreadable);
                    taken = Err(error);
                }
            }
        }
        let ChoiceTally { found, left_out, more } = tally;
        (into.found, into.left_out, into.more_left_out) = (found, left_out, more);
        let look = looked?;
        into.unseen = look.unseen || self.wanted.unseen;
        into.error = look.error;
        taken
    }

    async fn in_time<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let within = super::attendant::within(&self.wanted.keep);
        let late = || Error::Deadline { what: "collecting artifacts", after: within };
        tokio::time::timeout_at(self.deadline, work).await.unwrap_or_else(|_| Err(late()))
    }
}

/// The work of copying one file out of the sandbox.
struct Fetch<'a> {
    of: &'a Collection<'a>,
    number: u32,
    left_bytes: u64,
}

impl Fetch<'_> {
    async fn repeatedly(&self, chosen: &Chosen) -> Result<Result<Artifact, Why>, Error> {
        for _ in 0..READS {
            match self.once(chosen).await {
                Ok(Fetched::Whole(artifact)) => return Ok(Ok(artifact)),
                Ok(Fetched::Left(why)) => return Ok(Err(why)),
                Ok(Fetched::Changed) => {}
                Err(error @ Error::Lost(_)) => return Err(error),
                Err(error) => {
                    let moved = [ErrorCode::NotFound, ErrorCode::NotRegular, ErrorCode::Conflict];
                    if !moved.contains(&error.to_api().code) {
                        return Ok(Err(Why::Unreadable));
                    }
                }
            }
        }
        Ok(Err(Why::Changing))
    }

    async fn once(&self, chosen: &Chosen) -> Result<Fetched, Error> {
        let (path, digest) = (chosen.path.clone(), Hashing::Sha256);
        let ask = FileAsk::Read { path, from: 0, to: None, version: None, digest };
        let (head, mut reading) = self.of.files.read(&ask).await?;
        let FileAnswer::Content { from, to, .. } = head else { return Ok(Fetched::Left(Why::Unreadable)) };
        let size_bytes = to - from;
        // The file may have grown since it was listed.
        if size_bytes > self.of.wanted.keep.file_bytes_max {
            return Ok(Fetched::Left(Why::TooLarge));
        }
        if size_bytes > self.left_bytes {
            return Ok(Fetched::Left(Why::TooMuch));
        }
        if !self.of.shelf.may_keep(&self.of.wanted.of, size_bytes).await? {
            return Ok(Fetched::Left(Why::NoRoom));
        }
        let mut incoming = match self.of.shelf.begin(&self.of.wanted.of, self.number).await {
            Ok(incoming) => incoming,
            Err(error) => return Ok(self.no_room(&error)),
        };
        loop {
            match reading.next().await? {
                ReadChunk::Data(bytes) => {
                    if let Err(error) = incoming.push(&bytes).await {
                        return Ok(self.no_room(&error));
                    }
                }
                ReadChunk::Read { changed: true, .. } => return Ok(Fetched::Changed),
                ReadChunk::Read { hash, .. } => {
                    let own = incoming.sha256();
                    if !hash.digits().eq_ignore_ascii_case(&own) {
                        return Err(Error::Protocol("the file does not match its hash".into()));
                    }
                    return Ok(match incoming.finish().await {
                        Ok(()) => Fetched::Whole(chosen.artifact(self.number, size_bytes, own)),
                        Err(error) => self.no_room(&error),
                    });
                }
                ReadChunk::Packed(_) => return Ok(Fetched::Left(Why::Unreadable)),
            }
        }
    }

    fn no_room(&self, error: &Error) -> Fetched {
        if !ledger::is_refused(error) {
            tracing::error!(sandbox = %self.of.wanted.of.sandbox, error = chain(error), "cannot store an artifact");
        }
        Fetched::Left(Why::NoRoom)
    }
}

/// Lists the regular files below a folder in the order of their paths. A missing folder counts as empty. Only
/// the first [`LISTED_MAX`] entries are listed, and unreadable folders are skipped. The flag is true if the
/// list is complete.
pub(crate) async fn regular_files(files: &Files, folder: &str) -> Result<(Vec<FileInfo>, bool), Error> {
    let keep = Keep::folders(vec![folder.to_owned()]);
    let (mut found, mut readable) = (Vec::new(), true);
    let look = walk(files, &keep, |_, path, info| {
        readable &= info.error.is_none();
        if info.kind == FileKind::File && info.error.is_none() {
            found.push((path, info));
        }
    })
    .await?;
    // After a transient error, files may be missing from the list.
    if let Some(error) = look.error.as_ref().filter(|error| error.retry == Retry::Safe) {
        return Err(Error::Guest(error.clone()));
    }
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    let complete = readable && !look.unseen && look.error.is_none();
    Ok((found.into_iter().map(|(_, info)| info).collect(), complete))
}

/// Lists all folders, and passes each entry to `see`.
async fn walk(
    files: &Files,
    keep: &Keep,
    mut see: impl FnMut(&FilePath, FilePath, FileInfo),
) -> Result<Look, Error> {
    let (mut look, mut seen) = (Look::default(), 0);
    for folder in keep.roots().map_err(Error::Request)? {
        let mut after = None;
        loop {
            let limit = PAGE_MAX.min(u32::try_from(LISTED_MAX - seen).unwrap_or(0));
            if limit == 0 {
                look.unseen = true;
                return Ok(look);
            }
            let ask = FileAsk::List { path: folder.clone(), depth: DEPTH_MAX, after, limit };
            let (items, more) = match patiently(files, &ask).await {
                Ok(FileAnswer::Page { items, more }) => (items, more),
                Ok(_) => return Err(Error::Protocol("the response does not match the request".into())),
                Err(Error::Guest(error)) if error.code == ErrorCode::NotFound => break,
                Err(Error::Guest(error)) => {
                    look.error = look.error.or(Some(error));
                    break;
                }
                Err(error) => return Err(error),
            };
            seen += items.len();
            let mut last = None;
            for info in items {
                let path = info.exact().map_err(|error| Error::Protocol(error.message))?;
                last = Some(path.clone());
                see(&folder, path, info);
            }
            after = last;
            if !more {
                break;
            }
        }
    }
    Ok(look)
}

/// Sends a request, and repeats it after transient errors. For example, the sandbox may have run out of
/// memory, and its kernel may have killed the process that serves the request.
async fn patiently(files: &Files, ask: &FileAsk) -> Result<FileAnswer, Error> {
    let mut tries = 1..TRIES;
    loop {
        match files.ask(ask).await {
            Err(Error::Request(error) | Error::Guest(error))
                if error.retry == Retry::Safe && tries.next().is_some() =>
            {
                tokio::time::sleep(AGAIN_AFTER).await;
            }
            other => return other,
        }
    }
}
