//! Artifacts: files that are retained from execs. They remain available after their sandbox has ended, until
//! they expire.

use std::sync::Arc;
use std::time::Duration;

use api::artifact::{Artifacts, WAIT_MS_MAX};
use api::files::FilePath;
use api::server::Page;
use api::{Error, ExecId, SandboxId, limits};
use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use node::Outgoing;
use serde::Deserialize;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::execs::ExecPath;
use super::files::content::attachment;
use super::files::flow::IDLE_MAX;
use crate::authority::{Caller, Grant, Read};
use crate::extract::{Path, Query, SandboxPath};
use crate::list::Listing;
use crate::rejection::Answer;
use control::platform::{Platform, missing};

/// Maximum and default number of execs per page.
const PAGE: u32 = 100;
/// Maximum number of chunks that are buffered for the client.
const PIECES_WAITING: usize = 2;

/// Query of the route that waits for artifacts.
#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WaitQuery {
    /// Maximum time to wait until the exec has ended and its files were collected, in milliseconds. Default 0, maximum 60,000.
    #[serde(default)]
    wait_ms: u64,
}

/// Query of the route that lists artifacts.
#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListArtifactsQuery {
    /// Maximum number of execs per page. Default 100.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u32>,
    /// Value of `next` in the previous page. If absent, the first page is returned.
    cursor: Option<String>,
}

/// List the artifacts of an exec
///
/// The artifacts are also available after the sandbox is gone.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{sandbox}/execs/{exec}/artifacts",
    operation_id = "getArtifacts",
    tag = "artifacts",
    params(ExecPath, WaitQuery),
    security(("key" = [])),
    responses((status = 200, body = Artifacts), (status = "default", body = Error))
)]
pub async fn look(
    caller: Caller<Read>,
    State(platform): State<Arc<Platform>>,
    Path(ExecPath { sandbox: named, exec }): Path<ExecPath>,
    Query(waiting): Query<WaitQuery>,
) -> Answer<Response> {
    if waiting.wait_ms > WAIT_MS_MAX {
        return Err(limits::exceeded("wait_ms", waiting.wait_ms, WAIT_MS_MAX).into());
    }
    let _place = caller.share.stream()?;
    let id = exec_id(&exec)?;
    let sandbox = sandbox_id(&caller, &platform, &named).await?;
    let wait = Duration::from_millis(waiting.wait_ms);
    let found = platform.node.artifacts(&caller.key.project, &sandbox, &id, wait).await?;
    let found = found.ok_or_else(|| none(&exec))?;
    Listing::begin(&caller.share).await?.respond(found)
}

/// List the artifacts of a sandbox
///
/// The list has one item per exec, in the order of the exec IDs.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{sandbox}/artifacts",
    operation_id = "listArtifacts",
    tag = "artifacts",
    params(SandboxPath, ListArtifactsQuery),
    security(("key" = [])),
    responses((status = 200, body = Page<Artifacts>), (status = "default", body = Error))
)]
pub async fn list(
    caller: Caller<Read>,
    State(platform): State<Arc<Platform>>,
    Path(SandboxPath { sandbox: named }): Path<SandboxPath>,
    Query(listing): Query<ListArtifactsQuery>,
) -> Answer<Response> {
    let limit = listing.limit.unwrap_or(PAGE);
    if !(1..=PAGE).contains(&limit) {
        return Err(Error::invalid(
            format!("limit is {limit}, which is out of range"),
            format!("Use a limit from 1 to {PAGE}."),
        )
        .into());
    }
    let after = listing.cursor.map(|cursor| cursor.parse::<ExecId>()).transpose();
    let after =
        after.map_err(|_| Error::invalid("the cursor is invalid", "Use `next` of the previous page."))?;
    let id = named.parse::<SandboxId>().map_err(|_| missing(&named))?;
    let known = platform.sandbox(&caller, &named).await;
    let sandbox = known.as_ref().map_or(&id, |sandbox| &sandbox.id);
    let project = &caller.key.project;
    let reading = Listing::begin(&caller.share).await?;
    let _place = caller.share.stream()?;
    let (items, more) = platform.node.artifacts_of(project, sandbox, after.as_ref(), limit as usize).await?;
    if items.is_empty() {
        // If nothing is stored, return an error unless the sandbox exists.
        known?;
    }
    let next = items.last().filter(|_| more).map(|last| last.exec.to_string());
    reading.respond(Page { items, next })
}

/// Download an artifact
///
/// The artifact is also available after the sandbox is gone.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{sandbox}/execs/{exec}/artifacts/{number}",
    operation_id = "downloadArtifact",
    tag = "artifacts",
    params(
        ("sandbox" = String, Path, description = "Sandbox ID or name"),
        ("exec" = String, Path, description = "Exec ID"),
        ("number" = u32, Path, description = "Number of the artifact within the exec"),
    ),
    security(("key" = [])),
    responses(
        (status = 200, body = Vec<u8>, content_type = "application/octet-stream"),
        (status = "default", body = Error),
    )
)]
pub async fn read(
    caller: Caller<Read>,
    State(platform): State<Arc<Platform>>,
    Path((named, exec, number)): Path<(String, String, u32)>,
) -> Answer<Response> {
    let place = caller.share.stream()?;
    let id = exec_id(&exec)?;
    let sandbox = sandbox_id(&caller, &platform, &named).await?;
    let found = platform.node.artifact(&caller.key.project, &sandbox, &id, number).await?;
    let (item, outgoing) = found.ok_or_else(|| none(&format!("{exec}/{number}")))?;
    let path = match &item.path_encoded {
        Some(encoded) => FilePath::decode(encoded)?,
        None => FilePath::new(item.path.as_bytes())?,
    };
    let headers = [
        (header::CONTENT_TYPE, item.mime),
        (header::CONTENT_LENGTH, outgoing.size_bytes.to_string()),
        (header::CONTENT_DISPOSITION, attachment(&path, "")),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".into()),
        (header::CACHE_CONTROL, "no-store".into()),
        (header::ETAG, format!("\"{}\"", item.sha256)),
    ];
    Ok((headers, stream(outgoing, place)).into_response())
}

/// Returns a body that streams an artifact. Aborts the body if the client accepts no data for `IDLE_MAX`.
pub fn stream(mut outgoing: Outgoing, place: OwnedSemaphorePermit) -> Body {
    let (sender, body) = streamed::body(PIECES_WAITING);
    tokio::spawn(async move {
        let _place = place;
        loop {
            match outgoing.next().await {
                Ok(Some(bytes)) => {
                    if !matches!(timeout(IDLE_MAX, sender.send(bytes)).await, Ok(Ok(()))) {
                        return sender.abort(std::io::ErrorKind::TimedOut.into());
                    }
                }
                Ok(None) => return,
                Err(error) => return sender.abort(std::io::Error::other(error)),
            }
        }
    });
    Body::new(body)
}

/// Returns a sandbox's ID, given its name or ID. Accepts unknown IDs, because artifacts outlive their
/// sandbox. This is safe because the path of an artifact includes the caller's project.
async fn sandbox_id(caller: &Grant, platform: &Platform, named: &str) -> Answer<SandboxId> {
    let id = named.parse::<SandboxId>().map_err(|_| missing(named))?;
    match platform.sandbox(caller, named).await {
        Ok(sandbox) => Ok(sandbox.id),
        Err(_) => Ok(id),
    }
}

fn exec_id(text: &str) -> Answer<ExecId> {
    Ok(text.parse().map_err(|_| none(text))?)
}

fn none(text: &str) -> Error {
    let shown: String = text.chars().take(2 * api::id::ID_BYTES_MAX).collect();
    Error {
        fix: "Set `artifacts` when you start the exec, and download the artifacts before they expire.".into(),
        ..Error::not_found(format!("no artifacts are stored for {shown:?}"))
    }
}
