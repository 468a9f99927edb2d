//! Handles to processes, and commands that run to completion.
//!
//! A process is identified by its pid, its start time and the machine's boot ID, and is held by a pidfd,
//! because a pid alone may have been reused. The thread that starts a command also waits for it, because the
//! kernel kills the command (by its parent death signal) as soon as that thread ends.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitStatus};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::child::{self, Child};
use super::mounts::Operation;
use crate::files;
use crate::{Error, Exit};

/// Maximum length of the command output that an error contains. It is enough to show the cause.
const STDERR_BYTES: u64 = 2048;
/// Timeout for killed processes to end. This usually takes a millisecond. However, when the last process
/// ends, the kernel unmounts the sandbox's file systems, and first writes back all of user code's unwritten
/// data.
pub(crate) const ENDING: Duration = Duration::from_secs(60);
/// Capacity of a pipe.
const PIPE_BYTES: u64 = 64 << 10;

/// Unique identity of a process within this boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// The pid, as this process sees it.
    pub pid: i32,
    /// The start time, in clock ticks since boot.
    pub start: u64,
}

/// A process held by a pidfd.
#[derive(Debug)]
pub(crate) struct ProcessHandle {
    /// The process's identity.
    pub identity: Identity,
    descriptor: OwnedFd,
    /// How the process ended, once that is known. It is stored because the kernel reports it only once.
    exit: Mutex<Option<Exit>>,
}

impl ProcessHandle {
    /// Opens the process that currently has this pid, or returns `None` if there is none.
    pub(crate) fn open(pid: i32) -> Result<Option<Self>, Error> {
        let Some(number) = Pid::from_raw(pid) else { return Ok(None) };
        let descriptor = match rustix::process::pidfd_open(number, PidfdFlags::empty()) {
            Ok(descriptor) => descriptor,
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            Err(error) => {
                return Err(Error::System { act: format!("open process {pid}"), source: error.into() });
            }
        };
        // Read the start time after opening the descriptor: if the pid has been reused by then, the start
        // time differs from the recorded one.
        let Some(start) = start_time(pid)? else { return Ok(None) };
        Ok(Some(Self { identity: Identity { pid, start }, descriptor, exit: Mutex::new(None) }))
    }

    /// Opens exactly this process, or returns `None` if it no longer exists.
    pub(crate) fn reopen(identity: Identity) -> Result<Option<Self>, Error> {
        Ok(Self::open(identity.pid)?.filter(|process| process.identity == identity))
    }

    /// Returns true if the process is still running. A zombie is not running.
    pub(crate) fn is_alive(&self) -> bool {
        !self.wait_until(Instant::now())
    }

    /// Sends a signal. Also succeeds if the process is gone.
    pub(crate) fn signal(&self, signal: Signal) -> Result<(), Error> {
        match rustix::process::pidfd_send_signal(&self.descriptor, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(Error::System {
                act: format!("signal process {}", self.identity.pid),
                source: error.into(),
            }),
        }
    }

    /// Blocks this thread until the process has ended or the deadline has passed. Returns true if the process
    /// has ended.
    pub(crate) fn wait_until(&self, deadline: Instant) -> bool {
        wait_readable(&self.descriptor, deadline)
    }

    /// Waits until the process has ended.
    pub(crate) async fn ended(&self) -> Result<(), Error> {
        let act = || format!("wait for process {}", self.identity.pid);
        let wrong = |source| Error::System { act: act(), source };
        let descriptor = self.descriptor.try_clone().map_err(wrong)?;
        // SAFETY: an `OwnedFd` is open, never changes its number, and is closed only when `watched`, which
        // owns it, is dropped.
        let watched = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }
            .map_err(|error| wrong(error.into()))?;
        watched.readable().await.map(|_| ()).map_err(wrong)
    }

    /// Returns how the process ended, and reaps it if this process is its parent. Must be called after the
    /// process has ended.
    pub(crate) fn exit(&self) -> Exit {
        let mut known = self.exit.lock().unwrap_or_else(PoisonError::into_inner);
        *known.get_or_insert_with(|| collect(WaitId::PidFd(self.descriptor.as_fd())).unwrap_or(Exit::Unknown))
    }
}

/// Reaps an adopted process that has ended, so that no zombie remains. Returns true if the process is gone.
pub(crate) fn reap(pid: i32) -> bool {
    let Some(number) = Pid::from_raw(pid) else { return true };
    match rustix::process::waitid(WaitId::Pid(number), WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
        Ok(None) => false,
        Ok(Some(_)) | Err(_) => true,
    }
}

/// Reaps all adopted zombies whose user ID is in this range, such as the helpers that a user-space kernel
/// leaves behind. Children that this process started itself have user IDs outside the range, and the code
/// that started them reaps them. If process 1 died before it became the guest, its user ID is not in the
/// range yet, and it is recognized by a process name that only runc uses.
pub(crate) fn reap_zombies(users: Range<u32>) -> Result<(), Error> {
    let tasks = Path::new("/proc/self/task");
    for task in std::fs::read_dir(tasks).map_err(|source| files::failed("list", tasks, source))?.flatten() {
        // On kernels without this file, zombies remain until this process ends, and each occupies a pid.
        let children = files::read_if_there(&task.path().join("children"))?.unwrap_or_default();
        for pid in children.split_whitespace().filter_map(|word| word.parse::<i32>().ok()) {
            let status = files::read_if_there(Path::new(&format!("/proc/{pid}/status")))?.unwrap_or_default();
            let user = status
                .lines()
                .find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().next()?.parse().ok());
            let unborn = status.starts_with("Name:\trunc:[");
            if (unborn || user.is_some_and(|user| users.contains(&user))) && status.contains("\nState:\tZ") {
                reap(pid);
            }
        }
    }
    Ok(())
}

/// Returns the start time of a process in clock ticks since boot, or `None` if there is no such process.
pub(crate) fn start_time(pid: i32) -> Result<Option<u64>, Error> {
    let Some(stat) = files::read_if_there(Path::new(&format!("/proc/{pid}/stat")))? else { return Ok(None) };
    // The command name may contain any characters, including parentheses and spaces; the last `)` terminates
    // it. The start time is field 22, the twentieth after the name.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    Ok(after_name.split_whitespace().nth(19).and_then(|word| word.parse().ok()))
}

/// Returns the kernel's ID for the current boot.
pub(crate) fn boot_id() -> Result<String, Error> {
    Ok(files::read(Path::new("/proc/sys/kernel/random/boot_id"))?.trim().to_owned())
}

/// Makes this process adopt its orphaned descendants.
///
/// An OCI runtime starts a sandbox's process 1 and exits. Without this call, the machine's init process would
/// adopt the sandbox's process 1. This process could then not read the exit status, and a zombie would remain
/// until the init process reaps it.
pub(crate) fn inherit_orphans() -> Result<(), Error> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(|error| Error::System {
        act: "become the reaper of orphaned sandbox processes".into(),
        source: error.into(),
    })
}

/// The destination of a command's error messages, which become part of the error if the command fails.
pub(crate) enum Words<'a> {
    /// The command's standard error, which is an in-memory file.
    Stderr,
    /// A named pipe at this path, which the command uses as its log. The command's standard error is
    /// `/dev/null`, because processes that the command leaves behind inherit it. They inherit the log too, so
    /// the log is a pipe and not a file, which could grow without limit.
    Log(&'a Path),
}

/// Runs the operations and then the command, and waits until the command has ended.
pub(crate) fn run(
    command: &Command,
    operations: &[Operation],
    words: &Words<'_>,
    within: Duration,
) -> Result<(), Error> {
    let (kept, stderr) = match words {
        Words::Stderr => {
            let file = memory_file()?;
            let copy = file.try_clone().map_err(|source| child::cannot_run(command, source))?;
            (file, Some(OwnedFd::from(copy)))
        }
        Words::Log(path) => (named_pipe(path)?, None),
    };
    let started = child::spawn(command, operations, stderr.as_ref())?;
    let status = wait_child(&started, within).map_err(|source| child::cannot_run(command, source))?;
    let Some(status) = status else {
        return Err(Error::Deadline { what: "a command of the OCI runtime or the system", after: within });
    };
    if status.exit_status() == Some(0) {
        return Ok(());
    }
    let stderr = match words {
        Words::Stderr => tail(kept),
        Words::Log(_) => last_words(kept),
    };
    Err(Error::Command { argv: child::shown(command), status: said(status), stderr })
}

/// Waits for a child. At the deadline, kills it and returns `None`.
fn wait_child(child: &Child, within: Duration) -> io::Result<Option<WaitStatus>> {
    let ended = wait_readable(&child.descriptor, Instant::now() + within);
    if !ended {
        child.kill()?;
    }
    child.collect().map(|status| ended.then_some(status))
}

/// Waits until the descriptor is readable or its other end is closed. Returns false if the deadline passes
/// first.
pub(crate) fn wait_readable(descriptor: &OwnedFd, deadline: Instant) -> bool {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        match rustix::event::poll(&mut [PollFd::new(descriptor, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return false,
            Err(rustix::io::Errno::INTR) => {}
            Ok(_) | Err(_) => return true,
        }
    }
}

fn collect(who: WaitId<'_>) -> Option<Exit> {
    let status = rustix::process::waitid(who, WaitIdOptions::EXITED | WaitIdOptions::NOHANG).ok()??;
    status.exit_status().map(Exit::Exited).or_else(|| status.terminating_signal().map(Exit::Signaled))
}

fn memory_file() -> Result<File, Error> {
    rustix::fs::memfd_create("stderr", rustix::fs::MemfdFlags::CLOEXEC)
        .map(File::from)
        .map_err(|error| Error::System { act: "create a memory file".into(), source: error.into() })
}

/// Creates a named pipe and opens its reading end. The pipe holds up to 64 KiB, which is the kernel's pipe
/// capacity.
fn named_pipe(path: &Path) -> Result<File, Error> {
    let mode = Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(CWD, path, FileType::Fifo, mode, 0)
        .map_err(|error| files::failed("make", path, error.into()))?;
    rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
        .map(File::from)
        .map_err(|error| files::failed("open", path, error.into()))
}

fn tail(mut file: File) -> String {
    let length = file.metadata().map_or(0, |metadata| metadata.len());
    let moved = file.seek(SeekFrom::Start(length.saturating_sub(STDERR_BYTES)));
    if moved.is_ok() { last_words(file) } else { String::new() }
}

/// Reads the available data and returns its last part, up to `STDERR_BYTES`.
fn last_words(mut file: File) -> String {
    let mut bytes = Vec::new();
    // Ignore errors: a read from a pipe that still has a writer returns an error after the available data.
    let _ = file.by_ref().take(PIPE_BYTES).read_to_end(&mut bytes);
    let kept = usize::try_from(STDERR_BYTES).unwrap_or(usize::MAX);
    let tail = bytes.split_at(bytes.len().saturating_sub(kept)).1;
    String::from_utf8_lossy(tail).trim().to_owned()
}

fn said(status: WaitStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "no status".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_command_keeps_argv_status_and_stderr() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such luck >&2; exit 3"]);
        let error = run(&command, &[], &Words::Stderr, Duration::from_secs(5)).unwrap_err();
        let Error::Command { argv, status, stderr } = error else { panic!("{error:?}") };
        assert!(argv.starts_with("sh -c"));
        assert_eq!((status.as_str(), stderr.as_str()), ("status 3", "no such luck"));
    }

    #[test]
    fn a_command_ends_at_its_deadline() {
        let mut command = Command::new("sleep");
        let error = run(command.arg("60"), &[], &Words::Stderr, Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error, Error::Deadline { .. }), "{error:?}");
    }

    #[test]
    fn a_process_is_known_by_its_start_time_too() {
        let own = i32::try_from(std::process::id()).unwrap();
        let process = ProcessHandle::open(own).unwrap().unwrap();
        assert!(process.is_alive());
        let other = Identity { start: process.identity.start + 1, ..process.identity };
        assert!(ProcessHandle::reopen(other).unwrap().is_none());
        assert!(ProcessHandle::reopen(process.identity).unwrap().is_some());
    }
}
