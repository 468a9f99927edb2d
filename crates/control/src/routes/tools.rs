//! Tool sets: their definitions, in the forms that LLM interfaces take, and their instructions.

use api::Error;
use api::account::Role;
use api::session::ToolSet;
use axum::Json;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::Value;
use tools::Format;
use tools::publish::Facts;

use crate::caller::{Asked, Caller};
use crate::fault::Answer;

/// Which tools, and in which form.
#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Which {
    /// The tool set.
    set: ToolSet,
    /// `openai`, `anthropic`, `mcp`, or `belljar`, which has their categories.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    format: Format,
}

/// Of which tool set.
#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Whose {
    /// The tool set.
    set: ToolSet,
}

/// The tools of a set, as an LLM interface takes them.
#[utoipa::path(get, path = "/v1/tools", params(Which), security(("key" = [])), responses((status = 200, body = Vec<Value>), (status = "default", body = Error)))]
pub async fn list(caller: Caller, Asked(which): Asked<Which>) -> Answer<Json<Vec<Value>>> {
    caller.require(Role::Read)?;
    Ok(Json(tools::published(which.set, &Facts::default(), which.format)))
}

/// The instructions of a set, for the system prompt of a model.
#[utoipa::path(get, path = "/v1/tools/prompt", params(Whose), security(("key" = [])), responses((status = 200, body = String, content_type = "text/plain"), (status = "default", body = Error)))]
pub async fn prompt(caller: Caller, Asked(whose): Asked<Whose>) -> Answer<Response> {
    caller.require(Role::Read)?;
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], tools::prompt(whose.set)).into_response())
}
