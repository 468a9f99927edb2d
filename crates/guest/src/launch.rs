//! The one place that makes a process.
//!
//! Between fork and exec the child joins the cgroup of user code, takes its three descriptors (pipes, or one terminal,
//! which then is its session's), loses every privilege and only then enters its directory and becomes the program: nothing that user code can influence
//! happens before the last restriction holds.
//!
//! From the moment it has its uid, other processes of that uid can send it signals, SIGSTOP among them. So the guest
//! never blocks on it: its verdict comes through a pipe, and is awaited beside everything else, with a deadline.

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

/// Where the way out is; [`crate::egress`] listens there.
const PROXY: &str = "http://127.0.0.1:3128";
/// What is inside needs no way out.
const NO_PROXY: &str = "localhost,127.0.0.1,::1";
/// The few variables every exec has. Nothing of the host is among them. Programs do not agree on how to write those of a proxy.
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
/// What a program on a terminal may expect of it, unless the request says otherwise: all that draw today know it.
const TERM: (&str, &str) = ("TERM", "xterm-256color");
/// Where a process begins, unless it is told otherwise.
pub const DIRECTORY: &str = "/workspace";
/// Fewer, larger reads carry a flood of output; Linux grants 1 MiB to anybody.
const PIPE_BYTES: usize = 1 << 20;
/// What root keeps where there is one: CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID and SETUID, which is what
/// package managers take. Not what process 1 has besides, so that it is out of reach.
const BUILDS: u64 = 0b1111_1011;

/// Above all descriptors that a process is given by number.
const EXTRA_FROM: RawFd = 16;

/// From fork to exec takes a millisecond; what takes this long may have been stopped by another process of its user.
const VERDICT_LOOK_EVERY: Duration = Duration::from_secs(2);
/// What was not stopped is on a machine that has no time for it, which is waited for.
const VERDICT_LOOKS: u32 = 4;

/// What the sandbox is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To run code: an exec that does not say who it runs as is the sandbox's user.
    Run,
    /// The same, where one may say that it runs as root of the sandbox's own user namespace.
    Rooted,
    /// To run the steps of a recipe: it is root of the sandbox's own user namespace.
    Build,
}

impl Purpose {
    fn uid(self) -> u32 {
        match self {
            Self::Run | Self::Rooted => limits::UID,
            Self::Build => 0,
        }
    }

    /// Whether anybody may be root.
    pub fn has_root(self) -> bool {
        match self {
            Self::Run => false,
            Self::Rooted | Self::Build => true,
        }
    }

    /// Who a process of an exec is.
    pub fn identity(self, spec: &ExecSpec, group: u32) -> Identity {
        let uid = spec.uid.unwrap_or(self.uid());
        let capabilities = if self.has_root() && uid == 0 { BUILDS } else { 0 };
        Identity { uid, group, capabilities, nested: false }
    }
}

/// A process that is becoming a program, and our ends of its streams.
pub struct Launched {
    /// The process.
    pub pid: Pid,
    /// Whether it became its program.
    pub verdict: Verdict,
    /// Our ends.
    pub ends: Ends,
}

/// A process of which it is not known yet whether it became its program.
pub struct Verdict {
    pid: Pid,
    /// Says why it could not; closes when it has.
    pipe: OwnedFd,
}

/// Our ends of a process's streams.
pub struct Ends {
    /// Where its output can be read.
    pub streams: Vec<(Stream, Rc<Watched>)>,
    /// Where its standard input can be written, if it has one.
    pub stdin: Option<Rc<Watched>>,
    /// Its terminal, if it has one: the same as its one stream and its input.
    pub terminal: Option<Terminal>,
}

/// The terminal of a process.
pub struct Terminal {
    /// Our end.
    pub master: Rc<Watched>,
    /// The other end, held so that nobody but us closes it for good.
    pub _slave: OwnedFd,
}

/// The process's ends of its streams, until it is forked.
pub struct Theirs {
    /// Standard input.
    pub stdin: OwnedFd,
    /// Standard output.
    pub stdout: OwnedFd,
    /// Standard error.
    pub stderr: OwnedFd,
}

/// Who a process is.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// Its user, and the group of the same number.
    pub uid: u32,
    /// Its extra group, by which it is found.
    pub group: u32,
    /// The capabilities that it keeps, as bits. Who keeps some without being root can never become root: see [`crate::descent`].
    pub capabilities: u64,
    /// Whether it is root of a user namespace of its own, and nothing outside.
    pub nested: bool,
}

impl Identity {
    /// What it may not call. In a kernel in user space the sandbox's own filter lets process 1 make a user namespace, for the one
    /// process that needs one: everybody else is kept from it here.
    fn filter(self, in_user_kernel: bool) -> Vec<libc::sock_filter> {
        match self.uid != 0 && self.capabilities != 0 && !self.nested {
            true => never_root(),
            false if in_user_kernel => no_namespaces(),
            false => Vec::new(),
        }
    }
}

/// What the child needs to become the program, as the kernel wants it.
struct Program {
    paths: Vec<CString>,
    argv: Vec<*const libc::c_char>,
    env: Vec<*const libc::c_char>,
    /// What the pointers point to.
    _strings: Vec<CString>,
}

/// Starts the command of `spec` as `who`, in the cgroups whose descriptors are given, with `extra` from descriptor 3 on. Whether
/// it became the program is said by [`verdict`].
pub fn launch(
    spec: &ExecSpec,
    who: Identity,
    cgroups: &[OwnedFd],
    extra: &[OwnedFd],
) -> Result<Launched, Error> {
    let failed = |error: io::Error| spawn_failed(spec, &error);
    // Out of the way of the numbers that they get.
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
    // Without a cgroup to enter we are on a kernel in user space (gVisor), under which every process of a user can name our
    // descriptors and those of a child that is not its program yet: there, only that they are not its own keeps them from it.
    let owner = if cgroups.is_empty() { 0 } else { descent.uid };
    let (ends, theirs) = match spec.terminal {
        Some(size) => on_terminal(spec, size, who.uid)?,
        None => on_pipes(spec.stdin, owner).map_err(failed)?,
    };
    let streams = [theirs.stdin.as_raw_fd(), theirs.stdout.as_raw_fd(), theirs.stderr.as_raw_fd()];
    // SAFETY: this process has one thread, and the child makes only system calls on memory made before.
    let pid = match unsafe { libc::fork() } {
        0 => become_program(&descent, &program, streams, verdict_child.as_raw_fd()),
        pid => Pid::from_raw(pid).filter(|_| pid > 0),
    };
    let pid = pid.ok_or_else(|| failed(io::Error::last_os_error()))?;
    Ok(Launched { pid, verdict: Verdict { pid, pipe: said }, ends })
}

/// Three pipes, or two and nothing to read, that belong to this user.
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

/// One terminal for everything.
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

/// Waits for the process to become its program; says why it did not.
pub async fn verdict(spec: &ExecSpec, group: u32, Verdict { pid, pipe }: Verdict) -> Result<(), Error> {
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

/// Whether a child was stopped by a signal. That it was is left to be told to others.
fn is_stopped(pid: Pid) -> bool {
    let look = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(rustix::process::waitid(WaitId::Pid(pid), look), Ok(Some(_)))
}

/// All variables of a process.
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

    /// Becomes the first of the paths that can be become; says why none could.
    fn become_it(&self) -> libc::c_int {
        let mut reason = libc::ENOENT;
        for path in &self.paths {
            // SAFETY: NUL-terminated strings in arrays that end with a null pointer, all made before the fork.
            unsafe { libc::execve(path.as_ptr(), self.argv.as_ptr(), self.env.as_ptr()) };
            match errno() {
                libc::ENOENT | libc::ENOTDIR => {}
                // The next directory may have one that can be run; if none has, this was the reason.
                libc::EACCES => reason = libc::EACCES,
                other => return other,
            }
        }
        reason
    }
}

/// Runs in the child and never returns.
fn become_program(descent: &Descent, program: &Program, streams: [RawFd; 3], verdict: RawFd) -> ! {
    let reason = match descent.descend(streams) {
        Ok(()) => program.become_it(),
        Err(error) => error.raw_os_error().unwrap_or(libc::EINVAL),
    };
    let bytes = reason.to_ne_bytes();
    // SAFETY: four bytes of this stack are written to an open descriptor. If nobody reads, nobody can be told.
    unsafe { libc::write(verdict, bytes.as_ptr().cast(), bytes.len()) };
    // SAFETY: no pointers; ends this process without running anything of its parent's.
    unsafe { libc::_exit(127) }
}

fn c_string(text: &str) -> io::Result<CString> {
    CString::new(text).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn null() -> io::Result<OwnedFd> {
    // SAFETY: a NUL-terminated string, and no third argument is read with these flags.
    let descriptor = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    done(descriptor)?;
    // SAFETY: just opened, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn errno() -> libc::c_int {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)
}

/// What a system call answered.
pub fn done(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The error for a terminal that the sandbox has no more of: those we count, or those that user code has opened.
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
    // The kernel of the sandbox has no more descriptors or memory for anybody: no fault of what was to be started.
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
