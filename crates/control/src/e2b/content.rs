//! Files themselves, up and down, and whether the agent is there.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use api::files::{FileAnswer, FileAsk, FileKind, FilePath, Hashing};
use api::{Error, ErrorCode};
use axum::Json;
use axum::extract::{FromRequest as _, FromRequestParts as _, Multipart, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use flate2::write::GzDecoder;
use http_body_util::{BodyExt as _, Limited};
use serde_json::{Value, json};

use crate::audit::Act;
use crate::output::place;
use crate::platform::Platform;
use crate::routes::files::flow::{Coming, Held, outward};

use super::connect::{Called, Code, Failed};
use super::fault::gone;
use super::filesystem::followed;
use super::place::name;
use super::who::{Inside, May, Signed, named};

/// A link may lead to a link, so often.
const LINKS_MAX: usize = 8;
/// Files of one form.
const PARTS_MAX: usize = 1000;
const METADATA: &str = "x-metadata-";
/// A body that is refused is taken for so long, and so much of it.
const DRAIN_WITHIN: Duration = Duration::from_secs(5);
const DRAIN_BYTES: usize = 1 << 20;
/// A piece of a packed body that is unpacked at once.
const PACKED_BYTES: usize = 8 << 10;

/// A refusal of these routes: the status again in the body.
pub struct Refused(Failed);

impl<F: Into<Failed>> From<F> for Refused {
    fn from(failed: F) -> Self {
        Self(failed.into())
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        match self.0 {
            Failed::Gone => gone(None),
            Failed::Refused(code, message) => {
                let body = json!({ "code": code.status().as_u16(), "message": message });
                (code.status(), Json(body)).into_response()
            }
        }
    }
}

/// Whether a sandbox runs. Nobody has to show anything for that.
pub async fn health(State(platform): State<Arc<Platform>>, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    match named(&parts) {
        Ok(id) if platform.node.call(&id).is_ok() => StatusCode::NO_CONTENT.into_response(),
        Ok(id) => gone(Some(&id)),
        Err(failed) => Refused(failed).into_response(),
    }
}

/// A file.
pub async fn read(State(platform): State<Arc<Platform>>, request: Request) -> Result<Response, Refused> {
    let (mut parts, _) = request.into_parts();
    let (signed, inside) = entered(&mut parts, &platform, May::Read).await?;
    let mut path = inside.path(&signed.path)?;
    let place = place(&inside.caller.share)?;
    let files = inside.call.files();
    for _ in 0..LINKS_MAX {
        let ask = FileAsk::Read {
            path: path.clone(),
            from: 0,
            to: None,
            version: None,
            digest: Hashing::default(),
        };
        match files.read(&ask).await {
            Ok((FileAnswer::Content { info, .. }, reading)) => {
                let Inside { platform, call, .. } = inside;
                let mut response = outward(Held::new(platform, call, place), reading).into_response();
                let headers = response.headers_mut();
                headers.insert(header::CONTENT_LENGTH, info.size_bytes.into());
                headers.insert(
                    header::CONTENT_TYPE,
                    header::HeaderValue::from_static("application/octet-stream"),
                );
                return Ok(response);
            }
            Ok(_) => return Err(Failed::of(Code::Internal, "an answer to something else").into()),
            Err(error) if error.to_api().code == ErrorCode::NotRegular => {
                path = led(&inside, path, error).await?
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(Failed::of(Code::InvalidArgument, "too many links lead to each other").into())
}

/// Puts files where they are said to be: one as the body, or some as the parts of a form. Directories above them are made.
pub async fn write(State(platform): State<Arc<Platform>>, request: Request) -> Result<Json<Value>, Refused> {
    let (mut parts, body) = request.into_parts();
    let entered = entered(&mut parts, &platform, May::Write).await.and_then(|entered| {
        let has_metadata = parts.headers.keys().any(|name| name.as_str().starts_with(METADATA));
        let told = "files have no metadata of their own here; write it into a file beside them";
        if has_metadata { Err(Failed::of(Code::Unimplemented, told)) } else { Ok(entered) }
    });
    let (signed, inside) = match entered {
        Ok(entered) => entered,
        Err(failed) => {
            // Whoever is busy sending does not read why.
            let _ = tokio::time::timeout(DRAIN_WITHIN, Limited::new(body, DRAIN_BYTES).collect()).await;
            return Err(failed.into());
        }
    };
    let kind =
        parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let is_form = kind.starts_with("multipart/");
    let request = Request::from_parts(parts, body);
    let written = if is_form {
        form(&inside, &signed.path, request).await
    } else {
        plain(&inside, &signed.path, request).await
    };
    Ok(Json(written?.iter().map(shown).collect()))
}

/// One file, which is the body.
async fn plain(inside: &Inside, named: &str, mut request: Request) -> Called<Vec<FilePath>> {
    if named.is_empty() {
        return Err(Failed::of(Code::InvalidArgument, "the query names no path"));
    }
    let path = inside.path(named)?;
    let packed = request.headers_mut().remove(header::CONTENT_ENCODING).filter(|coding| coding == "gzip");
    let mut unpacking = packed.map(|_| GzDecoder::new(Vec::new()));
    let mut coming = Coming::of(request)?;
    let mut writing = begin(inside, &path).await?;
    while let Some(bytes) = coming.next().await? {
        // What is packed may be a thousand times as long: it is taken in small pieces, so that little of it is held.
        let most = if unpacking.is_some() { PACKED_BYTES } else { bytes.len().max(1) };
        for piece in bytes.chunks(most) {
            let plain = match &mut unpacking {
                Some(unpacking) => unpacked(unpacking, piece)?,
                None => bytes.slice_ref(piece),
            };
            if let Err(error) = writing.push(plain).await {
                return Err(coming.refuse(error).await.into());
            }
        }
    }
    if let Some(unpacking) = unpacking {
        writing.push(unpacking.finish().map_err(not_packed)?.into()).await?;
    }
    writing.finish().await?;
    Ok(vec![path])
}

/// Files as the parts of a form that are named `file`.
async fn form(inside: &Inside, named: &str, request: Request) -> Called<Vec<FilePath>> {
    let wrong = |told: String| Failed::of(Code::InvalidArgument, format!("the form cannot be read: {told}"));
    let form = Multipart::from_request(request, &()).await;
    let mut form = form.map_err(|error| wrong(error.body_text()))?;
    let mut all = Vec::new();
    while let Some(mut part) = form.next_field().await.map_err(|error| wrong(error.body_text()))? {
        if part.name() != Some("file") {
            continue;
        }
        if all.len() >= PARTS_MAX {
            return Err(wrong(format!("it has more than {PARTS_MAX} files")));
        }
        // A part's own name may have directories in it; one in the query is for all.
        let own = if named.is_empty() { part.file_name().unwrap_or_default() } else { named };
        if own.is_empty() {
            return Err(wrong("a part has no name".into()));
        }
        let path = inside.path(own)?;
        let mut writing = begin(inside, &path).await?;
        while let Some(bytes) = part.chunk().await.map_err(|error| wrong(error.body_text()))? {
            writing.push(bytes).await?;
        }
        writing.finish().await?;
        all.push(path);
    }
    if all.is_empty() {
        return Err(wrong("it has no part named `file`".into()));
    }
    Ok(all)
}

/// What a piece of a packed body comes to.
fn unpacked(unpacking: &mut GzDecoder<Vec<u8>>, piece: &[u8]) -> Called<Bytes> {
    unpacking.write_all(piece).map_err(not_packed)?;
    Ok(std::mem::take(unpacking.get_mut()).into())
}

fn not_packed(error: std::io::Error) -> Failed {
    Failed::of(Code::InvalidArgument, format!("the body is not what gzip makes: {error}"))
}

async fn entered(parts: &mut Parts, platform: &Arc<Platform>, may: May) -> Called<(Signed, Inside)> {
    let query = Query::<Signed>::from_request_parts(parts, &()).await;
    let Query(signed) = query.map_err(|error| Failed::of(Code::InvalidArgument, error.body_text()))?;
    let inside = signed.inside(parts, platform, may).await?;
    Ok((signed, inside))
}

async fn begin(inside: &Inside, path: &FilePath) -> Called<node::Writing> {
    inside
        .platform
        .note(&inside.caller, Act::FileWrite, |entry| entry.sandbox(&inside.sandbox).detail(&path.encode()));
    let ask = FileAsk::Write {
        path: path.clone(),
        offset: None,
        mode: None,
        sha256: None,
        digest: Hashing::default(),
    };
    Ok(inside.call.files().write(ask).await?)
}

fn shown(path: &FilePath) -> Value {
    let path = path.text();
    json!({ "path": path, "name": name(&path), "type": "file" })
}

/// Where a link leads, if it was one that could not be read.
async fn led(inside: &Inside, path: FilePath, error: node::Error) -> Called<FilePath> {
    let FileAnswer::Info { info } = inside.look(&FileAsk::Stat { path }).await? else {
        return Err(error.into());
    };
    if info.kind == FileKind::Symlink {
        let target = info.target.as_deref().unwrap_or_default();
        return Ok(FilePath::new(followed(&info.path, target))?);
    }
    if info.kind == FileKind::Directory {
        let told = format!("path {:?} is a directory", info.path);
        return Err(Error::invalid(told, "List it instead.").into());
    }
    Err(error.into())
}
