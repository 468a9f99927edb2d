//! An exec's output as lines of JSON, for clients of the public API.
//!
//! Each line is one object. Bytes that are valid UTF-8 are sent as `text`, all other bytes as `base64`. A
//! character is never split, so `text` never contains a replacement character that was not in the output. The
//! last line is always `end` or `error`; a stream without such a line was interrupted and can be resumed from
//! the last offsets received.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::code::ResultLine;
use crate::error::Error;
use crate::exec::{ExecEnd, ExecInfo, Stream};

/// Content type of an output stream.
pub const NDJSON: &str = "application/x-ndjson";
/// Maximum length of a line in bytes. The longest possible line contains either the largest result or a full
/// frame from the guest in which JSON escaping turns each byte into six.
pub const LINE_BYTES_MAX: usize = 8 << 20;

/// Line of an output stream. The last line is `end` or `error`; a stream that ends without such a line was interrupted and can be resumed
/// from the last offsets received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OutputLine {
    /// The exec was started, or an earlier attempt of the same request had already started it. This is the first line of a stream that
    /// starts an exec; other streams do not have this line.
    Started {
        /// Exec.
        exec: ExecInfo,
    },
    /// Bytes of a stream, as `text` or `base64`, never both.
    Data {
        /// Stream.
        stream: Stream,
        /// Offset of the first byte.
        offset: u64,
        /// Bytes that are valid UTF-8.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
        /// Bytes that are not valid UTF-8, in base64.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        base64: Option<String>,
    },
    /// Bytes that were not kept.
    Gap {
        /// Stream.
        stream: Stream,
        /// Offset of the first missing byte.
        from: u64,
        /// Offset of the first available byte after the gap.
        to: u64,
    },
    /// Result that code shows in addition to its output.
    Result {
        /// Offset of this result in the stream of results.
        offset: u64,
        /// Offset of the next result.
        next: u64,
        /// Result and its position in the other two streams.
        #[serde(flatten)]
        line: ResultLine,
    },
    /// Keep-alive, sent while there is nothing else to report. The exec is still running.
    Heartbeat,
    /// The exec has ended. This is the last line.
    End {
        /// Outcome and totals.
        end: ExecEnd,
    },
    /// Error that ends the stream. It is the last line.
    Error {
        /// Reason.
        error: Error,
    },
}

/// Event in the output of an exec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Bytes of a stream.
    Data {
        /// Stream.
        stream: Stream,
        /// Offset of the first byte.
        offset: u64,
        /// Bytes.
        bytes: Bytes,
    },
    /// Bytes that were not kept.
    Gap {
        /// Stream.
        stream: Stream,
        /// Offset of the first missing byte.
        from: u64,
        /// Offset of the first available byte after the gap.
        to: u64,
    },
    /// Result that code shows in addition to its output.
    Result {
        /// Offset of this result in the stream of results.
        offset: u64,
        /// Offset of the next result.
        next: u64,
        /// Result. All output that precedes it has been delivered.
        line: ResultLine,
    },
    /// The exec has ended. This is the last event.
    End(ExecEnd),
}

/// Kept output of an exec, and the exec's outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collected {
    /// Standard output. Gaps are omitted.
    pub stdout: Vec<u8>,
    /// Standard error. Gaps are omitted.
    pub stderr: Vec<u8>,
    /// Results of code.
    pub results: Vec<ResultLine>,
    /// Outcome and totals.
    pub end: ExecEnd,
}

/// One value for each output stream of an exec.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerStream<T> {
    /// Value for standard output.
    pub stdout: T,
    /// Value for standard error.
    pub stderr: T,
    /// Value for results.
    pub results: T,
}

impl PerStream<u64> {
    /// Returns the total number of bytes in each stream of an exec that has ended.
    pub fn of_end(end: &ExecEnd) -> Self {
        Self { stdout: end.stdout_bytes, stderr: end.stderr_bytes, results: end.results_bytes }
    }

    /// Returns the number of bytes in each stream of an exec so far.
    pub fn of_info(info: &ExecInfo) -> Self {
        Self { stdout: info.stdout_bytes, stderr: info.stderr_bytes, results: info.results_bytes }
    }

    /// Returns true if no value exceeds the corresponding value in `limits`.
    pub fn is_within(&self, limits: &Self) -> bool {
        self.stdout <= limits.stdout && self.stderr <= limits.stderr && self.results <= limits.results
    }
}

impl<T> PerStream<T> {
    /// Returns a reference to the value for a stream.
    pub fn get(&self, stream: Stream) -> &T {
        match stream {
            Stream::Stdout => &self.stdout,
            Stream::Stderr => &self.stderr,
            Stream::Results => &self.results,
        }
    }

    /// Returns a mutable reference to the value for a stream.
    pub fn get_mut(&mut self, stream: Stream) -> &mut T {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
            Stream::Results => &mut self.results,
        }
    }
}
