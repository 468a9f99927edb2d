//! Sessions: create, list, look, end, clean up, datasets, tool calls, and what is kept.

pub mod events;
pub mod runs;

use std::sync::Arc;

use api::account::Role;
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
use super::files::content::attachment;
use super::files::flow::Coming;
use crate::account::Rate;
use crate::audit::Act;
use crate::caller::{Asked, At, Caller, Idempotency, Sent};
use crate::fault::{Answer, Fault};
use crate::output::place;
use crate::platform::Platform;
use crate::session::dataset_key;
use crate::session::flight::EndsWith;

/// Sessions of one page, unless another number is asked for.
const PAGE: u32 = 100;

/// Which page.
#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Listing {
    /// How many at most.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// `next` of the page before.
    cursor: Option<String>,
}

/// How a tool is called.
#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Calling {
    /// Ends the run when whoever called goes away.
    #[serde(default)]
    cancel_on_disconnect: bool,
}

/// In what manner a tool is called: what stands in the head of the request.
pub struct Manner {
    idempotency: Idempotency,
    cancels: bool,
}

/// How much was removed.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Cleared {
    /// Files that were kept.
    removed: usize,
}

impl<S: Send + Sync> FromRequestParts<S> for Manner {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Answer<Self> {
        let Asked(Calling { cancel_on_disconnect: cancels }) =
            Asked::from_request_parts(parts, state).await?;
        Ok(Self { idempotency: Idempotency::from_request_parts(parts, state).await?, cancels })
    }
}

/// Makes a session. Its sandbox is made when the first tool is called. With an `idempotency-key` one is made, however often this is
/// sent.
#[utoipa::path(post, path = "/v1/sessions", params(("idempotency-key" = Option<String>, Header)), request_body = CreateSession, security(("key" = [])), responses((status = 201, body = Session), (status = "default", body = Error)))]
pub async fn create(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    Idempotency(key): Idempotency,
    Sent(request): Sent<CreateSession>,
) -> Answer<Response> {
    caller.require(Role::Write)?;
    caller.pace(Rate::Exec)?;
    let session = platform.sessions.create(&platform, &caller, &request, key.as_deref()).await?;
    Ok((StatusCode::CREATED, Json(session)).into_response())
}

/// The project's sessions, the newest first.
#[utoipa::path(get, path = "/v1/sessions", params(Listing), security(("key" = [])), responses((status = 200, body = Page<Session>), (status = "default", body = Error)))]
pub async fn list(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    Asked(listing): Asked<Listing>,
) -> Answer<Json<Page<Session>>> {
    let limit = listing.limit.unwrap_or(PAGE);
    Ok(Json(platform.store.sessions(&caller.key.project, limit, listing.cursor.as_deref()).await?))
}

/// How a session is.
#[utoipa::path(get, path = "/v1/sessions/{session}", params(("session" = String, Path)), security(("key" = [])), responses((status = 200, body = Session), (status = "default", body = Error)))]
pub async fn look(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At(named): At<String>,
) -> Answer<Json<Session>> {
    let live = platform.sessions.find(&platform, &caller, &named).await?;
    Ok(Json(live.shown().await))
}

/// Ends a session and its sandbox. What it keeps stays. Can be repeated.
#[utoipa::path(delete, path = "/v1/sessions/{session}", params(("session" = String, Path)), security(("key" = [])), responses((status = 200, body = Session), (status = "default", body = Error)))]
pub async fn end(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At(named): At<String>,
) -> Answer<Json<Session>> {
    caller.require(Role::Write)?;
    let live = platform.sessions.find(&platform, &caller, &named).await?;
    Ok(Json(live.end(&platform, &caller).await?))
}

/// Frees what a session holds on the machine: waits for the run that goes on, and ends the sandbox with its files and packages. The next
/// call makes a new one. Can be repeated.
#[utoipa::path(delete, path = "/v1/sessions/{session}/sandbox", params(("session" = String, Path)), security(("key" = [])), responses((status = 200, body = Session), (status = "default", body = Error)))]
pub async fn clean_up(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At(named): At<String>,
) -> Answer<Json<Session>> {
    caller.require(Role::Write)?;
    let _place = place(&caller.share)?;
    let live = platform.sessions.find(&platform, &caller, &named).await?;
    Ok(Json(live.clean_up(&platform, &caller).await?))
}

/// Has a file be at `/tmp/data/{name}.csv` of every sandbox of a session, before anything runs in it; in one that runs, before the next
/// call. `/` and spaces of the name become `_`.
#[utoipa::path(put, path = "/v1/sessions/{session}/datasets/{name}", params(("session" = String, Path), ("name" = String, Path)), request_body(content = Vec<u8>, content_type = "application/octet-stream"), security(("key" = [])), responses((status = 200, body = SessionDataset), (status = "default", body = Error)))]
pub async fn put_dataset(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At((named, name)): At<(String, String)>,
    request: Request,
) -> Answer<Json<SessionDataset>> {
    caller.require(Role::Write)?;
    let live = platform.sessions.find(&platform, &caller, &named).await?;
    live.accepts_dataset(&name).await?;
    let mut coming = Coming::of(request)?;
    let _place = place(&caller.share)?;
    platform.note(&caller, Act::DatasetPut, |entry| entry.detail(&name));
    let id = live.shown().await.id;
    let folder = platform.node.folder(&caller.key.project, &id);
    let mut incoming = folder.begin_within(&["datasets", &dataset_key(&name)], DATASET_BYTES_MAX).await?;
    while let Some(bytes) = coming.next().await? {
        let size = incoming.size_bytes() + bytes.len() as u64;
        if size > DATASET_BYTES_MAX {
            let error = limits::exceeded("the dataset, in bytes,", size, DATASET_BYTES_MAX);
            return Err(coming.refuse(node::Error::Request(error)).await);
        }
        incoming.push(&bytes).await?;
    }
    let size = incoming.size_bytes();
    incoming.finish().await?;
    Ok(Json(live.add_dataset(&platform, &name, size).await?))
}

/// Calls a tool and answers what it says, when it has ended. The body has its arguments, alone or as
/// `{"tool", "parameters", "reasoning_trace"}`. Calls of a session are done one after the other, in the order in which they come. With an
/// `idempotency-key` one run is begun, however often this is sent.
#[utoipa::path(post, path = "/v1/sessions/{session}/tools/{tool}", params(("session" = String, Path), ("tool" = String, Path), ("idempotency-key" = Option<String>, Header), Calling), request_body = Value, security(("key" = [])), responses((status = 200, body = Value), (status = "default", body = Error)))]
pub async fn call(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At((named, tool)): At<(String, String)>,
    manner: Manner,
    Sent(body): Sent<Value>,
) -> Answer<Response> {
    caller.require(Role::Write)?;
    caller.pace(Rate::Exec)?;
    let _place = place(&caller.share)?;
    let live = platform.sessions.find(&platform, &caller, &named).await?;
    let id = manner.idempotency.exec_id()?;
    let keyed = manner.idempotency.0.is_some();
    let flight = live.call(&platform, &caller.account, (&tool, body), (id.clone(), keyed)).await?;
    let ends = manner.cancels.then(|| EndsWith::this(&flight));
    let landing = flight.landing().await;
    if let Some(ends) = ends {
        ends.release();
    }
    let headers =
        [(header::CONTENT_TYPE.as_str(), "application/json".to_owned()), (RUN_HEADER, id.to_string())];
    Ok((headers, landing?.text).into_response())
}

/// What a session keeps. Works after its sandbox, and the session itself, have ended.
#[utoipa::path(get, path = "/v1/sessions/{session}/artifacts", params(("session" = String, Path)), security(("key" = [])), responses((status = 200, body = Page<SessionArtifact>), (status = "default", body = Error)))]
pub async fn artifacts(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At(named): At<String>,
) -> Answer<Json<Page<SessionArtifact>>> {
    let live = platform.sessions.find(&platform, &caller, &named).await?;
    Ok(Json(Page { items: live.artifacts().await?, next: None }))
}

/// Removes what a session keeps, and touches no other session.
#[utoipa::path(delete, path = "/v1/sessions/{session}/artifacts", params(("session" = String, Path)), security(("key" = [])), responses((status = 200, body = Cleared), (status = "default", body = Error)))]
pub async fn clear(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At(named): At<String>,
) -> Answer<Json<Cleared>> {
    caller.require(Role::Write)?;
    let _place = place(&caller.share)?;
    let live = platform.sessions.find(&platform, &caller, &named).await?;
    platform.note(&caller, Act::SessionClear, |entry| entry.detail(&named));
    Ok(Json(Cleared { removed: live.clear().await? }))
}

/// The bytes of a file that a session keeps. A `/` of its name is written `%2F`.
#[utoipa::path(get, path = "/v1/sessions/{session}/artifacts/{name}", params(("session" = String, Path), ("name" = String, Path)), security(("key" = [])), responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream"), (status = "default", body = Error)))]
pub async fn artifact(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At((named, name)): At<(String, String)>,
) -> Answer<Response> {
    caller.require(Role::Read)?;
    let place = place(&caller.share)?;
    let live = platform.sessions.find(&platform, &caller, &named).await?;
    let shown: String = name.chars().take(200).collect();
    let none = || Error {
        fix: "List the artifacts of the session and use one of those names.".into(),
        ..Error::not_found(format!("the session keeps no {shown:?}"))
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
