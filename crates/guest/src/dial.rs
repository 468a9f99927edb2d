//! One connection to the node: the greeting and the descriptors that come with it, if any do.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

use api::hello::{DESCRIPTORS_MAX, HELLO_BYTES, Hello, Kind};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixStream;

/// Where the node listens. The directory is mounted read-only and only for the guest.
const SOCKET: &str = "/.belljar/channel/node.sock";
/// The node answers a greeting at once or not at all.
const GREETING_WITHIN: Duration = Duration::from_secs(5);

/// A greeted connection.
pub struct Connection {
    /// The bytes.
    pub stream: UnixStream,
    /// What the node handed over.
    pub descriptors: Descriptors,
}

/// What the node hands over at every greeting, where the tier has it.
#[derive(Default)]
pub struct Descriptors {
    /// The entrances of the cgroup of user code, one for each hierarchy. Children write themselves into all.
    pub cgroups: Vec<OwnedFd>,
    /// A file in which the count of memory kills can be read.
    pub oom_count: Option<OwnedFd>,
    /// An eventfd that becomes readable at a memory kill. Cgroup version 1 only: version 2 kills the group itself.
    pub oom_event: Option<OwnedFd>,
}

/// Dials the node and exchanges greetings.
pub async fn dial() -> io::Result<Connection> {
    greet(UnixStream::connect(SOCKET).await?).await
}

/// Exchanges greetings.
pub async fn greet(mut stream: UnixStream) -> io::Result<Connection> {
    let mine = Hello { kind: Kind::Serve, cgroups: 0, oom_count: false, oom_event: false };
    stream.write_all(&mine.encode()).await?;
    let descriptors = tokio::time::timeout(GREETING_WITHIN, greeting(&stream)).await??;
    Ok(Connection { stream, descriptors })
}

async fn greeting(stream: &UnixStream) -> io::Result<Descriptors> {
    let mut bytes = [0; HELLO_BYTES];
    let mut have = 0;
    let mut received = Vec::new();
    while have < HELLO_BYTES {
        let rest = bytes.get_mut(have..).unwrap_or_default();
        let count = stream.async_io(Interest::READABLE, || receive(stream, rest, &mut received)).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        have += count;
    }
    let hello = Hello::decode(&bytes).map_err(|bad| io::Error::new(io::ErrorKind::InvalidData, bad))?;
    if hello.descriptors() != received.len() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "descriptors are missing"));
    }
    let mut received = received.into_iter();
    Ok(Descriptors {
        cgroups: received.by_ref().take(usize::from(hello.cgroups)).collect(),
        oom_count: if hello.oom_count { received.next() } else { None },
        oom_event: if hello.oom_event { received.next() } else { None },
    })
}

fn receive(stream: &UnixStream, bytes: &mut [u8], received: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [io::IoSliceMut::new(bytes)];
    let message = recvmsg(stream, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = part {
            received.extend(descriptors);
        }
    }
    Ok(message.bytes)
}
