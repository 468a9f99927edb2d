//! What was decided about connections that leave sandboxes.

use api::SandboxId;
pub use egress::gate::upstream::Upstreams;
pub use egress::{Broker, Decision, Gate, Party, Told};
pub use guest_client::egress::{attend, fixed, packages, pointed};

/// What was decided, and for whom.
#[derive(Clone, Debug)]
pub struct Decided {
    /// The sandbox that asked.
    pub sandbox: SandboxId,
    /// Its project.
    pub project: String,
    /// What for, and what the answer was.
    pub decision: Decision,
}
