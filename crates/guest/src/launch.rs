//! The only module that starts processes.
//!
//! Between fork and exec, the child joins the cgroup of user code, gets its three streams (pipes, or one
//! terminal, which becomes the controlling terminal of its session), and drops all privileges. Only then does
//! it enter its working directory and execute the program. So nothing that user code can influence happens
//! before the last restriction is in place.
//!
//! Once the child has its final uid, other processes with that uid can send it signals, including SIGSTOP. So
//! the guest never blocks on the child. The result of its start arrives through a pipe, and the guest awaits
//! this result with a deadline, while it continues to serve other requests.

mod environment;
mod failure;
mod identity;
mod program;
mod streams;
mod verdict;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use api::Error;
use api::exec::ExecSpec;
use rustix::process::Pid;

pub use environment::{DIRECTORY, environment};
pub use failure::no_terminal;
pub use identity::{Identity, Purpose};
pub use streams::{Ends, Terminal, Theirs, on_pipes, pipe_owner};
pub use verdict::{PendingStart, verdict};

use crate::descent::Descent;
use failure::spawn_failed;
use program::{Program, c_string};
use streams::{on_terminal, pipe};

/// Lowest descriptor number for the copies made for a child. It is above all numbers that the child assigns.
const EXTRA_FROM: RawFd = 16;

/// The parts of the sandbox's isolation that affect how a process starts.
pub struct Isolation<'a> {
    /// Descriptors for entering the cgroups of user code, one per hierarchy.
    pub cgroups: &'a [OwnedFd],
    /// True if the sandbox has a user-space kernel.
    pub in_user_kernel: bool,
}

/// A process between fork and exec, and the guest's ends of its streams.
pub struct Launched {
    /// The process.
    pub pid: Pid,
    /// Pending result of the start.
    pub verdict: PendingStart,
    /// The guest's ends of the process's streams.
    pub ends: Ends,
}

/// Starts the command of `spec` with the identity `who`, in the cgroups of user code. The process gets
/// `extra` as descriptors 3 and up. [`verdict()`] reports whether the process executed the program.
pub fn launch(
    spec: &ExecSpec,
    who: Identity,
    isolation: &Isolation<'_>,
    extra: &[OwnedFd],
) -> Result<Launched, Error> {
    let failed = |error: io::Error| spawn_failed(spec, &error);
    // Copy the descriptors to higher numbers than the child assigns, so that no assignment overwrites a copy.
    let moved = |from: &OwnedFd| Ok(rustix::io::fcntl_dupfd_cloexec(from, EXTRA_FROM)?);
    let extra: Vec<OwnedFd> = extra.iter().map(moved).collect::<io::Result<_>>().map_err(failed)?;
    let descent = Descent {
        cgroups: isolation.cgroups.iter().map(AsRawFd::as_raw_fd).collect(),
        uid: who.uid,
        groups: [who.group],
        capabilities: who.capabilities,
        extra: extra.iter().map(AsRawFd::as_raw_fd).collect(),
        directory: c_string(spec.cwd.as_deref().unwrap_or(DIRECTORY)).map_err(failed)?,
        terminal: spec.terminal.is_some(),
        nested: who.nested,
        filter: who.filter(isolation.in_user_kernel),
    };
    let program = Program::new(spec).map_err(failed)?;
    let (said, verdict_child) = pipe().map_err(failed)?;
    let verdict_child = moved(&verdict_child).map_err(failed)?;
    let (ends, theirs) = match spec.terminal {
        Some(size) => on_terminal(spec, size, who.uid)?,
        None => on_pipes(spec.stdin, pipe_owner(who.uid, isolation.in_user_kernel)).map_err(failed)?,
    };
    let streams = [theirs.stdin.as_raw_fd(), theirs.stdout.as_raw_fd(), theirs.stderr.as_raw_fd()];
    // SAFETY: This process has one thread, and the child only makes system calls on memory that was allocated
    // before the fork.
    let pid = match unsafe { libc::fork() } {
        0 => become_program(&descent, &program, streams, verdict_child.as_raw_fd()),
        pid => Pid::from_raw(pid).filter(|_| pid > 0),
    };
    let pid = pid.ok_or_else(|| failed(io::Error::last_os_error()))?;
    Ok(Launched { pid, verdict: PendingStart::new(pid, said), ends })
}

/// Performs the steps of `descent` and executes the program. Runs in the child, and never returns.
fn become_program(descent: &Descent, program: &Program, streams: [RawFd; 3], verdict: RawFd) -> ! {
    let reason = match descent.descend(streams) {
        Ok(()) => program.become_it(),
        Err(error) => error.raw_os_error().unwrap_or(libc::EINVAL),
    };
    let bytes = reason.to_ne_bytes();
    // SAFETY: The call writes the bytes of a local array to an open descriptor. A failure is ignored, because
    // then there is no reader to report to.
    unsafe { libc::write(verdict, bytes.as_ptr().cast(), bytes.len()) };
    // SAFETY: `_exit` takes no pointers. It ends this process without running the exit handlers of its
    // parent.
    unsafe { libc::_exit(127) }
}
