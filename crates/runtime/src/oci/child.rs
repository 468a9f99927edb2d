//! Child processes that share this process's memory until they execute a program or exit.
//!
//! A fork copies the parent's page tables, and then copies each page when it is next written to. In a server
//! with a thousand sandboxes, this takes longer than everything else that starting a sandbox involves. The
//! cost of a child that shares the memory does not depend on the parent's size. In return, the child may only
//! access data that was prepared for it.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::ptr;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use super::mounts::{ChildFailure, Operation, c_string};
use crate::Error;

/// Stack size of a child. It is many times larger than the deepest call in this module needs.
const STACK_BYTES: usize = 64 << 10;
/// Search path for commands. This module uses it to find a command, and passes it to the command in
/// `ENVIRONMENT`.
const DIRECTORIES: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];
const ENVIRONMENT: &CStr = c"PATH=/usr/sbin:/usr/bin:/sbin:/bin";
/// All of the kernel's signal numbers, including the ones that the C library reserves for itself.
const SIGNALS: std::ops::RangeInclusive<c_int> = 1..=64;
/// The kernel's `struct sigaction` for `SIG_DFL`: handler, flags, restorer and mask, all zero.
static DEFAULT_ACTION: [u64; 4] = [0; 4];
/// Exit status of a child that could not execute its program.
const NO_PROGRAM: c_int = 127;

/// A child that has not been reaped.
pub(crate) struct Child {
    /// The child's pidfd, which becomes readable when the child ends.
    pub descriptor: OwnedFd,
    pid: Pid,
}

/// The stack of a child that shares this process's memory. It must be kept until the child has ended or
/// executed a program.
pub(crate) struct Stack(Vec<u128>);

/// A command whose strings are all prepared in advance, because the child must not allocate.
struct Becoming<'a> {
    operations: &'a [Operation],
    paths: Vec<CString>,
    /// The command's arguments. This array and `environment` each end with a null pointer.
    argv: Vec<*const c_char>,
    environment: [*const c_char; 2],
    streams: [RawFd; 3],
    /// The child's failure, if there was one. The child writes it to the shared memory.
    failure: Option<ChildFailure>,
}

/// Starts a child that runs `operations` and then executes the command's program. The program's standard
/// input and output are `/dev/null`, and its environment contains only `PATH`.
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
    // SAFETY: with `CLONE_VFORK`, the call returns only after the child has executed its program or ended,
    // and until then nothing else accesses `becoming`. The child only makes system calls with strings and
    // descriptors that were prepared beforehand, and neither allocates memory nor takes locks.
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

/// Builds the error for a command that could not be started or waited for.
pub(crate) fn cannot_run(command: &Command, source: io::Error) -> Error {
    Error::System { act: format!("run `{}`", shown(command)), source }
}

/// Formats a command line for messages.
pub(crate) fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Returns the paths to try for a program.
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
    /// Returns the child's pid, which cannot be reused until the child is reaped.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Kills the child.
    pub(crate) fn kill(&self) -> io::Result<()> {
        Ok(rustix::process::pidfd_send_signal(&self.descriptor, Signal::KILL)?)
    }

    /// Waits until the child ends, and reaps it. Must be called exactly once.
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

    /// Starts a child that runs `work` in the shared memory, with all blockable signals blocked.
    ///
    /// # Safety
    /// Until the child has executed a program or ended, this stack and the value that `given` points to must
    /// not move or be dropped, and `work` must not access any other memory of this process.
    pub(crate) unsafe fn start(
        &mut self,
        flags: c_int,
        work: extern "C" fn(*mut c_void) -> c_int,
        given: *mut c_void,
    ) -> io::Result<Child> {
        let flags = flags | libc::CLONE_VM | libc::CLONE_PIDFD | libc::SIGCHLD;
        let top = self.0.as_mut_ptr_range().end.cast();
        let mut descriptor: RawFd = -1;
        // This process's signal handlers must not run in the child, because they would write to the parent's
        // memory.
        let mask = signals_blocked()?;
        // SAFETY: stacks grow downwards, so the pointer refers to the end of the stack; the caller guarantees
        // the rest.
        let pid = unsafe { libc::clone(work, top, flags, given, &raw mut descriptor) };
        let error = io::Error::last_os_error();
        // SAFETY: the mask comes from the kernel, and the null pointer means that no old mask is returned.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, ptr::null_mut()) };
        let pid = Pid::from_raw(pid.max(0)).ok_or(error)?;
        // SAFETY: the call created this descriptor, and nothing else owns it.
        Ok(Child { descriptor: unsafe { OwnedFd::from_raw_fd(descriptor) }, pid })
    }
}

/// Blocks all signals in this thread, and returns the previous mask.
fn signals_blocked() -> io::Result<libc::sigset_t> {
    // SAFETY: both are plain integers, for which zero is valid; the calls below fill them.
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer refers to a signal set on this stack.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: the pointers refer to two signal sets on this stack.
    let error = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
    if error == 0 { Ok(before) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// Entry point of a child that executes a program. Returns only on failure, and the child then ends.
extern "C" fn become_it(given: *mut c_void) -> c_int {
    // SAFETY: `spawn` passes a pointer to its `Becoming`, and waits until the child has ended or executed its
    // program.
    let becoming = unsafe { &mut *given.cast::<Becoming<'_>>() };
    becoming.failure = Some(becoming.run());
    NO_PROGRAM
}

impl Becoming<'_> {
    /// Prepares the child and executes the program. Returns only on failure.
    fn run(&self) -> ChildFailure {
        for (number, stream) in (0..).zip(self.streams) {
            // SAFETY: `dup2` takes no pointers, and the stream is open.
            if unsafe { libc::dup2(stream, number) } < 0 {
                return ChildFailure::of_program(errno());
            }
        }
        if let Err(errno) = rustix::process::chdir(c"/") {
            return ChildFailure::of_program(errno);
        }
        for (index, operation) in self.operations.iter().enumerate() {
            if let Err(failure) = operation.run(index) {
                return failure;
            }
        }
        // Reset all signals to their default actions. The program must not inherit signals that this process
        // ignores, including signals that were already ignored when this process started. Use the system call
        // directly: this C library reserves some signals and does not reset them, but a parent linked with a
        // different C library may have left them ignored.
        for signal in SIGNALS {
            // SAFETY: the kernel only reads the action, which is static; the null pointer means that no old
            // action is returned.
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
        // SAFETY: a set of plain integers, for which zero is valid.
        let mut none: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer refers to the set above.
        unsafe { libc::sigemptyset(&raw mut none) };
        // SAFETY: the call reads the set above; the null pointer means that no old set is returned.
        unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut()) };
        let mut reason = Errno::NOENT;
        for path in &self.paths {
            // SAFETY: the strings and the null-terminated arrays were prepared by the parent and outlive the
            // call.
            unsafe { libc::execve(path.as_ptr(), self.argv.as_ptr(), self.environment.as_ptr()) };
            reason = errno();
            if reason != Errno::NOENT {
                break;
            }
        }
        ChildFailure::of_program(reason)
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
        // Ignore a signal that this C library does not touch, as a program linked with a different C library
        // may do.
        let ignore: [u64; 4] = [libc::SIG_IGN as u64, 0, 0, 0];
        // SAFETY: the kernel only reads the action, and no code in this test process uses this signal.
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
