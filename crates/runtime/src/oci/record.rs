//! A sandbox's record, which is written before anything else is created, and its ownership lock.
//!
//! `<data>/sandboxes/<id>/record.json` contains the runtime, the index of the user ID range, the boot ID, the
//! loop device and, once known, process 1. The directory is created first and removed last. Listing the
//! directories therefore finds every resource that was created, and a user ID range becomes free only when no
//! file can belong to it anymore.
//!
//! The process that owns the sandbox holds a lock on `<data>/sandboxes/<id>/lock`.

use std::collections::{HashMap, HashSet};
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, DirEntryExt};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use api::SandboxId;
use api::limits::UID_RANGE;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::files::{self, failed};
use crate::hand::{self, Lock};
use crate::oci::process::Identity;

/// First host user ID of the lowest range for sandboxes. It is above the IDs of human users, system users and
/// the usual subordinate ranges.
const RANGE_BASE: u32 = 1 << 30;
/// Maximum number of user ID ranges on one machine. The last one ends below 2^31, because some programs
/// interpret larger IDs as negative numbers.
const RANGES_MAX: u32 = 16_000;
/// Mode of directories that a sandbox's root may traverse but not list.
const WALKED: u32 = 0o711;

/// Paths of the data directory and of the files below it.
#[derive(Clone, Debug)]
pub struct Dirs {
    /// The data directory. Every user must be able to traverse its parent directories.
    pub data: PathBuf,
    ranges: Ranges,
}

/// Cache of the sandboxes' user ID ranges. The key is the sandbox's ID and its directory's inode. A sandbox's
/// range never changes, and reading a thousand records would take longer than everything else that starting a
/// sandbox involves.
type Ranges = Arc<Mutex<HashMap<(SandboxId, u64), u32>>>;

/// The record of one sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OciRecord {
    /// Name of the runtime that created the sandbox.
    pub runtime: String,
    /// Index of the sandbox's user ID range.
    pub range: u32,
    /// ID of the boot during which the sandbox was created. After a reboot, none of its processes exist.
    pub boot: String,
    /// True if process 1 may create files owned by other users.
    #[serde(rename = "unpacks")]
    pub owns_files: bool,
    /// Number of the loop device that the sandbox's disk uses.
    pub device: Option<u32>,
    /// Process 1, once it is running.
    pub process: Option<Identity>,
    /// True once the sandbox is being stopped.
    pub stopping: bool,
}

impl Dirs {
    /// Creates the paths for this data directory.
    pub fn below(data: impl Into<PathBuf>) -> Self {
        Self { data: data.into(), ranges: Ranges::default() }
    }

    /// Creates the directories that all sandboxes share.
    pub(crate) fn prepare(&self, runtime: &str) -> Result<(), Error> {
        fs::create_dir_all(&self.data).map_err(|source| failed("create directory", &self.data, source))?;
        files::set_mode(&self.data, WALKED)?;
        files::directory(&self.sandboxes(), WALKED)?;
        files::directory(&self.data.join("runtime"), 0o700)?;
        files::directory(&self.states(runtime), 0o700)
    }

    /// Returns the OCI runtime's state directory for this sandbox. Each sandbox has its own state directory,
    /// so that the whole directory can be removed without knowing the runtime's file names.
    pub(crate) fn state(&self, runtime: &str, id: &SandboxId) -> PathBuf {
        self.states(runtime).join(id.as_str())
    }

    /// Returns the directory of one sandbox.
    pub(crate) fn sandbox(&self, id: &SandboxId) -> PathBuf {
        self.sandboxes().join(id.as_str())
    }

    /// Returns the directory that holds the blank disks.
    pub(crate) fn blanks(&self) -> PathBuf {
        self.data.join("disks")
    }

    /// Returns the file that backs a sandbox's disk.
    pub(crate) fn disk(&self, id: &SandboxId) -> PathBuf {
        self.sandbox(id).join("disk.img")
    }

    /// Returns the OCI bundle of a sandbox.
    pub(crate) fn bundle(&self, id: &SandboxId) -> PathBuf {
        self.sandbox(id).join("bundle")
    }

    /// Returns the directory of a sandbox's channel socket.
    pub(crate) fn channel(&self, id: &SandboxId) -> PathBuf {
        self.sandbox(id).join("channel")
    }

    fn states(&self, runtime: &str) -> PathBuf {
        self.data.join("runtime").join(runtime)
    }

    fn sandboxes(&self) -> PathBuf {
        self.data.join("sandboxes")
    }

    fn record(&self, id: &SandboxId) -> PathBuf {
        self.sandbox(id).join("record.json")
    }

    /// Returns the IDs of all sandboxes that have a directory.
    pub(crate) fn ids(&self) -> Result<Vec<SandboxId>, Error> {
        Ok(self.directories()?.into_iter().map(|(id, _)| id).collect())
    }

    /// Returns the IDs of all sandboxes that have a directory, with the directories' inodes.
    fn directories(&self) -> Result<Vec<(SandboxId, u64)>, Error> {
        let path = self.sandboxes();
        let entries = fs::read_dir(&path).map_err(|source| failed("list", &path, source))?;
        let mut all = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|source| failed("list", &path, source))?;
            let id = entry.file_name().to_str().and_then(|name| name.parse().ok());
            all.extend(id.map(|id| (id, entry.ino())));
        }
        Ok(all)
    }

    /// Loads a sandbox's record, or returns `None` if it does not exist.
    pub(crate) fn load(&self, id: &SandboxId) -> Result<Option<OciRecord>, Error> {
        let Some(text) = files::read_if_there(&self.record(id))? else { return Ok(None) };
        let record = serde_json::from_str(&text).map_err(|source| {
            failed("understand", &self.record(id), io::Error::new(ErrorKind::InvalidData, source))
        })?;
        Ok(Some(record))
    }

    /// Saves the record of a sandbox atomically.
    pub(crate) fn save(&self, id: &SandboxId, record: &OciRecord) -> Result<(), Error> {
        let text = serde_json::to_string(record).map_err(|source| {
            failed("write", &self.record(id), io::Error::new(ErrorKind::InvalidData, source))
        })?;
        files::replace(&self.record(id), &text)
    }

    /// Creates the sandbox's directory, acquires ownership of the sandbox, and writes its record with the
    /// lowest free user ID range. If the ID is in use, returns [`Error::Exists`] and does not modify the
    /// existing sandbox.
    pub(crate) fn reserve(
        &self,
        id: &SandboxId,
        runtime: &str,
        owns_files: bool,
    ) -> Result<(OciRecord, Lock), Error> {
        let path = self.sandbox(id);
        let _ranges = self.lock_ranges()?;
        match DirBuilder::new().mode(WALKED).create(&path) {
            Ok(()) => files::set_mode(&path, WALKED)?,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                if !api::defence::is_off("R-11") {
                    return Err(Error::Exists(id.clone()));
                }
            }
            Err(error) => return Err(failed("create directory", &path, error)),
        }
        let made = self.fill(id, runtime, owns_files);
        if made.is_err() {
            // The directory contains only files so far, so this removes everything. An error here is ignored,
            // because the first error is more useful.
            let _ = files::remove_shallow(&path, 0);
        }
        made
    }

    fn fill(&self, id: &SandboxId, runtime: &str, owns_files: bool) -> Result<(OciRecord, Lock), Error> {
        let lock = self.take(id)?.ok_or_else(|| Error::Exists(id.clone()))?;
        let boot = crate::oci::process::boot_id()?;
        let range = self.lowest_free_range()?;
        let record = OciRecord {
            runtime: runtime.to_owned(),
            range,
            boot,
            owns_files,
            device: None,
            process: None,
            stopping: false,
        };
        self.save(id, &record)?;
        Ok((record, lock))
    }

    /// Acquires ownership of a sandbox, or returns `None` if a living process owns it.
    pub(crate) fn take(&self, id: &SandboxId) -> Result<Option<Lock>, Error> {
        hand::take(&self.sandbox(id).join("lock"))
    }

    /// Returns true if a living process owns the sandbox. Queries the lock without acquiring it, so this call
    /// never prevents a different process from acquiring the lock.
    pub(crate) fn is_owned(&self, id: &SandboxId) -> bool {
        hand::is_taken(&self.sandbox(id).join("lock"))
    }

    /// Removes the sandbox's directory. The record is removed last, because the user ID range is in use as
    /// long as the record exists.
    pub(crate) fn forget(&self, id: &SandboxId) -> Result<(), Error> {
        let path = self.sandbox(id);
        files::remove_shallow(&self.bundle(id), 1)?;
        files::remove_shallow(&self.channel(id), 0)?;
        // All remaining files, complete or partial, were written by this program or the OCI runtime.
        files::remove_files(&path, |name| name != "record.json")?;
        files::remove_file(&self.record(id))?;
        files::remove_directory(&path)
    }

    fn lowest_free_range(&self) -> Result<u32, Error> {
        let mut known = self.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut now, mut used) = (HashMap::new(), HashSet::new());
        for (id, directory) in self.directories()? {
            let sandbox = (id, directory);
            let range = match known.get(&sandbox) {
                Some(range) => Some(*range),
                None => self.load(&sandbox.0)?.map(|record| record.range),
            };
            if let Some(range) = range {
                used.insert(range);
                now.insert(sandbox, range);
            }
        }
        *known = now;
        let is_free = |number: &u32| !used.contains(number) || api::defence::is_off("C-37");
        (0..RANGES_MAX).find(is_free).ok_or_else(|| Error::Capacity {
            what: "a range of user ids",
            why: format!("all {RANGES_MAX} ranges are in use"),
        })
    }

    fn lock_ranges(&self) -> Result<File, Error> {
        let path = self.data.join("ranges.lock");
        let file = hand::open(&path)?;
        file.lock().map_err(|source| failed("lock", &path, source))?;
        Ok(file)
    }
}

impl OciRecord {
    /// Returns the host user ID of the sandbox's user 0.
    pub(crate) fn base(&self) -> u32 {
        RANGE_BASE + self.range * UID_RANGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dirs() -> (tempfile::TempDir, Dirs) {
        let home = tempfile::tempdir().unwrap();
        let dirs = Dirs::below(home.path().join("data"));
        dirs.prepare("runc").unwrap();
        (home, dirs)
    }

    #[test]
    fn ranges_are_disjoint_and_reused_only_after_the_end() {
        let (_home, dirs) = dirs();
        let [a, b, c] = ["a", "b", "c"].map(|text| text.parse::<SandboxId>().unwrap());
        let (first, _lock) = dirs.reserve(&a, "runc", false).unwrap();
        let (second, _lock) = dirs.reserve(&b, "runc", false).unwrap();
        assert_eq!(second.base() - first.base(), UID_RANGE);
        std::fs::write(dirs.sandbox(&a).join(".pid"), "half writt").unwrap();
        dirs.forget(&a).unwrap();
        let (third, _lock) = dirs.reserve(&c, "runc", false).unwrap();
        assert_eq!(third.range, first.range);
        let last = OciRecord { range: RANGES_MAX - 1, ..third };
        assert!(last.base().checked_add(UID_RANGE).is_some_and(|end| end < 1 << 31));
    }

    #[test]
    fn a_sandbox_is_in_one_hand() {
        let (_home, dirs) = dirs();
        let id: SandboxId = "a".parse().unwrap();
        let (record, lock) = dirs.reserve(&id, "runc", false).unwrap();
        assert!(matches!(dirs.reserve(&id, "runc", false), Err(Error::Exists(_))));
        assert!(dirs.is_owned(&id));
        assert!(dirs.take(&id).unwrap().is_none());
        drop(lock);
        assert!(!dirs.is_owned(&id));
        let _lock = dirs.take(&id).unwrap().unwrap();
        assert_eq!(dirs.load(&id).unwrap(), Some(record));
    }
}
