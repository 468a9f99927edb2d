//! Execs that use one pseudo-terminal for all three standard streams, and their WebSocket messages.
//!
//! Binary messages carry terminal data, in the same format in both directions: the offset of the first byte
//! (eight bytes, big-endian), then the data. Text messages carry JSON: a [`TerminalEvent`] from the server,
//! or a [`TerminalRequest`] from the client. Both directions have offsets, so a client that reconnects
//! neither loses nor repeats data: it requests output from the offset it has reached, and sends input from
//! the offset in [`TerminalEvent::Opened`].

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::exec::{ExecEnd, ExecInfo};
use crate::limits;

/// Maximum number of columns and maximum number of rows. No screen has more, and full-screen programs
/// allocate memory for the whole screen.
pub const SIDE_MAX: u32 = 1000;
/// Size of the offset at the beginning of a binary message.
pub const OFFSET_BYTES: usize = 8;
/// Maximum number of data bytes in one binary message from a client. A large paste is sent in several
/// messages.
pub const INPUT_BYTES_MAX: usize = 64 * 1024;

/// Size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TerminalSize {
    /// Columns, 1 to 1,000.
    pub cols: u32,
    /// Rows, 1 to 1,000.
    pub rows: u32,
}

/// Text message from a client to a terminal. Input is sent in binary messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TerminalRequest {
    /// New size of the terminal. If several sizes arrive together, the last size applies.
    Resize(TerminalSize),
    /// Number of a signal to send to all processes of the exec. A key such as Ctrl-C must be sent as input instead; the terminal converts
    /// it to a signal.
    Signal(i32),
}

/// Text message from the server about a terminal. Output is sent in binary messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum TerminalEvent {
    /// The terminal is open. This is the first message.
    Opened {
        /// Exec.
        exec: ExecInfo,
        /// Bytes of input received so far, which is the offset of the next byte.
        received: u64,
    },
    /// Input below the offset `received` has arrived and need not be sent again.
    Received {
        /// Offset of the next byte of input.
        received: u64,
    },
    /// Output that was not kept.
    Gap {
        /// Offset of the first missing byte.
        from: u64,
        /// Offset of the first available byte after the gap.
        to: u64,
    },
    /// Keep-alive, sent while there is nothing else to report. The exec is still running.
    Heartbeat,
    /// A request was rejected. The terminal stays open.
    Refused {
        /// Reason.
        error: Error,
    },
    /// The exec has ended. This is the last message.
    End {
        /// Outcome and totals.
        end: ExecEnd,
    },
    /// Error that ends the connection. It is the last message.
    Error {
        /// Reason.
        error: Error,
    },
}

impl TerminalSize {
    /// Checks the number of columns and of rows. The error names the invalid dimension.
    ///
    /// # Errors
    /// Returns `invalid_request` if a dimension is 0, and `limit_exceeded` if it exceeds [`SIDE_MAX`].
    pub fn check(self) -> Result<(), Error> {
        for (name, value) in [("cols", self.cols), ("rows", self.rows)] {
            if value == 0 {
                return Err(Error::invalid(
                    format!("{name} of the terminal is 0"),
                    format!("Use a value from 1 to {SIDE_MAX}."),
                ));
            }
            if value > SIDE_MAX {
                return Err(limits::exceeded(
                    &format!("{name} of the terminal"),
                    u64::from(value),
                    u64::from(SIDE_MAX),
                ));
            }
        }
        Ok(())
    }
}

/// Encodes a binary message. `offset` is the offset of the first byte.
pub fn message(offset: u64, bytes: &[u8]) -> Vec<u8> {
    [&offset.to_be_bytes()[..], bytes].concat()
}

/// Decodes a binary message into its offset and data. Returns `None` if the message is too short.
pub fn parts(message: &[u8]) -> Option<(u64, &[u8])> {
    let (offset, bytes) = message.split_first_chunk::<OFFSET_BYTES>()?;
    Some((u64::from_be_bytes(*offset), bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorCode;

    #[test]
    fn a_size_that_no_terminal_has_is_refused_by_name() {
        let size = |cols, rows| TerminalSize { cols, rows }.check();
        assert_eq!(size(1, 1000), Ok(()));
        let error = size(65_535, 24).unwrap_err();
        assert_eq!(error.code, ErrorCode::LimitExceeded);
        assert!(error.message.contains("cols"), "{}", error.message);
        let error = size(80, 0).unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidRequest);
        assert!(error.message.contains("rows"), "{}", error.message);
    }

    #[test]
    fn a_binary_message_gives_back_what_was_put_in() {
        assert_eq!(parts(&message(u64::MAX, b"\x00x")), Some((u64::MAX, &b"\x00x"[..])));
        assert_eq!(parts(&message(0, b"")), Some((0, &b""[..])));
        assert_eq!(parts(b"1234567"), None);
    }

    #[test]
    fn requests_are_short_to_write_by_hand() {
        let request: TerminalRequest = serde_json::from_str(r#"{"resize":{"cols":80,"rows":24}}"#).unwrap();
        assert_eq!(request, TerminalRequest::Resize(TerminalSize { cols: 80, rows: 24 }));
        assert_eq!(serde_json::to_string(&TerminalRequest::Signal(2)).unwrap(), r#"{"signal":2}"#);
    }
}
