//! The host end of the channel: a sequence of connections, and requests that survive a broken connection.
//!
//! ```text
//! waiting ──guest dials──▶ live ──connection breaks──▶ waiting        process 1 exits ──▶ ended, final
//! ```
//!
//! Almost every request to a guest is idempotent (execs have IDs, bytes have offsets). If the connection
//! breaks during a request, the request is therefore sent again on the next connection, until its deadline.
//! There are two exceptions: a body that is produced while it is sent ([`GuestLink::stream`]) cannot be sent
//! again, and some requests must not be repeated ([`GuestLink::ask_once`]).

mod connection;
mod request;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use api::exec::LostCause;
use api::{ExecId, SandboxId};
use host::error::Error;
use http_body_util::{Either, Full};
use hyper::Response;
use hyper::body::Incoming;
use runtime::Runtime;
use streamed::Streamed;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

pub use request::GuestRequest;

use crate::port;
use connection::{LinkState, Sender, keep, mourn};
use request::{body, refusal};

/// The link to one guest. Dropping it does not affect the sandbox.
pub struct GuestLink {
    state: watch::Receiver<LinkState>,
    stopping: Arc<watch::Sender<Option<LostCause>>>,
    overdue: OnceLock<ExecId>,
    pause: watch::Sender<PauseState>,
    /// Number of times that the sandbox has been paused.
    pauses: AtomicU64,
    tasks: [tokio::task::JoinHandle<()>; 2],
}

/// The pause state of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseState {
    /// Not paused.
    None,
    /// Being paused or resumed. New calls wait, but the guest still responds.
    Changing,
    /// The sandbox's processes are frozen.
    Frozen,
}

impl GuestLink {
    /// Creates a link to the guest of sandbox `id`. The link is maintained until the sandbox ends.
    pub fn new(runtime: Arc<dyn Runtime>, id: SandboxId) -> Self {
        let (sender, state) = watch::channel(LinkState::Waiting);
        let sender = Arc::new(sender);
        let stopping = Arc::new(watch::Sender::new(None));
        let pause = watch::Sender::new(PauseState::None);
        let keep = keep(Arc::clone(&runtime), id.clone(), Arc::clone(&sender), pause.subscribe());
        let keep = tokio::spawn(keep);
        let mourn = tokio::spawn(mourn(runtime, id, sender, stopping.subscribe()));
        let pauses = AtomicU64::new(0);
        Self { state, stopping, overdue: OnceLock::new(), pause, pauses, tasks: [keep, mourn] }
    }

    /// Records that the sandbox is stopped because this exec ran past its deadline, so that the exec's
    /// outcome is reported as a timeout.
    pub fn overdue(&self, exec: &ExecId) {
        let _ = self.overdue.set(exec.clone());
    }

    /// Returns true if the sandbox was stopped because this exec ran past its deadline.
    pub fn was_overdue(&self, exec: &ExecId) -> bool {
        self.overdue.get() == Some(exec)
    }

    /// Records that the sandbox is being stopped deliberately, with the cause to report.
    pub fn stopping(&self, cause: LostCause) {
        self.stopping.send_replace(Some(cause));
    }

    /// Sets the pause state.
    pub fn set_pause(&self, pause: PauseState) {
        let before = self.pause.send_replace(pause);
        if before == PauseState::None && pause != PauseState::None {
            self.pauses.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Returns true if the sandbox is paused, being paused, or being resumed. A sandbox that has ended does
    /// not count as paused.
    pub fn is_paused(&self) -> bool {
        *self.pause.borrow() != PauseState::None && !matches!(*self.state.borrow(), LinkState::Ended(_))
    }

    /// Returns the number of times that the sandbox has been paused since this process began to manage it.
    pub fn pauses(&self) -> u64 {
        self.pauses.load(Ordering::Acquire)
    }

    /// Waits until the sandbox is not paused, or has ended.
    pub async fn resumed(&self) {
        let mut pause = self.pause.subscribe();
        let resumed = pause.wait_for(|pause| *pause == PauseState::None);
        tokio::select! {
            _ = resumed => {}
            _ = self.ended() => {}
        }
    }

    /// Waits until the guest has connected.
    ///
    /// # Errors
    /// Returns an error if the sandbox has ended or if the timeout has passed.
    pub async fn ready(&self, within: Duration) -> Result<(), Error> {
        self.live(0, Instant::now() + within, within).await.map(|_| ())
    }

    /// Waits until the sandbox has ended, and returns the cause.
    pub async fn ended(&self) -> LostCause {
        loop {
            if let LinkState::Ended(cause) = self.reach(|state| matches!(state, LinkState::Ended(_))).await {
                return cause;
            }
        }
    }

    /// Sends a request, and sends it again if the connection breaks. Returns the response once its head has
    /// arrived; the body, which may be long, is not read.
    ///
    /// # Errors
    /// Returns the guest's error, or an error if the sandbox has ended or the timeout has passed.
    pub async fn ask(&self, ask: &GuestRequest, within: Duration) -> Result<Response<Incoming>, Error> {
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

    /// Sends a request, and sends it again if the connection breaks. Returns the whole response.
    ///
    /// # Errors
    /// Fails like [`GuestLink::ask`]. Also fails if the response is too long or malformed.
    pub async fn call<T: serde::de::DeserializeOwned>(
        &self,
        ask: &GuestRequest,
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
                // The connection broke during the response; the request can be repeated.
                Err(Error::Lost(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends a request once and returns the whole response. The request's body is `streamed`, which is
    /// produced while it is sent; the body of `ask` is ignored.
    ///
    /// # Errors
    /// Fails like [`GuestLink::call`]. Also fails if the connection breaks, because the body cannot be sent
    /// again.
    pub async fn stream<T: serde::de::DeserializeOwned>(
        &self,
        ask: &GuestRequest,
        streamed: Streamed,
        within: Duration,
    ) -> Result<T, Error> {
        let deadline = Instant::now() + within;
        let response = self.ask_once(ask, Some(streamed), within).await?;
        let bytes = body(response, deadline, within).await?;
        serde_json::from_slice(&bytes).map_err(|error| Error::Protocol(error.to_string()))
    }

    /// Opens a stream in both directions: the body of the request carries bytes to the guest, and the body of
    /// the response carries bytes from the guest.
    ///
    /// # Errors
    /// Fails like [`GuestLink::ask`].
    pub(crate) async fn both_ways(
        &self,
        ask: &GuestRequest,
        within: Duration,
    ) -> Result<(Response<Incoming>, port::PortSender), Error> {
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
                // No data has been sent on the stream yet, so the request can be repeated.
                Ok(Err(_broken)) => last = generation,
            }
        }
    }

    /// Sends a request once, with a streamed body if one is given, and returns the head of the response.
    ///
    /// # Errors
    /// Fails like [`GuestLink::ask`]. Also fails if the connection breaks.
    pub async fn ask_once(
        &self,
        ask: &GuestRequest,
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

    /// Returns a live connection newer than `last`.
    async fn live(&self, last: u64, deadline: Instant, within: Duration) -> Result<(Sender, u64), Error> {
        let wanted = self.reach(|state| match state {
            LinkState::Waiting => false,
            LinkState::Live { generation, .. } => *generation > last,
            LinkState::Ended(_) => true,
        });
        let Ok(state) = timeout_at(deadline, wanted).await else {
            return Err(Error::Deadline { what: "connecting to the guest", after: within });
        };
        match state {
            LinkState::Live { sender, generation } => Ok((sender, generation)),
            LinkState::Ended(cause) => Err(Error::Lost(cause)),
            LinkState::Waiting => Err(Error::Lost(LostCause::Died)),
        }
    }

    /// Waits for a matching state. If the tasks that publish states have ended because the server is shutting
    /// down, waits forever: the sandbox continues to run, and its end must not be reported here.
    async fn reach(&self, wanted: impl FnMut(&LinkState) -> bool) -> LinkState {
        let mut state = self.state.clone();
        let reached = state.wait_for(wanted).await.map(|state| state.clone());
        match reached {
            Ok(state) => state,
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for GuestLink {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that shuts down drops its tasks in any order, including the tasks that watch sandboxes.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_stops_has_not_seen_its_sandboxes_die() {
        let (_, state) = watch::channel(LinkState::Waiting);
        let done = || tokio::spawn(std::future::ready(()));
        let link = GuestLink {
            state,
            stopping: Arc::new(watch::Sender::new(None)),
            overdue: OnceLock::new(),
            pause: watch::Sender::new(PauseState::None),
            pauses: AtomicU64::new(0),
            tasks: [done(), done()],
        };
        let within = Duration::from_secs(5);
        assert!(tokio::time::timeout(within, link.ended()).await.is_err());
        assert!(matches!(link.ready(within).await, Err(Error::Deadline { .. })));
    }
}
