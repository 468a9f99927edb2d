//! The egress policy of a sandbox, and the packages that it received.

use std::sync::Arc;

use api::Error;
use api::policy::{Installed, Policy};
use api::sandbox::Sandbox;
use axum::Json;
use axum::extract::State;
use axum::response::Response;

use crate::authority::{Caller, Read, Write};
use crate::body::Sent;
use crate::extract::{Path, SandboxPath};
use crate::list::Listing;
use crate::rejection::Answer;
use control::audit::Act;
use control::platform::Platform;

/// Set the egress policy
///
/// Replaces the whole policy. Connections that are no longer allowed are closed before the response is sent, or at most one second later.
#[utoipa::path(
    put,
    path = "/v1/sandboxes/{sandbox}/policy",
    operation_id = "setPolicy",
    tag = "policy",
    params(SandboxPath),
    request_body = Policy,
    security(("key" = [])),
    responses((status = 200, body = Sandbox), (status = "default", body = Error))
)]
pub async fn put(
    caller: Caller<Write>,
    State(platform): State<Arc<Platform>>,
    Path(SandboxPath { sandbox: named }): Path<SandboxPath>,
    Sent(policy): Sent<Policy>,
) -> Answer<Json<Sandbox>> {
    policy.check()?;
    if policy.open && !caller.quota.open {
        return Err(node::plan::not_open(&caller.key.project).into());
    }
    let sandbox = platform.running(&caller, &named).await?;
    platform.node.vouch(&sandbox.project, &policy).await?;
    platform
        .note(&caller, Act::Policy, |entry| entry.sandbox(&sandbox.id).detail(&policy.words().join(", ")));
    let shown = platform.node.set_policy(&sandbox.id, policy).await?;
    // The node has already made the change. If saving it fails, a later change saves it as well.
    let _ = platform.store.moved(&shown).await;
    Ok(Json(shown))
}

/// List installed packages
///
/// Returns the lock record: every package file that the sandbox received, in order. The record is available as long as the sandbox exists
/// on the machine.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{sandbox}/packages",
    operation_id = "listPackages",
    tag = "policy",
    params(SandboxPath),
    security(("key" = [])),
    responses((status = 200, body = Vec<Installed>), (status = "default", body = Error))
)]
pub async fn packages(
    caller: Caller<Read>,
    State(platform): State<Arc<Platform>>,
    Path(SandboxPath { sandbox: named }): Path<SandboxPath>,
) -> Answer<Response> {
    let sandbox = platform.sandbox(&caller, &named).await?;
    if platform.node.find(&sandbox.id).is_none() {
        return Err(Error {
            fix: "Request the lock record while the sandbox exists. The audit log lists every package file that was served."
                .into(),
            ..Error::not_found(format!("the lock record of {} was removed with the sandbox", sandbox.id))
        }
        .into());
    }
    let reading = Listing::begin(&caller.share).await?;
    reading.respond(platform.node.packages(&sandbox.id)?)
}
