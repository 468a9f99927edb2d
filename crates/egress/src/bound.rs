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

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use api::host::Host;
use api::secret::SecretBinding;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::ext::ReasonPhrase;
use hyper::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, CONTENT_ENCODING, Entry, HOST, HeaderMap, HeaderName,
    HeaderValue, IF_RANGE, RANGE, TRANSFER_ENCODING, UPGRADE,
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
use crate::secret::SecretValue;
use crate::{Refusal, RefusalKind, Visit, answer};

/// Timeout for a TLS handshake. A program starts it as soon as the tunnel is open.
const GREETED_WITHIN: Duration = Duration::from_secs(15);
/// Maximum number of bytes that secret values may add to a request head. Without this limit, a head with a
/// thousand placeholders could grow enormously.
const ADDED_BYTES_MAX: usize = 32 << 10;
/// The beginning of an `Authorization` header that contains a user name and a password.
const BASIC: &str = "basic ";

/// TLS client for connections to hosts, with the root certificates of this machine.
#[derive(Default)]
pub struct Outward {
    config: OnceLock<Option<Arc<ClientConfig>>>,
}

/// A secret that is bound to the destination, with its value if one is set.
struct Bound {
    binding: SecretBinding,
    placeholder: String,
    value: Option<SecretValue>,
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

/// Replaces placeholders with values in the headers that the secrets are bound to. Returns the names of the
/// secrets that were used.
fn put_in(headers: &mut HeaderMap, path: &str, bound: &[Bound]) -> Result<Vec<String>, Refusal> {
    let mut used = Vec::new();
    let mut room = ADDED_BYTES_MAX;
    for Bound { binding, placeholder, value } in bound {
        let Ok(name) = binding.header.parse::<HeaderName>() else { continue };
        let basic = name == AUTHORIZATION;
        let Entry::Occupied(mut there) = headers.entry(name) else { continue };
        for header in there.iter_mut() {
            let Some(place) = PlaceholderHeader::find(header, placeholder, basic) else { continue };
            if binding.path != "/" && !is_canonical(path) {
                return Err(denied(format!(
                    "the secret {} is bound to {}, but the path of the request is ambiguous",
                    binding.name, binding.path
                )));
            }
            if !is_below(path, &binding.path) {
                continue;
            }
            let value = value
                .as_ref()
                .ok_or_else(|| denied(format!("the secret {} is no longer set", binding.name)))?;
            let added = place.count(placeholder).saturating_mul(value.expose().len());
            room = room.checked_sub(added).ok_or_else(|| {
                denied(format!("the secret {} occurs too often in the request", binding.name))
            })?;
            let mut with = place
                .put(placeholder, value)
                .map_err(|_| denied(format!("the secret {} is not a valid header value", binding.name)))?;
            with.set_sensitive(true);
            *header = with;
            if !used.contains(&binding.name) {
                used.push(binding.name.clone());
            }
        }
    }
    Ok(used)
}

/// A header value that contains a placeholder.
enum PlaceholderHeader {
    /// The header value as sent, which contains the placeholder.
    Plain(Vec<u8>),
    /// The decoded user name and password, which contain the placeholder. They are sent as base64.
    Basic(Vec<u8>),
}

impl PlaceholderHeader {
    fn find(header: &HeaderValue, placeholder: &str, basic: bool) -> Option<Self> {
        let bytes = header.as_bytes();
        if contains(bytes, placeholder) {
            return Some(Self::Plain(bytes.to_vec()));
        }
        let (scheme, rest) = bytes.split_at_checked(BASIC.len()).filter(|_| basic)?;
        let login =
            scheme.eq_ignore_ascii_case(BASIC.as_bytes()).then(|| STANDARD.decode(rest.trim_ascii()))?;
        login.ok().filter(|login| contains(login, placeholder)).map(Self::Basic)
    }

    fn count(&self, placeholder: &str) -> usize {
        let (Self::Plain(bytes) | Self::Basic(bytes)) = self;
        bytes.windows(placeholder.len()).filter(|window| *window == placeholder.as_bytes()).count()
    }

    fn put(
        self,
        placeholder: &str,
        value: &SecretValue,
    ) -> Result<HeaderValue, hyper::header::InvalidHeaderValue> {
        match self {
            Self::Plain(bytes) => HeaderValue::from_bytes(&replaced(&bytes, placeholder, value)),
            Self::Basic(login) => {
                let login = STANDARD.encode(replaced(&login, placeholder, value));
                HeaderValue::from_bytes(format!("Basic {login}").as_bytes())
            }
        }
    }
}

fn contains(bytes: &[u8], placeholder: &str) -> bool {
    bytes.windows(placeholder.len()).any(|window| window == placeholder.as_bytes())
}

fn replaced(mut bytes: &[u8], placeholder: &str, value: &SecretValue) -> Vec<u8> {
    let mut with = Vec::with_capacity(bytes.len());
    while let Some((first, rest)) = bytes.split_first() {
        match bytes.strip_prefix(placeholder.as_bytes()) {
            Some(after) => {
                with.extend_from_slice(value.expose().as_bytes());
                bytes = after;
            }
            None => {
                with.push(*first);
                bytes = rest;
            }
        }
    }
    with
}

/// Returns true if `path` equals `above` or is below it.
fn is_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above)
        .is_some_and(|rest| rest.is_empty() || above.ends_with('/') || rest.starts_with('/'))
}

/// Returns true if every server interprets the path in the same way: it has no `.` or `..` segments, and no
/// encoded characters that affect its structure.
fn is_canonical(path: &str) -> bool {
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        let sound = match byte {
            b'%' => {
                let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
                let decoded = digit(rest.next()).zip(digit(rest.next())).map(|(high, low)| high * 16 + low);
                let decoded = decoded.and_then(|byte| u8::try_from(byte).ok());
                decoded.is_some_and(|byte| !byte.is_ascii_control() && !b"./\\%;?#".contains(&byte))
            }
            _ => byte.is_ascii_graphic() && !b"\\;?#".contains(&byte),
        };
        if !sound {
            return false;
        }
    }
    !path.contains("//") && !path.split('/').any(|part| part == "." || part == "..")
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

    const PLACEHOLDER: &str = "bellglass-secret-KEY-0011";

    fn bound(word: &str, value: Option<&str>) -> Bound {
        let value = value.map(|value| SecretValue::new(value.into()));
        Bound { binding: word.parse().unwrap(), placeholder: PLACEHOLDER.into(), value }
    }

    fn sent(word: &str, path: &str, name: &'static str, text: &str) -> Result<String, String> {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_str(text).unwrap());
        put_in(&mut headers, path, &[bound(word, Some("real-value"))]).map_err(|refusal| refusal.why)?;
        Ok(String::from_utf8_lossy(headers[name].as_bytes()).into_owned())
    }

    #[test]
    fn a_value_goes_into_its_header_below_its_path_and_nowhere_else() {
        // Covers attack S-02.
        let bearer = format!("Bearer {PLACEHOLDER}");
        let whole = "secret:KEY=a.org";
        assert_eq!(sent(whole, "/x%2f..//y", "authorization", &bearer).unwrap(), "Bearer real-value");
        assert_eq!(sent(whole, "/", "x-api-key", &bearer).unwrap(), bearer);
        assert_eq!(sent("secret:KEY@x-api-key=a.org", "/", "x-api-key", PLACEHOLDER).unwrap(), "real-value");
        let below = "secret:KEY=a.org/v1";
        for path in ["/v1", "/v1/", "/v1/a%20b", "/v1/a:b,c"] {
            assert_eq!(sent(below, path, "authorization", &bearer).unwrap(), "Bearer real-value", "{path}");
        }
        for path in ["/", "/v10", "/v2/v1", "/V1", "/x/v1"] {
            assert_eq!(sent(below, path, "authorization", &bearer).unwrap(), bearer, "{path}");
        }
        for path in [
            "/v1/../v2",
            "/v1/%2e%2e/v2",
            "/v1/.%2E/x",
            "/v1/..%2fv2",
            "/v1%2f..%2fv2",
            "/v1//x",
            "/v1/\\..\\x",
            "/v1/..;/x",
            "/v1/%252e%252e/x",
            "/v1/%zz",
            "/v1/%",
            "/v1/.",
            "/v1/%5c..",
        ] {
            assert!(sent(below, path, "authorization", &bearer).is_err(), "{path}");
            // Without a placeholder, the path does not matter.
            assert_eq!(sent(below, path, "authorization", "Bearer x").unwrap(), "Bearer x", "{path}");
        }
    }

    #[test]
    fn a_user_and_a_password_are_looked_into() {
        let login = format!("bAsIc {}", STANDARD.encode(format!("user:{PLACEHOLDER}")));
        let with = sent("secret:KEY=a.org", "/", "authorization", &login).unwrap();
        assert_eq!(with, format!("Basic {}", STANDARD.encode("user:real-value")));
        let other = sent("secret:KEY@x-login=a.org", "/", "x-login", &login).unwrap();
        assert_eq!(other, login);
    }

    #[test]
    fn a_secret_that_was_removed_is_refused_by_name_where_it_is_used() {
        let gone = [bound("secret:KEY=a.org", None)];
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer x"));
        assert!(put_in(&mut headers, "/", &gone).unwrap().is_empty());
        headers.insert(AUTHORIZATION, HeaderValue::from_static(PLACEHOLDER));
        let refusal = put_in(&mut headers, "/", &gone).unwrap_err();
        assert_eq!(refusal.why, "the secret KEY is no longer set");
    }

    #[test]
    fn many_placeholders_make_no_large_request() {
        let large = "x".repeat(8 << 10);
        let often = [PLACEHOLDER; 4].join(" ");
        for (text, fits) in [(often.clone(), true), (format!("{often} {PLACEHOLDER}"), false)] {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, HeaderValue::from_str(&text).unwrap());
            assert_eq!(put_in(&mut headers, "/", &[bound("secret:KEY=a.org", Some(&large))]).is_ok(), fits);
        }
    }

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

    #[test]
    fn what_was_put_in_is_not_shown() {
        // Covers attack S-06.
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_static(PLACEHOLDER));
        let used = put_in(&mut headers, "/", &[bound("secret:KEY=a.org", Some("real-value"))]).unwrap();
        assert_eq!(used, ["KEY"]);
        assert_eq!(headers[AUTHORIZATION], "real-value");
        assert!(!format!("{headers:?}").contains("real-value"), "{headers:?}");
    }
}
