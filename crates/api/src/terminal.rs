//! A terminal: an exec whose three streams are one pseudo-terminal, and what is said about it over a WebSocket.
//!
//! Binary messages carry bytes, in both directions in the same shape: the offset of the first byte, eight bytes
//! big-endian, then the bytes. Text messages carry JSON: a [`TerminalEvent`] from the server, a [`TerminalRequest`] from
//! the client. Both directions have offsets, so a client that comes back loses and repeats nothing: it asks for output
//! from the offset it has reached, and sends input from the offset that [`TerminalEvent::Opened`] names.

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::exec::{ExecEnd, ExecInfo};
use crate::limits;

/// Columns and rows at most: no screen has more, and every program that draws one reserves memory for its size.
pub const SIDE_MAX: u32 = 1000;
/// Bytes of the offset before the bytes of a binary message.
pub const OFFSET_BYTES: usize = 8;
/// The bytes of one binary message of a client: a large paste is sent in pieces.
pub const INPUT_BYTES_MAX: usize = 64 * 1024;

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TerminalSize {
    /// Columns, 1 to 1000.
    pub cols: u32,
    /// Rows, 1 to 1000.
    pub rows: u32,
}

/// What a client asks of a terminal, as a text message. Input is a binary message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TerminalRequest {
    /// Another size. Of several that come at once, the last counts.
    Resize(TerminalSize),
    /// A signal for all processes of the exec. A key such as Ctrl-C is input: the terminal makes a signal of it.
    Signal(i32),
}

/// What a server says about a terminal, as a text message. Output is a binary message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum TerminalEvent {
    /// The first message.
    Opened {
        /// The exec.
        exec: ExecInfo,
        /// Bytes of input that have been received so far: the offset of the next.
        received: u64,
    },
    /// Input below this offset has been received and need not be sent again.
    Received {
        /// The offset of the next byte.
        received: u64,
    },
    /// Output that was not kept.
    Gap {
        /// The first byte that is missing.
        from: u64,
        /// The first that is there again.
        to: u64,
    },
    /// Nothing happened for a while; the exec still runs.
    Heartbeat,
    /// Something that was asked for was refused; the terminal goes on.
    Refused {
        /// Why.
        error: Error,
    },
    /// It has ended. The last message.
    End {
        /// How.
        end: ExecEnd,
    },
    /// The stream cannot go on. The last message.
    Error {
        /// Why.
        error: Error,
    },
}

impl TerminalSize {
    /// Refuses a side that no terminal has, by name.
    ///
    /// # Errors
    /// `invalid_request` for 0, `limit_exceeded` for more than [`SIDE_MAX`].
    pub fn check(self) -> Result<(), Error> {
        for (name, value) in [("cols", self.cols), ("rows", self.rows)] {
            if value == 0 {
                return Err(Error::invalid(
                    format!("{name} of the terminal is 0"),
                    format!("Ask for 1 to {SIDE_MAX}."),
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

/// A binary message: these bytes, the first of which has this offset.
pub fn message(offset: u64, bytes: &[u8]) -> Vec<u8> {
    [&offset.to_be_bytes()[..], bytes].concat()
}

/// The offset and the bytes of a binary message, if it is one.
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
