//! The journal: one file for each sandbox that this machine is responsible for, written before the sandbox is
//! created.
//!
//! ```text
//! <data>/node/lock           locked by the only server that uses this data directory
//! <data>/node/<id>.packages  the packages that the sandbox received, one line of JSON each
//! <data>/node/<id>.json      the record of the sandbox, from its request until its end is acknowledged
//! <data>/node/<id>.copy      a copy of the record
//! <data>/node/<id>.damaged   an unreadable record, kept for the operator
//! ```
//!
//! If a record cannot be read, its copy is used. If the copy cannot be read either, the record is set aside,
//! and its sandbox is left alone if it is running: a damaged file must not end a user's work (attack L-13).
//!
//! A record is replaced atomically. If the disk is too full for that, the file is overwritten in place, which
//! needs no new space: each record has spare space, so that the end of a sandbox can always be recorded.
//!
//! | module | contents |
//! |---|---|
//! | `record` | the journal entry of one sandbox |
//! | `ports` | access to the ports of a sandbox, which is part of its record |
//! | `packages` | the packages that each sandbox received |
//! | `inventory` | the sandboxes and layers of a journal, read while no server is running |

mod inventory;
mod packages;
mod ports;
mod record;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use api::SandboxId;
use host::error::Error;

pub use inventory::{in_use, kept};
pub use ports::Ports;
pub use record::{AutoResume, SandboxRecord};

/// Minimum spare space in a record in bytes: enough to add an end reason and an error message.
const SPARE_BYTES: usize = 2048;
/// Maximum time to wait for the lock. If a server is killed just after it forked a child, the child holds the
/// lock until it executes the runtime.
const LOCK_WITHIN: Duration = Duration::from_secs(2);
const LOCK_EVERY: Duration = Duration::from_millis(20);
/// Minimum time for which a damaged record is kept, so that the operator can inspect it: one week.
const ASIDE_FOR: Duration = Duration::from_secs(7 * 24 * 3600);
/// Suffixes of records, of their copies, and of damaged records.
const RECORD: &str = "json";
const COPY: &str = "copy";
const ASIDE: &str = "damaged";
/// Block size of the file system. The size of a record is a multiple of it.
const BLOCK_BYTES: usize = 4096;

/// The records of one data directory.
#[derive(Debug)]
pub struct Journal {
    directory: PathBuf,
    _lock: File,
}

impl Journal {
    /// Opens the journal and locks it. Only one server may write to it.
    ///
    /// # Errors
    /// Another server holds the lock, or the directory cannot be written.
    pub fn open(data: &Path) -> Result<Self, Error> {
        let directory = data.join("node");
        fs::create_dir_all(&directory).map_err(failed("create", &directory))?;
        let path = directory.join("lock");
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed("open", &path))?;
        let since = Instant::now();
        let locked = loop {
            match lock.try_lock() {
                Err(fs::TryLockError::WouldBlock) if since.elapsed() < LOCK_WITHIN => {
                    std::thread::sleep(LOCK_EVERY);
                }
                other => break other,
            }
        };
        match locked {
            Ok(()) => Ok(Self { directory, _lock: lock }),
            Err(fs::TryLockError::WouldBlock) => Err(Error::Request(api::Error {
                code: api::ErrorCode::Conflict,
                message: format!("another server is using {}", data.display()),
                layer: api::Layer::Platform,
                ran: api::Ran::No,
                retry: api::Retry::Safe,
                fix:
                    "Stop the other server first, or give this server a separate data directory with --data."
                        .into(),
            })),
            Err(fs::TryLockError::Error(error)) => Err(failed("lock", &path)(error)),
        }
    }

    /// Returns all readable records, including records that were restored from their copies. Unreadable
    /// records are set aside.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn load(&self) -> Result<Vec<SandboxRecord>, Error> {
        let mut records = Vec::new();
        let ids: BTreeSet<_> =
            named(&self.directory, RECORD)?.into_iter().chain(named(&self.directory, COPY)?).collect();
        for id in ids {
            let path = self.path(&id);
            if let Some(record) = read(&path, &id) {
                records.push(record);
                continue;
            }
            if api::defence::is_off("L-13") {
                self.remove(&id)?;
                continue;
            }
            let aside = self.named(&id, ASIDE);
            match fs::rename(&path, &aside) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other.map_err(failed("set aside", &path))?,
            }
            if let Some(record) = read(&self.named(&id, COPY), &id) {
                tracing::error!(sandbox = %id, "sandbox record is unreadable, restored from its copy; the unreadable record is kept as {aside:?}");
                self.save(&record)?;
                records.push(record);
            } else {
                tracing::error!(sandbox = %id, "sandbox record and its copy are both unreadable; the record is kept as {aside:?}");
                self.remove(&id)?;
            }
        }
        Ok(records)
    }

    /// Returns the sandboxes whose record is lost: it was set aside as damaged, and no valid record exists.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn lost(&self) -> Result<BTreeSet<SandboxId>, Error> {
        lost(&self.directory)
    }

    /// Removes records that were set aside more than a week ago, unless `is_there` returns true for their
    /// sandboxes.
    ///
    /// # Errors
    /// A file system operation failed.
    pub fn tidy(&self, is_there: impl Fn(&SandboxId) -> bool) -> Result<(), Error> {
        for id in named(&self.directory, ASIDE)? {
            let path = self.named(&id, ASIDE);
            let age = fs::metadata(&path).and_then(|found| found.modified()).map(|at| at.elapsed());
            if matches!(age, Ok(Ok(age)) if age > ASIDE_FOR) && !is_there(&id) {
                fs::remove_file(&path).map_err(failed("remove", &path))?;
            }
        }
        Ok(())
    }

    /// Writes a record and its copy. Each file is replaced atomically.
    ///
    /// # Errors
    /// A file system operation failed. The previous record is then unchanged, unless an in-place overwrite
    /// failed.
    pub fn save(&self, record: &SandboxRecord) -> Result<(), Error> {
        let id = &record.sandbox.id;
        let path = self.path(id);
        let mut text = serde_json::to_vec(record).map_err(io::Error::from).map_err(failed("write", &path))?;
        let whole = (text.len() + SPARE_BYTES).next_multiple_of(BLOCK_BYTES);
        let length = text.len();
        text.resize(whole, b' ');
        let fresh = self.named(id, "part");
        let write = |path: &Path| match replace(&fresh, path, &text) {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                let _ = fs::remove_file(&fresh);
                overwrite(path, text.clone(), length)
            }
            other => other,
        };
        write(&path).map_err(failed("write", &path))?;
        let copy = self.named(id, COPY);
        if let Err(error) = write(&copy) {
            // An outdated copy must not remain: it could later be restored as the record.
            tracing::warn!(sandbox = %id, %error, "cannot write the copy of a sandbox record");
            let _ = fs::remove_file(&copy);
        }
        Ok(())
    }

    /// Removes all files of a sandbox except a damaged record. Succeeds if there are none.
    ///
    /// # Errors
    /// A file system operation failed.
    pub fn remove(&self, id: &SandboxId) -> Result<(), Error> {
        for path in [self.packages_path(id), self.named(id, COPY), self.path(id)] {
            match fs::remove_file(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other.map_err(failed("remove", &path))?,
            }
        }
        Ok(())
    }

    fn path(&self, id: &SandboxId) -> PathBuf {
        self.named(id, RECORD)
    }

    fn named(&self, id: &SandboxId, suffix: &str) -> PathBuf {
        self.directory.join(format!("{id}.{suffix}"))
    }
}

fn lost(directory: &Path) -> Result<BTreeSet<SandboxId>, Error> {
    let known: BTreeSet<_> = named(directory, RECORD)?.into_iter().collect();
    Ok(named(directory, ASIDE)?.into_iter().filter(|id| !known.contains(id)).collect())
}

/// Reads a record. Returns `None` if the file is unreadable or belongs to a different sandbox.
fn read(path: &Path, id: &SandboxId) -> Option<SandboxRecord> {
    let record: SandboxRecord = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    (record.sandbox.id == *id).then_some(record)
}

/// Returns the sandboxes that have a file with this suffix.
fn named(directory: &Path, suffix: &str) -> Result<Vec<SandboxId>, Error> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(failed("list", directory))?,
    };
    let mut ids = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed("list", directory))?.file_name();
        let id = name.to_str().and_then(|name| name.strip_suffix(suffix)?.strip_suffix('.'));
        ids.extend(id.and_then(|id| id.parse::<SandboxId>().ok()));
    }
    Ok(ids)
}

fn replace(fresh: &Path, path: &Path, text: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(fresh)?;
    file.write_all(text)?;
    fs::rename(fresh, path)
}

/// Overwrites a record in place, without allocating disk space. The file must exist and be large enough.
fn overwrite(path: &Path, mut text: Vec<u8>, length: usize) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    let room = usize::try_from(file.metadata()?.len()).unwrap_or(0);
    if length > room {
        return Err(io::ErrorKind::StorageFull.into());
    }
    text.resize(room, b' ');
    file.write_all_at(&text, 0)
}

fn failed<'a>(act: &'a str, path: &'a Path) -> impl FnOnce(io::Error) -> Error + use<'a> {
    move |source| Error::System { act: format!("{act} {}", path.display()), source }
}
