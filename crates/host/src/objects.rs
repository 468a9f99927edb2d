//! This machine's object store, which holds artifacts, datasets and session folders.
//!
//! The [`Ledger`] counts each project's objects. In addition, every upload checks the disk's free space
//! before each chunk. The check subtracts the chunks that other uploads are writing at that moment.
//!
//! Objects are written atomically. Partial files that a killed server left behind have a `#` in their names.
//! They are never listed, and [`Objects::sweep`] removes them. No path from a sandbox reaches this module,
//! because keys consist of validated names.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectMeta, ObjectStore as _, ObjectStoreExt as _, PutPayload};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use tokio::sync::{Mutex, MutexGuard};

use crate::admission;
use crate::error::Error;
use crate::ledger::{Charge, Ledger, OBJECT_BYTES, Project};

/// Number of buffered bytes that triggers the write of a chunk of an upload.
const PIECE_BYTES: usize = 1 << 20;
/// Age after which a partial file is removed. A writer must send each chunk within a minute, so an older file
/// has no writer.
const ABANDONED_AFTER: Duration = Duration::from_secs(3600);
/// Number of locks, each shared by a subset of the keys. All changes to one object use the same lock, and two
/// objects rarely share a lock.
const LOCKS: usize = 64;

/// A directory of objects.
pub struct Objects {
    store: Arc<LocalFileSystem>,
    room: DiskSpace,
    tally: Option<LedgerScope>,
    /// Held while an object is changed, so that its bytes are counted exactly once.
    locks: Arc<[Mutex<()>; LOCKS]>,
}

/// The ledger that counts the objects, and the position of the project's name in a key.
#[derive(Clone)]
pub struct LedgerScope {
    /// The ledger that counts the bytes.
    pub ledger: Arc<Ledger>,
    /// Index of the part of the key that names the project.
    pub depth: usize,
}

/// The disk's free space, and the bytes that must stay free or are about to be used.
#[derive(Clone)]
struct DiskSpace {
    root: PathBuf,
    reserve_bytes: u64,
    /// Number of bytes that are being written now.
    writing: Arc<AtomicU64>,
}

/// Bytes that count as being written until this value is dropped.
struct WriteReservation<'a> {
    room: &'a DiskSpace,
    bytes: u64,
}

/// An upload in progress. Dropping it before [`Incoming::finish`] leaves nothing behind.
pub struct Incoming {
    upload: Box<dyn MultipartUpload>,
    held: BytesMut,
    hasher: Sha256,
    size_bytes: u64,
    room: DiskSpace,
    place: ObjectDestination,
    charge: Option<Charge>,
}

/// The destination of an object, which may replace an existing object.
struct ObjectDestination {
    store: Arc<LocalFileSystem>,
    key: Path,
    locks: Arc<[Mutex<()>; LOCKS]>,
    project: Option<Arc<Project>>,
}

/// An object that is being read. It stays readable even if it is removed in the meantime.
pub struct Outgoing {
    /// Size of the object.
    pub size_bytes: u64,
    stream: BoxStream<'static, object_store::Result<Bytes>>,
}

impl Objects {
    /// Opens a directory of objects, and creates it if needed. Writes leave `reserve_bytes` of the disk free.
    pub fn open(root: PathBuf, reserve_bytes: u64, tally: Option<LedgerScope>) -> Result<Self, Error> {
        let made = fs::create_dir_all(&root)
            .and_then(|()| fs::set_permissions(&root, fs::Permissions::from_mode(0o700)));
        made.map_err(|source| Error::System { act: format!("create {}", root.display()), source })?;
        let store = LocalFileSystem::new_with_prefix(&root).map_err(failed("open"))?;
        let store = Arc::new(store.with_automatic_cleanup(true).with_fsync(true));
        let writing = tally.as_ref().map(|tally| tally.ledger.writing()).unwrap_or_default();
        let locks = Arc::new(std::array::from_fn(|_| Mutex::default()));
        Ok(Self { store, room: DiskSpace { root, reserve_bytes, writing }, tally, locks })
    }

    /// Returns the project that a key belongs to, if its bytes are counted.
    async fn project(&self, key: &Path) -> Result<Option<Arc<Project>>, Error> {
        let Some(LedgerScope { ledger, depth }) = &self.tally else { return Ok(None) };
        match key.parts().nth(*depth) {
            Some(name) => ledger.counted(name.as_ref()).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns true if both the disk and the quota of the key's project have room for this many bytes.
    pub async fn may_keep(&self, key: &Path, bytes: u64) -> Result<bool, Error> {
        let project = self.project(key).await?;
        Ok(self.has_room(bytes) && project.is_none_or(|project| project.has_room(bytes)))
    }

    async fn place(&self, key: &Path) -> Result<ObjectDestination, Error> {
        let (store, locks) = (Arc::clone(&self.store), Arc::clone(&self.locks));
        Ok(ObjectDestination { store, key: key.clone(), locks, project: self.project(key).await? })
    }

    /// Returns true if writing this many bytes leaves the disk's reserve free.
    pub fn has_room(&self, bytes: u64) -> bool {
        self.room.has(bytes)
    }

    /// Writes a small object atomically. Its bytes are counted, but the write is never refused because of the
    /// quota or free space: it must always be possible to write records such as manifests.
    pub async fn put_json(&self, key: &Path, value: &impl Serialize) -> Result<(), Error> {
        let bytes = serde_json::to_vec(value).map_err(|error| Error::Protocol(error.to_string()))?;
        let (place, size_bytes) = (self.place(key).await?, bytes.len() as u64);
        let _alone = place.alone().await;
        let before = place.counted_bytes().await?;
        self.store.put(key, PutPayload::from(bytes)).await.map_err(failed("write"))?;
        if let Some(project) = &place.project {
            project.add(size_bytes + OBJECT_BYTES);
            project.subtract(before);
        }
        Ok(())
    }

    /// Reads a small object and its modification time, in milliseconds since 1970. An object that cannot be
    /// parsed is logged and treated as missing.
    pub async fn json<T: DeserializeOwned>(&self, key: &Path) -> Result<Option<(T, u64)>, Error> {
        let found = match self.store.get(key).await {
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            other => other.map_err(failed("read"))?,
        };
        let written = written_ms(&found.meta);
        let bytes = found.bytes().await.map_err(failed("read"))?;
        match serde_json::from_slice(&bytes) {
            Ok(value) => Ok(Some((value, written))),
            Err(error) => {
                tracing::error!(%key, %error, "cannot parse a stored object");
                Ok(None)
            }
        }
    }

    /// Returns true if an object with this key exists.
    ///
    /// # Errors
    /// Returns an error if a file system operation fails.
    pub async fn has(&self, key: &Path) -> Result<bool, Error> {
        Ok(self.written(key).await?.is_some())
    }

    /// Returns the modification time of an object in milliseconds since 1970, if it exists.
    pub async fn written(&self, key: &Path) -> Result<Option<u64>, Error> {
        match self.store.head(key).await {
            Ok(meta) => Ok(Some(written_ms(&meta))),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(failed("inspect")(error)),
        }
    }

    /// Starts an upload.
    pub async fn begin(&self, key: &Path) -> Result<Incoming, Error> {
        let place = self.place(key).await?;
        let charge = place.project.as_ref().map(Project::charge).transpose()?;
        let upload = self.store.put_multipart(key).await.map_err(failed("create"))?;
        let (held, hasher, room) = (BytesMut::new(), Sha256::new(), self.room.clone());
        Ok(Incoming { upload, held, hasher, size_bytes: 0, room, place, charge })
    }

    /// Opens an object for reading, if it exists.
    pub async fn read(&self, key: &Path) -> Result<Option<Outgoing>, Error> {
        match self.store.get(key).await {
            Ok(found) => Ok(Some(Outgoing { size_bytes: found.meta.size, stream: found.into_stream() })),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(failed("read")(error)),
        }
    }

    /// Lists all objects below a key as a stream, in no particular order.
    pub fn below(&self, prefix: &Path) -> BoxStream<'static, Result<ObjectMeta, Error>> {
        self.store.list(Some(prefix)).map(|found| found.map_err(failed("list"))).boxed()
    }

    /// Lists the names of the directories directly below a key, sorted.
    pub async fn names(&self, prefix: &Path) -> Result<Vec<String>, Error> {
        let found = self.store.list_with_delimiter(Some(prefix)).await.map_err(failed("list"))?;
        let mut names: Vec<_> =
            found.common_prefixes.iter().filter_map(|path| path.filename().map(str::to_owned)).collect();
        names.sort();
        Ok(names)
    }

    /// Removes an object. Succeeds if it does not exist.
    pub async fn remove(&self, key: &Path) -> Result<(), Error> {
        let place = self.place(key).await?;
        let _alone = place.alone().await;
        let before = place.counted_bytes().await?;
        match self.store.delete(key).await {
            Ok(()) => {
                if let Some(project) = &place.project {
                    project.subtract(before);
                }
                Ok(())
            }
            Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(failed("remove")(error)),
        }
    }

    /// Removes all objects below a key, except `except`.
    pub async fn remove_below(&self, prefix: &Path, except: Option<&Path>) -> Result<(), Error> {
        let mut found = self.below(prefix);
        while let Some(meta) = found.next().await {
            let meta = meta?;
            if Some(&meta.location) != except {
                self.remove(&meta.location).await?;
            }
        }
        Ok(())
    }

    /// Removes partial files that killed servers left behind.
    pub async fn sweep(&self) -> Result<(), Error> {
        let root = self.room.root.clone();
        tokio::task::spawn_blocking(move || sweep(&root))
            .await
            .map_err(io::Error::from)
            .and_then(|swept| swept)
            .map_err(|source| Error::System { act: "remove partially written objects".into(), source })
    }
}

impl DiskSpace {
    fn has(&self, bytes: u64) -> bool {
        let writing = self.writing.load(Ordering::Acquire);
        let needed = self.reserve_bytes.saturating_add(bytes).saturating_add(writing);
        admission::disk_free_bytes(&self.root) >= needed
    }

    /// Reserves space for bytes that are about to be written, in addition to the bytes of other pending
    /// writes.
    fn take(&self, bytes: u64) -> Result<WriteReservation<'_>, Error> {
        self.writing.fetch_add(bytes, Ordering::AcqRel);
        let writing = WriteReservation { room: self, bytes };
        if self.has(0) {
            return Ok(writing);
        }
        let (free, reserve) = (admission::disk_free_bytes(&self.root), self.reserve_bytes);
        let why = format!(
            "{free} bytes of disk space are free, and {reserve} bytes are reserved (disk_reserve_bytes)"
        );
        Err(Error::Runtime(runtime::Error::Capacity { what: "more stored data", why }))
    }
}

impl Drop for WriteReservation<'_> {
    fn drop(&mut self) {
        self.room.writing.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

impl ObjectDestination {
    async fn alone(&self) -> MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        self.key.hash(&mut hasher);
        let place = usize::try_from(hasher.finish() % LOCKS as u64).unwrap_or(0);
        let [first, ..] = &*self.locks;
        self.locks.get(place).unwrap_or(first).lock().await
    }

    /// Returns the number of bytes that are counted for the existing object, or 0 if none exists or objects
    /// are not counted.
    async fn counted_bytes(&self) -> Result<u64, Error> {
        if self.project.is_none() {
            return Ok(0);
        }
        match self.store.head(&self.key).await {
            Ok(meta) => Ok(meta.size + OBJECT_BYTES),
            Err(object_store::Error::NotFound { .. }) => Ok(0),
            Err(error) => Err(failed("inspect")(error)),
        }
    }
}

impl Incoming {
    /// Counts the full size of an upload whose length is known in advance, so that an upload that does not
    /// fit is refused before it starts.
    ///
    /// # Errors
    /// Returns `quota_exceeded` if the project's quota would be exceeded.
    pub fn prepay(&mut self, size_bytes: u64) -> Result<(), Error> {
        self.charge.as_mut().map_or(Ok(()), |charge| charge.prepay(size_bytes))
    }

    /// Appends bytes. Waits until they are written, unless they fit into the buffer.
    ///
    /// # Errors
    /// Returns an error if the project's quota is used up, the disk is full, or a file system operation
    /// fails.
    pub async fn push(&mut self, bytes: &Bytes) -> Result<(), Error> {
        if let Some(charge) = &mut self.charge {
            charge.grow(bytes.len() as u64)?;
        }
        self.hasher.update(bytes);
        self.size_bytes += bytes.len() as u64;
        self.held.extend_from_slice(bytes);
        if self.held.len() >= PIECE_BYTES {
            self.write().await?;
        }
        Ok(())
    }

    async fn write(&mut self) -> Result<(), Error> {
        let piece = self.held.split().freeze();
        let _writing = self.room.take(piece.len() as u64)?;
        self.upload.put_part(piece.into()).await.map_err(failed("write"))
    }

    /// Returns the number of bytes received so far.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns the SHA-256 of the bytes received so far.
    pub fn sha256(&self) -> String {
        self.hasher.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Writes the rest and publishes the object atomically.
    ///
    /// # Errors
    /// Returns an error if a file system operation fails.
    pub async fn finish(mut self) -> Result<(), Error> {
        if !self.held.is_empty() {
            self.write().await?;
        }
        let _alone = self.place.alone().await;
        let before = self.place.counted_bytes().await?;
        self.upload.complete().await.map_err(failed("write"))?;
        if let (Some(project), Some(charge)) = (&self.place.project, self.charge.take()) {
            charge.keep();
            project.subtract(before);
        }
        Ok(())
    }
}

impl Outgoing {
    /// Returns the next bytes, or `None` at the end.
    ///
    /// # Errors
    /// Returns an error if a file system operation fails.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        self.stream.next().await.transpose().map_err(failed("read"))
    }
}

/// Joins names into a key. Each name becomes one part of the key.
pub fn key<'a>(names: impl IntoIterator<Item = &'a str>) -> Path {
    names.into_iter().collect()
}

/// Returns true if an error was caused by a full disk.
pub fn is_full(error: &Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        // The `source` of an I/O error skips the error that it wraps, so `get_ref` is used below.
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if matches!(kind, Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)) {
            return true;
        }
        cause = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(wrapped) => Some(wrapped as &(dyn std::error::Error + 'static)),
            None => error.source(),
        };
    }
    false
}

/// Returns the modification time of an object, in milliseconds since 1970.
pub fn written_ms(meta: &ObjectMeta) -> u64 {
    u64::try_from(meta.last_modified.timestamp_millis()).unwrap_or_default()
}

fn failed(act: &'static str) -> impl FnOnce(object_store::Error) -> Error {
    move |error| Error::System { act: format!("{act} a stored object"), source: io::Error::other(error) }
}

fn sweep(directory: &FsPath) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sweep(&entry.path())?;
        } else if entry.file_name().to_string_lossy().contains('#') {
            let age = SystemTime::now().duration_since(entry.metadata()?.modified()?);
            if age.is_ok_and(|age| age > ABANDONED_AFTER) {
                fs::remove_file(entry.path())?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_object_is_there_whole_or_not_at_all_and_half_of_one_is_swept() {
        let data = tempfile::tempdir().unwrap();
        let objects = Objects::open(data.path().join("o"), 0, None).unwrap();
        let at = key(["p", "s", "7"]);
        let mut incoming = objects.begin(&at).await.unwrap();
        incoming.push(&Bytes::from(vec![7; PIECE_BYTES + 1])).await.unwrap();
        assert!(!objects.has(&at).await.unwrap());
        drop(incoming);
        let mut incoming = objects.begin(&at).await.unwrap();
        incoming.push(&Bytes::from_static(b"whole")).await.unwrap();
        assert_eq!(incoming.size_bytes(), 5);
        incoming.finish().await.unwrap();
        let mut outgoing = objects.read(&at).await.unwrap().unwrap();
        assert_eq!(outgoing.size_bytes, 5);
        objects.remove_below(&key(["p"]), None).await.unwrap();
        assert_eq!(outgoing.next().await.unwrap().unwrap(), &b"whole"[..]);
        assert!(objects.read(&at).await.unwrap().is_none());
        let left = data.path().join("o/x#1");
        fs::write(&left, b"half").unwrap();
        objects.sweep().await.unwrap();
        assert!(left.exists(), "somebody may still write it");
        let old = SystemTime::now() - 2 * ABANDONED_AFTER;
        fs::File::options().write(true).open(&left).unwrap().set_modified(old).unwrap();
        objects.sweep().await.unwrap();
        assert!(!left.exists());
    }

    #[tokio::test]
    async fn what_is_replaced_or_removed_stops_counting_however_many_do_so_at_once() {
        // H-40
        let data = tempfile::tempdir().unwrap();
        let ledger = Arc::new(Ledger::new(data.path()));
        let tally = LedgerScope { ledger: Arc::clone(&ledger), depth: 0 };
        let objects = Objects::open(data.path().join("datasets"), 0, Some(tally)).unwrap();
        let at = key(["p", "a"]);
        let write = async |length: usize| {
            let mut incoming = objects.begin(&at).await.unwrap();
            incoming.push(&Bytes::from(vec![7; length])).await.unwrap();
            incoming.finish().await.unwrap();
        };
        write(100_000).await;
        futures_util::future::join_all((0..8).map(|_| write(10))).await;
        ledger.set_quota("p", 3 * OBJECT_BYTES + 100);
        let project = ledger.counted("p").await.unwrap();
        assert!(project.has_room(OBJECT_BYTES + 90) && !project.has_room(OBJECT_BYTES + 91), "{project:?}");
        objects.put_json(&key(["p", "b"]), &"x").await.unwrap();
        assert!(project.has_room(0) && !project.has_room(OBJECT_BYTES), "{project:?}");
        let twice = [objects.remove(&at), objects.remove(&at)];
        futures_util::future::join_all(twice).await.into_iter().for_each(Result::unwrap);
        objects.remove(&key(["p", "b"])).await.unwrap();
        let most = 2 * OBJECT_BYTES + 100;
        assert!(project.has_room(most) && !project.has_room(most + 1), "{project:?}");
    }

    #[tokio::test]
    async fn whoever_writes_sees_what_others_are_writing() {
        // H-40
        let data = tempfile::tempdir().unwrap();
        let free = admission::disk_free_bytes(data.path());
        let objects = Objects::open(data.path().join("o"), free - (1 << 30), None).unwrap();
        let first = objects.room.take(1 << 29).unwrap();
        assert!(objects.room.take(3 << 28).is_err(), "together they would reach into the reserve");
        drop(first);
        objects.room.take(3 << 28).unwrap();
    }

    #[tokio::test]
    async fn an_object_of_no_bytes_is_one() {
        let data = tempfile::tempdir().unwrap();
        let objects = Objects::open(data.path().join("o"), 0, None).unwrap();
        objects.begin(&key(["empty"])).await.unwrap().finish().await.unwrap();
        assert_eq!(objects.read(&key(["empty"])).await.unwrap().unwrap().size_bytes, 0);
    }

    #[test]
    fn a_full_disk_is_known_however_deep_it_is_said() {
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let wrapped = Error::System { act: "x".into(), source: io::Error::other(io::Error::other(full())) };
        assert!(is_full(&wrapped));
        let store = object_store::Error::Generic { store: "x", source: Box::new(full()) };
        assert!(is_full(&failed("write")(store)));
        assert!(!is_full(&Error::Protocol("x".into())));
    }
}
