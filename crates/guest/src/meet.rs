//! Where an engine runs the sandbox, or somebody else, nobody outside listens that process 1 could dial. So process 1 listens, and
//! the node has them run `guest connect`, which passes bytes on between the node and process 1.
//!
//! ```text
//! node ══ their exec, or a terminal of theirs ══ guest connect ──── socket ──── process 1
//! ```
//!
//! The socket is in a directory that only root may enter, and no user code is root. Process 1 looks at who calls all the same: what
//! an engine runs has its parent outside, and what is beside the walls of [`crate::walls`] has no number inside. Nothing that was
//! started inside ever has either.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream as StdStream;
use std::process::ExitCode;

use api::hello::{NO_TOKEN, TOKEN_BYTES};
use tokio::net::{UnixListener, UnixStream};

use crate::dial::{Connection, greet};
use crate::walls::Entrances;
use crate::{posture, sweep};

/// The directory that only root may enter.
const HOME: &str = "/.bellglass/spool";
/// Where process 1 listens.
const SOCKET: &str = "/.bellglass/spool/guest.sock";
/// Where it says what it can see of its own privileges: nobody else can see them.
const POSTURE: &str = "/.bellglass/spool/posture.json";

/// What is passed on at once.
const PIECE_BYTES: usize = 64 * 1024;

/// How node and guest come together.
pub enum Meeting {
    /// The node listens, and has given us this to be known by.
    Dial(Cell<[u8; TOKEN_BYTES]>),
    /// This process does, and has what else would come with a greeting, where it has put up its walls itself.
    Listen(UnixListener, Option<Entrances>),
}

impl Meeting {
    /// Dials a node that does not know us yet.
    pub fn dial() -> Self {
        Self::Dial(Cell::new(NO_TOKEN))
    }

    /// Listens, and writes down what this process can do: before user code exists.
    pub fn listen(entrances: Option<Entrances>) -> io::Result<Self> {
        std::fs::set_permissions(HOME, std::fs::Permissions::from_mode(0o700))?;
        std::fs::write(POSTURE, posture::own()?)?;
        std::fs::set_permissions(POSTURE, std::fs::Permissions::from_mode(0o600))?;
        let listener = UnixListener::bind(SOCKET)?;
        std::fs::set_permissions(SOCKET, std::fs::Permissions::from_mode(0o600))?;
        Ok(Self::Listen(listener, entrances))
    }

    /// The next connection to the node, greeted.
    pub async fn next(&self) -> io::Result<Connection> {
        match self {
            Self::Dial(token) => crate::dial::dial(token).await,
            Self::Listen(listener, entrances) => loop {
                let (stream, _) = listener.accept().await?;
                if is_from_outside(&stream, entrances.is_some()) {
                    let mut connection = greet(stream).await?;
                    if let Some(entrances) = entrances {
                        connection.descriptors = entrances.descriptors()?;
                    }
                    return Ok(connection);
                }
            },
        }
    }
}

/// Whether who called is root, and was put into this sandbox by its engine or is on the other side of its walls.
fn is_from_outside(stream: &UnixStream, walled: bool) -> bool {
    let Ok(peer) = stream.peer_cred() else { return false };
    let Some(pid) = peer.pid().filter(|_| peer.uid() == 0) else { return false };
    if walled {
        // What the kernel has where a process has no number in this namespace.
        return pid == 0;
    }
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    sweep::is_from_outside(&status)
}

/// `guest connect`: passes bytes on until either side has ended. There is no half of a channel.
pub fn connect() -> ExitCode {
    // What passes here is the node's and process 1's: nobody inside may look, whatever uid they have.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    let Ok(stream) = StdStream::connect(SOCKET) else { return ExitCode::FAILURE };
    // Whoever could put a socket of its own in that place would speak for process 1.
    if !rustix::net::sockopt::socket_peercred(&stream).is_ok_and(|peer| is_first(peer.pid)) {
        return ExitCode::FAILURE;
    }
    // A terminal would understand some bytes, and change others. Process 1 speaks first, and not before this.
    if let Ok(mut modes) = rustix::termios::tcgetattr(rustix::stdio::stdin()) {
        modes.make_raw();
        if rustix::termios::tcsetattr(rustix::stdio::stdin(), rustix::termios::OptionalActions::Now, &modes)
            .is_err()
        {
            return ExitCode::FAILURE;
        }
    }
    let Ok(inwards) = stream.try_clone() else { return ExitCode::FAILURE };
    std::thread::spawn(move || {
        pass_on(rustix::stdio::stdin(), inwards.as_fd());
        std::process::exit(0);
    });
    pass_on(stream.as_fd(), rustix::stdio::stdout());
    ExitCode::SUCCESS
}

/// Whether a process is the first of its namespace, ours or one inside.
fn is_first(pid: rustix::process::Pid) -> bool {
    let status =
        || std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap_or_default();
    pid.is_init()
        || status()
            .lines()
            .any(|line| line.starts_with("NSpid:") && line.split_whitespace().last() == Some("1"))
}

/// Passes bytes on until there are no more, or nobody takes them. Not by `io::copy`: it splices, and a splice from a socket to a pipe
/// answered "no more" here while there was more.
fn pass_on(from: BorrowedFd<'_>, to: BorrowedFd<'_>) {
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        let mut left = match rustix::io::read(from, &mut buffer) {
            Ok(0) => return,
            Ok(count) => buffer.get(..count).unwrap_or_default(),
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return,
        };
        while !left.is_empty() {
            match rustix::io::write(to, left) {
                Ok(count) => left = left.get(count..).unwrap_or_default(),
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }
}

/// `guest posture first`: what process 1 has written down of itself.
pub fn print_first() -> ExitCode {
    match std::fs::read(POSTURE) {
        Ok(text) => posture::write(&text),
        Err(_) => ExitCode::FAILURE,
    }
}
