//! Sandboxes: create, list, get, stop, pause, resume, idle timeout, usage, and traces.
//!
//! | module | contents |
//! |---|---|
//! | [`policy`] | the egress policy, and the packages that a sandbox received |
//! | [`events`] | the stream of events |

pub mod events;
pub mod policy;

use std::sync::Arc;
use std::time::Duration;

use api::sandbox::{CreateSandbox, Lease, Sandbox, Usage};
use api::server::{PAGE, PAGE_MAX, Page};
use api::trace::Trace;
use api::{Error, ExecId};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;

use crate::authority::{Caller, Read, Write};
use crate::body::Sent;
use crate::extract::{Idempotency, Path, Query, SandboxPath};
use crate::list::Listing;
use crate::rejection::Answer;
use control::account::Rate;
use control::audit::Act;
use control::platform::{NewSandbox, Platform};
use control::trace;

/// Query of the route that lists sandboxes.
#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListSandboxesQuery {
    /// Maximum number of sandboxes per page. Default 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Value of `next` in the previous page. If absent, the first page is returned.
    cursor: Option<String>,
    /// Include ended sandboxes. Default false.
    #[serde(default)]
    all: bool,
}

/// Query of the route that returns traces.
#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Traced {
    /// Return only the traces of the exec with this ID.
    #[param(value_type = Option<String>, pattern = "^[a-z][a-z0-9]{0,39}$")]
    exec: Option<ExecId>,
}

/// Create a sandbox
///
/// Responds when the sandbox is running.
#[utoipa::path(
    post,
    path = "/v1/sandboxes",
    operation_id = "createSandbox",
    tag = "sandboxes",
    params(
        (
            "idempotency-key" = Option<String>, Header,
            description = "Requests with the same key create only one sandbox. A key has 1 to 255 printable ASCII characters"
        ),
    ),
    request_body = CreateSandbox,
    security(("key" = [])),
    responses(
        (status = 201, body = Sandbox),
        (
            status = 200, body = Sandbox,
            description = "An earlier request with the same `idempotency-key` created the sandbox"
        ),
        (status = "default", body = Error),
    )
)]
pub async fn create(
    caller: Caller<Write>,
    State(platform): State<Arc<Platform>>,
    Idempotency(key): Idempotency,
    Sent(request): Sent<CreateSandbox>,
) -> Answer<(StatusCode, Json<Sandbox>)> {
    caller.pace(Rate::Create)?;
    let (sandbox, new) =
        platform.create(&caller.account, NewSandbox::resumed_by_any_request(request, key)).await?;
    trace::about(&sandbox.id);
    let status = if new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(sandbox)))
}

/// List sandboxes
///
/// Lists the sandboxes of the project, newest first. Ended sandboxes are included only with `all`. A page of large sandboxes has fewer
/// items than `limit`; if `next` is present, there are more.
#[utoipa::path(
    get,
    path = "/v1/sandboxes",
    operation_id = "listSandboxes",
    tag = "sandboxes",
    params(ListSandboxesQuery),
    security(("key" = [])),
    responses((status = 200, body = Page<Sandbox>), (status = "default", body = Error))
)]
pub async fn list(
    caller: Caller<Read>,
    State(platform): State<Arc<Platform>>,
    Query(listing): Query<ListSandboxesQuery>,
) -> Answer<Response> {
    let limit = listing.limit.unwrap_or(PAGE);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(Error::invalid(
            format!("limit is {limit}, which is out of range"),
            format!("Use a limit from 1 to {PAGE_MAX}."),
        )
        .into());
    }
    let reading = Listing::begin(&caller.share).await?;
    let project = &caller.key.project;
    let mut page = platform.store.sandboxes(project, !listing.all, limit, listing.cursor.as_deref()).await?;
    // The node knows more recent states than the store.
    for sandbox in &mut page.items {
        if let Some(shown) = platform.node.find(&sandbox.id) {
            *sandbox = shown;
        }
    }
    page.items.retain(|sandbox| listing.all || !sandbox.state.is_terminal());
    reading.respond(page)
}

/// Get a sandbox
///
/// Returns the state of the sandbox, or the reason why it ended.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{sandbox}",
    operation_id = "getSandbox",
    tag = "sandboxes",
    params(SandboxPath),
    security(("key" = [])),
    responses((status = 200, body = Sandbox), (status = "default", body = Error))
)]
pub async fn look(
    caller: Caller<Read>,
    State(platform): State<Arc<Platform>>,
    Path(SandboxPath { sandbox: named }): Path<SandboxPath>,
) -> Answer<Json<Sandbox>> {
    Ok(Json(platform.sandbox(&caller, &named).await?))
}

/// Stop a sandbox
///
/// Responds when the sandbox is stopped and completely removed. The request is idempotent.
#[utoipa::path(
    delete,
    path = "/v1/sandboxes/{sandbox}",
    operation_id = "stopSandbox",
    tag = "sandboxes",
    params(SandboxPath),
    security(("key" = [])),
    responses((status = 200, body = Sandbox), (status = "default", body = Error))
)]
pub async fn stop(
    caller: Caller<Write>,
    State(platform): State<Arc<Platform>>,
    Path(SandboxPath { sandbox: named }): Path<SandboxPath>,
) -> Answer<Json<Sandbox>> {
    let sandbox = platform.stop(&caller, &named).await?;
    trace::about(&sandbox.id);
    Ok(Json(sandbox))
}

/// Pause a sandbox
///
/// Suspends all processes of the sandbox and keeps their memory. While the sandbox is paused, its idle timeout, its time to live and the
/// deadlines of its execs do not elapse, and it counts toward the quota like a running one. Any request that uses the sandbox resumes it.
/// Pausing a paused sandbox returns it unchanged.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{sandbox}/pause",
    operation_id = "pauseSandbox",
    tag = "sandboxes",
    params(SandboxPath),
    security(("key" = [])),
    responses((status = 200, body = Sandbox), (status = "default", body = Error))
)]
pub async fn pause(
    caller: Caller<Write>,
    State(platform): State<Arc<Platform>>,
    Path(SandboxPath { sandbox: named }): Path<SandboxPath>,
) -> Answer<Json<Sandbox>> {
    let sandbox = platform.running(&caller, &named).await?;
    trace::about(&sandbox.id);
    platform.note(&caller, Act::Pause, |entry| entry.sandbox(&sandbox.id));
    platform.node.pause(&sandbox.id).await?;
    Ok(Json(platform.saved(sandbox).await))
}

/// Resume a sandbox
///
/// Lets the processes of a paused sandbox run again. The idle timeout and the time to live restart with their full lengths. Resuming a
/// running sandbox returns it unchanged.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{sandbox}/resume",
    operation_id = "resumeSandbox",
    tag = "sandboxes",
    params(SandboxPath),
    security(("key" = [])),
    responses((status = 200, body = Sandbox), (status = "default", body = Error))
)]
pub async fn resume(
    caller: Caller<Write>,
    State(platform): State<Arc<Platform>>,
    Path(SandboxPath { sandbox: named }): Path<SandboxPath>,
) -> Answer<Json<Sandbox>> {
    let sandbox = platform.running(&caller, &named).await?;
    trace::about(&sandbox.id);
    if platform.node.resume(&sandbox.id, None).await? {
        platform.note(&caller, Act::Resume, |entry| entry.sandbox(&sandbox.id));
    }
    Ok(Json(platform.saved(sandbox).await))
}

/// Set the idle timeout
///
/// The new timeout counts from this request.
#[utoipa::path(
    put,
    path = "/v1/sandboxes/{sandbox}/lease",
    operation_id = "renewLease",
    tag = "sandboxes",
    params(SandboxPath),
    request_body = Lease,
    security(("key" = [])),
    responses((status = 200, body = Sandbox), (status = "default", body = Error))
)]
pub async fn lease(
    caller: Caller<Write>,
    State(platform): State<Arc<Platform>>,
    Path(SandboxPath { sandbox: named }): Path<SandboxPath>,
    Sent(lease): Sent<Lease>,
) -> Answer<Json<Sandbox>> {
    lease.check()?;
    let sandbox = platform.running(&caller, &named).await?;
    platform.note(&caller, Act::Lease, |entry| entry.sandbox(&sandbox.id));
    let shown = platform.node.renew(&sandbox.id, Duration::from_millis(lease.idle_ms)).await?;
    // The node has already made the change. If saving it fails, a later change saves it as well.
    let _ = platform.store.moved(&shown).await;
    Ok(Json(shown))
}

/// Get resource usage
///
/// This request does not reset the idle timeout of the sandbox.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{sandbox}/usage",
    operation_id = "getUsage",
    tag = "sandboxes",
    params(SandboxPath),
    security(("key" = [])),
    responses((status = 200, body = Usage), (status = "default", body = Error))
)]
pub async fn usage(
    caller: Caller<Read>,
    State(platform): State<Arc<Platform>>,
    Path(SandboxPath { sandbox: named }): Path<SandboxPath>,
) -> Answer<Json<Usage>> {
    let sandbox = platform.running(&caller, &named).await?;
    Ok(Json(platform.node.usage(&sandbox.id).await?))
}

/// List request traces
///
/// Returns the steps and durations of recent requests for a sandbox (creating it, its execs, stopping it), oldest first. A limited number
/// of traces is kept, only in memory.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{sandbox}/trace",
    operation_id = "listTraces",
    tag = "sandboxes",
    params(SandboxPath, Traced),
    security(("key" = [])),
    responses((status = 200, body = Vec<Trace>), (status = "default", body = Error))
)]
pub async fn traces(
    caller: Caller<Read>,
    State(platform): State<Arc<Platform>>,
    Path(SandboxPath { sandbox: named }): Path<SandboxPath>,
    Query(traced): Query<Traced>,
) -> Answer<Json<Vec<Trace>>> {
    let sandbox = platform.sandbox(&caller, &named).await?;
    Ok(Json(platform.traces.recorder.traces(&sandbox.id, traced.exec.as_ref())))
}
