//! A run of code, whose output and results are streamed as lines.
//!
//! ```text
//! running ──▶ done                 the outcome is known
//!    └──────▶ lost ──▶ done        the outcome is unknown: the connection breaks
//! ```

use std::io;
use std::time::Duration;

use api::ContextId;
use api::code::RunResult;
use api::exec::{Outcome, Stream};
use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use node::{Event, Exec};
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use control::output::Carried;

use super::known;
use crate::results::{ascii, ended, result, text, written};
use crate::who::Inside;

/// Interval between keepalive lines while a run produces no output.
const ALIVE_EVERY: Duration = Duration::from_secs(5);
/// Time for which stderr output is held back, because an exception with the same text may be reported next.
const HELD_FOR: Duration = Duration::from_millis(50);
const HELD_BYTES_MAX: usize = 64 << 10;

/// A run in progress.
pub(super) struct CodeRun {
    inside: Inside,
    exec: Exec,
    context: Option<ContextId>,
    is_python: bool,
    carried: Carried,
    /// Latest output to stderr, held back for a moment. An exception that ends the code is written to stderr
    /// and also reported as a result, but clients must receive it only once.
    held: Option<String>,
    /// True if an error result was sent.
    failed: bool,
    over: Option<Over>,
    _place: OwnedSemaphorePermit,
}

/// State of a response body.
enum CodeResponseState {
    Running(Box<CodeRun>),
    /// The outcome of the run is unknown. The response ends with a broken connection, because the SDKs report
    /// success after any complete response.
    Lost,
    Done,
}

/// How a run ended: with a known outcome, or without one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    Ended,
    Lost,
}

impl CodeRun {
    /// Creates the run of an exec that has just been started.
    pub(super) fn new(
        inside: Inside,
        exec: Exec,
        context: Option<ContextId>,
        is_python: bool,
        place: OwnedSemaphorePermit,
    ) -> Self {
        let (carried, held) = (Carried::default(), None);
        Self { inside, exec, context, is_python, carried, held, failed: false, over: None, _place: place }
    }

    /// Returns the next lines as a chunk. The chunk is never empty, because clients would interpret an empty
    /// chunk as an empty line.
    async fn next(&mut self) -> Bytes {
        loop {
            let within = if self.held.is_some() { HELD_FOR } else { ALIVE_EVERY };
            let lines = match timeout(within, self.exec.next()).await {
                Err(_) if self.held.is_some() => self.let_go().into_iter().collect(),
                Err(_) => vec![json!({ "type": "keepalive" })],
                Ok(Ok(Some(event))) => self.told(event).await,
                Ok(Ok(None) | Err(_)) => self.lost(),
            };
            if !lines.is_empty() {
                return lines.iter().map(ascii).collect::<String>().into();
            }
        }
    }

    fn lost(&mut self) -> Vec<Value> {
        self.over = Some(Over::Lost);
        let last = json!({ "type": "unexpected_end_of_execution" });
        self.rest(&[Stream::Stdout, Stream::Stderr]).into_iter().chain([last]).collect()
    }

    async fn told(&mut self, event: Event) -> Vec<Value> {
        match event {
            Event::Data { stream, offset, bytes } => {
                // Consecutive output to stderr may belong to the same exception.
                let goes_on = stream == Stream::Stderr
                    && self.held.as_ref().is_none_or(|held| held.len() < HELD_BYTES_MAX);
                let mut lines: Vec<_> = if goes_on { None } else { self.let_go() }.into_iter().collect();
                for line in self.carried.take(stream, offset, &bytes) {
                    match (written(&line), stream) {
                        (Some(text), Stream::Stderr) => self.held.get_or_insert_default().push_str(&text),
                        (Some(words), _) => lines.push(text("stdout", &words)),
                        (None, _) => {}
                    }
                }
                lines
            }
            Event::Gap { stream, from, to } => {
                let mut lines = self.rest(&[stream]);
                lines.push(text("stderr", &format!("[{} bytes of output were dropped]\n", to - from)));
                lines
            }
            Event::Result { line, .. } => {
                if let (RunResult::Error(exception), Some(held)) = (&line.result, &mut self.held)
                    && let Some(before) = held.trim_end().strip_suffix(exception.text.trim_end())
                {
                    *held = before.to_owned();
                }
                let mut lines = self.rest(&[Stream::Stdout, Stream::Stderr]);
                self.failed |= matches!(line.result, RunResult::Error(_) | RunResult::Refused { .. });
                lines.extend(result(line.result));
                lines
            }
            Event::End(end) if matches!(end.outcome, Outcome::SandboxLost { .. } | Outcome::Unknown) => {
                self.lost()
            }
            Event::End(end) => {
                self.over = Some(Over::Ended);
                let mut lines = self.rest(&[Stream::Stdout, Stream::Stderr]);
                lines.extend(ended(&end, self.is_python).filter(|_| !self.failed));
                lines.extend(self.count().await);
                lines.push(json!({ "type": "end_of_execution" }));
                lines
            }
        }
    }

    /// Returns the held-back stderr output as a line, if there is any.
    fn let_go(&mut self) -> Option<Value> {
        self.held.take().filter(|held| !held.is_empty()).map(|held| text("stderr", &held))
    }

    /// Returns lines with the held-back stderr output, and with the incomplete characters at the end of these
    /// streams.
    fn rest(&mut self, streams: &[Stream]) -> Vec<Value> {
        let mut lines: Vec<_> = self.let_go().into_iter().collect();
        for stream in streams {
            let name = if *stream == Stream::Stderr { "stderr" } else { "stdout" };
            let carried = self.carried.flush(*stream);
            lines.extend(carried.iter().filter_map(written).map(|words| text(name, &words)));
        }
        lines
    }

    /// Returns a line with the number of cells that the context has run.
    async fn count(&self) -> Option<Value> {
        let id = self.context.as_ref()?;
        let info = known(&self.inside, id.as_str()).await.ok()?;
        Some(json!({ "type": "number_of_executions", "execution_count": info.cells }))
    }
}

impl IntoResponse for CodeRun {
    fn into_response(self) -> Response {
        let body = stream::unfold(CodeResponseState::Running(Box::new(self)), |step| async move {
            match step {
                CodeResponseState::Running(mut run) => {
                    let bytes = run.next().await;
                    let step = match run.over {
                        None => CodeResponseState::Running(run),
                        Some(Over::Ended) => CodeResponseState::Done,
                        Some(Over::Lost) => CodeResponseState::Lost,
                    };
                    Some((Ok(bytes), step))
                }
                CodeResponseState::Lost => Some((
                    Err(io::Error::other("the sandbox ended while the code was running")),
                    CodeResponseState::Done,
                )),
                CodeResponseState::Done => None,
            }
        });
        let headers = [(header::CONTENT_TYPE, "application/x-ndjson"), (header::CACHE_CONTROL, "no-store")];
        (StatusCode::OK, headers, Body::from_stream(body)).into_response()
    }
}

impl Drop for CodeRun {
    fn drop(&mut self) {
        if self.over.is_none() {
            let exec = self.inside.call.exec_reader(self.exec.id().clone());
            tokio::spawn(async move {
                // Ignore an error: the exec may have ended in the meantime.
                let _ = exec.cancel().await;
            });
        }
    }
}
