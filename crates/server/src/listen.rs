//! Acceptance of connections, with or without TLS and within limits.
//!
//! | module | holds |
//! |---|---|
//! | [`guests`] | counts and limits of connections, per address |
//! | [`idle`] | time limits for connections |
//! | [`answer`] | responses in transmission, and when to drop them |
//!
//! Clients that send nothing or send too slowly are disconnected, and no client can take more than its share
//! of the connections. Plain HTTP is for the local machine only, unless the operator configures otherwise.

mod answer;
mod guests;
mod idle;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{HeaderMap, Request, StatusCode, Version, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::{FutureExt as _, future};
use hyper::body::Body as _;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

pub use guests::Origin;
pub use idle::AuthenticationHandle;

use crate::body::BodyReservations;
use answer::{Answered, Streams};
use guests::{ConnectionSlot, Guests};
use idle::{Idle, UnderWay};

/// Maximum idle time of an unauthenticated connection. Includes the wait for the head of its first request.
const HEAD_WITHIN: Duration = Duration::from_secs(30);
/// Timeout for a TLS handshake, which takes two round trips.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);
/// Maximum number of concurrent requests on one HTTP/2 connection. RFC 9113 recommends at least 100. A client
/// without a key that tries to use all of them exceeds [`REFUSED_MAX`].
const STREAMS_MAX: u32 = 100;
/// Maximum length of a request head. Legitimate heads are small; a longer one is an attack. Over HTTP/1, this
/// also limits how much of a response is buffered if the client does not read it.
const HEAD_BYTES_MAX: u32 = 64 * 1024;
/// Maximum amount of data that a client may send on one HTTP/2 connection before the server has consumed any
/// of it. A smaller window would slow down uploads over long distances: at a round-trip time of 100 ms, this
/// one allows 5 MB/s.
const WINDOW_BYTES: u32 = 512 * 1024;
/// Maximum amount of an HTTP/2 response that is buffered while the socket accepts no data.
const SEND_BYTES_MAX: usize = 64 * 1024;
/// How long excess requests on a new connection wait for one of its requests to present a valid key.
const SHOWN_WITHIN: Duration = Duration::from_secs(2);
/// Maximum number of refused requests on a connection before it is closed. A client without a key that uses
/// all [`STREAMS_MAX`] streams exceeds this number.
const REFUSED_MAX: usize = 80;
/// Headers that can contain a credential.
const CREDENTIALS: [&str; 4] = ["authorization", "x-api-key", "x-access-token", "cookie"];
/// Interval and timeout of pings on HTTP/2 connections. A peer that does not answer counts as gone.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_WITHIN: Duration = Duration::from_secs(20);
/// Delay before the next attempt to accept a connection after a failure, for example a lack of descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// TCP keepalive: the idle time before the first probe, the interval between probes, and the number of
/// unanswered probes after which the peer counts as gone. Keepalive is necessary because an upgraded
/// connection may be silent for hours, and it keeps its sandbox in use while it exists.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;

/// Whether a request arrived over TLS.
#[derive(Clone, Copy, Debug)]
pub struct Encrypted(pub bool);

/// Marker for a response that is forwarded as it arrives. The length of such a response says nothing about
/// its memory use.
#[derive(Clone, Copy, Debug)]
pub struct Passed;

/// Memory that is already reserved for a response, until it is sent.
#[derive(Clone, Debug)]
pub struct Reserved {
    _memory: Arc<OwnedSemaphorePermit>,
}

impl Reserved {
    /// Attaches a permit to a response: insert the result into the response's extensions.
    pub fn new(memory: OwnedSemaphorePermit) -> Self {
        Self { _memory: Arc::new(memory) }
    }
}

/// Paths of a certificate file and its key file, both in PEM format.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// Certificate chain, beginning with the server's own certificate.
    pub certificate: PathBuf,
    /// Private key.
    pub key: PathBuf,
}

/// Error in a certificate file or its key file.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or is not PEM.
    #[error("cannot read {path}: {why}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Why the file cannot be used.
        why: String,
    },
    /// The certificate and the key do not match, or one of them is not usable.
    #[error("the TLS certificate and its key cannot be used")]
    Unusable(#[source] tokio_rustls::rustls::Error),
}

/// Reads a certificate and its key.
///
/// # Errors
/// Returns an error if a file cannot be read or if the certificate and the key do not match.
pub fn tls(files: &TlsFiles) -> Result<TlsAcceptor, TlsError> {
    let unreadable = |path: &Path, why: String| TlsError::File { path: path.to_owned(), why };
    let certificates = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| unreadable(&files.certificate, error.to_string()))?;
    let mode =
        std::fs::metadata(&files.key).map_err(|error| unreadable(&files.key, error.to_string()))?.mode();
    if mode & 0o007 != 0 && !api::defence::is_off("D-07") {
        let why = format!(
            "every user of this machine can access the file (mode {:03o}); run `chmod 600` on the file",
            mode & 0o777
        );
        return Err(unreadable(&files.key, why));
    }
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

/// Listens on an address. The backlog equals the maximum number of authenticated connections. With a smaller
/// backlog, the kernel would drop connections during a burst, and their clients would retry only after a
/// second.
///
/// # Errors
/// Returns an error if the kernel rejects the address.
pub fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Allow binding to the address while connections of a previous server process are still closing.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(u32::try_from(guests::KNOWN_MAX).unwrap_or(u32::MAX))
}

/// Serves connections until the task is dropped.
pub async fn serve(listener: TcpListener, tls: Option<TlsAcceptor>, router: Router) {
    let guests = Arc::new(Guests::default());
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection; will retry");
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        let idle = Idle::new();
        let place = Arc::new(Guests::welcome(&guests, peer.ip(), &idle));
        let _ = stream.set_nodelay(true);
        keep_alive(&stream);
        let (router, tls) = (router.clone(), tls.clone());
        tokio::spawn(async move {
            let visit = |encrypted| Visit {
                peer,
                encrypted,
                idle,
                place: Arc::clone(&place),
                refused: AtomicUsize::new(0),
            };
            let served = async {
                match tls {
                    None => connection(stream, visit(Encrypted(false)), router).await,
                    Some(tls) => {
                        if let Ok(Ok(stream)) =
                            tokio::time::timeout(HANDSHAKE_WITHIN, tls.accept(stream)).await
                        {
                            connection(stream, visit(Encrypted(true)), router).await;
                        }
                    }
                }
            };
            tokio::select! {
                () = served => {}
                () = place.sent_away() => {}
            }
        });
    }
}

/// Enables TCP keepalive. Without it, the server would take longer to notice that a peer has vanished.
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
    let idle = visit.idle.clone();
    let service = tower_service(router, visit);
    let mut builder = Builder::new(Streams);
    builder.http1().timer(TokioTimer::new()).header_read_timeout(idle::KNOWN_FOR);
    if !api::defence::is_off("H-32") {
        builder.http1().max_buf_size(HEAD_BYTES_MAX as usize);
    }
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEAD_BYTES_MAX)
        .initial_connection_window_size(WINDOW_BYTES)
        .initial_stream_window_size(WINDOW_BYTES)
        .max_send_buf_size(SEND_BYTES_MAX)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_WITHIN);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    tokio::pin!(connection);
    // The builder detects the protocol from the first bytes and would wait for them forever (H-01), so the
    // timeout is enforced here. The connection's result is ignored, because each of its requests was answered
    // and logged.
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
) -> TowerToHyperService<
    impl tower::Service<
        Request<hyper::body::Incoming>,
        Response = axum::response::Response,
        Error = Infallible,
        Future = impl Send,
    > + Clone,
> {
    let visit = Arc::new(visit);
    TowerToHyperService::new(tower::service_fn(move |request: Request<hyper::body::Incoming>| {
        let under_way = visit.idle.begin(request.version() == Version::HTTP_2);
        // Decide this before anything is allocated: a client can open a hundred streams before the first one
        // is served, and each of them would take memory.
        let waits = under_way.crowded.then(|| visit.may_wait(request.headers()));
        if let Some(None) = waits {
            return future::ready(Ok(visit.refuse())).left_future();
        }
        let answer = answer_to(router.clone(), request, Arc::clone(&visit), under_way, waits.flatten());
        Box::pin(answer).right_future()
    }))
}

async fn answer_to(
    mut router: Router,
    mut request: Request<hyper::body::Incoming>,
    visit: Arc<Visit>,
    under_way: UnderWay,
    waits: Option<OwnedSemaphorePermit>,
) -> Result<Response, Infallible> {
    if let Some(waits) = waits
        && !visit.has_turn(waits).await
    {
        return Ok(visit.refuse());
    }
    let is_http2 = request.version() == Version::HTTP_2;
    let (known, kept) = (AuthenticationHandle::new(&visit.idle, &visit.place), BodyReservations::default());
    request.extensions_mut().insert(known.clone());
    request.extensions_mut().insert(kept.clone());
    request.extensions_mut().insert(visit.place.origin());
    request.extensions_mut().insert(ConnectInfo(visit.peer));
    request.extensions_mut().insert(visit.encrypted);
    request.extensions_mut().insert(ConnectionGuard { _place: Arc::clone(&visit.place) });
    let mut response = tower::Service::call(&mut router, request).await?;
    drop(kept);
    if let Some(memory) = response.extensions_mut().remove::<Reserved>() {
        let held = (known, Some(memory));
        return Ok(response.map(|body| Body::new(Answered::new(body, under_way, is_http2, held))));
    }
    let size = if response.extensions().get::<Passed>().is_some() {
        0
    } else {
        usize::try_from(response.body().size_hint().lower()).unwrap_or(usize::MAX)
    };
    let room = match known.account().map(|account| account.share.answer(size)) {
        Some(None) => return Ok(crowded()),
        room => room.flatten().map(Reserved::new),
    };
    Ok(response.map(|body| Body::new(Answered::new(body, under_way, is_http2, (known, room)))))
}

/// Returns the response to a request beyond the limit. The response has no body, so it can be sent even if
/// the client grants no flow-control window.
fn crowded() -> Response {
    (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, "1")]).into_response()
}

/// One connection, with its client's address and its slot.
struct Visit {
    peer: SocketAddr,
    encrypted: Encrypted,
    idle: Idle,
    place: Arc<ConnectionSlot>,
    /// Number of requests that were refused because they exceeded the limit.
    refused: AtomicUsize,
}

impl Visit {
    /// Refuses a request beyond the limit. Closes the connection if its client continues to send such
    /// requests.
    fn refuse(&self) -> Response {
        if self.refused.fetch_add(1, Ordering::Relaxed) >= REFUSED_MAX {
            self.place.send_away();
        }
        crowded()
    }

    /// Decides whether a request beyond an unauthenticated connection's limit may wait, and returns its
    /// permit. Returns `None` if the request presents no credential or if too many requests already wait.
    fn may_wait(&self, headers: &HeaderMap) -> Option<OwnedSemaphorePermit> {
        let shows = CREDENTIALS.iter().any(|name| headers.contains_key(*name));
        shows.then(|| self.place.may_wait()).flatten()
    }

    /// Waits until a request on the connection presents a valid credential. Returns false after the timeout.
    async fn has_turn(&self, _waits: OwnedSemaphorePermit) -> bool {
        tokio::time::timeout(SHOWN_WITHIN, self.idle.until_known()).await.is_ok()
    }
}

/// Guard for a connection's slot. An upgraded connection, such as a WebSocket, continues after HTTP has ended
/// on it. Its handler then holds this guard, which keeps the slot occupied.
#[derive(Clone)]
pub struct ConnectionGuard {
    _place: Arc<ConnectionSlot>,
}
