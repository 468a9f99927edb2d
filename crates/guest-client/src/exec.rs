//! The host's view of one exec: its output from any offset, and its single outcome.
//!
//! The exec itself lives in the guest's table; [`Exec`] is a reader that can reconnect. The reader verifies
//! the guest's messages ([`decoder`]). If a guest violates the protocol for one exec, only that exec's reader
//! fails, with a protocol error. A result is delivered after the output that was written before it.

mod awaited;
mod control;
mod decoder;
mod results;

use std::sync::Arc;
use std::time::Duration;

use api::exec::{ExecEnd, ExecInfo, ExecSpec, LostCause, MemoryReport, Outcome, OutputMode, Stream};
use api::output::{Collected, Event, PerStream};
use api::trace::STEP;
use api::{ExecId, SandboxId, limits};
use bytes::Bytes;
use host::error::Error;
use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::Incoming;
use runtime::{Runtime, Tier};
use tokio::time::Instant;
use tracing::{Instrument as _, info_span};

use crate::link::{GuestLink, GuestRequest};
use awaited::Awaited;
use decoder::OutputDecoder;

/// Time for which an exec may still run after its deadline and grace period. Then its sandbox is stopped from
/// outside.
pub const OVERDUE_MS: u64 = 2_000;
/// Timeout for a guest's response. Guests normally respond at once. In measurements at full load, with every
/// limit exhausted, they took at most a tenth of this time.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Timeout for requests that need the interpreter. These requests wait until the interpreter has imported the
/// template's modules, for which a guest allows 60 s. A slow machine needs additional time to start it.
pub const CODE_WITHIN: Duration = Duration::from_secs(90);
/// Time that the output request may still take once the start request, which was sent together with it, has
/// completed. After that, the output is requested again.
const OPEN_WITHIN: Duration = Duration::from_millis(50);
/// Maximum time without data. A guest sends a heartbeat every 5 s; after three missed heartbeats, the
/// connection is considered dead.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// Number of consumption reports per spool, the guest's buffer for an exec's output. In mode `block`, the
/// reader reports to the guest each time it has read a quarter of the spool's size.
const CONSUME_PARTS: u64 = 4;

/// The sandbox in which an exec runs.
#[derive(Clone)]
pub(crate) struct Home {
    pub id: SandboxId,
    pub runtime: Arc<dyn Runtime>,
    pub link: Arc<GuestLink>,
    pub memory_bytes: u64,
}

/// A reader of one exec.
pub struct Exec {
    id: ExecId,
    home: Home,
    output: OutputDecoder,
    /// The offsets that were last reported to the guest as consumed, in mode `block`.
    consumed: Option<[u64; 2]>,
    consume_every: u64,
    overdue: Option<Instant>,
    started: Instant,
    body: Option<Incoming>,
    /// The trace step in progress: the wait for the first event, then the wait for the end.
    awaited: Awaited,
    ended: bool,
}

impl Exec {
    /// Starts the command or code, or attaches to the exec that an earlier attempt at this request started.
    pub(crate) async fn run(home: Home, id: ExecId, spec: &ExecSpec) -> Result<Self, Error> {
        start(&home, &id, spec).await?;
        let grace = Duration::from_millis(spec.grace_ms.unwrap_or(limits::GRACE_MS));
        let started = Instant::now();
        Ok(Self {
            // The deadline of a code exec counts from the moment when the code starts to run, after it has
            // waited for its turn and its packages. Only the guest knows that moment.
            overdue: spec
                .deadline_ms
                .filter(|_| spec.code.is_none())
                .map(|ms| started + Duration::from_millis(ms) + grace + Duration::from_millis(OVERDUE_MS)),
            consumed: (spec.output == OutputMode::Block).then_some([0; 2]),
            consume_every: spec.output_bytes.unwrap_or(limits::OUTPUT_BYTES) / CONSUME_PARTS,
            ..Self::attach(home, id)
        })
    }

    /// Starts the command or code and opens its output. Both requests are sent at once: the guest processes
    /// requests in order, so the second request finds the new exec. If it does not, the output is requested
    /// again, as after a broken connection.
    pub(crate) async fn start_and_read(
        home: &Home,
        id: &ExecId,
        spec: &ExecSpec,
    ) -> Result<(ExecInfo, Self), Error> {
        let mut exec = Self::attach(home.clone(), id.clone());
        let (launching, opening) = (start(home, id, spec), exec.open());
        tokio::pin!(launching, opening);
        let mut opened = None;
        let info = loop {
            tokio::select! {
                biased;
                info = &mut launching => break info?,
                body = &mut opening, if opened.is_none() => opened = Some(body.ok()),
            }
        };
        if opened.is_none() {
            opened = tokio::time::timeout(OPEN_WITHIN, opening).await.ok().map(Result::ok);
        }
        exec.body = opened.flatten();
        Ok((info, exec))
    }

    /// Creates a reader of an existing exec, from the first byte.
    pub(crate) fn attach(home: Home, id: ExecId) -> Self {
        Self {
            id,
            home,
            output: OutputDecoder::default(),
            consumed: None,
            consume_every: limits::OUTPUT_BYTES / CONSUME_PARTS,
            overdue: None,
            started: Instant::now(),
            body: None,
            awaited: Awaited::default(),
            ended: false,
        }
    }

    /// Returns the exec's ID.
    pub fn id(&self) -> &ExecId {
        &self.id
    }

    /// Starts reading at these offsets instead of at the first byte.
    pub fn seek(&mut self, stdout: u64, stderr: u64, results: u64) {
        self.output.seek(stdout, stderr, results);
        self.body = None;
    }

    /// Waits for the next event. Returns `None` after the end.
    ///
    /// # Errors
    /// Returns an error if the guest violated the protocol or if the exec is unknown.
    pub async fn next(&mut self) -> Result<Option<Event>, Error> {
        if self.ended {
            return Ok(None);
        }
        self.awaited.begin();
        let event = self.come().await?;
        self.awaited.saw(&event);
        Ok(Some(event))
    }

    async fn come(&mut self) -> Result<Event, Error> {
        self.consume().await?;
        let at = self.overdue;
        let overdue = async move {
            match at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(overdue);
        // The guest enforces the deadline. If the guest fails to do so, the sandbox is stopped from outside,
        // which also ends the exec.
        let home = self.home.clone();
        let event = tokio::select! {
            event = self.follow() => event,
            () = &mut overdue => {
                home.link.stopping(LostCause::Stopped);
                home.runtime.stop(&home.id, Duration::ZERO).await?;
                Ok(Event::End(self.end_from_here(Outcome::Timeout)))
            }
        };
        match event {
            Ok(Event::End(end)) if self.is_crippled(&end).await => {
                self.home.link.stopping(LostCause::Oom);
                self.home.runtime.stop(&self.home.id, Duration::ZERO).await?;
                // Set this only after the stop. If the stop fails, the next call handles the end event again.
                self.ended = true;
                Ok(Event::End(self.end_from_here(Outcome::SandboxLost { cause: LostCause::Oom })))
            }
            Ok(Event::End(mut end)) => {
                self.ended = true;
                if end.outcome == Outcome::Oom {
                    let peak_bytes = self
                        .home
                        .runtime
                        .usage(&self.home.id)
                        .await
                        .map_or(0, |usage| usage.memory_peak_bytes);
                    // Some engines do not report peak usage, but running out of memory means that all of it
                    // was used.
                    let all = self.home.runtime.properties().takes_images.then_some(self.home.memory_bytes);
                    let peak_bytes = peak_bytes.max(all.unwrap_or(0));
                    end.memory = Some(MemoryReport { limit_bytes: self.home.memory_bytes, peak_bytes });
                }
                Ok(Event::End(end))
            }
            Err(Error::Lost(cause)) => {
                self.ended = true;
                let overdue = self.home.link.was_overdue(&self.id);
                let outcome = if overdue { Outcome::Timeout } else { Outcome::SandboxLost { cause } };
                Ok(Event::End(self.end_from_here(outcome)))
            }
            event => event,
        }
    }

    /// Returns true if the host's OOM killer has killed part of a user-space kernel. With cgroup v1, the OOM
    /// killer kills a single process, so the program that this process was serving appears to have exited on
    /// its own. With cgroup v2, the OOM killer kills all processes.
    async fn is_crippled(&self, end: &ExecEnd) -> bool {
        let Home { id, runtime, .. } = &self.home;
        end.outcome != (Outcome::Exited { code: 0 })
            && runtime.tier() == Tier::UserKernel
            && runtime.usage(id).await.is_ok_and(|usage| usage.oom_kills > 0)
    }

    /// Reads to the end, and returns all output that the guest has retained.
    ///
    /// # Errors
    /// Fails like [`Exec::next`].
    pub async fn collect(mut self) -> Result<Collected, Error> {
        let (mut stdout, mut stderr, mut results) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            match self.next().await? {
                Some(Event::Data { stream: Stream::Stdout, bytes, .. }) => stdout.extend_from_slice(&bytes),
                Some(Event::Data { stream: Stream::Stderr, bytes, .. }) => stderr.extend_from_slice(&bytes),
                Some(Event::Result { line, .. }) => results.push(line),
                // Results are delivered as lines, not as bytes.
                Some(Event::Data { stream: Stream::Results, .. } | Event::Gap { .. }) => {}
                Some(Event::End(end)) => return Ok(Collected { stdout, stderr, results, end }),
                None => return Err(Error::Protocol("the output has no end frame".into())),
            }
        }
    }

    /// Requests the output from the current position.
    fn open(&self) -> impl Future<Output = Result<Incoming, Error>> + use<> {
        let (PerStream { stdout, stderr, results }, id) = (self.output.position(), &self.id);
        let path = format!("/execs/{id}/output?stdout={stdout}&stderr={stderr}&results={results}");
        let (ask, home) = (GuestRequest { method: Method::GET, path, body: Bytes::new() }, self.home.clone());
        async move { Ok(home.link.ask(&ask, ANSWER_WITHIN).await?.into_body()) }
    }

    /// Waits for the next event, reconnecting as often as necessary.
    async fn follow(&mut self) -> Result<Event, Error> {
        loop {
            if let Some(event) = self.output.decode()? {
                return Ok(event);
            }
            if self.output.is_behind() {
                self.leave();
            }
            let Some(body) = &mut self.body else {
                // A paused sandbox sends no output. Its output continues when the sandbox is resumed.
                self.home.link.resumed().await;
                match self.open().await {
                    Ok(body) => self.body = Some(body),
                    Err(Error::Deadline { .. }) if self.home.link.is_paused() => {}
                    Err(error) => return Err(error),
                }
                continue;
            };
            match tokio::time::timeout(SILENCE_MAX, body.frame()).await {
                Ok(Some(Ok(frame))) => {
                    if let Ok(bytes) = frame.into_data() {
                        self.output.take(&bytes);
                    }
                }
                // The stream ended without an end frame: the connection broke, and the next one resumes at
                // this position.
                Ok(None | Some(Err(_))) | Err(_) => self.leave(),
            }
        }
    }

    /// In mode `block`, reports consumed output to the guest: all output that the caller received before it
    /// requested more.
    async fn consume(&mut self) -> Result<(), Error> {
        let Some([stdout, stderr]) = self.consumed else { return Ok(()) };
        let PerStream { stdout: now_stdout, stderr: now_stderr, .. } = self.output.position();
        if now_stdout - stdout < self.consume_every && now_stderr - stderr < self.consume_every {
            return Ok(());
        }
        match self.take(now_stdout, now_stderr).await {
            // If the sandbox has ended, the output reports that as the outcome.
            Ok(()) | Err(Error::Lost(_)) => {}
            Err(error) => return Err(error),
        }
        self.consumed = Some([now_stdout, now_stderr]);
        Ok(())
    }

    /// Drops the connection and keeps the position.
    fn leave(&mut self) {
        self.output.leave();
        self.body = None;
    }

    /// Builds the end report of an exec whose guest can no longer send it.
    fn end_from_here(&self, outcome: Outcome) -> ExecEnd {
        self.output.end_from_here(outcome, self.started.elapsed())
    }
}

/// Starts a command or code, or returns the exec that an earlier attempt at this request started.
pub(crate) async fn start(home: &Home, id: &ExecId, spec: &ExecSpec) -> Result<ExecInfo, Error> {
    spec.check().map_err(Error::Request)?;
    let body = serde_json::to_vec(spec).map_err(|error| Error::Protocol(error.to_string()))?;
    let ask = GuestRequest { method: Method::PUT, path: format!("/execs/{id}"), body: body.into() };
    let within = if spec.code.is_some() { CODE_WITHIN } else { ANSWER_WITHIN };
    home.link.call(&ask, within).instrument(info_span!(target: STEP, "launch")).await
}

/// Describes an outcome in words.
pub fn ended(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Exited { code } => format!("exited with status {code}"),
        Outcome::Signaled { signal } => format!("was killed by signal {signal}"),
        Outcome::Timeout => "timed out".into(),
        Outcome::Oom => "ran out of memory".into(),
        Outcome::OutputLimit => "was stopped because it exceeded its output limit".into(),
        Outcome::Cancelled => "was cancelled".into(),
        Outcome::SandboxLost { .. } => "was lost with its sandbox".into(),
        Outcome::Unknown => "ended with an unknown outcome".into(),
    }
}
