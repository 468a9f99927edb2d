//! The folder of a session: files, datasets, records and output that are kept independently of the session's
//! sandboxes.
//!
//! The files are listed in a *manifest*, which is replaced atomically after their contents are written.
//! Contents are stored as objects whose names are numbers, so that no file name from a sandbox is used on the
//! host. All transfers go through the guest. There is only one writer at a time: the task that holds the
//! session's turn.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::files::{FileAnswer, FileAsk, FileInfo, FilePath, Hashing};
use api::{ErrorCode, Layer, Ran, Retry, SessionId};
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream};
use guest_client::files::{Files, ReadChunk};
use host::error::Error;
use host::ledger;
use host::objects::{Incoming, Objects, Outgoing, key};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::call::Call;

/// Maximum total size of the files of one session in bytes: a few times the default disk of a sandbox.
const FOLDER_BYTES_MAX: u64 = 4 << 30;
/// Maximum number of files of one session. Each of them is written and read by a separate process in the
/// sandbox.
const FOLDER_FILES_MAX: usize = 250;
/// Maximum number of files written to a sandbox at the same time. Each needs a process in the sandbox.
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

/// The list of the files in a folder.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Manifest {
    /// The number for the next object.
    next: u64,
    files: BTreeMap<String, StoredFile>,
    /// Objects that become unreferenced when this manifest is written.
    #[serde(skip)]
    replaced: Vec<u64>,
}

/// A stored file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredFile {
    number: u64,
    /// Size of the file in bytes.
    pub size_bytes: u64,
    /// Path of the file in a sandbox, percent-encoded.
    path: String,
    mode: u32,
}

impl Folder {
    /// Opens the folder of a session, which may be empty.
    pub(crate) fn new(objects: Arc<Objects>, project: &str, session: &SessionId) -> Self {
        Self { objects, project: project.to_owned(), session: session.clone() }
    }
}

impl Manifest {
    /// Returns the names and metadata of all files, ordered by name.
    pub fn files(&self) -> impl Iterator<Item = (&str, &StoredFile)> {
        self.files.iter().map(|(name, kept)| (name.as_str(), kept))
    }

    /// Returns the metadata of one file.
    pub fn file(&self, name: &str) -> Option<&StoredFile> {
        self.files.get(name)
    }

    /// Removes files from the list if `is_gone` returns true for their names.
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

    fn insert(&mut self, name: &str, kept: StoredFile) {
        if let Some(before) = self.files.insert(name.to_owned(), kept) {
            self.replaced.push(before.number);
        }
    }
}

impl Folder {
    /// Reads the list of files.
    ///
    /// # Errors
    /// A file system operation failed.
    pub async fn manifest(&self) -> Result<Manifest, Error> {
        Ok(self.json(&[MANIFEST]).await?.unwrap_or_default())
    }

    /// Replaces the list of files, and then removes unreferenced objects.
    ///
    /// # Errors
    /// A file system operation failed.
    pub async fn save(&self, manifest: &mut Manifest) -> Result<(), Error> {
        self.put_json(&[MANIFEST], manifest).await?;
        for number in manifest.replaced.drain(..) {
            self.objects.remove(&self.key(&[FILES, &number.to_string()])).await?;
        }
        Ok(())
    }

    /// Copies a file from a sandbox to the folder, under this name. Returns false if there is no room for the
    /// file, or if the file was removed or is being written to.
    ///
    /// # Errors
    /// The sandbox has ended or violated the protocol, or a file system operation failed.
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
                Ok(ReadChunk::Data(bytes)) => match incoming.push(&bytes).await {
                    Err(error) if ledger::is_refused(&error) => return Ok(false),
                    other => other?,
                },
                Ok(ReadChunk::Read { changed: true, .. } | ReadChunk::Packed(_)) | Err(Error::Guest(_)) => {
                    return Ok(false);
                }
                Ok(ReadChunk::Read { hash, .. })
                    if !hash.digits().eq_ignore_ascii_case(&incoming.sha256()) =>
                {
                    return Err(Error::Protocol("the file does not match its hash".into()));
                }
                Ok(ReadChunk::Read { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        incoming.finish().await?;
        manifest.insert(name, StoredFile { number, size_bytes, path: path.encode(), mode: info.mode });
        Ok(true)
    }

    /// Stores a file that does not come from a sandbox. It will be copied to `path` in every later sandbox.
    /// Returns false if there is no room.
    ///
    /// # Errors
    /// A file system operation failed.
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
        manifest.insert(name, StoredFile { number, size_bytes, path: path.encode(), mode: 0o644 });
        Ok(true)
    }

    /// Copies all files to their paths in a sandbox.
    ///
    /// # Errors
    /// A file could not be copied, because the sandbox is out of space or has ended.
    pub async fn give(&self, manifest: &Manifest, call: &Call) -> Result<(), Error> {
        let files = call.files();
        // Boxed, because the compiler cannot prove that the borrowing futures are general enough for a
        // spawned task.
        let given: Vec<_> =
            manifest.files.values().map(|kept| self.give_back(&files, kept).boxed()).collect();
        stream::iter(given).buffer_unordered(GIVEN_AT_ONCE).try_collect::<()>().await
    }

    async fn give_back(&self, files: &Files, kept: &StoredFile) -> Result<(), Error> {
        let path = FilePath::decode(&kept.path).map_err(Error::Request)?;
        match self.contents(kept).await? {
            Some(outgoing) => give(files, path, kept.mode, outgoing).await,
            None => Ok(()),
        }
    }

    /// Opens the content of a file.
    ///
    /// # Errors
    /// A file system operation failed.
    pub async fn contents(&self, kept: &StoredFile) -> Result<Option<Outgoing>, Error> {
        self.read(&[FILES, &kept.number.to_string()]).await
    }

    /// Removes all files, and returns how many there were.
    ///
    /// # Errors
    /// A file system operation failed.
    pub async fn clear(&self) -> Result<usize, Error> {
        let mut manifest = self.manifest().await?;
        let count = manifest.files.len();
        manifest.forget(|_| true);
        self.save(&mut manifest).await?;
        Ok(count)
    }

    /// Removes all objects below the path that these names form, or the whole folder if `names` is empty.
    ///
    /// # Errors
    /// A file system operation failed.
    pub async fn remove(&self, names: &[&str]) -> Result<(), Error> {
        self.objects.remove_below(&self.key(names), None).await
    }

    /// Starts writing an object that is not in the list of files.
    ///
    /// # Errors
    /// A file system operation failed.
    pub async fn begin(&self, names: &[&str]) -> Result<Incoming, Error> {
        self.objects.begin(&self.key(names)).await
    }

    /// Opens an object that is not in the list of files.
    ///
    /// # Errors
    /// A file system operation failed.
    pub async fn read(&self, names: &[&str]) -> Result<Option<Outgoing>, Error> {
        self.objects.read(&self.key(names)).await
    }

    /// Writes a small object that is not in the list of files.
    ///
    /// # Errors
    /// A file system operation failed.
    pub async fn put_json(&self, names: &[&str], value: &impl Serialize) -> Result<(), Error> {
        self.objects.put_json(&self.key(names), value).await
    }

    /// Reads a small object.
    ///
    /// # Errors
    /// A file system operation failed.
    pub async fn json<T: DeserializeOwned>(&self, names: &[&str]) -> Result<Option<T>, Error> {
        Ok(self.objects.json(&self.key(names)).await?.map(|(value, _)| value))
    }

    /// Starts writing an object of at most `bytes` bytes, if the disk has room for it.
    ///
    /// # Errors
    /// The disk has no room, or a file system operation failed.
    pub async fn begin_within(&self, names: &[&str], bytes: u64) -> Result<Incoming, Error> {
        if !self.objects.has_room(bytes) {
            return Err(Error::Request(no_room()));
        }
        self.begin(names).await
    }

    /// Starts writing a file and returns its number, or `None` if there is no room for the file.
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

/// Writes an object to a file in a sandbox, atomically.
///
/// # Errors
/// The sandbox refused the file or has ended.
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
