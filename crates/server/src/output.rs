//! Streaming of an exec's output as lines of JSON, from the node to the client.
//!
//! A stream keeps its sandbox in use, occupies one of its project's stream slots, and sends a line at least
//! every few seconds. If the client disconnects, the stream is dropped. The exec continues, unless its start
//! request specified that it ends with its reader.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use api::code::{ResultLine, RunResult};
use api::exec::{ExecInfo, Stream};
use api::output::{LINE_BYTES_MAX, NDJSON, OutputLine, PerStream};
use api::server::HEARTBEAT_MS;
use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use node::{Call, Event, Exec};
use tokio::sync::OwnedSemaphorePermit;
use tracing::{Instrument as _, Span};

use control::Platform;
use control::output::Carried;

/// How long to wait for the end event after the last byte. If the exec has ended, the guest sends the event
/// within about 1 ms.
const END_WITHIN: Duration = Duration::from_millis(200);

/// Maximum length of a result that is certain to fit into a line after serialization. Numbers such as `1e15`
/// grow most, to four times their length.
const GROWS_TO_MAX: u64 = LINE_BYTES_MAX as u64 / 8;

/// A stream of one exec's output.
pub struct Output {
    /// Platform that serves the stream.
    pub platform: Arc<Platform>,
    /// Call to the sandbox. While it exists, the sandbox does not count as idle.
    pub call: Call,
    /// Reader of the output, positioned at the start offsets.
    pub exec: Exec,
    /// One of the project's stream slots.
    pub place: OwnedSemaphorePermit,
    /// Start offsets of the three streams.
    pub from: PerStream<u64>,
    /// The exec's description, sent as the first line.
    pub started: Option<ExecInfo>,
    /// Offsets at which the stream ends, for clients that want only the output so far.
    pub until: Option<PerStream<u64>>,
    /// True if the exec is cancelled when its client disconnects.
    pub cancels: bool,
}

/// Builds a response that consists of JSON lines.
pub fn lines(status: StatusCode, body: Body) -> Response {
    let headers = [(header::CONTENT_TYPE, NDJSON), (header::CACHE_CONTROL, "no-store")];
    (status, headers, body).into_response()
}

impl IntoResponse for Output {
    fn into_response(self) -> Response {
        let status = if self.started.is_some() { StatusCode::CREATED } else { StatusCode::OK };
        self.platform.metrics.streams.inc();
        let (carried, span) = (Carried::default(), Span::current());
        let reader = OutputReader { carried, reached: self.from, ended: false, span, output: self };
        let body = stream::unfold(Some(reader), |reader| async move {
            let mut reader = reader?;
            let span = reader.span.clone();
            let bytes = reader.step().instrument(span).await;
            let next = (!reader.ended).then_some(reader);
            Some((Ok::<_, Infallible>(bytes), next))
        });
        lines(status, Body::from_stream(body))
    }
}

/// State of an output stream.
struct OutputReader {
    output: Output,
    carried: Carried,
    reached: PerStream<u64>,
    ended: bool,
    /// Span of the request, which lasts until the client has finished reading.
    span: Span,
}

impl OutputReader {
    /// Returns the next line or lines.
    async fn step(&mut self) -> Bytes {
        if let Some(exec) = self.output.started.take() {
            return written(&[OutputLine::Started { exec }]);
        }
        let there = self.output.until.is_some_and(|until| until.is_within(&self.reached));
        // If the exec has ended, its end event follows immediately. Otherwise, the stream ends here.
        let within = if there { END_WITHIN } else { Duration::from_millis(HEARTBEAT_MS) };
        let heard = tokio::time::timeout(within, self.output.exec.next()).await;
        let is_end = matches!(heard, Ok(Ok(Some(Event::End(_))) | Ok(None) | Err(_)));
        if there && !is_end {
            self.ended = true;
            let mut last = self.carried.flush_all();
            last.push(OutputLine::Heartbeat);
            return written(&last);
        }
        let lines = match heard {
            Err(_) => vec![OutputLine::Heartbeat],
            Ok(Ok(Some(Event::Data { stream, offset, bytes }))) => {
                *self.reached.get_mut(stream) = offset + bytes.len() as u64;
                self.carried.take(stream, offset, &bytes)
            }
            Ok(Ok(Some(Event::Result { offset, next, line }))) => {
                self.reached.results = next;
                // Send output that was written before the result first, even if its last character is
                // incomplete.
                let mut lines = self.carried.flush_before(Stream::Stdout, line.stdout);
                lines.extend(self.carried.flush_before(Stream::Stderr, line.stderr));
                lines.push(result(offset, next, line));
                lines
            }
            Ok(Ok(Some(Event::Gap { stream, from, to }))) => {
                *self.reached.get_mut(stream) = to;
                let mut lines = self.carried.flush(stream);
                lines.push(OutputLine::Gap { stream, from, to });
                lines
            }
            Ok(Ok(Some(Event::End(end)))) => {
                self.ended = true;
                let mut lines = self.carried.flush_all();
                lines.push(OutputLine::End { end });
                lines
            }
            Ok(Ok(None)) => {
                self.ended = true;
                let error =
                    node::Error::Protocol("the output stream ended without an end event".into()).to_api();
                vec![OutputLine::Error { error }]
            }
            Ok(Err(error)) => {
                self.ended = true;
                vec![OutputLine::Error { error: error.to_api() }]
            }
        };
        written(&lines)
    }
}

impl Drop for OutputReader {
    fn drop(&mut self) {
        self.output.platform.metrics.streams.dec();
        if self.output.cancels && !self.ended {
            let exec = self.output.call.exec_reader(self.output.exec.id().clone());
            tokio::spawn(async move {
                // It is not an error if the exec has ended in the meantime.
                let _ = exec.cancel().await;
            });
        }
    }
}

/// Converts a result into a line that every client can read. If serialization makes the result too long,
/// replaces it with a note that it was omitted.
fn result(offset: u64, next: u64, line: ResultLine) -> OutputLine {
    let told = OutputLine::Result { offset, next, line };
    let bytes = next - offset;
    if bytes <= GROWS_TO_MAX || written(std::slice::from_ref(&told)).len() <= LINE_BYTES_MAX {
        return told;
    }
    let OutputLine::Result { line: ResultLine { stdout, stderr, .. }, .. } = told else { return told };
    let result = RunResult::Omitted { bytes, types: Vec::new() };
    OutputLine::Result { offset, next, line: ResultLine { stdout, stderr, result } }
}

/// Serializes items as lines of JSON.
pub fn written<T: serde::Serialize>(lines: &[T]) -> Bytes {
    let mut bytes = Vec::new();
    for line in lines {
        // Serializing our own types cannot fail.
        if serde_json::to_writer(&mut bytes, line).is_ok() {
            bytes.push(b'\n');
        }
    }
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_that_grows_by_being_written_is_told_as_omitted() {
        let line = |count: usize| {
            let numbers = vec!["1e15"; count].join(",");
            let result = format!(r#"{{"kind":"value","data":{{"application/json":[{numbers}]}}}}"#);
            format!(r#"{{"stdout":1,"stderr":0,"result":{result}}}"#)
        };
        for (count, fits) in [(10, true), (400_000, true), (490_000, false)] {
            let text = line(count);
            let told = result(0, text.len() as u64 + 1, serde_json::from_str(&text).unwrap());
            assert!(written(std::slice::from_ref(&told)).len() <= LINE_BYTES_MAX);
            let OutputLine::Result { line, .. } = told else { panic!() };
            assert_eq!((line.stdout, matches!(line.result, RunResult::Value(_))), (1, fits), "{count}");
        }
    }
}
