//! The destination of an object, and the locks that serialize the changes to it.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use object_store::ObjectStoreExt as _;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use tokio::sync::{Mutex, MutexGuard};

use super::failed;
use crate::error::Error;
use crate::ledger::{OBJECT_BYTES, Project};

/// Number of locks, each shared by a subset of the keys. All changes to one object use the same lock, and two
/// objects rarely share a lock.
const LOCKS: usize = 64;

/// The locks of an object store. One is held while an object is changed, so that the object's bytes are
/// counted exactly once.
#[derive(Clone)]
pub(super) struct KeyLocks(Arc<[Mutex<()>; LOCKS]>);

/// The destination of an object, which may replace an existing object.
pub(super) struct ObjectDestination {
    pub store: Arc<LocalFileSystem>,
    pub key: Path,
    pub locks: KeyLocks,
    pub project: Option<Arc<Project>>,
}

impl Default for KeyLocks {
    fn default() -> Self {
        Self(Arc::new(std::array::from_fn(|_| Mutex::default())))
    }
}

impl KeyLocks {
    async fn lock(&self, key: &Path) -> MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let place = usize::try_from(hasher.finish() % LOCKS as u64).unwrap_or(0);
        let [first, ..] = &*self.0;
        self.0.get(place).unwrap_or(first).lock().await
    }
}

impl ObjectDestination {
    /// Waits until no other task changes the object, and excludes other tasks until the guard is dropped.
    pub async fn alone(&self) -> MutexGuard<'_, ()> {
        self.locks.lock(&self.key).await
    }

    /// Returns the number of bytes that are counted for the existing object, or 0 if none exists or objects
    /// are not counted.
    pub async fn counted_bytes(&self) -> Result<u64, Error> {
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
