//! An exec's output as lines of JSON, for readers that are not the node.
//!
//! One object a line. Bytes that are valid UTF-8 travel as `text`, others as `base64`; a character is never cut in
//! two, so `text` never holds a replacement character that was not written. The last line is always `end` or `error`;
//! a stream without one was cut, and is read on from the offsets reached.

use serde::{Deserialize, Serialize};

use crate::code::ResultLine;
use crate::error::Error;
use crate::exec::{ExecEnd, ExecInfo, Stream};

/// The content type of such a stream.
pub const NDJSON: &str = "application/x-ndjson";
/// The longest line: what one frame of the guest holds, escaped at worst to six bytes for one, or the largest result.
pub const LINE_BYTES_MAX: usize = 8 << 20;

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OutputLine {
    /// The exec was started (or had been, by the same request). Only the first line, and only of a stream that starts one.
    Started {
        /// The exec.
        exec: ExecInfo,
    },
    /// Bytes of a stream: `text` or `base64`, never both.
    Data {
        /// Which stream.
        stream: Stream,
        /// The offset of the first byte.
        offset: u64,
        /// The bytes, where they are UTF-8.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
        /// The bytes in base64, where they are not.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        base64: Option<String>,
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
        /// What it is, and where among the other two streams.
        #[serde(flatten)]
        line: ResultLine,
    },
    /// Nothing happened for a while; the exec still runs.
    Heartbeat,
    /// It has ended. The last line.
    End {
        /// How.
        end: ExecEnd,
    },
    /// The stream cannot go on. The last line.
    Error {
        /// Why.
        error: Error,
    },
}
