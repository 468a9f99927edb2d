//! The simulated guest: a table of execs, and the channel's routes that a node needs to control them.
//!
//! | request | answer |
//! |---|---|
//! | `PUT /execs/{id}` with an `ExecSpec` | `ExecInfo`; sending the same request again starts nothing |
//! | `GET /execs` | all execs, as a list of `ExecInfo` |
//! | `GET /execs/{id}/output?stdout=N` | frames from this offset to the end |
//! | `PUT /execs/{id}/read?stdout=N` | acknowledges the output below this offset |
//! | `PUT /execs/{id}/stdin?offset=N[&last=1]` | counts the bytes; no program reads them |
//! | `POST /execs/{id}/signal` with a `SignalRequest` | kills the exec: no program handles signals |
//! | `PUT /execs/{id}/size` with a `TerminalSize` | resizes the exec's terminal |
//! | `DELETE /execs/{id}` | cancels the exec: outcome `cancelled` |
//! | `PUT /ttl/{ms}` | sets the time to live, counted from now |
//! | `/interpreter`, `/contexts/…`, an `ExecSpec` with code | `unsupported` |
//!
//! The guest has no thread of its own. While it has no connection and no running exec, its only async task is
//! the time-to-live timer.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::exec::{ExecInfo, ExecSpec, Outcome, SignalRequest};
use api::{Error, ErrorCode, ExecId, Layer, Ran, Retry, limits};
use bytes::Bytes;
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use streamed::Streamed;
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use super::exec::SimExec;
use super::program::Program;
use super::world::until_gone;
use crate::Exit;

/// Maximum number of concurrent requests on one connection: enough to attach to every exec of a full table,
/// with room for other requests.
const STREAMS_MAX: u32 = 4096;
/// Maximum number of frames queued for a slow reader.
const FRAMES_WAITING: usize = 2;
/// Highest signal number on Linux.
const SIGNAL_MAX: i32 = 64;

/// Process 1 of one sandbox.
pub(super) struct Guest {
    /// Whether process 1 is alive, and how it ended.
    pub life: Life,
    /// Limits the guest to one connection. The task that serves the connection holds the permit.
    pub line: Arc<Semaphore>,
    /// The execs in the order of their starts. When the table is full, the oldest exec that has ended is
    /// removed.
    execs: Mutex<VecDeque<Arc<SimExec>>>,
    /// Time when the guest ends, whether or not a node is connected.
    expires: watch::Sender<Instant>,
}

/// The state of a sandbox's process 1, which can end only once.
pub(super) struct Life {
    exit: watch::Sender<Option<Exit>>,
}

type SimBody = Either<Full<Bytes>, Streamed>;
type SimReply = Result<Response<SimBody>, Error>;

impl Guest {
    /// Creates a guest without execs.
    pub fn new() -> Self {
        let life = Life { exit: watch::Sender::new(None) };
        let expires = watch::Sender::new(Instant::now());
        Self { life, line: Arc::new(Semaphore::new(1)), execs: Mutex::default(), expires }
    }

    /// Sets the time to live, counted from now.
    pub fn live_for(&self, ttl: Duration) {
        self.expires.send_replace(Instant::now() + ttl);
    }

    /// Waits until the time to live has expired.
    pub async fn expired(&self) {
        let mut expires = self.expires.subscribe();
        loop {
            let at = *expires.borrow_and_update();
            tokio::select! {
                () = tokio::time::sleep_until(at) => return,
                // This never fails, because `self` holds the sender.
                _ = expires.changed() => {}
            }
        }
    }

    fn execs(&self) -> MutexGuard<'_, VecDeque<Arc<SimExec>>> {
        self.execs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn exec(&self, id: &str) -> Result<Arc<SimExec>, Error> {
        let execs = self.execs();
        let found = execs.iter().find(|exec| exec.id.as_str() == id);
        found.map(Arc::clone).ok_or_else(|| Error::not_found(format!("there is no exec {id}")))
    }

    /// Starts an exec, or returns the exec that an identical earlier request started.
    fn start(self: &Arc<Self>, id: ExecId, body: &[u8]) -> Result<ExecInfo, Error> {
        let spec: ExecSpec = parse(body)?;
        spec.check()?;
        let fingerprint = fingerprint(body);
        let mut execs = self.execs();
        if let Some(exec) = execs.iter().find(|exec| exec.id == id) {
            return if exec.fingerprint == fingerprint { Ok(exec.info()) } else { Err(taken(&id)) };
        }
        if spec.code.is_some() {
            return Err(no_interpreter());
        }
        let program = Program::find(&spec.argv)?;
        make_room(&mut execs)?;
        let exec = Arc::new(SimExec::new(id, &spec, fingerprint));
        execs.push_back(Arc::clone(&exec));
        let (guest, info) = (Arc::clone(self), exec.info());
        tokio::spawn(async move {
            tokio::select! {
                // The sandbox has ended, so nothing can receive the exec's outcome.
                _ = guest.life.ended() => {}
                () = exec.live(program) => {}
            }
        });
        Ok(info)
    }
}

impl Life {
    pub fn is_on(&self) -> bool {
        self.exit.borrow().is_none()
    }

    /// Records how process 1 ended. Only the first call has an effect.
    pub fn end(&self, exit: Exit) {
        self.exit.send_if_modified(|now| {
            let is_first = now.is_none();
            now.get_or_insert(exit);
            is_first
        });
    }

    /// Waits until process 1 has ended, and returns how it ended.
    pub async fn ended(&self) -> Exit {
        let mut exit = self.exit.subscribe();
        let ended = exit.wait_for(Option::is_some).await;
        ended.ok().and_then(|exit| *exit).unwrap_or(Exit::Unknown)
    }
}

/// Serves a connection until it closes, the guest ends, or the node's process dies.
pub(super) async fn serve(stream: UnixStream, guest: Arc<Guest>, process: watch::Receiver<bool>) {
    let table = Arc::clone(&guest);
    let service = service_fn(move |request| answer(request, Arc::clone(&table)));
    let connection = http2::Builder::new(TokioExecutor::new())
        .max_concurrent_streams(STREAMS_MAX)
        .serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        biased;
        () = until_gone(process) => {}
        _ = guest.life.ended() => {}
        _ = connection => {}
    }
}

async fn answer(request: Request<Incoming>, guest: Arc<Guest>) -> Result<Response<SimBody>, Infallible> {
    Ok(route(request, guest).await.unwrap_or_else(|error| {
        let status = if error.code == ErrorCode::NotFound {
            StatusCode::NOT_FOUND
        } else if error.code == ErrorCode::Conflict {
            StatusCode::CONFLICT
        } else {
            StatusCode::BAD_REQUEST
        };
        json(status, &error).unwrap_or_else(|_| Response::new(Either::Left(Full::default())))
    }))
}

async fn route(request: Request<Incoming>, guest: Arc<Guest>) -> SimReply {
    let (parts, body) = request.into_parts();
    let query = parts.uri.query().unwrap_or_default();
    let path: Vec<&str> = parts.uri.path().split('/').skip(1).collect();
    match (&parts.method, path.as_slice()) {
        (&Method::GET, ["execs"]) => {
            let infos: Vec<ExecInfo> = guest.execs().iter().map(|exec| exec.info()).collect();
            json(StatusCode::OK, &infos)
        }
        (&Method::PUT, ["execs", id]) => {
            let id = id
                .parse()
                .map_err(|bad: api::id::NotAnId| Error::invalid(bad.to_string(), "Use a valid id."))?;
            json(StatusCode::OK, &guest.start(id, &collect(body).await?)?)
        }
        (&Method::DELETE, ["execs", id]) => {
            guest.exec(id)?.ask_to_end(Outcome::Cancelled);
            json(StatusCode::OK, &())
        }
        (&Method::GET, ["execs", id, "output"]) => {
            let (exec, at) = (guest.exec(id)?, number(query, "stdout")?.unwrap_or(0));
            let (sender, channel) = streamed::body(FRAMES_WAITING);
            tokio::spawn(exec.send(at, sender));
            Ok(Response::new(Either::Right(channel)))
        }
        (&Method::PUT, ["execs", id, "read"]) => {
            guest.exec(id)?.consume(number(query, "stdout")?.unwrap_or(0));
            json(StatusCode::OK, &())
        }
        (&Method::PUT, ["execs", id, "stdin"]) => {
            let (exec, bytes) = (guest.exec(id)?, collect(body).await?);
            let is_last = number(query, "last")?.is_some();
            json(StatusCode::OK, &exec.feed(number(query, "offset")?, bytes.len() as u64, is_last)?)
        }
        (&Method::PUT, ["execs", id, "size"]) => {
            json(StatusCode::OK, &guest.exec(id)?.resize(parse(&collect(body).await?)?)?)
        }
        (&Method::POST, ["execs", id, "signal"]) => {
            let (exec, request) = (guest.exec(id)?, parse::<SignalRequest>(&collect(body).await?)?);
            let signal = request.signal;
            if !(1..=SIGNAL_MAX).contains(&signal) {
                return Err(Error::invalid(
                    format!("{signal} is not a signal number"),
                    "Use a number from 1 to 64.",
                ));
            }
            let was_running = exec.info().processes;
            exec.ask_to_end(Outcome::Signaled { signal });
            json(StatusCode::OK, &was_running)
        }
        (&Method::PUT, ["ttl", ms]) => {
            let ms = ms.parse().map_err(|_| Error::not_found(format!("{ms:?} is not a number")))?;
            guest.live_for(Duration::from_millis(ms));
            json(StatusCode::OK, &())
        }
        (_, ["interpreter"] | ["contexts", ..]) => Err(no_interpreter()),
        _ => Err(Error::not_found(format!("there is no route {} {}", parts.method, parts.uri.path()))),
    }
}

/// Removes the oldest exec that has ended if the table is full.
fn make_room(execs: &mut VecDeque<Arc<SimExec>>) -> Result<(), Error> {
    if execs.len() < limits::EXECS_MAX {
        return Ok(());
    }
    let ended = execs.iter().position(|exec| exec.has_ended());
    match ended.and_then(|index| execs.remove(index)) {
        Some(_) => Ok(()),
        None => Err(Error {
            code: ErrorCode::Capacity,
            message: format!("{} execs are already running", limits::EXECS_MAX),
            layer: Layer::Sandbox,
            ran: Ran::No,
            retry: Retry::Safe,
            fix: "Wait until some execs have finished, or cancel some of them.".into(),
        }),
    }
}

fn no_interpreter() -> Error {
    Error {
        code: ErrorCode::Unsupported,
        message: "a simulated guest cannot run code".into(),
        layer: Layer::Platform,
        ran: Ran::No,
        retry: Retry::Useless,
        fix: "Use a real runtime.".into(),
    }
}

fn taken(id: &ExecId) -> Error {
    Error {
        code: ErrorCode::Conflict,
        message: format!("exec {id} was started by another request"),
        layer: Layer::UserCode,
        ran: Ran::No,
        retry: Retry::Useless,
        fix: "Choose a new id for a new exec.".into(),
    }
}

fn fingerprint(body: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(body);
    hasher.finish()
}

async fn collect(body: Incoming) -> Result<Bytes, Error> {
    let collected = Limited::new(body, limits::BODY_BYTES_MAX).collect().await;
    collected.map(|collected| collected.to_bytes()).map_err(|error| {
        Error::invalid(format!("the body could not be read: {error}"), "Send the body again.")
    })
}

fn parse<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(bytes)
        .map_err(|error| Error::invalid(format!("the body is not valid: {error}"), "Fix the body."))
}

fn number(query: &str, name: &str) -> Result<Option<u64>, Error> {
    let value = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    value
        .map(str::parse)
        .transpose()
        .map_err(|_| Error::invalid(format!("{name} is not a number"), "Give a decimal number."))
}

fn json<T: serde::Serialize>(status: StatusCode, value: &T) -> SimReply {
    let bytes = serde_json::to_vec(value).map_err(|error| {
        Error::invalid(format!("cannot serialize the response: {error}"), "Send another request.")
    })?;
    let mut response = Response::new(Either::Left(Full::new(bytes.into())));
    *response.status_mut() = status;
    Ok(response)
}
