//! Download and upload of a single file.
//!
//! A read returns the whole file or one byte range. It can be made conditional on the file still having the
//! requested version (its `ETag`). A write without an offset is atomic. A write with an offset keeps the data
//! that has arrived, so that an interrupted write can be resumed.

use std::sync::Arc;

use api::Error;
use api::files::{FILE_TRAILER, FileAnswer, FileAsk, FileInfo, FilePath, HashedFile, Hashing};
use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use node::Call;

use super::change::Change;
use super::flow::{Coming, StreamGuard, digest_trailer, outward, promised, reads_trailers};
use super::query::{FilePathQuery, FileUserQuery, FilesQuery};
use super::target::FilesTarget;
use crate::authority::{Caller, Read, Write};
use crate::extract::{Path, SandboxPath};
use crate::rejection::{Answer, Rejection};
use control::audit::Act;
use control::platform::Platform;

/// The part of a file that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Span {
    /// The whole file.
    All,
    /// The bytes from an offset to the end of the file, or up to and including a last offset.
    From(u64, Option<u64>),
    /// The last bytes of the file; the value is their number.
    Last(u64),
}

/// Read a file
///
/// Returns the content of a regular file, or one range of the content. With the request header `te: trailers`, the response has trailers
/// instead of a length. The trailers are the digest of the bytes sent, and whether the file was modified while it was read.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{sandbox}/files/content",
    operation_id = "readFile",
    tag = "files",
    params(
        SandboxPath,
        FileUserQuery,
        FilePathQuery,
        (
            "digest" = Option<Hashing>, Query,
            description = "Hash in the trailers: `sha256` (default, in `content-digest`) or `blake3` (in `bellglass-blake3`)"
        ),
        (
            "range" = Option<String>, Header,
            description = "Byte range to return: `bytes=A-B`, `bytes=A-` or `bytes=-N`. A header with several ranges is ignored"
        ),
        (
            "if-match" = Option<String>, Header,
            description = "`ETag` of the version to read. If the file has another version, the response is 412"
        ),
    ),
    security(("key" = [])),
    responses(
        (status = 200, body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 206, body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 412, body = Error, description = "The file has a different version"),
        (status = 416, body = Error, description = "The range is outside the file"),
        (status = "default", body = Error),
    )
)]
pub async fn read(
    caller: Caller<Read>,
    State(platform): State<Arc<Platform>>,
    Path(SandboxPath { sandbox: named }): Path<SandboxPath>,
    mut query: FilesQuery,
    headers: HeaderMap,
) -> Answer<Response> {
    let (path, digest) = (query.path("path")?, query.digest()?);
    let files = query.end()?;
    let (span, version) = (span(&headers), wanted_version(&headers)?);
    let place = caller.share.stream()?;
    let call = FilesTarget { named: &named, files }.call(&caller, &platform).await?;
    let (from, to) = bounds(&call, &path, span).await?;
    let is_conditional = version.is_some();
    let opened = call.files().read(&FileAsk::Read { path: path.clone(), from, to, version, digest }).await;
    let (answer, reading) = opened.map_err(|error| {
        // Only the guest can compare versions. It reports a mismatch as a conflict.
        let changed = matches!(&error, node::Error::Guest(error) if error.code == api::ErrorCode::Conflict);
        let fault = Rejection::from(error);
        if is_conditional && changed { fault.status(StatusCode::PRECONDITION_FAILED) } else { fault }
    })?;
    let FileAnswer::Content { info, from: first, to: end } = answer else {
        return Err(super::unlike(&answer));
    };
    if span != Span::All && first >= end {
        return Ok(unsatisfiable(&info));
    }
    let mut response = outward(StreamGuard::new(platform, call, place), reading).into_response();
    describe(response.headers_mut(), &path, &info);
    if reads_trailers(&headers) {
        let names = format!("{}, {FILE_TRAILER}", digest_trailer(digest));
        insert(response.headers_mut(), header::TRAILER, &names);
    } else {
        insert(response.headers_mut(), header::CONTENT_LENGTH, &(end - first).to_string());
    }
    if span != Span::All {
        let range = format!("bytes {first}-{}/{}", end.saturating_sub(1), info.size_bytes);
        insert(response.headers_mut(), header::CONTENT_RANGE, &range);
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    Ok(response)
}

/// Write a file
///
/// Writes the request body to a file and creates missing parent directories.
///
/// Without `offset`, the file is replaced atomically. With `offset`, the file is written in place from that byte on and must already have
/// that many bytes. If the upload is interrupted, the bytes received so far are kept, so that the upload can be resumed.
#[utoipa::path(
    put,
    path = "/v1/sandboxes/{sandbox}/files/content",
    operation_id = "writeFile",
    tag = "files",
    params(
        SandboxPath,
        FileUserQuery,
        FilePathQuery,
        ("offset" = Option<u64>, Query, description = "Offset at which to start writing"),
        (
            "mode" = Option<String>, Query,
            description = "Permissions in octal, such as 0755. Default: the permissions of the replaced file, or 0644 for a new file"
        ),
        (
            "digest" = Option<Hashing>, Query,
            description = "Hash in the response: `sha256` (default) or `blake3`"
        ),
        (
            "content-digest" = Option<String>, Header,
            description = "SHA-256 of the whole file, as `sha-256=:…:`, which the server verifies. Cannot be combined with `blake3`"
        ),
    ),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    security(("key" = [])),
    responses((status = 200, body = HashedFile), (status = "default", body = Error))
)]
pub async fn write(
    caller: Caller<Write>,
    State(platform): State<Arc<Platform>>,
    Path(SandboxPath { sandbox: named }): Path<SandboxPath>,
    mut query: FilesQuery,
    request: Request,
) -> Answer<Json<HashedFile>> {
    let (path, offset, mode) = (query.path("path")?, query.number("offset")?, query.mode("mode")?);
    let digest = query.digest()?;
    let files = query.end()?;
    let sha256 = promised(request.headers())?;
    let coming = Coming::of(request)?;
    let detail = path.encode();
    let ask = FileAsk::Write { path, offset, mode, sha256, digest };
    let change = Change { act: Act::FileWrite, detail, ask };
    super::hashed(change.take_in(&caller, platform, FilesTarget { named: &named, files }, coming).await?)
}

/// Returns a `content-disposition` header that makes a browser save the file under its own name.
pub fn attachment(path: &FilePath, ending: &str) -> String {
    let name = path.as_bytes().rsplit(|byte| *byte == b'/').find(|name| !name.is_empty());
    let name = FilePath::new(name.unwrap_or(b"files")).map(|name| name.encode()).unwrap_or_default();
    format!("attachment; filename*=UTF-8''{name}{ending}")
}

/// Returns the range to read: the offset of its first byte, and the offset after its last byte if it has one.
async fn bounds(call: &Call, path: &FilePath, span: Span) -> Answer<(u64, Option<u64>)> {
    match span {
        Span::All => Ok((0, None)),
        Span::From(first, last) => Ok((first, last.map(|last| last.saturating_add(1)))),
        Span::Last(count) => {
            let answer = call.files().ask(&FileAsk::Stat { path: path.clone() }).await?;
            let FileAnswer::Info { info } = answer else { return Err(super::unlike(&answer)) };
            Ok((info.size_bytes.saturating_sub(count), Some(info.size_bytes)))
        }
    }
}

fn describe(headers: &mut HeaderMap, path: &FilePath, info: &FileInfo) {
    insert(headers, header::CONTENT_TYPE, "application/octet-stream");
    insert(headers, header::CONTENT_DISPOSITION, &attachment(path, ""));
    insert(headers, header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    insert(headers, header::CACHE_CONTROL, "no-store");
    insert(headers, header::ACCEPT_RANGES, "bytes");
    insert(headers, header::ETAG, &format!("\"{}\"", info.version));
}

fn unsatisfiable(info: &FileInfo) -> Response {
    let size = info.size_bytes;
    let error = Error::invalid(
        format!("the requested range is outside the file, which has {size} bytes"),
        "Request a range that begins before the end of the file.",
    );
    let mut response = Rejection::from(error).status(StatusCode::RANGE_NOT_SATISFIABLE).into_response();
    insert(response.headers_mut(), header::CONTENT_RANGE, &format!("bytes */{size}"));
    response
}

/// Adds a header. Omits the header if its value, which may come from a guest, is not valid in a header.
fn insert(headers: &mut HeaderMap, name: header::HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// Parses the requested range. Ignores anything other than a single byte range, as HTTP specifies.
fn span(headers: &HeaderMap) -> Span {
    let value = headers.get(header::RANGE).and_then(|value| value.to_str().ok());
    let one =
        value.and_then(|value| value.trim().strip_prefix("bytes=")).and_then(|range| range.split_once('-'));
    let number = |text: &str| text.trim().parse::<u64>().ok();
    match one {
        Some((first, "")) => number(first).map_or(Span::All, |first| Span::From(first, None)),
        Some(("", count)) => number(count).map_or(Span::All, Span::Last),
        Some((first, last)) => match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => Span::From(first, Some(last)),
            _ => Span::All,
        },
        None => Span::All,
    }
}

fn wanted_version(headers: &HeaderMap) -> Answer<Option<String>> {
    let Some(value) = headers.get(header::IF_MATCH) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default().trim();
    if text == "*" {
        return Ok(None);
    }
    match text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) {
        Some(version) if !version.contains('"') => Ok(Some(version.to_owned())),
        _ => Err(Error::invalid(
            "the header if-match does not have exactly one version",
            "Send one `ETag` of this file unchanged.",
        )
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: header::HeaderName, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
    }

    #[test]
    fn one_range_is_understood_and_everything_else_is_none() {
        for (text, wanted) in [
            ("bytes=0-0", Span::From(0, Some(0))),
            ("bytes=5-", Span::From(5, None)),
            ("bytes=-3", Span::Last(3)),
            ("bytes=3-1", Span::All),
            ("bytes=0-1,3-4", Span::All),
            ("lines=1-2", Span::All),
            ("bytes=-", Span::All),
            ("bytes=99999999999999999999-", Span::All),
        ] {
            assert_eq!(span(&with(header::RANGE, text)), wanted, "{text}");
        }
    }

    #[test]
    fn a_version_is_one_or_any() {
        assert_eq!(wanted_version(&with(header::IF_MATCH, "\"1-2\"")).unwrap().as_deref(), Some("1-2"));
        assert_eq!(wanted_version(&with(header::IF_MATCH, "*")).unwrap(), None);
        assert!(wanted_version(&with(header::IF_MATCH, "\"a\", \"b\"")).is_err());
        assert!(wanted_version(&with(header::IF_MATCH, "a")).is_err());
    }

    #[test]
    fn no_name_leaves_its_place_in_a_header() {
        // Attack P-10: file names with characters that have a special meaning in the header.
        let path = FilePath::new(&b"/workspace/a\"\r\nx: y;\xff"[..]).unwrap();
        assert_eq!(attachment(&path, ""), "attachment; filename*=UTF-8''a%22%0D%0Ax%3A%20y%3B%FF");
        let root = FilePath::new(&b"/"[..]).unwrap();
        assert_eq!(attachment(&root, ".tar"), "attachment; filename*=UTF-8''files.tar");
    }
}
