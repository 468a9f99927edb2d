//! The result of a start: whether the process executed its program.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use api::Error;
use api::exec::ExecSpec;
use rustix::process::{Pid, WaitId, WaitIdOptions};
use tokio::io::Interest;

use super::failure::spawn_failed;
use crate::sweep::{self, Whom};
use crate::watched::watch;

/// Interval between checks of a child that is starting. Fork to exec normally takes a millisecond. If a child
/// takes longer than this interval, another process of the same user may have stopped it.
const VERDICT_LOOK_EVERY: Duration = Duration::from_secs(2);
/// Maximum number of checks of a child that is starting. A child that is slow but not stopped gets this many
/// intervals, because the machine is then overloaded.
const VERDICT_LOOKS: u32 = 4;

/// Pending result of a start: success if the process executed its program.
pub struct PendingStart {
    pid: Pid,
    /// Receives the error number of a failed start; closes on success.
    pipe: OwnedFd,
}

impl PendingStart {
    pub(super) fn new(pid: Pid, pipe: OwnedFd) -> Self {
        Self { pid, pipe }
    }
}

/// Waits until the process has executed its program. Returns an error if it cannot.
pub async fn verdict(
    spec: &ExecSpec,
    group: u32,
    PendingStart { pid, pipe }: PendingStart,
) -> Result<(), Error> {
    let watched = watch(pipe, Interest::READABLE).map_err(|error| spawn_failed(spec, &error))?;
    let read = async {
        let mut errno = [0; 4];
        loop {
            let mut ready = watched.readable().await?;
            match ready.try_io(|pipe| Ok(rustix::io::read(pipe.get_ref(), &mut errno)?)) {
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Ok(0)) => return Ok(()),
                Ok(Ok(_)) => return Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno))),
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => {}
            }
        }
    };
    tokio::pin!(read);
    for look in 1..=VERDICT_LOOKS {
        if let Ok(became) = tokio::time::timeout(VERDICT_LOOK_EVERY, &mut read).await {
            return became.map_err(|error| spawn_failed(spec, &error));
        }
        if is_stopped(pid) || look == VERDICT_LOOKS {
            break;
        }
    }
    let why = if is_stopped(pid) {
        "another process in the sandbox stopped the new process while it was starting"
    } else {
        "the new process did not start in time because the machine or the sandbox is overloaded"
    };
    sweep::kill(Whom::Group(group)).await;
    Err(spawn_failed(spec, &io::Error::new(io::ErrorKind::TimedOut, why)))
}

/// Returns true if a signal stopped this child. The event stays pending for other waiters.
fn is_stopped(pid: Pid) -> bool {
    let look = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(rustix::process::waitid(WaitId::Pid(pid), look), Ok(Some(_)))
}
