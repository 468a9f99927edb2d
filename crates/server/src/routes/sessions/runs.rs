//! Runs of a session: list, get, output.

use std::sync::Arc;

use api::server::{PAGE_MAX, Page};
use api::session::Run;
use api::{Error, ExecId};
use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Deserialize;

use crate::authority::{Caller, Read};
use crate::extract::{Path, Query};
use crate::list::Listing;
use crate::rejection::Answer;
use control::platform::Platform;

/// Output stream of a run.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Query of the route that reads a run's output.
#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RunOutputQuery {
    /// Stream to read.
    #[param(inline)]
    stream: RunStream,
    /// Offset of the first byte. Default 0.
    #[serde(default)]
    offset: u64,
    /// Maximum number of bytes to return. By default, all bytes are returned.
    length: Option<usize>,
}

/// Query of the route that lists the runs of a session.
#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListRunsQuery {
    /// Maximum number of runs per page. By default, only the size of a page is limited.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Value of `next` in the previous page. If absent, the first page is returned.
    cursor: Option<String>,
}

/// List runs
///
/// Lists the last 200 runs of a session, oldest first. A page of large runs has fewer items; if `next` is present, there are more.
#[utoipa::path(
    get,
    path = "/v1/sessions/{session}/runs",
    operation_id = "listRuns",
    tag = "sessions",
    params(("session" = String, Path, description = "Session ID"), ListRunsQuery),
    security(("key" = [])),
    responses((status = 200, body = Page<Run>), (status = "default", body = Error))
)]
pub async fn list(
    caller: Caller<Read>,
    State(platform): State<Arc<Platform>>,
    Path(named): Path<String>,
    Query(listing): Query<ListRunsQuery>,
) -> Answer<Response> {
    let after = listing.cursor.map(|cursor| cursor.parse::<ExecId>()).transpose();
    let after =
        after.map_err(|_| Error::invalid("the cursor is invalid", "Use `next` of the previous page."))?;
    let live = platform.sessions.find(&platform, &caller, &named).await?;
    let ids = live.run_ids().await;
    let reading = Listing::begin(&caller.share).await?;
    let _place = caller.share.stream()?;
    let limit = listing.limit.unwrap_or(PAGE_MAX).clamp(1, PAGE_MAX) as usize;
    let (items, more) = live.runs(ids, after.as_ref(), limit).await?;
    let next = items.last().filter(|_| more).map(|last| last.id.to_string());
    reading.respond(Page { items, next })
}

/// Get a run
#[utoipa::path(
    get,
    path = "/v1/sessions/{session}/runs/{run}",
    operation_id = "getRun",
    tag = "sessions",
    params(
        ("session" = String, Path, description = "Session ID"),
        ("run" = String, Path, description = "Run ID"),
    ),
    security(("key" = [])),
    responses((status = 200, body = Run), (status = "default", body = Error))
)]
pub async fn look(
    caller: Caller<Read>,
    State(platform): State<Arc<Platform>>,
    Path((named, run)): Path<(String, String)>,
) -> Answer<Json<Run>> {
    let live = platform.sessions.find(&platform, &caller, &named).await?;
    let found = live.run(&run_id(&run)?).await?;
    Ok(Json(found.ok_or_else(|| missing(&run))?))
}

/// Read the output of a run
///
/// Up to 10 MB of each stream are kept. If a run wrote more, a part in the middle is missing; `stdout_gap` and `stderr_gap` of the run show
/// which part. A response ends at the gap. A request with an offset inside the gap returns the bytes after the gap.
#[utoipa::path(
    get,
    path = "/v1/sessions/{session}/runs/{run}/output",
    operation_id = "readRunOutput",
    tag = "sessions",
    params(
        ("session" = String, Path, description = "Session ID"),
        ("run" = String, Path, description = "Run ID"),
        RunOutputQuery,
    ),
    security(("key" = [])),
    responses(
        (status = 200, body = Vec<u8>, content_type = "application/octet-stream"),
        (status = "default", body = Error),
    )
)]
pub async fn output(
    caller: Caller<Read>,
    State(platform): State<Arc<Platform>>,
    Path((named, run)): Path<(String, String)>,
    Query(part): Query<RunOutputQuery>,
) -> Answer<Response> {
    let _place = caller.share.stream()?;
    let live = platform.sessions.find(&platform, &caller, &named).await?;
    let stderr = match part.stream {
        RunStream::Stdout => false,
        RunStream::Stderr => true,
    };
    // The whole kept output is read, up to 10 MB.
    let _turn = caller.share.listing().await?;
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
        ..Error::not_found(format!("there is no record of run {shown:?}"))
    }
}
