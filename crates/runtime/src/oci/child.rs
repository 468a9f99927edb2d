//! Children that share this process's memory, until they become a program or end.
//!
//! A fork copies the tables of its parent's memory, and makes every page of it be copied when it is next written to. For a
//! server with a thousand sandboxes that takes longer than everything else that a start does itself. A child that shares the
//! memory costs the same whoever makes it; in return it must touch nothing but what was made for it beforehand.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::ptr;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use super::mounts::{Failure, Operation, c_string};
use crate::Error;

/// What the deepest of the calls here needs many times over.
const STACK_BYTES: usize = 64 << 10;
/// Where commands are looked for, by us and by themselves.
const DIRECTORIES: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];
const ENVIRONMENT: &CStr = c"PATH=/usr/sbin:/usr/bin:/sbin:/bin";
/// The kernel's signals, those included that a C library keeps to itself and will not change.
const SIGNALS: std::ops::RangeInclusive<c_int> = 1..=64;
/// The kernel's `struct sigaction` for `SIG_DFL`: handler, flags, restorer and mask, none of which is anything.
static DEFAULT_ACTION: [u64; 4] = [0; 4];
/// What the status of a child says that could not become its program.
const NO_PROGRAM: c_int = 127;

/// A child that has not been waited for.
pub(crate) struct Child {
    /// By which its end is seen.
    pub descriptor: OwnedFd,
    pid: Pid,
}

/// What a child stands on while it shares our memory. It must be kept until the child has ended or become a program.
pub(crate) struct Stack(Vec<u128>);

/// A command with all its strings, for a child that may make none.
struct Becoming<'a> {
    operations: &'a [Operation],
    paths: Vec<CString>,
    /// These end with a null pointer.
    argv: Vec<*const c_char>,
    environment: [*const c_char; 2],
    streams: [RawFd; 3],
    /// Written by the child, in memory that is ours as well.
    failure: Option<Failure>,
}

/// Starts a command that runs `operations` before it becomes what it is to be. It has no standard input and output, and of the
/// environment only `PATH`.
pub(crate) fn spawn(
    command: &Command,
    operations: &[Operation],
    stderr: Option<&OwnedFd>,
) -> Result<Child, Error> {
    let null = std::fs::File::options().read(true).write(true).open("/dev/null");
    let null = null.map_err(|source| cannot_run(command, source))?;
    let words: Vec<CString> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(c_string)
        .collect::<Result<_, _>>()?;
    let mut becoming = Becoming {
        operations,
        paths: paths(command.get_program())?,
        argv: words.iter().map(|word| word.as_ptr()).chain([ptr::null()]).collect(),
        environment: [ENVIRONMENT.as_ptr(), ptr::null()],
        streams: [null.as_raw_fd(), null.as_raw_fd(), stderr.map_or(null.as_raw_fd(), AsRawFd::as_raw_fd)],
        failure: None,
    };
    let mut stack = Stack::new();
    // SAFETY: with this flag the call returns when the child has become a program or ended, and until then nobody else touches
    // `becoming`. The child makes system calls on strings and descriptors made beforehand; it neither allocates nor locks.
    let child = unsafe { stack.start(libc::CLONE_VFORK, become_it, (&raw mut becoming).cast()) };
    let child = child.map_err(|source| cannot_run(command, source))?;
    match becoming.failure {
        None => Ok(child),
        Some(failure) => {
            let _ = child.collect();
            Err(failure.explain(operations).unwrap_or_else(|source| cannot_run(command, source)))
        }
    }
}

/// The error of a command that could not be started or waited for.
pub(crate) fn cannot_run(command: &Command, source: io::Error) -> Error {
    Error::System { act: format!("run `{}`", shown(command)), source }
}

/// A command line for people.
pub(crate) fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Where a program may be.
fn paths(program: &OsStr) -> Result<Vec<CString>, Error> {
    if program.as_bytes().contains(&b'/') {
        return Ok(vec![c_string(program)?]);
    }
    DIRECTORIES
        .iter()
        .map(|directory| c_string(std::path::Path::new(directory).join(program).as_os_str()))
        .collect()
}

impl Child {
    /// Its number, which stays its own until it is collected.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Ends it.
    pub(crate) fn kill(&self) -> io::Result<()> {
        Ok(rustix::process::pidfd_send_signal(&self.descriptor, Signal::KILL)?)
    }

    /// Waits for its end and takes its status. Call it once.
    pub(crate) fn collect(&self) -> io::Result<WaitStatus> {
        loop {
            match rustix::process::waitpid(Some(self.pid), WaitOptions::empty()) {
                Ok(Some((_, status))) => return Ok(status),
                Ok(None) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Stack {
    pub(crate) fn new() -> Self {
        Self(vec![0; STACK_BYTES / size_of::<u128>()])
    }

    /// Starts a child that runs `work` in our memory, with no signal but those that cannot be refused.
    ///
    /// # Safety
    /// Until the child has become a program or ended, this stack and what `given` points to stay where they are; `work`
    /// touches nothing else of this process's memory.
    pub(crate) unsafe fn start(
        &mut self,
        flags: c_int,
        work: extern "C" fn(*mut c_void) -> c_int,
        given: *mut c_void,
    ) -> io::Result<Child> {
        let flags = flags | libc::CLONE_VM | libc::CLONE_PIDFD | libc::SIGCHLD;
        let top = self.0.as_mut_ptr_range().end.cast();
        let mut descriptor: RawFd = -1;
        // A handler of ours must not run in the child: what it would write to is the parent's.
        let mask = signals_blocked()?;
        // SAFETY: stacks grow downwards from one past the end; for the rest the caller answers.
        let pid = unsafe { libc::clone(work, top, flags, given, &raw mut descriptor) };
        let error = io::Error::last_os_error();
        // SAFETY: a mask that the kernel has given, and nothing is asked for.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, ptr::null_mut()) };
        let pid = Pid::from_raw(pid.max(0)).ok_or(error)?;
        // SAFETY: the call has made this descriptor, and nobody else has it.
        Ok(Child { descriptor: unsafe { OwnedFd::from_raw_fd(descriptor) }, pid })
    }
}

/// Blocks all signals of this thread, and gives those that were blocked before.
fn signals_blocked() -> io::Result<libc::sigset_t> {
    // SAFETY: both are plain numbers, which the calls fill.
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
    // SAFETY: the pointers are to two sets of this stack.
    let error = unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before)
    };
    if error == 0 { Ok(before) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// What a child does that is to become a program. That it returns is its end.
extern "C" fn become_it(given: *mut c_void) -> c_int {
    // SAFETY: `spawn` gives this, and waits.
    let becoming = unsafe { &mut *given.cast::<Becoming<'_>>() };
    becoming.failure = Some(becoming.run());
    NO_PROGRAM
}

impl Becoming<'_> {
    /// Returns only if it could not be.
    fn run(&self) -> Failure {
        for (number, stream) in (0..).zip(self.streams) {
            // SAFETY: no pointers; the stream is open.
            if unsafe { libc::dup2(stream, number) } < 0 {
                return Failure::of_program(errno());
            }
        }
        if let Err(errno) = rustix::process::chdir(c"/") {
            return Failure::of_program(errno);
        }
        for (index, operation) in self.operations.iter().enumerate() {
            if let Err(failure) = operation.run(index) {
                return failure;
            }
        }
        // What we ignore or handle, or were started with, is no concern of the program's. Asked of the kernel: a C library keeps some
        // signals to itself, and what another one was linked with has left them ignored.
        for signal in SIGNALS {
            // SAFETY: the kernel reads the action, which stays; no old one is asked for.
            unsafe {
                libc::syscall(
                    libc::SYS_rt_sigaction,
                    signal,
                    &raw const DEFAULT_ACTION,
                    ptr::null::<[u64; 4]>(),
                    size_of::<u64>(),
                )
            };
        }
        // SAFETY: plain numbers, which the first call fills and the second reads.
        unsafe {
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
        }
        let mut reason = Errno::NOENT;
        for path in &self.paths {
            // SAFETY: strings and arrays as the kernel wants them, made by the parent.
            unsafe { libc::execve(path.as_ptr(), self.argv.as_ptr(), self.environment.as_ptr()) };
            reason = errno();
            if reason != Errno::NOENT {
                break;
            }
        }
        Failure::of_program(reason)
    }
}

fn errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_nowhere_is_told_and_leaves_no_child() {
        let command = Command::new("nothing-of-that-name");
        let Err(Error::System { act, source }) = spawn(&command, &[], None) else { panic!("it was found") };
        assert_eq!((act.as_str(), source.kind()), ("run `nothing-of-that-name`", io::ErrorKind::NotFound));
    }

    #[test]
    fn a_program_has_default_signals_a_fixed_path_and_no_streams_of_ours() {
        // A signal that this C library would not touch, as a program that was linked with another one leaves it.
        let ignore: [u64; 4] = [libc::SIG_IGN as u64, 0, 0, 0];
        // SAFETY: the kernel reads the action; nobody here uses this signal.
        let done = unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                32,
                &raw const ignore,
                ptr::null::<[u64; 4]>(),
                size_of::<u64>(),
            )
        };
        assert_eq!(done, 0);
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "test $PATH = /usr/sbin:/usr/bin:/sbin:/bin || exit 3; \
             test \"$(readlink /proc/self/fd/0)\" = /dev/null || exit 4; \
             grep -q 'SigIgn:.0000000000000000' /proc/self/status || exit 5; \
             grep -q 'SigBlk:.0000000000000000' /proc/self/status || exit 6; \
             test $PWD = / || exit 7",
        ]);
        let status = spawn(&command, &[], None).unwrap().collect().unwrap();
        assert_eq!(status.exit_status(), Some(0));
    }
}
