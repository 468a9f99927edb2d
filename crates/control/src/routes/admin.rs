//! Projects, keys and the machine: for keys of role `admin`.

use std::sync::Arc;

use api::account::{CreateKey, Key, NewKey, Project, PutProject, Role};
use api::server::{Drain, NodeStatus, Page};
use api::{Error, SandboxId};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use node::clock;

use crate::account::mint;
use crate::audit::Act;
use crate::caller::{At, Caller, Sent};
use crate::fault::Answer;
use crate::platform::Platform;

/// What a key may be called.
const LABEL_BYTES_MAX: usize = 200;

/// All projects.
#[utoipa::path(get, path = "/v1/projects", security(("key" = [])), responses((status = 200, body = Page<Project>), (status = "default", body = Error)))]
pub async fn projects(caller: Caller, State(platform): State<Arc<Platform>>) -> Answer<Json<Page<Project>>> {
    caller.require(Role::Admin)?;
    Ok(Json(Page { items: platform.store.projects().await?, next: None }))
}

/// Makes a project, or changes its quota.
#[utoipa::path(put, path = "/v1/projects/{project}", params(("project" = String, Path)), request_body = PutProject, security(("key" = [])), responses((status = 200, body = Project), (status = "default", body = Error)))]
pub async fn put_project(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At(name): At<String>,
    Sent(put): Sent<PutProject>,
) -> Answer<Json<Project>> {
    caller.require(Role::Admin)?;
    let name =
        name.parse::<SandboxId>().map_err(|bad| Error::invalid(bad.to_string(), "Use such a name."))?;
    let project = platform.store.put_project(name.as_str(), &put.quota, clock::wall_ms()).await?;
    platform.accounts.forget_share(name.as_str());
    platform.note(&caller, Act::ProjectPut, |entry| entry.detail(name.as_str()));
    Ok(Json(project))
}

/// All keys, without their secrets.
#[utoipa::path(get, path = "/v1/keys", security(("key" = [])), responses((status = 200, body = Page<Key>), (status = "default", body = Error)))]
pub async fn keys(caller: Caller, State(platform): State<Arc<Platform>>) -> Answer<Json<Page<Key>>> {
    caller.require(Role::Admin)?;
    Ok(Json(Page { items: platform.store.keys().await?, next: None }))
}

/// Makes a key. Its secret is in the answer and never again anywhere.
#[utoipa::path(post, path = "/v1/keys", request_body = CreateKey, security(("key" = [])), responses((status = 201, body = NewKey), (status = "default", body = Error)))]
pub async fn create_key(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    Sent(ask): Sent<CreateKey>,
) -> Answer<(StatusCode, Json<NewKey>)> {
    caller.require(Role::Admin)?;
    if ask.label.len() > LABEL_BYTES_MAX {
        return Err(
            api::limits::exceeded("label, in bytes", ask.label.len() as u64, LABEL_BYTES_MAX as u64).into()
        );
    }
    let (new, hash) = mint(&ask, clock::wall_ms())?;
    platform.store.create_key(&new.key, &hash).await?;
    platform.note(&caller, Act::KeyCreate, |entry| entry.detail(&new.key.id));
    Ok((StatusCode::CREATED, Json(new)))
}

/// Revokes a key, at once.
#[utoipa::path(delete, path = "/v1/keys/{key}", params(("key" = String, Path)), security(("key" = [])), responses((status = 204), (status = "default", body = Error)))]
pub async fn revoke_key(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At(id): At<String>,
) -> Answer<StatusCode> {
    caller.require(Role::Admin)?;
    let revoked = platform.store.revoke_key(&id, clock::wall_ms()).await?;
    platform.accounts.forget();
    if !revoked {
        return Err(Error::not_found("there is no such key").into());
    }
    platform.note(&caller, Act::KeyRevoke, |entry| entry.detail(&id));
    Ok(StatusCode::NO_CONTENT)
}

/// How the machine is doing.
#[utoipa::path(get, path = "/v1/node", security(("key" = [])), responses((status = 200, body = NodeStatus), (status = "default", body = Error)))]
pub async fn node(caller: Caller, State(platform): State<Arc<Platform>>) -> Answer<Json<NodeStatus>> {
    caller.require(Role::Admin)?;
    Ok(Json(platform.node.status()))
}

/// Refuses new sandboxes from now on, or takes them again. Those that live go on.
#[utoipa::path(put, path = "/v1/node/drain", request_body = Drain, security(("key" = [])), responses((status = 200, body = NodeStatus), (status = "default", body = Error)))]
pub async fn drain(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    Sent(drain): Sent<Drain>,
) -> Answer<Json<NodeStatus>> {
    caller.require(Role::Admin)?;
    platform.node.drain(drain.draining);
    platform.note(&caller, Act::Drain, |entry| entry.detail(if drain.draining { "on" } else { "off" }));
    Ok(Json(platform.node.status()))
}
