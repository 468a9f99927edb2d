//! Messages of an interpreter on its channel, and how they become part of an exec.

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

/// Acknowledges a result, so that its sender can continue.
pub const ACK: &[u8] = b"{\"ack\":{}}\0";
/// Timeout for sending an acknowledgement. A process that has sent a result waits for nothing else.
const ACK_WITHIN: Duration = Duration::from_secs(1);

/// A message of a process that runs code.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CodeMessage<'a> {
    /// The code begins now.
    Begun(IgnoredAny),
    /// A result. It is not parsed, because a small message can be large in memory.
    #[serde(borrow)]
    Result(&'a RawValue),
    /// The cell is done.
    Done(CellEnd),
    /// The code cannot begin.
    Refused(StartRefusal),
    /// The variables of a context.
    #[serde(borrow)]
    Variables(&'a RawValue),
    /// No interrupt of an earlier cell is pending anymore.
    Settled(IgnoredAny),
}

/// End of a cell.
#[derive(Deserialize)]
pub struct CellEnd {
    /// Exit code.
    pub code: i32,
}

/// Refusal to begin.
#[derive(Deserialize)]
pub struct StartRefusal {
    /// Reason, as text.
    pub message: String,
}

/// Stores a result in order, after the output written before it, and lets its process continue. If a large
/// result waits too long for a reader of earlier output, it is omitted, and a notice replaces it.
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
    // A process that does not read the acknowledgement has nothing more to send.
    let _ = tokio::time::timeout(ACK_WITHIN, channel.send_bytes(ACK, &[])).await;
}

/// Parses a message.
pub fn understand(bytes: &[u8]) -> Option<CodeMessage<'_>> {
    serde_json::from_slice(bytes).ok()
}
