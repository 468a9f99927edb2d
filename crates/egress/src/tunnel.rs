//! Bytes both ways. Where a rule names the host, a look first: what TLS asks for must be that host, and what is HTTP in the clear is
//! read as HTTP. Else an allowed name would open every host that its servers have.

use api::host::Host;
use bytes::BytesMut;
use rustls::server::Acceptor;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};

use crate::flow::Flow;

/// What is read at once, in each direction.
const PIECE_BYTES: usize = 16 << 10;
/// The first message of a TLS connection is shorter, with every key share there is.
const HELLO_BYTES_MAX: usize = 64 << 10;
/// The type of a TLS record that carries a handshake.
const HANDSHAKE: u8 = 22;
/// Where only TLS is expected.
const TLS_PORT: u16 = 443;

/// Passes on both ways until both have ended. A break of one is a break of the other.
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
    // Also while neither side says anything.
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

/// Why it broke, where that is ours to say.
type Broken = Option<String>;

async fn copy(
    from: &mut (impl AsyncBufRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
) -> Result<(), Broken> {
    tokio::io::copy_buf(from, to).await.map_err(|_| None)?;
    to.shutdown().await.map_err(|_| None)
}

/// The first bytes that are sent, if they may be.
async fn hello(from: &mut (impl AsyncRead + Unpin), host: &Host, only_tls: bool) -> Result<BytesMut, Broken> {
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
