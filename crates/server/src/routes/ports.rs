//! Ports of a sandbox: URLs, public access, and raw byte tunnels.

use api::Error;
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

use crate::app::App;
use crate::authority::cut::Ends;
use crate::authority::{Caller, Write};
use crate::body::Sent;
use crate::extract::Path;
use crate::listen::Encrypted;
use crate::ports::Ports;
use crate::ports::name::authority;
use crate::ports::pass;
use crate::rejection::{Answer, Rejection};
use control::audit::Act;

/// Address through which a request reached the server.
pub struct Reached {
    authority: String,
    encrypted: bool,
}

impl<S: Sync> FromRequestParts<S> for Reached {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Answer<Self> {
        let encrypted = parts.extensions.get::<Encrypted>().is_some_and(|encrypted| encrypted.0);
        Ok(Self { authority: authority(parts)?.unwrap_or_default(), encrypted })
    }
}

/// Get the address of a port
///
/// Returns the URL of the port and the token for the ports of the sandbox.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{sandbox}/ports/{port}",
    operation_id = "getPort",
    tag = "ports",
    params(
        ("sandbox" = String, Path, description = "Sandbox ID or name"),
        ("port" = u16, Path, description = "Port number, 1 to 65535"),
    ),
    security(("key" = [])),
    responses((status = 200, body = Port), (status = "default", body = Error))
)]
pub async fn look(
    caller: Caller<Write>,
    State(App { platform, ports, .. }): State<App>,
    Path((named, port)): Path<(String, String)>,
    reached: Reached,
) -> Answer<Json<Port>> {
    // This requires the role `write`, because the token gives full access to the application on the port.
    let sandbox = platform.running(&caller, &named).await?;
    let port = api::ports::number(&port)?;
    let (_, gate) = platform.node.ports(&sandbox.id).unwrap_or_default();
    Ok(Json(shown(&ports, &sandbox.id, port, gate, &reached)))
}

/// Make a port public or private
///
/// A public port is reachable by anyone who knows its URL.
#[utoipa::path(
    put,
    path = "/v1/sandboxes/{sandbox}/ports/{port}",
    operation_id = "setPort",
    tag = "ports",
    params(
        ("sandbox" = String, Path, description = "Sandbox ID or name"),
        ("port" = u16, Path, description = "Port number, 1 to 65535"),
    ),
    request_body = PutPort,
    security(("key" = [])),
    responses((status = 200, body = Port), (status = "default", body = Error))
)]
pub async fn put(
    caller: Caller<Write>,
    State(App { platform, ports, .. }): State<App>,
    Path((named, port)): Path<(String, String)>,
    reached: Reached,
    Sent(asked): Sent<PutPort>,
) -> Answer<Json<Port>> {
    let sandbox = platform.running(&caller, &named).await?;
    let port = api::ports::number(&port)?;
    let gate = platform.node.publish(&sandbox.id, port, asked.public).await?;
    if !asked.public {
        ports.close(&sandbox.id, port);
    }
    let now = if asked.public { "public" } else { "private" };
    platform.note(&caller, Act::Port, |entry| entry.sandbox(&sandbox.id).detail(&format!("{port} {now}")));
    Ok(Json(shown(&ports, &sandbox.id, port, gate, &reached)))
}

/// Open a tunnel to a port
///
/// Send the request header `upgrade: bellglass-tcp`. After the response 101, the connection carries raw bytes to and from the port.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{sandbox}/ports/{port}/tunnel",
    operation_id = "openTunnel",
    tag = "ports",
    params(
        ("sandbox" = String, Path, description = "Sandbox ID or name"),
        ("port" = u16, Path, description = "Port number, 1 to 65535"),
    ),
    security(("key" = [])),
    responses(
        (status = 101, description = "The connection is now a tunnel to the port"),
        (status = "default", body = Error),
    )
)]
pub async fn tunnel(
    caller: Caller<Write>,
    State(App { platform, ports, .. }): State<App>,
    Path((named, port)): Path<(String, String)>,
    mut request: Request,
) -> Answer<Response> {
    let sandbox = platform.running(&caller, &named).await?;
    let port = api::ports::number(&port)?;
    let wanted =
        request.headers().get(UPGRADE).is_some_and(|value| value.as_bytes() == TUNNEL_PROTOCOL.as_bytes());
    if !wanted || request.extensions().get::<OnUpgrade>().is_none() {
        let fix = format!("Send `connection: upgrade` and `upgrade: {TUNNEL_PROTOCOL}` over HTTP/1.1.");
        return Err(Error::invalid("a tunnel requires an upgrade of the connection", fix).into());
    }
    let place = ports.place(&sandbox.project)?;
    let inside = pass::dial(platform.node.call(&sandbox.id).await?, port).await?;
    platform.note(&caller, Act::Tunnel, |entry| entry.sandbox(&sandbox.id).detail(&port.to_string()));
    let (client, ends) = (hyper::upgrade::on(&mut request), Ends::of(&caller));
    tokio::spawn(async move {
        if let Ok(client) = client.await {
            ends.limit(pass::copy(TokioIo::new(client), inside)).await;
        }
        drop(place);
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    response.headers_mut().insert(UPGRADE, HeaderValue::from_static(TUNNEL_PROTOCOL));
    Ok(response)
}

fn shown(ports: &Ports, id: &api::SandboxId, port: u16, gate: Gate, reached: &Reached) -> Port {
    let url = ports.domain.url(port, id, &reached.authority, reached.encrypted);
    Port { port, url, public: gate.is_public(port), token: gate.token.reveal().to_owned() }
}
