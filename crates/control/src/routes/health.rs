//! Whether it works, what is counted, and what the API is.

use std::sync::Arc;

use api::account::Role;
use api::server::Health;
use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;

use crate::caller::Caller;
use crate::fault::Answer;
use crate::platform::Platform;

/// Whether all of it works: a sandbox was lately started, code ran in it, and it was stopped. Needs no key.
#[utoipa::path(get, path = "/healthz", responses((status = 200, body = Health), (status = 503, body = Health)))]
pub async fn health(State(platform): State<Arc<Platform>>) -> impl IntoResponse {
    let health = platform.health().await;
    let status = if health.ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(health))
}

/// What is counted, in the form that Prometheus reads.
#[utoipa::path(get, path = "/metrics", security(("key" = [])), responses((status = 200, body = String, content_type = "application/openmetrics-text"), (status = "default", body = api::Error)))]
pub async fn metrics(caller: Caller, State(platform): State<Arc<Platform>>) -> Answer<impl IntoResponse> {
    caller.require(Role::Admin)?;
    let kind = [(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")];
    Ok((kind, platform.metrics.render(&platform.node.status())))
}

/// This description. Needs no key.
#[utoipa::path(get, path = "/openapi.json", responses((status = 200, body = serde_json::Value)))]
pub async fn description() -> impl IntoResponse {
    Json(super::description())
}
