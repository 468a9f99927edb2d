//! What is written down here of sandboxes that are elsewhere, at an engine or rented: a directory for each, with a lock, and where it
//! is.
//!
//! The directory is made first and removed last, so whatever there may be of a sandbox is found by listing directories.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use api::SandboxId;

use crate::hand::{self, Lock};
use crate::{Error, files};

/// The file that says where there may be something of a sandbox.
const MADE: &str = "made";

/// The sandboxes of one backend and one data directory, and those of them that this process has in hand.
pub(crate) struct Written {
    home: PathBuf,
    locks: Mutex<HashMap<SandboxId, Lock>>,
}

impl Written {
    /// Opens, or makes, the list in this directory.
    pub fn open(home: PathBuf) -> Result<Self, Error> {
        files::directory(&home, 0o700)?;
        Ok(Self { home, locks: Mutex::default() })
    }

    /// Where it is kept.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// What is written down of a sandbox.
    pub fn directory(&self, id: &SandboxId) -> PathBuf {
        self.home.join(id.as_str())
    }

    fn locks(&self) -> MutexGuard<'_, HashMap<SandboxId, Lock>> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sandboxes of which something is written down.
    pub fn all(&self) -> Result<Vec<SandboxId>, Error> {
        let entries =
            std::fs::read_dir(&self.home).map_err(|source| files::failed("list", &self.home, source))?;
        Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
    }

    fn has(&self, id: &SandboxId) -> bool {
        self.directory(id).exists()
    }

    /// Writes down that from now on there may be something of a sandbox at this address.
    pub fn make(&self, id: &SandboxId, address: &str) -> Result<(), Error> {
        files::write(&self.directory(id).join(MADE), address)
    }

    /// Whether there may be something of a sandbox anywhere.
    pub fn is_made(&self, id: &SandboxId) -> bool {
        self.directory(id).join(MADE).exists()
    }

    /// Refuses to say anything of sandboxes that are elsewhere than here: it would be that they are gone.
    pub fn check_place(&self, here: &str, (name, variable): (&str, &str)) -> Result<(), Error> {
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

    /// Has what there may be of a sandbox removed where it is, and then removes what is written down of it.
    pub async fn teardown(
        &self,
        id: &SandboxId,
        remove: impl Future<Output = Result<(), Error>>,
    ) -> Result<(), Error> {
        match (self.has(id), self.is_made(id)) {
            (true, false) => {}
            (true, true) => remove.await?,
            // What is not written down was removed, or is a stranger's: a place that is away keeps nobody waiting for that.
            (false, _) => match remove.await {
                Ok(()) | Err(Error::Unavailable { .. }) => {}
                Err(error) => return Err(error),
            },
        }
        files::remove_shallow(&self.directory(id), 0)?;
        self.locks().remove(id);
        Ok(())
    }

    /// Whether a living process has a sandbox in hand.
    pub fn is_taken(&self, id: &SandboxId) -> bool {
        hand::is_taken(&self.directory(id).join("lock"))
    }

    /// Takes a sandbox in hand, where that was not done yet.
    pub fn take(&self, id: &SandboxId) -> Result<(), Error> {
        let mut locks = self.locks();
        if locks.contains_key(id) {
            return Ok(());
        }
        let directory = self.directory(id);
        // One that is not there was removed meanwhile.
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

    /// Makes the sandbox's directory and takes it in hand. An id in use is [`Error::Exists`].
    pub fn reserve(&self, id: &SandboxId) -> Result<(), Error> {
        let directory = self.directory(id);
        match std::fs::create_dir(&directory) {
            Ok(()) => self.take(id),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Err(Error::Exists(id.clone())),
            Err(error) => Err(files::failed("create directory", &directory, error)),
        }
    }
}

/// The first address at which sandboxes are of which something is written down in a directory, if there are any.
pub(crate) fn address_in(home: &Path) -> Option<String> {
    std::fs::read_dir(home).ok()?.flatten().find_map(|entry| {
        let address = std::fs::read_to_string(entry.path().join(MADE)).ok()?;
        (!address.is_empty()).then_some(address)
    })
}

/// What tells the sandboxes of this data directory from others' at the same place: a random name, written down once.
pub(crate) fn owner(home: &Path) -> Result<String, Error> {
    let path = home.join("owner");
    if let Some(text) = files::read_if_there(&path)? {
        return Ok(text);
    }
    let text = random_name()?;
    // Of two that write at once, one is first, and both use its name.
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

/// Sixteen hexadecimal digits that nobody can guess.
pub(crate) fn random_name() -> Result<String, Error> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Error::System { act: "read random bytes".into(), source: error.into() })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
