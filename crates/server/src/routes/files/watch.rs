//! Event streams about changed files.

use std::sync::Arc;

use api::Error;
use api::files::{FileAsk, WatchLine};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;

use super::flow::{StreamGuard, told};
use super::query::{FilePathQuery, FileUserQuery, FilesQuery};
use super::target::FilesTarget;
use crate::authority::{Caller, Read};
use crate::extract::{Path, SandboxPath};
use crate::output::lines;
use crate::rejection::Answer;
use control::platform::Platform;

/// Watch a file or directory
///
/// Streams changes from now on, one JSON object per line, beginning with `watching`. If events were dropped, the stream reports `overflow`;
/// then list the directory again.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{sandbox}/files/watch",
    operation_id = "watchFiles",
    tag = "files",
    params(
        SandboxPath,
        FileUserQuery,
        FilePathQuery,
        ("deep" = Option<bool>, Query, description = "Include subdirectories. Default false"),
    ),
    security(("key" = [])),
    responses(
        (status = 200, body = WatchLine, content_type = "application/x-ndjson"),
        (status = "default", body = Error),
    )
)]
pub async fn watch(
    caller: Caller<Read>,
    State(platform): State<Arc<Platform>>,
    Path(SandboxPath { sandbox: named }): Path<SandboxPath>,
    mut query: FilesQuery,
) -> Answer<Response> {
    let ask = FileAsk::Watch { path: query.path("path")?, deep: query.flag("deep")? };
    let files = query.end()?;
    let place = caller.share.stream()?;
    let call = FilesTarget { named: &named, files }.call(&caller, &platform).await?;
    let watching = call.files().watch(&ask).await?;
    Ok(lines(StatusCode::OK, told(StreamGuard::new(platform, call, place), watching)))
}
