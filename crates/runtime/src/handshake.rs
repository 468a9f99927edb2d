//! The handshake with a guest over a stream that cannot transfer file descriptors.

use api::hello::{HELLO_BYTES, Hello, Kind};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

/// Performs the handshake: reads the guest's hello and sends the node's. No descriptors are sent, because the
/// backend's stream cannot transfer them.
pub(crate) async fn greet(mut stream: UnixStream) -> Result<UnixStream, String> {
    let mut bytes = [0; HELLO_BYTES];
    let heard = stream.read_exact(&mut bytes).await;
    heard.map_err(|error| format!("handshake failed: {error}"))?;
    Hello::decode(&bytes).map_err(|error| error.to_string())?;
    let answer = Hello { kind: Kind::Serve, cgroups: 0, oom_count: false, oom_event: false };
    let sent = stream.write_all(&answer.encode()).await;
    sent.map_err(|error| format!("cannot send the handshake reply: {error}"))?;
    Ok(stream)
}
