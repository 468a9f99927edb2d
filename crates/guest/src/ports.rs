//! Connections to servers in the sandbox. Each request carries one connection: the request body is the input
//! of the server, and the response body is its output.
//!
//! ```text
//! dial ──refused──▶ error               body ends ──▶ write side is shut down    body breaks, or response is dropped ──▶ reset
//!   └─ok──▶ both directions, independently      read side ends ──▶ response ends
//! ```
//!
//! A regular end of a connection is forwarded as an end, and a broken connection as a reset, so that
//! truncated data is never mistaken for complete data. A server that does not read delays only its own
//! connection, because each connection has its own flow-control window in HTTP/2.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use api::ports::CONNECTIONS_MAX;
use api::{Error, ErrorCode, Layer, Ran, Retry};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{Semaphore, SemaphorePermit, mpsc};

/// Timeout for connecting. On the loopback interface, connecting succeeds at once, unless the server's queue
/// is full.
const DIAL_WITHIN: Duration = Duration::from_secs(5);
/// Maximum size of one read.
const PIECE_BYTES: usize = 64 * 1024;
/// Maximum number of queued chunks per reader.
const PIECES_WAITING: usize = 2;

/// Permits for connections. They are global, because this process serves only one sandbox.
static PLACES: Semaphore = Semaphore::const_new(CONNECTIONS_MAX);

/// Output of a server in the sandbox, as the body of a response. If the output ends without an explicit end
/// marker, the connection broke.
pub struct PortOutput {
    pieces: mpsc::Receiver<PortChunk>,
    ended: bool,
}

enum PortChunk {
    Data(Bytes),
    End,
}

/// Error for a connection that broke, on either side.
struct BrokenConnection;

impl Body for PortOutput {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        self.pieces.poll_recv(context).map(|piece| {
            self.ended = !matches!(piece, Some(PortChunk::Data(_)));
            match piece {
                Some(PortChunk::Data(bytes)) => Some(Ok(Frame::data(bytes))),
                Some(PortChunk::End) => None,
                None => Some(Err(io::ErrorKind::ConnectionReset.into())),
            }
        })
    }
}

/// Connects to a port and forwards bytes in both directions.
///
/// # Errors
/// Nothing listens on the port, the server does not accept the connection in time, or the maximum number of
/// connections is open.
pub async fn open(port: u16, heard: Incoming) -> Result<PortOutput, Error> {
    let place = PLACES.try_acquire().map_err(|_| Error {
        code: ErrorCode::Capacity,
        message: format!("the sandbox already has {CONNECTIONS_MAX} open connections, the maximum"),
        layer: Layer::Sandbox,
        ran: Ran::No,
        retry: Retry::Safe,
        fix: "Close some of these connections, or wait until one closes.".into(),
    })?;
    Ok(carry(dial(port).await?, heard, Some(place)))
}

/// Forwards bytes in both directions between a connection in the sandbox and the node.
pub fn carry(stream: TcpStream, heard: Incoming, place: Option<SemaphorePermit<'static>>) -> PortOutput {
    let _ = stream.set_nodelay(true);
    let (say, pieces) = mpsc::channel(PIECES_WAITING);
    tokio::task::spawn_local(pass(stream, heard, say, place));
    PortOutput { pieces, ended: false }
}

async fn dial(port: u16) -> Result<TcpStream, Error> {
    let mut late = false;
    for address in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        match tokio::time::timeout(DIAL_WITHIN, TcpStream::connect(SocketAddr::new(address, port))).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(_)) => {}
            Err(_) => late = true,
        }
    }
    let (code, message, fix) = if late {
        (
            ErrorCode::Deadline,
            format!("the server on port {port} of the sandbox does not accept connections"),
            "Check the server in the sandbox: its connection queue is full.".to_owned(),
        )
    } else {
        (
            ErrorCode::NotFound,
            format!("nothing listens on port {port} of the sandbox"),
            format!(
                "Start a server on port {port} in the sandbox. The server must listen on 127.0.0.1 or 0.0.0.0."
            ),
        )
    };
    Err(Error { code, message, layer: Layer::UserCode, ran: Ran::No, retry: Retry::Safe, fix })
}

async fn pass(
    mut stream: TcpStream,
    heard: Incoming,
    say: mpsc::Sender<PortChunk>,
    _place: Option<SemaphorePermit<'static>>,
) {
    let (read, write) = stream.split();
    if tokio::try_join!(inwards(heard, write), outwards(read, say)).is_err() {
        // Reset the connection, so that the program in the sandbox does not mistake the break for a regular
        // end.
        let _ = stream.set_zero_linger();
    }
}

async fn inwards(mut heard: Incoming, mut write: WriteHalf<'_>) -> Result<(), BrokenConnection> {
    while let Some(frame) = heard.frame().await {
        if let Ok(bytes) = frame.map_err(|_| BrokenConnection)?.into_data() {
            write.write_all(&bytes).await.map_err(|_| BrokenConnection)?;
        }
    }
    write.shutdown().await.map_err(|_| BrokenConnection)
}

async fn outwards(mut read: ReadHalf<'_>, say: mpsc::Sender<PortChunk>) -> Result<(), BrokenConnection> {
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        let count = tokio::select! {
            count = read.read(&mut buffer) => count.map_err(|_| BrokenConnection)?,
            // The receiver of the output is gone.
            () = say.closed() => return Err(BrokenConnection),
        };
        // Copy the bytes, so that a small chunk does not keep a large buffer alive while it waits.
        let piece = match buffer.get(..count) {
            None | Some([]) => PortChunk::End,
            Some(bytes) => PortChunk::Data(Bytes::copy_from_slice(bytes)),
        };
        let is_end = matches!(piece, PortChunk::End);
        say.send(piece).await.map_err(|_| BrokenConnection)?;
        if is_end {
            return Ok(());
        }
    }
}
