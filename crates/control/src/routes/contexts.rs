//! Contexts: interpreters that stay, whose cells are execs. Create, list, look, restart, interrupt, remove, variables.

use std::sync::Arc;

use api::account::Role;
use api::code::{ContextInfo, ContextSpec, Variable};
use api::server::Page;
use api::{ContextId, Error};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use crate::account::Rate;
use crate::audit::Act;
use crate::caller::{At, Caller, Idempotency, Sent};
use crate::fault::Answer;
use crate::platform::Platform;
use crate::routes::execs::call;

/// Makes a context and waits until it is there. With an `idempotency-key` one is made, however often this is sent.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/contexts", params(("sandbox" = String, Path), ("idempotency-key" = Option<String>, Header)), request_body = ContextSpec, security(("key" = [])), responses((status = 201, body = ContextInfo), (status = "default", body = Error)))]
pub async fn create(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At(named): At<String>,
    idempotency: Idempotency,
    Sent(spec): Sent<ContextSpec>,
) -> Answer<(StatusCode, Json<ContextInfo>)> {
    caller.require(Role::Write)?;
    caller.pace(Rate::Exec)?;
    spec.check()?;
    let _launch = caller.share.launch()?;
    let sandbox = platform.running(&caller, &named).await?;
    let call = platform.node.call(&sandbox.id)?;
    let id = idempotency.context_id()?;
    platform.note(&caller, Act::ContextCreate, |entry| entry.sandbox(&sandbox.id).detail(id.as_str()));
    Ok((StatusCode::CREATED, Json(call.context(&id, spec).await?)))
}

/// All contexts of a sandbox.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/contexts", params(("sandbox" = String, Path)), security(("key" = [])), responses((status = 200, body = Page<ContextInfo>), (status = "default", body = Error)))]
pub async fn list(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At(named): At<String>,
) -> Answer<Json<Page<ContextInfo>>> {
    let call = call(&caller, &platform, &named).await?;
    Ok(Json(Page { items: call.contexts().await?, next: None }))
}

/// How a context is doing.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/contexts/{context}", params(("sandbox" = String, Path), ("context" = String, Path)), security(("key" = [])), responses((status = 200, body = ContextInfo), (status = "default", body = Error)))]
pub async fn look(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At((named, context)): At<(String, String)>,
) -> Answer<Json<ContextInfo>> {
    let id = context_id(&context)?;
    let contexts = call(&caller, &platform, &named).await?.contexts().await?;
    Ok(Json(contexts.into_iter().find(|info| info.id == id).ok_or_else(|| missing(&context))?))
}

/// Ends a context, and the cell that runs in it.
#[utoipa::path(delete, path = "/v1/sandboxes/{sandbox}/contexts/{context}", params(("sandbox" = String, Path), ("context" = String, Path)), security(("key" = [])), responses((status = 204), (status = "default", body = Error)))]
pub async fn remove(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At((named, context)): At<(String, String)>,
) -> Answer<StatusCode> {
    caller.require(Role::Write)?;
    let id = context_id(&context)?;
    let sandbox = platform.running(&caller, &named).await?;
    let call = platform.node.call(&sandbox.id)?;
    platform.note(&caller, Act::ContextRemove, |entry| entry.sandbox(&sandbox.id).detail(id.as_str()));
    call.remove_context(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Has a context begin anew, without its variables; the cell that runs in it ends.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/contexts/{context}/restart", params(("sandbox" = String, Path), ("context" = String, Path)), security(("key" = [])), responses((status = 200, body = ContextInfo), (status = "default", body = Error)))]
pub async fn restart(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At((named, context)): At<(String, String)>,
) -> Answer<Json<ContextInfo>> {
    caller.require(Role::Write)?;
    caller.pace(Rate::Exec)?;
    let id = context_id(&context)?;
    let sandbox = platform.running(&caller, &named).await?;
    let call = platform.node.call(&sandbox.id)?;
    platform.note(&caller, Act::ContextRestart, |entry| entry.sandbox(&sandbox.id).detail(id.as_str()));
    Ok(Json(call.restart_context(&id).await?))
}

/// Ends the cell that runs in a context, if one does. Its variables stay, unless the cell does not heed that.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/contexts/{context}/interrupt", params(("sandbox" = String, Path), ("context" = String, Path)), security(("key" = [])), responses((status = 200, body = ContextInfo), (status = "default", body = Error)))]
pub async fn interrupt(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At((named, context)): At<(String, String)>,
) -> Answer<Json<ContextInfo>> {
    caller.require(Role::Write)?;
    let id = context_id(&context)?;
    let sandbox = platform.running(&caller, &named).await?;
    let call = platform.node.call(&sandbox.id)?;
    platform.note(&caller, Act::ContextInterrupt, |entry| entry.sandbox(&sandbox.id).detail(id.as_str()));
    Ok(Json(call.interrupt_context(&id).await?))
}

/// What a context has in its variables. One that runs a cell is a `conflict`: ask again when the cell has ended.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/contexts/{context}/variables", params(("sandbox" = String, Path), ("context" = String, Path)), security(("key" = [])), responses((status = 200, body = Page<Variable>), (status = "default", body = Error)))]
pub async fn variables(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At((named, context)): At<(String, String)>,
) -> Answer<Json<Page<Variable>>> {
    let id = context_id(&context)?;
    let call = call(&caller, &platform, &named).await?;
    Ok(Json(Page { items: call.variables(&id).await?, next: None }))
}

fn context_id(text: &str) -> Answer<ContextId> {
    Ok(text.parse().map_err(|_| missing(text))?)
}

fn missing(text: &str) -> Error {
    let shown: String = text.chars().take(api::id::ID_BYTES_MAX).collect();
    Error {
        fix: "List the contexts of the sandbox and use one of those.".into(),
        ..Error::not_found(format!("there is no context {shown:?}"))
    }
}
