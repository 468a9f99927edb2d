//! Commands that run outside the walls: wait for process 1, end it, and report the resource usage of user
//! code. Each runs as a separate process, which is started through the interface of the workspace's provider
//! and prints at most one line.

use std::fs::File;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, WaitStatus};

use super::{Failed, cgroup, step};
use crate::{init, posture};

/// File with the pid of process 1 in the workspace's pid namespace. The keeper holds a lock on this file
/// until the keeper exits.
const KEEPER: &str = "/.bellglass/spool/keeper";
/// File with the outcome of process 1.
const ENDED: &str = "/.bellglass/spool/ended";
/// First and maximum polling interval. The interval grows, because a long wait is not urgent, and polling
/// uses the sandbox's CPU time.
const LOOK_FIRST: Duration = Duration::from_millis(5);
const LOOK_LAST: Duration = Duration::from_millis(500);
/// Exit code of `wait` and `end` if process 1 is still running.
const NOT_YET: u8 = 4;

/// Records the pid of process 1, and locks the file to show that the keeper is alive.
pub fn write_down(first: Pid) -> Result<File, Failed> {
    step("write the pid of process 1", std::fs::write(KEEPER, first.as_raw_nonzero().to_string()))?;
    // Open the file read-only, because a mount with a file open for writing cannot become read-only.
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

/// Runs `guest wait MS`: prints how process 1 ended, if it ends within this time.
pub fn wait(within_ms: Option<u64>) -> ExitCode {
    let Some(within) = within_ms.map(Duration::from_millis) else { return ExitCode::from(2) };
    match ended_within(within) {
        Some(said) => posture::write(&said),
        None => ExitCode::from(NOT_YET),
    }
}

/// Runs `guest end MS`: sends SIGTERM to process 1, and waits at most this long for it to end.
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

/// Runs `guest usage`: prints the resource usage of user code.
pub fn usage() -> ExitCode {
    posture::write(&serde_json::to_vec(&cgroup::used()).unwrap_or_default())
}

/// Returns the pid of process 1 if its keeper is alive.
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
        // Read the file only after checking the keeper, because the keeper writes the file before exiting.
        match std::fs::read(ENDED).ok().filter(|said| !said.is_empty()) {
            Some(said) => return Some(said),
            None if !keeps => return serde_json::to_vec(&api::exec::Outcome::Unknown).ok(),
            None if Instant::now() >= until => return None,
            None => std::thread::sleep(pause),
        }
        pause = (pause * 2).min(LOOK_LAST);
    }
}
