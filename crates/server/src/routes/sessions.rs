//! Sessions: create, list, get, end, clean up, datasets, tool calls, and artifacts.

pub mod events;
pub mod runs;

use std::sync::Arc;

use api::server::Page;
use api::session::{CreateSession, DATASET_BYTES_MAX, RUN_HEADER, Session, SessionArtifact, SessionDataset};
use api::{Error, limits};
use axum::Json;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::artifacts::stream;
use super::datasets::refused;
use super::files::content::attachment;
use super::files::flow::{Coming, length};
use crate::authority::{Caller, Read, Write};
use crate::body::Sent;
use crate::extract::{Idempotency, Path, Query};
use crate::list::Listing;
use crate::rejection::{Answer, Rejection};
use control::account::Rate;
use control::audit::Act;
use control::platform::Platform;
use control::session::ToolRequest;
use control::session::dataset_key;
use control::session::flight::EndsWith;

/// Default number of sessions per page.
const PAGE: u32 = 100;

/// Query of the route that lists sessions.
#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListSessionsQuery {
    /// Maximum number of sessions per page. Default 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Value of `next` in the previous page. If absent, the first page is returned.
    cursor: Option<String>,
}

/// Query of the route that calls a tool.
#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Calling {
    /// Cancel the run when the client disconnects. Default false.
    #[serde(default)]
    cancel_on_disconnect: bool,
}

/// Options of a tool call, taken from its query and headers.
pub struct Manner {
    idempotency: Idempotency,
    cancels: bool,
}

/// Result of removing the artifacts of a session.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Cleared {
    /// Number of files removed.
    removed: usize,
}

impl<S: Send + Sync> FromRequestParts<S> for Manner {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Answer<Self> {
        let Query(Calling { cancel_on_disconnect: cancels }) =
            Query::from_request_parts(parts, state).await?;
        Ok(Self { idempotency: Idempotency::from_request_parts(parts, state).await?, cancels })
    }
}

/// Create a session
///
/// The sandbox of the session is created on the first tool call.
#[utoipa::path(
    post,
    path = "/v1/sessions",
    operation_id = "createSession",
    tag = "sessions",
    params(
        (
            "idempotency-key" = Option<String>, Header,
            description = "Requests with the same key create only one session. A key has 1 to 255 printable ASCII characters"
        ),
    ),
    request_body = CreateSession,
    security(("key" = [])),
    responses((status = 201, body = Session), (status = "default", body = Error))
)]
pub async fn create(
    caller: Caller<Write>,
    State(platform): State<Arc<Platform>>,
    Idempotency(key): Idempotency,
    Sent(request): Sent<CreateSession>,
) -> Answer<Response> {
    caller.pace(Rate::Exec)?;
    let session = platform.sessions.create(&platform, &caller, &request, key.as_deref()).await?;
    Ok((StatusCode::CREATED, Json(session)).into_response())
}

/// List sessions
///
/// Lists the sessions of the project, newest first. A page of large sessions has fewer items than `limit`; if `next` is present, there
/// are more.
#[utoipa::path(
    get,
    path = "/v1/sessions",
    operation_id = "listSessions",
    tag = "sessions",
    params(ListSessionsQuery),
    security(("key" = [])),
    responses((status = 200, body = Page<Session>), (status = "default", body = Error))
)]
pub async fn list(
    caller: Caller<Read>,
    State(platform): State<Arc<Platform>>,
    Query(listing): Query<ListSessionsQuery>,
) -> Answer<Response> {
    let reading = Listing::begin(&caller.share).await?;
    let limit = listing.limit.unwrap_or(PAGE);
    reading.respond(platform.store.sessions(&caller.key.project, limit, listing.cursor.as_deref()).await?)
}

/// Get a session
#[utoipa::path(
    get,
    path = "/v1/sessions/{session}",
    operation_id = "getSession",
    tag = "sessions",
    params(("session" = String, Path, description = "Session ID")),
    security(("key" = [])),
    responses((status = 200, body = Session), (status = "default", body = Error))
)]
pub async fn look(
    caller: Caller<Read>,
    State(platform): State<Arc<Platform>>,
    Path(named): Path<String>,
) -> Answer<Json<Session>> {
    let live = platform.sessions.find(&platform, &caller, &named).await?;
    Ok(Json(live.shown().await))
}

/// End a session
///
/// Stops the sandbox of the session and deletes the datasets of the session, which then no longer count towards the project's quota. Runs
/// and artifacts are kept. The request is idempotent.
#[utoipa::path(
    delete,
    path = "/v1/sessions/{session}",
    operation_id = "endSession",
    tag = "sessions",
    params(("session" = String, Path, description = "Session ID")),
    security(("key" = [])),
    responses((status = 200, body = Session), (status = "default", body = Error))
)]
pub async fn end(
    caller: Caller<Write>,
    State(platform): State<Arc<Platform>>,
    Path(named): Path<String>,
) -> Answer<Json<Session>> {
    let live = platform.sessions.find(&platform, &caller, &named).await?;
    Ok(Json(live.end(&platform, &caller).await?))
}

/// Stop the sandbox of a session
///
/// Waits for the current run, then stops the sandbox. The files and packages in the sandbox are lost. The next call creates a new sandbox.
/// The request is idempotent.
#[utoipa::path(
    delete,
    path = "/v1/sessions/{session}/sandbox",
    operation_id = "deleteSessionSandbox",
    tag = "sessions",
    params(("session" = String, Path, description = "Session ID")),
    security(("key" = [])),
    responses((status = 200, body = Session), (status = "default", body = Error))
)]
pub async fn clean_up(
    caller: Caller<Write>,
    State(platform): State<Arc<Platform>>,
    Path(named): Path<String>,
) -> Answer<Json<Session>> {
    let _place = caller.share.stream()?;
    let live = platform.sessions.find(&platform, &caller, &named).await?;
    Ok(Json(live.clean_up(&platform, &caller).await?))
}

/// Upload a dataset to a session
///
/// Copies the file to `/tmp/data/{name}.csv` in every sandbox of the session before anything runs in it. A sandbox that is already running
/// gets the file before the next call. `/` and spaces in the name become `_`. A dataset has at most 512 MiB. A session has at most 64
/// datasets with a total size of 4 GiB.
#[utoipa::path(
    put,
    path = "/v1/sessions/{session}/datasets/{name}",
    operation_id = "uploadSessionDataset",
    tag = "sessions",
    params(
        ("session" = String, Path, description = "Session ID"),
        ("name" = String, Path, description = "Dataset name, 1 to 200 bytes"),
    ),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    security(("key" = [])),
    responses((status = 200, body = SessionDataset), (status = "default", body = Error))
)]
pub async fn put_dataset(
    caller: Caller<Write>,
    State(platform): State<Arc<Platform>>,
    Path((named, name)): Path<(String, String)>,
    request: Request,
) -> Answer<Json<SessionDataset>> {
    let live = platform.sessions.find(&platform, &caller, &named).await?;
    live.accepts_dataset(&name).await?;
    let length = length(request.headers());
    let mut coming = Coming::of(request)?;
    let _place = caller.share.stream()?;
    let id = live.shown().await.id;
    let folder = platform.node.folder(&caller.key.project, &id);
    let key = dataset_key(&name);
    let begun = async {
        // Reserve space for the declared length before accepting any of the body.
        let size = length.unwrap_or(0).min(DATASET_BYTES_MAX);
        let mut incoming = folder.begin_within(&["datasets", &key], size).await?;
        incoming.prepay(size).map(|()| incoming)
    };
    let mut incoming = match begun.await {
        Ok(incoming) => incoming,
        Err(error) => return Err(refused(&platform, &caller, coming.refuse(error).await)),
    };
    while let Some(bytes) = coming.next().await? {
        let size = incoming.size_bytes() + bytes.len() as u64;
        if size > DATASET_BYTES_MAX {
            let error = limits::exceeded("the size of the dataset in bytes", size, DATASET_BYTES_MAX);
            return Err(coming.refuse(node::Error::Request(error)).await);
        }
        if let Err(error) = incoming.push(&bytes).await {
            return Err(refused(&platform, &caller, coming.refuse(error).await));
        }
    }
    let size = incoming.size_bytes();
    incoming.finish().await?;
    match live.add_dataset(&platform, &name, size).await {
        Ok(dataset) => {
            platform.note(&caller, Act::DatasetPut, |entry| entry.detail(&name));
            Ok(Json(dataset))
        }
        Err(fault) => {
            // The session has ended in the meantime or has reached a limit.
            if !live.has_dataset(&name).await {
                folder.remove(&["datasets", &key]).await?;
            }
            Err(fault.into())
        }
    }
}

/// Call a tool
///
/// Returns the response of the tool when the call has ended. The request body has the arguments of the tool, either alone or as
/// `{"tool", "parameters", "reasoning_trace"}`. Calls of a session run one at a time, in order of arrival. The response header
/// `bellglass-run` has the run ID.
#[utoipa::path(
    post,
    path = "/v1/sessions/{session}/tools/{tool}",
    operation_id = "callTool",
    tag = "sessions",
    params(
        ("session" = String, Path, description = "Session ID"),
        ("tool" = String, Path, description = "Tool name"),
        (
            "idempotency-key" = Option<String>, Header,
            description = "Requests with the same key start only one run. A key has 1 to 255 printable ASCII characters"
        ),
        Calling,
    ),
    request_body = Value,
    security(("key" = [])),
    responses((status = 200, body = Value), (status = "default", body = Error))
)]
pub async fn call(
    caller: Caller<Write>,
    State(platform): State<Arc<Platform>>,
    Path((named, tool)): Path<(String, String)>,
    manner: Manner,
    Sent(body): Sent<Value>,
) -> Answer<Response> {
    caller.pace(Rate::Exec)?;
    let _place = caller.share.stream()?;
    let live = platform.sessions.find(&platform, &caller, &named).await?;
    let id = manner.idempotency.exec_id()?;
    let keyed = manner.idempotency.0.is_some();
    let request = ToolRequest { tool: &tool, body, id: id.clone(), keyed };
    let flight = live.call(&platform, &caller.account, request).await?;
    let ends = manner.cancels.then(|| EndsWith::this(&flight));
    let landing = flight.landing().await;
    if let Some(ends) = ends {
        ends.release();
    }
    let headers =
        [(header::CONTENT_TYPE.as_str(), "application/json".to_owned()), (RUN_HEADER, id.to_string())];
    Ok((headers, landing?.text).into_response())
}

/// List the artifacts of a session
///
/// The artifacts are also available after the sandbox or the session has ended.
#[utoipa::path(
    get,
    path = "/v1/sessions/{session}/artifacts",
    operation_id = "listSessionArtifacts",
    tag = "sessions",
    params(("session" = String, Path, description = "Session ID")),
    security(("key" = [])),
    responses((status = 200, body = Page<SessionArtifact>), (status = "default", body = Error))
)]
pub async fn artifacts(
    caller: Caller<Read>,
    State(platform): State<Arc<Platform>>,
    Path(named): Path<String>,
) -> Answer<Response> {
    let live = platform.sessions.find(&platform, &caller, &named).await?;
    let reading = Listing::begin(&caller.share).await?;
    reading.respond(Page { items: live.artifacts().await?, next: None })
}

/// Delete the artifacts of a session
///
/// Other sessions are not affected.
#[utoipa::path(
    delete,
    path = "/v1/sessions/{session}/artifacts",
    operation_id = "deleteSessionArtifacts",
    tag = "sessions",
    params(("session" = String, Path, description = "Session ID")),
    security(("key" = [])),
    responses((status = 200, body = Cleared), (status = "default", body = Error))
)]
pub async fn clear(
    caller: Caller<Write>,
    State(platform): State<Arc<Platform>>,
    Path(named): Path<String>,
) -> Answer<Json<Cleared>> {
    let _place = caller.share.stream()?;
    let live = platform.sessions.find(&platform, &caller, &named).await?;
    platform.note(&caller, Act::SessionClear, |entry| entry.detail(&named));
    Ok(Json(Cleared { removed: live.clear().await? }))
}

/// Download an artifact of a session
#[utoipa::path(
    get,
    path = "/v1/sessions/{session}/artifacts/{name}",
    operation_id = "downloadSessionArtifact",
    tag = "sessions",
    params(
        ("session" = String, Path, description = "Session ID"),
        ("name" = String, Path, description = "Artifact name, with `/` encoded as `%2F`"),
    ),
    security(("key" = [])),
    responses(
        (status = 200, body = Vec<u8>, content_type = "application/octet-stream"),
        (status = "default", body = Error),
    )
)]
pub async fn artifact(
    caller: Caller<Read>,
    State(platform): State<Arc<Platform>>,
    Path((named, name)): Path<(String, String)>,
) -> Answer<Response> {
    let place = caller.share.stream()?;
    let live = platform.sessions.find(&platform, &caller, &named).await?;
    let shown: String = name.chars().take(200).collect();
    let none = || Error {
        fix: "List the artifacts of the session and use one of those names.".into(),
        ..Error::not_found(format!("the session has no artifact {shown:?}"))
    };
    let (artifact, outgoing) = live.artifact(&name).await?.ok_or_else(none)?;
    let path = api::files::FilePath::new(artifact.name.as_bytes())?;
    let headers = [
        (header::CONTENT_TYPE, artifact.mime),
        (header::CONTENT_LENGTH, outgoing.size_bytes.to_string()),
        (header::CONTENT_DISPOSITION, attachment(&path, "")),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".into()),
        (header::CACHE_CONTROL, "no-store".into()),
    ];
    Ok((headers, stream(outgoing, place)).into_response())
}
