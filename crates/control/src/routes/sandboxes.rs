//! Sandboxes: create, list, look, stop, lease, policy, packages, usage, trace, events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use api::account::Role;
use api::policy::{Installed, Policy};
use api::sandbox::{CreateSandbox, Lease, Sandbox, SandboxEvent, Usage};
use api::server::{HEARTBEAT_MS, PAGE, PAGE_MAX, Page};
use api::trace::Trace;
use api::{Error, ExecId};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use futures_util::stream;
use serde::Deserialize;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::account::Rate;
use crate::audit::Act;
use crate::caller::{Asked, At, Caller, Idempotency, Sent};
use crate::fault::Answer;
use crate::output::{lines, place, written};
use crate::platform::Platform;
use crate::trace;

/// Which page of which sandboxes.
#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Listing {
    /// How many at most.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// `next` of the page before.
    cursor: Option<String>,
    /// Those that have ended too.
    #[serde(default)]
    all: bool,
}

/// Which traces.
#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Traced {
    /// Only those of this exec.
    #[param(value_type = Option<String>, pattern = "^[a-z][a-z0-9]{0,39}$")]
    exec: Option<ExecId>,
}

/// Makes a sandbox and answers when it runs. With an `idempotency-key` it is made once, however often this is sent.
#[utoipa::path(post, path = "/v1/sandboxes", params(("idempotency-key" = Option<String>, Header)), request_body = CreateSandbox, security(("key" = [])), responses((status = 201, body = Sandbox), (status = 200, body = Sandbox, description = "It was made before"), (status = "default", body = Error)))]
pub async fn create(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    Idempotency(key): Idempotency,
    Sent(request): Sent<CreateSandbox>,
) -> Answer<(StatusCode, Json<Sandbox>)> {
    caller.require(Role::Write)?;
    caller.pace(Rate::Create)?;
    let (sandbox, new) = platform.create(&caller.account, request, key).await?;
    trace::about(&sandbox.id);
    let status = if new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(sandbox)))
}

/// The project's sandboxes, the newest first.
#[utoipa::path(get, path = "/v1/sandboxes", params(Listing), security(("key" = [])), responses((status = 200, body = Page<Sandbox>), (status = "default", body = Error)))]
pub async fn list(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    Asked(listing): Asked<Listing>,
) -> Answer<Json<Page<Sandbox>>> {
    let limit = listing.limit.unwrap_or(PAGE);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(Error::invalid(format!("limit is {limit}"), format!("Ask for 1 to {PAGE_MAX}.")).into());
    }
    let project = &caller.key.project;
    let mut page = platform.store.sandboxes(project, !listing.all, limit, listing.cursor.as_deref()).await?;
    // The node knows first.
    for sandbox in &mut page.items {
        if let Some(shown) = platform.node.find(&sandbox.id) {
            *sandbox = shown;
        }
    }
    page.items.retain(|sandbox| listing.all || !sandbox.state.is_terminal());
    Ok(Json(page))
}

/// How a sandbox is doing, or why it ended.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}", params(("sandbox" = String, Path)), security(("key" = [])), responses((status = 200, body = Sandbox), (status = "default", body = Error)))]
pub async fn look(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At(named): At<String>,
) -> Answer<Json<Sandbox>> {
    Ok(Json(platform.sandbox(&caller, &named).await?))
}

/// Ends a sandbox and answers when nothing of it is left. Can be repeated.
#[utoipa::path(delete, path = "/v1/sandboxes/{sandbox}", params(("sandbox" = String, Path)), security(("key" = [])), responses((status = 200, body = Sandbox), (status = "default", body = Error)))]
pub async fn stop(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At(named): At<String>,
) -> Answer<Json<Sandbox>> {
    caller.require(Role::Write)?;
    let sandbox = platform.stop(&caller, &named).await?;
    trace::about(&sandbox.id);
    Ok(Json(sandbox))
}

/// Gives a sandbox another idle time, counted from now.
#[utoipa::path(put, path = "/v1/sandboxes/{sandbox}/lease", params(("sandbox" = String, Path)), request_body = Lease, security(("key" = [])), responses((status = 200, body = Sandbox), (status = "default", body = Error)))]
pub async fn lease(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At(named): At<String>,
    Sent(lease): Sent<Lease>,
) -> Answer<Json<Sandbox>> {
    caller.require(Role::Write)?;
    lease.check()?;
    let sandbox = platform.running(&caller, &named).await?;
    platform.note(&caller, Act::Lease, |entry| entry.sandbox(&sandbox.id));
    let shown = platform.node.renew(&sandbox.id, Duration::from_millis(lease.idle_ms))?;
    // The node keeps it; the store shows it later if it cannot take it now.
    let _ = platform.store.moved(&shown).await;
    Ok(Json(shown))
}

/// Gives a sandbox another policy. What is under way and no longer allowed is cut before this is answered, or within a second.
#[utoipa::path(put, path = "/v1/sandboxes/{sandbox}/policy", params(("sandbox" = String, Path)), request_body = Policy, security(("key" = [])), responses((status = 200, body = Sandbox), (status = "default", body = Error)))]
pub async fn policy(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At(named): At<String>,
    Sent(policy): Sent<Policy>,
) -> Answer<Json<Sandbox>> {
    caller.require(Role::Write)?;
    policy.check()?;
    if policy.open && !caller.quota.open {
        return Err(node::plan::not_open(&caller.key.project).into());
    }
    let sandbox = platform.running(&caller, &named).await?;
    platform.node.vouch(&sandbox.project, &policy).await?;
    platform
        .note(&caller, Act::Policy, |entry| entry.sandbox(&sandbox.id).detail(&policy.words().join(", ")));
    let shown = platform.node.set_policy(&sandbox.id, policy)?;
    // The node keeps it; the store shows it later if it cannot take it now.
    let _ = platform.store.moved(&shown).await;
    Ok(Json(shown))
}

/// The packages that a sandbox was given, in order: its lock record, for as long as its machine knows it.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/packages", params(("sandbox" = String, Path)), security(("key" = [])), responses((status = 200, body = Vec<Installed>), (status = "default", body = Error)))]
pub async fn packages(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At(named): At<String>,
) -> Answer<Json<Vec<Installed>>> {
    let sandbox = platform.sandbox(&caller, &named).await?;
    if platform.node.find(&sandbox.id).is_none() {
        return Err(Error {
            fix: "Ask for it while the sandbox lives; the audit log names every file that was given.".into(),
            ..Error::not_found(format!("the lock record of {} is gone with it", sandbox.id))
        }
        .into());
    }
    Ok(Json(platform.node.packages(&sandbox.id)?))
}

/// What a sandbox uses now. Looking does not keep it from being idle.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/usage", params(("sandbox" = String, Path)), security(("key" = [])), responses((status = 200, body = Usage), (status = "default", body = Error)))]
pub async fn usage(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At(named): At<String>,
) -> Answer<Json<Usage>> {
    let sandbox = platform.running(&caller, &named).await?;
    Ok(Json(platform.node.usage(&sandbox.id).await?))
}

/// Where the time of the last requests for a sandbox went, the oldest first: its create, its execs, its stop. They are kept in memory,
/// as many as there is room for.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/trace", params(("sandbox" = String, Path), Traced), security(("key" = [])), responses((status = 200, body = Vec<Trace>), (status = "default", body = Error)))]
pub async fn traces(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At(named): At<String>,
    Asked(traced): Asked<Traced>,
) -> Answer<Json<Vec<Trace>>> {
    let sandbox = platform.sandbox(&caller, &named).await?;
    Ok(Json(platform.traces.recorder.traces(&sandbox.id, traced.exec.as_ref())))
}

/// What happens to the project's sandboxes from now on, one JSON object a line.
#[utoipa::path(get, path = "/v1/events", security(("key" = [])), responses((status = 200, body = SandboxEvent, content_type = "application/x-ndjson"), (status = "default", body = Error)))]
pub async fn events(caller: Caller, State(platform): State<Arc<Platform>>) -> Answer<Response> {
    let listener = Listener {
        events: platform.node.events(),
        project: caller.key.project.clone(),
        platform,
        _place: place(&caller.share)?,
    };
    let body = stream::unfold(listener, |mut listener| async move {
        let event = listener.next().await?;
        Some((Ok::<_, Infallible>(written(&[event])), listener))
    });
    Ok(lines(StatusCode::OK, Body::from_stream(body)))
}

struct Listener {
    events: Receiver<SandboxEvent>,
    project: String,
    platform: Arc<Platform>,
    _place: OwnedSemaphorePermit,
}

impl Listener {
    /// The next event of the project, or a sign of life.
    async fn next(&mut self) -> Option<SandboxEvent> {
        let until = tokio::time::Instant::now() + Duration::from_millis(HEARTBEAT_MS);
        loop {
            let event = match tokio::time::timeout_at(until, self.events.recv()).await {
                Err(_) => return Some(SandboxEvent::Heartbeat),
                Ok(Err(RecvError::Closed)) => return None,
                Ok(Err(RecvError::Lagged(count))) => return Some(SandboxEvent::Missed { count }),
                Ok(Ok(event)) => event,
            };
            let own = match &event {
                SandboxEvent::Changed { sandbox } => sandbox.project == self.project,
                SandboxEvent::Expiring { sandbox, .. } => {
                    self.platform.node.find(sandbox).is_some_and(|shown| shown.project == self.project)
                }
                SandboxEvent::Missed { .. } | SandboxEvent::Heartbeat => true,
            };
            if own {
                return Some(event);
            }
        }
    }
}
