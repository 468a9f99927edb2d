//! Local records of sandboxes that run elsewhere, on an engine or in a rented workspace. Each sandbox has a
//! directory that contains a lock and the backend's address.
//!
//! The directory is created first and removed last, so listing the directories finds every sandbox that may
//! exist on the backend.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use api::SandboxId;

use crate::hand::{self, Lock};
use crate::{Error, files};

/// Name of the file that holds the backend address where the sandbox may exist.
const MADE: &str = "made";

/// Records of the sandboxes that one data directory has on one backend, with the locks that this process
/// holds.
pub(crate) struct BackendRecords {
    home: PathBuf,
    locks: Mutex<HashMap<SandboxId, Lock>>,
}

impl BackendRecords {
    /// Opens the records in this directory, and creates the directory if needed.
    pub fn open(home: PathBuf) -> Result<Self, Error> {
        files::directory(&home, 0o700)?;
        Ok(Self { home, locks: Mutex::default() })
    }

    /// Returns the directory of the records.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Returns the directory of a sandbox's record.
    pub fn directory(&self, id: &SandboxId) -> PathBuf {
        self.home.join(id.as_str())
    }

    fn locks(&self) -> MutexGuard<'_, HashMap<SandboxId, Lock>> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the sandboxes that have a record.
    pub fn all(&self) -> Result<Vec<SandboxId>, Error> {
        let entries =
            std::fs::read_dir(&self.home).map_err(|source| files::failed("list", &self.home, source))?;
        Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
    }

    fn has(&self, id: &SandboxId) -> bool {
        self.directory(id).exists()
    }

    /// Records that the sandbox may exist at this address from now on.
    pub fn make(&self, id: &SandboxId, address: &str) -> Result<(), Error> {
        files::write(&self.directory(id).join(MADE), address)
    }

    /// Returns true if the sandbox may exist on a backend.
    pub fn is_made(&self, id: &SandboxId) -> bool {
        self.directory(id).join(MADE).exists()
    }

    /// Fails if any sandbox was created at an address other than `here`. Without this check, such a sandbox
    /// would be reported as gone. `name` is the backend's name, and `variable` is the environment variable
    /// that holds its address. Both are used in the error.
    pub fn check_place(&self, here: &str, name: &str, variable: &str) -> Result<(), Error> {
        for id in self.all()? {
            let made = files::read_if_there(&self.directory(&id).join(MADE))?.unwrap_or_default();
            if !made.is_empty() && made != here {
                return Err(Error::Unavailable {
                    what: format!("the address of {name} has changed"),
                    why: format!(
                        "sandboxes that this machine created are at {made}, but the configured address is now {here}"
                    ),
                    fix: format!(
                        "Set {variable} to {made}, or stop the sandboxes at that address and remove {}.",
                        self.home.display()
                    ),
                });
            }
        }
        Ok(())
    }

    /// Runs `remove`, which removes the sandbox from the backend, and then removes the sandbox's record.
    pub async fn teardown(
        &self,
        id: &SandboxId,
        remove: impl Future<Output = Result<(), Error>>,
    ) -> Result<(), Error> {
        match (self.has(id), self.is_made(id)) {
            (true, false) => {}
            (true, true) => remove.await?,
            // Without a record, the sandbox has already been removed or belongs to a different data
            // directory. Stopping such a sandbox must not fail because its backend is unavailable.
            (false, _) => match remove.await {
                Ok(()) | Err(Error::Unavailable { .. }) => {}
                Err(error) => return Err(error),
            },
        }
        files::remove_shallow(&self.directory(id), 0)?;
        self.locks().remove(id);
        Ok(())
    }

    /// Returns true if a living process owns the sandbox.
    pub fn is_taken(&self, id: &SandboxId) -> bool {
        hand::is_taken(&self.directory(id).join("lock"))
    }

    /// Acquires ownership of a sandbox, unless this process already owns it.
    pub fn take(&self, id: &SandboxId) -> Result<(), Error> {
        let mut locks = self.locks();
        if locks.contains_key(id) {
            return Ok(());
        }
        let directory = self.directory(id);
        // If the directory does not exist, the sandbox was removed in the meantime.
        if !directory.exists() {
            return Err(Error::NotFound(id.clone()));
        }
        let lock = hand::take(&directory.join("lock"))?.ok_or_else(|| Error::System {
            act: format!("take over sandbox {id}"),
            source: std::io::Error::other("another running process owns the sandbox"),
        })?;
        locks.insert(id.clone(), lock);
        Ok(())
    }

    /// Creates the sandbox's directory and acquires ownership of the sandbox. Returns [`Error::Exists`] if
    /// the ID is in use.
    pub fn reserve(&self, id: &SandboxId) -> Result<(), Error> {
        let directory = self.directory(id);
        match std::fs::create_dir(&directory) {
            Ok(()) => self.take(id),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Err(Error::Exists(id.clone())),
            Err(error) => Err(files::failed("create directory", &directory, error)),
        }
    }
}

/// Returns a backend address where sandboxes recorded in this directory may exist, or `None` if no such
/// sandbox is recorded.
pub(crate) fn address_in(home: &Path) -> Option<String> {
    std::fs::read_dir(home).ok()?.flatten().find_map(|entry| {
        let address = std::fs::read_to_string(entry.path().join(MADE)).ok()?;
        (!address.is_empty()).then_some(address)
    })
}

/// Returns the random name that distinguishes the sandboxes of this data directory from other sandboxes on
/// the same backend. The name is created once and stored.
pub(crate) fn owner(home: &Path) -> Result<String, Error> {
    let path = home.join("owner");
    if let Some(text) = files::read_if_there(&path)? {
        return Ok(text);
    }
    let text = random_name()?;
    // Link the file instead of renaming it: if two processes race, the first one wins and both use its name.
    let fresh = home.join(format!("owner.{text}"));
    files::write(&fresh, &text)?;
    let linked = std::fs::hard_link(&fresh, &path);
    files::remove_file(&fresh)?;
    match linked {
        Ok(()) => Ok(text),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => files::read(&path),
        Err(error) => Err(files::failed("write", &path, error)),
    }
}

/// Returns an unpredictable random name of sixteen hexadecimal digits.
pub(crate) fn random_name() -> Result<String, Error> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Error::System { act: "read random bytes".into(), source: error.into() })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
