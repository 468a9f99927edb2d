//! Execs: start, list, get, read, write, signal, cancel.

use std::sync::Arc;
use std::time::Duration;

use api::exec::{ExecInfo, ExecSpec, SignalRequest};
use api::output::{NDJSON, OutputLine, PerStream};
use api::server::{Page, Received, Signaled};
use api::{Error, ExecId};
use axum::Json;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use node::Call;
use serde::Deserialize;

use crate::authority::{Caller, Grant, Read, Write};
use crate::body::{self, Sent};
use crate::extract::{Idempotency, Path, Query, SandboxPath};
use crate::list::Listing;
use crate::output::Output;
use crate::rejection::{Answer, Rejection};
use control::account::Rate;
use control::audit::Act;
use control::platform::Platform;

/// Maximum size of a chunk of standard input. It is also the maximum amount of input that is held for a
/// process that does not read.
const STDIN_BYTES_MAX: usize = 1 << 20;
/// Maximum time that a chunk waits for a process that does not read, before the client gets a retryable error.
const STDIN_WITHIN: Duration = Duration::from_secs(60);

/// Path of the routes of one exec.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
pub struct ExecPath {
    /// Sandbox ID or name
    pub sandbox: String,
    /// Exec ID
    pub exec: String,
}

/// Query of the route that starts an exec.
#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Starting {
    /// Cancel the exec when the client that reads its output disconnects. Applies only to streamed output. Default false.
    #[serde(default)]
    cancel_on_disconnect: bool,
}

/// Options of a start request, taken from its query and headers.
pub struct Manner {
    idempotency: Idempotency,
    cancels: bool,
    streams: bool,
}

impl<S: Send + Sync> FromRequestParts<S> for Manner {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Answer<Self> {
        let Query(Starting { cancel_on_disconnect: cancels }) =
            Query::from_request_parts(parts, state).await?;
        let streams =
            parts.headers.get(header::ACCEPT).is_some_and(|value| value.as_bytes() == NDJSON.as_bytes());
        Ok(Self { idempotency: Idempotency::from_request_parts(parts, state).await?, cancels, streams })
    }
}

/// Query of the route that reads output.
#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct OutputQuery {
    /// Offset in standard output at which to start. Default 0.
    #[serde(default)]
    stdout: u64,
    /// Offset in standard error at which to start. Default 0.
    #[serde(default)]
    stderr: u64,
    /// Offset in the results at which to start: 0, or `next` of an earlier result. Default 0.
    #[serde(default)]
    results: u64,
    /// Wait for more output. Default true. If false, the stream ends after the output that is available now.
    #[serde(default = "yes")]
    follow: bool,
}

/// Query of the route that acknowledges output.
#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AcknowledgeQuery {
    /// Offset in standard output below which all bytes were consumed.
    stdout: u64,
    /// Offset in standard error below which all bytes were consumed.
    stderr: u64,
}

/// Query of the route that writes standard input.
#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct StdinQuery {
    /// Offset of the first byte of the chunk in standard input. Sending the same chunk again has no effect.
    offset: u64,
    /// True for the last chunk. Default false.
    #[serde(default)]
    last: bool,
}

/// Start an exec
///
/// Runs a command or code. With `accept: application/x-ndjson`, the response is a stream that begins with the exec and continues with its
/// output. Otherwise the response is the exec.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{sandbox}/execs",
    operation_id = "startExec",
    tag = "execs",
    params(
        SandboxPath,
        (
            "idempotency-key" = Option<String>, Header,
            description = "Requests with the same key start only one exec. A key has 1 to 255 printable ASCII characters"
        ),
        Starting,
    ),
    request_body = ExecSpec,
    security(("key" = [])),
    responses(
        (status = 201, content((ExecInfo = "application/json"), (OutputLine = "application/x-ndjson"))),
        (status = "default", body = Error),
    )
)]
pub async fn start(
    caller: Caller<Write>,
    State(platform): State<Arc<Platform>>,
    Path(SandboxPath { sandbox: named }): Path<SandboxPath>,
    manner: Manner,
    Sent(spec): Sent<ExecSpec>,
) -> Answer<Response> {
    caller.pace(Rate::Exec)?;
    spec.check()?;
    let launch = caller.share.launch()?;
    let place = if manner.streams { Some(caller.share.stream()?) } else { None };
    let sandbox = platform.running(&caller, &named).await?;
    let call = platform.node.call(&sandbox.id).await?;
    let id = manner.idempotency.exec_id()?;
    control::trace::about_exec(&sandbox.id, &id);
    platform.note(&caller, Act::Exec, |entry| entry.sandbox(&sandbox.id).exec(&id).command(&spec));
    Ok(match place {
        None => {
            (StatusCode::CREATED, Json(platform.node.start_exec(&call, &id, spec).await?)).into_response()
        }
        Some(place) => {
            let (info, exec) = platform.node.start_exec_and_read(&call, &id, spec).await?;
            drop(launch);
            let (started, cancels) = (Some(info), manner.cancels);
            let from = PerStream::default();
            Output { platform, call, exec, place, from, started, until: None, cancels }.into_response()
        }
    })
}

/// List execs
///
/// A sandbox keeps records of up to 1,024 execs, including ended execs. The records of the oldest ended execs are dropped first.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{sandbox}/execs",
    operation_id = "listExecs",
    tag = "execs",
    params(SandboxPath),
    security(("key" = [])),
    responses((status = 200, body = Page<ExecInfo>), (status = "default", body = Error))
)]
pub async fn list(
    caller: Caller<Read>,
    State(platform): State<Arc<Platform>>,
    Path(SandboxPath { sandbox: named }): Path<SandboxPath>,
) -> Answer<Response> {
    let call = call(&caller, &platform, &named).await?;
    let reading = Listing::of_guest(&caller.share).await?;
    reading.respond(Page { items: call.execs().await?, next: None })
}

/// Get an exec
///
/// Returns the state of the exec, or its outcome once it has ended.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{sandbox}/execs/{exec}",
    operation_id = "getExec",
    tag = "execs",
    params(ExecPath),
    security(("key" = [])),
    responses((status = 200, body = ExecInfo), (status = "default", body = Error))
)]
pub async fn look(
    caller: Caller<Read>,
    State(platform): State<Arc<Platform>>,
    Path(ExecPath { sandbox: named, exec }): Path<ExecPath>,
) -> Answer<Json<ExecInfo>> {
    let call = call(&caller, &platform, &named).await?;
    Ok(Json(info(&call, &exec).await?))
}

/// Cancel an exec
///
/// The outcome becomes `cancelled`, unless the exec has already ended.
#[utoipa::path(
    delete,
    path = "/v1/sandboxes/{sandbox}/execs/{exec}",
    operation_id = "cancelExec",
    tag = "execs",
    params(ExecPath),
    security(("key" = [])),
    responses((status = 204), (status = "default", body = Error))
)]
pub async fn cancel(
    caller: Caller<Write>,
    State(platform): State<Arc<Platform>>,
    Path(ExecPath { sandbox: named, exec }): Path<ExecPath>,
) -> Answer<StatusCode> {
    let call = call(&caller, &platform, &named).await?;
    let id = exec_id(&exec)?;
    platform.note(&caller, Act::ExecCancel, |entry| entry.exec(&id));
    call.exec_reader(id).cancel().await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Stream the output of an exec
///
/// Streams the output from the given offsets, one JSON object per line. The last line is `end` or `error`.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{sandbox}/execs/{exec}/output",
    operation_id = "streamExecOutput",
    tag = "execs",
    params(ExecPath, OutputQuery),
    security(("key" = [])),
    responses(
        (status = 200, body = OutputLine, content_type = "application/x-ndjson"),
        (status = "default", body = Error),
    )
)]
pub async fn output(
    caller: Caller<Read>,
    State(platform): State<Arc<Platform>>,
    Path(ExecPath { sandbox: named, exec }): Path<ExecPath>,
    Query(from): Query<OutputQuery>,
) -> Answer<Output> {
    let place = caller.share.stream()?;
    let call = call(&caller, &platform, &named).await?;
    let info = info(&call, &exec).await?;
    let written = PerStream::of_info(&info);
    let OutputQuery { stdout, stderr, results, follow } = from;
    let from = PerStream { stdout, stderr, results };
    if !from.is_within(&written) {
        return Err(Error::invalid(
            format!(
                "the offsets are beyond the output: the exec has written {} bytes to stdout, {} to stderr and {} of results",
                info.stdout_bytes, info.stderr_bytes, info.results_bytes
            ),
            "Use offsets that the output has reached.",
        )
        .into());
    }
    let mut reader = call.exec_reader(info.id);
    reader.seek(stdout, stderr, results);
    let until = (!follow).then_some(written);
    Ok(Output { platform, call, exec: reader, place, from, started: None, until, cancels: false })
}

/// Acknowledge output
///
/// Marks all output below the given offsets as consumed. An exec in output mode `block` that waits for its reader then continues.
#[utoipa::path(
    put,
    path = "/v1/sandboxes/{sandbox}/execs/{exec}/read",
    operation_id = "acknowledgeExecOutput",
    tag = "execs",
    params(ExecPath, AcknowledgeQuery),
    security(("key" = [])),
    responses((status = 204), (status = "default", body = Error))
)]
pub async fn read(
    caller: Caller<Write>,
    State(platform): State<Arc<Platform>>,
    Path(ExecPath { sandbox: named, exec }): Path<ExecPath>,
    Query(taken): Query<AcknowledgeQuery>,
) -> Answer<StatusCode> {
    let call = call(&caller, &platform, &named).await?;
    call.exec_reader(exec_id(&exec)?).take(taken.stdout, taken.stderr).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Write to standard input
///
/// Sends a chunk of at most 1 MiB. Responds when the chunk was received.
#[utoipa::path(
    put,
    path = "/v1/sandboxes/{sandbox}/execs/{exec}/stdin",
    operation_id = "writeExecStdin",
    tag = "execs",
    params(ExecPath, StdinQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    security(("key" = [])),
    responses((status = 200, body = Received), (status = "default", body = Error))
)]
pub async fn stdin(
    caller: Caller<Write>,
    State(platform): State<Arc<Platform>>,
    Path(ExecPath { sandbox: named, exec }): Path<ExecPath>,
    Query(piece): Query<StdinQuery>,
    request: Request,
) -> Answer<Json<Received>> {
    let id = exec_id(&exec)?;
    let bytes = body::bytes(request, STDIN_BYTES_MAX).await?;
    let call = call(&caller, &platform, &named).await?;
    let received = call.exec_reader(id).write_stdin(piece.offset, bytes, piece.last, STDIN_WITHIN).await?;
    Ok(Json(Received { received }))
}

/// Send a signal
///
/// Sends a signal to all processes of an exec.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{sandbox}/execs/{exec}/signal",
    operation_id = "signalExec",
    tag = "execs",
    params(ExecPath),
    request_body = SignalRequest,
    security(("key" = [])),
    responses((status = 200, body = Signaled), (status = "default", body = Error))
)]
pub async fn signal(
    caller: Caller<Write>,
    State(platform): State<Arc<Platform>>,
    Path(ExecPath { sandbox: named, exec }): Path<ExecPath>,
    Sent(request): Sent<SignalRequest>,
) -> Answer<Json<Signaled>> {
    let id = exec_id(&exec)?;
    let call = call(&caller, &platform, &named).await?;
    platform.note(&caller, Act::ExecSignal, |entry| entry.exec(&id));
    Ok(Json(Signaled { processes: call.exec_reader(id).signal(request.signal).await? }))
}

/// Starts a call to a running sandbox of the caller's project.
///
/// # Errors
/// Returns an error if the sandbox does not exist or has ended.
pub async fn call(caller: &Grant, platform: &Platform, named: &str) -> Answer<Call> {
    let sandbox = platform.running(caller, named).await?;
    Ok(platform.node.call(&sandbox.id).await?)
}

/// Returns the state of an exec.
///
/// # Errors
/// Returns an error if the exec does not exist.
pub async fn info(call: &Call, exec: &str) -> Answer<ExecInfo> {
    let id = exec_id(exec)?;
    let execs = call.execs().await?;
    Ok(execs.into_iter().find(|info| info.id == id).ok_or_else(|| missing(exec))?)
}

/// Parses an exec ID.
///
/// # Errors
/// Returns `not_found`, as for an exec that does not exist, if the text is not a valid ID.
pub fn exec_id(text: &str) -> Answer<ExecId> {
    Ok(text.parse().map_err(|_| missing(text))?)
}

fn missing(text: &str) -> Error {
    let shown: String = text.chars().take(api::id::ID_BYTES_MAX).collect();
    Error {
        fix: "List the execs of the sandbox and use one of those.".into(),
        ..Error::not_found(format!("there is no exec {shown:?}"))
    }
}

fn yes() -> bool {
    true
}
