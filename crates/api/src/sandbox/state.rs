//! States of sandboxes, and the reasons for their end.
//!
//! ```text
//! starting ──▶ running ──▶ stopping ──▶ ended     stopped by a client or a limit, or failed to start
//!     └───────────┴────────────┴──────▶ lost      ended unexpectedly: the sandbox or its machine failed
//! ```
//!
//! A running sandbox can also be paused, and continues to run when it is resumed.

use serde::{Deserialize, Serialize};

/// State of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum SandboxState {
    /// Being created.
    Starting,
    /// Running, with its posture verified.
    Running,
    /// Paused: its processes are suspended, and their memory is kept. The idle timeout, the time to live and the deadlines of its execs
    /// do not elapse. A request to the sandbox resumes it.
    Paused,
    /// Being stopped.
    Stopping,
    /// Stopped by a client or a limit, or failed to start.
    Ended,
    /// Ended unexpectedly.
    Lost,
}

/// Reason why a sandbox ended. There are no other values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// An authorized client stopped it.
    Stopped,
    /// It was idle for its idle timeout: no request and no running exec.
    Idle,
    /// It reached its time to live.
    Expired,
    /// An exec ran past its deadline and the guest could not stop it.
    Overdue,
    /// It could not be started. The reason is in `error`.
    StartFailed,
    /// The server died while it was starting. Nothing ran in it except the processes that its template starts.
    Interrupted,
    /// Its guest died or was killed.
    Died,
    /// The whole sandbox ran out of memory, in a tier where that ends it.
    Oom,
    /// Its machine was restarted.
    HostReboot,
    /// After a server restart, the node could not read its record of the sandbox and had no copy. If it was alive, it keeps running out of
    /// reach until its time to live ends.
    RecordDamaged,
    /// It used too much of a kernel resource that has no limit, such as file locks.
    KernelResource,
}

impl SandboxState {
    /// Returns true if no other state can follow.
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Starting | Self::Running | Self::Paused | Self::Stopping => false,
            Self::Ended | Self::Lost => true,
        }
    }

    /// Returns the name that the wire protocol uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopping => "stopping",
            Self::Ended => "ended",
            Self::Lost => "lost",
        }
    }
}

impl EndReason {
    /// Returns the final state of a sandbox that ended for this reason.
    pub fn state(self) -> SandboxState {
        match self {
            Self::Stopped | Self::Idle | Self::Expired | Self::Overdue | Self::StartFailed => {
                SandboxState::Ended
            }
            Self::Interrupted
            | Self::Died
            | Self::Oom
            | Self::HostReboot
            | Self::RecordDamaged
            | Self::KernelResource => SandboxState::Lost,
        }
    }

    /// Returns the name that the wire protocol uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::Idle => "idle",
            Self::Expired => "expired",
            Self::Overdue => "overdue",
            Self::StartFailed => "start_failed",
            Self::Interrupted => "interrupted",
            Self::Died => "died",
            Self::Oom => "oom",
            Self::HostReboot => "host_reboot",
            Self::RecordDamaged => "record_damaged",
            Self::KernelResource => "kernel_resource",
        }
    }
}
