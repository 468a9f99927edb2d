//! What an interpreter says on its channel, and how that becomes part of an exec.

use std::rc::Rc;
use std::time::Duration;

use api::code::RunResult;
use api::exec::Stream;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::exec::Exec;
use crate::records::Records;
use crate::watched::Watched;

/// Lets whoever has shown something go on.
pub const ACK: &[u8] = b"{\"ack\":{}}\0";
/// It waits for nothing else.
const ACK_WITHIN: Duration = Duration::from_secs(1);

/// A record of a process that runs code.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said<'a> {
    /// The code begins now.
    Begun(IgnoredAny),
    /// Something is shown. It is not looked into: what is large in memory is small on the wire.
    #[serde(borrow)]
    Result(&'a RawValue),
    /// The cell is over.
    Done(Done),
    /// It cannot begin.
    Refused(Refused),
    /// The variables of a context.
    #[serde(borrow)]
    Variables(&'a RawValue),
    /// No interrupt of a cell before is on its way any more.
    Settled(IgnoredAny),
}

/// How a cell ended.
#[derive(Deserialize)]
pub struct Done {
    /// Its exit code.
    pub code: i32,
}

/// Why a fork does not become what it should.
#[derive(Deserialize)]
pub struct Refused {
    /// In words.
    pub message: String,
}

/// Puts a result where it belongs, and lets its process go on. What was written before it is taken first.
/// A large one does not wait for ever for a reader of what came before: it is left out instead, and that is said.
pub async fn shown(
    exec: &Exec,
    streams: &[(Stream, Rc<Watched>)],
    (result, patience): (&RawValue, Duration),
    channel: &Records,
) {
    let caught_up = tokio::time::timeout(patience, exec.catch_up(streams)).await;
    match caught_up {
        Ok(()) => exec.show_raw(result.get()),
        Err(_) => {
            exec.show(&RunResult::Omitted { bytes: result.get().len() as u64, types: Vec::new() });
        }
    }
    // Whoever does not listen has no more to say.
    let _ = tokio::time::timeout(ACK_WITHIN, channel.send_bytes(ACK, &[])).await;
}

/// Understands a record.
pub fn understand(bytes: &[u8]) -> Option<Said<'_>> {
    serde_json::from_slice(bytes).ok()
}
