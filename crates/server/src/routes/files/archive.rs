//! Download and upload of many files as one archive. The guest packs and unpacks the archive; this module
//! only forwards its bytes.

use std::sync::Arc;

use api::Error;
use api::files::{ARCHIVE, ARCHIVE_TRAILER, ArchiveReport, FileAnswer, FileAsk};
use api::layer::Compression;
use axum::Json;
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};

use super::change::Change;
use super::content::attachment;
use super::flow::{Coming, StreamGuard, outward};
use super::query::{FilePathQuery, FileUserQuery, FilesQuery};
use super::target::FilesTarget;
use crate::authority::{Caller, Read, Write};
use crate::extract::{Path, SandboxPath};
use crate::rejection::Answer;
use control::audit::Act;
use control::platform::Platform;

/// Download an archive
///
/// Returns a directory with its content, or a file, as a tar archive. With the request header `te: trailers`, the response has a trailer
/// `bellglass-archive` with a summary as JSON.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{sandbox}/files/archive",
    operation_id = "downloadArchive",
    tag = "files",
    params(
        SandboxPath,
        FileUserQuery,
        FilePathQuery,
        (
            "compression" = Option<Compression>, Query,
            description = "Compression of the archive: `none` (default) or `gzip`"
        ),
    ),
    security(("key" = [])),
    responses(
        (status = 200, body = Vec<u8>, content_type = "application/x-tar"),
        (status = "default", body = Error),
    )
)]
pub async fn pack(
    caller: Caller<Read>,
    State(platform): State<Arc<Platform>>,
    Path(SandboxPath { sandbox: named }): Path<SandboxPath>,
    mut query: FilesQuery,
) -> Answer<Response> {
    let (path, compression) = (query.path("path")?, query.compression()?);
    let files = query.end()?;
    let (kind, ending) = match compression {
        Compression::None => (ARCHIVE, ".tar"),
        Compression::Gzip => ("application/gzip", ".tar.gz"),
        Compression::Zstd => ("application/zstd", ".tar.zst"),
    };
    let disposition = attachment(&path, ending);
    let place = caller.share.stream()?;
    let call = FilesTarget { named: &named, files }.call(&caller, &platform).await?;
    let (_, reading) = call.files().read(&FileAsk::Pack { path, compression }).await?;
    let headers = [
        (header::CONTENT_TYPE, kind.to_owned()),
        (header::CONTENT_DISPOSITION, disposition),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".into()),
        (header::CACHE_CONTROL, "no-store".into()),
        (header::TRAILER, ARCHIVE_TRAILER.into()),
    ];
    Ok((headers, outward(StreamGuard::new(platform, call, place), reading)).into_response())
}

/// Upload and extract an archive
///
/// Extracts a tar archive into a directory, which is created if needed. Links that lead out of the directory, devices and similar entries
/// are skipped or rejected.
#[utoipa::path(
    put,
    path = "/v1/sandboxes/{sandbox}/files/archive",
    operation_id = "uploadArchive",
    tag = "files",
    params(
        SandboxPath,
        FileUserQuery,
        FilePathQuery,
        (
            "compression" = Option<Compression>, Query,
            description = "Compression of the archive: `none` (default), `gzip` or `zstd`"
        ),
    ),
    request_body(content = Vec<u8>, content_type = "application/x-tar"),
    security(("key" = [])),
    responses((status = 200, body = ArchiveReport), (status = "default", body = Error))
)]
pub async fn unpack(
    caller: Caller<Write>,
    State(platform): State<Arc<Platform>>,
    Path(SandboxPath { sandbox: named }): Path<SandboxPath>,
    mut query: FilesQuery,
    request: Request,
) -> Answer<Json<ArchiveReport>> {
    let (path, compression) = (query.path("path")?, query.compression()?);
    let files = query.end()?;
    let coming = Coming::of(request)?;
    let (detail, ask) = (path.encode(), FileAsk::Unpack { path, compression });
    let change = Change { act: Act::FileUnpack, detail, ask };
    let answer = change.take_in(&caller, platform, FilesTarget { named: &named, files }, coming).await?;
    let FileAnswer::Unpacked { report } = answer else { return Err(super::unlike(&answer)) };
    Ok(Json(report))
}
