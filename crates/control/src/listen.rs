//! Taking connections, with or without TLS, each within bounds.
//!
//! Whoever connects and says nothing, or says it slowly, is let go; nobody has more than a share of the connections. Plain HTTP
//! is for this machine itself, unless the operator says otherwise.

mod idle;

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

pub use idle::Known;

use idle::{Idle, Whole};

/// Connections at once: twice the sandboxes of a full machine, each with a stream and a call.
const CONNECTIONS_MAX: usize = 4096;
/// Connections of one address. On one machine that is everybody.
const ADDRESS_MAX: usize = 2048;
/// The head of a request comes within this, the first one counted from the connection on; one on which nobody is known may be idle as long.
const HEAD_WITHIN: Duration = Duration::from_secs(30);
/// A TLS handshake takes two round trips.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);
/// Requests at once on one HTTP/2 connection.
const STREAMS_MAX: u32 = 256;
/// Heads are small; what is longer is an attack.
const HEAD_BYTES_MAX: u32 = 64 * 1024;
/// An HTTP/2 peer that does not answer pings is gone.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_WITHIN: Duration = Duration::from_secs(20);
/// When no connection can be taken (no descriptors), the next try.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Whoever is silent for so long is asked whether it is still there; at the third missing answer it is gone. A connection that
/// has become something else may be silent for hours, and holds a sandbox in use.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;

/// Whether a request came by TLS.
#[derive(Clone, Copy, Debug)]
pub struct Encrypted(pub bool);

/// A certificate and its key, as PEM files.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The chain, the server's own certificate first.
    pub certificate: PathBuf,
    /// The key.
    pub key: PathBuf,
}

/// Why the files are not a certificate and its key.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or is not PEM.
    #[error("cannot read {path}: {why}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// They do not belong together, or are not usable.
    #[error("the certificate and the key cannot be used")]
    Unusable(#[source] tokio_rustls::rustls::Error),
}

/// Reads a certificate and its key.
///
/// # Errors
/// They cannot be read or do not belong together.
pub fn tls(files: &TlsFiles) -> Result<TlsAcceptor, TlsError> {
    let unreadable = |path: &Path, why: String| TlsError::File { path: path.to_owned(), why };
    let certificates = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| unreadable(&files.certificate, error.to_string()))?;
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| unreadable(&files.key, error.to_string()))?;
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(certificates, key))
        .map_err(TlsError::Unusable)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Listens on an address. As many as may be connected may also wait to be: where fewer may, the kernel drops whoever comes during a burst,
/// and they try again after a second.
///
/// # Errors
/// What the kernel said.
pub fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Who was served before may be waiting for its last byte still.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(u32::try_from(CONNECTIONS_MAX).unwrap_or(u32::MAX))
}

/// Serves until the task is dropped.
pub async fn serve(listener: TcpListener, tls: Option<TlsAcceptor>, router: Router) {
    let guests = Arc::new(Guests::default());
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be taken");
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        let Some(place) = Guests::welcome(&guests, peer.ip()) else { continue };
        let _ = stream.set_nodelay(true);
        keep_alive(&stream);
        let (router, tls) = (router.clone(), tls.clone());
        tokio::spawn(async move {
            let held = Held { _place: Arc::new(place) };
            let visit = |encrypted| Visit { peer, encrypted, held };
            match tls {
                None => connection(stream, visit(Encrypted(false)), router).await,
                Some(tls) => {
                    if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_WITHIN, tls.accept(stream)).await {
                        connection(stream, visit(Encrypted(true)), router).await;
                    }
                }
            }
        });
    }
}

/// Where it cannot be set, a peer that vanished is noticed later.
fn keep_alive(stream: &TcpStream) {
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, KEEPALIVE_AFTER);
    let _ = sockopt::set_tcp_keepintvl(stream, KEEPALIVE_EVERY);
    let _ = sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES);
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    visit: Visit,
    router: Router,
) {
    let idle = Idle::new();
    let service = tower_service(router, visit, idle.clone());
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(idle::KNOWN_FOR);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEAD_BYTES_MAX)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_WITHIN);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    tokio::pin!(connection);
    // Which protocol is spoken is decided by the first bytes, and the builder waits for those without end (H-01). How a
    // connection ends is its peer's business; what was done for it was told and logged.
    while idle.left(HEAD_WITHIN) != Some(Duration::ZERO) {
        let next = idle.left(HEAD_WITHIN).unwrap_or(HEAD_WITHIN);
        if tokio::time::timeout(next, &mut connection).await.is_ok() {
            return;
        }
    }
}

fn tower_service(
    router: Router,
    visit: Visit,
    idle: Idle,
) -> TowerToHyperService<
    impl tower::Service<
        Request<hyper::body::Incoming>,
        Response = axum::response::Response,
        Error = Infallible,
        Future = impl Send,
    > + Clone,
> {
    TowerToHyperService::new(tower::service_fn(move |mut request: Request<hyper::body::Incoming>| {
        let under_way = idle.begin();
        request.extensions_mut().insert(idle.known());
        request.extensions_mut().insert(ConnectInfo(visit.peer));
        request.extensions_mut().insert(visit.encrypted);
        request.extensions_mut().insert(visit.held.clone());
        let mut router = router.clone();
        async move {
            let response = tower::Service::call(&mut router, request).await?;
            Ok(response.map(|body| Body::new(Whole { body, _under_way: under_way })))
        }
    }))
}

/// One connection: whose it is, and its place among them.
struct Visit {
    peer: SocketAddr,
    encrypted: Encrypted,
    held: Held,
}

/// Keeps a connection's place. One that becomes something else, a WebSocket, ends for HTTP and goes on; whoever has it then
/// holds this.
#[derive(Clone)]
pub struct Held {
    _place: Arc<Place>,
}

/// Who is connected.
#[derive(Default)]
struct Guests {
    counts: Mutex<HashMap<IpAddr, usize>>,
}

/// A place among the connections, given back when dropped.
struct Place {
    guests: Arc<Guests>,
    address: IpAddr,
}

impl Guests {
    fn welcome(guests: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let mut counts = guests.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = counts.values().sum();
        let own = counts.entry(address).or_default();
        if all >= CONNECTIONS_MAX || *own >= ADDRESS_MAX {
            return None;
        }
        *own += 1;
        Some(Place { guests: Arc::clone(guests), address })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.guests.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = counts.get_mut(&self.address) {
            *own -= 1;
            if *own == 0 {
                counts.remove(&self.address);
            }
        }
    }
}
