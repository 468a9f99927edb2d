//! One connection to the node: the greeting, and the descriptors that the node may send with it.

use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

use api::hello::{DESCRIPTORS_MAX, HELLO_BYTES, Hello, Kind, NO_TOKEN, TOKEN_BYTES, TOKEN_TAKEN};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;

/// Socket on which the node listens. Its directory is mounted read-only, and is used only by the guest.
const SOCKET: &str = "/.bellglass/channel/node.sock";
/// Timeout for the greeting. The node answers at once or not at all.
const GREETING_WITHIN: Duration = Duration::from_secs(5);

/// A connection to the node, after the greeting.
pub struct NodeConnection {
    /// The byte stream.
    pub stream: UnixStream,
    /// Descriptors that the node sent.
    pub descriptors: Descriptors,
}

/// Descriptors that the node sends with every greeting, if the isolation tier has them.
#[derive(Default)]
pub struct Descriptors {
    /// Descriptors for entering the cgroups of user code, one per hierarchy. A child writes itself into each
    /// of them.
    pub cgroups: Vec<OwnedFd>,
    /// File with the number of OOM kills.
    pub oom_count: Option<OwnedFd>,
    /// Eventfd that becomes readable on an OOM kill. Used only with cgroup version 1: in version 2, the
    /// kernel itself kills the whole group.
    pub oom_event: Option<OwnedFd>,
}

/// Dials the node, exchanges greetings, and presents the token that the node issued on the first connection.
pub async fn dial(token: &Cell<[u8; TOKEN_BYTES]>) -> io::Result<NodeConnection> {
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
    Ok(NodeConnection { stream, descriptors })
}

/// Exchanges greetings with a peer that has connected to this process.
pub async fn greet(mut stream: UnixStream) -> io::Result<NodeConnection> {
    let mine = Hello { kind: Kind::Serve, cgroups: 0, oom_count: false, oom_event: false };
    stream.write_all(&mine.encode()).await?;
    let (_, descriptors) = tokio::time::timeout(GREETING_WITHIN, greeting(&stream)).await??;
    Ok(NodeConnection { stream, descriptors })
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
