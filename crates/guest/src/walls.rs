//! The walls of a sandbox: isolation that process 1 sets up itself, in a third party's workspace, where the
//! provider's programs also run as root.
//!
//! | module | holds |
//! |---|---|
//! | [`cgroup`] | the limits of user code |
//! | [`mounts`] | visible and writable files |
//! | [`privileges`] | privileges that process 1 drops permanently |
//! | [`visit`] | commands that run outside: wait, end, usage |
//!
//! ```text
//! workspace ─┬─ programs of the workspace's provider
//!            ├─ guest connect, guest wait: started by the node
//!            └─ keeper: creates the cgroups, then waits for process 1
//!                 └── new namespaces ── process 1 ── user code
//! ```
//!
//! The keeper reports how process 1 ended. When the keeper ends, process 1 ends too. If any part of the walls
//! cannot be set up, the sandbox does not start.

mod cgroup;
mod mounts;
mod privileges;
pub mod visit;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd;
use std::process::ExitCode;
use std::time::Duration;

use api::walls::Walls;
use rustix::process::{Pid, WaitOptions};

use crate::init::{self, ConnectMethod};
use crate::launch::Purpose;
use crate::syscall::done;

pub use cgroup::Entrances;

/// File in which the node describes the isolation to set up.
const WALLS: &str = "/.bellglass/walls.json";
/// Message that process 1 sends through the status pipe when it is ready for connections.
pub const READY: &[u8] = b"ready";
/// Namespaces of process 1.
const NAMESPACES: libc::c_int = libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// Error message: the failed action and its cause.
type Failed = String;

/// Sets up the walls and starts process 1 behind them. An error is printed on standard output, because
/// workspace interfaces return nothing else.
pub fn put_up(ttl: Duration) -> ExitCode {
    match begin(ttl) {
        Ok(code) => code,
        Err(failed) => {
            let _ = std::io::stdout().write_all(failed.as_bytes());
            ExitCode::FAILURE
        }
    }
}

fn begin(ttl: Duration) -> Result<ExitCode, Failed> {
    // SAFETY: The call takes no pointers. This process has not opened any descriptor above 2 yet, and does
    // not need the inherited ones.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
    step("close inherited descriptors", done(closed as libc::c_int))?;
    let text = step("read the isolation settings", std::fs::read(WALLS))?;
    let walls: Walls = serde_json::from_slice(&text)
        .map_err(|error| format!("cannot parse the isolation settings: {error}"))?;
    let (mut heard, said) = step("create a pipe", pipe())?;
    if step("fork", fork())?.is_none() {
        drop(heard);
        keep(&walls, ttl, said);
    }
    drop(said);
    let mut words = Vec::new();
    step("read the status of the supervisor of process 1", heard.read_to_end(&mut words))?;
    match words.as_slice() {
        READY => Ok(ExitCode::SUCCESS),
        [] => Err("the supervisor of process 1 exited without a status".into()),
        words => Err(String::from_utf8_lossy(words).into_owned()),
    }
}

/// Runs the keeper, the parent of process 1. Never returns.
fn keep(walls: &Walls, ttl: Duration, mut said: File) -> ! {
    let begun = prepare(walls).and_then(|entrances| {
        let (wait, go) = step("create a pipe", pipe())?;
        Ok((entrances, wait, go, step("fork", fork())?))
    });
    let (first, mut go) = match begun {
        Ok((_, _, go, Some(first))) => (first, go),
        Ok((entrances, mut wait, go, None)) => {
            drop(go);
            // Wait until the keeper has recorded our pid, and exit if the keeper failed to do so.
            match wait.read_exact(&mut [0]) {
                Ok(()) => be_first(walls, ttl, entrances, said),
                Err(_) => std::process::exit(1),
            }
        }
        Err(failed) => give_up(&mut said, &failed),
    };
    // The file stays locked until this process exits, which shows that the keeper is alive.
    let _lock = match visit::write_down(first)
        .and_then(|lock| step("start process 1", go.write_all(b"1")).map(|()| lock))
    {
        Ok(lock) => lock,
        Err(failed) => give_up(&mut said, &failed),
    };
    // From here on, only process 1 reports readiness or an error.
    drop(said);
    let status = loop {
        match rustix::process::waitpid(Some(first), WaitOptions::empty()) {
            Ok(Some((_, status))) => break Some(status),
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => break None,
        }
    };
    visit::write_down_end(status);
    std::process::exit(0)
}

fn give_up(said: &mut File, failed: &str) -> ! {
    let _ = said.write_all(failed.as_bytes());
    std::process::exit(1)
}

/// Prepares everything that must exist before process 1: the spool in the workspace's mount namespace, then
/// the new namespaces and the cgroups.
fn prepare(walls: &Walls) -> Result<Entrances, Failed> {
    step("create a session", rustix::process::setsid().map_err(Into::into))?;
    let null = step("open /dev/null", File::options().read(true).write(true).open("/dev/null"))?;
    for number in 0..3 {
        // SAFETY: The call takes no pointers, and `null` is open.
        step("detach the standard streams", done(unsafe { libc::dup2(null.as_raw_fd(), number) }))?;
    }
    mounts::spool(&walls.spool)?;
    // SAFETY: `unshare` takes no pointers.
    step("create namespaces", done(unsafe { libc::unshare(NAMESPACES) }))?;
    mounts::keep_to_ourselves()?;
    cgroup::make(walls)
}

/// Runs process 1, and never returns.
fn be_first(walls: &Walls, ttl: Duration, entrances: Entrances, mut said: File) -> ! {
    let with_keeper = || {
        let signal = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
        step("set the parent-death signal", signal.map_err(Into::into))
    };
    // Set the parent-death signal last, because a change of credentials can reset it.
    let walled = mounts::put_up(walls)
        .and_then(|()| privileges::name_and_loopback())
        .and_then(|()| privileges::give_up(walls))
        .and_then(|()| with_keeper());
    if let Err(failed) = walled {
        give_up(&mut said, &failed);
    }
    let code = init::run(ttl, Purpose::Run, ConnectMethod::Walled { entrances, said });
    std::process::exit(i32::from(code))
}

/// Creates a pipe. Returns the read end and the write end.
fn pipe() -> std::io::Result<(File, File)> {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    Ok((read.into(), write.into()))
}

/// Forks this process. Returns the child's pid, or `None` in the child.
fn fork() -> std::io::Result<Option<Pid>> {
    // SAFETY: This process has one thread, so the child inherits no lock that another thread holds.
    let pid = unsafe { libc::fork() };
    done(pid)?;
    Ok(Pid::from_raw(pid))
}

/// Converts an error to a message that names the failed action.
fn step<T>(act: &str, result: std::io::Result<T>) -> Result<T, Failed> {
    result.map_err(|error| format!("cannot {act}: {error}"))
}
