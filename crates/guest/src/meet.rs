//! The channel of a sandbox that a container engine or another foreign system runs. In such a sandbox,
//! process 1 cannot reach a socket of the node. Instead, process 1 listens, and the node runs `guest connect`
//! in the sandbox, which forwards bytes between the node and process 1.
//!
//! ```text
//! node ══ exec or terminal of the engine ══ guest connect ──── socket ──── process 1
//! ```
//!
//! The socket is in a directory that only root may enter, and user code is not root. Process 1 nevertheless
//! checks each caller. The parent of a process that an engine started is outside the sandbox, and a process
//! outside the walls of [`crate::walls`] has no pid inside them. Neither ever applies to a process that was
//! started inside the sandbox.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream as StdStream;
use std::process::ExitCode;

use api::hello::{NO_TOKEN, TOKEN_BYTES};
use tokio::net::{UnixListener, UnixStream};

use crate::dial::{NodeConnection, greet};
use crate::walls::Entrances;
use crate::{posture, sweep};

/// Directory that only root may enter.
const HOME: &str = "/.bellglass/spool";
/// Socket on which process 1 listens.
const SOCKET: &str = "/.bellglass/spool/guest.sock";
/// File in which process 1 records its own posture (its privileges), which no other process can observe.
const POSTURE: &str = "/.bellglass/spool/posture.json";

/// Size of the buffer for forwarded bytes.
const PIECE_BYTES: usize = 64 * 1024;

/// Endpoint through which the node and the guest connect.
pub enum Meeting {
    /// The node listens. Contains the token that the node issued to identify process 1.
    Dial(Cell<[u8; TOKEN_BYTES]>),
    /// This process listens. Contains the descriptors that a greeting would otherwise carry, if this process
    /// set up the walls itself.
    Listen(UnixListener, Option<Entrances>),
}

impl Meeting {
    /// Prepares to dial a node that has not issued a token yet.
    pub fn dial() -> Self {
        Self::Dial(Cell::new(NO_TOKEN))
    }

    /// Starts listening, and records this process's posture before any user code runs.
    pub fn listen(entrances: Option<Entrances>) -> io::Result<Self> {
        std::fs::set_permissions(HOME, std::fs::Permissions::from_mode(0o700))?;
        std::fs::write(POSTURE, posture::own()?)?;
        std::fs::set_permissions(POSTURE, std::fs::Permissions::from_mode(0o600))?;
        let listener = UnixListener::bind(SOCKET)?;
        std::fs::set_permissions(SOCKET, std::fs::Permissions::from_mode(0o600))?;
        Ok(Self::Listen(listener, entrances))
    }

    /// Returns the next connection to the node, after the greeting.
    pub async fn next(&self) -> io::Result<NodeConnection> {
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

/// Returns true if the caller is root and comes from outside: it was started by the engine of the sandbox, or
/// it runs outside the walls.
fn is_from_outside(stream: &UnixStream, walled: bool) -> bool {
    let Ok(peer) = stream.peer_cred() else { return false };
    let Some(pid) = peer.pid().filter(|_| peer.uid() == 0) else { return false };
    if walled {
        // The kernel reports pid 0 for a process that has no pid in this namespace.
        return pid == 0;
    }
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    sweep::is_from_outside(&status)
}

/// Runs `guest connect`: forwards bytes until either side closes, which closes the whole channel.
pub fn connect() -> ExitCode {
    // The forwarded bytes concern only the node and process 1. Prevent all processes in the sandbox, whatever
    // their uid, from inspecting this process.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    let Ok(stream) = StdStream::connect(SOCKET) else { return ExitCode::FAILURE };
    // Check the peer: a process that replaced the socket with its own could impersonate process 1.
    if !rustix::net::sockopt::socket_peercred(&stream).is_ok_and(|peer| is_first(peer.pid)) {
        return ExitCode::FAILURE;
    }
    // Set raw mode, because a terminal would interpret or change some bytes. No bytes have passed yet:
    // process 1 sends the first byte of a connection, and forwarding starts only below.
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

/// Returns true if a process is process 1 of this pid namespace or of a nested pid namespace.
fn is_first(pid: rustix::process::Pid) -> bool {
    let status =
        || std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap_or_default();
    pid.is_init()
        || status()
            .lines()
            .any(|line| line.starts_with("NSpid:") && line.split_whitespace().last() == Some("1"))
}

/// Forwards bytes until the end of input, or until the other side is closed. `io::copy` is unsuitable,
/// because it uses `splice`, and a splice from a socket to a pipe can report the end of input although more
/// bytes follow.
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

/// Runs `guest posture first`: prints the recorded posture of process 1.
pub fn print_first() -> ExitCode {
    match std::fs::read(POSTURE) {
        Ok(text) => posture::write(&text),
        Err(_) => ExitCode::FAILURE,
    }
}
