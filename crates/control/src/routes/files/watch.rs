//! What happens to files, told as it happens.

use std::sync::Arc;

use api::Error;
use api::account::Role;
use api::files::{FileAsk, WatchLine};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;

use super::flow::{Held, told};
use super::query::Query;
use crate::caller::{At, Caller};
use crate::fault::Answer;
use crate::output::{lines, place};
use crate::platform::Platform;

/// What happens to a directory or a file from now on, with `deep` also below its directories: one JSON object a line, the first
/// `watching`. More than can be kept is told as `overflow`: then look again at what is there.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/files/watch", params(("sandbox" = String, Path), ("path" = String, Query), ("deep" = Option<bool>, Query)), security(("key" = [])), responses((status = 200, body = WatchLine, content_type = "application/x-ndjson"), (status = "default", body = Error)))]
pub async fn watch(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At(named): At<String>,
    mut query: Query,
) -> Answer<Response> {
    caller.require(Role::Read)?;
    let ask = FileAsk::Watch { path: query.path("path")?, deep: query.flag("deep")? };
    query.end()?;
    let place = place(&caller.share)?;
    let call = super::called(&caller, &platform, &named).await?;
    let watching = call.files().watch(&ask).await?;
    Ok(lines(StatusCode::OK, told(Held::new(platform, call, place), watching)))
}
