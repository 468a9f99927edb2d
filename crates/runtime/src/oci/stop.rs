//! Stops a sandbox in any state: partially created, running, dead, or left behind by a process that has died.
//!
//! Each step finds its resources by name and succeeds if they are already gone. The teardown can therefore be
//! repeated, and two processes may run it concurrently. The directory is removed last, so the sandbox stays
//! listed as long as any of its resources exist.

use std::time::{Duration, Instant};

use api::SandboxId;
use api::limits::UID_RANGE;
use api::trace::STEP;
use rustix::process::Signal;
use tracing::info_span;

use super::process::{self, ENDING, ProcessHandle, Words};
use super::record::OciRecord;
use super::{Oci, disk};
use crate::{Error, Listed, Tier, files};

/// Timeout for a command of the OCI runtime that only sends a signal. It usually takes about 10 ms.
const ASK: Duration = Duration::from_secs(20);

impl Oci {
    /// Sends SIGTERM to process 1.
    pub(super) async fn ask_to_end(&self, id: &SandboxId, process: &ProcessHandle) -> Result<(), Error> {
        match self.flavor.tier {
            Tier::Container => process.signal(Signal::TERM),
            Tier::UserKernel => {
                // The process that is visible from outside is the user-space kernel, but the signal is meant
                // for process 1 inside the sandbox.
                let mut command = self.command(id);
                command.args(["kill", id.as_str(), "TERM"]);
                // If the signal cannot be sent, process 1 is killed after the grace period.
                let _ = super::blocking(move || process::run(&command, &[], &Words::Stderr, ASK)).await;
                Ok(())
            }
        }
    }
}

/// Kills all processes of a sandbox and removes everything that belongs to it.
pub(super) fn teardown(oci: &Oci, id: &SandboxId, held: Option<&ProcessHandle>) -> Result<(), Error> {
    let record = match oci.dirs.load(id)? {
        Some(record) if record.runtime != oci.flavor.name => return Ok(()),
        record => record,
    };
    if let Some(record) = &record {
        // The flag is only for observers. Saving it fails if the disk is full, but the teardown must continue
        // because it frees space.
        info_span!(target: STEP, "record").in_scope(|| {
            let _ = oci.dirs.save(id, &OciRecord { stopping: true, ..record.clone() });
        });
        // Thaw first: a frozen process does not reliably die, even from SIGKILL.
        oci.cgroups.thaw(id)?;
        info_span!(target: STEP, "kill").in_scope(|| kill_first(record, held))?;
    }
    info_span!(target: STEP, "kill", what = "the rest").in_scope(|| oci.cgroups.kill_all(id))?;
    // For a container, only process 1 needs to be reaped, and that has already happened. Scanning all
    // children is slow when there are a thousand of them.
    let others = oci.flavor.tier == Tier::UserKernel;
    if let Some(record) = record.as_ref().filter(|record| others || record.process.is_none()) {
        info_span!(target: STEP, "reap")
            .in_scope(|| process::reap_zombies(record.base()..record.base() + UID_RANGE))?;
    }
    info_span!(target: STEP, "cgroups").in_scope(|| oci.cgroups.remove(id))?;
    // The OCI runtime's own `delete` command does nothing more than this, but may wait several seconds for
    // the processes, because it cannot know that they are dead.
    info_span!(target: STEP, "delete", what = "the runtime's state")
        .in_scope(|| files::remove_shallow(&oci.dirs.state(oci.flavor.name, id), 1))?;
    if let Some(number) = record.as_ref().filter(|record| is_current(record)).and_then(|record| record.device)
    {
        info_span!(target: STEP, "device").in_scope(|| disk::wait_detached(number, &oci.dirs.disk(id)))?;
    }
    info_span!(target: STEP, "disk").in_scope(|| disk::remove(&oci.dirs.disk(id)))?;
    info_span!(target: STEP, "delete").in_scope(|| oci.dirs.forget(id))
}

/// Lists the sandboxes of this runtime that exist at least in part. The list includes new sandboxes that have
/// no record yet, whose runtime is therefore unknown.
pub(super) fn list(oci: &Oci) -> Result<Vec<Listed>, Error> {
    let mut listed = Vec::new();
    for id in oci.dirs.ids()? {
        let record = oci.dirs.load(&id)?;
        if record.as_ref().is_some_and(|record| record.runtime != oci.flavor.name) {
            continue;
        }
        let alive = match record.as_ref().filter(|record| is_current(record)).map(|record| record.process) {
            Some(Some(identity)) => {
                ProcessHandle::reopen(identity)?.is_some_and(|process| process.is_alive())
            }
            Some(None) => !oci.cgroups.processes(&id)?.is_empty(),
            None => false,
        };
        listed.push(Listed { owned: oci.dirs.is_owned(&id), alive, id });
    }
    Ok(listed)
}

/// Kills process 1 and reaps it. When process 1 dies, the kernel kills all other processes in its pid
/// namespace.
fn kill_first(record: &OciRecord, held: Option<&ProcessHandle>) -> Result<(), Error> {
    let reopened = match (held, record.process) {
        (None, Some(identity)) if is_current(record) => ProcessHandle::reopen(identity)?,
        (_, _) => None,
    };
    let Some(process) = held.or(reopened.as_ref()) else { return Ok(()) };
    process.signal(Signal::KILL)?;
    if !process.wait_until(Instant::now() + ENDING) {
        return Err(Error::Deadline { what: "killing process 1", after: ENDING });
    }
    process.exit();
    Ok(())
}

/// Returns true if a sandbox was created during the current boot. After a reboot, the recorded processes,
/// mounts and devices no longer belong to the sandbox.
pub(super) fn is_current(record: &OciRecord) -> bool {
    process::boot_id().is_ok_and(|boot| boot == record.boot)
}
