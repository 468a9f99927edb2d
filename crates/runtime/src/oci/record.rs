//! What is written down of a sandbox before anything of it is made, and who has it in hand.
//!
//! `<data>/sandboxes/<id>/record.json` says which runtime, which range of user ids, which boot, which loop device,
//! and, once known, which process. The directory is made first and removed last, so whatever was made is found by
//! listing directories, and a range of user ids is free again only when nothing can own a file in it any more.
//!
//! `<data>/sandboxes/<id>/lock` is locked by the process that has the sandbox in hand.

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

/// The first host id given to sandboxes: above what people, system users and the usual subordinate ranges use.
const RANGE_BASE: u32 = 1 << 30;
/// Ranges on one machine; the last ends below 2^31, above which some programs take ids for negative numbers.
const RANGES_MAX: u32 = 16_000;
/// The mode of directories that a sandbox's root walks through and must not list.
const WALKED: u32 = 0o711;

/// Where everything is kept.
#[derive(Clone, Debug)]
pub struct Dirs {
    /// The data directory. Its parents must let every user through.
    pub data: PathBuf,
    ranges: Ranges,
}

/// The ranges of sandboxes that were looked at before, by id and directory: that of a sandbox never changes, and reading a thousand
/// records takes longer than all the rest of a start's own work.
type Ranges = Arc<Mutex<HashMap<(SandboxId, u64), u32>>>;

/// What is written down of one sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The name of the runtime that made it.
    pub runtime: String,
    /// The number of its range of user ids.
    pub range: u32,
    /// The boot in which it was made; after another one nothing of it runs.
    pub boot: String,
    /// Whether process 1 may own files on behalf of others.
    #[serde(rename = "unpacks")]
    pub owns_files: bool,
    /// The number of the loop device under its disk.
    pub device: Option<u32>,
    /// Process 1, once it runs.
    pub process: Option<Identity>,
    /// Whether its end has been asked for.
    pub stopping: bool,
}

impl Dirs {
    /// Everything below this directory.
    pub fn below(data: impl Into<PathBuf>) -> Self {
        Self { data: data.into(), ranges: Ranges::default() }
    }

    /// Makes the directories that all sandboxes share.
    pub(crate) fn prepare(&self, runtime: &str) -> Result<(), Error> {
        fs::create_dir_all(&self.data).map_err(|source| failed("create directory", &self.data, source))?;
        files::set_mode(&self.data, WALKED)?;
        files::directory(&self.sandboxes(), WALKED)?;
        files::directory(&self.data.join("runtime"), 0o700)?;
        files::directory(&self.states(runtime), 0o700)
    }

    /// Where the OCI runtime of this name keeps what it knows of this sandbox: a place of its own for each, so that
    /// all of it goes by name, whatever the runtime calls its files.
    pub(crate) fn state(&self, runtime: &str, id: &SandboxId) -> PathBuf {
        self.states(runtime).join(id.as_str())
    }

    /// Everything of one sandbox.
    pub(crate) fn sandbox(&self, id: &SandboxId) -> PathBuf {
        self.sandboxes().join(id.as_str())
    }

    /// Where blank disks are kept.
    pub(crate) fn blanks(&self) -> PathBuf {
        self.data.join("disks")
    }

    /// The file under a sandbox's disk.
    pub(crate) fn disk(&self, id: &SandboxId) -> PathBuf {
        self.sandbox(id).join("disk.img")
    }

    /// What the OCI runtime is given.
    pub(crate) fn bundle(&self, id: &SandboxId) -> PathBuf {
        self.sandbox(id).join("bundle")
    }

    /// The directory in which a sandbox's socket is.
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

    /// The ids of all sandboxes that have a directory.
    pub(crate) fn ids(&self) -> Result<Vec<SandboxId>, Error> {
        Ok(self.directories()?.into_iter().map(|(id, _)| id).collect())
    }

    /// Likewise, with the number that the file system has given each directory.
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

    /// What is written down of a sandbox, if it is known.
    pub(crate) fn load(&self, id: &SandboxId) -> Result<Option<Record>, Error> {
        let Some(text) = files::read_if_there(&self.record(id))? else { return Ok(None) };
        let record = serde_json::from_str(&text).map_err(|source| {
            failed("understand", &self.record(id), io::Error::new(ErrorKind::InvalidData, source))
        })?;
        Ok(Some(record))
    }

    /// Writes down what is known now.
    pub(crate) fn save(&self, id: &SandboxId, record: &Record) -> Result<(), Error> {
        let text = serde_json::to_string(record).map_err(|source| {
            failed("write", &self.record(id), io::Error::new(ErrorKind::InvalidData, source))
        })?;
        files::replace(&self.record(id), &text)
    }

    /// Makes the sandbox's directory, takes it in hand, and writes its record with the lowest free range.
    /// An id in use is [`Error::Exists`], and that sandbox is not touched.
    pub(crate) fn reserve(
        &self,
        id: &SandboxId,
        runtime: &str,
        owns_files: bool,
    ) -> Result<(Record, Lock), Error> {
        let path = self.sandbox(id);
        let _ranges = self.lock_ranges()?;
        match DirBuilder::new().mode(WALKED).create(&path) {
            Ok(()) => files::set_mode(&path, WALKED)?,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(Error::Exists(id.clone())),
            Err(error) => return Err(failed("create directory", &path, error)),
        }
        let made = self.fill(id, runtime, owns_files);
        if made.is_err() {
            // Nothing but these files exists yet, so this is the whole teardown; its failure would add nothing.
            let _ = files::remove_shallow(&path, 0);
        }
        made
    }

    fn fill(&self, id: &SandboxId, runtime: &str, owns_files: bool) -> Result<(Record, Lock), Error> {
        let lock = self.take(id)?.ok_or_else(|| Error::Exists(id.clone()))?;
        let boot = crate::oci::process::boot_id()?;
        let range = self.lowest_free_range()?;
        let record = Record {
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

    /// Takes a sandbox in hand, unless a living process has it.
    pub(crate) fn take(&self, id: &SandboxId) -> Result<Option<Lock>, Error> {
        hand::take(&self.sandbox(id).join("lock"))
    }

    /// Whether a living process has the sandbox in hand. Asks without locking, so nobody is kept from taking it.
    pub(crate) fn is_owned(&self, id: &SandboxId) -> bool {
        hand::is_taken(&self.sandbox(id).join("lock"))
    }

    /// Removes the directory, the record last: as long as it is there the range is in use.
    pub(crate) fn forget(&self, id: &SandboxId) -> Result<(), Error> {
        let path = self.sandbox(id);
        files::remove_shallow(&self.bundle(id), 1)?;
        files::remove_shallow(&self.channel(id), 0)?;
        // Whatever else is there is a file of ours or of the OCI runtime's, whole or half written.
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

impl Record {
    /// The host id that is user 0 inside.
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
        let last = Record { range: RANGES_MAX - 1, ..third };
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
