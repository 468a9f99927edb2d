//! SOCKS 5 (RFC 1928): `CONNECT` to a name or an address, without authentication. Other commands and address
//! types are refused with the matching reply code.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use api::host::Host;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::decide::RequestKind;
use crate::party::{OutboundRequest, Party};
use crate::{RefusalKind, Visit};

const VERSION: u8 = 5;
/// Timeout for the request. A program sends it as soon as it has connected.
const SAID_WITHIN: Duration = Duration::from_secs(10);

/// The reply code of a response.
#[derive(Clone, Copy)]
enum ReplyCode {
    Done = 0,
    Failed = 1,
    NotAllowed = 2,
    Unreachable = 4,
    NoSuchCommand = 7,
    NoSuchAddress = 8,
}

/// Serves one SOCKS connection.
pub async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(mut stream: S, visit: Visit) {
    if visit.party.pace().is_err() {
        return;
    }
    let asked = match tokio::time::timeout(SAID_WITHIN, ask(&mut stream, &visit.party)).await {
        Ok(Ok(Ok(asked))) => asked,
        Ok(Ok(Err(reply))) => return say(&mut stream, reply).await,
        Ok(Err(_)) | Err(_) => return,
    };
    match visit.reach(asked).await {
        Ok(flow) => {
            let Ok(way) = visit.way(&flow).await else { return say(&mut stream, ReplyCode::Failed).await };
            let done = [VERSION, ReplyCode::Done as u8, 0, 1, 0, 0, 0, 0, 0, 0];
            if stream.write_all(&done).await.is_ok() {
                visit.carry(stream, flow, way).await;
            }
        }
        Err(refusal) => {
            let reply = match refusal.kind {
                RefusalKind::Denied => ReplyCode::NotAllowed,
                RefusalKind::Unreachable => ReplyCode::Unreachable,
                RefusalKind::Wrong | RefusalKind::Busy | RefusalKind::Missing => ReplyCode::Failed,
            };
            say(&mut stream, reply).await;
        }
    }
}

async fn say(stream: &mut (impl AsyncWrite + Unpin), reply: ReplyCode) {
    let _ = stream.write_all(&[VERSION, reply as u8, 0, 1, 0, 0, 0, 0, 0, 0]).await;
    let _ = stream.shutdown().await;
}

/// Reads the request, and returns its destination or the reply code for refusing the request.
async fn ask(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    party: &Party,
) -> io::Result<Result<OutboundRequest, ReplyCode>> {
    let wrong = || io::Error::from(io::ErrorKind::InvalidData);
    let [version, methods] = exactly(stream).await?;
    let mut offered = vec![0; usize::from(methods)];
    stream.read_exact(&mut offered).await?;
    if version != VERSION {
        return Err(wrong());
    }
    if !offered.contains(&0) {
        stream.write_all(&[VERSION, 0xff]).await?;
        return Err(wrong());
    }
    stream.write_all(&[VERSION, 0]).await?;
    let [version, command, _, kind] = exactly(stream).await?;
    if version != VERSION {
        return Err(wrong());
    }
    let host = match kind {
        1 => Ok(Host::Address(Ipv4Addr::from(exactly::<4>(stream).await?).into())),
        3 => {
            let [length] = exactly(stream).await?;
            let mut name = vec![0; usize::from(length)];
            stream.read_exact(&mut name).await?;
            let text = String::from_utf8_lossy(&name).into_owned();
            Host::parse(&text).map_err(|error| party.tell_wrong(&text, &error.message))
        }
        4 => Ok(Host::Address(Ipv6Addr::from(exactly::<16>(stream).await?).into())),
        _ => return Ok(Err(ReplyCode::NoSuchAddress)),
    };
    let port = u16::from_be_bytes(exactly(stream).await?);
    Ok(match (host, command) {
        (Ok(host), 1) if port != 0 => Ok(OutboundRequest::new(host, port, RequestKind::Tunnel)),
        (_, 1) => Err(ReplyCode::NotAllowed),
        // The other commands would open a listening port, or send datagrams.
        (_, _) => Err(ReplyCode::NoSuchCommand),
    })
}

async fn exactly<const N: usize>(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

#[cfg(test)]
mod fuzz;
