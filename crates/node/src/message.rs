//! Messages to the driver of a sandbox.

use std::time::Duration;

use api::sandbox::EndReason;
use host::error::Error;
use tokio::sync::oneshot;

/// A message to the driver of a sandbox.
pub(crate) enum DriverMessage {
    /// Stop the sandbox.
    End(EndReason),
    /// Pause the sandbox.
    Pause(PauseReply),
    /// Resume the sandbox.
    Resume(ResumeRequest),
    /// Recalculate the next wake-up, because the idle timeout has changed or an exec with a deadline was
    /// started.
    Look,
}

/// Reply to a pause or resume request: true if this request changed the state, false if the sandbox was
/// already in the requested state.
pub(crate) type PauseReply = oneshot::Sender<Result<bool, Error>>;

/// A request to resume a sandbox.
pub(crate) struct ResumeRequest {
    /// The new time to live. `None` keeps the sandbox's configured time to live.
    pub ttl: Option<Duration>,
    pub reply: PauseReply,
}
