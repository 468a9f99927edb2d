//! Runs: the tool calls of a session.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::exec::Outcome;
use crate::id::{ExecId, SandboxId};

/// Default time limit of one tool call (requirement A2.08).
pub const TIMEOUT_SECONDS: u64 = 60;
/// Maximum time limit of one tool call (requirement A2.08).
pub const TIMEOUT_SECONDS_MAX: u64 = 300;
/// Maximum number of queued calls of one session.
pub const WAITING_MAX: usize = 100;
/// Response header with the run ID.
pub const RUN_HEADER: &str = "bellglass-run";

/// Tool call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Run {
    /// Run ID. It is also the ID of the run's exec, if the run has one.
    pub id: ExecId,
    /// Tool name.
    pub tool: String,
    /// Reason for the call, as given by the caller. It is meant for people and is never passed to the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_trace: Option<String>,
    /// Current state.
    pub state: RunState,
    /// Sandbox in which the run took place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxId>,
    /// Outcome of the run's exec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Total bytes written to standard output.
    pub stdout_bytes: u64,
    /// Total bytes written to standard error.
    pub stderr_bytes: u64,
    /// Part of standard output that was not kept, as two offsets: of the first missing byte and of the first available byte after this
    /// part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Vec<u64>>, min_items = 2, max_items = 2))]
    pub stdout_gap: Option<(u64, u64)>,
    /// Part of standard error that was not kept, as two offsets: of the first missing byte and of the first available byte after this part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Vec<u64>>, min_items = 2, max_items = 2))]
    pub stderr_gap: Option<(u64, u64)>,
    /// Start time by the server's clock, Unix time in milliseconds.
    pub started_at_ms: u64,
    /// Duration of the run in milliseconds, without the time in the queue.
    pub duration_ms: u64,
    /// Response of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
}

/// State of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// Running, or its server was killed while it ran.
    Running,
    /// Ended.
    Ended,
}
