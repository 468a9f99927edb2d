//! Datasets: put, list, remove.

use std::sync::Arc;

use api::dataset::{Dataset, check_name};
use api::server::Page;
use api::{Error, ErrorCode};
use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;

use super::files::flow::{Coming, length, promised};
use crate::authority::{Caller, Grant, Read, Write};
use crate::extract::Path;
use crate::list::Listing;
use crate::rejection::{Answer, Rejection};
use control::audit::Act;
use control::platform::Platform;

/// Upload a dataset
///
/// An existing dataset is replaced atomically once the upload is complete. A dataset has at most 8 GiB, a project at most 1,000 datasets.
#[utoipa::path(
    put,
    path = "/v1/datasets/{name}",
    operation_id = "uploadDataset",
    tag = "datasets",
    params(
        ("name" = String, Path, description = "Dataset name"),
        (
            "content-digest" = Option<String>, Header,
            description = "SHA-256 of the content, as `sha-256=:…:`, which the server verifies"
        ),
    ),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    security(("key" = [])),
    responses((status = 200, body = Dataset), (status = "default", body = Error))
)]
pub async fn put(
    caller: Caller<Write>,
    State(platform): State<Arc<Platform>>,
    Path(name): Path<String>,
    request: Request,
) -> Answer<Json<Dataset>> {
    check_name(&name)?;
    let (sha256, length) = (promised(request.headers())?, length(request.headers()));
    let mut coming = Coming::of(request)?;
    let _place = caller.share.stream()?;
    let begun = platform.node.datasets().begin(&caller.key.project, &name, sha256, length).await;
    let mut putting = match begun {
        Ok(putting) => putting,
        Err(error) => return Err(refused(&platform, &caller, coming.refuse(error).await)),
    };
    while let Some(bytes) = coming.next().await? {
        if let Err(error) = putting.push(&bytes).await {
            return Err(refused(&platform, &caller, coming.refuse(error).await));
        }
    }
    let dataset = putting.finish().await?;
    platform.note(&caller, Act::DatasetPut, |entry| entry.detail(&name));
    Ok(Json(dataset))
}

/// Returns an error unchanged. If the cause is the project's quota, also records it in the audit log.
pub fn refused(platform: &Platform, caller: &Grant, fault: Rejection) -> Rejection {
    if fault.error().code == ErrorCode::QuotaExceeded {
        platform.note(caller, Act::QuotaRefused, |entry| entry.detail("disk_bytes"));
    }
    fault
}

/// List datasets
///
/// Lists the datasets of the project, sorted by name.
#[utoipa::path(
    get,
    path = "/v1/datasets",
    operation_id = "listDatasets",
    tag = "datasets",
    security(("key" = [])),
    responses((status = 200, body = Page<Dataset>), (status = "default", body = Error))
)]
pub async fn list(caller: Caller<Read>, State(platform): State<Arc<Platform>>) -> Answer<Response> {
    let reading = Listing::begin(&caller.share).await?;
    let _place = caller.share.stream()?;
    reading.respond(Page { items: platform.node.datasets().list(&caller.key.project).await?, next: None })
}

/// Delete a dataset
///
/// Succeeds even if the dataset does not exist. Copies in sandboxes remain.
#[utoipa::path(
    delete,
    path = "/v1/datasets/{name}",
    operation_id = "deleteDataset",
    tag = "datasets",
    params(("name" = String, Path, description = "Dataset name")),
    security(("key" = [])),
    responses((status = 204), (status = "default", body = Error))
)]
pub async fn remove(
    caller: Caller<Write>,
    State(platform): State<Arc<Platform>>,
    Path(name): Path<String>,
) -> Answer<StatusCode> {
    check_name(&name)?;
    platform.note(&caller, Act::DatasetRemove, |entry| entry.detail(&name));
    platform.node.datasets().remove(&caller.key.project, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}
