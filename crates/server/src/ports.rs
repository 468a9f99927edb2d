//! Access to sandbox ports from outside: routing, authorization and forwarding of requests.
//!
//! | module | holds |
//! |---|---|
//! | [`name`] | ports' host names: `{port}-{sandbox}.{domain}` |
//! | [`ticket`] | tokens: sent in a header, or once in a URL and then in a cookie |
//! | [`headers`] | headers that forwarding removes or adds |
//! | [`pass`] | forwarding of requests, responses and upgraded connections |
//!
//! A request goes to a port if its host name is below the ports' domain, or if it uses the API's own address
//! and names the port in two headers. In the first case, the host name alone decides, because no API route
//! exists on a port's host name. In the second case, an application's response appears on the API's address,
//! but only for a request whose headers no page from a different origin can send.
//!
//! **Bellglass's credentials and headers never enter the sandbox**: not the key, not the token, not the
//! token's cookie, and no header that begins with `bellglass-`.

mod headers;
pub mod name;
pub mod pass;
pub mod ticket;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use api::ports::{ERROR_HEADER, PORT_HEADER, SANDBOX_HEADER, TOKEN_HEADER};
use api::{Error, SandboxId};
use axum::Router;
use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::app::App;
use crate::authority::cut::Ends;
use crate::authority::{Caller, Write};
use crate::listen::{AuthenticationHandle, Encrypted};
use crate::rejection::{Answer, Rejection};
use control::account::busy;
use control::credential::{ApiKey, KEY_PREFIX};
use control::platform::Platform;
use name::{Domain, Named, authority};
use pass::{Address, Destination, Outside};
use ticket::Admitted;

/// Maximum number of connections into the sandboxes of one project: enough for two sandboxes at their limit.
const PROJECT_MAX: usize = 512;

/// Number of entries in `public` at which the entries of ended sandboxes are removed.
const PUBLIC_MAX: usize = 1024;

/// State for access to ports.
#[derive(Default)]
pub struct Ports {
    /// Domain of the ports' host names.
    pub domain: Domain,
    places: Mutex<HashMap<String, Arc<Semaphore>>>,
    /// Cancellation tokens of public ports. A port's token is cancelled when the port becomes private, which
    /// disconnects clients that did not present the sandbox's access token.
    public: Mutex<HashMap<(SandboxId, u16), CancellationToken>>,
}

/// Request extension with the sandbox that the request's host name identifies, for handlers of
/// [`ServedPorts`].
#[derive(Clone, Debug)]
pub struct InHost(pub SandboxId);

/// Ports that the server itself serves for every sandbox. Requests to these ports never reach the sandbox.
#[derive(Clone)]
pub struct ServedPorts {
    /// Port numbers in each sandbox.
    pub ports: &'static [u16],
    /// Routes that serve the ports. Their handlers receive the sandbox as [`InHost`].
    pub routes: Router,
}

/// Router that sends each request either to the API or to a port.
#[derive(Clone)]
struct Front {
    platform: Arc<Platform>,
    ports: Arc<Ports>,
    api: Router,
    inside: ServedPorts,
}

impl Ports {
    /// Creates the state for ports under this domain.
    pub fn under(domain: Domain) -> Self {
        Self { domain, ..Self::default() }
    }

    /// Disconnects clients without a token from a port that is no longer public.
    pub fn close(&self, sandbox: &SandboxId, port: u16) {
        let mut public = self.public.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = public.remove(&(sandbox.clone(), port)).filter(|_| !api::defence::is_off("H-42"))
        {
            open.cancel();
        }
    }

    /// Returns the end of a grant that exists only because a port is public. The grant ends when the port
    /// becomes private. If there are many entries, also removes the entries of ended sandboxes.
    fn until_private(&self, sandbox: &SandboxId, port: u16, runs: impl Fn(&SandboxId) -> bool) -> Ends {
        let mut public = self.public.lock().unwrap_or_else(PoisonError::into_inner);
        if public.len() >= PUBLIC_MAX {
            public.retain(|(sandbox, _), _| runs(sandbox));
        }
        Ends::by(public.entry((sandbox.clone(), port)).or_default().clone())
    }

    /// Returns a permit for one connection of this project.
    ///
    /// # Errors
    /// Returns `rate_limited` if the project has too many connections to ports.
    pub fn place(&self, project: &str) -> Answer<OwnedSemaphorePermit> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        // Remove projects without open connections; they need no entry.
        places.retain(|_, places| places.available_permits() < PROJECT_MAX);
        let own = places.entry(project.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(PROJECT_MAX)));
        let full =
            |_| busy(format!("the project already has {PROJECT_MAX} connections to ports, the maximum"));
        Ok(Arc::clone(own).try_acquire_owned().map_err(full)?)
    }
}

/// Returns a router that sends requests for sandbox ports to the ports, and all others to the public API.
pub fn before(api: Router, inside: ServedPorts, app: &App) -> Router {
    let (platform, ports) = (Arc::clone(&app.platform), Arc::clone(&app.ports));
    Router::new().fallback(route).with_state(Front { platform, ports, api, inside })
}

async fn route(State(front): State<Front>, request: Request) -> Response {
    let (begun, method) = (Instant::now(), request.method().clone());
    let (mut parts, body) = request.into_parts();
    let passed = match destined(&mut parts, &front).await {
        Ok(None) => return answered(front.api.oneshot(Request::from_parts(parts, body)).await),
        Ok(Some(Going::Inside(sandbox))) => {
            parts.extensions.insert(InHost(sandbox));
            return answered(front.inside.routes.oneshot(Request::from_parts(parts, body)).await);
        }
        Ok(Some(Going::In(destination))) => {
            let request = Request::from_parts(parts, body);
            match front.ports.place(&destination.project) {
                Ok(place) => pass::pass(&front.platform, place, destination, request).await,
                Err(rejection) => Err(rejection),
            }
        }
        Ok(Some(Going::Back(response))) => Ok(response),
        Err(fault) => Err(fault),
    };
    let response = passed.unwrap_or_else(own_error);
    let (status, took) = (response.status().as_u16(), begun.elapsed());
    front.platform.metrics.answered("port", method.as_str(), status, took);
    tracing::info!(
        %method,
        route = "port",
        status,
        ms = node::clock::millis(took),
        "answered a request to a port"
    );
    response
}

/// Destination of a request that is not for the API.
enum Going {
    In(Destination),
    /// A port that the server itself serves.
    Inside(SandboxId),
    Back(Response),
}

/// Returns the destination of a request, or `None` if the request is for the API. Rejects unauthorized
/// requests.
async fn destined(parts: &mut Parts, front: &Front) -> Answer<Option<Going>> {
    let Front { platform, ports, .. } = front;
    let host = authority(parts)?;
    if let Some(value) = host.as_deref().and_then(|host| HeaderValue::from_str(host).ok()) {
        // HTTP/2 transmits the host in a different place, but later code reads it from this header.
        parts.headers.entry(header::HOST).or_insert(value);
    }
    let outside = Outside {
        encrypted: ports.domain.encrypted().unwrap_or_else(|| is_encrypted(parts)),
        peer: parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip()),
        host,
    };
    match ports.domain.named(outside.host.as_deref().unwrap_or_default()) {
        Named::Port { port, sandbox } if front.inside.ports.contains(&port) => {
            Ok(Some(Going::Inside(sandbox)))
        }
        Named::Port { port, sandbox } => {
            if api::defence::is_off("H-43") {
                drop(platform.node.call(&sandbox).await);
            }
            by_name(parts, front, outside, port, sandbox).map(Some)
        }
        Named::Nothing => Err(Error {
            fix: "Use the address that `bellglass forward --url` shows, such as 8000-SANDBOX.DOMAIN.".into(),
            ..Error::not_found("no port has this address")
        }
        .into()),
        Named::Api => by_headers(parts, platform, outside).await,
    }
}

/// Authorizes a request to `{port}-{sandbox}.{domain}`. An API key does not count here, because the header
/// `authorization` belongs to the application.
fn by_name(
    parts: &mut Parts,
    front: &Front,
    outside: Outside,
    port: u16,
    sandbox: SandboxId,
) -> Answer<Going> {
    let platform = &front.platform;
    // Treat a missing sandbox like a sandbox with a different token, to hide which sandboxes exist.
    let (project, gate) = platform.node.ports(&sandbox).unwrap_or_default();
    let by_token = match ticket::admit(parts, &outside, &gate, port)? {
        Admitted::Yes { by_token } => by_token,
        Admitted::Redirect(response) => return Ok(Going::Back(response)),
    };
    check_no_key(&parts.headers, |word| word.starts_with(KEY_PREFIX))?;
    if let Some(known) = parts.extensions.get::<AuthenticationHandle>() {
        known.visits();
    }
    let address = if gate.is_public(port) { Address::Public } else { Address::Private };
    let runs = |id: &SandboxId| platform.node.ports(id).is_some();
    let ends = (!by_token).then(|| front.ports.until_private(&sandbox, port, runs));
    Ok(Going::In(Destination { sandbox, port, project, outside, ends, address }))
}

/// Authorizes a request to the API's own address that names a sandbox and a port in headers. The request must
/// present either an API key, which is not forwarded to the application, or the sandbox's token.
async fn by_headers(parts: &mut Parts, platform: &Arc<Platform>, outside: Outside) -> Answer<Option<Going>> {
    let named = (one(parts, SANDBOX_HEADER)?, one(parts, PORT_HEADER)?);
    let (sandbox, port) = match named {
        (None, None) => return Ok(None),
        (Some(sandbox), Some(port)) => (sandbox, api::ports::number(&port)?),
        (Some(_), None) | (None, Some(_)) => {
            let message = format!("{SANDBOX_HEADER} and {PORT_HEADER} must be sent together");
            return Err(Error::invalid(
                message,
                format!("Send both {SANDBOX_HEADER} and {PORT_HEADER}, or omit both headers."),
            )
            .into());
        }
    };
    let (sandbox, project, ends) = if parts.headers.contains_key(TOKEN_HEADER) {
        check_no_key(&parts.headers, |_| true)?;
        let id: Option<SandboxId> = sandbox.parse().ok();
        let (project, gate) = id.as_ref().and_then(|id| platform.node.ports(id)).unwrap_or_default();
        match id {
            Some(id) if ticket::shown(parts, &gate) => (id, project, None),
            Some(_) | None => return Err(ticket::refused()),
        }
    } else {
        let caller = Caller::<Write>::from_request_parts(parts, platform).await?;
        // These credentials are meant for this server, not for the application.
        parts.headers.remove(header::AUTHORIZATION);
        parts.headers.remove("x-api-key");
        let id = platform.running(&caller, &sandbox).await?.id;
        (id, caller.key.project.clone(), Some(Ends::of(&caller)))
    };
    Ok(Some(Going::In(Destination { sandbox, port, project, outside, ends, address: Address::Api })))
}

/// Rejects an API key in a request that is authorized in a different way, because the key would be forwarded
/// like the application's own credentials. A key is recognized by its form; `counts` can restrict this
/// further. The key's validity is not checked, because the response must not reveal whether a key is valid.
fn check_no_key(headers: &HeaderMap, counts: impl Fn(&str) -> bool) -> Answer<()> {
    let words = |name: &str| {
        headers.get_all(name).iter().flat_map(|value| value.as_bytes().split(u8::is_ascii_whitespace))
    };
    // Uppercase keys count as well: this server rejects them, but an application could convert them to
    // lowercase.
    let is_key = |word: &[u8]| {
        let small = std::str::from_utf8(word).unwrap_or_default().to_ascii_lowercase();
        ApiKey::parse(&small).is_some() && counts(&small)
    };
    let shown = ["authorization", "x-api-key"].into_iter().flat_map(words).any(is_key);
    if !shown || api::defence::is_off("N-35") {
        return Ok(());
    }
    let message = "the request contains an API key of this server, which is not needed here and would be passed to the application in the sandbox";
    Err(Error::invalid(message, format!("At the API's address, send either the key or {TOKEN_HEADER}. At a port's own address, send no key. With {TOKEN_HEADER}, credentials for the application are passed on, unless they consist of 64 hexadecimal digits, like a key; send such credentials to the port's own address.")).into())
}

/// Returns the value of a header that may occur at most once.
fn one(parts: &Parts, name: &str) -> Answer<Option<String>> {
    let mut values = parts.headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) if value.to_str().is_ok() => Ok(value.to_str().ok().map(str::to_owned)),
        (Some(_), _) => Err(Error::invalid(
            format!("{name} is repeated or is not text"),
            "Send the header once, as text.",
        )
        .into()),
    }
}

fn is_encrypted(parts: &Parts) -> bool {
    parts.extensions.get::<Encrypted>().is_some_and(|encrypted| encrypted.0)
}

/// Returns the client's address in the form that applications receive.
fn shown(peer: Option<IpAddr>) -> Option<HeaderValue> {
    HeaderValue::from_str(&peer?.to_canonical().to_string()).ok()
}

/// Converts an error of this server into a response. A header marks the response as the server's own;
/// applications cannot send this header.
fn own_error(fault: Rejection) -> Response {
    let code = fault.error().code.name();
    let mut response = fault.into_response();
    response.headers_mut().insert(ERROR_HEADER, HeaderValue::from_static(code));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn answered(answer: Result<Response, std::convert::Infallible>) -> Response {
    match answer {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

#[cfg(test)]
mod fuzz;
