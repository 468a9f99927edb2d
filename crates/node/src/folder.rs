//! What a session keeps, whatever becomes of its sandboxes: files of its runs, datasets, records, output.
//!
//! The files are named in a *manifest*, which is written last and in one step; their bytes are objects with numbers, so that no name of
//! a sandbox ever becomes one of the host's. Everything comes and goes through the guest. One writer at a time: the session's turn.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::files::{FileAnswer, FileAsk, FileInfo, FilePath, Hashing};
use api::{ErrorCode, Layer, Ran, Retry, SessionId};
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream};
use guest_client::files::{Files, Piece};
use host::error::Error;
use host::ledger;
use host::objects::{Incoming, Objects, Outgoing, key};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::call::Call;

/// What all files of one session may have together: a few sandboxes with the usual disk.
const FOLDER_BYTES_MAX: u64 = 4 << 30;
/// Files of one session. Each is put into a sandbox, and taken out of it, by a process of its own.
const FOLDER_FILES_MAX: usize = 250;
/// Files that are put into a sandbox at once: each is a process inside.
const GIVEN_AT_ONCE: usize = 4;
const MANIFEST: &str = "manifest";
const FILES: &str = "files";

/// The folder of one session.
#[derive(Clone)]
pub struct Folder {
    objects: Arc<Objects>,
    project: String,
    session: SessionId,
}

/// Which files a folder has.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Manifest {
    /// The number of the next object.
    next: u64,
    files: BTreeMap<String, Kept>,
    /// Objects that are nobody's once this is written.
    #[serde(skip)]
    replaced: Vec<u64>,
}

/// A file that is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    number: u64,
    /// Its size.
    pub size_bytes: u64,
    /// Where it is in a sandbox, percent-encoded.
    path: String,
    mode: u32,
}

impl Folder {
    /// The folder of a session, whether or not it holds anything.
    pub(crate) fn new(objects: Arc<Objects>, project: &str, session: &SessionId) -> Self {
        Self { objects, project: project.to_owned(), session: session.clone() }
    }
}

impl Manifest {
    /// The names of all files, and what is known of each, in order.
    pub fn files(&self) -> impl Iterator<Item = (&str, &Kept)> {
        self.files.iter().map(|(name, kept)| (name.as_str(), kept))
    }

    /// One of them.
    pub fn file(&self, name: &str) -> Option<&Kept> {
        self.files.get(name)
    }

    /// Forgets files of which this says so.
    pub fn forget(&mut self, mut is_gone: impl FnMut(&str) -> bool) {
        let replaced = &mut self.replaced;
        self.files.retain(|name, kept| {
            let gone = is_gone(name);
            if gone {
                replaced.push(kept.number);
            }
            !gone
        });
    }

    fn bytes(&self) -> u64 {
        self.files.values().map(|kept| kept.size_bytes).sum()
    }

    fn insert(&mut self, name: &str, kept: Kept) {
        if let Some(before) = self.files.insert(name.to_owned(), kept) {
            self.replaced.push(before.number);
        }
    }
}

impl Folder {
    /// Which files it has.
    ///
    /// # Errors
    /// What the file system said.
    pub async fn manifest(&self) -> Result<Manifest, Error> {
        Ok(self.json(&[MANIFEST]).await?.unwrap_or_default())
    }

    /// Has the files be these from now on.
    ///
    /// # Errors
    /// What the file system said.
    pub async fn save(&self, manifest: &mut Manifest) -> Result<(), Error> {
        self.put_json(&[MANIFEST], manifest).await?;
        for number in manifest.replaced.drain(..) {
            self.objects.remove(&self.key(&[FILES, &number.to_string()])).await?;
        }
        Ok(())
    }

    /// Takes a file out of a sandbox, under this name. False where there is no room for it, or it is gone or being written to.
    ///
    /// # Errors
    /// The sandbox has ended or broke the protocol; or what the file system said.
    pub async fn take(
        &self,
        manifest: &mut Manifest,
        call: &Call,
        name: &str,
        info: &FileInfo,
    ) -> Result<bool, Error> {
        if manifest.files.len() >= FOLDER_FILES_MAX && manifest.file(name).is_none() {
            tracing::debug!(session = %self.session, "skipping a session file: the session has reached its maximum number of files");
            return Ok(false);
        }
        let path = info.exact().map_err(Error::Request)?;
        let ask =
            FileAsk::Read { path: path.clone(), from: 0, to: None, version: None, digest: Hashing::Sha256 };
        let (head, mut reading) = match call.files().read(&ask).await {
            Ok(found) => found,
            Err(Error::Guest(_)) => return Ok(false),
            Err(error) => return Err(error),
        };
        let FileAnswer::Content { from, to, .. } = head else { return Ok(false) };
        let size_bytes = to - from;
        let Some((number, mut incoming)) = self.begin_file(manifest, name, size_bytes).await? else {
            return Ok(false);
        };
        loop {
            match reading.next().await {
                Ok(Piece::Data(bytes)) => match incoming.push(&bytes).await {
                    Err(error) if ledger::is_refused(&error) => return Ok(false),
                    other => other?,
                },
                Ok(Piece::Read { changed: true, .. } | Piece::Packed(_)) | Err(Error::Guest(_)) => {
                    return Ok(false);
                }
                Ok(Piece::Read { hash, .. }) if !hash.digits().eq_ignore_ascii_case(&incoming.sha256()) => {
                    return Err(Error::Protocol("the file does not match its hash".into()));
                }
                Ok(Piece::Read { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        incoming.finish().await?;
        manifest.insert(name, Kept { number, size_bytes, path: path.encode(), mode: info.mode });
        Ok(true)
    }

    /// Puts a file of ours there, to be at this path of every later sandbox. False where there is no room for it.
    ///
    /// # Errors
    /// What the file system said.
    pub async fn put(
        &self,
        manifest: &mut Manifest,
        name: &str,
        path: &FilePath,
        bytes: &Bytes,
    ) -> Result<bool, Error> {
        let size_bytes = bytes.len() as u64;
        let Some((number, mut incoming)) = self.begin_file(manifest, name, size_bytes).await? else {
            return Ok(false);
        };
        incoming.push(bytes).await?;
        incoming.finish().await?;
        manifest.insert(name, Kept { number, size_bytes, path: path.encode(), mode: 0o644 });
        Ok(true)
    }

    /// Puts all files into a sandbox, where they were.
    ///
    /// # Errors
    /// The first that could not be: there is no room for it, or the sandbox has ended.
    pub async fn give(&self, manifest: &Manifest, call: &Call) -> Result<(), Error> {
        let files = call.files();
        // Boxed: what borrows from here is not general enough for a task otherwise.
        let given: Vec<_> =
            manifest.files.values().map(|kept| self.give_back(&files, kept).boxed()).collect();
        stream::iter(given).buffer_unordered(GIVEN_AT_ONCE).try_collect::<()>().await
    }

    async fn give_back(&self, files: &Files, kept: &Kept) -> Result<(), Error> {
        let path = FilePath::decode(&kept.path).map_err(Error::Request)?;
        match self.contents(kept).await? {
            Some(outgoing) => give(files, path, kept.mode, outgoing).await,
            None => Ok(()),
        }
    }

    /// The bytes of a file.
    ///
    /// # Errors
    /// What the file system said.
    pub async fn contents(&self, kept: &Kept) -> Result<Option<Outgoing>, Error> {
        self.read(&[FILES, &kept.number.to_string()]).await
    }

    /// Removes all files; says how many there were.
    ///
    /// # Errors
    /// What the file system said.
    pub async fn clear(&self) -> Result<usize, Error> {
        let mut manifest = self.manifest().await?;
        let count = manifest.files.len();
        manifest.forget(|_| true);
        self.save(&mut manifest).await?;
        Ok(count)
    }

    /// Removes all that is kept under these names, or all of the folder.
    ///
    /// # Errors
    /// What the file system said.
    pub async fn remove(&self, names: &[&str]) -> Result<(), Error> {
        self.objects.remove_below(&self.key(names), None).await
    }

    /// Begins something beside the files.
    ///
    /// # Errors
    /// What the file system said.
    pub async fn begin(&self, names: &[&str]) -> Result<Incoming, Error> {
        self.objects.begin(&self.key(names)).await
    }

    /// Opens something beside the files.
    ///
    /// # Errors
    /// What the file system said.
    pub async fn read(&self, names: &[&str]) -> Result<Option<Outgoing>, Error> {
        self.objects.read(&self.key(names)).await
    }

    /// Keeps something small beside the files.
    ///
    /// # Errors
    /// What the file system said.
    pub async fn put_json(&self, names: &[&str], value: &impl Serialize) -> Result<(), Error> {
        self.objects.put_json(&self.key(names), value).await
    }

    /// Reads something small.
    ///
    /// # Errors
    /// What the file system said.
    pub async fn json<T: DeserializeOwned>(&self, names: &[&str]) -> Result<Option<T>, Error> {
        Ok(self.objects.json(&self.key(names)).await?.map(|(value, _)| value))
    }

    /// Begins something of at most so many bytes, for which the disk has room.
    ///
    /// # Errors
    /// It has none, or what the file system said.
    pub async fn begin_within(&self, names: &[&str], bytes: u64) -> Result<Incoming, Error> {
        if !self.objects.has_room(bytes) {
            return Err(Error::Request(no_room()));
        }
        self.begin(names).await
    }

    /// Begins a file, and says its number. Nothing where there is no room for it.
    async fn begin_file(
        &self,
        manifest: &mut Manifest,
        name: &str,
        size_bytes: u64,
    ) -> Result<Option<(u64, Incoming)>, Error> {
        let before = manifest.file(name).map_or(0, |kept| kept.size_bytes);
        let whole = (manifest.bytes() - before).saturating_add(size_bytes);
        if whole > FOLDER_BYTES_MAX || !self.objects.may_keep(&self.key(&[]), size_bytes).await? {
            tracing::warn!(session = %self.session, size_bytes, "skipping a session file: not enough disk space or quota");
            return Ok(None);
        }
        let number = manifest.next;
        let begun = async {
            let mut incoming = self.begin(&[FILES, &number.to_string()]).await?;
            incoming.prepay(size_bytes).map(|()| incoming)
        };
        match begun.await {
            Err(error) if ledger::is_refused(&error) => Ok(None),
            other => {
                manifest.next += 1;
                other.map(|incoming| Some((number, incoming)))
            }
        }
    }

    fn key(&self, names: &[&str]) -> object_store::path::Path {
        key([self.project.as_str(), self.session.as_str()].into_iter().chain(names.iter().copied()))
    }
}

fn no_room() -> api::Error {
    api::Error {
        code: ErrorCode::Capacity,
        message: "the machine does not have enough disk space for the session's files".into(),
        layer: Layer::Platform,
        ran: Ran::No,
        retry: Retry::Safe,
        fix: "Remove sessions or session files that are no longer needed, or free disk space on the machine."
            .into(),
    }
}

/// Writes an object into a sandbox, whole or not at all.
///
/// # Errors
/// What the sandbox refused, or its end.
pub async fn give(files: &Files, path: FilePath, mode: u32, mut outgoing: Outgoing) -> Result<(), Error> {
    let ask = FileAsk::Write {
        path,
        offset: None,
        mode: Some(mode & 0o777),
        sha256: None,
        digest: Hashing::Sha256,
    };
    let mut writing = files.write(ask).await?;
    while let Some(bytes) = outgoing.next().await? {
        writing.push(bytes).await?;
    }
    writing.finish().await.map(drop)
}
