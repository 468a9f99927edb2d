//! Output of an exec as lines of JSON, from the node to the client.
//!
//! A stream keeps its sandbox in use, occupies one of its project's slots, and sends a line at least every
//! few seconds. If the client disconnects, the stream is dropped. The exec continues, unless the request
//! specified that it ends with its reader.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use api::code::{ResultLine, RunResult};
use api::exec::{ExecInfo, Stream};
use api::output::{LINE_BYTES_MAX, NDJSON, OutputLine};
use api::server::HEARTBEAT_MS;
use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream;
use node::{Call, Event, Exec};
use tokio::sync::OwnedSemaphorePermit;
use tracing::{Instrument as _, Span};

use crate::account::{STREAMS_MAX, Share, busy};
use crate::fault::Answer;
use crate::platform::Platform;

/// Timeout for the end event after the last byte. If the exec has ended, the guest sends it within about 1
/// ms.
const END_WITHIN: Duration = Duration::from_millis(200);

/// Maximum length of a result that fits a line in any notation: a number such as `1e15` becomes four times as
/// long, and nothing grows more.
const GROWS_TO_MAX: u64 = LINE_BYTES_MAX as u64 / 8;

/// Stream of one exec's output.
pub struct Output {
    /// Platform that serves the stream.
    pub platform: Arc<Platform>,
    /// Call during which the sandbox is not idle.
    pub call: Call,
    /// Reader of the output, at its start position.
    pub exec: Exec,
    /// Slot among the streams of the project.
    pub place: OwnedSemaphorePermit,
    /// Start offsets of the three streams.
    pub from: [u64; 3],
    /// Exec to send as the first line.
    pub started: Option<ExecInfo>,
    /// Offsets at which to end, for clients that want only the output so far.
    pub until: Option<[u64; 3]>,
    /// True if the exec is cancelled when its client disconnects.
    pub cancels: bool,
}

/// Returns a slot for a stream of this project.
///
/// # Errors
/// `rate_limited`: the project has too many streams.
pub fn place(share: &Share) -> Answer<OwnedSemaphorePermit> {
    let streams = Arc::clone(&share.streams);
    streams
        .try_acquire_owned()
        .map_err(|_| busy(format!("the project already has {STREAMS_MAX} open streams, the maximum")))
}

/// Creates a response of JSON lines.
pub fn lines(status: StatusCode, body: Body) -> Response {
    let headers = [(header::CONTENT_TYPE, NDJSON), (header::CACHE_CONTROL, "no-store")];
    (status, headers, body).into_response()
}

impl IntoResponse for Output {
    fn into_response(self) -> Response {
        let status = if self.started.is_some() { StatusCode::CREATED } else { StatusCode::OK };
        self.platform.metrics.streams.inc();
        let (carried, span) = (Carried::default(), Span::current());
        let reader = Reader { carried, reached: self.from, ended: false, span, output: self };
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

/// State of a stream.
struct Reader {
    output: Output,
    carried: Carried,
    reached: [u64; 3],
    ended: bool,
    /// Span of the request, which lasts as long as the client reads.
    span: Span,
}

impl Reader {
    /// Returns the next line or lines.
    async fn step(&mut self) -> Bytes {
        if let Some(exec) = self.output.started.take() {
            return written(&[OutputLine::Started { exec }]);
        }
        let all = |until: [u64; 3]| until.iter().zip(self.reached).all(|(until, at)| *until <= at);
        let there = self.output.until.is_some_and(all);
        // If the exec has ended, its end event follows at once. Otherwise there is nothing to wait for.
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
                *of(&mut self.reached, stream) = offset + bytes.len() as u64;
                self.carried.take(stream, offset, &bytes)
            }
            Ok(Ok(Some(Event::Result { offset, next, line }))) => {
                *of(&mut self.reached, Stream::Results) = next;
                // Output written before the result is sent first, including an incomplete character.
                let mut lines = self.carried.flush_before(Stream::Stdout, line.stdout);
                lines.extend(self.carried.flush_before(Stream::Stderr, line.stderr));
                lines.push(result(offset, next, line));
                lines
            }
            Ok(Ok(Some(Event::Gap { stream, from, to }))) => {
                *of(&mut self.reached, stream) = to;
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

impl Drop for Reader {
    fn drop(&mut self) {
        self.output.platform.metrics.streams.dec();
        if self.output.cancels && !self.ended {
            let exec = self.output.call.exec_reader(self.output.exec.id().clone());
            tokio::spawn(async move {
                // An exec that has ended in the meantime is not an error.
                let _ = exec.cancel().await;
            });
        }
    }
}

/// Bytes of incomplete characters, and the offset of the first byte, for each stream.
#[derive(Default)]
pub(crate) struct Carried([(u64, Vec<u8>); 3]);

impl Carried {
    /// Returns lines for these bytes and the carried ones. Carries a character that is incomplete at the end.
    pub fn take(&mut self, stream: Stream, offset: u64, bytes: &[u8]) -> Vec<OutputLine> {
        let (at, carried) = of(&mut self.0, stream);
        let first = if carried.is_empty() { offset } else { *at };
        let mut whole = std::mem::take(carried);
        whole.extend_from_slice(bytes);
        let valid = match std::str::from_utf8(&whole) {
            Ok(_) => whole.len(),
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            // Not text: return all bytes unchanged.
            Err(_) => return vec![data(stream, first, &whole)],
        };
        let rest = whole.split_off(valid);
        *carried = rest;
        *at = first + valid as u64;
        if whole.is_empty() { Vec::new() } else { vec![data(stream, first, &whole)] }
    }

    /// Returns the carried bytes of a stream, whose character will not be completed.
    pub fn flush(&mut self, stream: Stream) -> Vec<OutputLine> {
        let (at, carried) = of(&mut self.0, stream);
        let bytes = std::mem::take(carried);
        if bytes.is_empty() { Vec::new() } else { vec![data(stream, *at, &bytes)] }
    }

    /// Returns the carried bytes of a stream if they are from before this offset.
    fn flush_before(&mut self, stream: Stream, offset: u64) -> Vec<OutputLine> {
        let (at, _) = of(&mut self.0, stream);
        if *at < offset { self.flush(stream) } else { Vec::new() }
    }

    /// Returns the carried bytes of all streams.
    pub fn flush_all(&mut self) -> Vec<OutputLine> {
        let mut lines = self.flush(Stream::Stdout);
        lines.extend(self.flush(Stream::Stderr));
        lines
    }
}

/// Returns the item for one of the three streams.
fn of<T>([stdout, stderr, results]: &mut [T; 3], stream: Stream) -> &mut T {
    match stream {
        Stream::Stdout => stdout,
        Stream::Stderr => stderr,
        Stream::Results => results,
    }
}

/// Converts a result into a line that every client can read. A result that serialization made too long is
/// replaced by a note that it was omitted.
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

fn data(stream: Stream, offset: u64, bytes: &[u8]) -> OutputLine {
    match std::str::from_utf8(bytes) {
        Ok(text) => OutputLine::Data { stream, offset, text: Some(text.to_owned()), base64: None },
        Err(_) => OutputLine::Data { stream, offset, text: None, base64: Some(STANDARD.encode(bytes)) },
    }
}

/// Serializes lines.
pub fn written<T: serde::Serialize>(lines: &[T]) -> Bytes {
    let mut bytes = Vec::new();
    for line in lines {
        // Serializing our own types does not fail.
        if serde_json::to_writer(&mut bytes, line).is_ok() {
            bytes.push(b'\n');
        }
    }
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn told(lines: &[OutputLine]) -> (Vec<u8>, bool) {
        let mut bytes = Vec::new();
        let mut texts = true;
        for line in lines {
            if let OutputLine::Data { offset, text, base64, .. } = line {
                assert_eq!(*offset, bytes.len() as u64);
                texts &= text.is_some();
                let part = match (text, base64) {
                    (Some(text), None) => text.clone().into_bytes(),
                    (None, Some(packed)) => STANDARD.decode(packed).unwrap(),
                    _ => panic!("both or neither"),
                };
                bytes.extend(part);
            }
        }
        (bytes, texts)
    }

    fn through(bytes: &[u8], cuts: usize) -> Vec<OutputLine> {
        let mut carried = Carried::default();
        let mut lines = Vec::new();
        let mut offset = 0;
        for piece in bytes.chunks(cuts) {
            lines.extend(carried.take(Stream::Stdout, offset, piece));
            offset += piece.len() as u64;
        }
        lines.extend(carried.flush_all());
        lines
    }

    #[test]
    fn characters_are_never_cut_in_two() {
        // The text arrives in pieces of 1 to 8 bytes.
        let text = "☕é😀a".repeat(1000);
        for cuts in 1..9 {
            assert_eq!(told(&through(text.as_bytes(), cuts)), (text.clone().into_bytes(), true), "{cuts}");
        }
    }

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

    #[test]
    fn half_a_character_is_told_before_the_result_that_follows_it() {
        let mut carried = Carried::default();
        let coffee = "☕".as_bytes();
        assert!(carried.take(Stream::Stdout, 0, &coffee[..2]).is_empty());
        assert!(carried.flush_before(Stream::Stdout, 0).is_empty(), "it was written after it");
        assert_eq!(told(&carried.flush_before(Stream::Stdout, 2)).0, &coffee[..2]);
    }

    proptest! {
        #[test]
        fn every_byte_is_told_once(bytes in prop::collection::vec(any::<u8>(), 0..300), cuts in 1_usize..20) {
            prop_assert_eq!(told(&through(&bytes, cuts)).0, bytes);
        }
    }
}
