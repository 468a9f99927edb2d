//! A cache of package files, addressed by key. An incomplete file has a temporary name.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt as _;

/// Maximum size of the cache in bytes. No more files are added to a full cache.
const BYTES_MAX: u64 = 20 << 30;
/// Target size in bytes when a full cache is reduced.
const BYTES_KEPT: u64 = 16 << 30;
/// Age after which an incomplete file counts as orphaned.
const PART_OLD: Duration = Duration::from_secs(24 * 3600);

/// The cached files of one directory, which several processes may share.
pub struct PackageCache {
    directory: PathBuf,
    /// Number of bytes that must stay free on the disk.
    reserve_bytes: u64,
    /// Number of bytes in the complete files that this process knows of.
    kept: AtomicU64,
    /// Number of bytes in incomplete files.
    coming: Arc<AtomicU64>,
    count: AtomicU64,
}

/// An incomplete file. Dropping this value deletes the file, unless it has been stored.
pub struct PartialPackage {
    path: PathBuf,
    file: tokio::fs::File,
    place: PathBuf,
    is_kept: bool,
    written: u64,
    coming: Arc<AtomicU64>,
    room: u64,
}

impl PackageCache {
    pub fn new(directory: &Path, reserve_bytes: u64) -> Self {
        let coming = Arc::<AtomicU64>::default();
        let (kept, count) = (AtomicU64::new(0), AtomicU64::new(0));
        let store = Self { directory: directory.to_owned(), reserve_bytes, kept, coming, count };
        let known = store.files().map_or(0, |files| files.iter().map(|file| file.1).sum());
        store.kept.store(known, Ordering::Relaxed);
        store
    }

    /// Derives the cache key of a file from a text that identifies the file.
    pub fn key(text: &str) -> String {
        Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Opens a cached file, and returns it with its size.
    pub async fn open(&self, key: &str) -> Option<(tokio::fs::File, u64)> {
        let path = self.place(key);
        let file = tokio::fs::File::open(&path).await.ok()?;
        let size = file.metadata().await.ok()?.len();
        // The modification time serves as the time of last use: the least recently used files are removed
        // first.
        let _ = fs::File::options()
            .append(true)
            .open(&path)
            .and_then(|file| file.set_modified(SystemTime::now()));
        Some((file, size))
    }

    /// Creates an empty file for an incoming package, or returns `None` if the cache or the disk is full.
    pub async fn begin(&self, key: &str) -> Option<PartialPackage> {
        let taken = self.kept.load(Ordering::Relaxed) + self.coming.load(Ordering::Relaxed);
        let room = BYTES_MAX.checked_sub(taken).filter(|room| *room > 0)?;
        let parts = self.directory.join("parts");
        tokio::fs::create_dir_all(&parts).await.ok()?;
        tokio::fs::create_dir_all(self.directory.join("files")).await.ok()?;
        let disk = rustix::fs::statvfs(&parts).ok()?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        let room = free.checked_sub(self.reserve_bytes).filter(|free| *free > 0)?.min(room);
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let path = parts.join(format!("{key}-{}-{number}", std::process::id()));
        let file = tokio::fs::File::create_new(&path).await.ok()?;
        let coming = Arc::clone(&self.coming);
        Some(PartialPackage { path, file, place: self.place(key), is_kept: false, written: 0, coming, room })
    }

    /// Stores a complete file under its key.
    pub async fn keep(&self, mut part: PartialPackage) {
        // The file is synced to disk before it is renamed, so that a power failure cannot leave a partial
        // file under the key.
        let whole = part.file.flush().await.is_ok() && part.file.sync_all().await.is_ok();
        if whole && tokio::fs::rename(&part.path, &part.place).await.is_ok() {
            part.is_kept = true;
            self.kept.fetch_add(part.written, Ordering::Relaxed);
        }
    }

    /// Removes a cached file that is unreadable or does not match its hash.
    pub async fn forget(&self, key: &str) {
        let _ = tokio::fs::remove_file(self.place(key)).await;
    }

    /// Removes orphaned incomplete files, and the least recently used files of a full cache.
    pub fn tidy(&self) -> io::Result<()> {
        let gone = |removed: io::Result<()>| match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        for (path, _, written) in list(&self.directory.join("parts"))? {
            if written.elapsed().is_ok_and(|age| age > PART_OLD) {
                gone(fs::remove_file(path))?;
            }
        }
        let mut files = self.files()?;
        let mut bytes: u64 = files.iter().map(|file| file.1).sum();
        if bytes >= BYTES_MAX {
            files.sort_by_key(|file| file.2);
            for (path, size, _) in files {
                if bytes <= BYTES_KEPT {
                    break;
                }
                gone(fs::remove_file(path))?;
                bytes -= size;
            }
        }
        self.kept.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn place(&self, key: &str) -> PathBuf {
        self.directory.join("files").join(key)
    }

    fn files(&self) -> io::Result<Vec<(PathBuf, u64, SystemTime)>> {
        list(&self.directory.join("files"))
    }
}

impl PartialPackage {
    /// Appends a chunk. Returns false if there is no space for it, or if it cannot be written.
    pub async fn add(&mut self, piece: &[u8]) -> bool {
        self.written += piece.len() as u64;
        self.coming.fetch_add(piece.len() as u64, Ordering::Relaxed);
        self.written <= self.room && self.file.write_all(piece).await.is_ok()
    }
}

impl Drop for PartialPackage {
    fn drop(&mut self) {
        self.coming.fetch_sub(self.written, Ordering::Relaxed);
        if !self.is_kept {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Returns the path, size and modification time of each file in a directory.
fn list(directory: &Path) -> io::Result<Vec<(PathBuf, u64, SystemTime)>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry?;
        // Skips a file that was removed in the meantime.
        let Ok(known) = entry.metadata() else { continue };
        files.push((entry.path(), known.len(), known.modified()?));
    }
    Ok(files)
}
