//! Terminals: the WebSocket of one, and its size.

use std::convert::Infallible;
use std::sync::Arc;

use api::account::Role;
use api::terminal::TerminalSize;
use api::{Error, ErrorCode};
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{FromRequestParts, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::Response;
use serde::Deserialize;

use crate::audit::Act;
use crate::caller::{Asked, At, Caller, Sent};
use crate::fault::Answer;
use crate::listen::Held;
use crate::output::place;
use crate::platform::Platform;
use crate::routes::execs::{call, exec_id, info};
use crate::terminal::{MESSAGE_BYTES_MAX, Session};

/// What a session reads at once, and what it collects before it writes: keys are few, and output is sent as it comes.
const BUFFER_BYTES: usize = 16 * 1024;

/// From where a terminal's output is read.
#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct From {
    /// The first byte wanted; 0 is all that was kept.
    #[serde(default)]
    from: u64,
}

/// The connection, which may become a WebSocket. Whether it can is looked at last: who asks, and for what, comes first.
pub struct Connection {
    /// Its place among the connections.
    pub held: Option<Held>,
    /// What it takes to become one.
    pub upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
}

impl<S: Send + Sync> FromRequestParts<S> for Connection {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Infallible> {
        let held = parts.extensions.get::<Held>().cloned();
        Ok(Self { held, upgrade: WebSocketUpgrade::from_request_parts(parts, state).await })
    }
}

/// A terminal as a WebSocket, for an exec that was started with `terminal`. Binary messages are bytes behind their offset,
/// eight bytes big-endian: output from the server, input from the client. Text messages are JSON: `TerminalEvent` from the
/// server, the first of them `opened` with the offset of the next input, the last of them `end` or `error`;
/// `TerminalRequest` from the client. A message of a client has at most 64 KiB of input.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/execs/{exec}/terminal", params(("sandbox" = String, Path), ("exec" = String, Path), From), security(("key" = [])), responses((status = 101, description = "The connection is a WebSocket from here on."), (status = "default", body = Error)))]
pub async fn open(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At((named, exec)): At<(String, String)>,
    Asked(From { from }): Asked<From>,
    Connection { held, upgrade }: Connection,
) -> Answer<Response> {
    caller.require(Role::Write)?;
    let place = place(&caller.share)?;
    let call = call(&caller, &platform, &named).await?;
    let info = info(&call, &exec).await?;
    if info.terminal.is_none() {
        let fix = "Start an exec with `terminal`; the output of this one is at `/output`.";
        let error = Error::invalid(format!("exec {} has no terminal", info.id), fix);
        return Err(Error { code: ErrorCode::Conflict, ..error }.into());
    }
    if from > info.stdout_bytes {
        return Err(Error::invalid(
            format!("the exec has written {} bytes, fewer than asked for", info.stdout_bytes),
            "Ask for an offset that was reached.",
        )
        .into());
    }
    let upgrade = upgrade.map_err(|why| {
        Error::invalid(
            format!("a terminal is spoken to over a WebSocket: {}", why.body_text()),
            "Open it with a WebSocket client over HTTP/1.1; or read `/output` and write to `/stdin`.",
        )
    })?;
    platform.note(&caller, Act::TerminalOpen, |entry| entry.exec(&info.id));
    let session = Session { platform, call, info, from, place, held };
    Ok(upgrade
        .max_message_size(MESSAGE_BYTES_MAX)
        .max_frame_size(MESSAGE_BYTES_MAX)
        .read_buffer_size(BUFFER_BYTES)
        .write_buffer_size(0)
        .on_upgrade(|socket| session.serve(socket)))
}

/// Gives a terminal another size: 1 to 1000 columns and rows. The program on it is told.
#[utoipa::path(put, path = "/v1/sandboxes/{sandbox}/execs/{exec}/size", params(("sandbox" = String, Path), ("exec" = String, Path)), request_body = TerminalSize, security(("key" = [])), responses((status = 204), (status = "default", body = Error)))]
pub async fn resize(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At((named, exec)): At<(String, String)>,
    Sent(size): Sent<TerminalSize>,
) -> Answer<StatusCode> {
    caller.require(Role::Write)?;
    size.check()?;
    let id = exec_id(&exec)?;
    call(&caller, &platform, &named).await?.reader(id).resize(size).await?;
    Ok(StatusCode::NO_CONTENT)
}
