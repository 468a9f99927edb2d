//! Files of a sandbox: get, list, make directory, move, copy, remove, and edit. Submodules handle reading,
//! writing, archives and watches.
//!
//! | module | holds |
//! |---|---|
//! | [`target`] | the sandbox whose files a request uses |
//! | [`change`] | a change, with its entry in the audit log |
//! | [`content`] | download and upload of one file |
//! | [`archive`] | download and upload of many files as an archive |
//! | [`watch`] | events about changed files |
//! | [`flow`] | streamed bodies, with limits |
//! | [`query`] | query strings that contain paths |
//!
//! No code here opens a path, because the guest performs all operations. Reading requires the role `read`,
//! and changes require the role `write`. Each change adds an entry to the audit log.

pub mod archive;
pub mod change;
pub mod content;
pub mod flow;
pub mod query;
pub mod target;
pub mod watch;

use std::sync::Arc;

use api::Error;
use api::files::{
    Counted, EditRequest, FileAnswer, FileAsk, FileInfo, FilePath, HashedFile, Hashing, PAGE_MAX,
};
use api::server::Page;
use axum::Json;
use axum::extract::State;
use axum::response::Response;

use crate::authority::{Caller, Read, Write};
use crate::body::Sent;
use crate::extract::{Path, SandboxPath};
use crate::list::Listing;
use crate::rejection::Answer;
use change::Change;
use control::audit::Act;
use control::platform::Platform;
use query::{FilePathQuery, FileUserQuery, FilesOf, FilesQuery};
use target::FilesTarget;

/// Get file information
///
/// Symlinks are not followed.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{sandbox}/files",
    operation_id = "getFileInfo",
    tag = "files",
    params(SandboxPath, FileUserQuery, FilePathQuery),
    security(("key" = [])),
    responses((status = 200, body = FileInfo), (status = "default", body = Error))
)]
pub async fn look(
    caller: Caller<Read>,
    State(platform): State<Arc<Platform>>,
    Path(SandboxPath { sandbox: named }): Path<SandboxPath>,
    mut query: FilesQuery,
) -> Answer<Json<FileInfo>> {
    let ask = FileAsk::Stat { path: query.path("path")? };
    let files = query.end()?;
    let answer = FilesTarget { named: &named, files }.look(&caller, &platform, &ask).await?;
    let FileAnswer::Info { info } = answer else { return Err(unlike(&answer)) };
    Ok(Json(info))
}

/// List a directory
///
/// Entries are sorted by name and include subdirectories down to `depth`.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{sandbox}/files/list",
    operation_id = "listDirectory",
    tag = "files",
    params(
        SandboxPath,
        FileUserQuery,
        FilePathQuery,
        (
            "depth" = Option<u32>, Query,
            description = "Number of directory levels to list, 1 to 256. Default 1: only the entries of the directory itself"
        ),
        (
            "limit" = Option<u32>, Query, minimum = 1, maximum = 1000,
            description = "Maximum number of entries per page. Default 1,000"
        ),
        (
            "cursor" = Option<String>, Query,
            description = "Value of `next` in the previous page. If absent, the first page is returned"
        ),
    ),
    security(("key" = [])),
    responses((status = 200, body = Page<FileInfo>), (status = "default", body = Error))
)]
pub async fn list(
    caller: Caller<Read>,
    State(platform): State<Arc<Platform>>,
    Path(SandboxPath { sandbox: named }): Path<SandboxPath>,
    mut query: FilesQuery,
) -> Answer<Response> {
    let path = query.path("path")?;
    let depth = query.number("depth")?.unwrap_or(1);
    let (limit, after) = (query.number("limit")?.unwrap_or(PAGE_MAX), query.cursor()?);
    let files = query.end()?;
    let ask = FileAsk::List { path, depth, after, limit };
    let reading = Listing::of_guest(&caller.share).await?;
    let answer = FilesTarget { named: &named, files }.look(&caller, &platform, &ask).await?;
    let FileAnswer::Page { items, more } = answer else { return Err(unlike(&answer)) };
    let last = items.last().filter(|_| more).map(FileInfo::exact).transpose()?;
    let next = last.as_ref().map(query::cursor);
    reading.respond(Page { items, next })
}

/// Hash a file
///
/// Computes the SHA-256 or BLAKE3 hash of a regular file.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{sandbox}/files/hash",
    operation_id = "hashFile",
    tag = "files",
    params(
        SandboxPath,
        FileUserQuery,
        FilePathQuery,
        (
            "digest" = Option<Hashing>, Query,
            description = "Hash in the response: `sha256` (default) or `blake3`"
        ),
    ),
    security(("key" = [])),
    responses((status = 200, body = HashedFile), (status = "default", body = Error))
)]
pub async fn hash(
    caller: Caller<Read>,
    State(platform): State<Arc<Platform>>,
    Path(SandboxPath { sandbox: named }): Path<SandboxPath>,
    mut query: FilesQuery,
) -> Answer<Json<HashedFile>> {
    let ask = FileAsk::Hash { path: query.path("path")?, digest: query.digest()? };
    let files = query.end()?;
    hashed(FilesTarget { named: &named, files }.look(&caller, &platform, &ask).await?)
}

/// Create a directory
///
/// Also creates missing parent directories. Succeeds even if the directory already exists.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{sandbox}/files/make",
    operation_id = "createDirectory",
    tag = "files",
    params(SandboxPath, FileUserQuery, FilePathQuery),
    security(("key" = [])),
    responses((status = 200, body = Counted), (status = "default", body = Error))
)]
pub async fn make(
    caller: Caller<Write>,
    State(platform): State<Arc<Platform>>,
    Path(SandboxPath { sandbox: named }): Path<SandboxPath>,
    mut query: FilesQuery,
) -> Answer<Json<Counted>> {
    let path = query.path("path")?;
    let files = query.end()?;
    let change = Change { act: Act::FileMake, detail: path.encode(), ask: FileAsk::Make { path } };
    change.carry_out(&caller, &platform, FilesTarget { named: &named, files }).await
}

/// Move a file or directory
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{sandbox}/files/move",
    operation_id = "moveFile",
    tag = "files",
    params(
        SandboxPath,
        FileUserQuery,
        (
            "from" = String, Query,
            description = "Percent-encoded path, absolute or relative to `/workspace`"
        ),
        ("to" = String, Query, description = "New path, in the same format as `from`"),
        ("replace" = Option<bool>, Query, description = "Replace an existing file. Default false"),
    ),
    security(("key" = [])),
    responses((status = 200, body = Counted), (status = "default", body = Error))
)]
pub async fn rename(
    caller: Caller<Write>,
    State(platform): State<Arc<Platform>>,
    Path(SandboxPath { sandbox: named }): Path<SandboxPath>,
    query: FilesQuery,
) -> Answer<Json<Counted>> {
    let ((from, to, replace), files) = pair(query)?;
    let detail = both(&from, &to);
    let change = Change { act: Act::FileMove, detail, ask: FileAsk::Move { from, to, replace } };
    change.carry_out(&caller, &platform, FilesTarget { named: &named, files }).await
}

/// Copy a file or directory
///
/// A directory is copied with its content.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{sandbox}/files/copy",
    operation_id = "copyFile",
    tag = "files",
    params(
        SandboxPath,
        FileUserQuery,
        (
            "from" = String, Query,
            description = "Percent-encoded path, absolute or relative to `/workspace`"
        ),
        ("to" = String, Query, description = "Path of the copy, in the same format as `from`"),
        ("replace" = Option<bool>, Query, description = "Replace an existing file. Default false"),
    ),
    security(("key" = [])),
    responses((status = 200, body = Counted), (status = "default", body = Error))
)]
pub async fn copy(
    caller: Caller<Write>,
    State(platform): State<Arc<Platform>>,
    Path(SandboxPath { sandbox: named }): Path<SandboxPath>,
    query: FilesQuery,
) -> Answer<Json<Counted>> {
    let ((from, to, replace), files) = pair(query)?;
    let detail = both(&from, &to);
    let change = Change { act: Act::FileCopy, detail, ask: FileAsk::Copy { from, to, replace } };
    change.carry_out(&caller, &platform, FilesTarget { named: &named, files }).await
}

/// Delete a file or directory
///
/// Succeeds even if the path does not exist.
#[utoipa::path(
    delete,
    path = "/v1/sandboxes/{sandbox}/files",
    operation_id = "deleteFile",
    tag = "files",
    params(
        SandboxPath,
        FileUserQuery,
        FilePathQuery,
        ("all" = Option<bool>, Query, description = "Delete a directory with its content. Default false"),
    ),
    security(("key" = [])),
    responses((status = 200, body = Counted), (status = "default", body = Error))
)]
pub async fn remove(
    caller: Caller<Write>,
    State(platform): State<Arc<Platform>>,
    Path(SandboxPath { sandbox: named }): Path<SandboxPath>,
    mut query: FilesQuery,
) -> Answer<Json<Counted>> {
    let (path, all) = (query.path("path")?, query.flag("all")?);
    let files = query.end()?;
    let change = Change { act: Act::FileRemove, detail: path.encode(), ask: FileAsk::Remove { path, all } };
    change.carry_out(&caller, &platform, FilesTarget { named: &named, files }).await
}

/// Edit a file
///
/// Replaces a text in a file. The text must occur exactly once, unless `all` is set; then every occurrence is replaced. The file can have
/// at most 16 MiB and is replaced atomically.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{sandbox}/files/edit",
    operation_id = "editFile",
    tag = "files",
    params(SandboxPath, FileUserQuery, FilePathQuery),
    request_body = EditRequest,
    security(("key" = [])),
    responses((status = 200, body = Counted), (status = "default", body = Error))
)]
pub async fn edit(
    caller: Caller<Write>,
    State(platform): State<Arc<Platform>>,
    Path(SandboxPath { sandbox: named }): Path<SandboxPath>,
    mut query: FilesQuery,
    Sent(request): Sent<EditRequest>,
) -> Answer<Json<Counted>> {
    let path = query.path("path")?;
    let files = query.end()?;
    let (detail, EditRequest { old, new, all }) = (path.encode(), request);
    let change = Change { act: Act::FileEdit, detail, ask: FileAsk::Edit { path, old, new, all } };
    change.carry_out(&caller, &platform, FilesTarget { named: &named, files }).await
}

fn hashed(answer: FileAnswer) -> Answer<Json<HashedFile>> {
    let FileAnswer::Whole { info, hash } = answer else { return Err(unlike(&answer)) };
    Ok(Json(HashedFile { file: info, hash }))
}

fn pair(mut query: FilesQuery) -> Answer<((FilePath, FilePath, bool), FilesOf)> {
    let pair = (query.path("from")?, query.path("to")?, query.flag("replace")?);
    Ok((pair, query.end()?))
}

fn both(from: &FilePath, to: &FilePath) -> String {
    format!("{} to {}", from.encode(), to.encode())
}

/// Returns the error for a response of an unexpected type. The node should already have rejected such a
/// response.
fn unlike(answer: &FileAnswer) -> crate::rejection::Rejection {
    let told = format!("{answer:?}").chars().take_while(|c| c.is_alphabetic()).collect::<String>();
    node::Error::Protocol(format!("unexpected type of response: {told}")).into()
}
