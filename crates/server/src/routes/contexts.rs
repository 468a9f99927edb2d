//! Contexts: persistent interpreters, whose cells are execs. Create, list, get, restart, interrupt, remove,
//! and list variables.

use std::sync::Arc;

use api::code::{ContextInfo, ContextSpec, Variable};
use api::server::Page;
use api::{ContextId, Error};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;

use crate::authority::{Caller, Read, Write};
use crate::body::Sent;
use crate::extract::{Idempotency, Path, SandboxPath};
use crate::list::Listing;
use crate::rejection::Answer;
use crate::routes::execs::call;
use control::account::Rate;
use control::audit::Act;
use control::platform::Platform;

/// Path of the routes of one context.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
pub struct ContextPath {
    /// Sandbox ID or name
    pub sandbox: String,
    /// Context ID
    pub context: String,
}

/// Create a context
///
/// Responds when the context is ready.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{sandbox}/contexts",
    operation_id = "createContext",
    tag = "contexts",
    params(
        SandboxPath,
        (
            "idempotency-key" = Option<String>, Header,
            description = "Requests with the same key create only one context. A key has 1 to 255 printable ASCII characters"
        ),
    ),
    request_body = ContextSpec,
    security(("key" = [])),
    responses((status = 201, body = ContextInfo), (status = "default", body = Error))
)]
pub async fn create(
    caller: Caller<Write>,
    State(platform): State<Arc<Platform>>,
    Path(SandboxPath { sandbox: named }): Path<SandboxPath>,
    idempotency: Idempotency,
    Sent(spec): Sent<ContextSpec>,
) -> Answer<(StatusCode, Json<ContextInfo>)> {
    caller.pace(Rate::Exec)?;
    spec.check()?;
    let _launch = caller.share.launch()?;
    let sandbox = platform.running(&caller, &named).await?;
    let call = platform.node.call(&sandbox.id).await?;
    let id = idempotency.context_id()?;
    platform.note(&caller, Act::ContextCreate, |entry| entry.sandbox(&sandbox.id).detail(id.as_str()));
    Ok((StatusCode::CREATED, Json(call.context(&id, spec).await?)))
}

/// List contexts
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{sandbox}/contexts",
    operation_id = "listContexts",
    tag = "contexts",
    params(SandboxPath),
    security(("key" = [])),
    responses((status = 200, body = Page<ContextInfo>), (status = "default", body = Error))
)]
pub async fn list(
    caller: Caller<Read>,
    State(platform): State<Arc<Platform>>,
    Path(SandboxPath { sandbox: named }): Path<SandboxPath>,
) -> Answer<Response> {
    let call = call(&caller, &platform, &named).await?;
    let reading = Listing::of_guest(&caller.share).await?;
    reading.respond(Page { items: call.contexts().await?, next: None })
}

/// Get a context
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{sandbox}/contexts/{context}",
    operation_id = "getContext",
    tag = "contexts",
    params(ContextPath),
    security(("key" = [])),
    responses((status = 200, body = ContextInfo), (status = "default", body = Error))
)]
pub async fn look(
    caller: Caller<Read>,
    State(platform): State<Arc<Platform>>,
    Path(ContextPath { sandbox: named, context }): Path<ContextPath>,
) -> Answer<Json<ContextInfo>> {
    let id = context_id(&context)?;
    let contexts = call(&caller, &platform, &named).await?.contexts().await?;
    Ok(Json(contexts.into_iter().find(|info| info.id == id).ok_or_else(|| missing(&context))?))
}

/// Delete a context
///
/// The running cell, if any, is stopped.
#[utoipa::path(
    delete,
    path = "/v1/sandboxes/{sandbox}/contexts/{context}",
    operation_id = "deleteContext",
    tag = "contexts",
    params(ContextPath),
    security(("key" = [])),
    responses((status = 204), (status = "default", body = Error))
)]
pub async fn remove(
    caller: Caller<Write>,
    State(platform): State<Arc<Platform>>,
    Path(ContextPath { sandbox: named, context }): Path<ContextPath>,
) -> Answer<StatusCode> {
    let id = context_id(&context)?;
    let sandbox = platform.running(&caller, &named).await?;
    let call = platform.node.call(&sandbox.id).await?;
    platform.note(&caller, Act::ContextRemove, |entry| entry.sandbox(&sandbox.id).detail(id.as_str()));
    call.remove_context(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Restart a context
///
/// Variables are lost. The running cell, if any, is stopped.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{sandbox}/contexts/{context}/restart",
    operation_id = "restartContext",
    tag = "contexts",
    params(ContextPath),
    security(("key" = [])),
    responses((status = 200, body = ContextInfo), (status = "default", body = Error))
)]
pub async fn restart(
    caller: Caller<Write>,
    State(platform): State<Arc<Platform>>,
    Path(ContextPath { sandbox: named, context }): Path<ContextPath>,
) -> Answer<Json<ContextInfo>> {
    caller.pace(Rate::Exec)?;
    let id = context_id(&context)?;
    let sandbox = platform.running(&caller, &named).await?;
    let call = platform.node.call(&sandbox.id).await?;
    platform.note(&caller, Act::ContextRestart, |entry| entry.sandbox(&sandbox.id).detail(id.as_str()));
    Ok(Json(call.restart_context(&id).await?))
}

/// Interrupt the running cell
///
/// Does nothing if no cell is running. Variables survive unless the cell ignores the interrupt and is killed.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{sandbox}/contexts/{context}/interrupt",
    operation_id = "interruptContext",
    tag = "contexts",
    params(ContextPath),
    security(("key" = [])),
    responses((status = 200, body = ContextInfo), (status = "default", body = Error))
)]
pub async fn interrupt(
    caller: Caller<Write>,
    State(platform): State<Arc<Platform>>,
    Path(ContextPath { sandbox: named, context }): Path<ContextPath>,
) -> Answer<Json<ContextInfo>> {
    let id = context_id(&context)?;
    let sandbox = platform.running(&caller, &named).await?;
    let call = platform.node.call(&sandbox.id).await?;
    platform.note(&caller, Act::ContextInterrupt, |entry| entry.sandbox(&sandbox.id).detail(id.as_str()));
    Ok(Json(call.interrupt_context(&id).await?))
}

/// List variables
///
/// Fails with `conflict` while a cell is running. Retry when the cell has ended.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{sandbox}/contexts/{context}/variables",
    operation_id = "listVariables",
    tag = "contexts",
    params(ContextPath),
    security(("key" = [])),
    responses((status = 200, body = Page<Variable>), (status = "default", body = Error))
)]
pub async fn variables(
    caller: Caller<Read>,
    State(platform): State<Arc<Platform>>,
    Path(ContextPath { sandbox: named, context }): Path<ContextPath>,
) -> Answer<Response> {
    let id = context_id(&context)?;
    let call = call(&caller, &platform, &named).await?;
    let reading = Listing::of_guest(&caller.share).await?;
    reading.respond(Page { items: call.variables(&id).await?, next: None })
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
