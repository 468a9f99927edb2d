//! Input of a terminal, retained until the server acknowledges it.
//!
//! ```text
//!        received          sent
//! ──────────┼───────────────┼──────────────▶ offset
//!   dropped │   in flight   │  not sent yet
//! ```
//!
//! A new connection begins at the offset that the server acknowledges, so input in flight is sent again. If
//! the server acknowledges more than this client has sent, another client has typed.

use api::terminal::{INPUT_BYTES_MAX, message};
use api::{ErrorCode, Layer, Ran, Retry};
use bytes::{Buf, BytesMut};

use crate::error::Error;

/// Maximum amount of unacknowledged input. This is more than a person pastes at once.
const PENDING_BYTES_MAX: usize = 1 << 20;
/// Maximum amount of input in flight. Input that the process does not read stays in the client, so that it
/// does not delay size changes and signals.
const WINDOW_BYTES: u64 = INPUT_BYTES_MAX as u64;

/// Input that the server has not acknowledged yet.
#[derive(Default)]
pub(super) struct RetainedInput {
    /// Begins at the offset `received`.
    pending: BytesMut,
    received: Option<u64>,
    /// Offset up to which input was sent over the current connection.
    sent: u64,
}

/// An acknowledgement that does not match the input of this client.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WrongReceipt {
    /// The offset is below the offset of an earlier acknowledgement.
    Decreased {
        /// Offset of the earlier acknowledgement.
        before: u64,
    },
    /// The server received more input than this client sent: another client has typed.
    Foreign,
}

impl RetainedInput {
    /// Returns the number of bytes that [`RetainedInput::write`] currently accepts.
    pub(super) fn room(&self) -> usize {
        PENDING_BYTES_MAX - self.pending.len()
    }

    /// Returns true if the server has acknowledged all input.
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Adds input. Returns an error if there is no room for all of it.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() > self.room() {
            return Err(Error::Refused(api::Error {
                code: ErrorCode::TooLarge,
                message: format!(
                    "{} bytes of input are already queued, because the program does not read its input",
                    self.pending.len()
                ),
                layer: Layer::UserCode,
                ran: Ran::Yes,
                retry: Retry::Safe,
                fix: "Wait until the program reads its input, or interrupt the program with a signal.".into(),
            }));
        }
        self.pending.extend_from_slice(bytes);
        Ok(())
    }

    /// Returns the next message for the server, if any, and counts its input as sent.
    pub(super) fn next_message(&mut self) -> Option<Vec<u8>> {
        let received = self.received?;
        let (skip, on_its_way) = (usize::try_from(self.sent - received).ok()?, self.sent - received);
        let room = usize::try_from(WINDOW_BYTES.saturating_sub(on_its_way)).ok()?;
        let rest = self.pending.get(skip..)?;
        let piece = rest.get(..room.min(INPUT_BYTES_MAX)).unwrap_or(rest);
        if piece.is_empty() {
            return None;
        }
        let next = message(self.sent, piece);
        self.sent += piece.len() as u64;
        Some(next)
    }

    /// Continues on a new connection, at the offset that the server acknowledges. The previous connection may
    /// have delivered any part of the retained input.
    pub(super) fn reopen(&mut self, received: u64) -> Result<(), WrongReceipt> {
        self.take_receipt(received, self.pending.len() as u64)?;
        self.sent = received;
        Ok(())
    }

    /// Drops the input up to the offset that the server acknowledges.
    pub(super) fn acknowledge(&mut self, received: u64) -> Result<(), WrongReceipt> {
        let sent = self.sent.saturating_sub(self.received.unwrap_or(self.sent));
        self.take_receipt(received, sent)
    }

    /// Records that the server received input up to this offset. This client can have sent at most `ours`
    /// bytes of the newly received input. If there are more, another client has typed, and this function
    /// returns an error.
    fn take_receipt(&mut self, received: u64, ours: u64) -> Result<(), WrongReceipt> {
        let before = *self.received.get_or_insert(received);
        let Some(new) = received.checked_sub(before) else {
            return Err(WrongReceipt::Decreased { before });
        };
        if new > ours {
            return Err(WrongReceipt::Foreign);
        }
        self.pending.advance(usize::try_from(new).unwrap_or(usize::MAX).min(self.pending.len()));
        self.received = Some(received);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use api::terminal::parts;

    use super::*;

    fn next(input: &mut RetainedInput) -> Option<(u64, Vec<u8>)> {
        let message = input.next_message()?;
        parts(&message).map(|(offset, bytes)| (offset, bytes.to_vec()))
    }

    #[test]
    fn a_new_connection_sends_again_what_was_not_acknowledged() {
        let mut input = RetainedInput::default();
        input.write(b"abcdef").unwrap();
        assert_eq!(next(&mut input), None, "nothing is sent before the first connection is open");
        input.reopen(10).unwrap();
        assert_eq!(next(&mut input), Some((10, b"abcdef".to_vec())));
        assert_eq!(next(&mut input), None);
        input.acknowledge(12).unwrap();
        input.reopen(13).unwrap();
        assert_eq!(next(&mut input), Some((13, b"def".to_vec())));
        input.acknowledge(16).unwrap();
        assert!(input.is_empty());
    }

    #[test]
    fn input_in_flight_has_a_limit() {
        let mut input = RetainedInput::default();
        let all = vec![7; PENDING_BYTES_MAX];
        input.write(&all).unwrap();
        assert!(input.room() == 0 && input.write(b"x").is_err());
        input.reopen(0).unwrap();
        let (_, first) = next(&mut input).unwrap();
        assert_eq!((first.len(), next(&mut input)), (INPUT_BYTES_MAX, None));
        input.acknowledge(5).unwrap();
        assert_eq!(next(&mut input), Some((INPUT_BYTES_MAX as u64, vec![7; 5])));
    }

    #[test]
    fn input_of_another_client_is_noticed() {
        let mut input = RetainedInput::default();
        input.write(b"abc").unwrap();
        input.reopen(0).unwrap();
        assert_eq!(input.acknowledge(1), Err(WrongReceipt::Foreign), "nothing was sent yet");
        next(&mut input).unwrap();
        assert_eq!(input.acknowledge(3), Ok(()));
        assert_eq!(input.reopen(4), Err(WrongReceipt::Foreign));
        assert_eq!(input.acknowledge(2), Err(WrongReceipt::Decreased { before: 3 }));
    }
}
