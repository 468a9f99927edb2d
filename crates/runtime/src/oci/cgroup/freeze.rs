//! Pauses and resumes all processes of a sandbox with the cgroup freezer.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use api::SandboxId;

use super::{Cgroups, PAUSE, tree};
use crate::Error;
use crate::files;

/// Timeout for freezing. A process freezes only when it leaves the kernel, which takes a while if it is
/// waiting for a disk.
const STILL_WITHIN: Duration = Duration::from_secs(10);

/// The freezer cgroup of one sandbox.
struct Freezer {
    group: PathBuf,
    /// True if this cgroup is in the version 2 hierarchy.
    unified: bool,
}

impl Cgroups {
    /// Freezes all processes of a sandbox and waits until they are frozen. On failure, thaws the processes
    /// again.
    pub(crate) fn freeze(&self, id: &SandboxId) -> Result<(), Error> {
        let freezer = self.freezer(id).ok_or_else(|| Error::Unsupported {
            what: "pausing a sandbox",
            why: "this machine has no cgroup freezer".into(),
        })?;
        let frozen = self.stand_still(id, &freezer);
        if frozen.is_err() {
            freezer.set(false)?;
        }
        frozen
    }

    /// Returns true if this machine can pause sandboxes.
    pub(crate) fn can_freeze(&self) -> bool {
        self.controller("freezer").is_some() || self.hierarchies.iter().any(|one| one.unified)
    }

    fn stand_still(&self, id: &SandboxId, freezer: &Freezer) -> Result<(), Error> {
        freezer.set(true)?;
        let deadline = Instant::now() + STILL_WITHIN;
        loop {
            // The OCI runtime puts process 1 into the freezer cgroup, and its children inherit the cgroup.
            // All other processes of the sandbox are moved there now.
            let (mut inside, mut brought) = (Vec::new(), false);
            tree::processes(&freezer.group, tree::DEPTH_MAX, &mut inside)?;
            for pid in self.processes(id)?.into_iter().filter(|pid| !inside.contains(pid)) {
                brought = true;
                // An error is ignored, because it means that the process has ended and need not be moved.
                let _ = files::write(&freezer.group.join("cgroup.procs"), &pid.to_string());
            }
            if !brought && freezer.is_still()? {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(Error::Deadline {
                    what: "freezing the processes of a sandbox",
                    after: STILL_WITHIN,
                });
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Thaws all processes of a sandbox. Does nothing if none are frozen.
    pub(crate) fn thaw(&self, id: &SandboxId) -> Result<(), Error> {
        match self.freezer(id) {
            Some(freezer) if freezer.file().exists() => freezer.set(false),
            Some(_) | None => Ok(()),
        }
    }

    fn freezer(&self, id: &SandboxId) -> Option<Freezer> {
        let of_version_1 = self.controller("freezer");
        let hierarchy = of_version_1.or_else(|| self.hierarchies.iter().find(|one| one.unified))?;
        Some(Freezer { group: hierarchy.of(id), unified: hierarchy.unified })
    }
}

impl Freezer {
    fn file(&self) -> PathBuf {
        self.group.join(if self.unified { "cgroup.freeze" } else { "freezer.state" })
    }

    fn set(&self, still: bool) -> Result<(), Error> {
        if still && !self.group.exists() {
            files::directory(&self.group, 0o755)?;
        }
        let value = match (self.unified, still) {
            (true, true) => "1",
            (true, false) => "0",
            (false, true) => "FROZEN",
            (false, false) => "THAWED",
        };
        files::write(&self.file(), value)
    }

    fn is_still(&self) -> Result<bool, Error> {
        if self.unified {
            return Ok(read(&self.group.join("cgroup.events"))?.lines().any(|line| line == "frozen 1"));
        }
        Ok(read(&self.file())?.trim() == "FROZEN")
    }
}

fn read(path: &Path) -> Result<String, Error> {
    Ok(files::read_if_there(path)?.unwrap_or_default())
}
