//! Sandboxes in E2B's control API: create, connect, kill, timeout, metrics, logs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::limits::{DEADLINE_MS_MAX, Limits, WantedLimits};
use api::sandbox::{CreateSandbox, OnTimeout, Sandbox, SandboxState};
use api::{Error, ErrorCode};
use axum::Json;
use axum::extract::{OriginalUri, Path, State};
use axum::http::{HeaderMap, StatusCode};
use node::{AutoResume, clock};
use serde::Deserialize;
use serde_json::{Value, json};

use control::account::Rate;
use control::audit::Act;
use control::platform::{NewSandbox, Platform};
use server::authority::{Caller, Grant, Read, Write};
use server::extract::Idempotency;

use super::Adapter;
use super::fault::{By, E2bResult, Given, not_offered};
use super::network::{Network, opened};
use super::shown::{self, ours};
use super::time::rfc3339;

/// Default lifetime of a sandbox, in seconds. The older route has a shorter default.
const TIMEOUT_S: u64 = 300;
const TIMEOUT_V1_S: u64 = 15;
/// Minimum remaining lifetime after a request other than `connect` resumes a sandbox.
const RESUMED_MIN_MS: u64 = 300_000;
/// Maximum number of times that a connect request tries to resume a sandbox. One attempt may not be enough,
/// because the sandbox's own timeout can pause the sandbox again at any time.
const CONNECT_TRIES: usize = 3;
/// Advice in the error for a request to pause a sandbox without keeping its memory.
const NO_MEMORY: &str = "Omit the option. A paused sandbox always keeps its memory.";
/// Interval between the two measurements from which the CPU usage is computed.
const MEASURED_FOR: Duration = Duration::from_millis(100);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CreateSandboxRequest {
    #[serde(rename = "templateID")]
    template: String,
    timeout: Option<u64>,
    #[serde(default)]
    metadata: Option<BTreeMap<String, String>>,
    #[serde(default)]
    env_vars: Option<BTreeMap<String, String>>,
    #[serde(default)]
    auto_pause: Option<bool>,
    #[serde(default)]
    auto_pause_memory: Option<bool>,
    #[serde(default)]
    auto_resume: Option<Value>,
    #[serde(default, rename = "allow_internet_access")]
    internet: Option<bool>,
    #[serde(default)]
    network: Option<Network>,
    #[serde(default)]
    mcp: Option<Value>,
    #[serde(default)]
    iam: Option<Value>,
    #[serde(default)]
    volume_mounts: Option<Vec<Value>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct SandboxUpdateRequest {
    timeout: Option<u64>,
    duration: Option<u64>,
    memory: Option<bool>,
}

impl CreateSandboxRequest {
    /// Rejects unsupported options. The error names the option.
    fn check(&self) -> E2bResult<()> {
        let is = |value: &Option<Value>| value.as_ref().is_some_and(|value| !value.is_null());
        let without_memory = self.auto_pause == Some(true) && self.auto_pause_memory == Some(false);
        for (what, asked, instead) in [
            ("autoPauseMemory: false", without_memory, NO_MEMORY),
            ("mcp", is(&self.mcp), "Use MCP at /mcp of this server: docs/guides/mcp.md."),
            ("iam", is(&self.iam), "Bind a secret to a host with a policy: docs/guides/secrets.md."),
            (
                "volumeMounts",
                self.volume_mounts.as_ref().is_some_and(|all| !all.is_empty()),
                "Store the files as a dataset that is copied into the sandbox, or write the files to the sandbox after creating it.",
            ),
        ] {
            if asked {
                return Err(not_offered(&format!("option {what}"), instead));
            }
        }
        Ok(())
    }
}

/// Creates a sandbox.
pub async fn create(
    By(caller): By<Caller<Write>>,
    State(adapter): State<Adapter>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
    By(Idempotency(key)): By<Idempotency>,
    Given(ask): Given<CreateSandboxRequest>,
) -> E2bResult<(StatusCode, Json<Value>)> {
    let platform = &adapter.platform;
    caller.pace(Rate::Create)?;
    ask.check()?;
    let usual = if uri.path().starts_with("/v2/") { TIMEOUT_S } else { TIMEOUT_V1_S };
    let network = ask.network.clone().unwrap_or_default();
    let ttl_ms = lifetime(ask.timeout.unwrap_or(usual));
    let resumes = ask.auto_resume.as_ref().is_some_and(|value| value["enabled"] == true);
    let auto_resume = AutoResume { enabled: resumes, ttl_min_ms: RESUMED_MIN_MS };
    let request = CreateSandbox {
        template: ours(&ask.template).to_owned(),
        limits: WantedLimits { ttl_ms: Some(ttl_ms), ..WantedLimits::default() },
        // Set the idle time to its maximum, so that only the time to live ends the sandbox.
        idle_ms: DEADLINE_MS_MAX,
        on_timeout: if ask.auto_pause == Some(true) { OnTimeout::Pause } else { OnTimeout::Stop },
        labels: ask.metadata.unwrap_or_default(),
        env: ask.env_vars.unwrap_or_default(),
        // Older clients always request internet access. If the project may not have open egress, the sandbox
        // gets its default policy instead of an error.
        policy: network.policy(ask.internet.filter(|internet| !internet || caller.quota.open))?,
        ..CreateSandbox::default()
    };
    let (sandbox, _) =
        platform.create(&caller.account, NewSandbox { request, idempotency: key, auto_resume }).await?;
    control::trace::about(&sandbox.id);
    // If the request is repeated and the sandbox was paused in the meantime, leave the sandbox paused.
    if network.allow_public_traffic != Some(false) && sandbox.state != SandboxState::Paused {
        opened(platform, &caller, &sandbox.id, true).await?;
    }
    Ok((StatusCode::CREATED, Json(shown::opened(&adapter, &sandbox, &headers))))
}

/// Returns the access tokens of a sandbox. Resumes the sandbox if it is paused, and extends its lifetime if
/// it would otherwise end earlier than requested.
pub async fn connect(
    By(caller): By<Caller<Write>>,
    State(adapter): State<Adapter>,
    Path(named): Path<String>,
    headers: HeaderMap,
    Given(ask): Given<SandboxUpdateRequest>,
) -> E2bResult<(StatusCode, Json<Value>)> {
    let platform = &adapter.platform;
    let sandbox = alive(platform, &caller, &named).await?;
    let wanted = Duration::from_millis(lifetime(ask.timeout.unwrap_or(TIMEOUT_S)));
    Limits { ttl_ms: clock::millis(wanted), ..sandbox.limits }.check()?;
    let mut status = StatusCode::OK;
    for _ in 0..CONNECT_TRIES {
        if platform.node.resume(&sandbox.id, Some(wanted)).await? {
            platform.note(&caller, Act::Resume, |entry| entry.sandbox(&sandbox.id));
            platform.saved(sandbox.clone()).await;
            status = StatusCode::CREATED;
            break;
        }
        live_at_least(platform, &caller, &sandbox, wanted).await?;
        // The timeout may have paused the sandbox between these two calls.
        if platform.node.find(&sandbox.id).is_none_or(|shown| shown.state != SandboxState::Paused) {
            break;
        }
    }
    Ok((status, Json(shown::opened(&adapter, &sandbox, &headers))))
}

/// Connects to a sandbox. The oldest clients use this route.
pub async fn resume(
    caller: By<Caller<Write>>,
    adapter: State<Adapter>,
    named: Path<String>,
    headers: HeaderMap,
    ask: Given<SandboxUpdateRequest>,
) -> E2bResult<(StatusCode, Json<Value>)> {
    let (_, body) = connect(caller, adapter, named, headers, ask).await?;
    Ok((StatusCode::CREATED, body))
}

/// Returns the details of a sandbox.
pub async fn look(
    By(caller): By<Caller<Read>>,
    State(adapter): State<Adapter>,
    Path(named): Path<String>,
    headers: HeaderMap,
) -> E2bResult<Json<Value>> {
    let platform = &adapter.platform;
    let sandbox = alive(platform, &caller, &named).await?;
    Ok(Json(shown::detailed(&adapter, &sandbox, &headers, caller.key.role)))
}

/// Stops a sandbox.
pub async fn kill(
    By(caller): By<Caller<Write>>,
    State(platform): State<Arc<Platform>>,
    Path(named): Path<String>,
) -> E2bResult<StatusCode> {
    let sandbox = alive(&platform, &caller, &named).await?;
    platform.stop(&caller, sandbox.id.as_str()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Sets the remaining lifetime of a sandbox, to a longer or a shorter value.
pub async fn timeout(
    By(caller): By<Caller<Write>>,
    State(platform): State<Arc<Platform>>,
    Path(named): Path<String>,
    Given(ask): Given<SandboxUpdateRequest>,
) -> E2bResult<StatusCode> {
    let seconds =
        ask.timeout.ok_or_else(|| Error::invalid("timeout is missing", "Send `timeout`, in seconds."))?;
    let sandbox = awake(&platform, &caller, &named).await?;
    live_for(&platform, &caller, &sandbox, Duration::from_millis(lifetime(seconds))).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Extends the remaining lifetime of a sandbox if the requested lifetime is longer.
pub async fn refresh(
    By(caller): By<Caller<Write>>,
    State(platform): State<Arc<Platform>>,
    Path(named): Path<String>,
    Given(ask): Given<SandboxUpdateRequest>,
) -> E2bResult<StatusCode> {
    let sandbox = awake(&platform, &caller, &named).await?;
    let wanted = Duration::from_millis(lifetime(ask.duration.unwrap_or(TIMEOUT_V1_S)));
    live_at_least(&platform, &caller, &sandbox, wanted).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns the current resource usage of a sandbox as a list with a single measurement, because the server
/// stores no earlier measurements.
pub async fn metrics(
    By(caller): By<Caller<Read>>,
    State(platform): State<Arc<Platform>>,
    Path(named): Path<String>,
) -> E2bResult<Json<Value>> {
    let sandbox = alive(&platform, &caller, &named).await?;
    let before = platform.node.usage(&sandbox.id).await?;
    let began = tokio::time::Instant::now();
    tokio::time::sleep(MEASURED_FOR).await;
    let now = platform.node.usage(&sandbox.id).await?;
    let cores = sandbox.limits.cpu_millis.div_ceil(1000).max(1);
    let took_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX).max(1);
    let used = now.cpu_us.saturating_sub(before.cpu_us).saturating_mul(10_000) / took_us / cores;
    let at_ms = clock::wall_ms();
    Ok(Json(json!([{
        "timestamp": rfc3339(at_ms),
        "timestampUnix": at_ms / 1000,
        "cpuCount": cores,
        "cpuUsedPct": Value::from(used as f64 / 100.0),
        "memUsed": now.sandbox_memory_bytes,
        "memTotal": sandbox.limits.memory_bytes,
        "memCache": 0,
        // Disk usage is not measured from outside; only the limit is known.
        "diskUsed": 0,
        "diskTotal": sandbox.limits.disk_bytes,
    }])))
}

/// Returns the recent requests to a sandbox as log lines. Only requests whose traces are still retained are
/// included.
pub async fn logs(
    By(caller): By<Caller<Read>>,
    State(platform): State<Arc<Platform>>,
    Path(named): Path<String>,
) -> E2bResult<Json<Value>> {
    let sandbox = platform.sandbox(&caller, &named).await?;
    let traces = platform.traces.recorder.traces(&sandbox.id, None);
    let entries: Vec<_> = traces
        .iter()
        .map(|trace| {
            let name = trace.steps.first().map(|step| step.name.as_str()).unwrap_or_default();
            let at = rfc3339(trace.at_ms);
            json!({ "timestamp": at, "message": name, "line": name, "level": "info", "fields": {} })
        })
        .collect();
    Ok(Json(json!({ "logs": entries, "logEntries": entries })))
}

/// Pauses a sandbox.
pub async fn pause(
    By(caller): By<Caller<Write>>,
    State(platform): State<Arc<Platform>>,
    Path(named): Path<String>,
    Given(ask): Given<SandboxUpdateRequest>,
) -> E2bResult<StatusCode> {
    let sandbox = alive(&platform, &caller, &named).await?;
    if ask.memory == Some(false) {
        return Err(not_offered("pausing without memory", NO_MEMORY));
    }
    platform.note(&caller, Act::Pause, |entry| entry.sandbox(&sandbox.id));
    if !platform.node.pause(&sandbox.id).await? {
        let error = Error {
            code: ErrorCode::Conflict,
            ..Error::invalid("the sandbox is already paused", "To resume the sandbox, connect to it.")
        };
        return Err(error.into());
    }
    platform.saved(sandbox).await;
    Ok(StatusCode::NO_CONTENT)
}

/// Rejects requests for snapshots, which are not supported.
pub async fn no_snapshots(_: By<Caller<Read>>) -> E2bResult<StatusCode> {
    Err(not_offered(
        "snapshots",
        "Build a template with the contents that sandboxes need: docs/guides/templates.md.",
    ))
}

/// Rejects requests for volumes, which are not supported.
pub async fn no_volumes(_: By<Caller<Read>>) -> E2bResult<StatusCode> {
    Err(not_offered("volumes", "Store files as a dataset or in a session: docs/guides/files.md."))
}

/// Rejects requests for E2B's secrets, which are not supported.
pub async fn no_secrets(_: By<Caller<Read>>) -> E2bResult<StatusCode> {
    Err(not_offered("secrets of E2B's API", "Use `bellglass secret`: docs/guides/secrets.md."))
}

/// Converts a lifetime to milliseconds, and raises it to the minimum if it is too short.
fn lifetime(seconds: u64) -> u64 {
    seconds.saturating_mul(1000).max(Limits::MIN.ttl_ms)
}

async fn live_for(platform: &Platform, caller: &Grant, sandbox: &Sandbox, ttl: Duration) -> E2bResult<()> {
    let limits = Limits { ttl_ms: clock::millis(ttl), ..sandbox.limits };
    limits.check()?;
    platform.note(caller, Act::Lease, |entry| entry.sandbox(&sandbox.id));
    let shown = platform.node.live_for(&sandbox.id, ttl).await?;
    // The node has the authoritative record. If the store is unavailable now, it is updated later.
    let _ = platform.store.moved(&shown).await;
    Ok(())
}

/// Extends the lifetime of a sandbox, but never shortens it.
async fn live_at_least(
    platform: &Platform,
    caller: &Grant,
    sandbox: &Sandbox,
    ttl: Duration,
) -> E2bResult<()> {
    match platform.node.time_left(&sandbox.id) {
        Some(left) if left < ttl => live_for(platform, caller, sandbox, ttl).await,
        Some(_) | None => Ok(()),
    }
}

/// Returns a sandbox that has not ended and is not stopping.
async fn alive(platform: &Platform, caller: &Grant, named: &str) -> E2bResult<Sandbox> {
    let sandbox = platform.running(caller, named).await?;
    if sandbox.state == SandboxState::Stopping {
        return Err(node::not_running(&sandbox).into());
    }
    Ok(sandbox)
}

/// Returns a sandbox that is running. If the sandbox is paused and any request may resume it, resumes it
/// first.
pub async fn awake(platform: &Platform, caller: &Grant, named: &str) -> E2bResult<Sandbox> {
    let sandbox = alive(platform, caller, named).await?;
    drop(platform.node.call_if_resumable(&sandbox.id).await?);
    Ok(sandbox)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_have_names_of_ours() {
        assert_eq!((ours("base"), ours("base:default")), ("workstation", "workstation"));
        assert_eq!(ours("code-interpreter-v1"), "code-interpreter-v1");
        assert_eq!((lifetime(0), lifetime(300)), (Limits::MIN.ttl_ms, 300_000));
    }
}
