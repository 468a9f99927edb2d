//! One exec as seen from here: its output from any offset, its one outcome.
//!
//! The exec lives in the guest's table; this is a reader that comes back. It checks what it is told: every byte
//! must follow the one before, and the end must agree with what was read. A guest that lies about one exec ends
//! that reader with a protocol error, and nothing else. A result is told after the output that was written before it.

mod awaited;
mod results;

use std::sync::Arc;
use std::time::Duration;

use api::code::ResultLine;
use api::exec::{
    ExecEnd, ExecInfo, ExecSpec, LostCause, MemoryReport, Outcome, OutputMode, SignalRequest, Stream,
};
use api::frame::{HEADER_BYTES, Header};
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

use crate::link::{Ask, Link};
use awaited::Awaited;
use results::Results;

/// How long after its deadline and grace an exec may still run before its sandbox is stopped from outside.
pub const OVERDUE_MS: u64 = 2_000;
/// A guest answers at once; under a full load of every limit it was seen to answer within a tenth of this.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Code waits until the interpreter has imported what its template names, for which a guest gives it 60 s, on a machine that may be
/// slow to start it.
pub const CODE_WITHIN: Duration = Duration::from_secs(90);
/// How much longer than the start the output may take that was asked for beside it, before it is asked for again.
const OPEN_WITHIN: Duration = Duration::from_millis(50);
/// A guest sends a heartbeat every 5 s. Three missed ones, and the connection counts as dead.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// Bytes read before the guest is told, in mode `block`, as a part of what the spool holds.
const CONSUME_PARTS: u64 = 4;

/// The sandbox that an exec is in.
#[derive(Clone)]
pub(crate) struct Home {
    pub id: SandboxId,
    pub runtime: Arc<dyn Runtime>,
    pub link: Arc<Link>,
    pub memory_bytes: u64,
}

/// A reader of one exec.
pub struct Exec {
    id: ExecId,
    home: Home,
    /// What was read of the three streams.
    position: [u64; 3],
    dropped: [u64; 2],
    results: Results,
    /// What was last told to the guest as taken, where the mode is `block`.
    consumed: Option<[u64; 2]>,
    consume_every: u64,
    overdue: Option<Instant>,
    started: Instant,
    body: Option<Incoming>,
    buffer: BytesMut,
    /// The stream and the number of bytes of the data frame being read.
    open: Option<(Stream, usize)>,
    /// What is waited for: the first thing that it shows, and then its end.
    awaited: Awaited,
    ended: bool,
}

/// What a reader gets.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// Bytes of a stream.
    Data {
        /// Which stream.
        stream: Stream,
        /// The offset of the first.
        offset: u64,
        /// The bytes.
        bytes: Bytes,
    },
    /// Bytes that were not kept.
    Gap {
        /// Which stream.
        stream: Stream,
        /// The first that is missing.
        from: u64,
        /// The first that is there again.
        to: u64,
    },
    /// Something that code shows besides what it writes.
    Result {
        /// Where it begins in the stream of results.
        offset: u64,
        /// Where the next one begins.
        next: u64,
        /// What it is. All that was written before it has been told.
        line: ResultLine,
    },
    /// It has ended. Nothing comes after.
    End(ExecEnd),
}

/// Everything an exec wrote that was kept, and how it ended.
#[derive(Debug)]
pub struct Collected {
    /// Standard output; a gap leaves nothing.
    pub stdout: Vec<u8>,
    /// Standard error; a gap leaves nothing.
    pub stderr: Vec<u8>,
    /// What code showed.
    pub results: Vec<ResultLine>,
    /// How it ended.
    pub end: ExecEnd,
}

impl Exec {
    /// Starts the command or code, or attaches to the exec that the same request started before.
    pub(crate) async fn run(home: Home, id: ExecId, spec: &ExecSpec) -> Result<Self, Error> {
        start(&home, &id, spec).await?;
        let grace = Duration::from_millis(spec.grace_ms.unwrap_or(limits::GRACE_MS));
        let started = Instant::now();
        Ok(Self {
            // The time of code begins when its turn has come and its packages are there, which only the guest knows.
            overdue: spec
                .deadline_ms
                .filter(|_| spec.code.is_none())
                .map(|ms| started + Duration::from_millis(ms) + grace + Duration::from_millis(OVERDUE_MS)),
            consumed: (spec.output == OutputMode::Block).then_some([0; 2]),
            consume_every: spec.output_bytes.unwrap_or(limits::OUTPUT_BYTES) / CONSUME_PARTS,
            ..Self::attach(home, id)
        })
    }

    /// Starts the command or code and opens its output, both asked for at once: the guest takes requests in turn, so the second finds
    /// what the first has begun. Where it does not, the output is opened as after a connection that broke.
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

    /// A reader of an exec that was started before, from the first byte on.
    pub(crate) fn attach(home: Home, id: ExecId) -> Self {
        Self {
            id,
            home,
            position: [0; 3],
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

    /// Its name.
    pub fn id(&self) -> &ExecId {
        &self.id
    }

    /// Reads from these offsets on instead of from the first byte.
    pub fn seek(&mut self, stdout: u64, stderr: u64, results: u64) {
        self.position = [stdout, stderr, results];
        self.results = Results::at(results);
        self.leave();
    }

    /// The next thing that happens. After the end it is the end's absence: `None`.
    ///
    /// # Errors
    /// The guest broke the protocol, or the exec is not known.
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
        // The guest keeps the deadline; a guest that cannot is ended from outside, and the exec with it.
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
                // Not before: whoever asks again after a stop that failed finds the end again.
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
                    // An engine may not say the most that was ever used; that it was all is what happened.
                    let all = self.home.runtime.takes_images().then_some(self.home.memory_bytes);
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

    /// Whether the host has killed a part of a kernel in user space for memory. On cgroup version 1 it kills one process of it, and
    /// the program that this one stood for seems to have ended by itself; on version 2 all of it ends.
    async fn is_crippled(&self, end: &ExecEnd) -> bool {
        let Home { id, runtime, .. } = &self.home;
        end.outcome != (Outcome::Exited { code: 0 })
            && runtime.tier() == Tier::UserKernel
            && runtime.usage(id).await.is_ok_and(|usage| usage.oom_kills > 0)
    }

    /// Reads to the end. Keeps at most what the guest keeps.
    ///
    /// # Errors
    /// As [`Exec::next`].
    pub async fn collect(mut self) -> Result<Collected, Error> {
        let (mut stdout, mut stderr, mut results) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            match self.next().await? {
                Some(Event::Data { stream: Stream::Stdout, bytes, .. }) => stdout.extend_from_slice(&bytes),
                Some(Event::Data { stream: Stream::Stderr, bytes, .. }) => stderr.extend_from_slice(&bytes),
                Some(Event::Result { line, .. }) => results.push(line),
                // Of results there are no bytes.
                Some(Event::Data { stream: Stream::Results, .. } | Event::Gap { .. }) => {}
                Some(Event::End(end)) => return Ok(Collected { stdout, stderr, results, end }),
                None => return Err(Error::Protocol("the output has no end frame".into())),
            }
        }
    }

    /// Sends bytes to standard input at an offset; `last` closes it. Waits while the process does not read.
    ///
    /// # Errors
    /// The process closed it, or the exec is not known.
    pub async fn write_stdin(
        &self,
        offset: u64,
        bytes: Bytes,
        last: bool,
        within: Duration,
    ) -> Result<u64, Error> {
        let last = if last { "&last=1" } else { "" };
        let path = format!("/execs/{}/stdin?offset={offset}{last}", self.id);
        self.home.link.call(&Ask { method: Method::PUT, path, body: bytes }, within).await
    }

    /// Gives its terminal another size.
    ///
    /// # Errors
    /// It has no terminal, no terminal has such a size, or the exec is not known.
    pub async fn resize(&self, size: TerminalSize) -> Result<(), Error> {
        size.check().map_err(Error::Request)?;
        let body = serde_json::to_vec(&size).map_err(|error| Error::Protocol(error.to_string()))?;
        let path = format!("/execs/{}/size", self.id);
        self.home.link.call(&Ask { method: Method::PUT, path, body: body.into() }, ANSWER_WITHIN).await
    }

    /// Sends a signal to all its processes; says how many there were.
    ///
    /// # Errors
    /// The number is no signal, or the exec is not known.
    pub async fn signal(&self, signal: i32) -> Result<u32, Error> {
        let body =
            serde_json::to_vec(&SignalRequest { signal }).map_err(|e| Error::Protocol(e.to_string()))?;
        let path = format!("/execs/{}/signal", self.id);
        self.home.link.call(&Ask { method: Method::POST, path, body: body.into() }, ANSWER_WITHIN).await
    }

    /// Ends it: its outcome will be `cancelled`, unless it had ended before.
    ///
    /// # Errors
    /// The exec is not known, or the sandbox has ended.
    pub async fn cancel(&self) -> Result<(), Error> {
        let ask = Ask { method: Method::DELETE, path: format!("/execs/{}", self.id), body: Bytes::new() };
        self.home.link.call(&ask, ANSWER_WITHIN).await
    }

    /// Tells the guest that everything below these offsets was taken: an exec in mode `block` goes on.
    ///
    /// # Errors
    /// The exec is not known, or the sandbox has ended.
    pub async fn take(&self, stdout: u64, stderr: u64) -> Result<(), Error> {
        let path = format!("/execs/{}/read?stdout={stdout}&stderr={stderr}", self.id);
        self.home.link.call(&Ask { method: Method::PUT, path, body: Bytes::new() }, ANSWER_WITHIN).await
    }

    /// Has the output sent from where the reader is.
    fn open(&self) -> impl Future<Output = Result<Incoming, Error>> + use<> {
        let ([stdout, stderr, results], id) = (self.position, &self.id);
        let path = format!("/execs/{id}/output?stdout={stdout}&stderr={stderr}&results={results}");
        let (ask, home) = (Ask { method: Method::GET, path, body: Bytes::new() }, self.home.clone());
        async move { Ok(home.link.ask(&ask, ANSWER_WITHIN).await?.into_body()) }
    }

    /// Follows the output over as many connections as it takes.
    async fn follow(&mut self) -> Result<Event, Error> {
        loop {
            if let Some(event) = self.decode()? {
                return Ok(event);
            }
            let Some(body) = &mut self.body else {
                // The output of a paused sandbox is silent; it continues after the pause.
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
                // The end was not said: the connection broke, and the next one goes on where this one stopped.
                Ok(None | Some(Err(_))) | Err(_) => self.leave(),
            }
        }
    }

    /// Takes the next event out of what was read, if it is all there. Data is passed on as it comes.
    fn decode(&mut self) -> Result<Option<Event>, Error> {
        loop {
            let [stdout, stderr, _] = self.position;
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
                let at = self.at(stream);
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
                    let at = *self.at(stream);
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
                    let bytes = [end.stdout_bytes, end.stderr_bytes, end.results_bytes];
                    // What still waits here waits for bytes that will never come.
                    if bytes != self.position || self.results.told() != end.results_bytes {
                        return Err(Error::Protocol(
                            "the end frame does not match the bytes received".into(),
                        ));
                    }
                    return Ok(Some(Event::End(end)));
                }
            }
        }
    }

    /// Counts the bytes of a stream up to an offset as dropped. Gives no event where the result stream drops only the rest of a line of
    /// which nothing was told.
    fn skip(&mut self, stream: Stream, to: u64) -> Result<Option<Event>, Error> {
        let at = self.at(stream);
        let from = *at;
        if to <= from {
            return Err(Error::Protocol(format!("invalid gap from {from} to {to}")));
        }
        *at = to;
        match stream {
            Stream::Stdout => self.dropped[0] += to - from,
            Stream::Stderr => self.dropped[1] += to - from,
            // Lines are told whole: what was read of one that is not is gone with the rest.
            Stream::Results => return Ok(self.results.skip(to).map(|from| Event::Gap { stream, from, to })),
        }
        Ok(Some(Event::Gap { stream, from, to }))
    }

    /// In mode `block`, tells the guest what was taken: everything that a caller had before it asked for more.
    async fn consume(&mut self) -> Result<(), Error> {
        let Some([stdout, stderr]) = self.consumed else { return Ok(()) };
        let [now_stdout, now_stderr, _] = self.position;
        if now_stdout - stdout < self.consume_every && now_stderr - stderr < self.consume_every {
            return Ok(());
        }
        match self.take(now_stdout, now_stderr).await {
            // The end of the sandbox is told by the output, as an outcome.
            Ok(()) | Err(Error::Lost(_)) => {}
            Err(error) => return Err(error),
        }
        self.consumed = Some([now_stdout, now_stderr]);
        Ok(())
    }

    fn at(&mut self, stream: Stream) -> &mut u64 {
        let [stdout, stderr, results] = &mut self.position;
        match stream {
            Stream::Stdout => stdout,
            Stream::Stderr => stderr,
            Stream::Results => results,
        }
    }

    /// Leaves the connection; the position stays, but of results that were not told, which come again.
    fn leave(&mut self) {
        self.results.leave();
        let [.., results] = &mut self.position;
        *results = self.results.asks_from();
        self.body = None;
        self.buffer.clear();
        self.open = None;
    }

    /// The end of an exec whose guest cannot tell it any more.
    fn end_from_here(&self, outcome: Outcome) -> ExecEnd {
        let ([stdout_bytes, stderr_bytes, _], [stdout_dropped, stderr_dropped]) =
            (self.position, self.dropped);
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

/// Starts a command or code, or finds the exec that the same request started before.
pub(crate) async fn start(home: &Home, id: &ExecId, spec: &ExecSpec) -> Result<ExecInfo, Error> {
    spec.check().map_err(Error::Request)?;
    let body = serde_json::to_vec(spec).map_err(|error| Error::Protocol(error.to_string()))?;
    let ask = Ask { method: Method::PUT, path: format!("/execs/{id}"), body: body.into() };
    let within = if spec.code.is_some() { CODE_WITHIN } else { ANSWER_WITHIN };
    home.link.call(&ask, within).instrument(info_span!(target: STEP, "launch")).await
}

/// How a command ended, for people.
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
