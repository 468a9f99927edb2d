//! Sandboxes: their descriptions, usage and events.
//!
//! | module | holds |
//! |---|---|
//! | `request` | parameters of a new sandbox, and a new idle timeout |
//! | `state` | states, and reasons for the end |

mod request;
mod state;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::id::SandboxId;
use crate::limits::{Limits, WantedLimits};
use crate::policy::Policy;

pub use request::{CreateSandbox, Lease};
pub use state::{EndReason, SandboxState};

/// Label that marks the sandboxes of a session. Its value is the session ID. Only the server sets it.
pub const SESSION_LABEL: &str = "bellglass.session";

/// Minimum isolation of a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// Namespaces, a user ID range, seccomp and cgroups. The sandbox uses the host's kernel.
    #[default]
    Container,
    /// The sandbox uses its own kernel in user space (gVisor).
    UserKernel,
}

/// Sandbox, live or ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Sandbox {
    /// Sandbox ID.
    pub id: SandboxId,
    /// Name, if the sandbox has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<SandboxId>,
    /// Project that the sandbox belongs to.
    pub project: String,
    /// Template from which the sandbox was created.
    pub template: String,
    /// Requested isolation tier.
    pub tier: Tier,
    /// Resource limits.
    pub limits: Limits,
    /// Idle timeout in milliseconds. The sandbox is stopped after this time without a request or a running exec.
    pub idle_ms: u64,
    /// What happens when the idle timeout or the time to live is over.
    #[serde(default)]
    pub on_timeout: OnTimeout,
    /// Labels chosen by the owner.
    pub labels: BTreeMap<String, String>,
    /// Egress policy.
    #[serde(default)]
    pub policy: Policy,
    /// Current state.
    pub state: SandboxState,
    /// Cold or warm start.
    #[serde(default)]
    pub start: Start,
    /// Reason why the sandbox ended. The reason is kept after the sandbox is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<EndReason>,
    /// Error that prevented the sandbox from starting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Error>,
    /// Time of the create request by the server's clock, Unix time in milliseconds.
    pub created_at_ms: u64,
    /// Time when the sandbox ended, as Unix time in milliseconds by the server's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at_ms: Option<u64>,
}

/// What happens to a sandbox when its idle timeout or its time to live is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnTimeout {
    /// The sandbox is stopped.
    #[default]
    Stop,
    /// The sandbox is paused: its processes and memory are kept. If it cannot be paused, it is stopped.
    Pause,
}

/// Kind of start of a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// Created on request: no pre-warmed sandbox was available.
    #[default]
    Cold,
    /// Pre-warmed. It had not been used before.
    Warm,
}

/// Current resource usage of a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Usage {
    /// Memory charged to user code, in bytes.
    pub memory_bytes: u64,
    /// Memory charged to the whole sandbox in bytes, including the processes that run the sandbox itself.
    #[serde(default)]
    pub sandbox_memory_bytes: u64,
    /// Peak memory charged to user code, in bytes.
    pub memory_peak_bytes: u64,
    /// Number of processes and threads of user code.
    pub pids: u64,
    /// Processor time used, in microseconds.
    pub cpu_us: u64,
    /// Number of running execs.
    pub execs: u32,
}

/// Event of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum SandboxEvent {
    /// The state of a sandbox changed.
    Changed {
        /// Sandbox with its current state.
        sandbox: Box<Sandbox>,
    },
    /// The sandbox will be stopped soon unless a request arrives.
    Expiring {
        /// Sandbox ID.
        sandbox: SandboxId,
        /// Reason for the upcoming stop.
        reason: EndReason,
        /// Time until the sandbox is stopped, in milliseconds.
        in_ms: u64,
    },
    /// Events were dropped because this reader was too slow. List the sandboxes to get their current state.
    Missed {
        /// Number of dropped events.
        count: u64,
    },
    /// Keep-alive, sent while there is nothing else to report.
    Heartbeat,
}

impl Sandbox {
    /// Returns the initial description of a requested sandbox. `wanted` contains the template's limits, which
    /// apply unless the request sets different limits.
    pub fn asked(
        id: SandboxId,
        project: &str,
        request: &CreateSandbox,
        wanted: &WantedLimits,
        now_ms: u64,
    ) -> Self {
        Self {
            id,
            name: request.name.clone(),
            project: project.to_owned(),
            template: request.template.clone(),
            tier: request.tier,
            limits: request.limits.over(wanted.over(Limits::default())),
            idle_ms: request.idle_ms,
            on_timeout: request.on_timeout,
            labels: request.labels.clone(),
            policy: request.policy.clone().unwrap_or_default(),
            state: SandboxState::Starting,
            start: Start::Cold,
            reason: None,
            error: None,
            created_at_ms: now_ms,
            ended_at_ms: None,
        }
    }
}

impl OnTimeout {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
