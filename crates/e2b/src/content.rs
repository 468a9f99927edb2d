//! Upload and download of files, and the health check of the agent.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use api::files::{FileAnswer, FileAsk, FileKind, FilePath, Hashing};
use api::sandbox::{Sandbox, SandboxState};
use api::{Error, ErrorCode};
use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use flate2::write::GzDecoder;
use http_body_util::{BodyExt as _, Limited};
use serde_json::{Value, json};

use control::audit::Act;
use control::platform::Platform;
use server::authority::Anyone;
use server::body::{discard, lend};
use server::listen::Origin;
use server::routes::files::flow::{Coming, StreamGuard, outward};

use super::connect::{Called, Code, Failed};
use super::fault::gone;
use super::filesystem::followed;
use super::form::{Form, wrong};
use super::place::name;
use super::who::{Filed, Inside, ReadFile, Signed, WriteFile, is_shown, named};

/// Maximum number of symbolic links that are followed to reach a file.
const LINKS_MAX: usize = 8;
/// Maximum number of parts in one form.
const PARTS_MAX: usize = 1000;
const METADATA: &str = "x-metadata-";
/// Timeout for receiving a rejected body if the defence against attack H-31 is off. Only a test build can
/// turn it off, to prove that the attack succeeds without the defence.
const KEPT_WITHIN: Duration = Duration::from_secs(5);
/// Maximum number of compressed bytes that are decompressed in one step.
const PACKED_BYTES: usize = 8 << 10;

/// Error of the file routes. Its body repeats the HTTP status.
pub struct FilesRejection(Failed);

impl<F: Into<Failed>> From<F> for FilesRejection {
    fn from(failed: F) -> Self {
        Self(failed.into())
    }
}

impl IntoResponse for FilesRejection {
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

/// Reports whether a sandbox is running, to clients that present the sandbox's token. All other clients get
/// the response for a missing sandbox, whether or not the sandbox exists. The request does not reset the
/// sandbox's idle time.
pub async fn health(_: Anyone, State(platform): State<Arc<Platform>>, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let id = match named(&parts) {
        Ok(id) => id,
        Err(failed) => return FilesRejection(failed).into_response(),
    };
    let runs = match api::defence::is_off("H-39") {
        true => platform.node.call(&id).await.is_ok(),
        false => {
            is_shown(&parts, &platform, &id) && platform.node.find(&id).is_some_and(|shown| is_up(&shown))
        }
    };
    if runs { StatusCode::NO_CONTENT.into_response() } else { gone(Some(&id)) }
}

fn is_up(shown: &Sandbox) -> bool {
    shown.state == SandboxState::Running
}

/// Returns the content of a file. Follows symbolic links.
pub async fn read(Filed { entered, .. }: Filed<ReadFile>) -> Result<Response, FilesRejection> {
    let (signed, inside) = entered?;
    let mut path = inside.path(&signed.path)?;
    let place = inside.caller.share.stream()?;
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
                let mut response = outward(StreamGuard::new(platform, call, place), reading).into_response();
                let headers = response.headers_mut();
                headers.insert(header::CONTENT_LENGTH, info.size_bytes.into());
                headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
                return Ok(response);
            }
            Ok(_) => return Err(Failed::of(Code::Internal, "unexpected type of response").into()),
            Err(error) if error.to_api().code == ErrorCode::NotRegular => {
                path = led(&inside, path, error).await?
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(Failed::of(Code::InvalidArgument, "too many levels of symbolic links").into())
}

/// Writes one file from the request body, or several files from the parts of a form. Creates missing parent
/// directories.
pub async fn write(
    Filed { entered, .. }: Filed<WriteFile>,
    request: Request,
) -> Result<Json<Value>, FilesRejection> {
    let (parts, body) = request.into_parts();
    let entered = entered.and_then(|entered| {
        let has_metadata = parts.headers.keys().any(|name| name.as_str().starts_with(METADATA));
        let told = "file metadata is not supported; write the metadata to a separate file";
        if has_metadata { Err(Failed::of(Code::Unimplemented, told)) } else { Ok(entered) }
    });
    let (signed, inside) = match entered {
        Ok(entered) => entered,
        Err(failed) => {
            let origin = parts.extensions.get::<Origin>();
            match api::defence::is_off("H-31") {
                true => drop(tokio::time::timeout(KEPT_WITHIN, Limited::new(body, 1 << 20).collect()).await),
                false => discard(body, origin).await,
            }
            return Err(failed.into());
        }
    };
    let _place = inside.caller.share.stream()?;
    let kind =
        parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let is_form = kind.starts_with("multipart/");
    let (body, lent) = lend(body);
    let request = Request::from_parts(parts, body);
    let written = if is_form {
        form(&inside, &signed, request).await
    } else {
        plain(&inside, &signed.path, request).await
    };
    if written.is_err() {
        lent.discard().await;
    }
    Ok(Json(written?.iter().map(shown).collect()))
}

/// Writes the body to one file.
async fn plain(inside: &Inside, named: &str, mut request: Request) -> Called<Vec<FilePath>> {
    if named.is_empty() {
        return Err(Failed::of(Code::InvalidArgument, "the query has no path"));
    }
    let path = inside.path(named)?;
    let packed = is_packed(request.headers_mut().remove(header::CONTENT_ENCODING))?;
    let mut unpacking = packed.then(|| GzDecoder::new(Vec::new()));
    let mut coming = Coming::of(request)?;
    let mut writing = begin(inside, &path).await?;
    while let Some(bytes) = coming.next().await? {
        // Decompressed data can be a thousand times larger. Decompress small chunks, so that only little
        // decompressed data is in memory at once.
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

/// Returns true if the body is compressed with gzip, the only compression that is supported.
fn is_packed(encoding: Option<HeaderValue>) -> Called<bool> {
    match encoding.as_ref().map(HeaderValue::as_bytes) {
        None | Some(b"") => Ok(false),
        Some(name) if name.eq_ignore_ascii_case(b"identity") => Ok(false),
        Some(name) if name.eq_ignore_ascii_case(b"gzip") => Ok(true),
        Some(other) => {
            let shown: String = String::from_utf8_lossy(other).chars().take(32).collect();
            let told = format!(
                "content-encoding {shown:?} is not supported; use gzip, or send the file uncompressed"
            );
            Err(Failed::of(Code::InvalidArgument, told))
        }
    }
}

/// Writes the parts of a form that are named `file`, each to its own file.
async fn form(inside: &Inside, signed: &Signed, request: Request) -> Called<Vec<FilePath>> {
    let named = signed.path.as_str();
    let mut form = Form::of(request).await?;
    let (mut all, mut parts) = (Vec::new(), 0);
    while let Some(mut part) = form.next().await? {
        parts += 1;
        if parts > PARTS_MAX {
            return Err(wrong(&format!("more than {PARTS_MAX} parts")));
        }
        if part.name() != Some("file") {
            while part.piece().await?.is_some() {}
            continue;
        }
        // A path in the query applies to all parts. If the query has no path, use the file name of each part,
        // which may contain directories.
        let own = if named.is_empty() { part.file_name().unwrap_or_default() } else { named };
        if own.is_empty() {
            return Err(wrong("a part has no file name"));
        }
        // A signature without a path permits files directly in the home directory. It does not permit hidden
        // files there, because shells and other programs read their settings from hidden files.
        let reaches_more = own.contains('/') || own.starts_with('.');
        if named.is_empty() && signed.signature.is_some() && reaches_more && !api::defence::is_off("H-42") {
            return Err(Failed::of(
                Code::PermissionDenied,
                "a signature without a path allows only plain file names",
            ));
        }
        let path = inside.path(own)?;
        let mut writing = begin(inside, &path).await?;
        while let Some(bytes) = part.piece().await? {
            writing.push(bytes).await?;
        }
        writing.finish().await?;
        all.push(path);
    }
    if all.is_empty() {
        return Err(wrong("no part is named `file`"));
    }
    Ok(all)
}

/// Decompresses a chunk of a body.
fn unpacked(unpacking: &mut GzDecoder<Vec<u8>>, piece: &[u8]) -> Called<Bytes> {
    unpacking.write_all(piece).map_err(not_packed)?;
    Ok(std::mem::take(unpacking.get_mut()).into())
}

fn not_packed(error: std::io::Error) -> Failed {
    Failed::of(Code::InvalidArgument, format!("the request body is not valid gzip: {error}"))
}

async fn begin(inside: &Inside, path: &FilePath) -> Called<node::FileUpload> {
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

/// Returns the target of a path that is a symbolic link. For any other path, returns an error that states why
/// the file cannot be read or written.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoding_other_than_gzip_is_refused_by_its_name() {
        let packed = |text: &'static str| is_packed(Some(HeaderValue::from_static(text)));
        assert!(!is_packed(None).unwrap() && !packed("").unwrap() && !packed("identity").unwrap());
        assert!(packed("gzip").unwrap() && packed("GZIP").unwrap());
        for other in ["br", "deflate", "gzip, br"] {
            let Err(Failed::Refused(code, told)) = packed(other) else { panic!("{other}") };
            assert!(code == Code::InvalidArgument && told.contains(other), "{told}");
        }
    }
}
