//! Health, metrics, and the API description.

use std::sync::{Arc, LazyLock};

use api::server::Health;
use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use bytes::Bytes;

use crate::authority::{Admin, Anyone, Caller};
use crate::rejection::Answer;
use control::platform::Platform;

/// Check health
///
/// Reports whether a test sandbox was recently started, ran code and was stopped without errors. The request needs no API key.
#[utoipa::path(
    get,
    path = "/healthz",
    operation_id = "getHealth",
    tag = "machine",
    responses((status = 200, body = Health), (status = 503, body = Health))
)]
pub async fn health(_: Anyone, State(platform): State<Arc<Platform>>) -> impl IntoResponse {
    let health = platform.health().await;
    let status = if health.ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(health))
}

/// Get metrics
///
/// Returns metrics in the OpenMetrics format, for Prometheus.
#[utoipa::path(
    get,
    path = "/metrics",
    operation_id = "getMetrics",
    tag = "machine",
    security(("key" = [])),
    responses(
        (status = 200, body = String, content_type = "application/openmetrics-text"),
        (status = "default", body = api::Error),
    )
)]
pub async fn metrics(_: Caller<Admin>, State(platform): State<Arc<Platform>>) -> Answer<impl IntoResponse> {
    let kind = [(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")];
    Ok((kind, platform.metrics.render(&platform.node.status())))
}

/// Get the API description
///
/// Returns this OpenAPI document. The request needs no API key.
#[utoipa::path(
    get,
    path = "/openapi.json",
    operation_id = "getApiDescription",
    tag = "machine",
    responses((status = 200, body = serde_json::Value))
)]
pub async fn description(_: Anyone) -> impl IntoResponse {
    // Cache the text, because this route is open to all callers and building the text takes milliseconds.
    static TEXT: LazyLock<Bytes> =
        LazyLock::new(|| serde_json::to_vec(&super::description()).unwrap_or_default().into());
    let text = if api::defence::is_off("H-36") {
        serde_json::to_vec(&super::description()).unwrap_or_default().into()
    } else {
        TEXT.clone()
    };
    ([(header::CONTENT_TYPE, "application/json")], text)
}
