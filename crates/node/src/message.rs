//! Messages to the driver of a sandbox.

use std::time::Duration;

use api::sandbox::EndReason;
use host::error::Error;
use tokio::sync::oneshot;

/// A message to the driver of a sandbox.
pub(crate) enum DriverMessage {
    /// The sandbox is to end.
    End(EndReason),
    /// The sandbox is to be paused.
    Pause(Reply),
    /// The sandbox is to be resumed.
    Resume(ResumeRequest),
    /// The idle time is another one, or an exec with a deadline was started: look again when to wake.
    Look,
}

/// Says whether the sandbox was paused or resumed by this request, or was paused or running before.
pub(crate) type Reply = oneshot::Sender<Result<bool, Error>>;

/// A request to resume a sandbox.
pub(crate) struct ResumeRequest {
    /// The new time to live; that of the sandbox if absent.
    pub ttl: Option<Duration>,
    pub reply: Reply,
}
