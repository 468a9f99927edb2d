//! Tunnels, which carry bytes in both directions. If a rule names the host, the first bytes are checked: the
//! TLS server name must be that host. Without this check, a rule that allows one host would allow every other
//! host on the same servers. The `http` module handles tunnels that carry plaintext HTTP.

use api::host::Host;
use bytes::BytesMut;
use rustls::server::Acceptor;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};

use crate::flow::Flow;

/// Size of each direction's read buffer in bytes.
const PIECE_BYTES: usize = 16 << 10;
/// Maximum size of a TLS ClientHello in bytes. Even with all key shares, it is shorter than this.
const HELLO_BYTES_MAX: usize = 64 << 10;
/// The type of a TLS record that carries a handshake.
const HANDSHAKE: u8 = 22;
/// The port on which only TLS is allowed.
const TLS_PORT: u16 = 443;

/// Copies bytes in both directions until both have ended. If one direction fails, the connection is reset.
pub async fn pass<S: AsyncRead + AsyncWrite + Unpin + Send>(stream: S, flow: Flow) {
    let name = flow.allowed.by_name.then(|| flow.asked.host.clone());
    let only_tls = flow.asked.port == TLS_PORT;
    let revoked = flow.revoked.clone();
    let (from_inside, mut to_inside) = tokio::io::split(stream);
    let (from_outside, mut to_outside) = tokio::io::split(flow);
    let mut from_inside = BufReader::with_capacity(PIECE_BYTES, from_inside);
    let mut from_outside = BufReader::with_capacity(PIECE_BYTES, from_outside);
    let outwards = async {
        if let Some(name) = name {
            let first = hello(&mut from_inside, &name, only_tls).await?;
            to_outside.write_all(&first).await.map_err(|_| None)?;
        }
        copy(&mut from_inside, &mut to_outside).await
    };
    let inwards = copy(&mut from_outside, &mut to_inside);
    let passed = async { tokio::try_join!(outwards, inwards) };
    // The cancellation takes effect even while both sides are silent.
    let passed = tokio::select! {
        passed = passed => passed,
        () = revoked.cancelled() => Err(None),
    };
    if let Err(why) = passed {
        let flow = from_outside.into_inner().unsplit(to_outside);
        if let Some(why) = why {
            flow.refuse(&why);
        }
        flow.break_off();
    }
}

/// The cause of a tunnel failure, or `None` if the broker need not report it.
type TunnelFailure = Option<String>;

async fn copy(
    from: &mut (impl AsyncBufRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
) -> Result<(), TunnelFailure> {
    tokio::io::copy_buf(from, to).await.map_err(|_| None)?;
    to.shutdown().await.map_err(|_| None)
}

/// Reads the first bytes, and returns them if they may be sent to the host.
async fn hello(
    from: &mut (impl AsyncRead + Unpin),
    host: &Host,
    only_tls: bool,
) -> Result<BytesMut, TunnelFailure> {
    let mut bytes = BytesMut::new();
    let mut acceptor = Acceptor::default();
    loop {
        let before = bytes.len();
        if from.read_buf(&mut bytes).await.map_err(|_| None)? == 0 {
            return Ok(bytes);
        }
        if bytes.first() != Some(&HANDSHAKE) {
            return if only_tls { Err(Some("only TLS is allowed on port 443".into())) } else { Ok(bytes) };
        }
        let mut fresh = bytes.get(before..).unwrap_or_default();
        while !fresh.is_empty() && acceptor.read_tls(&mut fresh).map_err(|_| None)? > 0 {}
        match acceptor.accept() {
            Ok(None) if bytes.len() < HELLO_BYTES_MAX => {}
            Ok(None) => return Err(Some("the TLS ClientHello is too long".into())),
            Ok(Some(accepted)) => {
                let asked = accepted.client_hello().server_name().map(Host::parse);
                return match asked {
                    Some(Ok(asked)) if asked == *host => Ok(bytes),
                    Some(Ok(other)) => Err(Some(format!(
                        "the TLS connection is for {other} instead of the host of the tunnel"
                    ))),
                    Some(Err(_)) | None => Err(Some("the TLS connection does not name a host (SNI)".into())),
                };
            }
            Err(_) => {
                return Err(Some("the TLS ClientHello is malformed".into()));
            }
        }
    }
}

#[cfg(test)]
mod fuzz;
