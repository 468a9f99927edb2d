//! The host's view of one exec: its output from any offset, and its single outcome.
//!
//! The exec itself lives in the guest's table; [`Exec`] is a reader that can reconnect. The reader verifies
//! the guest's messages: bytes must be contiguous, and the end must agree with the bytes received. If a guest
//! violates this for one exec, only that exec's reader fails, with a protocol error. A result is delivered
//! after the output that was written before it.

mod awaited;
mod results;

use std::sync::Arc;
use std::time::Duration;

use api::exec::{
    ExecEnd, ExecInfo, ExecSpec, LostCause, MemoryReport, Outcome, OutputMode, SignalRequest, Stream,
};
use api::frame::{HEADER_BYTES, Header};
use api::output::{Collected, Event, PerStream};
use api::terminal::TerminalSize;
use api::trace::STEP;
use api::{ExecId, SandboxId, limits};
use bytes::{Buf, Bytes, BytesMut};
use host::error::Error;
use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::Incoming;
use runtime::{Runtime, Tier};
use tokio::time::Instant;
use tracing::{Instrument as _, info_span};

use crate::link::{GuestLink, GuestRequest};
use awaited::Awaited;
use results::Results;

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
    /// The next offset to read in each of the three streams.
    position: PerStream<u64>,
    dropped: [u64; 2],
    results: Results,
    /// The offsets that were last reported to the guest as consumed, in mode `block`.
    consumed: Option<[u64; 2]>,
    consume_every: u64,
    overdue: Option<Instant>,
    started: Instant,
    body: Option<Incoming>,
    buffer: BytesMut,
    /// The stream of the current data frame, and the number of bytes of the frame that have not arrived yet.
    open: Option<(Stream, usize)>,
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
            position: PerStream::default(),
            dropped: [0; 2],
            results: Results::default(),
            consumed: None,
            consume_every: limits::OUTPUT_BYTES / CONSUME_PARTS,
            overdue: None,
            started: Instant::now(),
            body: None,
            buffer: BytesMut::new(),
            open: None,
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
        self.position = PerStream { stdout, stderr, results };
        self.results = Results::at(results);
        self.leave();
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

    /// Sends bytes to standard input at an offset, and closes standard input if `last` is true. Waits while
    /// the process does not read.
    ///
    /// # Errors
    /// Returns an error if the process has closed its standard input or if the exec is unknown.
    pub async fn write_stdin(
        &self,
        offset: u64,
        bytes: Bytes,
        last: bool,
        within: Duration,
    ) -> Result<u64, Error> {
        let last = if last { "&last=1" } else { "" };
        let path = format!("/execs/{}/stdin?offset={offset}{last}", self.id);
        self.home.link.call(&GuestRequest { method: Method::PUT, path, body: bytes }, within).await
    }

    /// Changes the size of the exec's terminal.
    ///
    /// # Errors
    /// Returns an error if the exec has no terminal, the size is invalid, or the exec is unknown.
    pub async fn resize(&self, size: TerminalSize) -> Result<(), Error> {
        size.check().map_err(Error::Request)?;
        let body = serde_json::to_vec(&size).map_err(|error| Error::Protocol(error.to_string()))?;
        let path = format!("/execs/{}/size", self.id);
        let request = GuestRequest { method: Method::PUT, path, body: body.into() };
        self.home.link.call(&request, ANSWER_WITHIN).await
    }

    /// Sends a signal to all processes of the exec, and returns the number of processes.
    ///
    /// # Errors
    /// Returns an error if the signal number is invalid or if the exec is unknown.
    pub async fn signal(&self, signal: i32) -> Result<u32, Error> {
        let body =
            serde_json::to_vec(&SignalRequest { signal }).map_err(|e| Error::Protocol(e.to_string()))?;
        let path = format!("/execs/{}/signal", self.id);
        let request = GuestRequest { method: Method::POST, path, body: body.into() };
        self.home.link.call(&request, ANSWER_WITHIN).await
    }

    /// Cancels the exec. Its outcome will be `cancelled`, unless the exec has already ended.
    ///
    /// # Errors
    /// Returns an error if the exec is unknown or if the sandbox has ended.
    pub async fn cancel(&self) -> Result<(), Error> {
        let path = format!("/execs/{}", self.id);
        let ask = GuestRequest { method: Method::DELETE, path, body: Bytes::new() };
        self.home.link.call(&ask, ANSWER_WITHIN).await
    }

    /// Reports to the guest that all output below these offsets has been consumed, so that an exec in mode
    /// `block` can continue.
    ///
    /// # Errors
    /// Returns an error if the exec is unknown or if the sandbox has ended.
    pub async fn take(&self, stdout: u64, stderr: u64) -> Result<(), Error> {
        let path = format!("/execs/{}/read?stdout={stdout}&stderr={stderr}", self.id);
        let request = GuestRequest { method: Method::PUT, path, body: Bytes::new() };
        self.home.link.call(&request, ANSWER_WITHIN).await
    }

    /// Requests the output from the current position.
    fn open(&self) -> impl Future<Output = Result<Incoming, Error>> + use<> {
        let (PerStream { stdout, stderr, results }, id) = (self.position, &self.id);
        let path = format!("/execs/{id}/output?stdout={stdout}&stderr={stderr}&results={results}");
        let (ask, home) = (GuestRequest { method: Method::GET, path, body: Bytes::new() }, self.home.clone());
        async move { Ok(home.link.ask(&ask, ANSWER_WITHIN).await?.into_body()) }
    }

    /// Waits for the next event, reconnecting as often as necessary.
    async fn follow(&mut self) -> Result<Event, Error> {
        loop {
            if let Some(event) = self.decode()? {
                return Ok(event);
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
                        self.buffer.extend_from_slice(&bytes);
                    }
                }
                // The stream ended without an end frame: the connection broke, and the next one resumes at
                // this position.
                Ok(None | Some(Err(_))) | Err(_) => self.leave(),
            }
        }
    }

    /// Decodes the next event from the buffer, if the event is complete. Data is returned as it arrives, even
    /// if its frame is incomplete.
    fn decode(&mut self) -> Result<Option<Event>, Error> {
        loop {
            let PerStream { stdout, stderr, .. } = self.position;
            if let Some((offset, next, line)) = self.results.next([stdout, stderr])? {
                return Ok(Some(Event::Result { offset, next, line }));
            }
            if self.results.is_behind() {
                self.leave();
                return Ok(None);
            }
            if let Some((stream, left)) = self.open {
                if self.buffer.is_empty() {
                    return Ok(None);
                }
                let bytes = self.buffer.split_to(left.min(self.buffer.len())).freeze();
                self.open = Some((stream, left - bytes.len())).filter(|(_, left)| *left > 0);
                let at = self.position.get_mut(stream);
                let offset = *at;
                *at += bytes.len() as u64;
                if stream == Stream::Results {
                    self.results.take(&bytes)?;
                    continue;
                }
                return Ok(Some(Event::Data { stream, offset, bytes }));
            }
            let Some(header) = self.buffer.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
            let header = Header::decode(header).map_err(|bad| Error::Protocol(bad.to_string()))?;
            match header {
                Header::Heartbeat => self.buffer.advance(HEADER_BYTES),
                Header::Data { stream, offset, length } => {
                    let at = *self.position.get(stream);
                    if offset != at {
                        return Err(Error::Protocol(format!("received offset {offset}, expected {at}")));
                    }
                    self.buffer.advance(HEADER_BYTES);
                    self.open = Some((stream, length as usize));
                }
                Header::Gap { stream, to } => {
                    self.buffer.advance(HEADER_BYTES);
                    if let Some(gap) = self.skip(stream, to)? {
                        return Ok(Some(gap));
                    }
                }
                Header::End { length } => {
                    let whole = HEADER_BYTES + length as usize;
                    if self.buffer.len() < whole {
                        return Ok(None);
                    }
                    self.buffer.advance(HEADER_BYTES);
                    let end: ExecEnd = serde_json::from_slice(&self.buffer.split_to(length as usize))
                        .map_err(|error| Error::Protocol(format!("malformed end frame: {error}")))?;
                    // A result that is still held back also counts as a mismatch: it waits for output that
                    // will never arrive.
                    if PerStream::of_end(&end) != self.position || self.results.told() != end.results_bytes {
                        return Err(Error::Protocol(
                            "the end frame does not match the bytes received".into(),
                        ));
                    }
                    return Ok(Some(Event::End(end)));
                }
            }
        }
    }

    /// Counts the bytes of a stream up to an offset as dropped. Returns no event for a gap in the result
    /// stream that contains no undelivered line.
    fn skip(&mut self, stream: Stream, to: u64) -> Result<Option<Event>, Error> {
        let at = self.position.get_mut(stream);
        let from = *at;
        if to <= from {
            return Err(Error::Protocol(format!("invalid gap from {from} to {to}")));
        }
        *at = to;
        match stream {
            Stream::Stdout => self.dropped[0] += to - from,
            Stream::Stderr => self.dropped[1] += to - from,
            // Results are delivered as whole lines, so a partly received line is dropped with the rest.
            Stream::Results => return Ok(self.results.skip(to).map(|from| Event::Gap { stream, from, to })),
        }
        Ok(Some(Event::Gap { stream, from, to }))
    }

    /// In mode `block`, reports consumed output to the guest: all output that the caller received before it
    /// requested more.
    async fn consume(&mut self) -> Result<(), Error> {
        let Some([stdout, stderr]) = self.consumed else { return Ok(()) };
        let PerStream { stdout: now_stdout, stderr: now_stderr, .. } = self.position;
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

    /// Drops the connection and keeps the position. Results that were received but not delivered will be read
    /// again.
    fn leave(&mut self) {
        self.results.leave();
        self.position.results = self.results.asks_from();
        self.body = None;
        self.buffer.clear();
        self.open = None;
    }

    /// Builds the end report of an exec whose guest can no longer send it.
    fn end_from_here(&self, outcome: Outcome) -> ExecEnd {
        let PerStream { stdout: stdout_bytes, stderr: stderr_bytes, .. } = self.position;
        let [stdout_dropped, stderr_dropped] = self.dropped;
        ExecEnd {
            outcome,
            stdout_bytes,
            stdout_dropped,
            stderr_bytes,
            stderr_dropped,
            results_bytes: self.results.told(),
            state_lost: false,
            duration_us: u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX),
            left_running: 0,
            memory: None,
        }
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
