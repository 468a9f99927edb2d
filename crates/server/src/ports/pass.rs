//! Forwarding of requests to servers in sandboxes, of their responses, and of upgraded connections.
//!
//! Each request has its own connection into the sandbox. The connection ends with the request, so two
//! requests can never be mixed up on one connection. Bodies are streamed in both directions, within the
//! flow-control windows of their connections. If the client disconnects, the connection into the sandbox is
//! closed.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use api::{Error, ErrorCode, Layer, Ran, Retry, SandboxId};
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONNECTION, CONTENT_TYPE, HeaderMap, TE, UPGRADE};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderValue, Method, StatusCode, Uri, Version};
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::client::conn::{http1, http2};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioExecutor, TokioIo};
use node::{Call, Port};
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional_with_sizes};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;

use super::headers;
use crate::authority::cut::Ends;
use crate::listen::Passed;
use crate::rejection::{Answer, Rejection};
use control::platform::Platform;

/// Timeout for the head of an application's response. Applications that need more time can send the head
/// early.
const HEAD_WITHIN: Duration = Duration::from_secs(300);
/// Maximum length of the head of an application's response. Applications are untrusted: without this limit,
/// each connection could buffer 400 KB of an endless header block.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Timeout for completing an upgrade. It is short, because both sides have already agreed to the upgrade.
const UPGRADE_WITHIN: Duration = Duration::from_secs(10);
/// Size of the buffer for one direction of an upgraded connection.
const COPY_BYTES: usize = 32 * 1024;
/// Prefix of the content type of gRPC requests, which need HTTP/2.
const GRPC: &str = "application/grpc";

/// How a request reached this server.
pub struct Outside {
    /// Host that the request names, in lowercase. Includes the TCP port if the request names one.
    pub host: Option<String>,
    /// True if the request arrived over HTTPS.
    pub encrypted: bool,
    /// The client's address.
    pub peer: Option<IpAddr>,
}

/// Destination of a request, and how the request reached the server.
pub struct Destination {
    /// ID of the sandbox.
    pub sandbox: SandboxId,
    /// Port in the sandbox.
    pub port: u16,
    /// Project that owns the sandbox.
    pub project: String,
    /// How the request reached the server.
    pub outside: Outside,
    /// End of the grant that allows the request. `None` if the sandbox's token allows it.
    pub ends: Option<Ends>,
    /// Kind of address that the client used.
    pub address: Address,
}

/// Kind of address to which a request was sent. It limits the effects of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// The API's own address. The application receives `localhost` as the host name.
    Api,
    /// The port's own address, if the port is private.
    Private,
    /// The port's own address, if the port is public.
    Public,
}

/// Resources that stay held while a connection into a sandbox is in use.
struct PortConnectionGuard {
    connection: JoinHandle<()>,
    _place: OwnedSemaphorePermit,
}

/// Body of an application's response.
struct ApplicationBody {
    body: Incoming,
    _held: PortConnectionGuard,
}

impl Drop for PortConnectionGuard {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl hyper::body::Body for ApplicationBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Forwards a request and returns the application's response.
///
/// # Errors
/// Returns an error if nothing listens on the port, or if no HTTP response arrives in time.
pub async fn pass(
    platform: &Arc<Platform>,
    place: OwnedSemaphorePermit,
    to: Destination,
    mut request: Request,
) -> Answer<Response> {
    if request.method() == Method::CONNECT {
        let fix = "Use GET, POST or another method. For raw bytes, use `bellglass forward`.";
        return Err(Error::invalid("ports do not support CONNECT", fix).into());
    }
    let call = match to.address {
        Address::Api => platform.node.call(&to.sandbox).await?,
        Address::Private | Address::Public => platform.node.call_if_resumable(&to.sandbox).await?,
    };
    let port = dial(call, to.port).await?;
    let wanted =
        if request.version() == Version::HTTP_11 { headers::upgrade(request.headers()) } else { None };
    let client = wanted.as_ref().map(|_| hyper::upgrade::on(&mut request));
    let grpc = request.version() == Version::HTTP_2 && is_grpc(request.headers());
    prepare(&mut request, &to, wanted, grpc)?;
    let slot = to.ends.clone().map(Ends::slot);
    if let Some(slot) = &slot {
        request = slot.guard_request(request);
    }
    let asking = if grpc { by_http2(port, request).await } else { by_http1(port, request).await };
    let (mut answer, connection) = asking.map_err(|failure| failure.explain(to.port))?;
    let held = PortConnectionGuard { connection, _place: place };
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        let Some(client) = client else {
            return Err(ForwardFailure::Broken(
                "the server switched to a protocol that was not requested".into(),
            )
            .explain(to.port));
        };
        let inside = hyper::upgrade::on(&mut answer);
        let other = become_something_else(client, inside, held);
        match to.ends {
            Some(ends) => tokio::spawn(ends.limit(other)),
            None => tokio::spawn(other),
        };
        return Ok(switching(answer, to.address));
    }
    let (mut head, body) = answer.into_parts();
    headers::outwards(&mut head.headers, to.address);
    head.extensions.insert(Passed);
    let response = Response::from_parts(head, Body::new(ApplicationBody { body, _held: held }));
    Ok(match slot {
        Some(slot) => slot.guard(response),
        None => response,
    })
}

/// Connects to a port in a sandbox.
///
/// # Errors
/// Returns an error if nothing listens on the port or if the sandbox has ended.
pub async fn dial(call: Call, port: u16) -> Answer<Port> {
    call.dial(port).await.map_err(|error| {
        let fault = Rejection::from(error);
        // Not 404: the request is valid, but nothing listens at its destination.
        if fault.error().code == ErrorCode::NotFound { fault.status(StatusCode::BAD_GATEWAY) } else { fault }
    })
}

/// Copies data in both directions until both have ended or one has failed.
pub async fn copy(
    mut one: impl AsyncRead + AsyncWrite + Unpin,
    mut other: impl AsyncRead + AsyncWrite + Unpin,
) {
    // Ignore the result: ends and failures have already been forwarded to the other side.
    let _ = copy_bidirectional_with_sizes(&mut one, &mut other, COPY_BYTES, COPY_BYTES).await;
}

/// Reason why an application's response is not available.
enum ForwardFailure {
    Broken(String),
    Late,
}

impl ForwardFailure {
    fn explain(self, port: u16) -> Rejection {
        let (code, message, fix) = match self {
            Self::Broken(why) => (
                ErrorCode::Protocol,
                format!("the server on port {port} did not respond with HTTP: {why}"),
                "Check the output of the server in the sandbox. For protocols other than HTTP, use `bellglass forward`.",
            ),
            Self::Late => (
                ErrorCode::Deadline,
                format!("the server on port {port} did not respond within {HEAD_WITHIN:?}"),
                "Check what the server in the sandbox is doing. If it needs more time, let it send the response headers early.",
            ),
        };
        let (ran, retry) = (Ran::Unknown, Retry::Unknown);
        Error { code, message, layer: Layer::UserCode, ran, retry, fix: fix.into() }.into()
    }
}

type ForwardResult = Result<(Response<Incoming>, JoinHandle<()>), ForwardFailure>;

async fn by_http1(port: Port, request: Request) -> ForwardResult {
    let mut client = http1::Builder::new();
    if !api::defence::is_off("N-30") {
        client.max_buf_size(HEAD_BYTES_MAX);
    }
    let handshake = client.handshake(TokioIo::new(port)).await;
    let (mut sender, connection) = handshake.map_err(|error| broken(&error))?;
    let connection = connection.with_upgrades();
    let mut asking = PendingConnection(Some(tokio::spawn(async move { drop(connection.await) })));
    let answer = in_time(sender.send_request(request)).await?;
    asking.done(answer)
}

async fn by_http2(port: Port, request: Request) -> ForwardResult {
    let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(port));
    let (mut sender, connection) = in_time(handshake).await?;
    let mut asking = PendingConnection(Some(tokio::spawn(async move { drop(connection.await) })));
    let answer = in_time(sender.send_request(request)).await?;
    asking.done(answer)
}

/// A connection whose response is outstanding. Dropping it closes the connection.
struct PendingConnection(Option<JoinHandle<()>>);

impl PendingConnection {
    fn done(&mut self, answer: Response<Incoming>) -> ForwardResult {
        let connection = self.0.take().ok_or(ForwardFailure::Late)?;
        Ok((answer, connection))
    }
}

impl Drop for PendingConnection {
    fn drop(&mut self) {
        if let Some(connection) = &self.0 {
            connection.abort();
        }
    }
}

async fn in_time<T>(asking: impl Future<Output = hyper::Result<T>>) -> Result<T, ForwardFailure> {
    match tokio::time::timeout(HEAD_WITHIN, asking).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(broken(&error)),
        Err(_) => Err(ForwardFailure::Late),
    }
}

fn broken(error: &hyper::Error) -> ForwardFailure {
    ForwardFailure::Broken(node::error::chain(error))
}

/// Rewrites a request into the form that the application receives.
fn prepare(request: &mut Request, to: &Destination, wanted: Option<HeaderValue>, grpc: bool) -> Answer<()> {
    let host = match &to.outside.host {
        Some(host) if to.address != Address::Api => host.clone(),
        Some(_) | None => format!("localhost:{}", to.port),
    };
    let wrong =
        || Error::invalid("the URL of the request cannot be forwarded to the port", "Correct the URL.");
    let value = HeaderValue::from_str(&host).map_err(|_| wrong())?;
    headers::inwards(request.headers_mut(), &to.outside, value);
    if let Some(wanted) = wanted {
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
        request.headers_mut().insert(UPGRADE, wanted);
    } else if !grpc {
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    let path = request.uri().path_and_query().map_or("/", PathAndQuery::as_str).to_owned();
    let uri = if grpc {
        request.headers_mut().insert(TE, HeaderValue::from_static("trailers"));
        Uri::builder().scheme("http").authority(host).path_and_query(path).build()
    } else {
        Uri::builder().path_and_query(path).build()
    };
    *request.uri_mut() = uri.map_err(|_| wrong())?;
    *request.version_mut() = if grpc { Version::HTTP_2 } else { Version::HTTP_11 };
    Ok(())
}

fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(GRPC.as_bytes()))
}

/// Returns the response that confirms an upgrade to the client.
fn switching(answer: Response<Incoming>, address: Address) -> Response {
    let (mut head, _) = answer.into_parts();
    let upgraded = head.headers.get(UPGRADE).cloned();
    headers::outwards(&mut head.headers, address);
    head.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    if let Some(upgraded) = upgraded {
        head.headers.insert(UPGRADE, upgraded);
    }
    Response::from_parts(head, Body::empty())
}

async fn become_something_else(client: OnUpgrade, inside: OnUpgrade, held: PortConnectionGuard) {
    let both = async { tokio::try_join!(client, inside) };
    if let Ok(Ok((client, inside))) = tokio::time::timeout(UPGRADE_WITHIN, both).await {
        copy(TokioIo::new(client), TokioIo::new(inside)).await;
    }
    drop(held);
}
