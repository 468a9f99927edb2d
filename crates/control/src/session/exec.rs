//! One exec of a run: its output goes to the session's listeners, to the response, and to storage.

use std::time::Duration;

use api::exec::{ExecSpec, Stream};
use api::output::OutputLine;
use api::session::SessionEvent;
use api::{ErrorCode, ExecId, limits};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use node::{Call, Event, Folder, Incoming};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tools::{Capture, EndedExec};

use super::Live;
use super::flight::asked_to_end;
use crate::output::Carried;

/// Maximum size of output that is stored in the record of the run. Longer output is stored as a separate
/// object.
const SMALL_BYTES: usize = tools::capture::TEXT_BYTES_MAX;

/// An exec to start, and the run that it belongs to.
pub(super) struct RunExec<'a> {
    /// The session.
    pub live: &'a Live,
    /// Call that gives access to the sandbox.
    pub call: &'a Call,
    /// The run that the exec belongs to.
    pub run: &'a ExecId,
    /// True if the exec's output is the output of the run, and is therefore published to the session's
    /// listeners.
    pub told: bool,
    /// Timeout of the exec.
    pub timeout_seconds: f64,
    /// Memory limit of the sandbox.
    pub memory_bytes: u64,
}

/// Stored output of one stream of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum KeptOutput {
    /// Nothing is stored, because there was no output or it could not be stored.
    #[default]
    Nothing,
    /// The complete output, in base64.
    Small(String),
    /// The output is stored as an object beside the record.
    Large,
}

/// Writer that stores the output of one stream.
struct Spool<'a> {
    folder: &'a Folder,
    names: [&'a str; 3],
    small: Vec<u8>,
    large: Option<Incoming>,
    failed: bool,
}

/// Result of an exec, its stored output, and the gaps in that output.
pub(super) struct FinishedExec {
    pub ran: EndedExec,
    pub kept: [KeptOutput; 2],
    pub gaps: [Option<(u64, u64)>; 2],
}

impl RunExec<'_> {
    /// Converts the error for a program that could not be started into the result of the exec. Returns any
    /// other error unchanged.
    fn not_started(&self, error: node::Error) -> Result<FinishedExec, node::Error> {
        let told = error.to_api();
        if told.code != ErrorCode::SpawnFailed {
            return Err(error);
        }
        let said = format!("{}\n", told.message);
        let kept = [KeptOutput::default(), KeptOutput::Small(STANDARD.encode(&said))];
        let ran = EndedExec::not_started(&said, self.timeout_seconds, self.memory_bytes);
        Ok(FinishedExec { ran, kept, gaps: [None; 2] })
    }

    /// Runs the exec until it ends. If the program cannot be started, the result is exit code 127, with the
    /// cause on standard error (requirement A6.05).
    ///
    /// # Errors
    /// Returns an error if the request is invalid or if it is unknown whether the exec ran.
    pub async fn exec(
        &self,
        id: &ExecId,
        spec: ExecSpec,
        cancelled: &mut watch::Receiver<bool>,
    ) -> Result<FinishedExec, node::Error> {
        let mut exec = match self.call.start_exec_and_read(id, spec).await {
            Ok((_, exec)) => exec,
            Err(error) => return self.not_started(error),
        };
        let mut captures = [Capture::default(), Capture::default()];
        let run = self.run.as_str();
        let mut spools = ["stdout", "stderr"].map(|name| Spool::new(&self.live.folder, ["runs", run, name]));
        let (mut carried, mut asked, mut gaps) = (Carried::default(), false, [None; 2]);
        let end = loop {
            let event = tokio::select! {
                event = exec.next() => event?,
                () = asked_to_end(cancelled), if !asked => {
                    asked = true;
                    // Ignore an error: the exec may have ended in the meantime.
                    let _ = self.call.exec_reader(id.clone()).cancel().await;
                    continue;
                }
            };
            let [stdout, stderr] = &mut captures;
            let [stdout_spool, stderr_spool] = &mut spools;
            match event {
                Some(Event::Data { stream, offset, bytes }) => {
                    let (capture, spool) = match stream {
                        Stream::Stdout => (stdout, stdout_spool),
                        Stream::Stderr => (stderr, stderr_spool),
                        Stream::Results => continue,
                    };
                    capture.push(&bytes);
                    spool.push(&bytes).await;
                    self.tell(carried.take(stream, offset, &bytes));
                }
                Some(Event::Gap { stream, from, to }) => {
                    let [stdout_gap, stderr_gap] = &mut gaps;
                    let (capture, gap) = match stream {
                        Stream::Stdout => (stdout, stdout_gap),
                        Stream::Stderr => (stderr, stderr_gap),
                        Stream::Results => continue,
                    };
                    capture.skip(to - from);
                    // A stream has at most one gap: if the stream is too long, only its middle is dropped.
                    gap.get_or_insert((from, to));
                    self.tell(carried.flush(stream));
                }
                Some(Event::Result { .. }) => {}
                Some(Event::End(end)) => break end,
                None => {
                    return Err(node::Error::Protocol("the output stream ended without an end event".into()));
                }
            }
        };
        self.tell(carried.flush_all());
        let [stdout, stderr] = captures;
        let [stdout_spool, stderr_spool] = spools;
        let kept = [stdout_spool.finish().await, stderr_spool.finish().await];
        let duration = Duration::from_micros(end.duration_us);
        let ran = EndedExec {
            outcome: end.outcome,
            stdout,
            stderr,
            duration,
            timeout_seconds: self.timeout_seconds,
            memory_bytes: self.memory_bytes,
        };
        Ok(FinishedExec { ran, kept, gaps })
    }

    /// Publishes output to the session's listeners.
    fn tell(&self, lines: Vec<OutputLine>) {
        for line in lines.into_iter().filter(|_| self.told) {
            if let OutputLine::Data { stream, offset, text, base64 } = line {
                self.live.say(SessionEvent::Output { run: self.run.clone(), stream, offset, text, base64 });
            }
        }
    }
}

impl<'a> Spool<'a> {
    fn new(folder: &'a Folder, names: [&'a str; 3]) -> Self {
        Self { folder, names, small: Vec::new(), large: None, failed: false }
    }

    /// Adds bytes. If they cannot be stored, the run continues without storing this output, because the run
    /// is more important than its record.
    async fn push(&mut self, bytes: &Bytes) {
        if self.failed {
            return;
        }
        if self.large.is_none() && self.small.len() + bytes.len() <= SMALL_BYTES {
            self.small.extend_from_slice(bytes);
            return;
        }
        if let Err(error) = self.grow(bytes).await {
            tracing::warn!(error = node::error::chain(&error), "cannot store the output of a run");
            (self.failed, self.large) = (true, None);
        }
    }

    async fn grow(&mut self, bytes: &Bytes) -> Result<(), node::Error> {
        let large = match &mut self.large {
            Some(large) => large,
            None => {
                let mut begun = self.folder.begin_within(&self.names, limits::OUTPUT_BYTES).await?;
                begun.push(&Bytes::from(std::mem::take(&mut self.small))).await?;
                self.large.insert(begun)
            }
        };
        large.push(bytes).await
    }

    async fn finish(self) -> KeptOutput {
        if self.failed {
            return KeptOutput::Nothing;
        }
        let Some(large) = self.large else { return KeptOutput::Small(STANDARD.encode(&self.small)) };
        match large.finish().await {
            Ok(()) => KeptOutput::Large,
            Err(error) => {
                tracing::warn!(error = node::error::chain(&error), "cannot store the output of a run");
                KeptOutput::Nothing
            }
        }
    }
}
