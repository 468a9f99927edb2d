//! Hosts with bound secrets: TLS is terminated and re-established, and each request is inspected.
//!
//! ```text
//! program ──TLS: the project's authority──▶ request ─▶ decide ─▶ placeholder becomes value ──TLS: the host's own──▶ host
//!         ◀── values masked ([`crate::scrub`]) ◀─────────────────────────────────────────────────────── response
//! ```
//!
//! Connections to other hosts are not inspected. A secret's value is sent only in the header to which the
//! secret is bound, in a request whose path is at or below the bound path, over TLS, to a host whose
//! certificate this machine trusts. The value is never sent in a body. The broker does not follow redirects:
//! the program follows them with a new request, which is checked against the policy separately. Responses
//! that could hide an echo of the value are refused: encoded responses, partial content and protocol
//! switches.

mod placeholder;

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use api::host::Host;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::ext::ReasonPhrase;
use hyper::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_ENCODING, HOST, HeaderMap, HeaderValue, IF_RANGE, RANGE,
    TRANSFER_ENCODING, UPGRADE,
};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::server::Acceptor;
use rustls::{ClientConfig, ServerConfig};
use rustls_platform_verifier::BuilderVerifierExt as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, TlsConnector};

use crate::body::Body;
use crate::flow::Flow;
use crate::http;
use crate::party::OutboundRequest;
use crate::scrub::{Scrubbed, Scrubber};
use crate::{Refusal, RefusalKind, Visit, answer};
use placeholder::{Bound, put_in};

/// Timeout for a TLS handshake. A program starts it as soon as the tunnel is open.
const GREETED_WITHIN: Duration = Duration::from_secs(15);

/// TLS client for connections to hosts, with the root certificates of this machine.
#[derive(Default)]
pub struct Outward {
    config: OnceLock<Option<Arc<ClientConfig>>>,
}

impl Outward {
    async fn greet(&self, host: &str, flow: Flow) -> Result<TlsStream<Flow>, Refusal> {
        let failed = |why: String| Refusal::unreachable(format!("TLS handshake with {host} failed: {why}"));
        let config = self.config.get_or_init(client).clone();
        let config = config.ok_or_else(|| failed("this machine has no trusted root certificates".into()))?;
        let name = ServerName::try_from(host.to_owned()).map_err(|error| failed(error.to_string()))?;
        let greeting = TlsConnector::from(config).connect(name, flow);
        match tokio::time::timeout(GREETED_WITHIN, greeting).await {
            Ok(greeted) => greeted.map_err(|error| failed(error.to_string())),
            Err(_) => Err(failed(format!("the handshake was not complete within {GREETED_WITHIN:?}"))),
        }
    }
}

fn client() -> Option<Arc<ClientConfig>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().ok()?;
    let mut config = config.with_platform_verifier().ok()?.with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Some(Arc::new(config))
}

/// Returns the TLS configuration that the broker uses to impersonate the tunnel's host.
pub async fn in_place_of(visit: &Visit, asked: &OutboundRequest) -> Result<Arc<ServerConfig>, Refusal> {
    let failed = |why: String| {
        let why = format!("{} has a secret bound to it, but {why}", asked.authority());
        visit.party.tell(asked, Err(&why));
        Refusal::unreachable(why)
    };
    let Some(keyring) = visit.party.keyring() else {
        return Err(failed("this sandbox has no secrets".into()));
    };
    let authority = keyring.authority().await;
    let authority = authority
        .map_err(|_| failed("the server cannot read the project's certificate authority now".into()))?;
    authority.in_place_of(&asked.host.to_string()).map_err(|error| failed(error.to_string()))
}

/// Serves a tunnel to a host with bound secrets.
pub async fn serve<S>(stream: S, asked: OutboundRequest, config: Arc<ServerConfig>, visit: Visit)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let greeted = tokio::time::timeout(GREETED_WITHIN, greet(stream, &asked.host, config)).await;
    let stream = match greeted {
        Ok(Ok(stream)) => stream,
        Ok(Err(why)) => return visit.party.tell(&asked, Err(&why)),
        Err(_) => return,
    };
    let service = service_fn(|request| async {
        let answered = visit.answer_bound(request, &asked).await;
        let mut response = answered.unwrap_or_else(Refusal::response);
        if visit.party.policy().borrow().bound(&asked.host, asked.port).next().is_none() {
            // No secret is bound to the host any more, so this inspected connection is closed. The program's
            // next connection to the host will not be inspected.
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok::<_, Infallible>(response)
    });
    let _ = http::server().serve_connection(TokioIo::new(stream), service).await;
}

/// Accepts the program's TLS connection, which must name the tunnel's host as its server name.
async fn greet<S>(
    stream: S,
    host: &Host,
    config: Arc<ServerConfig>,
) -> Result<tokio_rustls::server::TlsStream<S>, String>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let begun = LazyConfigAcceptor::new(Acceptor::default(), stream).await;
    let begun = begun.map_err(|_| "only TLS is allowed to a host with a bound secret".to_owned())?;
    match begun.client_hello().server_name().map(Host::parse) {
        Some(Ok(asked)) if asked == *host => {}
        Some(Ok(other)) => {
            return Err(format!("the TLS connection is for {other} instead of the host of the tunnel"));
        }
        Some(Err(_)) | None => return Err("the TLS connection does not name a host (SNI)".into()),
    }
    // The handshake usually fails because the program does not use the certificates configured in the
    // sandbox.
    begun
        .into_stream(config)
        .await
        .map_err(|error| format!("the program in the sandbox aborted the TLS handshake: {error}"))
}

impl Visit {
    /// Serves one request to a host with bound secrets.
    async fn answer_bound(
        &self,
        mut request: Request<Incoming>,
        tunnel: &OutboundRequest,
    ) -> Result<Response<Body>, Refusal> {
        self.party.pace()?;
        let mut asked = http::inside(&request, &tunnel.host, tunnel.port).inspect_err(|refusal| {
            self.party.tell_wrong(&tunnel.authority(), &refusal.why);
        })?;
        let readied = self.ready(&mut request, &asked).await;
        let (bound, used) = readied.inspect_err(|refusal| self.party.tell(&asked, Err(&refusal.why)))?;
        asked.secrets = used;
        let flow = self.reach(asked.clone()).await?;
        if !flow.allowed.bound {
            return Err(changed(tunnel));
        }
        let host = tunnel.host.to_string();
        let greeted = self.broker.outward.greet(&host, flow).await;
        let stream = greeted.inspect_err(|refusal| self.party.tell(&asked, Err(&refusal.why)))?;
        let response = answer::send(request, stream, &tunnel.authority()).await?;
        let scrubber = Scrubber::new(bound.iter().filter_map(|one| one.value.as_ref()));
        let answered = clean(response, scrubber, &host);
        answered.inspect_err(|refusal| self.party.tell(&asked, Err(&refusal.why)))
    }

    /// Prepares a request for the host: inserts secret values and removes hop-by-hop headers. Returns the
    /// secrets that are bound to the destination, and the names of the secrets that the request uses.
    async fn ready(
        &self,
        request: &mut Request<Incoming>,
        asked: &OutboundRequest,
    ) -> Result<(Vec<Bound>, Vec<String>), Refusal> {
        if request.headers().contains_key(UPGRADE) {
            return Err(denied(format!(
                "{} has a secret bound to it: WebSockets and other upgrades are not allowed",
                asked.authority()
            )));
        }
        let bound = self.bound(asked).await?;
        let path = request.uri().path().to_owned();
        let target = request.uri().path_and_query().cloned();
        *request.uri_mut() = target.map_or_else(Uri::default, Uri::from);
        let headers = request.headers_mut();
        http::remove_hop(headers);
        // An echoed value could not be found in an encoded or partial response.
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        headers.remove(RANGE);
        headers.remove(IF_RANGE);
        let authority = match asked.port {
            443 => asked.host.to_string(),
            _ => asked.authority(),
        };
        if let Ok(host) = HeaderValue::from_str(&authority) {
            headers.insert(HOST, host);
        }
        let used = put_in(headers, &path, &bound)?;
        Ok((bound, used))
    }

    /// Returns the secrets that are currently bound to the destination.
    async fn bound(&self, asked: &OutboundRequest) -> Result<Vec<Bound>, Refusal> {
        let policy = self.party.policy();
        let bindings: Vec<_> = policy.borrow().bound(&asked.host, asked.port).cloned().collect();
        let Some(keyring) = self.party.keyring().filter(|_| !bindings.is_empty()) else {
            return Err(changed(asked));
        };
        let mut bound = Vec::new();
        for binding in bindings {
            let value = keyring.secret(&binding.name).await.map_err(|_| {
                // The error names files on this machine. The server logs it, but the program must not see it.
                Refusal::unreachable(format!("the server cannot read the secret {} now", binding.name))
            })?;
            bound.push(Bound { placeholder: keyring.placeholder(&binding.name), binding, value });
        }
        Ok(bound)
    }
}

/// Masks the values of bound secrets in a host's response. Refuses a response that cannot be scanned for
/// them.
fn clean(response: Response<Incoming>, scrubber: Scrubber, host: &str) -> Result<Response<Body>, Refusal> {
    let (mut head, body) = response.into_parts();
    let refused = |why: &str| Refusal::unreachable(format!("{host} has a secret bound to it, but {why}"));
    if head.status == StatusCode::SWITCHING_PROTOCOLS || head.status == StatusCode::PARTIAL_CONTENT {
        return Err(refused("switched protocols or sent partial content although neither was requested"));
    }
    let packed = head.headers.get_all(CONTENT_ENCODING).iter().any(|value| value != "identity");
    if packed || !(is_plain(&head.headers) || api::defence::is_off("N-32")) {
        return Err(refused("sent an encoded response, which cannot be scanned for the secret"));
    }
    head.extensions.remove::<ReasonPhrase>();
    http::remove_hop(&mut head.headers);
    let mut headers = HeaderMap::with_capacity(head.headers.len());
    for (name, value) in &head.headers {
        if scrubber.finds(name.as_str().as_bytes()) {
            continue;
        }
        if let Ok(value) = HeaderValue::from_bytes(&scrubber.whole(value.as_bytes())) {
            headers.append(name, value);
        }
    }
    head.headers = headers;
    Ok(Response::from_parts(head, Scrubbed::new(body, scrubber).map_err(Into::into).boxed_unsync()))
}

/// Returns true if the response is sent without a transfer coding, or in chunks, which hyper decodes. Any
/// other coding would hide the content.
fn is_plain(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => true,
        (Some(only), None) => only.as_bytes().eq_ignore_ascii_case(b"chunked"),
        (Some(_), Some(_)) => false,
    }
}

fn denied(why: String) -> Refusal {
    Refusal { kind: RefusalKind::Denied, why }
}

fn changed(asked: &OutboundRequest) -> Refusal {
    denied(format!("the policy has changed: reconnect to {}", asked.authority()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_no_transfer_coding_but_chunks() {
        // Covers attack N-32.
        let plain = |codings: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for coding in codings {
                headers.append(TRANSFER_ENCODING, HeaderValue::from_static(coding));
            }
            is_plain(&headers)
        };
        for codings in [&[][..], &["chunked"], &["Chunked"]] {
            assert!(plain(codings), "{codings:?}");
        }
        for codings in [
            &["gzip, chunked"][..],
            &["gzip,chunked"],
            &["gzip", "chunked"],
            &["chunked", "chunked"],
            &["chunked, chunked"],
            &["x-gzip"],
            &["deflate"],
            &["identity"],
            &[""],
        ] {
            assert!(!plain(codings), "{codings:?}");
        }
    }
}
