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

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::time::Duration;

use api::exec::{ExecSpec, Stream};
use api::terminal::TerminalSize;
use api::{Error, ErrorCode, Layer, Ran, Retry, limits};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitId, WaitIdOptions};
use tokio::io::Interest;

use crate::belonging::made_for;
use crate::descent::{Descent, never_root, no_namespaces};
use crate::sweep::{self, Whom};
use crate::terminal::{self, Pair};
use crate::watched::{Watched, watch};

/// Address of the egress proxy; [`crate::egress`] listens there.
const PROXY: &str = "http://127.0.0.1:3128";
/// Destinations inside the sandbox, which do not need the proxy.
const NO_PROXY: &str = "localhost,127.0.0.1,::1";
/// Environment variables of every exec. None is taken from the host. Both spellings of the proxy variables
/// are set, because some programs read only one of them.
const ENVIRONMENT: [(&str, &str); 16] = [
    ("ALL_PROXY", PROXY),
    ("HTTPS_PROXY", PROXY),
    ("HTTP_PROXY", PROXY),
    ("NODE_USE_ENV_PROXY", "1"),
    ("NO_PROXY", NO_PROXY),
    ("all_proxy", PROXY),
    ("http_proxy", PROXY),
    ("https_proxy", PROXY),
    ("no_proxy", NO_PROXY),
    ("HOME", "/home/sandbox"),
    ("LANG", "C.UTF-8"),
    ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("SHELL", "/bin/sh"),
    ("TMPDIR", "/tmp"),
    ("TZ", "UTC"),
    ("USER", limits::USER),
];
/// Default terminal type. All current terminal emulators understand it.
const TERM: (&str, &str) = ("TERM", "xterm-256color");
/// Default working directory.
pub const DIRECTORY: &str = "/workspace";
/// Size of output pipes. Large pipes allow fewer and larger reads of a flood of output, and Linux allows
/// every user up to 1 MiB.
const PIPE_BYTES: usize = 1 << 20;
/// Capabilities that root keeps in a sandbox that has a root: CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL,
/// SETGID and SETUID, which package managers need. Process 1 has more, so root cannot trace or inspect it.
const BUILDS: u64 = 0b1111_1011;

/// Lowest descriptor number for the copies made for a child. It is above all numbers that the child assigns.
const EXTRA_FROM: RawFd = 16;

/// Interval between checks of a child that is starting. Fork to exec normally takes a millisecond. If a child
/// takes longer than this interval, another process of the same user may have stopped it.
const VERDICT_LOOK_EVERY: Duration = Duration::from_secs(2);
/// Maximum number of checks of a child that is starting. A child that is slow but not stopped gets this many
/// intervals, because the machine is then overloaded.
const VERDICT_LOOKS: u32 = 4;

/// Purpose of the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Runs code: by default, an exec runs as the sandbox's user.
    Run,
    /// Like `Run`, but an exec may request to run as root of the sandbox's user namespace.
    Rooted,
    /// Runs the steps of a template's recipe, as root of the sandbox's user namespace.
    Build,
}

impl Purpose {
    fn uid(self) -> u32 {
        match self {
            Self::Run | Self::Rooted => limits::UID,
            Self::Build => 0,
        }
    }

    /// Returns true if an exec may run as root.
    pub fn has_root(self) -> bool {
        match self {
            Self::Run => false,
            Self::Rooted | Self::Build => true,
        }
    }

    /// Returns the identity of a process that belongs to an exec.
    pub fn identity(self, spec: &ExecSpec, group: u32) -> Identity {
        let uid = spec.uid.unwrap_or(self.uid());
        let capabilities = if self.has_root() && uid == 0 { BUILDS } else { 0 };
        Identity { uid, group, capabilities, nested: false }
    }
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

/// Pending result of a start: success if the process executed its program.
pub struct PendingStart {
    pid: Pid,
    /// Receives the error number of a failed start; closes on success.
    pipe: OwnedFd,
}

/// The guest's ends of a process's streams.
pub struct Ends {
    /// Output streams, for reading.
    pub streams: Vec<(Stream, Rc<Watched>)>,
    /// Standard input, for writing, if the process has one.
    pub stdin: Option<Rc<Watched>>,
    /// Terminal, if the process has one. It is also the only output stream and the standard input.
    pub terminal: Option<Terminal>,
}

/// The terminal of a process.
pub struct Terminal {
    /// The guest's end of the terminal.
    pub master: Rc<Watched>,
    /// The other end, held open so that the terminal does not hang up when the processes close theirs.
    pub _slave: OwnedFd,
}

/// The process's ends of its streams, which the guest holds until the fork.
pub struct Theirs {
    /// Standard input.
    pub stdin: OwnedFd,
    /// Standard output.
    pub stdout: OwnedFd,
    /// Standard error.
    pub stderr: OwnedFd,
}

/// User, groups and capabilities of a process.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// User of the process. Its primary group has the same number.
    pub uid: u32,
    /// Exec group: the supplementary group ID by which the guest finds the process.
    pub group: u32,
    /// Capabilities that the process keeps, as a bit mask. A process that keeps capabilities without being
    /// root can never become root: see [`crate::descent`].
    pub capabilities: u64,
    /// True if the process is root of its own user namespace, and has no privileges outside of it.
    pub nested: bool,
}

impl Identity {
    /// Returns the seccomp filter for the process. In a user-space kernel, the sandbox's own filter allows
    /// creating user namespaces, because the parent interpreter needs one. This filter forbids them for user
    /// code.
    fn filter(self, in_user_kernel: bool) -> Vec<libc::sock_filter> {
        match self.uid != 0 && self.capabilities != 0 && !self.nested {
            true => never_root(),
            false if in_user_kernel => no_namespaces(),
            false => Vec::new(),
        }
    }
}

/// Arguments of `execve`, in the form that the kernel expects.
struct Program {
    paths: Vec<CString>,
    argv: Vec<*const libc::c_char>,
    env: Vec<*const libc::c_char>,
    /// Storage that the pointers refer to.
    _strings: Vec<CString>,
}

/// Starts the command of `spec` with the identity `who`, in the given cgroups. The process gets `extra` as
/// descriptors 3 and up. [`verdict`] reports whether the process executed the program.
pub fn launch(
    spec: &ExecSpec,
    who: Identity,
    cgroups: &[OwnedFd],
    extra: &[OwnedFd],
) -> Result<Launched, Error> {
    let failed = |error: io::Error| spawn_failed(spec, &error);
    // Copy the descriptors to higher numbers than the child assigns, so that no assignment overwrites a copy.
    let moved = |from: &OwnedFd| Ok(rustix::io::fcntl_dupfd_cloexec(from, EXTRA_FROM)?);
    let extra: Vec<OwnedFd> = extra.iter().map(moved).collect::<io::Result<_>>().map_err(failed)?;
    let descent = Descent {
        cgroups: cgroups.iter().map(AsRawFd::as_raw_fd).collect(),
        uid: who.uid,
        groups: [who.group],
        capabilities: who.capabilities,
        extra: extra.iter().map(AsRawFd::as_raw_fd).collect(),
        directory: c_string(spec.cwd.as_deref().unwrap_or(DIRECTORY)).map_err(failed)?,
        terminal: spec.terminal.is_some(),
        nested: who.nested,
        filter: who.filter(cgroups.is_empty()),
    };
    let program = Program::new(spec).map_err(failed)?;
    let (said, verdict_child) = pipe().map_err(failed)?;
    let verdict_child = moved(&verdict_child).map_err(failed)?;
    // Without cgroups to join, the kernel may be gVisor, a user-space kernel. There, a process can open the
    // descriptors of process 1, and of a child before its exec, through `/proc`, unless a different user owns
    // the pipes.
    let owner = if cgroups.is_empty() { 0 } else { descent.uid };
    let (ends, theirs) = match spec.terminal {
        Some(size) => on_terminal(spec, size, who.uid)?,
        None => on_pipes(spec.stdin, owner).map_err(failed)?,
    };
    let streams = [theirs.stdin.as_raw_fd(), theirs.stdout.as_raw_fd(), theirs.stderr.as_raw_fd()];
    // SAFETY: This process has one thread, and the child only makes system calls on memory that was allocated
    // before the fork.
    let pid = match unsafe { libc::fork() } {
        0 => become_program(&descent, &program, streams, verdict_child.as_raw_fd()),
        pid => Pid::from_raw(pid).filter(|_| pid > 0),
    };
    let pid = pid.ok_or_else(|| failed(io::Error::last_os_error()))?;
    Ok(Launched { pid, verdict: PendingStart { pid, pipe: said }, ends })
}

/// Creates the pipes of a process, owned by `uid`. If `stdin` is false, its standard input is `/dev/null`.
pub fn on_pipes(stdin: bool, uid: u32) -> io::Result<(Ends, Theirs)> {
    let ((stdout, stdout_child), (stderr, stderr_child), stdin) =
        made_for(uid, || Ok((pipe()?, pipe()?, stdin.then(pipe).transpose()?)))?;
    for pipe in [&stdout, &stderr] {
        let _ = rustix::pipe::fcntl_setpipe_size(pipe, PIPE_BYTES);
    }
    let (stdin_child, stdin) = match stdin {
        Some((child, ours)) => (child, Some(Rc::new(watch(ours, Interest::WRITABLE)?))),
        None => (null()?, None),
    };
    let read = |pipe| watch(pipe, Interest::READABLE).map(Rc::new);
    let streams = vec![(Stream::Stdout, read(stdout)?), (Stream::Stderr, read(stderr)?)];
    let theirs = Theirs { stdin: stdin_child, stdout: stdout_child, stderr: stderr_child };
    Ok((Ends { streams, stdin, terminal: None }, theirs))
}

/// Opens one terminal for all three streams.
fn on_terminal(spec: &ExecSpec, size: TerminalSize, uid: u32) -> Result<(Ends, Theirs), Error> {
    let opened = terminal::open(size, uid);
    let Pair { master, slave } = opened.map_err(|error| match terminal::is_full(&error) {
        true => no_terminal(),
        false => spawn_failed(spec, &error),
    })?;
    let shared = || -> io::Result<(Ends, Theirs)> {
        let master = Rc::new(watch(master, Interest::READABLE | Interest::WRITABLE)?);
        let theirs =
            Theirs { stdin: slave.try_clone()?, stdout: slave.try_clone()?, stderr: slave.try_clone()? };
        let streams = vec![(Stream::Stdout, Rc::clone(&master))];
        let (stdin, terminal) = (Some(Rc::clone(&master)), Some(Terminal { master, _slave: slave }));
        Ok((Ends { streams, stdin, terminal }, theirs))
    };
    shared().map_err(|error| spawn_failed(spec, &error))
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(pipe_with(PipeFlags::CLOEXEC)?)
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

/// Returns all environment variables of a process.
pub fn environment(spec: &ExecSpec) -> BTreeMap<&str, &str> {
    let mut env: BTreeMap<&str, &str> = ENVIRONMENT.into_iter().chain(spec.terminal.map(|_| TERM)).collect();
    env.extend(spec.env.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    env
}

impl Program {
    fn new(spec: &ExecSpec) -> io::Result<Self> {
        let name = spec.argv.first().map_or("", String::as_str);
        let env = environment(spec);
        let paths = if name.contains('/') {
            vec![c_string(name)?]
        } else {
            let path = env.get("PATH").copied().unwrap_or_default();
            path.split(':')
                .map(|directory| c_string(&format!("{directory}/{name}")))
                .collect::<io::Result<_>>()?
        };
        let words = spec.argv.iter().map(|word| c_string(word)).collect::<io::Result<Vec<_>>>()?;
        let variables = env
            .iter()
            .map(|(name, value)| c_string(&format!("{name}={value}")))
            .collect::<io::Result<Vec<_>>>()?;
        let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
            strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
        };
        let (argv, env) = (pointers(&words), pointers(&variables));
        Ok(Self { paths, argv, env, _strings: words.into_iter().chain(variables).collect() })
    }

    /// Executes the first path that can be executed. Returns the error if none can.
    fn become_it(&self) -> libc::c_int {
        let mut reason = libc::ENOENT;
        for path in &self.paths {
            // SAFETY: The strings are NUL-terminated, both arrays end with a null pointer, and all were
            // created before the fork.
            unsafe { libc::execve(path.as_ptr(), self.argv.as_ptr(), self.env.as_ptr()) };
            match errno() {
                libc::ENOENT | libc::ENOTDIR => {}
                // A later directory in `PATH` may have an executable file with this name. If none does,
                // report this error.
                libc::EACCES => reason = libc::EACCES,
                other => return other,
            }
        }
        reason
    }
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

fn c_string(text: &str) -> io::Result<CString> {
    CString::new(text).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn null() -> io::Result<OwnedFd> {
    // SAFETY: The path is NUL-terminated, and the call reads no third argument with these flags.
    let descriptor = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    done(descriptor)?;
    // SAFETY: The descriptor was just opened, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn errno() -> libc::c_int {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)
}

/// Converts the result of a system call, which is negative on failure.
pub fn done(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the error for a sandbox whose terminals are all in use, by execs or by user code.
pub fn no_terminal() -> Error {
    Error {
        code: ErrorCode::Capacity,
        message: format!("the sandbox has no free terminals; the maximum is {}", limits::TERMINALS_MAX),
        layer: Layer::Sandbox,
        ran: Ran::No,
        retry: Retry::Safe,
        fix: "Close some terminals of the sandbox, or stop programs in it that open their own terminals."
            .into(),
    }
}

fn spawn_failed(spec: &ExecSpec, error: &io::Error) -> Error {
    let directory = spec.cwd.as_deref().unwrap_or(DIRECTORY);
    let program = spec.argv.first().map_or("", String::as_str);
    let shown: String = program.chars().take(limits::ARGV_SHOWN_BYTES).collect();
    let fix = match error.raw_os_error() {
        Some(libc::ENOENT) => format!(
            "Check that {shown:?} (or the interpreter named in its first line) exists in the sandbox and is in PATH, \
             and that the directory {directory:?} exists."
        ),
        Some(libc::EACCES) => format!(
            "Make {shown:?} executable for the user (chmod +x), and check that the directory {directory:?} is \
             accessible."
        ),
        Some(libc::ENOEXEC) => {
            "The file is not executable on this machine and has no #! line. Run it with its interpreter."
                .into()
        }
        Some(libc::E2BIG) => {
            "Shorten argv and env, or pass the data through standard input or a file.".into()
        }
        Some(libc::EAGAIN) => "Stop some processes in the sandbox, or request a larger `pids` limit.".into(),
        _ if error.kind() == io::ErrorKind::TimedOut => {
            "Retry. If the error persists, check what else runs in the sandbox (`bellglass top`).".into()
        }
        _ => "Check the program, its interpreter and its working directory.".into(),
    };
    // The sandbox has run out of descriptors or memory, which is not the command's fault.
    if let Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) = error.raw_os_error()
        && !api::defence::is_off("C-38")
    {
        return Error {
            code: ErrorCode::Capacity,
            message: format!("cannot start {shown:?}: {error}"),
            layer: Layer::Sandbox,
            ran: Ran::No,
            retry: Retry::Safe,
            fix: "Stop the processes in the sandbox that hold the most open files or memory (`bellglass top`), then retry.".into(),
        };
    }
    let passes = error.raw_os_error() == Some(libc::EAGAIN) || error.kind() == io::ErrorKind::TimedOut;
    Error {
        code: ErrorCode::SpawnFailed,
        message: format!("cannot start {shown:?} in {directory:?}: {error}"),
        layer: Layer::UserCode,
        ran: Ran::No,
        retry: if passes { Retry::Safe } else { Retry::Useless },
        fix,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_pointed_at_the_port_on_which_the_way_out_is() {
        assert_eq!(PROXY, format!("http://127.0.0.1:{}", api::policy::PROXY_PORT));
    }
}
