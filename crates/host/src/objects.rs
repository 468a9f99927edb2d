//! This machine's object store, which holds artifacts, datasets and session folders.
//!
//! The [`Ledger`] counts each project's objects. In addition, every upload checks the disk's free space
//! before each chunk. The check subtracts the chunks that other uploads are writing at that moment.
//!
//! Objects are written atomically. Partial files that a killed server left behind have a `#` in their names.
//! They are never listed, and [`Objects::sweep`] removes them. No path from a sandbox reaches this module,
//! because keys consist of validated names.

mod destination;
mod partial;
mod space;
mod upload;

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore as _, ObjectStoreExt as _, PutPayload};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use upload::Incoming;

use crate::error::Error;
use crate::ledger::{Ledger, OBJECT_BYTES, Project};
use destination::{KeyLocks, ObjectDestination};
use space::DiskSpace;

/// A directory of objects.
pub struct Objects {
    store: Arc<LocalFileSystem>,
    room: DiskSpace,
    tally: Option<LedgerScope>,
    locks: KeyLocks,
}

/// The ledger that counts the objects, and the position of the project's name in a key.
#[derive(Clone)]
pub struct LedgerScope {
    /// The ledger that counts the bytes.
    pub ledger: Arc<Ledger>,
    /// Index of the part of the key that names the project.
    pub depth: usize,
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
        let room = DiskSpace { root, reserve_bytes, writing };
        Ok(Self { store, room, tally, locks: KeyLocks::default() })
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
        let (store, locks) = (Arc::clone(&self.store), self.locks.clone());
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
        Ok(Incoming::new(upload, place, self.room.clone(), charge))
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
        tokio::task::spawn_blocking(move || partial::sweep(&root))
            .await
            .map_err(io::Error::from)
            .and_then(|swept| swept)
            .map_err(|source| Error::System { act: "remove partially written objects".into(), source })
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

#[cfg(test)]
mod tests;
