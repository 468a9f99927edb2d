//! One connection to the node: the greeting and the descriptors that come with it, if any do.

use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

use api::hello::{DESCRIPTORS_MAX, HELLO_BYTES, Hello, Kind, NO_TOKEN, TOKEN_BYTES, TOKEN_TAKEN};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;

/// Where the node listens. The directory is mounted read-only and only for the guest.
const SOCKET: &str = "/.bellglass/channel/node.sock";
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

/// Dials the node, shows it the token of its first answer, and exchanges greetings.
pub async fn dial(token: &Cell<[u8; TOKEN_BYTES]>) -> io::Result<Connection> {
    let mut stream = UnixStream::connect(SOCKET).await?;
    let mine = Hello { kind: Kind::ServeKnown, cgroups: 0, oom_count: false, oom_event: false };
    stream.write_all(&[&mine.encode()[..], &token.get()].concat()).await?;
    let answered = async {
        let (hello, descriptors) = greeting(&stream).await?;
        if hello.kind == Kind::ServeKnown {
            let mut given = NO_TOKEN;
            stream.read_exact(&mut given).await?;
            token.set(given);
            stream.write_all(&[TOKEN_TAKEN]).await?;
        }
        io::Result::Ok(descriptors)
    };
    let descriptors = tokio::time::timeout(GREETING_WITHIN, answered).await??;
    Ok(Connection { stream, descriptors })
}

/// Exchanges greetings with somebody who was let in another way.
pub async fn greet(mut stream: UnixStream) -> io::Result<Connection> {
    let mine = Hello { kind: Kind::Serve, cgroups: 0, oom_count: false, oom_event: false };
    stream.write_all(&mine.encode()).await?;
    let (_, descriptors) = tokio::time::timeout(GREETING_WITHIN, greeting(&stream)).await??;
    Ok(Connection { stream, descriptors })
}

async fn greeting(stream: &UnixStream) -> io::Result<(Hello, Descriptors)> {
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
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the number of file descriptors does not match the handshake message",
        ));
    }
    let mut received = received.into_iter();
    let descriptors = Descriptors {
        cgroups: received.by_ref().take(usize::from(hello.cgroups)).collect(),
        oom_count: if hello.oom_count { received.next() } else { None },
        oom_event: if hello.oom_event { received.next() } else { None },
    };
    Ok((hello, descriptors))
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
