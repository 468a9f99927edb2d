//! Counts the bytes that each project stores on this machine, including uploads in progress.
//!
//! Datasets, session files and artifacts count together against the project's `disk_bytes` quota (H-40). An
//! upload counts from its first byte, or with its full size if its length is known. Even concurrent uploads
//! therefore cannot exceed the quota. A project's usage is measured on disk when the project is first used,
//! and is tracked in memory from then on. All code that writes or removes an object must update the ledger.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::account::Quota;
use api::{ErrorCode, Layer, Ran, Retry};
use tokio::sync::OnceCell;

use crate::error::Error;

/// Number of bytes that are counted for each object in addition to its content, because a file uses an inode
/// and at least one block.
pub const OBJECT_BYTES: u64 = 4096;

/// The byte counts of all projects.
pub struct Ledger {
    data: PathBuf,
    projects: Mutex<HashMap<String, Arc<Project>>>,
    /// Number of bytes that all projects are writing at this moment, which the disk's free space does not
    /// reflect yet.
    writing: Arc<AtomicU64>,
}

/// The byte count of one project.
#[derive(Debug)]
pub struct Project {
    name: String,
    bytes: AtomicU64,
    quota_bytes: AtomicU64,
    counted: OnceCell<()>,
}

/// A reservation for an upload in progress. Dropping it before [`Charge::keep`] releases the bytes.
#[derive(Debug)]
pub struct Charge {
    project: Arc<Project>,
    /// Number of bytes counted for the project so far.
    charged_bytes: u64,
    /// Number of bytes received so far, plus [`OBJECT_BYTES`].
    used_bytes: u64,
}

impl Ledger {
    /// Creates the ledger of a data directory. No project is measured yet.
    pub fn new(data: &Path) -> Self {
        Self { data: data.to_owned(), projects: Mutex::default(), writing: Arc::default() }
    }

    /// Returns the counter of the bytes that all projects are currently writing.
    pub fn writing(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.writing)
    }

    /// Sets the quota of a project. Data that is already stored is kept, even if it exceeds the quota.
    pub fn set_quota(&self, project: &str, bytes: u64) {
        self.project(project).quota_bytes.store(bytes, Ordering::Release);
    }

    /// Returns a project. Measures the project's disk usage first if it has not been measured yet.
    ///
    /// # Errors
    /// Returns an error if a file system operation fails.
    pub async fn counted(&self, project: &str) -> Result<Arc<Project>, Error> {
        let found = self.project(project);
        found.counted.get_or_try_init(|| self.count(&found)).await?;
        Ok(found)
    }

    fn project(&self, name: &str) -> Arc<Project> {
        let quota_bytes = || AtomicU64::new(Quota::default().disk_bytes);
        let fresh = || {
            let (name, counted) = (name.to_owned(), OnceCell::new());
            Arc::new(Project { name, bytes: AtomicU64::new(0), quota_bytes: quota_bytes(), counted })
        };
        Arc::clone(self.projects().entry(name.to_owned()).or_insert_with(fresh))
    }

    /// Measures a project's usage on disk. The project's objects do not change during the measurement,
    /// because every write waits for it.
    async fn count(&self, project: &Project) -> Result<(), Error> {
        let below = ["datasets", "sessions", "artifacts/kept", "artifacts/wanted"];
        let places = below.map(|place| self.data.join(place).join(&project.name));
        let counting = move || places.iter().try_fold(0, |sum, place| Ok(sum + count(place)?));
        let bytes: io::Result<u64> =
            tokio::task::spawn_blocking(counting).await.map_err(io::Error::from).and_then(|bytes| bytes);
        let failed = |source| Error::System { act: "measure the disk usage of a project".into(), source };
        project.bytes.store(bytes.map_err(failed)?, Ordering::Release);
        Ok(())
    }

    fn projects(&self) -> MutexGuard<'_, HashMap<String, Arc<Project>>> {
        self.projects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Project {
    /// Returns true if an object of this size fits into the quota.
    pub fn has_room(&self, bytes: u64) -> bool {
        let (now, most) = (self.bytes.load(Ordering::Acquire), self.quota_bytes.load(Ordering::Acquire));
        now.saturating_add(bytes).saturating_add(OBJECT_BYTES) <= most || api::defence::is_off("H-40")
    }

    /// Counts additional bytes, which are stored regardless of the quota.
    pub fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Subtracts bytes that were removed.
    pub fn subtract(&self, bytes: u64) {
        let less = |now: u64| Some(now.saturating_sub(bytes));
        let _ = self.bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    }

    /// Starts counting an upload.
    ///
    /// # Errors
    /// Returns `quota_exceeded` if the project's quota would be exceeded.
    pub fn charge(self: &Arc<Self>) -> Result<Charge, Error> {
        self.reserve(OBJECT_BYTES)?;
        Ok(Charge { project: Arc::clone(self), charged_bytes: OBJECT_BYTES, used_bytes: OBJECT_BYTES })
    }

    fn reserve(&self, bytes: u64) -> Result<(), Error> {
        let most = self.quota_bytes.load(Ordering::Acquire);
        let more = |now: u64| {
            let after = now.saturating_add(bytes);
            (after <= most || api::defence::is_off("H-40")).then_some(after)
        };
        match self.bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, more) {
            Ok(_) => Ok(()),
            Err(now) => Err(Error::Request(self.exceeded(now, most))),
        }
    }

    fn exceeded(&self, now: u64, most: u64) -> api::Error {
        let name = &self.name;
        api::Error {
            code: ErrorCode::QuotaExceeded,
            message: format!(
                "project {name} uses {now} bytes on this machine, including uploads in progress; its disk_bytes quota is {most}"
            ),
            layer: Layer::Policy,
            ran: Ran::No,
            retry: Retry::Useless,
            fix: format!(
                "Remove datasets, session artifacts or sessions that are not needed, or ask an administrator to raise the quota: \
                 `bellglass project set {name} --disk SIZE`."
            ),
        }
    }
}

impl Charge {
    /// Reserves the full size of an object before its content arrives.
    ///
    /// # Errors
    /// Returns `quota_exceeded` if the project's quota would be exceeded.
    pub fn prepay(&mut self, size_bytes: u64) -> Result<(), Error> {
        let whole = size_bytes.saturating_add(OBJECT_BYTES);
        if let Some(more) = whole.checked_sub(self.charged_bytes) {
            self.project.reserve(more)?;
            self.charged_bytes = whole;
        }
        Ok(())
    }

    /// Counts bytes that have been received.
    ///
    /// # Errors
    /// Returns `quota_exceeded` if the project's quota would be exceeded.
    pub fn grow(&mut self, bytes: u64) -> Result<(), Error> {
        let used = self.used_bytes.saturating_add(bytes);
        if let Some(more) = used.checked_sub(self.charged_bytes) {
            self.project.reserve(more)?;
            self.charged_bytes = used;
        }
        self.used_bytes = used;
        Ok(())
    }

    /// Ends the upload. The received bytes stay counted until the object is removed.
    pub fn keep(mut self) {
        self.project.subtract(self.charged_bytes - self.used_bytes);
        self.charged_bytes = 0;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.project.subtract(self.charged_bytes);
    }
}

/// Returns true if an operation failed because the quota is used up or the disk is full.
pub fn is_refused(error: &Error) -> bool {
    match error {
        Error::Request(error) => error.code == ErrorCode::QuotaExceeded,
        Error::Runtime(runtime::Error::Capacity { .. }) => true,
        Error::Runtime(_)
        | Error::Guest(_)
        | Error::Lost(_)
        | Error::Protocol(_)
        | Error::Deadline { .. }
        | Error::Posture(_)
        | Error::System { .. } => crate::objects::is_full(error),
    }
}

/// Returns the number of bytes to count for all objects below a directory. Also removes partial files, which
/// killed servers left behind: no upload begins before this count is complete.
fn count(directory: &Path) -> io::Result<u64> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        other => other?,
    };
    let mut bytes = 0;
    for entry in entries {
        let entry = entry?;
        let found = entry.metadata()?;
        if found.is_dir() {
            bytes += count(&entry.path())?;
        } else if entry.file_name().to_string_lossy().contains('#') {
            fs::remove_file(entry.path())?;
        } else {
            bytes += found.len() + OBJECT_BYTES;
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code<T>(result: Result<T, Error>) -> ErrorCode {
        result.err().unwrap().to_api().code
    }

    #[tokio::test]
    async fn what_is_on_its_way_counts_and_what_never_came_is_given_back() {
        // H-40
        let data = tempfile::tempdir().unwrap();
        let ledger = Ledger::new(data.path());
        ledger.set_quota("p", 3 * OBJECT_BYTES + 100);
        let project = ledger.counted("p").await.unwrap();
        let mut first = project.charge().unwrap();
        first.grow(60).unwrap();
        let mut second = project.charge().unwrap();
        second.grow(40).unwrap();
        assert_eq!(code(second.grow(OBJECT_BYTES + 1)), ErrorCode::QuotaExceeded);
        second.grow(OBJECT_BYTES).unwrap();
        assert!(!project.has_room(0));
        drop(second);
        first.keep();
        assert_eq!(project.bytes.load(Ordering::Acquire), OBJECT_BYTES + 60);
        let mut whole = project.charge().unwrap();
        assert_eq!(code(whole.prepay(2 * OBJECT_BYTES)), ErrorCode::QuotaExceeded);
        whole.prepay(1000).unwrap();
        whole.grow(10).unwrap();
        whole.keep();
        assert_eq!(project.bytes.load(Ordering::Acquire), 2 * OBJECT_BYTES + 70);
        project.subtract(u64::MAX);
        assert_eq!(project.bytes.load(Ordering::Acquire), 0);
    }

    #[tokio::test]
    async fn a_project_is_counted_on_the_disk_once_without_what_was_left_half_written() {
        let data = tempfile::tempdir().unwrap();
        for (path, length) in [
            ("datasets/p/a/x", 10),
            ("sessions/p/s/files/1", 20),
            ("artifacts/kept/p/s/e/0", 30),
            ("datasets/q/a/x", 40),
        ] {
            let path = data.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, vec![0; length]).unwrap();
        }
        let left = data.path().join("datasets/p/a/y#1");
        fs::write(&left, "half").unwrap();
        let ledger = Ledger::new(data.path());
        let project = ledger.counted("p").await.unwrap();
        assert_eq!(project.bytes.load(Ordering::Acquire), 60 + 3 * OBJECT_BYTES);
        assert!(!left.exists());
        fs::write(data.path().join("datasets/p/a/z"), "unseen").unwrap();
        assert_eq!(ledger.counted("p").await.unwrap().bytes.load(Ordering::Acquire), 60 + 3 * OBJECT_BYTES);
    }
}
