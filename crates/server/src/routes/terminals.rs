//! Terminals: WebSocket connections and terminal size.

use std::convert::Infallible;
use std::sync::Arc;

use api::terminal::TerminalSize;
use api::{Error, ErrorCode};
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{FromRequestParts, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::Response;
use serde::Deserialize;

use crate::authority::cut::Ends;
use crate::authority::{Caller, Write};
use crate::body::Sent;
use crate::extract::{Path, Query};
use crate::listen::ConnectionGuard;
use crate::rejection::Answer;
use crate::routes::execs::{ExecPath, call, exec_id, info};
use crate::terminal::{MESSAGE_BYTES_MAX, TerminalSession};
use control::audit::Act;
use control::platform::Platform;

/// Size of a session's read buffer. It is small, because input consists of keystrokes. Output is not
/// buffered.
const BUFFER_BYTES: usize = 16 * 1024;

/// Query of the route that opens a terminal.
#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TerminalQuery {
    /// Offset in the output at which to start. Default 0, which returns all output that was kept.
    #[serde(default)]
    from: u64,
}

/// A connection that may be upgraded to a WebSocket. Handlers check the upgrade last, so that errors in the
/// credential or the request are reported first.
pub struct UpgradableConnection {
    /// Guard that keeps the connection's slot occupied.
    pub held: Option<ConnectionGuard>,
    /// The upgrade, or the reason why the request cannot be upgraded.
    pub upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
}

impl<S: Send + Sync> FromRequestParts<S> for UpgradableConnection {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Infallible> {
        let held = parts.extensions.get::<ConnectionGuard>().cloned();
        Ok(Self { held, upgrade: WebSocketUpgrade::from_request_parts(parts, state).await })
    }
}

/// Open a terminal over a WebSocket
///
/// The exec must have been started with `terminal`.
///
/// A binary message has an offset (eight bytes, big-endian), followed by output from the server or input from the client. A client
/// message carries at most 64 KiB of input.
///
/// Text messages are JSON: `TerminalEvent` from the server, `TerminalRequest` from the client. The first server message is `opened`, with
/// the offset of the next input. The last server message is `end` or `error`.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{sandbox}/execs/{exec}/terminal",
    operation_id = "openTerminal",
    tag = "terminals",
    params(ExecPath, TerminalQuery),
    security(("key" = [])),
    responses(
        (status = 101, description = "The connection is now a WebSocket"),
        (status = "default", body = Error),
    )
)]
pub async fn open(
    caller: Caller<Write>,
    State(platform): State<Arc<Platform>>,
    Path(ExecPath { sandbox: named, exec }): Path<ExecPath>,
    Query(TerminalQuery { from }): Query<TerminalQuery>,
    UpgradableConnection { held, upgrade }: UpgradableConnection,
) -> Answer<Response> {
    let place = caller.share.stream()?;
    let call = call(&caller, &platform, &named).await?;
    let info = info(&call, &exec).await?;
    if info.terminal.is_none() {
        let fix = "Start an exec with `terminal`. Read the output of this exec from its route `/output`.";
        let error = Error::invalid(format!("exec {} has no terminal", info.id), fix);
        return Err(Error { code: ErrorCode::Conflict, ..error }.into());
    }
    if from > info.stdout_bytes {
        return Err(Error::invalid(
            format!("the offset is beyond the output: the exec has written {} bytes", info.stdout_bytes),
            "Use an offset that the output has reached.",
        )
        .into());
    }
    let upgrade = upgrade.map_err(|why| {
        Error::invalid(
            format!("a terminal requires a WebSocket: {}", why.body_text()),
            "Open the terminal with a WebSocket client over HTTP/1.1, or use the routes `/output` and `/stdin` of the exec.",
        )
    })?;
    platform.note(&caller, Act::TerminalOpen, |entry| entry.exec(&info.id));
    let (ends, session) = (Ends::of(&caller), TerminalSession { platform, call, info, from, place, held });
    Ok(upgrade
        .max_message_size(MESSAGE_BYTES_MAX)
        .max_frame_size(MESSAGE_BYTES_MAX)
        .read_buffer_size(BUFFER_BYTES)
        .write_buffer_size(0)
        .on_upgrade(|socket| ends.limit(session.serve(socket))))
}

/// Resize a terminal
///
/// A terminal has 1 to 1,000 columns and rows. The program on the terminal is notified of the new size.
#[utoipa::path(
    put,
    path = "/v1/sandboxes/{sandbox}/execs/{exec}/size",
    operation_id = "resizeTerminal",
    tag = "terminals",
    params(ExecPath),
    request_body = TerminalSize,
    security(("key" = [])),
    responses((status = 204), (status = "default", body = Error))
)]
pub async fn resize(
    caller: Caller<Write>,
    State(platform): State<Arc<Platform>>,
    Path(ExecPath { sandbox: named, exec }): Path<ExecPath>,
    Sent(size): Sent<TerminalSize>,
) -> Answer<StatusCode> {
    size.check()?;
    let id = exec_id(&exec)?;
    call(&caller, &platform, &named).await?.exec_reader(id).resize(size).await?;
    Ok(StatusCode::NO_CONTENT)
}
