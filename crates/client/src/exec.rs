//! A reader of one exec's output. It returns every byte exactly once and in order, then the end event.
//!
//! ```text
//!            ┌─── disconnected, silent, not ready ────┐
//!            ▼                                        │
//! connect ──▶ read ── data, gap ──▶ caller ── calls `next` again
//!               └────── end ──────▶ caller; nothing follows
//! ```
//!
//! The exec runs in the sandbox, independently of any connection. After a disconnect, the reader requests the
//! rest of the output, starting at the offsets that it has reached. It checks the response: each chunk must
//! begin where the previous one ended, and the byte counts in the end event must match the bytes that were
//! read. Results are sent as whole lines, so a reader resumes after the last complete line. A stream that
//! closes without an end event was interrupted; this never counts as the end of the exec.

use api::exec::{ExecInfo, ExecSpec, OutputMode, Stream};
use api::output::{Collected, Event, NDJSON, OutputLine, PerStream};
use api::{ErrorCode, ExecId, Layer, Ran, Retry, SandboxId, limits};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use reqwest::Method;

use crate::client::Client;
use crate::error::Error;
use crate::execs::last_words;
use crate::lines::{LineError, Lines};
use crate::link::{ApiRequest, FailedAttempt};
use crate::patience::Attempts;

/// Number of acknowledgements per output buffer in mode `block`: the reader sends one after each quarter of
/// the buffer. This is early enough that the process does not have to wait, and rare enough that the cost is
/// negligible.
const TELL_PARTS: u64 = 4;
/// Maximum number of bytes that [`Exec::collect`] holds per stream. An exec can retain no more than that.
const COLLECTED_BYTES_MAX: u64 = limits::OUTPUT_BYTES_MAX;

/// A reader of one exec's output.
pub struct Exec {
    client: Client,
    sandbox: SandboxId,
    id: ExecId,
    info: Option<ExecInfo>,
    /// Offset in each of the three streams up to which the caller has received the output.
    position: PerStream<u64>,
    taking: Option<Taking>,
    follow: bool,
    /// True if the reader does not follow the exec and has received all output that existed so far.
    caught_up: bool,
    lines: Option<Lines<OutputLine>>,
    attempts: Attempts,
    ended: bool,
}

/// State of a reader's acknowledgements to the server.
struct Taking {
    told: [u64; 2],
    every: u64,
    /// True if the next acknowledgement is due now, regardless of how many bytes it covers.
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
            position: PerStream::default(),
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

    /// Makes the reader acknowledge output to the server, so that an exec in mode `block` with a buffer of
    /// `output_bytes` bytes can continue. A reader that started the exec does this automatically. For a
    /// reader that is attached to an existing exec, the caller must enable it, because output that one reader
    /// has acknowledged is lost to all others.
    pub fn taking(self, output_bytes: u64) -> Self {
        let taking = Taking { told: [0; 2], every: output_bytes / TELL_PARTS, now: false };
        Self { taking: Some(taking), ..self }
    }

    /// Starts reading at these offsets instead of at the first byte.
    pub fn seek(&mut self, stdout: u64, stderr: u64, results: u64) {
        self.position = PerStream { stdout, stderr, results };
        self.leave();
    }

    /// Returns the exec's ID.
    pub fn id(&self) -> &ExecId {
        &self.id
    }

    /// Returns the exec's state at its start. Returns `None` if this reader did not start the exec.
    pub fn info(&self) -> Option<&ExecInfo> {
        self.info.as_ref()
    }

    /// Returns the current offsets in standard output, standard error and results.
    pub fn position(&self) -> PerStream<u64> {
        self.position
    }

    /// Returns the next event, or `None` after the end. Reconnects as often as necessary. Cancel-safe. After
    /// an error, the next call continues at the same offset.
    ///
    /// # Errors
    /// Returns an error if the exec or its sandbox no longer exists (`not_found`, `sandbox_lost`), the server
    /// does not respond, or its response is inconsistent.
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
                Err(LineError::Cut(_)) if self.caught_up => {
                    self.ended = true;
                    continue;
                }
                Err(LineError::Cut(why)) => link.cut(why),
                Err(LineError::Nonsense(what)) => self.lie(what),
            };
            self.leave();
            link.pause(&mut self.attempts, failure).await?;
        }
        Ok(None)
    }

    /// Reads to the end and returns all output. Holds at most as many bytes per stream as an exec can retain.
    ///
    /// # Errors
    /// Fails like [`Exec::next`]. Also fails with `too_large` if an exec in mode `block` wrote more than that.
    pub async fn collect(mut self) -> Result<Collected, Error> {
        let (mut stdout, mut stderr, mut results) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            match self.next().await? {
                Some(Event::Data { stream: Stream::Stdout, bytes, .. }) => stdout.extend_from_slice(&bytes),
                Some(Event::Data { stream: Stream::Stderr, bytes, .. }) => stderr.extend_from_slice(&bytes),
                Some(Event::Result { line, .. }) => results.push(line),
                // Results are never sent as raw bytes.
                Some(Event::Data { stream: Stream::Results, .. } | Event::Gap { .. }) => {}
                Some(Event::End(end)) => return Ok(Collected { stdout, stderr, results, end }),
                None => {
                    return Err(self
                        .client
                        .link
                        .protocol("the output stream closed without an end event".into()));
                }
            }
            if self.position.results.max(stdout.len().max(stderr.len()) as u64) > COLLECTED_BYTES_MAX {
                return Err(Error::Refused(too_large(&self.id)));
            }
        }
    }

    /// Returns the request for all output that has not been read yet.
    fn rest(&self) -> ApiRequest {
        let (PerStream { stdout, stderr, results }, follow) = (self.position, self.follow);
        let offsets = format!("stdout={stdout}&stderr={stderr}&results={results}");
        let path = format!("{}/output?{offsets}&follow={follow}", self.path());
        ApiRequest::get(path).accept(NDJSON).within(self.client.link.options.silence_max)
    }

    /// Checks a line against the previous lines and updates the position.
    fn accept(&mut self, line: OutputLine) -> Result<Option<Event>, FailedAttempt> {
        // Without `follow`, a heartbeat means that the server has sent all output so far. A second heartbeat
        // in a row means that the reader is done.
        let quiet = !self.follow && line == OutputLine::Heartbeat;
        self.ended = quiet && self.caught_up;
        self.caught_up = quiet;
        match line {
            OutputLine::Started { .. } => Err(self.lie("received a second `started` event".into())),
            OutputLine::Heartbeat => {
                // No output arrives. The process may be blocked until the reader acknowledges the output that
                // it has read.
                if let Some(taking) = &mut self.taking {
                    let PerStream { stdout, stderr, .. } = self.position;
                    taking.now = taking.told != [stdout, stderr];
                }
                Ok(None)
            }
            OutputLine::Data { stream: Stream::Results, .. } => {
                Err(self.lie("received raw bytes in the stream of results".into()))
            }
            OutputLine::Result { offset, next, line } => {
                let was = self.position.results;
                if offset != was || next <= offset {
                    return Err(self.lie(format!(
                        "received a result from {offset} to {next}, but expected offset {was}"
                    )));
                }
                self.position.results = next;
                Ok(Some(Event::Result { offset, next, line }))
            }
            OutputLine::Data { stream, offset, text, base64 } => {
                let bytes = self.bytes(text, base64)?;
                let at = *self.position.get(stream);
                if offset != at {
                    return Err(
                        self.lie(format!("received data with offset {offset}, but expected offset {at}"))
                    );
                }
                *self.position.get_mut(stream) = at + bytes.len() as u64;
                Ok(Some(Event::Data { stream, offset, bytes }))
            }
            OutputLine::Gap { stream, from, to } => {
                let at = *self.position.get(stream);
                if from != at || to <= from {
                    return Err(
                        self.lie(format!("received a gap from {from} to {to}, but expected offset {at}"))
                    );
                }
                *self.position.get_mut(stream) = to;
                Ok(Some(Event::Gap { stream, from, to }))
            }
            OutputLine::End { end } => {
                let said = PerStream::of_end(&end);
                if said != self.position {
                    let bytes = |of: PerStream<u64>| [of.stdout, of.stderr, of.results];
                    return Err(self.lie(format!(
                        "the end event reports {:?} bytes per stream, but {:?} bytes were received",
                        bytes(said),
                        bytes(self.position)
                    )));
                }
                self.ended = true;
                self.lines = None;
                Ok(Some(Event::End(end)))
            }
            OutputLine::Error { error } => Err(last_words(error)),
        }
    }

    fn bytes(&self, text: Option<String>, base64: Option<String>) -> Result<Bytes, FailedAttempt> {
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

    /// Acknowledges all output that the caller received before the current call of `next`.
    async fn tell(&mut self) -> Result<(), Error> {
        let (PerStream { stdout, stderr, .. }, path) = (self.position, self.path());
        let Some(taking) = &mut self.taking else { return Ok(()) };
        let [told_stdout, told_stderr] = taking.told;
        let most = stdout.saturating_sub(told_stdout).max(stderr.saturating_sub(told_stderr));
        if most < taking.every.max(1) && !taking.now {
            return Ok(());
        }
        let ask = ApiRequest::new(Method::PUT, format!("{path}/read?stdout={stdout}&stderr={stderr}"));
        match self.client.link.done(&ask).await {
            Ok(()) => {}
            // If the exec or its sandbox no longer exists, the output stream reports that as an outcome or an
            // error.
            Err(error) if matches!(error.code(), Some(ErrorCode::SandboxLost | ErrorCode::NotFound)) => {}
            Err(error) => return Err(error),
        }
        *taking = Taking { told: [stdout, stderr], now: false, ..*taking };
        Ok(())
    }

    fn path(&self) -> String {
        format!("/v1/sandboxes/{}/execs/{}", self.sandbox, self.id)
    }

    /// Drops the connection but keeps the position. Schedules an acknowledgement, because a restarted server
    /// may not know the last one.
    fn leave(&mut self) {
        self.lines = None;
        self.caught_up = false;
        if let Some(taking) = &mut self.taking {
            let PerStream { stdout, stderr, .. } = self.position;
            taking.now = stdout + stderr > 0;
        }
    }

    fn lie(&self, what: String) -> FailedAttempt {
        FailedAttempt { error: self.client.link.protocol(what), trouble: None, pause: None }
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
