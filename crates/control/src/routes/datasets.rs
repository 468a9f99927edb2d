//! Datasets: put, list, remove.

use std::sync::Arc;

use api::Error;
use api::account::Role;
use api::dataset::{Dataset, check_name};
use api::server::Page;
use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;

use super::files::flow::{Coming, promised};
use crate::audit::Act;
use crate::caller::{At, Caller};
use crate::fault::Answer;
use crate::output::place;
use crate::platform::Platform;

/// Keeps a file under a name, to be put into sandboxes. It takes the place of the one before when all of it has come.
#[utoipa::path(put, path = "/v1/datasets/{name}", params(("name" = String, Path), ("content-digest" = Option<String>, Header, description = "`sha-256=:…:` of all bytes")), request_body(content = Vec<u8>, content_type = "application/octet-stream"), security(("key" = [])), responses((status = 200, body = Dataset), (status = "default", body = Error)))]
pub async fn put(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At(name): At<String>,
    request: Request,
) -> Answer<Json<Dataset>> {
    caller.require(Role::Write)?;
    check_name(&name)?;
    let sha256 = promised(request.headers())?;
    let mut coming = Coming::of(request)?;
    let _place = place(&caller.share)?;
    platform.note(&caller, Act::DatasetPut, |entry| entry.detail(&name));
    let (project, quota) = (&caller.key.project, caller.quota.disk_bytes);
    let mut putting = platform.node.datasets().begin(project, &name, sha256, quota).await?;
    while let Some(bytes) = coming.next().await? {
        if let Err(error) = putting.push(&bytes).await {
            return Err(coming.refuse(error).await);
        }
    }
    Ok(Json(putting.finish().await?))
}

/// The project's datasets, by name.
#[utoipa::path(get, path = "/v1/datasets", security(("key" = [])), responses((status = 200, body = Page<Dataset>), (status = "default", body = Error)))]
pub async fn list(caller: Caller, State(platform): State<Arc<Platform>>) -> Answer<Json<Page<Dataset>>> {
    caller.require(Role::Read)?;
    let _place = place(&caller.share)?;
    Ok(Json(Page { items: platform.node.datasets().list(&caller.key.project).await?, next: None }))
}

/// Removes a dataset. One that is not there is fine; what was put into sandboxes stays there.
#[utoipa::path(delete, path = "/v1/datasets/{name}", params(("name" = String, Path)), security(("key" = [])), responses((status = 204), (status = "default", body = Error)))]
pub async fn remove(
    caller: Caller,
    State(platform): State<Arc<Platform>>,
    At(name): At<String>,
) -> Answer<StatusCode> {
    caller.require(Role::Write)?;
    check_name(&name)?;
    platform.note(&caller, Act::DatasetRemove, |entry| entry.detail(&name));
    platform.node.datasets().remove(&caller.key.project, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}
