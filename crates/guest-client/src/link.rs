//! The host end of the channel: one connection after the other, and requests that outlive them.
//!
//! ```text
//! waiting ──guest dials──▶ live ──connection breaks──▶ waiting        process 1 gone ──▶ ended, for good
//! ```
//!
//! Everything that can be asked of a guest can be asked twice (execs have ids, bytes have offsets), so a request
//! whose connection breaks is sent again on the next one, until its deadline. The one exception is a body that is
//! made while it is sent ([`Link::stream`]): there is no second one; and what must not be done twice ([`Link::ask_once`]).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use api::exec::{GUEST_EXPIRED, LostCause};
use api::{ExecId, SandboxId, limits};
use bytes::Bytes;
use host::error::Error;
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use runtime::{Exit, Runtime};
use streamed::Streamed;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::port::{self, Inwards};

/// What one reader's unread output may hold in this process: two of the guest's chunks. Readers are counted by project.
const STREAM_WINDOW_BYTES: u32 = 512 * 1024;
/// No bound on top of that, the largest that HTTP/2 has: with one, whoever opens a stream and does not read it would use up what
/// every other answer of the guest needs (O-02).
const CONNECTION_WINDOW_BYTES: u32 = (1 << 31) - 1;
/// Larger frames than HTTP/2's default carry a flood with fewer wake-ups; smaller ones let an answer pass between those of many
/// floods, each of which sends one in its turn.
const FRAME_BYTES: u32 = 64 * 1024;
/// A guest that is alive answers pings; one that was stopped or starved for this long is dialled anew.
const PING_EVERY: Duration = Duration::from_secs(5);
const PING_WITHIN: Duration = Duration::from_secs(10);
/// One wait for a dial. The loop around it has no end: the guest redials for as long as it lives.
const DIAL_WITHIN: Duration = Duration::from_secs(30);

/// Between two tries to take a sandbox in hand that somebody else still has.
const TAKE_AGAIN: Duration = Duration::from_millis(20);

type Sender = SendRequest<Either<Full<Bytes>, Either<Streamed, Inwards>>>;

/// The link to one guest. Dropping it leaves the sandbox alone.
pub struct Link {
    state: watch::Receiver<State>,
    stopping: Arc<watch::Sender<Option<LostCause>>>,
    overdue: OnceLock<ExecId>,
    pause: watch::Sender<Pause>,
    /// How often the sandbox was paused.
    pauses: AtomicU64,
    tasks: [tokio::task::JoinHandle<()>; 2],
}

#[derive(Clone)]
enum State {
    Waiting,
    Live { sender: Sender, generation: u64 },
    Ended(LostCause),
}

/// Whether a sandbox is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// It is not.
    None,
    /// It is about to be paused, or to run again. New calls wait, and its guest still answers.
    Changing,
    /// Its processes are frozen.
    Frozen,
}

/// A request that can be sent as often as it takes.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The method.
    pub method: Method,
    /// The path with its query.
    pub path: String,
    /// The body.
    pub body: Bytes,
}

impl Link {
    /// Keeps a link to the guest of `id` until the sandbox ends.
    pub fn new(runtime: Arc<dyn Runtime>, id: SandboxId) -> Self {
        let (sender, state) = watch::channel(State::Waiting);
        let sender = Arc::new(sender);
        let stopping = Arc::new(watch::Sender::new(None));
        let pause = watch::Sender::new(Pause::None);
        let keeping = (Arc::clone(&sender), pause.subscribe());
        let keep = tokio::spawn(keep(Arc::clone(&runtime), id.clone(), keeping));
        let mourn = tokio::spawn(mourn(runtime, id, sender, stopping.subscribe()));
        let pauses = AtomicU64::new(0);
        Self { state, stopping, overdue: OnceLock::new(), pause, pauses, tasks: [keep, mourn] }
    }

    /// The sandbox is ended for this exec, which went on after its deadline: how that one ended is no secret.
    pub fn overdue(&self, exec: &ExecId) {
        let _ = self.overdue.set(exec.clone());
    }

    /// Whether it was this exec for which the sandbox was ended.
    pub fn was_overdue(&self, exec: &ExecId) -> bool {
        self.overdue.get() == Some(exec)
    }

    /// From now on the end of the sandbox is wanted, and this will have been its cause.
    pub fn stopping(&self, cause: LostCause) {
        self.stopping.send_replace(Some(cause));
    }

    /// Records whether the sandbox is paused.
    pub fn set_pause(&self, pause: Pause) {
        let before = self.pause.send_replace(pause);
        if before == Pause::None && pause != Pause::None {
            self.pauses.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Whether the sandbox is paused, being paused, or being resumed. One that has ended is not.
    pub fn is_paused(&self) -> bool {
        *self.pause.borrow() != Pause::None && !matches!(*self.state.borrow(), State::Ended(_))
    }

    /// How often the sandbox was paused since this process has it.
    pub fn pauses(&self) -> u64 {
        self.pauses.load(Ordering::Acquire)
    }

    /// Waits until the sandbox is not paused, or has ended.
    pub async fn resumed(&self) {
        let mut pause = self.pause.subscribe();
        let resumed = pause.wait_for(|pause| *pause == Pause::None);
        tokio::select! {
            _ = resumed => {}
            _ = self.ended() => {}
        }
    }

    /// Waits until the guest has dialled.
    ///
    /// # Errors
    /// The sandbox has ended, or the deadline has come.
    pub async fn ready(&self, within: Duration) -> Result<(), Error> {
        self.live(0, Instant::now() + within, within).await.map(|_| ())
    }

    /// Waits until the sandbox has ended, and says why.
    pub async fn ended(&self) -> LostCause {
        loop {
            if let State::Ended(cause) = self.reach(|state| matches!(state, State::Ended(_))).await {
                return cause;
            }
        }
    }

    /// Asks and takes the answer's head; its body may be long.
    ///
    /// # Errors
    /// What the guest said, the end of the sandbox, or the deadline.
    pub async fn ask(&self, ask: &Ask, within: Duration) -> Result<Response<Incoming>, Error> {
        let deadline = Instant::now() + within;
        let mut last = 0;
        loop {
            let (mut sender, generation) = self.live(last, deadline, within).await?;
            let request = ask.request(Either::Left(Full::new(ask.body.clone())))?;
            match timeout_at(deadline, sender.send_request(request)).await {
                Err(_) => return Err(Error::Deadline { what: "the request to the guest", after: within }),
                Ok(Ok(response)) if response.status().is_success() => return Ok(response),
                Ok(Ok(response)) => return Err(refusal(response, deadline, within).await),
                Ok(Err(_broken)) => last = generation,
            }
        }
    }

    /// Asks and takes the whole answer.
    ///
    /// # Errors
    /// As [`Link::ask`]; and an answer that is too long or not what was expected.
    pub async fn call<T: serde::de::DeserializeOwned>(
        &self,
        ask: &Ask,
        within: Duration,
    ) -> Result<T, Error> {
        let deadline = Instant::now() + within;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let response = self.ask(ask, left).await?;
            match body(response, deadline, within).await {
                Ok(bytes) => {
                    return serde_json::from_slice(&bytes)
                        .map_err(|error| Error::Protocol(error.to_string()));
                }
                // The connection broke under the answer: what we ask can be asked again.
                Err(Error::Lost(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Asks once, with a body that is made while it is sent instead of the one in `ask`, and takes the whole answer.
    ///
    /// # Errors
    /// As [`Link::call`]; and the end of the connection, because what was sent cannot be sent again.
    pub async fn stream<T: serde::de::DeserializeOwned>(
        &self,
        ask: &Ask,
        streamed: Streamed,
        within: Duration,
    ) -> Result<T, Error> {
        let deadline = Instant::now() + within;
        let response = self.ask_once(ask, Some(streamed), within).await?;
        let bytes = body(response, deadline, within).await?;
        serde_json::from_slice(&bytes).map_err(|error| Error::Protocol(error.to_string()))
    }

    /// Asks for bytes both ways at once: what the answer's body says, and what is sent into the request's.
    ///
    /// # Errors
    /// As [`Link::ask`].
    pub(crate) async fn both_ways(
        &self,
        ask: &Ask,
        within: Duration,
    ) -> Result<(Response<Incoming>, port::Said), Error> {
        let deadline = Instant::now() + within;
        let mut last = 0;
        loop {
            let (mut sender, generation) = self.live(last, deadline, within).await?;
            let (said, inwards) = port::inwards();
            let request = ask.request(Either::Right(Either::Right(inwards)))?;
            match timeout_at(deadline, sender.send_request(request)).await {
                Err(_) => return Err(Error::Deadline { what: "the request to the guest", after: within }),
                Ok(Ok(response)) if response.status().is_success() => return Ok((response, said)),
                Ok(Ok(response)) => return Err(refusal(response, deadline, within).await),
                // Nothing was said on it yet.
                Ok(Err(_broken)) => last = generation,
            }
        }
    }

    /// Asks once, with a body that is made while it is sent if there is one, and takes the answer's head.
    ///
    /// # Errors
    /// As [`Link::ask`]; and the end of the connection.
    pub async fn ask_once(
        &self,
        ask: &Ask,
        streamed: Option<Streamed>,
        within: Duration,
    ) -> Result<Response<Incoming>, Error> {
        let deadline = Instant::now() + within;
        let (mut sender, _) = self.live(0, deadline, within).await?;
        let whole = Full::new(ask.body.clone());
        let body = streamed.map_or(Either::Left(whole), |body| Either::Right(Either::Left(body)));
        let request = ask.request(body)?;
        match timeout_at(deadline, sender.send_request(request)).await {
            Err(_) => Err(Error::Deadline { what: "the request to the guest", after: within }),
            Ok(Err(_broken)) => Err(Error::Lost(LostCause::Died)),
            Ok(Ok(response)) if response.status().is_success() => Ok(response),
            Ok(Ok(response)) => Err(refusal(response, deadline, within).await),
        }
    }

    /// A live connection newer than `last`.
    async fn live(&self, last: u64, deadline: Instant, within: Duration) -> Result<(Sender, u64), Error> {
        let wanted = self.reach(|state| match state {
            State::Waiting => false,
            State::Live { generation, .. } => *generation > last,
            State::Ended(_) => true,
        });
        let Ok(state) = timeout_at(deadline, wanted).await else {
            return Err(Error::Deadline { what: "connecting to the guest", after: within });
        };
        match state {
            State::Live { sender, generation } => Ok((sender, generation)),
            State::Ended(cause) => Err(Error::Lost(cause)),
            State::Waiting => Err(Error::Lost(LostCause::Died)),
        }
    }

    /// Waits for such a state. Whoever would tell of it ends with this process, as it does with a server that stops; the sandbox
    /// does not, and then nothing is ever told of it here.
    async fn reach(&self, wanted: impl FnMut(&State) -> bool) -> State {
        let mut state = self.state.clone();
        let reached = state.wait_for(wanted).await.map(|state| state.clone());
        match reached {
            Ok(state) => state,
            Err(_) => std::future::pending().await,
        }
    }
}

impl Ask {
    fn request<B>(&self, body: B) -> Result<Request<B>, Error> {
        Request::builder()
            .method(self.method.clone())
            .uri(format!("http://guest{}", self.path))
            .body(body)
            .map_err(|error| Error::Protocol(error.to_string()))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Takes one dial after the other.
async fn keep(
    runtime: Arc<dyn Runtime>,
    id: SandboxId,
    (state, mut pause): (Arc<watch::Sender<State>>, watch::Receiver<Pause>),
) {
    let mut generation = 0;
    loop {
        // A frozen guest does not dial, and an engine refuses to be asked about it.
        if pause.wait_for(|pause| *pause != Pause::Frozen).await.is_err() {
            return;
        }
        let stream = match runtime.connect(&id, DIAL_WITHIN).await {
            Ok(stream) => stream,
            Err(runtime::Error::Deadline { .. } | runtime::Error::Impostor { .. }) => continue,
            // The one who waits for process 1 says why.
            Err(runtime::Error::NotFound(_) | runtime::Error::Ended(_)) => return,
            // Everything else passes: what the server before this one had just forked holds its locks for a moment.
            Err(_) => {
                tokio::time::sleep(TAKE_AGAIN).await;
                continue;
            }
        };
        generation += 1;
        let Ok((sender, connection)) = handshake(stream).await else { continue };
        publish(&state, State::Live { sender, generation });
        let _ = connection.await;
        publish(&state, State::Waiting);
    }
}

/// Waits for the end of process 1 and says why it came.
async fn mourn(
    runtime: Arc<dyn Runtime>,
    id: SandboxId,
    state: Arc<watch::Sender<State>>,
    stopping: watch::Receiver<Option<LostCause>>,
) {
    let exit = loop {
        match runtime.wait(&id).await {
            // Only those are an end. A machine without descriptors, say, cannot tell and must not be taken to have told.
            Ok(exit) => break exit,
            Err(runtime::Error::NotFound(_) | runtime::Error::Ended(_)) => break Exit::Unknown,
            Err(_) => tokio::time::sleep(TAKE_AGAIN).await,
        }
    };
    let struck = runtime.usage(&id).await.is_ok_and(|usage| usage.oom_kills > 0);
    let wanted = *stopping.borrow();
    let cause = match exit {
        _ if wanted.is_some() => wanted.unwrap_or(LostCause::Stopped),
        Exit::Exited(code) if code == i32::from(GUEST_EXPIRED) => LostCause::Expired,
        // Where process 1 shares the limit of memory, using it up can end it.
        _ if struck && runtime.shares_limits() => LostCause::Oom,
        Exit::Exited(_) | Exit::Signaled(_) | Exit::Unknown => LostCause::Died,
    };
    state.send_replace(State::Ended(cause));
}

/// The end is final: nothing replaces it.
fn publish(state: &watch::Sender<State>, next: State) {
    state.send_if_modified(|now| {
        let open = !matches!(now, State::Ended(_));
        if open {
            *now = next;
        }
        open
    });
}

async fn handshake(stream: UnixStream) -> hyper::Result<(Sender, impl Future<Output = hyper::Result<()>>)> {
    Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_WITHIN)
        .handshake(TokioIo::new(stream))
        .await
}

async fn refusal(response: Response<Incoming>, deadline: Instant, within: Duration) -> Error {
    let status = response.status();
    match body(response, deadline, within).await {
        Err(error) => error,
        Ok(bytes) => match serde_json::from_slice(&bytes) {
            Ok(error) => Error::Guest(error),
            Err(_) => Error::Protocol(format!("status {status} without an error body")),
        },
    }
}

async fn body(response: Response<Incoming>, deadline: Instant, within: Duration) -> Result<Bytes, Error> {
    match timeout_at(deadline, Limited::new(response.into_body(), limits::BODY_BYTES_MAX).collect()).await {
        Err(_) => Err(Error::Deadline { what: "the request to the guest", after: within }),
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
            Err(Error::Protocol("a response exceeds the maximum length".into()))
        }
        Ok(Err(_broken)) => Err(Error::Lost(LostCause::Died)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that stops ends its tasks in any order, those that watch sandboxes among them.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_stops_has_not_seen_its_sandboxes_die() {
        let (_, state) = watch::channel(State::Waiting);
        let done = || tokio::spawn(std::future::ready(()));
        let link = Link {
            state,
            stopping: Arc::new(watch::Sender::new(None)),
            overdue: OnceLock::new(),
            pause: watch::Sender::new(Pause::None),
            pauses: AtomicU64::new(0),
            tasks: [done(), done()],
        };
        let within = Duration::from_secs(5);
        assert!(tokio::time::timeout(within, link.ended()).await.is_err());
        assert!(matches!(link.ready(within).await, Err(Error::Deadline { .. })));
    }
}
