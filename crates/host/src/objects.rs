//! Bytes that this machine keeps by their key: what artifacts, datasets and sessions have in common.
//!
//! What belongs to projects is counted in the [`Ledger`]; and whoever writes looks at the room of the disk before each piece, with
//! what others are writing at that moment.
//!
//! An object is there whole or not at all. What a killed server left half-written has a `#` in its name, is never listed, and is
//! removed by [`Objects::sweep`]. Nothing here is a path of a sandbox: keys are made of names that were checked.

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

/// What is written at once.
const PIECE_BYTES: usize = 1 << 20;
/// Whoever writes has a minute for each piece: what is older is nobody's.
const ABANDONED_AFTER: Duration = Duration::from_secs(3600);
/// Locks of keys: two that change one object have the same, and others seldom do.
const LOCKS: usize = 64;

/// A directory of objects.
pub struct Objects {
    store: Arc<LocalFileSystem>,
    room: Room,
    tally: Option<Tally>,
    /// Whoever changes an object is alone with it, so that its bytes are counted once.
    locks: Arc<[Mutex<()>; LOCKS]>,
}

/// Whose bytes are counted, and where in a key the project stands.
#[derive(Clone)]
pub struct Tally {
    /// Counts the bytes.
    pub ledger: Arc<Ledger>,
    /// The part of the key that names the project.
    pub depth: usize,
}

/// The room of a disk.
#[derive(Clone)]
struct Room {
    root: PathBuf,
    reserve_bytes: u64,
    /// What is being written now.
    writing: Arc<AtomicU64>,
}

/// Bytes that are being written.
struct Writing<'a> {
    room: &'a Room,
    bytes: u64,
}

/// An object that is being written. Dropping it leaves nothing.
pub struct Incoming {
    upload: Box<dyn MultipartUpload>,
    held: BytesMut,
    hasher: Sha256,
    size_bytes: u64,
    room: Room,
    place: Place,
    charge: Option<Charge>,
}

/// Where an object comes to be, and what it may replace there.
struct Place {
    store: Arc<LocalFileSystem>,
    key: Path,
    locks: Arc<[Mutex<()>; LOCKS]>,
    project: Option<Arc<Project>>,
}

/// An object that is being read. It stays readable when it is removed meanwhile.
pub struct Outgoing {
    /// How long it is.
    pub size_bytes: u64,
    stream: BoxStream<'static, object_store::Result<Bytes>>,
}

impl Objects {
    /// Opens a directory, which is made, on a disk of which so much stays free.
    pub fn open(root: PathBuf, reserve_bytes: u64, tally: Option<Tally>) -> Result<Self, Error> {
        let made = fs::create_dir_all(&root)
            .and_then(|()| fs::set_permissions(&root, fs::Permissions::from_mode(0o700)));
        made.map_err(|source| Error::System { act: format!("create {}", root.display()), source })?;
        let store = LocalFileSystem::new_with_prefix(&root).map_err(failed("open"))?;
        let store = Arc::new(store.with_automatic_cleanup(true).with_fsync(true));
        let writing = tally.as_ref().map(|tally| tally.ledger.writing()).unwrap_or_default();
        let locks = Arc::new(std::array::from_fn(|_| Mutex::default()));
        Ok(Self { store, room: Room { root, reserve_bytes, writing }, tally, locks })
    }

    /// The project that a key is of, where that counts.
    async fn project(&self, key: &Path) -> Result<Option<Arc<Project>>, Error> {
        let Some(Tally { ledger, depth }) = &self.tally else { return Ok(None) };
        match key.parts().nth(*depth) {
            Some(name) => ledger.counted(name.as_ref()).await.map(Some),
            None => Ok(None),
        }
    }

    /// Whether a project may keep so many bytes more, and the disk has room for them.
    pub async fn may_keep(&self, key: &Path, bytes: u64) -> Result<bool, Error> {
        let project = self.project(key).await?;
        Ok(self.has_room(bytes) && project.is_none_or(|project| project.has_room(bytes)))
    }

    async fn place(&self, key: &Path) -> Result<Place, Error> {
        let (store, locks) = (Arc::clone(&self.store), Arc::clone(&self.locks));
        Ok(Place { store, key: key.clone(), locks, project: self.project(key).await? })
    }

    /// Whether so many bytes more leave the reserve alone.
    pub fn has_room(&self, bytes: u64) -> bool {
        self.room.has(bytes)
    }

    /// Writes a small object, in one step. It counts, and is never refused for that: it says what was done.
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

    /// Reads a small object, and when it was written, in milliseconds since 1970. One that cannot be understood is not there.
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

    /// Whether an object has this key.
    ///
    /// # Errors
    /// What the file system said.
    pub async fn has(&self, key: &Path) -> Result<bool, Error> {
        Ok(self.written(key).await?.is_some())
    }

    /// When an object was written, in milliseconds since 1970, if it is there.
    pub async fn written(&self, key: &Path) -> Result<Option<u64>, Error> {
        match self.store.head(key).await {
            Ok(meta) => Ok(Some(written_ms(&meta))),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(failed("inspect")(error)),
        }
    }

    /// Begins an object.
    pub async fn begin(&self, key: &Path) -> Result<Incoming, Error> {
        let place = self.place(key).await?;
        let charge = place.project.as_ref().map(Project::charge).transpose()?;
        let upload = self.store.put_multipart(key).await.map_err(failed("create"))?;
        let (held, hasher, room) = (BytesMut::new(), Sha256::new(), self.room.clone());
        Ok(Incoming { upload, held, hasher, size_bytes: 0, room, place, charge })
    }

    /// Opens an object.
    pub async fn read(&self, key: &Path) -> Result<Option<Outgoing>, Error> {
        match self.store.get(key).await {
            Ok(found) => Ok(Some(Outgoing { size_bytes: found.meta.size, stream: found.into_stream() })),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(failed("read")(error)),
        }
    }

    /// All objects below a key, as they are found.
    pub fn below(&self, prefix: &Path) -> BoxStream<'static, Result<ObjectMeta, Error>> {
        self.store.list(Some(prefix)).map(|found| found.map_err(failed("list"))).boxed()
    }

    /// The names directly below a key.
    pub async fn names(&self, prefix: &Path) -> Result<Vec<String>, Error> {
        let found = self.store.list_with_delimiter(Some(prefix)).await.map_err(failed("list"))?;
        let mut names: Vec<_> =
            found.common_prefixes.iter().filter_map(|path| path.filename().map(str::to_owned)).collect();
        names.sort();
        Ok(names)
    }

    /// Removes an object. One that is not there is success.
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

    /// Removes all objects below a key but one.
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

    /// Removes what killed servers left half-written.
    pub async fn sweep(&self) -> Result<(), Error> {
        let root = self.room.root.clone();
        tokio::task::spawn_blocking(move || sweep(&root))
            .await
            .map_err(io::Error::from)
            .and_then(|swept| swept)
            .map_err(|source| Error::System { act: "remove partially written objects".into(), source })
    }
}

impl Room {
    fn has(&self, bytes: u64) -> bool {
        let writing = self.writing.load(Ordering::Acquire);
        let needed = self.reserve_bytes.saturating_add(bytes).saturating_add(writing);
        admission::disk_free_bytes(&self.root) >= needed
    }

    /// Room for bytes that are about to be written, with all that others are writing.
    fn take(&self, bytes: u64) -> Result<Writing<'_>, Error> {
        self.writing.fetch_add(bytes, Ordering::AcqRel);
        let writing = Writing { room: self, bytes };
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

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.room.writing.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

impl Place {
    async fn alone(&self) -> MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        self.key.hash(&mut hasher);
        let place = usize::try_from(hasher.finish() % LOCKS as u64).unwrap_or(0);
        let [first, ..] = &*self.locks;
        self.locks.get(place).unwrap_or(first).lock().await
    }

    /// What the object that is there counts.
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
    /// Counts all of it at once, where its length is known: whoever has no room for it is refused before any of it comes.
    ///
    /// # Errors
    /// `quota_exceeded`.
    pub fn prepay(&mut self, size_bytes: u64) -> Result<(), Error> {
        self.charge.as_mut().map_or(Ok(()), |charge| charge.prepay(size_bytes))
    }

    /// Takes bytes; waits until they are written, unless they are few.
    ///
    /// # Errors
    /// The project's quota or the disk has no room for them, or what the file system said.
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

    /// So many bytes came until now.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The SHA-256 of what came until now.
    pub fn sha256(&self) -> String {
        self.hasher.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Has it there, whole.
    ///
    /// # Errors
    /// What the file system said.
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
    /// The next bytes; none at the end.
    ///
    /// # Errors
    /// What the file system said.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        self.stream.next().await.transpose().map_err(failed("read"))
    }
}

/// A key of these names, each of which is one piece of a path.
pub fn key<'a>(names: impl IntoIterator<Item = &'a str>) -> Path {
    names.into_iter().collect()
}

/// Whether something failed because the disk is full.
pub fn is_full(error: &Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        // What wraps another error of the system shows the kind, but not always the source.
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

/// When an object was written, in milliseconds since 1970.
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
        let tally = Tally { ledger: Arc::clone(&ledger), depth: 0 };
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
