//! The HTTP routes of the channel between node and guest. The modules that implement the requests document
//! their effects.
//!
//! | request | answer |
//! |---|---|
//! | `PUT /execs/{id}` with an `ExecSpec` | `ExecInfo`; repeating the same request starts nothing |
//! | `GET /execs` | all execs, as a list of `ExecInfo` |
//! | `GET /execs/{id}/output?stdout=N&stderr=M&results=K` | frames from these offsets on, until the exec ends |
//! | `PUT /execs/{id}/read?stdout=N&stderr=M` | acknowledges all output below these offsets |
//! | `PUT /execs/{id}/stdin?offset=N[&last=1]` | writes the body to standard input |
//! | `PUT /execs/{id}/size` with a `TerminalSize` | resizes the exec's terminal |
//! | `POST /execs/{id}/signal` with a `SignalRequest` | sends the signal to all processes of the exec |
//! | `DELETE /execs/{id}` | ends the exec with the outcome `cancelled` |
//! | `PUT /ttl/{ms}` | sets the time to live, counted from now, and resumes the deadlines of execs if they were stopped |
//! | `PUT /hold/{ms}` | sets the time to live, and stops the deadlines of execs, because the sandbox is about to be paused |
//! | `PUT /interpreter` with an `InterpreterSpec` | configures the next start of the parent interpreter |
//! | `GET /interpreter` | `InterpreterInfo`; starts the parent interpreter if necessary |
//! | `PUT /contexts/{id}` with a `ContextSpec` | `ContextInfo`; repeating the same request creates nothing |
//! | `GET /contexts`, `DELETE /contexts/{id}` | all contexts; removes the context |
//! | `POST /contexts/{id}/restart`, `…/interrupt` | `ContextInfo` |
//! | `GET /contexts/{id}/variables` | a list of `Variable` |
//! | `POST /files` with parts | parts: see `api::files` |
//! | `POST /ports/{port}` | a connection to that port in the sandbox: the body is the server's input, the answer its output |
//! | `POST /egress` | the next connection to the proxy's port in the sandbox: the answer is the program's output, the body its input |
//! | `PUT /authority` with a certificate | makes programs trust this certificate authority, in addition to the template's |
//! | `PUT /layer?compression=C&top=0|1&done=N` | `LayerReport`; unpacks the archive in the body as a layer |
//! | `GET /layer?of=N|upper` | an archive of layer N, or of a build's changes after all its processes were killed |

use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use api::exec::{ExecSpec, SignalRequest, Stream};
use api::layer::Compression;
use api::{ContextId, Error, ErrorCode, ExecId, Layer, Ran, Retry, limits};
use bytes::Bytes;
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::process::Signal;
use streamed::Streamed;
use tokio::net::{TcpListener, UnixStream};

use crate::egress;
use crate::files;
use crate::guest::Guest;
use crate::layer::{self, UnpackRequest};
use crate::output::{self, Position};
use crate::ports::{self, PortOutput};
use crate::sweep::{self, Whom};
use crate::trust;

/// Interval between keep-alive pings, and timeout for an answer. If no answer arrives in time, the guest
/// considers the node gone and dials again.
const PING_EVERY: Duration = Duration::from_secs(5);
const PING_WITHIN: Duration = Duration::from_secs(10);
/// Shorter interval and timeout for a connection through an intermediary, which may keep the connection open
/// after the node is gone. Until the guest notices, it serves no other connection. So interval plus timeout
/// must be shorter than the time that a request waits for a connection.
const ENGINE_PING_EVERY: Duration = Duration::from_secs(2);
const ENGINE_PING_WITHIN: Duration = Duration::from_secs(4);
/// Maximum number of concurrent requests on one connection: one for every exec of a full table, plus a margin
/// for other requests.
const STREAMS_MAX: u32 = 4096;
/// Maximum unread output of one request that the guest buffers for a slow reader.
const SEND_BUFFER_BYTES: usize = 512 * 1024;
/// Maximum size of a frame. It is larger than HTTP/2's default, so that transferring a layer takes fewer
/// wake-ups.
const FRAME_BYTES: u32 = 256 * 1024;
/// Maximum data of one request that is in flight or not yet consumed by the guest.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// The same maximum for all requests of a connection together. This is the largest value in HTTP/2, so it is
/// effectively unlimited. With a lower limit, input that one process does not read would use up the window of
/// all other requests (attack A-16). The server limits bodies per project.
const CONNECTION_WINDOW_BYTES: u32 = (1 << 31) - 1;
/// Maximum number of queued frames per reader.
const FRAMES_WAITING: usize = 2;

type ResponseBody = Either<Full<Bytes>, Either<Streamed, Either<files::FileResponseBody, PortOutput>>>;
type RouteResult = Result<Response<ResponseBody>, Error>;

/// Executor that runs hyper's tasks on this thread.
#[derive(Clone)]
struct Local;

impl<F: Future + 'static> hyper::rt::Executor<F> for Local {
    fn execute(&self, task: F) {
        tokio::task::spawn_local(async move {
            task.await;
        });
    }
}

/// Serves a connection to the node until the connection ends.
pub async fn serve(stream: UnixStream, guest: Rc<Guest>, way_out: Rc<Option<TcpListener>>) {
    let (every, within) = match guest.processes.is_relayed() {
        true => (ENGINE_PING_EVERY, ENGINE_PING_WITHIN),
        false => (PING_EVERY, PING_WITHIN),
    };
    let service = service_fn(move |request| answer(request, Rc::clone(&guest), Rc::clone(&way_out)));
    let _ = hyper::server::conn::http2::Builder::new(Local)
        .timer(TokioTimer::new())
        .keep_alive_interval(every)
        .keep_alive_timeout(within)
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .max_frame_size(FRAME_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn answer(
    request: Request<Incoming>,
    guest: Rc<Guest>,
    way_out: Rc<Option<TcpListener>>,
) -> Result<Response<ResponseBody>, Infallible> {
    Ok(route(request, guest, way_out).await.unwrap_or_else(|error| {
        let status = match error.code {
            ErrorCode::NotFound => StatusCode::NOT_FOUND,
            ErrorCode::Conflict | ErrorCode::NotRegular => StatusCode::CONFLICT,
            ErrorCode::Capacity => StatusCode::TOO_MANY_REQUESTS,
            ErrorCode::Platform => StatusCode::INTERNAL_SERVER_ERROR,
            ErrorCode::SpawnFailed
            | ErrorCode::InvalidRequest
            | ErrorCode::LimitExceeded
            | ErrorCode::Unsupported
            | ErrorCode::PostureMismatch
            | ErrorCode::SandboxLost
            | ErrorCode::Protocol
            | ErrorCode::Deadline
            // Only the server uses the following codes, because a guest has no keys, quotas or store.
            | ErrorCode::QuotaExceeded
            | ErrorCode::RateLimited
            | ErrorCode::Unauthorized
            | ErrorCode::Forbidden
            | ErrorCode::TierUnavailable
            | ErrorCode::TooLarge
            | ErrorCode::VersionUnsupported
            | ErrorCode::StoreUnavailable => StatusCode::BAD_REQUEST,
        };
        json(status, &error).unwrap_or_else(|_| Response::new(full(Bytes::new())))
    }))
}

async fn route(
    request: Request<Incoming>,
    guest: Rc<Guest>,
    way_out: Rc<Option<TcpListener>>,
) -> RouteResult {
    let (parts, body) = request.into_parts();
    let query = parts.uri.query().unwrap_or_default();
    let path: Vec<&str> = parts.uri.path().split('/').skip(1).collect();
    match (&parts.method, path.as_slice()) {
        (&Method::GET, ["execs"]) => json(StatusCode::OK, &guest.execs.list()),
        (&Method::PUT, ["execs", id]) => start(exec_id(id)?, body, &guest).await,
        (&Method::DELETE, ["execs", id]) => {
            guest.execs.cancel(&exec_id(id)?)?;
            json(StatusCode::OK, &())
        }
        (&Method::GET, ["execs", id, "output"]) => {
            let exec = guest.execs.exec(&exec_id(id)?)?;
            let position = position(query)?;
            exec.begun().await?;
            let (sender, channel) = streamed::body(FRAMES_WAITING);
            tokio::task::spawn_local(output::send(exec, position, sender));
            Ok(Response::new(Either::Right(Either::Left(channel))))
        }
        (&Method::PUT, ["execs", id, "read"]) => {
            let exec = guest.execs.exec(&exec_id(id)?)?;
            let position = position(query)?;
            exec.consume(Stream::Stdout, position.stdout);
            exec.consume(Stream::Stderr, position.stderr);
            json(StatusCode::OK, &())
        }
        (&Method::PUT, ["execs", id, "stdin"]) => stdin(exec_id(id)?, query, body, &guest).await,
        (&Method::PUT, ["execs", id, "size"]) => {
            let exec = guest.execs.exec(&exec_id(id)?)?;
            json(StatusCode::OK, &exec.resize(parse(&collect(body).await?)?)?)
        }
        (&Method::POST, ["execs", id, "signal"]) => signal(exec_id(id)?, body, &guest).await,
        (&Method::PUT, ["ttl", ms]) => {
            guest.release(milliseconds(ms)?);
            json(StatusCode::OK, &())
        }
        (&Method::PUT, ["hold", ms]) => {
            guest.hold(milliseconds(ms)?);
            json(StatusCode::OK, &())
        }
        (&Method::PUT, ["interpreter"]) => {
            json(StatusCode::OK, &guest.parent.set(parse(&collect(body).await?)?))
        }
        (&Method::GET, ["interpreter"]) => json(StatusCode::OK, &guest.parent.info().await?),
        (method, ["contexts", rest @ ..]) => contexts(method, rest, body, &guest).await,
        (&Method::POST, ["files"]) => Ok(Response::new(Either::Right(Either::Right(Either::Left(
            files::serve(body, number(query, "uid")?, &guest.assistants).await?,
        ))))),
        (&Method::POST, ["ports", port]) => Ok(Response::new(Either::Right(Either::Right(Either::Right(
            ports::open(api::ports::number(port)?, body).await?,
        ))))),
        (&Method::POST, ["egress"]) => {
            let said = egress::next(way_out.as_ref().as_ref(), body).await?;
            Ok(Response::new(Either::Right(Either::Right(Either::Right(said)))))
        }
        (&Method::GET, ["layer"]) => {
            let (sender, channel) = streamed::body(FRAMES_WAITING);
            layer::get(value(query, "of").unwrap_or_default(), guest.processes.in_user_kernel(), sender)
                .await?;
            Ok(Response::new(Either::Right(Either::Left(channel))))
        }
        (&Method::PUT, ["authority"]) => json(StatusCode::OK, &trust::put(&collect(body).await?)?),
        (&Method::PUT, ["layer"]) => json(StatusCode::OK, &layer::put(order(query)?, body).await?),
        _ => Err(Error::not_found(format!("there is no route {} {}", parts.method, parts.uri.path()))),
    }
}

async fn start(id: ExecId, body: Incoming, guest: &Guest) -> RouteResult {
    let bytes = collect(body).await?;
    let spec: ExecSpec = parse(&bytes)?;
    let exec = guest.start(id, spec, &bytes).await?;
    json(StatusCode::OK, &exec.info(1))
}

async fn contexts(method: &Method, path: &[&str], body: Incoming, guest: &Guest) -> RouteResult {
    let id = |text: &str| -> Result<ContextId, Error> {
        text.parse().map_err(|bad: api::id::NotAnId| Error::invalid(bad.to_string(), "Use a valid id."))
    };
    match (method, path) {
        (&Method::GET, []) => json(StatusCode::OK, &guest.contexts.list()),
        (&Method::PUT, [name]) => {
            json(StatusCode::OK, &guest.contexts.make(id(name)?, parse(&collect(body).await?)?).await?)
        }
        (&Method::DELETE, [name]) => json(StatusCode::OK, &guest.contexts.remove(&id(name)?).await?),
        (&Method::POST, [name, "restart"]) => {
            let context = guest.contexts.find(&id(name)?)?;
            context.restart().await?;
            json(StatusCode::OK, &context.info())
        }
        (&Method::POST, [name, "interrupt"]) => {
            let context = guest.contexts.find(&id(name)?)?;
            context.interrupt();
            json(StatusCode::OK, &context.info())
        }
        (&Method::GET, [name, "variables"]) => {
            json(StatusCode::OK, &guest.contexts.find(&id(name)?)?.variables().await?)
        }
        _ => Err(Error::not_found("there is no such context route")),
    }
}

fn milliseconds(text: &str) -> Result<Duration, Error> {
    let ms =
        text.parse().map_err(|_| Error::not_found(format!("{text:?} is not a number of milliseconds")))?;
    Ok(Duration::from_millis(ms))
}

async fn stdin(id: ExecId, query: &str, mut body: Incoming, guest: &Guest) -> RouteResult {
    let exec = guest.execs.exec(&id)?;
    let stdin = &exec.stdin;
    let is_last = number(query, "last")?.is_some();
    if is_last && exec.is_terminal() {
        return Err(Error::invalid(
            "stdin of a terminal cannot be closed",
            "Send byte 4 (Ctrl-D), or cancel the exec.",
        ));
    }
    let mut offset = number(query, "offset")?.unwrap_or_else(|| stdin.received());
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|error| Error::invalid(error.to_string(), "Send the remaining input again."))?;
        if let Ok(bytes) = frame.into_data() {
            stdin.write(offset, &bytes).await?;
            offset += bytes.len() as u64;
        }
    }
    if is_last {
        stdin.close();
    }
    json(StatusCode::OK, &stdin.received())
}

async fn signal(id: ExecId, body: Incoming, guest: &Guest) -> RouteResult {
    let exec = guest.execs.exec(&id)?;
    let request: SignalRequest = parse(&collect(body).await?)?;
    let wanted = Signal::from_named_raw(request.signal).ok_or_else(|| {
        Error::invalid(
            format!("{} is not a signal number", request.signal),
            "Use a signal from signal(7), such as 2, 9 or 15.",
        )
    })?;
    json(StatusCode::OK, &sweep::signal(Whom::Group(exec.group()), wanted))
}

async fn collect(body: Incoming) -> Result<Bytes, Error> {
    match Limited::new(body, limits::BODY_BYTES_MAX).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) => {
            Err(Error::invalid(format!("cannot read the request body: {error}"), "Send a smaller body."))
        }
    }
}

fn parse<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(bytes)
        .map_err(|error| Error::invalid(format!("invalid request body: {error}"), "Fix the request body."))
}

fn exec_id(text: &str) -> Result<ExecId, Error> {
    text.parse().map_err(|bad: api::id::NotAnId| Error::invalid(bad.to_string(), "Use a valid id."))
}

fn position(query: &str) -> Result<Position, Error> {
    Ok(Position {
        stdout: number(query, "stdout")?.unwrap_or(0),
        stderr: number(query, "stderr")?.unwrap_or(0),
        results: number(query, "results")?.unwrap_or(0),
    })
}

fn order(query: &str) -> Result<UnpackRequest, Error> {
    let compression = value(query, "compression").and_then(Compression::from_name);
    let done = number(query, "done")?.and_then(|done| usize::try_from(done).ok());
    match (compression, number(query, "top")?, done) {
        (Some(compression), Some(top @ (0 | 1)), Some(done)) => {
            Ok(UnpackRequest { compression, top: top == 1, done })
        }
        _ => Err(Error::invalid(
            "compression, top or done is missing or unknown",
            "Set compression to none, gzip or zstd, top to 0 or 1, and done to a number.",
        )),
    }
}

fn value<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

fn number(query: &str, name: &str) -> Result<Option<u64>, Error> {
    value(query, name)
        .map(|text| text.parse())
        .transpose()
        .map_err(|_| Error::invalid(format!("{name} is not a number"), "Use a decimal number."))
}

fn json<T: serde::Serialize>(status: StatusCode, value: &T) -> RouteResult {
    let bytes = serde_json::to_vec(value)
        .map_err(|error| platform(format!("cannot serialize a response: {error}")))?;
    let mut response = Response::new(full(bytes.into()));
    *response.status_mut() = status;
    Ok(response)
}

fn platform(message: String) -> Error {
    let (code, layer) = (ErrorCode::Platform, Layer::Platform);
    let fix = "Report this error together with the guest's version.".into();
    Error { code, message, layer, ran: Ran::Unknown, retry: Retry::Unknown, fix }
}

fn full(bytes: Bytes) -> ResponseBody {
    Either::Left(Full::new(bytes))
}
