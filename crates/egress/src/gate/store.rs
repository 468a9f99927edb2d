//! Files that were fetched, by their key. One is there whole, or it has another name.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use sha2::{Digest, Sha256};

/// What all of them may take.
const BYTES_MAX: u64 = 20 << 30;
/// What is removed down to, when it is more.
const BYTES_KEPT: u64 = 16 << 30;

/// The files of one directory.
pub struct Store {
    directory: PathBuf,
    /// What of the disk stays free.
    reserve_bytes: u64,
    /// What they take, those that are coming included, as far as is known.
    bytes: Arc<AtomicU64>,
    count: AtomicU64,
}

/// A file that is not whole yet. Dropping it removes it.
pub struct Part {
    pub path: PathBuf,
    pub file: tokio::fs::File,
    place: PathBuf,
    kept: bool,
    written: u64,
    all: Arc<AtomicU64>,
}

impl Store {
    pub fn new(directory: &Path, reserve_bytes: u64) -> Self {
        // What a server before this one did not finish is nobody's.
        let _ = fs::remove_dir_all(directory.join("parts"));
        let bytes = Arc::<AtomicU64>::default();
        let store = Self { directory: directory.to_owned(), reserve_bytes, bytes, count: AtomicU64::new(0) };
        let known = store.all().map_or(0, |files| files.iter().map(|file| file.1).sum());
        store.bytes.store(known, Ordering::Relaxed);
        store
    }

    /// The name of what is known by a text.
    pub fn key(text: &str) -> String {
        Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// A file that is here, and its size.
    pub async fn open(&self, key: &str) -> Option<(tokio::fs::File, u64)> {
        let path = self.directory.join("files").join(key);
        let file = tokio::fs::File::open(&path).await.ok()?;
        let size = file.metadata().await.ok()?.len();
        // What is asked for often is removed last.
        let _ = fs::File::options()
            .append(true)
            .open(&path)
            .and_then(|file| file.set_modified(SystemTime::now()));
        Some((file, size))
    }

    /// A place for one that is coming; none where there is too much already, or no room.
    pub async fn begin(&self, key: &str) -> Option<Part> {
        if self.bytes.load(Ordering::Relaxed) >= BYTES_MAX {
            return None;
        }
        let parts = self.directory.join("parts");
        tokio::fs::create_dir_all(&parts).await.ok()?;
        tokio::fs::create_dir_all(self.directory.join("files")).await.ok()?;
        let room = rustix::fs::statvfs(&parts).ok()?;
        if room.f_bavail.saturating_mul(room.f_frsize) <= self.reserve_bytes {
            return None;
        }
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let path = parts.join(format!("{key}-{number}"));
        let file = tokio::fs::File::create_new(&path).await.ok()?;
        let place = self.directory.join("files").join(key);
        Some(Part { path, file, place, kept: false, written: 0, all: Arc::clone(&self.bytes) })
    }

    /// Keeps one that is whole.
    pub async fn keep(&self, mut part: Part) {
        use tokio::io::AsyncWriteExt as _;
        if part.file.flush().await.is_ok() && tokio::fs::rename(&part.path, &part.place).await.is_ok() {
            part.kept = true;
        }
    }

    /// Removes one that is not what it should be.
    pub async fn forget(&self, key: &str) {
        let _ = tokio::fs::remove_file(self.directory.join("files").join(key)).await;
    }

    /// Removes those that were not asked for in the longest time, where there is too much.
    pub fn tidy(&self) -> io::Result<()> {
        let mut files = self.all()?;
        let mut bytes: u64 = files.iter().map(|file| file.1).sum();
        if bytes >= BYTES_MAX {
            files.sort_by_key(|file| file.2);
            for (path, size, _) in files {
                if bytes <= BYTES_KEPT {
                    break;
                }
                fs::remove_file(path)?;
                bytes -= size;
            }
        }
        self.bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn all(&self) -> io::Result<Vec<(PathBuf, u64, SystemTime)>> {
        let entries = match fs::read_dir(self.directory.join("files")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let mut files = Vec::new();
        for entry in entries {
            let entry = entry?;
            let known = entry.metadata()?;
            files.push((entry.path(), known.len(), known.modified()?));
        }
        Ok(files)
    }
}

impl Part {
    /// Adds to it; no where there is too much of everything.
    pub async fn add(&mut self, piece: &[u8]) -> bool {
        use tokio::io::AsyncWriteExt as _;
        self.written += piece.len() as u64;
        let all = self.all.fetch_add(piece.len() as u64, Ordering::Relaxed);
        all < BYTES_MAX && self.file.write_all(piece).await.is_ok()
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.kept {
            self.all.fetch_sub(self.written, Ordering::Relaxed);
            let _ = fs::remove_file(&self.path);
        }
    }
}
