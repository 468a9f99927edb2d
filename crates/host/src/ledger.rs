//! How many bytes each project keeps on this machine: one count of all that is retained and of all that is on its way.
//!
//! Datasets, what sessions keep, and artifacts are counted together, against the project's quota of `disk_bytes` (H-40). What is on
//! its way counts from its first byte, or as a whole where its length is known; so uploads at once cannot take more than one after
//! the other. A project is counted on the disk when it is first asked about, and from then on in memory: everything that writes or
//! removes an object says so here.

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

/// What each object counts beside its bytes: a file takes an inode and at least a block.
pub const OBJECT_BYTES: u64 = 4096;

/// The counts of all projects.
pub struct Ledger {
    data: PathBuf,
    projects: Mutex<HashMap<String, Arc<Project>>>,
    /// Bytes that are being written at this moment, by all: they are not seen in what the disk has free.
    writing: Arc<AtomicU64>,
}

/// The count of one project.
#[derive(Debug)]
pub struct Project {
    name: String,
    bytes: AtomicU64,
    quota_bytes: AtomicU64,
    counted: OnceCell<()>,
}

/// Bytes on their way, given back when this is dropped before they are kept.
#[derive(Debug)]
pub struct Charge {
    project: Arc<Project>,
    /// What is counted.
    charged_bytes: u64,
    /// What came.
    used_bytes: u64,
}

impl Ledger {
    /// The ledger of a data directory; nothing is counted yet.
    pub fn new(data: &Path) -> Self {
        Self { data: data.to_owned(), projects: Mutex::default(), writing: Arc::default() }
    }

    /// What is being written by all.
    pub fn writing(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.writing)
    }

    /// A project may keep so many bytes from now on. What it has already stays.
    pub fn set_quota(&self, project: &str, bytes: u64) {
        self.project(project).quota_bytes.store(bytes, Ordering::Release);
    }

    /// A project that has been counted.
    ///
    /// # Errors
    /// What the file system said.
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

    /// Counts what a project has on the disk. Nothing of it is written meanwhile: whoever wants to waits for this.
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
    /// Whether so many bytes more fit.
    pub fn has_room(&self, bytes: u64) -> bool {
        let (now, most) = (self.bytes.load(Ordering::Acquire), self.quota_bytes.load(Ordering::Acquire));
        now.saturating_add(bytes).saturating_add(OBJECT_BYTES) <= most || api::defence::is_off("H-40")
    }

    /// Counts bytes that are there in any case.
    pub fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Counts bytes that are gone.
    pub fn subtract(&self, bytes: u64) {
        let less = |now: u64| Some(now.saturating_sub(bytes));
        let _ = self.bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    }

    /// Begins to count an object that is on its way.
    ///
    /// # Errors
    /// `quota_exceeded`.
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
    /// Counts an object of this length at once, before any of it comes.
    ///
    /// # Errors
    /// `quota_exceeded`.
    pub fn prepay(&mut self, size_bytes: u64) -> Result<(), Error> {
        let whole = size_bytes.saturating_add(OBJECT_BYTES);
        if let Some(more) = whole.checked_sub(self.charged_bytes) {
            self.project.reserve(more)?;
            self.charged_bytes = whole;
        }
        Ok(())
    }

    /// Counts bytes that came.
    ///
    /// # Errors
    /// `quota_exceeded`.
    pub fn grow(&mut self, bytes: u64) -> Result<(), Error> {
        let used = self.used_bytes.saturating_add(bytes);
        if let Some(more) = used.checked_sub(self.charged_bytes) {
            self.project.reserve(more)?;
            self.charged_bytes = used;
        }
        self.used_bytes = used;
        Ok(())
    }

    /// What came is kept: it counts until it is removed.
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

/// Whether something was refused because a quota or the disk has no room for it.
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

/// The bytes of all objects below a directory. What a killed server left half-written is removed: it is nobody's.
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
