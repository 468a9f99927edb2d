//! The socket that the guest connects to, and the handshake before the channel opens.
//!
//! For a container, the socket is in the sandbox's own in-memory file system ([`super::nodes`]), which is
//! mounted in the sandbox at `/.bellglass/channel`. Only the sandbox's root may enter this directory. A
//! socket in a host directory would reveal the path of the data directory, because a sandbox's mount table
//! shows the source of each mount. A user-space kernel has its own mount table, and its file server opens the
//! socket through a host path. For this tier, the socket is in `<data>/sandboxes/<id>/channel`.
//!
//! To take a sandbox over, a new process replaces the socket with its own. The guest retries until a
//! connection is accepted.

use std::ffi::CStr;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::hello::{DESCRIPTORS_MAX, HELLO_BYTES, Hello, Kind, NO_TOKEN, TOKEN_BYTES, TOKEN_TAKEN};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::unix::UCred;
use tokio::net::{UnixListener, UnixStream};

use crate::files::{self, failed};
use crate::oci::cgroup::Handout;
use crate::oci::process::ProcessHandle;
use crate::{Error, Tier};

/// Name of the socket in the channel directory. The guest relies on this name.
const SOCKET: &str = "node.sock";
/// Name of the file that holds process 1's token. It is in the sandbox's directory on the host, which is not
/// mounted into the sandbox.
pub(crate) const TOKEN: &str = "token";
const SOCKET_NAME: &CStr = c"node.sock";
/// Channel directory inside the sandbox, relative to the sandbox's root directory.
const INSIDE: &str = ".bellglass/channel";
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// Timeout for each half of the handshake. A guest completes each half at once, so a slower peer is not a
/// guest.
pub(crate) const GREETING: Duration = Duration::from_secs(2);

/// The channel's socket. The child that mounts the sandbox's file systems binds it, because only that child
/// can see these file systems.
pub(crate) struct ChannelSocket {
    /// The socket.
    pub descriptor: Arc<OwnedFd>,
    /// Name of the socket in the channel directory.
    pub name: &'static CStr,
    /// The same name, as a socket address.
    pub address: SocketAddrUnix,
}

impl ChannelSocket {
    /// Creates a socket that is not bound yet.
    pub(crate) fn new() -> Result<Self, Error> {
        let failed =
            |error: rustix::io::Errno| Error::System { act: "create a socket".into(), source: error.into() };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let descriptor = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let address = SocketAddrUnix::new(SOCKET_NAME).map_err(failed)?;
        Ok(Self { descriptor: Arc::new(descriptor.map_err(failed)?), name: SOCKET_NAME, address })
    }

    /// Converts the socket to a listener. Must be called after the child has bound the socket and ended.
    pub(crate) fn into_listener(self) -> Result<StdListener, Error> {
        let descriptor = match Arc::try_unwrap(self.descriptor) {
            Ok(descriptor) => Ok(descriptor),
            Err(shared) => shared.try_clone(),
        };
        descriptor
            .map(StdListener::from)
            .map_err(|source| Error::System { act: "duplicate the channel socket".into(), source })
    }
}

/// Creates the channel directory. The sandbox's root may enter it, but no process in the sandbox may list or
/// change it.
pub(crate) fn make(path: &Path, base: u32) -> Result<(), Error> {
    files::directory(path, 0o710)?;
    files::set_owner(path, 0, base)
}

/// Listens in a host directory, replacing any earlier socket.
pub(crate) fn listen(path: &Path, base: u32) -> Result<StdListener, Error> {
    let directory = rustix::fs::open(path, DIRECTORY, Mode::empty())
        .map_err(|error| failed("open", path, error.into()))?;
    listen_in(&directory, base)
}

/// Listens inside the sandbox whose process 1 is `process`, replacing any earlier socket.
pub(crate) fn listen_inside(process: &ProcessHandle, base: u32) -> Result<StdListener, Error> {
    let root = PathBuf::from(format!("/proc/{}/root", process.identity.pid));
    let opened = rustix::fs::open(&root, DIRECTORY, Mode::empty())
        .map_err(|error| failed("open", &root, error.into()))?;
    // The sandbox's root may have modified the path to the mount, but it cannot create a directory that the
    // host's root owns.
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let path = root.join(INSIDE);
    let directory = rustix::fs::openat2(&opened, INSIDE, DIRECTORY, Mode::empty(), resolve)
        .map_err(|error| failed("open", &path, error.into()))?;
    let owner = rustix::fs::fstat(&directory).map_err(|error| failed("inspect", &path, error.into()))?.st_uid;
    if owner != 0 || !process.is_alive() {
        let why = io::Error::other("this is not the directory with which the sandbox was started");
        return Err(failed("listen in", &path, why));
    }
    listen_in(&directory, base)
}

/// Listens in a directory. Binds the socket through the descriptor's path in `/proc`, because a socket path
/// is limited to 107 bytes and the path of the data directory may be longer.
fn listen_in(directory: &OwnedFd, base: u32) -> Result<StdListener, Error> {
    let socket = PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd()));
    files::remove_file(&socket)?;
    let listener = StdListener::bind(&socket).map_err(|source| failed("listen at", &socket, source))?;
    listener.set_nonblocking(true).map_err(|source| failed("listen at", &socket, source))?;
    files::set_owner(&socket, 0, base)?;
    files::set_mode(&socket, 0o660)?;
    Ok(listener)
}

/// Registers a listener with the async runtime.
pub(crate) fn watch(listener: StdListener) -> Result<UnixListener, Error> {
    UnixListener::from_std(listener)
        .map_err(|source| Error::System { act: "register the channel socket".into(), source })
}

/// The credentials that the kernel reports for a connection from a sandbox's process 1.
#[derive(Clone, Copy)]
pub(crate) struct ExpectedPeer {
    /// The pid of process 1.
    pub pid: i32,
    /// The user ID of process 1 on this machine.
    pub user: u32,
}

/// Returns the reason why a peer cannot be process 1 according to the kernel, or `None` if there is no such
/// reason.
///
/// With a user-space kernel, the peer is one of that kernel's own processes. Then `in_cgroup` proves that the
/// peer belongs to this sandbox, and the token that [`greet`] checks proves that the peer is process 1.
pub(crate) fn objection(peer: UCred, tier: Tier, expected: ExpectedPeer, in_cgroup: bool) -> Option<String> {
    let ExpectedPeer { pid, user } = expected;
    if api::defence::is_off("A-02") {
        return None;
    }
    match tier {
        Tier::Container if peer.pid() != Some(pid) || peer.uid() != user => Some(format!(
            "the peer has pid {:?} and user id {}, but process 1 has pid {pid} and user id {user}",
            peer.pid(),
            peer.uid()
        )),
        Tier::UserKernel if !in_cgroup => {
            Some(format!("process {:?} is not in the sandbox's cgroup", peer.pid()))
        }
        Tier::Container | Tier::UserKernel => None,
    }
}

/// The reason why a handshake failed.
pub(crate) enum Unmet {
    /// The peer does not have process 1's token, so it is a different process.
    Stranger(String),
    /// The peer did not follow the protocol.
    Wrong(String),
}

/// Performs the handshake: reads the guest's hello, and sends the node's together with the descriptors.
/// `token` is the path of the file that holds process 1's token.
///
/// The first peer that completes the handshake receives a token. User code does not run before the channel is
/// open, so this peer is process 1. The token is stored before the channel opens.
pub(crate) async fn greet(stream: &mut UnixStream, handout: &Handout, token: &Path) -> Result<(), Unmet> {
    let kept = files::read_if_there(token).map_err(|error| Unmet::Wrong(error.to_string()))?;
    let shown = within(GREETING, hear(stream)).await?;
    let known = shown.map(|shown| hexadecimal(&shown));
    if let Some(kept) = kept.as_ref().filter(|_| !api::defence::is_off("I-12"))
        && !known.is_some_and(|known| is_same(&known, kept))
    {
        return Err(Unmet::Stranger("the peer does not have the token of process 1".into()));
    }
    let mut given = NO_TOKEN;
    match shown {
        Some(shown) if kept.is_some() => given = shown,
        _ => rustix::rand::getrandom(&mut given, rustix::rand::GetRandomFlags::empty())
            .map(drop)
            .map_err(|error| Unmet::Wrong(error.to_string()))?,
    }
    let answer = Hello {
        kind: if shown.is_some() { Kind::ServeKnown } else { Kind::Serve },
        cgroups: u8::try_from(handout.procs.len()).map_err(|error| Unmet::Wrong(error.to_string()))?,
        oom_count: handout.oom_count.is_some(),
        oom_event: handout.oom_event.is_some(),
    };
    let descriptors: Vec<BorrowedFd<'_>> =
        handout.procs.iter().chain(&handout.oom_count).chain(&handout.oom_event).map(AsFd::as_fd).collect();
    let send = || send(stream, &answer.encode(), &descriptors);
    let sent = stream.async_io(Interest::WRITABLE, send).await;
    sent.map_err(|error| Unmet::Wrong(format!("cannot send the handshake reply: {error}")))?;
    if shown.is_some() {
        within(GREETING, tell(stream, &given)).await?;
        if kept.is_none() {
            files::write_private(token, &hexadecimal(&given))
                .map_err(|error| Unmet::Wrong(error.to_string()))?;
        }
    }
    Ok(())
}

/// Reads the peer's hello, and its token if it sends one.
async fn hear(stream: &mut UnixStream) -> io::Result<Option<[u8; TOKEN_BYTES]>> {
    let mut bytes = [0; HELLO_BYTES];
    stream.read_exact(&mut bytes).await?;
    let hello = Hello::decode(&bytes).map_err(io::Error::other)?;
    if hello.kind == Kind::Serve {
        return Ok(None);
    }
    let mut token = NO_TOKEN;
    stream.read_exact(&mut token).await?;
    Ok(Some(token))
}

/// Sends process 1 its token, and waits for the acknowledgement.
async fn tell(stream: &mut UnixStream, token: &[u8; TOKEN_BYTES]) -> io::Result<()> {
    stream.write_all(token).await?;
    match stream.read_u8().await? {
        TOKEN_TAKEN => Ok(()),
        _ => Err(io::Error::other("the guest did not acknowledge its token")),
    }
}

async fn within<T>(time: Duration, act: impl Future<Output = io::Result<T>>) -> Result<T, Unmet> {
    match tokio::time::timeout(time, act).await {
        Ok(done) => done.map_err(|error| Unmet::Wrong(format!("handshake failed: {error}"))),
        Err(_) => Err(Unmet::Wrong(format!("handshake timed out after {time:?}"))),
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Compares two tokens in constant time, so that the duration does not reveal the length of the matching
/// prefix.
fn is_same(one: &str, other: &str) -> bool {
    one.len() == other.len() && one.bytes().zip(other.bytes()).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

fn send(stream: &UnixStream, bytes: &[u8; HELLO_BYTES], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let sent = rustix::net::sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    // A socket without unsent data accepts 16 bytes in one call.
    if sent == bytes.len() { Ok(()) } else { Err(io::Error::from(io::ErrorKind::WriteZero)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Performs a handshake with a peer that sends this token. Returns the token that the peer receives, or
    /// the kind of failure.
    async fn shows(file: &Path, token: Option<[u8; TOKEN_BYTES]>) -> Result<[u8; TOKEN_BYTES], &'static str> {
        let (mut node, mut guest) = UnixStream::pair().unwrap();
        let kind = if token.is_some() { Kind::ServeKnown } else { Kind::Serve };
        let hello = Hello { kind, cgroups: 0, oom_count: false, oom_event: false };
        let dials = async {
            guest.write_all(&hello.encode()).await.unwrap();
            let mut given = NO_TOKEN;
            if let Some(token) = token {
                guest.write_all(&token).await.unwrap();
            }
            let mut answer = [0; HELLO_BYTES];
            if guest.read_exact(&mut answer).await.is_err() || token.is_none() {
                return given;
            }
            guest.read_exact(&mut given).await.unwrap();
            guest.write_all(&[TOKEN_TAKEN]).await.unwrap();
            given
        };
        let handout = Handout { procs: Vec::new(), oom_count: None, oom_event: None };
        let greets = async {
            let greeted = greet(&mut node, &handout, file).await;
            drop(node);
            greeted
        };
        match tokio::join!(greets, dials) {
            (Ok(()), given) => Ok(given),
            (Err(Unmet::Stranger(_)), _) => Err("a stranger"),
            (Err(Unmet::Wrong(_)), _) => Err("wrong"),
        }
    }

    #[test]
    fn who_was_greeted_first_is_known_again_and_nobody_else_is() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let home = tempfile::tempdir().unwrap();
            let file = home.path().join(TOKEN);
            let token = shows(&file, Some(NO_TOKEN)).await.unwrap();
            assert_ne!(token, NO_TOKEN);
            assert_eq!(shows(&file, Some(token)).await, Ok(token), "it stays the same");
            for other in [None, Some(NO_TOKEN), Some([7; TOKEN_BYTES])] {
                assert_eq!(shows(&file, other).await, Err("a stranger"));
            }
            // An older guest that does not support tokens is accepted as long as no token has been issued.
            assert!(shows(&home.path().join("older"), None).await.is_ok());
        });
    }
}
