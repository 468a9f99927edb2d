//! The one place that makes a process.
//!
//! Between fork and exec the child joins the cgroup of user code, takes its three descriptors, loses every
//! privilege and only then enters its directory and becomes the program: nothing that user code can influence
//! happens before the last restriction holds.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use api::exec::ExecSpec;
use api::{Error, ErrorCode, Layer, Ran, Retry, limits};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;

/// The few variables every exec has. Nothing of the host is among them.
const ENVIRONMENT: [(&str, &str); 7] = [
    ("HOME", "/home/sandbox"),
    ("LANG", "C.UTF-8"),
    ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("SHELL", "/bin/sh"),
    ("TMPDIR", "/tmp"),
    ("TZ", "UTC"),
    ("USER", limits::USER),
];
const DIRECTORY: &str = "/workspace";
/// Fewer, larger reads carry a flood of output; Linux grants 1 MiB to anybody.
const PIPE_BYTES: usize = 1 << 20;
/// The highest capability number that any kernel so far knows is 40; asking for more is refused and harmless.
const CAPABILITY_LAST: libc::c_ulong = 63;

/// A started process and our ends of its pipes.
pub struct Launched {
    /// The process.
    pub pid: Pid,
    /// Where its standard output can be read.
    pub stdout: OwnedFd,
    /// Where its standard error can be read.
    pub stderr: OwnedFd,
    /// Where its standard input can be written, if it has one.
    pub stdin: Option<OwnedFd>,
}

/// What the child does to itself before it becomes the program. Made before the fork: a child may not allocate.
struct Descent {
    cgroups: Vec<RawFd>,
    uid: libc::uid_t,
    groups: [libc::gid_t; 1],
    directory: CString,
}

/// Starts the command of `spec` with the extra group `group`, in the cgroups whose descriptors are given.
pub fn launch(spec: &ExecSpec, group: u32, cgroups: &[OwnedFd]) -> Result<Launched, Error> {
    let directory = spec.cwd.as_deref().unwrap_or(DIRECTORY);
    let descent = Descent {
        cgroups: cgroups.iter().map(AsRawFd::as_raw_fd).collect(),
        uid: spec.uid.unwrap_or(limits::UID),
        groups: [group],
        directory: CString::new(directory)
            .map_err(|_| Error::invalid("cwd holds a NUL byte", "Name a directory of the sandbox."))?,
    };
    let failed = |error: io::Error| spawn_failed(spec, directory, &error);
    let (stdout, stdout_child) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
    let (stderr, stderr_child) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
    let (stdin_child, stdin) = match spec.stdin {
        true => pipe_with(PipeFlags::CLOEXEC).map(|(child, ours)| (Stdio::from(child), Some(ours))),
        false => Ok((Stdio::null(), None)),
    }
    .map_err(|e| failed(e.into()))?;
    for pipe in [&stdout, &stderr] {
        let _ = rustix::pipe::fcntl_setpipe_size(pipe, PIPE_BYTES);
    }
    let mut command = Command::new(spec.argv.first().map_or("", String::as_str));
    command.args(spec.argv.iter().skip(1));
    command.env_clear().envs(ENVIRONMENT).envs(&spec.env);
    command.stdin(stdin_child).stdout(stdout_child).stderr(stderr_child);
    // SAFETY: the closure makes only system calls that are safe after fork and touches only memory made before it.
    unsafe {
        command.pre_exec(move || descent.descend());
    }
    let child = command.spawn().map_err(failed)?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))?;
    Ok(Launched { pid, stdout, stderr, stdin })
}

impl Descent {
    /// Runs in the child. The order is the point: cgroup while we still may, identity, privileges, then the path.
    fn descend(&self) -> io::Result<()> {
        for cgroup in &self.cgroups {
            // SAFETY: one byte of static memory is written to a descriptor that is open.
            done(unsafe { libc::write(*cgroup, b"0".as_ptr().cast(), 1) } as libc::c_int)?;
        }
        // SAFETY: no pointers.
        done(unsafe { libc::setsid() })?;
        // SAFETY: the pointer is to an array of the given length.
        done(unsafe { libc::setgroups(self.groups.len(), self.groups.as_ptr()) })?;
        // SAFETY: no pointers.
        done(unsafe { libc::setresgid(self.uid, self.uid, self.uid) })?;
        for capability in 0..=CAPABILITY_LAST {
            // SAFETY: no pointers. EINVAL beyond the kernel's last capability is expected.
            unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
        }
        // SAFETY: no pointers. Leaving uid 0 empties the permitted, effective and ambient sets.
        done(unsafe { libc::setresuid(self.uid, self.uid, self.uid) })?;
        // SAFETY: no pointers. The mask a program would have without us.
        unsafe { libc::umask(0o022) };
        // SAFETY: a NUL-terminated string made before the fork. As the user, so that its rights decide.
        done(unsafe { libc::chdir(self.directory.as_ptr()) })
    }
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn spawn_failed(spec: &ExecSpec, directory: &str, error: &io::Error) -> Error {
    let program = spec.argv.first().map_or("", String::as_str);
    let shown: String = program.chars().take(limits::ARGV_SHOWN_BYTES).collect();
    let fix = match error.raw_os_error() {
        Some(libc::ENOENT) => format!(
            "Check that {shown:?} (or the interpreter its first line names) exists in the sandbox and is in PATH, \
             and that the directory {directory:?} exists."
        ),
        Some(libc::EACCES) => format!(
            "Make {shown:?} executable for the user (chmod +x), and check that the directory {directory:?} may be \
             entered."
        ),
        Some(libc::ENOEXEC) => {
            "The file is no program of this machine and has no #! line: run it with its interpreter.".into()
        }
        Some(libc::E2BIG) => {
            "Shorten argv and env, or send the text through standard input or a file.".into()
        }
        Some(libc::EAGAIN) => "End some processes of the sandbox, or ask for a larger `pids` limit.".into(),
        _ => "Check the program, its interpreter and the directory it starts in.".into(),
    };
    Error {
        code: ErrorCode::SpawnFailed,
        message: format!("cannot start {shown:?} in {directory:?}: {error}"),
        layer: Layer::UserCode,
        ran: Ran::No,
        retry: if error.raw_os_error() == Some(libc::EAGAIN) { Retry::Safe } else { Retry::Useless },
        fix,
    }
}
