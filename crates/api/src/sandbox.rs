//! Sandboxes: create requests, states, and reasons for their end.
//!
//! ```text
//! starting ──▶ running ──▶ stopping ──▶ ended     stopped by a client or a limit, or failed to start
//!     └───────────┴────────────┴──────▶ lost      ended unexpectedly: the sandbox or its machine failed
//! ```
//!
//! A running sandbox can also be paused, and continues to run when it is resumed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::dataset;
use crate::error::Error;
use crate::exec::ExecSpec;
use crate::id::SandboxId;
use crate::limits::{self, Limits, WantedLimits};
use crate::policy::Policy;

/// Label that marks the sandboxes of a session. Its value is the session ID. Only the server sets it.
pub const SESSION_LABEL: &str = "bellglass.session";
/// Prefix of label names that are reserved for the server.
const RESERVED: &str = "bellglass.";

/// Parameters of a new sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct CreateSandbox {
    /// Human-readable name, in the format of an ID: a lower-case letter, then up to 39 lower-case letters and digits. The name must be
    /// unique among the live sandboxes of a project. Requests can use the name or the ID.
    pub name: Option<SandboxId>,
    /// Template to create the sandbox from. Default `base`.
    pub template: String,
    /// Minimum isolation tier. A weaker tier is never used. Default `container`.
    pub tier: Tier,
    /// Resource limits. Omitted limits come from the template or are the defaults.
    pub limits: WantedLimits,
    /// Idle timeout in milliseconds: 1 second to 24 hours. Default 5 minutes. The sandbox is stopped after this time without a request or a
    /// running exec.
    pub idle_ms: u64,
    /// What happens when the idle timeout or the time to live is over. Default `stop`.
    #[serde(skip_serializing_if = "OnTimeout::is_default")]
    pub on_timeout: OnTimeout,
    /// Labels chosen by the owner: at most 32, each at most 512 bytes. Names that begin with `bellglass.` are reserved.
    pub labels: BTreeMap<String, String>,
    /// Environment variables of everything that runs in the sandbox. A command or its code can override them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Datasets to copy into the sandbox before anything runs in it. The keys are paths in the sandbox, the values are dataset names. At
    /// most 64 entries.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub datasets: BTreeMap<String, String>,
    /// Egress policy. Defaults to the policy of the template; if the template has no policy, no egress is allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
}

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

/// New idle timeout of a sandbox, counted from the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Lease {
    /// Idle timeout in milliseconds: 1 second to 24 hours. The sandbox is stopped after this time without a request or a running exec.
    pub idle_ms: u64,
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

impl Default for CreateSandbox {
    fn default() -> Self {
        Self {
            name: None,
            template: "base".into(),
            tier: Tier::Container,
            limits: WantedLimits::default(),
            idle_ms: limits::IDLE_MS,
            on_timeout: OnTimeout::Stop,
            labels: BTreeMap::new(),
            env: BTreeMap::new(),
            datasets: BTreeMap::new(),
            policy: None,
        }
    }
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

impl CreateSandbox {
    /// Checks the request before anything is created.
    ///
    /// # Errors
    /// Returns an error if a field is invalid. The error names the first invalid field and has `ran: no`.
    pub fn check(&self) -> Result<(), Error> {
        check_idle(self.idle_ms)?;
        dataset::check_places(&self.datasets)?;
        // These variables must follow the same rules as the variables of a command.
        ExecSpec { argv: vec!["true".into()], env: self.env.clone(), ..ExecSpec::default() }.check()?;
        self.policy.as_ref().map_or(Ok(()), Policy::check)?;
        if self.labels.len() > limits::LABELS_MAX {
            return Err(limits::exceeded(
                "the number of labels",
                self.labels.len() as u64,
                limits::LABELS_MAX as u64,
            ));
        }
        for (name, value) in &self.labels {
            if name.is_empty() || (name.starts_with(RESERVED) && name != SESSION_LABEL) {
                return Err(not_a_label(name));
            }
            let bytes = name.len() + value.len();
            if bytes > limits::LABEL_BYTES_MAX {
                return Err(limits::exceeded(
                    "the length of one label in bytes",
                    bytes as u64,
                    limits::LABEL_BYTES_MAX as u64,
                ));
            }
        }
        Ok(())
    }

    /// Checks the request like [`CreateSandbox::check`], and also rejects labels that only the server may
    /// set.
    ///
    /// # Errors
    /// Returns `limit_exceeded` or `invalid_request` if a field is invalid.
    pub fn check_asked(&self) -> Result<(), Error> {
        let reserved = self.labels.keys().find(|name| name.starts_with(RESERVED));
        reserved.map_or_else(|| self.check(), |name| Err(not_a_label(name)))
    }
}

impl Lease {
    /// Checks that the idle timeout is within its bounds.
    ///
    /// # Errors
    /// Returns `limit_exceeded` or `invalid_request` if the idle timeout is out of bounds.
    pub fn check(self) -> Result<(), Error> {
        check_idle(self.idle_ms)
    }
}

impl OnTimeout {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
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

fn check_idle(idle_ms: u64) -> Result<(), Error> {
    if idle_ms > limits::DEADLINE_MS_MAX {
        return Err(limits::exceeded("idle_ms", idle_ms, limits::DEADLINE_MS_MAX));
    }
    if idle_ms < limits::IDLE_MS_MIN {
        return Err(Error::invalid(
            format!("idle_ms is {idle_ms}, the minimum is {}", limits::IDLE_MS_MIN),
            format!("Use {} or more.", limits::IDLE_MS_MIN),
        ));
    }
    Ok(())
}

fn not_a_label(name: &str) -> Error {
    Error::invalid(
        format!("{name:?} is not a valid label name"),
        "Use a name that is not empty and does not begin with `bellglass.`.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_request_is_a_sandbox_with_the_defaults() {
        let request: CreateSandbox = serde_json::from_str("{}").unwrap();
        assert_eq!(request, CreateSandbox::default());
        assert_eq!(request.check(), Ok(()));
    }

    #[test]
    fn what_is_not_a_field_is_refused() {
        // Covers attack D-02.
        for body in [r#"{"privileged":true}"#, r#"{"limits":{"swap":1}}"#, r#"{"mounts":["/"]}"#] {
            assert!(serde_json::from_str::<CreateSandbox>(body).is_err(), "{body}");
        }
    }

    #[test]
    fn labels_of_ours_are_refused() {
        // Covers attack D-06.
        let labels = BTreeMap::from([("bellglass.owner".to_owned(), "x".to_owned())]);
        assert!(CreateSandbox { labels, ..CreateSandbox::default() }.check().is_err());
        // Covers attack X-24: only the server may set this label.
        let labels = BTreeMap::from([(SESSION_LABEL.to_owned(), "x".to_owned())]);
        let asked = CreateSandbox { labels, ..CreateSandbox::default() };
        assert!(asked.check().is_ok() && asked.check_asked().is_err());
    }
}
