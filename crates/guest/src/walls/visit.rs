//! Commands from outside the walls: wait for process 1, end it, report the usage of user code. Each is a
//! separate program that prints one line, started through the interface of the workspace's provider.

use std::fs::File;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, WaitStatus};

use super::{Failed, cgroup, step};
use crate::{init, posture};

/// File with the pid of process 1 in the workspace's pid namespace. The keeper holds a lock on it while it
/// lives.
const KEEPER: &str = "/.bellglass/spool/keeper";
/// File with the outcome of process 1.
const ENDED: &str = "/.bellglass/spool/ended";
/// First and last polling interval. It grows because long waits are not urgent, and polling counts as CPU
/// time of the sandbox.
const LOOK_FIRST: Duration = Duration::from_millis(5);
const LOOK_LAST: Duration = Duration::from_millis(500);
/// Exit code of `wait` and `end` while process 1 still runs.
const NOT_YET: u8 = 4;

/// Records the pid of process 1, and locks the file to show that the keeper lives.
pub fn write_down(first: Pid) -> Result<File, Failed> {
    step("write the pid of process 1", std::fs::write(KEEPER, first.as_raw_nonzero().to_string()))?;
    // Read-only, because a mount with a file open for writing cannot be made read-only.
    let file = step("open the file with the pid of process 1", File::open(KEEPER))?;
    step(
        "lock the file with the pid of process 1",
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(Into::into),
    )?;
    Ok(file)
}

/// Records how process 1 ended, as an outcome of the wire protocol.
pub fn write_down_end(status: Option<WaitStatus>) {
    let outcome = status.map_or(api::exec::Outcome::Unknown, init::outcome);
    let _ = std::fs::write(ENDED, serde_json::to_vec(&outcome).unwrap_or_default());
}

/// `guest wait MS`: prints how process 1 ended, if it ends within this time.
pub fn wait(within_ms: Option<u64>) -> ExitCode {
    let Some(within) = within_ms.map(Duration::from_millis) else { return ExitCode::from(2) };
    match ended_within(within) {
        Some(said) => posture::write(&said),
        None => ExitCode::from(NOT_YET),
    }
}

/// `guest end MS`: sends SIGTERM to process 1 and waits for its end for at most this time.
pub fn end(within_ms: Option<u64>) -> ExitCode {
    let Some(within) = within_ms.map(Duration::from_millis) else { return ExitCode::from(2) };
    if let Some(first) = first() {
        let _ = rustix::process::kill_process(first, Signal::TERM);
    }
    match ended_within(within) {
        Some(_) => ExitCode::SUCCESS,
        None => ExitCode::from(NOT_YET),
    }
}

/// `guest usage`: prints the resource usage of user code.
pub fn usage() -> ExitCode {
    posture::write(&serde_json::to_vec(&cgroup::used()).unwrap_or_default())
}

/// Returns the pid of process 1, while its keeper lives.
fn first() -> Option<Pid> {
    let file = File::open(KEEPER).ok()?;
    if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        return None;
    }
    Pid::from_raw(std::io::read_to_string(&file).ok()?.parse().ok()?)
}

fn ended_within(within: Duration) -> Option<Vec<u8>> {
    let until = Instant::now() + within;
    let mut pause = LOOK_FIRST;
    loop {
        let keeps = first().is_some();
        // After the check of the keeper, which writes this file before it exits.
        match std::fs::read(ENDED).ok().filter(|said| !said.is_empty()) {
            Some(said) => return Some(said),
            None if !keeps => return serde_json::to_vec(&api::exec::Outcome::Unknown).ok(),
            None if Instant::now() >= until => return None,
            None => std::thread::sleep(pause),
        }
        pause = (pause * 2).min(LOOK_LAST);
    }
}
