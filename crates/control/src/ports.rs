//! Ports inside sandboxes, reached from outside: which request is for which port, who may, and passing it on.
//!
//! | module | holds |
//! |---|---|
//! | [`name`] | `{port}-{sandbox}.{domain}`: which address is whose |
//! | [`ticket`] | tokens: as a header, once in an address, then as a cookie |
//! | [`headers`] | what is taken out of a request and an answer, and what is put in |
//! | [`pass`] | one request to a server inside, and its answer; connections that become something else |
//!
//! A request is for a port if its host is below the domain of ports, or if it says so in two headers on the API's own address.
//! The first decides alone: no route of the API exists on the host of a port, and nothing that an application answers appears
//! on the API's address unless it was asked for with headers that no page of another origin can send.
//!
//! **Nothing of ours goes in**: not the key, not the token, not its cookie, no header that begins with `belljar-`.

mod headers;
pub mod name;
pub mod pass;
mod ticket;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use api::account::Role;
use api::ports::{ERROR_HEADER, PORT_HEADER, SANDBOX_HEADER, TOKEN_HEADER};
use api::{Error, SandboxId};
use axum::Router;
use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::ServiceExt as _;

use crate::account::busy;
use crate::caller::Caller;
use crate::e2b::{AGENT_PORT, CODE_PORT};
use crate::fault::{Answer, Fault};
use crate::listen::Encrypted;
use crate::platform::Platform;
use name::{Domain, Named, authority};
use pass::{Destination, Outside};
use ticket::Admitted;

/// Connections of one project into its sandboxes: two that are as full as they may be.
const PROJECT_MAX: usize = 512;

/// What is needed to reach ports.
#[derive(Default)]
pub struct Ports {
    /// The names under which they are reached.
    pub domain: Domain,
    places: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// Stands before the public API.
#[derive(Clone)]
struct Front {
    platform: Arc<Platform>,
    api: Router,
    /// What stands for the agent that E2B's SDKs expect in a sandbox.
    agent: Router,
}

impl Ports {
    /// Ports under this domain.
    pub fn under(domain: Domain) -> Self {
        Self { domain, places: Mutex::default() }
    }

    /// A place for one connection of this project.
    ///
    /// # Errors
    /// `rate_limited`: it has as many as it may.
    pub fn place(&self, project: &str) -> Answer<OwnedSemaphorePermit> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever has none open needs no entry.
        places.retain(|_, places| places.available_permits() < PROJECT_MAX);
        let own = places.entry(project.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(PROJECT_MAX)));
        let full =
            |_| busy(format!("the project has {PROJECT_MAX} connections to ports, the most there may be"));
        Arc::clone(own).try_acquire_owned().map_err(full)
    }
}

/// The public API with ports in front of it.
pub fn before(api: Router, agent: Router, platform: Arc<Platform>) -> Router {
    Router::new().fallback(route).with_state(Front { platform, api, agent })
}

async fn route(State(front): State<Front>, request: Request) -> Response {
    let (begun, method) = (Instant::now(), request.method().clone());
    let (mut parts, body) = request.into_parts();
    let passed = match destined(&mut parts, &front.platform).await {
        Ok(None) => return answered(front.api.oneshot(Request::from_parts(parts, body)).await),
        Ok(Some(Going::Adapted(sandbox))) => {
            parts.extensions.insert(crate::e2b::Named(sandbox));
            return answered(front.agent.oneshot(Request::from_parts(parts, body)).await);
        }
        Ok(Some(Going::In(destination))) => {
            pass::pass(&front.platform, destination, Request::from_parts(parts, body)).await
        }
        Ok(Some(Going::Back(response))) => Ok(response),
        Err(fault) => Err(fault),
    };
    let response = passed.unwrap_or_else(own_error);
    let (status, took) = (response.status().as_u16(), begun.elapsed());
    front.platform.metrics.answered("port", method.as_str(), status, took);
    tracing::info!(%method, route = "port", status, ms = node::clock::millis(took), "answered");
    response
}

/// Where a request goes that is not one of the API's.
enum Going {
    In(Destination),
    /// To what stands for the agent that E2B's SDKs expect in a sandbox.
    Adapted(SandboxId),
    Back(Response),
}

/// Where a request is to go, if not to the API, and whether it may.
async fn destined(parts: &mut Parts, platform: &Arc<Platform>) -> Answer<Option<Going>> {
    let host = authority(parts)?;
    if let Some(value) = host.as_deref().and_then(|host| HeaderValue::from_str(host).ok()) {
        // HTTP/2 has it elsewhere, and whoever reads it further on looks here.
        parts.headers.entry(header::HOST).or_insert(value);
    }
    let outside = Outside {
        encrypted: platform.ports.domain.encrypted().unwrap_or_else(|| is_encrypted(parts)),
        peer: parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip()),
        host,
    };
    match platform.ports.domain.named(outside.host.as_deref().unwrap_or_default()) {
        // What E2B's agent would answer is answered here: nothing in the sandbox is asked.
        Named::Port { port: AGENT_PORT | CODE_PORT, sandbox } => Ok(Some(Going::Adapted(sandbox))),
        Named::Port { port, sandbox } => by_name(parts, platform, outside, (port, sandbox)).map(Some),
        Named::Nothing => Err(Error {
            fix: "Use an address such as 8000-SANDBOX.DOMAIN, as `belljar forward --url` shows it.".into(),
            ..Error::not_found("no port has this address")
        }
        .into()),
        Named::Api => by_headers(parts, platform, outside).await,
    }
}

/// A request to `{port}-{sandbox}.{domain}`. A key is of no use here: what stands in `authorization` is the application's.
fn by_name(
    parts: &mut Parts,
    platform: &Platform,
    outside: Outside,
    (port, sandbox): (u16, SandboxId),
) -> Answer<Going> {
    // One that is not there is like one whose token is another.
    let (project, gate) = platform.node.ports(&sandbox).unwrap_or_default();
    match ticket::admit(parts, &outside, &gate, port)? {
        Admitted::Yes => Ok(Going::In(Destination { sandbox, port, project, outside, local: false })),
        Admitted::Redirect(response) => Ok(Going::Back(response)),
    }
}

/// A request to the API's own address that names a port in headers: with a key, which stays here, or with a token.
async fn by_headers(parts: &mut Parts, platform: &Arc<Platform>, outside: Outside) -> Answer<Option<Going>> {
    let named = (one(parts, SANDBOX_HEADER)?, one(parts, PORT_HEADER)?);
    let (sandbox, port) = match named {
        (None, None) => return Ok(None),
        (Some(sandbox), Some(port)) => (sandbox, api::ports::number(&port)?),
        (Some(_), None) | (None, Some(_)) => {
            let message = format!("{SANDBOX_HEADER} and {PORT_HEADER} belong together");
            return Err(Error::invalid(message, "Send both, or neither.").into());
        }
    };
    let (sandbox, project) = if parts.headers.contains_key(TOKEN_HEADER) {
        let id: Option<SandboxId> = sandbox.parse().ok();
        let (project, gate) = id.as_ref().and_then(|id| platform.node.ports(id)).unwrap_or_default();
        match id {
            Some(id) if ticket::shown(parts, &gate) => (id, project),
            Some(_) | None => return Err(ticket::refused()),
        }
    } else {
        let caller = Caller::from_request_parts(parts, platform).await?;
        caller.require(Role::Write)?;
        // It was for us.
        parts.headers.remove(header::AUTHORIZATION);
        parts.headers.remove("x-api-key");
        (platform.running(&caller, &sandbox).await?.id, caller.key.project.clone())
    };
    Ok(Some(Going::In(Destination { sandbox, port, project, outside, local: true })))
}

/// The value of a header that is there at most once.
fn one(parts: &Parts, name: &str) -> Answer<Option<String>> {
    let mut values = parts.headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) if value.to_str().is_ok() => Ok(value.to_str().ok().map(str::to_owned)),
        (Some(_), _) => {
            Err(Error::invalid(format!("{name} is there twice, or is no text"), "Send one.").into())
        }
    }
}

fn is_encrypted(parts: &Parts) -> bool {
    parts.extensions.get::<Encrypted>().is_some_and(|encrypted| encrypted.0)
}

/// Who is at the other end, as an application may be told.
fn shown(peer: Option<IpAddr>) -> Option<HeaderValue> {
    HeaderValue::from_str(&peer?.to_canonical().to_string()).ok()
}

/// An error of ours among answers of applications: a header says so that no application can set.
fn own_error(fault: Fault) -> Response {
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
