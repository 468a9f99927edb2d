//! Stores the layers of this machine by content, and removes unused and incomplete layers.
//!
//! ```text
//! <data>/layers/making-<pid>-<sandbox>/fs     being filled by that sandbox
//! <data>/layers/<key>/fs                      complete; <key>/layer.json records its source archive
//! <data>/layers/empty/fs                      root directory of sandboxes that unpack layers
//! ```
//!
//! A process that creates layers holds a shared lock on `<data>/layers` while it does so. [`tidy`] takes the
//! exclusive lock. While it holds that lock, every incomplete layer is orphaned, and no process is about to
//! save a template that references an unused layer.

mod making;
mod removal;

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::SandboxId;
use api::layer::LAYERS_MAX;
use host::error::Error;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::failed;

pub(crate) use making::Making;
pub(crate) use removal::remove;
pub use removal::{InUse, tidy};

/// Version prefixes of layer keys. Increase the number when unpacking changes, so that layers that were
/// unpacked differently are not reused.
const LAYER_FORM: &str = "layer 1";
const TOP_FORM: &str = "top 1";
/// Name of the layer that serves as the root directory of sandboxes that unpack layers.
const EMPTY: &str = "empty";
/// Mode of directories that build processes may traverse but not list.
const WALKED: u32 = 0o711;
/// Timeout for the lock. A [`tidy`] that removes large trees takes seconds.
const LOCK_WITHIN: Duration = Duration::from_secs(120);
const LOCK_EVERY: Duration = Duration::from_millis(50);

/// The layers of one data directory, with the shared lock that permits creating layers.
pub(super) struct Layers {
    data: PathBuf,
    _lock: File,
}

/// The stored metadata of a complete layer.
#[derive(Serialize, Deserialize)]
struct LayerRecord {
    digest: String,
    bytes: u64,
    entries: u64,
}

impl Layers {
    /// Opens the layers, and takes the shared lock that permits creating layers.
    pub(super) async fn open(data: &Path) -> Result<Self, Error> {
        let lock = using(data).await?;
        Ok(Self { data: data.to_owned(), _lock: lock })
    }

    /// Returns true if the layer with this key is complete and was made from the archive with this digest.
    pub(super) fn has(&self, key: &str, digest: &str) -> Result<bool, Error> {
        let path = self.path().join(key).join("layer.json");
        match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(failed("read", &path)(error)),
            Ok(text) => {
                Ok(serde_json::from_slice::<LayerRecord>(&text).is_ok_and(|record| record.digest == digest))
            }
        }
    }

    /// Returns the digest of a complete layer's source archive.
    pub(super) fn digest(&self, key: &str) -> Result<String, Error> {
        let path = self.path().join(key).join("layer.json");
        let text = fs::read(&path).map_err(failed("read", &path))?;
        let record: LayerRecord =
            serde_json::from_slice(&text).map_err(io::Error::from).map_err(failed("read", &path))?;
        Ok(record.digest)
    }

    /// Returns the directory of a layer's files.
    pub(super) fn tree(&self, key: &str) -> PathBuf {
        tree(&self.data, key)
    }

    /// Returns a directory for temporary files of build programs.
    pub(super) fn scratch(&self) -> PathBuf {
        self.path().join(format!("making-{}-scratch", std::process::id()))
    }

    /// Creates a directory for a new layer, which the sandbox with this ID will fill.
    pub(super) fn making(&self, id: &SandboxId) -> Result<Making, Error> {
        Making::begin(self.path(), id)
    }

    /// Returns the root directory of sandboxes that unpack layers. It contains only mount points, and is
    /// created on first use.
    pub(super) fn empty(&self) -> Result<PathBuf, Error> {
        let path = self.path().join(EMPTY);
        if !path.exists() {
            let making = self.making(&host::machine::fresh_id()?)?;
            let root = making.tree();
            let own = [
                "proc",
                "dev",
                "sys",
                "tmp",
                "workspace",
                "home/sandbox",
                ".bellglass/channel",
                ".bellglass/spool",
            ];
            let numbered = (0..LAYERS_MAX).map(|number| format!("layers/{number}"));
            for name in own.map(str::to_owned).into_iter().chain(numbered).chain(["layers/target".to_owned()])
            {
                let path = root.join(name);
                DirBuilder::new()
                    .recursive(true)
                    .mode(0o755)
                    .create(&path)
                    .map_err(failed("create", &path))?;
            }
            let guest = root.join(".bellglass/guest");
            File::create(&guest).map_err(failed("create", &guest))?;
            making.rename(EMPTY)?;
        }
        Ok(path.join("fs"))
    }

    fn path(&self) -> PathBuf {
        self.data.join("layers")
    }
}

/// Takes the shared lock. While it is held, no layer is removed.
///
/// # Errors
/// Another process held the exclusive lock for longer than `LOCK_WITHIN`, or the directory cannot be opened.
pub async fn using(data: &Path) -> Result<File, Error> {
    let path = data.join("layers");
    directory(&path, WALKED)?;
    let lock = File::open(&path).map_err(failed("open", &path))?;
    let deadline = tokio::time::Instant::now() + LOCK_WITHIN;
    while !try_lock(&lock, FlockOperation::NonBlockingLockShared, &path)? {
        if tokio::time::Instant::now() > deadline {
            return Err(Error::Deadline {
                what: "waiting for another command that removes layers",
                after: LOCK_WITHIN,
            });
        }
        tokio::time::sleep(LOCK_EVERY).await;
    }
    Ok(lock)
}

/// Returns the key of the last of these layers, given the digests of their archives, lowest first. The key
/// covers all digests, because the result of unpacking depends on the layers below: whiteouts, hard links and
/// symlinks refer to them.
pub(super) fn key(diff_ids: &[String], top: bool) -> String {
    let form = if top { TOP_FORM } else { LAYER_FORM };
    hexadecimal(&Sha256::digest(format!("{form}\n{}", diff_ids.join("\n"))))
}

/// Returns true if a string has the form of a layer key.
pub(super) fn is_key(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Returns the directory of a layer's files.
pub fn tree(data: &Path, key: &str) -> PathBuf {
    data.join("layers").join(key).join("fs")
}

/// Writes a file and flushes it to disk.
pub(super) fn write(path: &Path, text: &[u8]) -> Result<(), Error> {
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .map_err(failed("write", path))?;
    file.write_all(text).and_then(|()| file.sync_all()).map_err(failed("write", path))
}

/// Writer that computes the digest of the bytes written to it.
#[derive(Default)]
pub(super) struct Hashing(Sha256);

impl Hashing {
    /// Adds bytes to the digest.
    pub(super) fn take(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the digest of all bytes.
    pub(super) fn finish(self) -> String {
        format!("sha256:{}", hexadecimal(&self.0.finalize()))
    }
}

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.take(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn directory(path: &Path, mode: u32) -> Result<(), Error> {
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(failed("create directory", path)(error))
        }
        // Set explicitly, because the process's umask applies to the mode at creation.
        _ => fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed("open", path)),
    }
}

fn try_lock(file: &File, operation: FlockOperation, path: &Path) -> Result<bool, Error> {
    match rustix::fs::flock(file, operation) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(failed("lock", path)(errno.into())),
    }
}

#[cfg(test)]
mod tests {
    use api::layer::LayerReport;

    use super::removal::names;
    use super::*;

    fn report() -> LayerReport {
        LayerReport { digest: "sha256:x".into(), bytes: 1, entries: 1, ..LayerReport::default() }
    }

    #[test]
    fn keys_depend_on_everything_below() {
        let ids = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let all = [
            key(&ids(&["a"]), false),
            key(&ids(&["a"]), true),
            key(&ids(&["b", "a"]), false),
            key(&ids(&["b", "a"]), true),
        ];
        assert!(all.iter().all(|key| is_key(key)));
        assert_eq!(std::collections::BTreeSet::from(all).len(), 4);
    }

    #[tokio::test]
    async fn a_layer_has_its_name_only_when_it_is_complete() {
        let data = tempfile::tempdir().unwrap();
        let layers = Layers::open(data.path()).await.unwrap();
        let name = "a".repeat(64);
        let making = layers.making(&"s1".parse().unwrap()).unwrap();
        assert!(!layers.has(&name, "sha256:x").unwrap());
        making.keep(&name, &report()).unwrap();
        assert!(layers.has(&name, "sha256:x").unwrap() && !layers.has(&name, "sha256:y").unwrap());
        // A second layer with the same content is discarded.
        layers.making(&"s2".parse().unwrap()).unwrap().keep(&name, &report()).unwrap();
        assert_eq!(names(&data.path().join("layers")).unwrap(), [name]);
    }
}
