//! Projects, keys and the machine. All routes require role `admin`.

use std::sync::Arc;
use std::time::Duration;

use api::account::{CreateKey, Key, NewKey, OVERLAP_MS_MAX, Project, PutProject, RotateKey};
use api::server::{Drain, NodeStatus, Page};
use api::{Error, SandboxId};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use node::clock;

use crate::authority::{Admin, Caller};
use crate::body::Sent;
use crate::extract::Path;
use crate::rejection::Answer;
use control::account::mint;
use control::audit::Act;
use control::platform::Platform;

/// Maximum length of a key's label.
const LABEL_BYTES_MAX: usize = 200;

/// List projects
#[utoipa::path(
    get,
    path = "/v1/projects",
    operation_id = "listProjects",
    tag = "projects",
    security(("key" = [])),
    responses((status = 200, body = Page<Project>), (status = "default", body = Error))
)]
pub async fn projects(
    _: Caller<Admin>,
    State(platform): State<Arc<Platform>>,
) -> Answer<Json<Page<Project>>> {
    Ok(Json(Page { items: platform.store.projects().await?, next: None }))
}

/// Create or update a project
///
/// Sets the quota of the project.
#[utoipa::path(
    put,
    path = "/v1/projects/{project}",
    operation_id = "setProject",
    tag = "projects",
    params(("project" = String, Path, description = "Project name")),
    request_body = PutProject,
    security(("key" = [])),
    responses((status = 200, body = Project), (status = "default", body = Error))
)]
pub async fn put_project(
    caller: Caller<Admin>,
    State(platform): State<Arc<Platform>>,
    Path(name): Path<String>,
    Sent(put): Sent<PutProject>,
) -> Answer<Json<Project>> {
    let name = name.parse::<SandboxId>().map_err(|bad| {
        Error::invalid(bad.to_string(), "Correct the name of the project as described in the message.")
    })?;
    let project = platform.store.put_project(name.as_str(), &put.quota, clock::wall_ms()).await?;
    platform.accounts.forget_share(name.as_str());
    platform.node.set_quota(name.as_str(), put.quota.disk_bytes);
    platform.note(&caller, Act::ProjectPut, |entry| entry.detail(name.as_str()));
    Ok(Json(project))
}

/// List keys
///
/// The keys are listed without their secrets.
#[utoipa::path(
    get,
    path = "/v1/keys",
    operation_id = "listKeys",
    tag = "keys",
    security(("key" = [])),
    responses((status = 200, body = Page<Key>), (status = "default", body = Error))
)]
pub async fn keys(_: Caller<Admin>, State(platform): State<Arc<Platform>>) -> Answer<Json<Page<Key>>> {
    let mut items = platform.store.keys().await?;
    for key in &mut items {
        key.last_used_at_ms = platform.accounts.used_ms(&key.id).or(key.last_used_at_ms);
    }
    Ok(Json(Page { items, next: None }))
}

/// Create a key
///
/// The response is the only place where the secret is shown.
#[utoipa::path(
    post,
    path = "/v1/keys",
    operation_id = "createKey",
    tag = "keys",
    request_body = CreateKey,
    security(("key" = [])),
    responses((status = 201, body = NewKey), (status = "default", body = Error))
)]
pub async fn create_key(
    caller: Caller<Admin>,
    State(platform): State<Arc<Platform>>,
    Sent(ask): Sent<CreateKey>,
) -> Answer<(StatusCode, Json<NewKey>)> {
    if ask.label.len() > LABEL_BYTES_MAX {
        return Err(api::limits::exceeded(
            "the length of the label in bytes",
            ask.label.len() as u64,
            LABEL_BYTES_MAX as u64,
        )
        .into());
    }
    let (new, hash) = mint(&ask, platform.store.now_ms(clock::wall_ms()))?;
    platform.store.create_key(&new.key, &hash).await?;
    platform.note(&caller, Act::KeyCreate, |entry| entry.detail(&new.key.id));
    Ok((StatusCode::CREATED, Json(new)))
}

/// Rotate a key
///
/// Creates a new key. The old key stays valid for `overlap_ms`, so that clients can switch over.
#[utoipa::path(
    post,
    path = "/v1/keys/{key}/rotate",
    operation_id = "rotateKey",
    tag = "keys",
    params(("key" = String, Path, description = "Key ID")),
    request_body = RotateKey,
    security(("key" = [])),
    responses((status = 201, body = NewKey), (status = "default", body = Error))
)]
pub async fn rotate_key(
    caller: Caller<Admin>,
    State(platform): State<Arc<Platform>>,
    Path(id): Path<String>,
    Sent(ask): Sent<RotateKey>,
) -> Answer<(StatusCode, Json<NewKey>)> {
    if ask.overlap_ms > OVERLAP_MS_MAX {
        return Err(api::limits::exceeded("overlap_ms", ask.overlap_ms, OVERLAP_MS_MAX).into());
    }
    let missing = || Error::not_found("there is no such key");
    let old = platform.store.keys().await?.into_iter().find(|key| key.id == id).ok_or_else(missing)?;
    let now_ms = platform.store.now_ms(clock::wall_ms());
    let same = CreateKey {
        project: old.project.clone(),
        role: old.role,
        label: old.label.clone(),
        valid_ms: old.expires_at_ms.map(|end| end.saturating_sub(old.created_at_ms)),
    };
    let (new, hash) = mint(&same, now_ms)?;
    if !platform.store.rotate_key(&old.id, (&new.key, &hash), now_ms, ask.overlap_ms).await? {
        return Err(missing().into());
    }
    // Clear the cache, so that the old key is cached again with its new expiry.
    platform.accounts.forget();
    let (ending_on, ending) = (Arc::clone(&platform), id.clone());
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(ask.overlap_ms)).await;
        if !api::defence::is_off("H-42") {
            ending_on.accounts.revoke(&ending);
        }
    });
    platform.note(&caller, Act::KeyRotate, |entry| entry.detail(&format!("{id} to {}", new.key.id)));
    Ok((StatusCode::CREATED, Json(new)))
}

/// Revoke a key
///
/// The key stops working immediately.
#[utoipa::path(
    delete,
    path = "/v1/keys/{key}",
    operation_id = "revokeKey",
    tag = "keys",
    params(("key" = String, Path, description = "Key ID")),
    security(("key" = [])),
    responses((status = 204), (status = "default", body = Error))
)]
pub async fn revoke_key(
    caller: Caller<Admin>,
    State(platform): State<Arc<Platform>>,
    Path(id): Path<String>,
) -> Answer<StatusCode> {
    let revoked = platform.store.revoke_key(&id, clock::wall_ms()).await;
    // Revoke the key even if the revocation could not be saved. In this case, the store rejects the key
    // because it remembers the revocation in memory.
    platform.accounts.revoke(&id);
    if !revoked? {
        return Err(Error::not_found("there is no such key").into());
    }
    platform.note(&caller, Act::KeyRevoke, |entry| entry.detail(&id));
    Ok(StatusCode::NO_CONTENT)
}

/// Get the status of the machine
#[utoipa::path(
    get,
    path = "/v1/node",
    operation_id = "getNode",
    tag = "machine",
    security(("key" = [])),
    responses((status = 200, body = NodeStatus), (status = "default", body = Error))
)]
pub async fn node(_: Caller<Admin>, State(platform): State<Arc<Platform>>) -> Answer<Json<NodeStatus>> {
    Ok(Json(platform.node.status()))
}

/// Drain the machine
///
/// A drained machine rejects new sandboxes, while live sandboxes continue to run. The request starts or ends draining.
#[utoipa::path(
    put,
    path = "/v1/node/drain",
    operation_id = "drainNode",
    tag = "machine",
    request_body = Drain,
    security(("key" = [])),
    responses((status = 200, body = NodeStatus), (status = "default", body = Error))
)]
pub async fn drain(
    caller: Caller<Admin>,
    State(platform): State<Arc<Platform>>,
    Sent(drain): Sent<Drain>,
) -> Answer<Json<NodeStatus>> {
    platform.node.drain(drain.draining);
    platform.note(&caller, Act::Drain, |entry| entry.detail(if drain.draining { "on" } else { "off" }));
    Ok(Json(platform.node.status()))
}
