//! Outcomes: the ways in which an exec can end, and the totals that are reported with them.

use serde::{Deserialize, Serialize};

/// Exit code of a guest that ended because its time to live expired.
pub const GUEST_EXPIRED: u8 = 87;

/// Outcome of an exec. There are no other values. If the exit status is missing, the outcome is `unknown`, never an exit with code 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Outcome {
    /// The command exited.
    Exited {
        /// Exit code.
        code: i32,
    },
    /// A signal killed the command.
    Signaled {
        /// Signal number.
        signal: i32,
    },
    /// The deadline was reached.
    Timeout,
    /// The sandbox ran out of memory.
    Oom,
    /// The output exceeded its limit, in output mode `kill`.
    OutputLimit,
    /// An authorized client cancelled the exec.
    Cancelled,
    /// The sandbox ended while the exec was running.
    SandboxLost {
        /// Reason why the sandbox ended.
        cause: LostCause,
    },
    /// The outcome is not known.
    Unknown,
}

/// Reason why a sandbox ended while an exec was running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum LostCause {
    /// The guest or the whole sandbox died or was killed.
    Died,
    /// The whole sandbox ran out of memory, in tiers where that ends the sandbox.
    Oom,
    /// The sandbox reached its time to live.
    Expired,
    /// The sandbox was stopped.
    Stopped,
    /// The sandbox used too much of a kernel resource that has no limit, such as file locks.
    KernelResource,
}

/// Outcome and totals of an exec, at the end of its output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ExecEnd {
    /// Outcome.
    pub outcome: Outcome,
    /// Total bytes written to standard output, including bytes that were not kept.
    pub stdout_bytes: u64,
    /// Bytes of standard output that were not kept and can no longer be read. An earlier reader may have received them.
    pub stdout_dropped: u64,
    /// Total bytes written to standard error, including bytes that were not kept.
    pub stderr_bytes: u64,
    /// Bytes of standard error that were not kept and can no longer be read. An earlier reader may have received them.
    pub stderr_dropped: u64,
    /// Total bytes of results.
    #[serde(default)]
    pub results_bytes: u64,
    /// True if the exec was a cell and its context lost its variables.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub state_lost: bool,
    /// Run time of the command in microseconds.
    pub duration_us: u64,
    /// Number of processes that were still alive when the command ended.
    pub left_running: u32,
    /// Memory limit and peak memory usage, if the outcome is `oom`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryReport>,
}

/// Memory limit and peak memory usage of a sandbox that ran out of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct MemoryReport {
    /// Memory limit in bytes.
    pub limit_bytes: u64,
    /// Peak memory usage in bytes.
    pub peak_bytes: u64,
}

impl Outcome {
    /// Returns the exit code that a shell would report: the command's own exit code, 128 plus the signal
    /// number, or 124 for a timeout, like the command `timeout`.
    pub fn shell_code(&self) -> i32 {
        match self {
            Self::Exited { code } => *code,
            Self::Signaled { signal } => 128 + signal,
            Self::Timeout => 124,
            // Requirement A2.05: the exit code for an exceeded memory limit is 137.
            Self::Oom => 137,
            Self::OutputLimit => 125,
            Self::Cancelled => 130,
            Self::SandboxLost { .. } | Self::Unknown => 125,
        }
    }
}
