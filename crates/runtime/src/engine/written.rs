//! What is written down here of an engine's sandboxes: a directory for each, with a lock, and where the engine is that has it.
//!
//! The directory is made first and removed last, so whatever an engine may have of a sandbox is found by listing directories.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{MutexGuard, PoisonError};

use api::SandboxId;

use super::{Engine, Kind, Place};
use crate::hand::{self, Lock};
use crate::{Error, Runtime as _, files};

/// The file that says that an engine may have something of a sandbox.
pub(super) const MADE: &str = "made";

impl Engine {
    /// The engine of this kind on which sandboxes of this data directory are, wherever an engine is found now; nothing if there are none.
    pub fn of_before(kind: Kind, data: &std::path::Path) -> Option<Self> {
        let home = data.join("engine").join(kind.name());
        let made = std::fs::read_dir(home).ok()?.flatten().find_map(|entry| {
            let address = std::fs::read_to_string(entry.path().join(MADE)).ok()?;
            (!address.is_empty()).then_some(address)
        });
        Self::new(Place { kind, address: made? }, data).ok()
    }

    pub(super) fn directory(&self, id: &SandboxId) -> PathBuf {
        self.shared.home.join(id.as_str())
    }

    pub(super) fn locks(&self) -> MutexGuard<'_, HashMap<SandboxId, Lock>> {
        self.shared.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses to say anything of sandboxes that are on another engine: it would be that they are gone.
    pub(super) fn check_place(&self) -> Result<(), Error> {
        let here = &self.shared.place.address;
        for id in self.written_down()? {
            let made = files::read_if_there(&self.directory(&id).join(MADE))?.unwrap_or_default();
            if !made.is_empty() && made != *here {
                let (name, variable) = (self.name(), self.shared.place.kind.variable());
                return Err(Error::Unavailable {
                    what: format!("{name} is another one than before"),
                    why: format!("sandboxes of this machine are at {made}, and this is {here}"),
                    fix: format!(
                        "Set {variable} to {made}, or stop them there and remove {}.",
                        self.shared.home.display()
                    ),
                });
            }
        }
        Ok(())
    }

    /// The sandboxes of which something is written down here.
    pub(super) fn written_down(&self) -> Result<Vec<SandboxId>, Error> {
        let home = &self.shared.home;
        let entries = std::fs::read_dir(home).map_err(|source| files::failed("list", home, source))?;
        Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
    }

    /// Takes a sandbox in hand, where that was not done yet.
    pub(super) fn take(&self, id: &SandboxId) -> Result<(), Error> {
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
            act: format!("take {id} in hand"),
            source: std::io::Error::other("another living process has it"),
        })?;
        locks.insert(id.clone(), lock);
        Ok(())
    }

    /// Makes the sandbox's directory and takes it in hand. An id in use is [`Error::Exists`].
    pub(super) fn reserve(&self, id: &SandboxId) -> Result<(), Error> {
        let directory = self.directory(id);
        match std::fs::create_dir(&directory) {
            Ok(()) => self.take(id),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Err(Error::Exists(id.clone())),
            Err(error) => Err(files::failed("make directory", &directory, error)),
        }
    }
}

/// What tells the sandboxes of this data directory from others' on the same engine: a random name, written down once.
pub(super) fn owner(home: &std::path::Path) -> Result<String, Error> {
    let path = home.join("owner");
    if let Some(text) = files::read_if_there(&path)? {
        return Ok(text);
    }
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Error::System { act: "read random bytes".into(), source: error.into() })?;
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
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
