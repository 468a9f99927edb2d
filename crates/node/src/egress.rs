//! Decisions about the outgoing connections of sandboxes.

use api::SandboxId;
pub use egress::gate::upstream::Upstreams;
pub use egress::{Broker, BrokerReport, Decision, Gate, Party};
pub use guest_client::egress::{attend, fixed, packages, pointed};

/// A decision about an outgoing connection, with its sandbox and project.
#[derive(Clone, Debug)]
pub struct Decided {
    /// The sandbox that requested the connection.
    pub sandbox: SandboxId,
    /// The project of the sandbox.
    pub project: String,
    /// The request and the verdict.
    pub decision: Decision,
}
