//! Tool sets: their definitions, in the formats of LLM APIs, and their instructions.

use api::Error;
use api::session::ToolSet;
use axum::Json;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::Value;
use tools::Format;
use tools::publish::Facts;

use crate::authority::{Caller, Read};
use crate::extract::Query;
use crate::rejection::Answer;

/// Query of the route that lists tools.
#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Which {
    /// Tool set.
    set: ToolSet,
    /// Format: `bellglass` (default; includes categories), `openai`, `anthropic` or `mcp`.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    format: Format,
}

/// Query of the route that returns instructions.
#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Whose {
    /// Tool set.
    set: ToolSet,
}

/// List the tools of a set
///
/// Returns the tool definitions of a set, in the format of an LLM API.
#[utoipa::path(
    get,
    path = "/v1/tools",
    operation_id = "listTools",
    tag = "tools",
    params(Which),
    security(("key" = [])),
    responses((status = 200, body = Vec<Value>), (status = "default", body = Error))
)]
pub async fn list(_: Caller<Read>, Query(which): Query<Which>) -> Answer<Json<Vec<Value>>> {
    Ok(Json(tools::published(which.set, &Facts::default(), which.format)))
}

/// Get the instructions of a tool set
///
/// Returns text for the system prompt of a model.
#[utoipa::path(
    get,
    path = "/v1/tools/prompt",
    operation_id = "getToolPrompt",
    tag = "tools",
    params(Whose),
    security(("key" = [])),
    responses((status = 200, body = String, content_type = "text/plain"), (status = "default", body = Error))
)]
pub async fn prompt(_: Caller<Read>, Query(whose): Query<Whose>) -> Answer<Response> {
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], tools::prompt(whose.set)).into_response())
}
