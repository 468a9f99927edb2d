//! Converts sandboxes into the representation of E2B's API.

use std::sync::Arc;

use api::account::Role;
use api::sandbox::{OnTimeout, Sandbox, SandboxState};
use axum::http::HeaderMap;
use axum::http::header::HOST;
use node::clock;
use serde_json::{Value, json};

use control::platform::Platform;

use super::Adapter;
use super::time::rfc3339;

/// Version of E2B's agent whose features this server supports. Clients decide by this version which requests
/// they send.
pub const AGENT_VERSION: &str = "0.6.13";
/// Value of a field that older clients display but do not use.
const CLIENT: &str = "bellglass";

/// E2B's name for its template `base`, and the name of the corresponding Bellglass template. The Bellglass
/// template `base` does not correspond to it, because its commands run as a user with a different name and
/// home directory.
const NAMES: (&str, &str) = ("base", "workstation");

/// Converts a template name that an E2B client sent into the Bellglass name. Removes the tag after the colon,
/// because Bellglass templates have only one version.
pub fn ours(template: &str) -> &str {
    let name = template.split(':').next().unwrap_or_default();
    if name == NAMES.0 { NAMES.1 } else { name }
}

/// Converts the Bellglass name of a template into the name that E2B's clients use.
pub fn theirs(template: &str) -> &str {
    if template == NAMES.1 { NAMES.0 } else { template }
}

/// Returns the response to a create or connect request: the access tokens and the address of a sandbox.
pub(crate) fn opened(adapter: &Adapter, sandbox: &Sandbox, headers: &HeaderMap) -> Value {
    let (_, ports) = adapter.platform.node.ports(&sandbox.id).unwrap_or_default();
    let reached = headers.get(HOST).and_then(|value| value.to_str().ok()).unwrap_or_default();
    json!({
        "sandboxID": sandbox.id,
        "templateID": theirs(&sandbox.template),
        "alias": theirs(&sandbox.template),
        "clientID": CLIENT,
        "envdVersion": AGENT_VERSION,
        "envdAccessToken": ports.agent.reveal(),
        "trafficAccessToken": ports.traffic.reveal(),
        "domain": adapter.ports.domain.authority(reached, false),
    })
}

/// Returns the details of a sandbox. The sandbox's agent token permits running commands, so the details
/// include the token only for callers that may run commands.
pub(crate) fn detailed(adapter: &Adapter, sandbox: &Sandbox, headers: &HeaderMap, role: Role) -> Value {
    let mut shown = listed(&adapter.platform, sandbox);
    let opened = opened(adapter, sandbox, headers);
    let may_run = role >= Role::Write || api::defence::is_off("H-23");
    for name in ["domain"].into_iter().chain(may_run.then_some("envdAccessToken")) {
        put(&mut shown, name, opened.get(name).cloned().unwrap_or_default());
    }
    put(&mut shown, "allowInternetAccess", sandbox.policy.open.into());
    let on_timeout = match sandbox.on_timeout {
        OnTimeout::Stop => "kill",
        OnTimeout::Pause => "pause",
    };
    let resumes = adapter.platform.node.auto_resume(&sandbox.id).is_some_and(|auto| auto.enabled);
    put(&mut shown, "lifecycle", json!({ "autoResume": resumes, "onTimeout": on_timeout }));
    shown
}

/// Returns a sandbox as an item of a list, without access tokens.
pub fn listed(platform: &Arc<Platform>, sandbox: &Sandbox) -> Value {
    let left = platform.node.time_left(&sandbox.id).unwrap_or_default();
    let limits = sandbox.limits;
    json!({
        "sandboxID": sandbox.id,
        "templateID": theirs(&sandbox.template),
        "alias": theirs(&sandbox.template),
        "clientID": CLIENT,
        "envdVersion": AGENT_VERSION,
        "startedAt": rfc3339(sandbox.created_at_ms),
        "endAt": rfc3339(clock::wall_ms().saturating_add(clock::millis(left))),
        "cpuCount": limits.cpu_millis.div_ceil(1000),
        "memoryMB": limits.memory_bytes >> 20,
        "diskSizeMB": limits.disk_bytes >> 20,
        "metadata": sandbox.labels,
        "state": state(sandbox),
    })
}

/// Returns the state of a sandbox. E2B's clients know only two states: running and paused.
pub fn state(sandbox: &Sandbox) -> &'static str {
    if sandbox.state == SandboxState::Paused { "paused" } else { "running" }
}

/// Sets a field of a JSON object.
pub fn put(object: &mut Value, name: &str, value: Value) {
    if let Some(object) = object.as_object_mut() {
        object.insert(name.to_owned(), value);
    }
}
