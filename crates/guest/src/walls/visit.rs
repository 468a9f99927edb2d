//! What is asked from outside the walls: how process 1 is, that it should end, what user code uses. Each is a program of its own that
//! says one line, run by whoever has made the workspace.

use std::fs::File;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, WaitStatus};

use super::{Failed, cgroup, step};
use crate::{init, posture};

/// The number of process 1, as the workspace counts, in a file that the keeper has locked for as long as it is there.
const KEEPER: &str = "/.bellglass/spool/keeper";
/// How process 1 has ended.
const ENDED: &str = "/.bellglass/spool/ended";
/// Whoever waits for long is in no hurry, and takes processor time that is told as the sandbox's.
const LOOK_FIRST: Duration = Duration::from_millis(5);
const LOOK_LAST: Duration = Duration::from_millis(500);
/// What `wait` and `end` exit with while it has not ended.
const NOT_YET: u8 = 4;

/// Writes down who process 1 is, and that the keeper is there.
pub fn write_down(first: Pid) -> Result<File, Failed> {
    step("write the pid of process 1", std::fs::write(KEEPER, first.as_raw_nonzero().to_string()))?;
    // Open for reading only: what is open for writing cannot be made read-only around it.
    let file = step("open the file with the pid of process 1", File::open(KEEPER))?;
    step(
        "lock the file with the pid of process 1",
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(Into::into),
    )?;
    Ok(file)
}

/// Writes down how process 1 has ended, in the words of the wire.
pub fn write_down_end(status: Option<WaitStatus>) {
    let outcome = status.map_or(api::exec::Outcome::Unknown, init::outcome);
    let _ = std::fs::write(ENDED, serde_json::to_vec(&outcome).unwrap_or_default());
}

/// `guest wait MS`: says how process 1 ended, if it has by then.
pub fn wait(within_ms: Option<u64>) -> ExitCode {
    let Some(within) = within_ms.map(Duration::from_millis) else { return ExitCode::from(2) };
    match ended_within(within) {
        Some(said) => posture::write(&said),
        None => ExitCode::from(NOT_YET),
    }
}

/// `guest end MS`: asks process 1 to end, and waits so long for it.
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

/// `guest usage`: what user code uses.
pub fn usage() -> ExitCode {
    posture::write(&serde_json::to_vec(&cgroup::used()).unwrap_or_default())
}

/// Process 1, as long as its keeper is there.
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
        // Read after the look at the keeper, which writes before it goes.
        match std::fs::read(ENDED).ok().filter(|said| !said.is_empty()) {
            Some(said) => return Some(said),
            None if !keeps => return serde_json::to_vec(&api::exec::Outcome::Unknown).ok(),
            None if Instant::now() >= until => return None,
            None => std::thread::sleep(pause),
        }
        pause = (pause * 2).min(LOOK_LAST);
    }
}
