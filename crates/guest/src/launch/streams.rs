//! The streams of a process: three pipes, or one terminal.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::rc::Rc;

use api::Error;
use api::exec::{ExecSpec, Stream};
use api::terminal::TerminalSize;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::Interest;

use super::failure::{no_terminal, spawn_failed};
use crate::belonging::made_for;
use crate::syscall::done;
use crate::terminal::{self, Pair};
use crate::watched::{Watched, watch};

/// Size of output pipes. Large pipes allow fewer and larger reads of a flood of output, and Linux allows
/// every user up to 1 MiB.
const PIPE_BYTES: usize = 1 << 20;

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

/// Returns the owner of the pipes of a process that runs as `uid`: this user, so that the process can open
/// its streams by name. In a user-space kernel, a process can open the descriptors of process 1, and of a
/// child before its exec, through `/proc`, so root owns the pipes there.
pub fn pipe_owner(uid: u32, in_user_kernel: bool) -> u32 {
    if in_user_kernel { 0 } else { uid }
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
pub(super) fn on_terminal(spec: &ExecSpec, size: TerminalSize, uid: u32) -> Result<(Ends, Theirs), Error> {
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

pub(super) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(pipe_with(PipeFlags::CLOEXEC)?)
}

fn null() -> io::Result<OwnedFd> {
    // SAFETY: The path is NUL-terminated, and the call reads no third argument with these flags.
    let descriptor = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    done(descriptor)?;
    // SAFETY: The descriptor was just opened, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}
