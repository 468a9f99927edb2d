//! The HTTP proxy, which forwards plaintext requests and opens tunnels for `CONNECT`.
//!
//! Each request uses its own connection to its host, and only `hyper` parses and writes HTTP. Hop-by-hop
//! headers are regenerated for each connection, so that the two ends cannot disagree on where a request ends.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use api::host::Host;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::ext::ReasonPhrase;
use hyper::header::{
    CONNECTION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};

use crate::body::{Body, HEAD_BYTES_MAX, empty, full};
use crate::decide::RequestKind;
use crate::flow::Flow;
use crate::party::OutboundRequest;
use crate::{Refusal, RefusalKind, Visit, answer, gate};

/// Timeout for receiving the head of a request, and for the next request to begin on the same connection.
const HEAD_WITHIN: Duration = Duration::from_secs(60);
/// The default port for plaintext HTTP.
const CLEAR_PORT: u16 = 80;
/// Hop-by-hop headers, which apply to a single connection and must not be forwarded.
const HOP: [HeaderName; 7] =
    [CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE];
const HOP_TOO: [&str; 2] = ["keep-alive", "proxy-connection"];

/// Serves one connection to the proxy.
pub async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S, visit: Visit) {
    let visit = Arc::new(visit);
    let service = service_fn(move |request| {
        let visit = Arc::clone(&visit);
        async move { Ok::<_, Infallible>(visit.answer(request).await) }
    });
    let _ = server().serve_connection(TokioIo::new(stream), service).with_upgrades().await;
}

/// Returns true if a tunnel's content is parsed as HTTP: the rule names the host, and the port is the default
/// port for plaintext HTTP.
pub fn is_clear(flow: &Flow) -> bool {
    flow.allowed.by_name && flow.asked.port == CLEAR_PORT
}

/// Serves HTTP inside a tunnel. Every request must be for the tunnel's host.
pub async fn serve_inside<S: AsyncRead + AsyncWrite + Unpin + Send>(stream: S, flow: Flow, visit: Visit) {
    let host = flow.asked.host.clone();
    // Each request is checked against the policy separately and opens its own connection.
    drop(flow);
    let service = service_fn(|request| async {
        if let Err(refusal) = visit.party.pace() {
            return Ok::<_, Infallible>(refusal.response());
        }
        Ok(match inside(&request, &host, CLEAR_PORT) {
            Ok(asked) => visit.forward(request, asked).await,
            Err(refusal) => {
                visit.party.tell_wrong(&host.authority(CLEAR_PORT), &refusal.why);
                refusal.response()
            }
        })
    });
    let _ = server().serve_connection(TokioIo::new(stream), service).await;
}

/// Returns an HTTP server that limits the size of a request head and the time to receive it.
pub fn server() -> hyper::server::conn::http1::Builder {
    let mut server = hyper::server::conn::http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN).max_buf_size(HEAD_BYTES_MAX);
    server
}

impl Visit {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        if let Err(refusal) = self.party.pace() {
            return refusal.response();
        }
        let asked = match asked(&request) {
            Ok(asked) => asked,
            Err(refusal) => {
                let target = request.uri().authority().map_or("", |authority| authority.as_str());
                self.party.tell_wrong(target, &refusal.why);
                return refusal.response();
            }
        };
        if asked.ask == RequestKind::Tunnel {
            self.connect(request, asked).await
        } else {
            self.forward(request, asked).await
        }
    }

    /// Serves a `CONNECT` request, which opens a tunnel.
    async fn connect(&self, mut request: Request<Incoming>, asked: OutboundRequest) -> Response<Body> {
        let ready = match self.reach(asked).await {
            Ok(flow) => self.way(&flow).await.map(|way| (flow, way)),
            Err(refusal) => Err(refusal),
        };
        let upgrading = hyper::upgrade::on(&mut request);
        let (flow, way) = match ready {
            Ok(ready) => ready,
            Err(refusal) => {
                tokio::spawn(end(upgrading));
                return refusal.response();
            }
        };
        let visit = self.clone();
        tokio::spawn(async move {
            let Ok(upgraded) = upgrading.await else { return };
            visit.carry(TokioIo::new(upgraded), flow, way).await;
        });
        Response::new(empty())
    }

    /// Forwards a plaintext request to the host that it names.
    async fn forward(&self, mut request: Request<Incoming>, asked: OutboundRequest) -> Response<Body> {
        if let (Host::Name(name), CLEAR_PORT) = (&asked.host, asked.port)
            && gate::stands_for(name, request.uri().path(), &self.party.policy().borrow())
        {
            return self.broker.gate.answer(&request, &self.party).await;
        }
        if self.party.policy().borrow().bound(&asked.host, asked.port).next().is_some() {
            let why = format!(
                "{}: a secret is bound to this host, so only TLS is allowed; use https://",
                asked.authority()
            );
            self.party.tell(&asked, Err(&why));
            return Refusal { kind: RefusalKind::Denied, why }.response();
        }
        let authority = match (&asked.host, asked.port) {
            (host, CLEAR_PORT) => host.authority(CLEAR_PORT).trim_end_matches(":80").to_owned(),
            (host, port) => host.authority(port),
        };
        let flow = match self.reach(asked).await {
            Ok(flow) => flow,
            Err(refusal) => return refusal.response(),
        };
        let path = request.uri().path_and_query().cloned();
        *request.uri_mut() = path.map_or_else(Uri::default, Uri::from);
        remove_hop(request.headers_mut());
        if let Ok(host) = HeaderValue::from_str(&authority) {
            request.headers_mut().insert(HOST, host);
        }
        match answer::send(request, flow, &authority).await {
            Ok(mut response) => {
                remove_hop(response.headers_mut());
                response.map(|body| body.map_err(Into::into).boxed_unsync())
            }
            Err(refusal) => refusal.response(),
        }
    }
}

/// Shuts down a connection whose `CONNECT` was refused. hyper leaves this to the owner of the upgraded
/// connection.
async fn end(upgrading: OnUpgrade) {
    if let Ok(upgraded) = upgrading.await {
        let _ = TokioIo::new(upgraded).shutdown().await;
    }
}

/// Returns the destination of a proxy request: the one host that is checked, resolved and dialled.
fn asked(request: &Request<Incoming>) -> Result<OutboundRequest, Refusal> {
    let wrong = |why: &str| Refusal { kind: RefusalKind::Wrong, why: why.to_owned() };
    let Some(authority) = request.uri().authority() else {
        return Err(wrong(
            "this is the sandbox's proxy: send an absolute URL, such as `GET http://example.org/`, or use CONNECT",
        ));
    };
    if authority.as_str().contains('@') {
        return Err(wrong("the host of the URL must not contain user information"));
    }
    let is_tunnel = request.method() == Method::CONNECT;
    if !is_tunnel && request.uri().scheme_str() != Some("http") {
        return Err(wrong("only http:// can be requested without CONNECT; for https:// use CONNECT"));
    }
    let port = (!is_tunnel).then_some(CLEAR_PORT);
    let (host, port) = Host::with_port(authority.as_str(), port).map_err(|error| wrong(&error.message))?;
    let ask = if is_tunnel { RequestKind::Tunnel } else { as_request(request) };
    Ok(OutboundRequest::new(host, port, ask))
}

/// Returns the destination of a request inside a tunnel, which must be the tunnel's host.
pub fn inside(request: &Request<Incoming>, host: &Host, port: u16) -> Result<OutboundRequest, Refusal> {
    let mut named = request.headers().get_all(HOST).iter();
    let text = match (request.uri().authority(), named.next(), named.next()) {
        (Some(authority), _, _) => Some(authority.as_str()),
        (None, Some(only), None) => only.to_str().ok(),
        (None, _, _) => None,
    };
    let same = text.and_then(|text| Host::with_port(text, Some(port)).ok());
    if same != Some((host.clone(), port)) || request.method() == Method::CONNECT {
        let why = format!("the request inside the tunnel to {host} is for another host");
        return Err(Refusal { kind: RefusalKind::Denied, why });
    }
    Ok(OutboundRequest::new(host.clone(), port, as_request(request)))
}

fn as_request(request: &Request<Incoming>) -> RequestKind {
    RequestKind::Request { method: request.method().to_string(), path: request.uri().path().to_owned() }
}

/// Removes hop-by-hop headers.
pub fn remove_hop(headers: &mut HeaderMap) {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let listed: Vec<HeaderName> =
        values.flat_map(|text| text.split(',')).filter_map(|name| name.trim().parse().ok()).collect();
    for name in listed.into_iter().chain(HOP) {
        headers.remove(name);
    }
    for name in HOP_TOO {
        headers.remove(name);
    }
}

impl Refusal {
    /// Converts the refusal to a response. The status line also contains the reason, because many programs
    /// show only that line when a `CONNECT` is refused.
    pub fn response(self) -> Response<Body> {
        let (status, title) = match self.kind {
            RefusalKind::Wrong => (StatusCode::BAD_REQUEST, "Bad Request"),
            RefusalKind::Denied => (StatusCode::FORBIDDEN, "Forbidden by the policy of this sandbox"),
            RefusalKind::Missing => (StatusCode::NOT_FOUND, "Not Found"),
            RefusalKind::Busy => (StatusCode::TOO_MANY_REQUESTS, "Too Many Requests"),
            RefusalKind::Unreachable => (StatusCode::BAD_GATEWAY, "Bad Gateway"),
        };
        let fix = match self.kind {
            RefusalKind::Wrong => "Fix the request.",
            RefusalKind::Denied => {
                "Use a destination that the policy allows, or ask the owner of this sandbox to allow this destination: `bellglass policy SANDBOX \
                 --allow HOST`. The command replaces the policy, so repeat --allow for each entry that must stay."
            }
            RefusalKind::Missing => "Check the name.",
            RefusalKind::Busy => "Use fewer concurrent connections, and wait a second.",
            RefusalKind::Unreachable => {
                "Check the host name. If it is correct, retry later; hosts in private networks cannot be reached from sandboxes."
            }
        };
        let mut response = Response::new(full(format!("bellglass: {}\n  fix: {fix}\n", self.why)));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        let line: String =
            format!("{title}: {}", self.why).chars().filter(char::is_ascii).take(400).collect();
        if let Ok(reason) = ReasonPhrase::try_from(line.into_bytes()) {
            response.extensions_mut().insert(reason);
        }
        response
    }
}

/// Returns the response to a connection that exceeds the connection limits.
pub fn no_place() -> String {
    let why = "bellglass: this sandbox or its project has reached its connection limit; close some connections, or wait\n";
    format!(
        "HTTP/1.1 429 Too Many Requests: too many connections\r\ncontent-type: text/plain\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{why}",
        why.len()
    )
}

#[cfg(test)]
mod fuzz;
