//! The socket that the guest dials, and what is said on it before the channel begins.
//!
//! The node listens in `<data>/sandboxes/<id>/channel`, which is bound read-only into the sandbox and which only the
//! sandbox's root may enter. A new process takes over by putting a socket of its own in the place of the old one; the
//! guest dials until somebody answers.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixListener as StdListener;
use std::path::Path;
use std::time::Duration;

use api::hello::{DESCRIPTORS_MAX, HELLO_BYTES, Hello, Kind};
use rustix::fs::{Mode, OFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::unix::UCred;
use tokio::net::{UnixListener, UnixStream};

use crate::files::{self, failed};
use crate::oci::cgroup::Handout;
use crate::{Error, Tier};

/// The socket's name in its directory; the guest knows it.
const SOCKET: &str = "node.sock";
/// A guest greets at once; a dialler that does not is not one.
pub(crate) const GREETING: Duration = Duration::from_secs(2);

/// Makes the directory: root of the sandbox may enter it, nobody inside may list or change it.
pub(crate) fn make(path: &Path, base: u32) -> Result<(), Error> {
    files::directory(path, 0o710)?;
    files::set_owner(path, 0, base)
}

/// Listens, in the place of whoever listened before.
pub(crate) fn listen(path: &Path, base: u32) -> Result<StdListener, Error> {
    let socket = path.join(SOCKET);
    files::remove_file(&socket)?;
    // Bound through a descriptor of the directory: a socket's path may have 107 bytes, a data directory's more.
    let directory = rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| failed("open", path, error.into()))?;
    let listener = StdListener::bind(format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd()))
        .map_err(|source| failed("listen at", &socket, source))?;
    listener.set_nonblocking(true).map_err(|source| failed("listen at", &socket, source))?;
    files::set_owner(&socket, 0, base)?;
    files::set_mode(&socket, 0o660)?;
    Ok(listener)
}

/// Hands a listener to the asynchronous world.
pub(crate) fn watch(listener: StdListener) -> Result<UnixListener, Error> {
    UnixListener::from_std(listener)
        .map_err(|source| Error::System { act: "watch a channel's socket".into(), source })
}

/// Why a dialler is not process 1, as the kernel vouches for it; nothing if it is.
///
/// Under a user-space kernel the dialler is a process of that kernel, so there `in_cgroup` decides.
pub(crate) fn objection(peer: UCred, tier: Tier, (pid, base): (i32, u32), in_cgroup: bool) -> Option<String> {
    match tier {
        Tier::Container if peer.pid() != Some(pid) || peer.uid() != base => Some(format!(
            "it is process {:?} of user {}, not process 1 ({pid} of {base})",
            peer.pid(),
            peer.uid()
        )),
        Tier::UserKernel if !in_cgroup => {
            Some(format!("process {:?} is not in the sandbox's cgroup", peer.pid()))
        }
        Tier::Container | Tier::UserKernel => None,
    }
}

/// Hears the guest's greeting and answers with ours and the descriptors. The text says what was wrong.
pub(crate) async fn greet(stream: &mut UnixStream, handout: &Handout) -> Result<(), String> {
    let mut bytes = [0; HELLO_BYTES];
    match tokio::time::timeout(GREETING, stream.read_exact(&mut bytes)).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => return Err(format!("it said less than a greeting: {error}")),
        Err(_) => return Err(format!("it did not greet within {GREETING:?}")),
    }
    Hello::decode(&bytes).map_err(|error| error.to_string())?;
    let answer = Hello {
        kind: Kind::Serve,
        cgroups: u8::try_from(handout.procs.len()).map_err(|error| error.to_string())?,
        oom_count: handout.oom_count.is_some(),
        oom_event: handout.oom_event.is_some(),
    };
    let descriptors: Vec<BorrowedFd<'_>> =
        handout.procs.iter().chain(&handout.oom_count).chain(&handout.oom_event).map(AsFd::as_fd).collect();
    let send = || send(stream, &answer.encode(), &descriptors);
    stream
        .async_io(Interest::WRITABLE, send)
        .await
        .map_err(|error| format!("it could not be answered: {error}"))
}

fn send(stream: &UnixStream, bytes: &[u8; HELLO_BYTES], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let sent = rustix::net::sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    // A socket on which nothing was sent yet takes 16 bytes whole.
    if sent == bytes.len() { Ok(()) } else { Err(io::Error::from(io::ErrorKind::WriteZero)) }
}
