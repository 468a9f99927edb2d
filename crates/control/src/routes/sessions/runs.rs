//! Runs of a session: list, look, what they have written.

use std::sync::Arc;

use api::account::Role;
use api::server::Page;
use api::session::Run;
use api::{Error, ExecId};
use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Deserialize;

use crate::caller::{Asked, At, Caller};
use crate::fault::Answer;
use crate::output::place;
use crate::platform::Platform;

/// One of the two streams that people read.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Written {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Which part of a run's output.
#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Part {
    /// Of which stream.
    #[param(inline)]
    stream: Written,
    /// The first byte.
    #[serde(default)]
    offset: u64,
    /// Bytes at most; all that there are, if nothing is said.
    length: Option<usize>,
}

/// The runs of a session that are remembered, the oldest first: the last 200.
#[utoipa::path(get, path = "/v1/sessions/{session}/runs", params(("session" = String, Path)), security(("key" = [])), responses((status = 200, body = Page<Run>), (status = "default", body = Error)))]
pub async fn list(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At(named): At<String>,
) -> Answer<Json<Page<Run>>> {
    let _place = place(&caller.share)?;
    let live = platform.sessions.find(&platform, &caller, &named).await?;
    Ok(Json(Page { items: live.runs().await?, next: None }))
}

/// How a run went.
#[utoipa::path(get, path = "/v1/sessions/{session}/runs/{run}", params(("session" = String, Path), ("run" = String, Path)), security(("key" = [])), responses((status = 200, body = Run), (status = "default", body = Error)))]
pub async fn look(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At((named, run)): At<(String, String)>,
) -> Answer<Json<Run>> {
    let live = platform.sessions.find(&platform, &caller, &named).await?;
    let found = live.run(&run_id(&run)?).await?;
    Ok(Json(found.ok_or_else(|| missing(&run))?))
}

/// What a run has written, from an offset on, as far as it was kept: 10 MB of each stream. Where there was more, a part in the middle is
/// not: the run names it (`stdout_gap`), the answer ends there, and what is asked for within it begins after it.
#[utoipa::path(get, path = "/v1/sessions/{session}/runs/{run}/output", params(("session" = String, Path), ("run" = String, Path), Part), security(("key" = [])), responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream"), (status = "default", body = Error)))]
pub async fn output(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At((named, run)): At<(String, String)>,
    Asked(part): Asked<Part>,
) -> Answer<Response> {
    caller.require(Role::Read)?;
    let _place = place(&caller.share)?;
    let live = platform.sessions.find(&platform, &caller, &named).await?;
    let stderr = match part.stream {
        Written::Stdout => false,
        Written::Stderr => true,
    };
    let written = live.run_output(&run_id(&run)?, stderr, part.offset).await?.ok_or_else(|| missing(&run))?;
    let mut rest = Bytes::from(written);
    rest.truncate(part.length.unwrap_or(rest.len()));
    let headers = [(header::CONTENT_TYPE, "application/octet-stream"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, rest).into_response())
}

fn run_id(text: &str) -> Answer<ExecId> {
    Ok(text.parse().map_err(|_| missing(text))?)
}

fn missing(text: &str) -> Error {
    let shown: String = text.chars().take(api::id::ID_BYTES_MAX).collect();
    Error {
        fix: "List the runs of the session and use one of those.".into(),
        ..Error::not_found(format!("nothing is kept of a run {shown:?}"))
    }
}
