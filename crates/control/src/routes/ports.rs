//! Ports of a sandbox: how one is reached, opening it to everybody, and a tunnel of raw bytes.

use std::sync::Arc;

use api::Error;
use api::account::Role;
use api::ports::{Port, PutPort, TUNNEL_PROTOCOL};
use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::header::{CONNECTION, UPGRADE};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use node::journal::Ports as Gate;

use crate::audit::Act;
use crate::caller::{At, Caller, Sent};
use crate::fault::{Answer, Fault};
use crate::listen::Encrypted;
use crate::platform::Platform;
use crate::ports::name::authority;
use crate::ports::pass;

/// How a request reached the server.
pub struct Reached {
    authority: String,
    encrypted: bool,
}

impl<S: Sync> FromRequestParts<S> for Reached {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Answer<Self> {
        let encrypted = parts.extensions.get::<Encrypted>().is_some_and(|encrypted| encrypted.0);
        Ok(Self { authority: authority(parts)?.unwrap_or_default(), encrypted })
    }
}

/// How a port of a sandbox is reached: its address, and the token that opens the sandbox's ports.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/ports/{port}", params(("sandbox" = String, Path), ("port" = u16, Path)), security(("key" = [])), responses((status = 200, body = Port), (status = "default", body = Error)))]
pub async fn look(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At((named, port)): At<(String, String)>,
    reached: Reached,
) -> Answer<Json<Port>> {
    // Whoever has the token can do what the application lets anybody do.
    caller.require(Role::Write)?;
    let sandbox = platform.running(&caller, &named).await?;
    let port = api::ports::number(&port)?;
    let (_, gate) = platform.node.ports(&sandbox.id).unwrap_or_default();
    Ok(Json(shown(&platform, &sandbox.id, port, gate, &reached)))
}

/// Opens a port to everybody who knows its address, or closes it again.
#[utoipa::path(put, path = "/v1/sandboxes/{sandbox}/ports/{port}", params(("sandbox" = String, Path), ("port" = u16, Path)), request_body = PutPort, security(("key" = [])), responses((status = 200, body = Port), (status = "default", body = Error)))]
pub async fn put(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At((named, port)): At<(String, String)>,
    reached: Reached,
    Sent(asked): Sent<PutPort>,
) -> Answer<Json<Port>> {
    caller.require(Role::Write)?;
    let sandbox = platform.running(&caller, &named).await?;
    let port = api::ports::number(&port)?;
    let gate = platform.node.publish(&sandbox.id, port, asked.public)?;
    let now = if asked.public { "public" } else { "private" };
    platform.note(&caller, Act::Port, |entry| entry.sandbox(&sandbox.id).detail(&format!("{port} {now}")));
    Ok(Json(shown(&platform, &sandbox.id, port, gate, &reached)))
}

/// A connection to a port as raw bytes: the request asks for `upgrade: belljar-tcp`, and after the answer 101 what is sent goes
/// to the port and what comes is the port's.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/ports/{port}/tunnel", params(("sandbox" = String, Path), ("port" = u16, Path)), security(("key" = [])), responses((status = 101, description = "The connection is the port's from now on"), (status = "default", body = Error)))]
pub async fn tunnel(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At((named, port)): At<(String, String)>,
    mut request: Request,
) -> Answer<Response> {
    caller.require(Role::Write)?;
    let sandbox = platform.running(&caller, &named).await?;
    let port = api::ports::number(&port)?;
    let wanted =
        request.headers().get(UPGRADE).is_some_and(|value| value.as_bytes() == TUNNEL_PROTOCOL.as_bytes());
    if !wanted || request.extensions().get::<OnUpgrade>().is_none() {
        let fix = format!("Send `connection: upgrade` and `upgrade: {TUNNEL_PROTOCOL}` over HTTP/1.1.");
        return Err(Error::invalid("a tunnel is asked for as an upgrade", fix).into());
    }
    let place = platform.ports.place(&sandbox.project)?;
    let inside = pass::dial(&platform, &sandbox.id, port).await?;
    platform.note(&caller, Act::Tunnel, |entry| entry.sandbox(&sandbox.id).detail(&port.to_string()));
    let client = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        if let Ok(client) = client.await {
            pass::copy(TokioIo::new(client), inside).await;
        }
        drop(place);
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    response.headers_mut().insert(UPGRADE, HeaderValue::from_static(TUNNEL_PROTOCOL));
    Ok(response)
}

fn shown(platform: &Platform, id: &api::SandboxId, port: u16, gate: Gate, reached: &Reached) -> Port {
    let url = platform.ports.domain.url(port, id, &reached.authority, reached.encrypted);
    Port { port, url, public: gate.is_public(port), token: gate.token }
}
