//! Messages that an interpreter sends on its channel, and their effect on an exec.

use std::rc::Rc;
use std::time::Duration;

use api::code::RunResult;
use api::exec::Stream;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::exec::GuestExec;
use crate::records::Records;
use crate::watched::Watched;

/// Message that acknowledges a result, so that its sender can continue.
pub const ACK: &[u8] = b"{\"ack\":{}}\0";
/// Timeout for sending an acknowledgement. It can be short, because a process that has sent a result is
/// already waiting for it.
const ACK_WITHIN: Duration = Duration::from_secs(1);

/// A message from a process that runs code.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CodeMessage<'a> {
    /// The code begins now.
    Begun(IgnoredAny),
    /// A result. It is not parsed, because parsing even a small message can use a lot of memory.
    #[serde(borrow)]
    Result(&'a RawValue),
    /// The cell is done.
    Done(CellEnd),
    /// The code cannot begin.
    Refused(StartRefusal),
    /// The variables of a context.
    #[serde(borrow)]
    Variables(&'a RawValue),
    /// No interrupt for an earlier cell is pending.
    Settled(IgnoredAny),
}

/// Content of [`CodeMessage::Done`].
#[derive(Deserialize)]
pub struct CellEnd {
    /// Exit code.
    pub code: i32,
}

/// Content of [`CodeMessage::Refused`].
#[derive(Deserialize)]
pub struct StartRefusal {
    /// Reason, as text for the user.
    pub message: String,
}

/// Stores a result after the output that was written before it, then acknowledges it, so that its process
/// continues. If a slow reader prevents storing that output within `patience`, a notice replaces the result.
pub async fn shown(
    exec: &GuestExec,
    streams: &[(Stream, Rc<Watched>)],
    result: &RawValue,
    patience: Duration,
    channel: &Records,
) {
    let caught_up = tokio::time::timeout(patience, exec.catch_up(streams)).await;
    match caught_up {
        Ok(()) => exec.show_raw(result.get()),
        Err(_) => {
            exec.show(&RunResult::Omitted { bytes: result.get().len() as u64, types: Vec::new() });
        }
    }
    // Ignore a timeout: a process that does not read the acknowledgement has nothing more to send.
    let _ = tokio::time::timeout(ACK_WITHIN, channel.send_bytes(ACK, &[])).await;
}

/// Parses a message. Returns `None` if it is not valid.
pub fn understand(bytes: &[u8]) -> Option<CodeMessage<'_>> {
    serde_json::from_slice(bytes).ok()
}
