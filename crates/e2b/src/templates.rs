//! Routes that list and look up templates, in the representation of E2B's API.

use std::sync::Arc;

use api::Error;
use api::limits::Limits;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use node::template::{Store, Template};
use serde_json::{Value, json};

use control::platform::Platform;
use server::authority::{Caller, Read};

use super::fault::{By, E2bResult, not_offered};
use super::shown::{AGENT_VERSION, ours, theirs};
use super::time::rfc3339;

/// Lists all templates.
pub async fn list(_: By<Caller<Read>>, State(platform): State<Arc<Platform>>) -> E2bResult<Json<Value>> {
    let all = Store::new(platform.node.data()).list()?;
    Ok(Json(all.iter().map(shown).collect()))
}

/// Returns the template with this name, if it exists.
pub async fn alias(
    _: By<Caller<Read>>,
    State(platform): State<Arc<Platform>>,
    Path(name): Path<String>,
) -> E2bResult<Json<Value>> {
    if !Store::new(platform.node.data()).has(ours(&name)) {
        let shown: String = name.chars().take(64).collect();
        return Err(Error::not_found(format!("there is no template {shown:?}")).into());
    }
    Ok(Json(json!({ "templateID": theirs(ours(&name)), "public": false })))
}

/// Rejects requests that are not supported: templates have no tags, and they can be removed only on the
/// machine itself.
pub async fn not_here(_: By<Caller<Read>>) -> E2bResult<StatusCode> {
    let instead = "Build with a newer SDK, give each template a separate name, and remove templates with `bellglass template remove`.";
    Err(not_offered("template tags, the older build API, and removing templates through the API", instead))
}

fn shown(template: &Template) -> Value {
    let (name, at) = (theirs(&template.name), rfc3339(template.built_at.saturating_mul(1000)));
    let limits = template.limits.over(Limits::default());
    json!({
        "templateID": name,
        "buildID": name,
        "aliases": [name],
        "names": [name],
        "public": false,
        "cpuCount": limits.cpu_millis.div_ceil(1000),
        "memoryMB": limits.memory_bytes >> 20,
        "diskSizeMB": limits.disk_bytes >> 20,
        "createdAt": at,
        "updatedAt": at,
        "createdBy": null,
        "lastSpawnedAt": null,
        "spawnCount": 0,
        "buildCount": 1,
        "buildStatus": "ready",
        "envdVersion": AGENT_VERSION,
    })
}
