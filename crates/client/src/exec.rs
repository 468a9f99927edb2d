//! A reader of one exec: every byte once and in order, then its end.
//!
//! ```text
//!            ┌──────── cut, silent, not ready ────────┐
//!            ▼                                        │
//! connect ──▶ read ── data, gap ──▶ the caller ── asks for more
//!               └──── end ────────▶ the caller, then nothing more
//! ```
//!
//! The exec lives in the sandbox, not in a connection. A reader that lost its connection asks for the rest from the
//! offsets it has reached, and checks what it is told: every byte must follow the one before, and the end must agree with
//! what was read. Results are lines, told whole: a reader goes on after the last one it had. A stream that stops without an end was cut; it never counts as an end.

use api::code::ResultLine;
use api::exec::{ExecEnd, ExecInfo, ExecSpec, OutputMode, Stream};
use api::output::{NDJSON, OutputLine};
use api::{ErrorCode, ExecId, Layer, Ran, Retry, SandboxId, limits};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use reqwest::Method;

use crate::client::Client;
use crate::error::Error;
use crate::execs::last_words;
use crate::lines::{Broken, Lines};
use crate::link::{Ask, Failure};
use crate::patience::Attempts;

/// In mode `block` the server is told what was taken each time so large a part of what is kept was read: early enough that
/// the process need not wait, seldom enough that it costs nothing.
const TELL_PARTS: u64 = 4;
/// What is collected of one stream: the most that an exec can have kept.
const COLLECTED_BYTES_MAX: u64 = limits::OUTPUT_BYTES_MAX;

/// A reader of one exec.
pub struct Exec {
    client: Client,
    sandbox: SandboxId,
    id: ExecId,
    info: Option<ExecInfo>,
    /// What the caller has had of the three streams.
    position: [u64; 3],
    taking: Option<Taking>,
    follow: bool,
    /// Without `follow`: whether all that is there now has come.
    caught_up: bool,
    lines: Option<Lines<OutputLine>>,
    attempts: Attempts,
    ended: bool,
}

/// What a reader gets.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Something that code shows besides what it writes, in order with it.
    Result {
        /// Where it begins in the stream of results.
        offset: u64,
        /// Where the next one begins.
        next: u64,
        /// What it is.
        line: ResultLine,
    },
    /// It has ended. Nothing comes after.
    End(ExecEnd),
}

/// Everything an exec wrote that was kept, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
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

/// The bytes for which a reader has told the server that they were taken.
struct Taking {
    told: [u64; 2],
    every: u64,
    /// Whether to tell it now, however little it is.
    now: bool,
}

impl Exec {
    pub(crate) fn attach(client: Client, sandbox: SandboxId, id: ExecId) -> Self {
        let attempts = client.link.attempts();
        Self {
            client,
            sandbox,
            id,
            info: None,
            position: [0; 3],
            taking: None,
            follow: true,
            caught_up: false,
            lines: None,
            attempts,
            ended: false,
        }
    }

    pub(crate) fn started(
        client: Client,
        sandbox: SandboxId,
        info: ExecInfo,
        lines: Lines<OutputLine>,
    ) -> Self {
        let attached = Self::attach(client, sandbox, info.id.clone());
        Self { info: Some(info), lines: Some(lines), ..attached }
    }

    pub(crate) fn for_spec(self, spec: &ExecSpec) -> Self {
        match spec.output {
            OutputMode::Block => self.taking(spec.output_bytes.unwrap_or(limits::OUTPUT_BYTES)),
            OutputMode::Keep | OutputMode::Kill => self,
        }
    }

    pub(crate) fn until_now(self) -> Self {
        Self { follow: false, ..self }
    }

    /// Tells the server what was read, so that an exec in mode `block`, which keeps so many bytes, goes on. A reader that was
    /// started with its exec does so by itself; one that was attached has to be told to, since bytes that one reader has
    /// taken are gone for the others.
    pub fn taking(self, output_bytes: u64) -> Self {
        let taking = Taking { told: [0; 2], every: output_bytes / TELL_PARTS, now: false };
        Self { taking: Some(taking), ..self }
    }

    /// Reads from these offsets on instead of from the first byte.
    pub fn seek(&mut self, stdout: u64, stderr: u64, results: u64) {
        self.position = [stdout, stderr, results];
        self.leave();
    }

    /// Its name.
    pub fn id(&self) -> &ExecId {
        &self.id
    }

    /// How it was when this reader started it.
    pub fn info(&self) -> Option<&ExecInfo> {
        self.info.as_ref()
    }

    /// The offsets reached on standard output, standard error and results.
    pub fn position(&self) -> (u64, u64, u64) {
        self.position.into()
    }

    /// The next thing that happens; nothing after the end. Goes on over as many connections as it takes, and may be dropped
    /// and asked again at any time. After an error, asking again goes on from the same place.
    ///
    /// # Errors
    /// The exec or its sandbox is not known any more (`not_found`, `sandbox_lost`), the server does not answer, or what it
    /// says cannot be true.
    pub async fn next(&mut self) -> Result<Option<Event>, Error> {
        while !self.ended {
            self.tell().await?;
            let client = self.client.clone();
            let link = &client.link;
            let heard = match &mut self.lines {
                Some(lines) => lines.next(link.options.silence_max).await,
                None => match link.open(&self.rest()).await {
                    Ok(response) => {
                        self.lines = Some(Lines::new(response));
                        continue;
                    }
                    Err(failure) => {
                        link.pause(&mut self.attempts, failure).await?;
                        continue;
                    }
                },
            };
            let failure = match heard {
                Ok(line) => {
                    self.attempts.progress();
                    match self.accept(line) {
                        Ok(Some(event)) => return Ok(Some(event)),
                        Ok(None) => continue,
                        Err(failure) => failure,
                    }
                }
                Err(Broken::Cut(_)) if self.caught_up => {
                    self.ended = true;
                    continue;
                }
                Err(Broken::Cut(why)) => link.cut(why),
                Err(Broken::Nonsense(what)) => self.lie(what),
            };
            self.leave();
            link.pause(&mut self.attempts, failure).await?;
        }
        Ok(None)
    }

    /// Reads to the end. Holds at most what an exec can have kept.
    ///
    /// # Errors
    /// As [`Exec::next`]; `too_large` for an exec in mode `block` that wrote more than fits.
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
                None => {
                    return Err(self
                        .client
                        .link
                        .protocol("the output stream closed without an end event".into()));
                }
            }
            let [.., shown] = self.position;
            if shown.max(stdout.len().max(stderr.len()) as u64) > COLLECTED_BYTES_MAX {
                return Err(Error::Refused(too_large(&self.id)));
            }
        }
    }

    /// The request for everything that was not read yet.
    fn rest(&self) -> Ask {
        let ([stdout, stderr, results], follow) = (self.position, self.follow);
        let offsets = format!("stdout={stdout}&stderr={stderr}&results={results}");
        let path = format!("{}/output?{offsets}&follow={follow}", self.path());
        Ask::get(path).accept(NDJSON).within(self.client.link.options.silence_max)
    }

    /// Checks a line against what was read before.
    fn accept(&mut self, line: OutputLine) -> Result<Option<Event>, Failure> {
        // One heartbeat before the end of the answer says that this was all; a second one says the same.
        let quiet = !self.follow && line == OutputLine::Heartbeat;
        self.ended = quiet && self.caught_up;
        self.caught_up = quiet;
        match line {
            OutputLine::Started { .. } => Err(self.lie("received a second `started` event".into())),
            OutputLine::Heartbeat => {
                // Nothing happens: perhaps because the process waits for us.
                if let Some(taking) = &mut self.taking {
                    let [stdout, stderr, _] = self.position;
                    taking.now = taking.told != [stdout, stderr];
                }
                Ok(None)
            }
            OutputLine::Data { stream: Stream::Results, .. } => {
                Err(self.lie("received raw bytes in the stream of results".into()))
            }
            OutputLine::Result { offset, next, line } => {
                let at = self.at(Stream::Results);
                let was = *at;
                if offset != was || next <= offset {
                    return Err(self.lie(format!(
                        "received a result from {offset} to {next}, but expected offset {was}"
                    )));
                }
                *at = next;
                Ok(Some(Event::Result { offset, next, line }))
            }
            OutputLine::Data { stream, offset, text, base64 } => {
                let bytes = self.bytes(text, base64)?;
                let at = *self.at(stream);
                if offset != at {
                    return Err(
                        self.lie(format!("received data with offset {offset}, but expected offset {at}"))
                    );
                }
                *self.at(stream) = at + bytes.len() as u64;
                Ok(Some(Event::Data { stream, offset, bytes }))
            }
            OutputLine::Gap { stream, from, to } => {
                let at = *self.at(stream);
                if from != at || to <= from {
                    return Err(
                        self.lie(format!("received a gap from {from} to {to}, but expected offset {at}"))
                    );
                }
                *self.at(stream) = to;
                Ok(Some(Event::Gap { stream, from, to }))
            }
            OutputLine::End { end } => {
                let said = [end.stdout_bytes, end.stderr_bytes, end.results_bytes];
                if said != self.position {
                    let came = self.position;
                    return Err(self.lie(format!(
                        "the end event reports {said:?} bytes per stream, but {came:?} bytes were received"
                    )));
                }
                self.ended = true;
                self.lines = None;
                Ok(Some(Event::End(end)))
            }
            OutputLine::Error { error } => Err(last_words(error)),
        }
    }

    fn bytes(&self, text: Option<String>, base64: Option<String>) -> Result<Bytes, Failure> {
        match (text, base64) {
            (Some(text), None) => Ok(Bytes::from(text)),
            (None, Some(base64)) => {
                BASE64_STANDARD.decode(base64).map(Bytes::from).map_err(|error| self.lie(error.to_string()))
            }
            (Some(_), Some(_)) | (None, None) => {
                Err(self.lie("received output data that has both or neither of `text` and `base64`".into()))
            }
        }
    }

    /// Tells the server what was taken: everything that the caller had before it asked for more.
    async fn tell(&mut self) -> Result<(), Error> {
        let ([stdout, stderr, _], path) = (self.position, self.path());
        let Some(taking) = &mut self.taking else { return Ok(()) };
        let [told_stdout, told_stderr] = taking.told;
        let most = stdout.saturating_sub(told_stdout).max(stderr.saturating_sub(told_stderr));
        if most < taking.every.max(1) && !taking.now {
            return Ok(());
        }
        let ask = Ask::new(Method::PUT, format!("{path}/read?stdout={stdout}&stderr={stderr}"));
        match self.client.link.done(&ask).await {
            Ok(()) => {}
            // What is gone is told by the output, as an outcome or an error of its own.
            Err(error) if matches!(error.code(), Some(ErrorCode::SandboxLost | ErrorCode::NotFound)) => {}
            Err(error) => return Err(error),
        }
        *taking = Taking { told: [stdout, stderr], now: false, ..*taking };
        Ok(())
    }

    fn path(&self) -> String {
        format!("/v1/sandboxes/{}/execs/{}", self.sandbox, self.id)
    }

    fn at(&mut self, stream: Stream) -> &mut u64 {
        let [stdout, stderr, results] = &mut self.position;
        match stream {
            Stream::Stdout => stdout,
            Stream::Stderr => stderr,
            Stream::Results => results,
        }
    }

    /// Leaves the connection; the position stays. What was taken is told once more: the next server may not know.
    fn leave(&mut self) {
        self.lines = None;
        self.caught_up = false;
        if let Some(taking) = &mut self.taking {
            let [stdout, stderr, _] = self.position;
            taking.now = stdout + stderr > 0;
        }
    }

    fn lie(&self, what: String) -> Failure {
        Failure { error: self.client.link.protocol(what), trouble: None, pause: None }
    }
}

fn too_large(id: &ExecId) -> api::Error {
    api::Error {
        code: ErrorCode::TooLarge,
        message: format!("exec {id} wrote more than {COLLECTED_BYTES_MAX} bytes to one stream"),
        layer: Layer::UserCode,
        ran: Ran::Yes,
        retry: Retry::Useless,
        fix:
            "Read the output in chunks, or use the output mode `keep`, which drops the middle of the output."
                .into(),
    }
}
