//! What a sandbox is asked to be, how it is doing, and why it ended.
//!
//! ```text
//! starting ──▶ running ──▶ stopping ──▶ ended     somebody or a limit ended it
//!     └───────────┴────────────┴──────▶ lost      it ended by itself, or its machine did
//! ```

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::dataset;
use crate::error::Error;
use crate::exec::ExecSpec;
use crate::id::SandboxId;
use crate::limits::{self, Limits, WantedLimits};
use crate::policy::Policy;

/// A request for a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct CreateSandbox {
    /// A name for people, written like an id. No two live sandboxes of a project have the same; an id still works.
    pub name: Option<SandboxId>,
    /// The template to make it from.
    pub template: String,
    /// The weakest isolation that will do. A weaker one is never used.
    pub tier: Tier,
    /// What it may use; the template's where it says nothing, and ours where that does not either.
    pub limits: WantedLimits,
    /// It is stopped when for so long nobody has called and no exec has run.
    pub idle_ms: u64,
    /// Whatever its owner wants to find again. Names that begin with `belljar.` are ours.
    pub labels: BTreeMap<String, String>,
    /// Variables of everything that runs in it, unless a command or its code sets them otherwise.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Files that are there before anything runs: where, and which dataset of the project. At most 64.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub datasets: BTreeMap<String, String>,
    /// What may leave it; the template's where it says none, which is nothing unless the template says otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
}

/// How strong the wall around a sandbox must at least be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// Namespaces, a uid range, seccomp, cgroups: the host's kernel serves the sandbox.
    #[default]
    Container,
    /// A kernel of its own in user space (gVisor) serves the sandbox.
    UserKernel,
}

/// A sandbox, live or ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Sandbox {
    /// Its id.
    pub id: SandboxId,
    /// Its name, if it was given one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<SandboxId>,
    /// The project it belongs to.
    pub project: String,
    /// The template it was made from.
    pub template: String,
    /// The isolation that was asked for.
    pub tier: Tier,
    /// What it may use.
    pub limits: Limits,
    /// It is stopped when for so long nobody has called and no exec has run.
    pub idle_ms: u64,
    /// What its owner wrote on it.
    pub labels: BTreeMap<String, String>,
    /// What may leave it.
    #[serde(default)]
    pub policy: Policy,
    /// How it is doing.
    pub state: SandboxState,
    /// Whether it stands still, with what it has in memory: nothing in it runs, and its time to live does not either.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// Whether it was ready before it was asked for.
    #[serde(default)]
    pub start: Start,
    /// Why it ended, once it has. Kept after it is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<EndReason>,
    /// What went wrong, where it never came to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Error>,
    /// When it was asked for, in milliseconds since 1970, by the server's clock.
    pub created_at_ms: u64,
    /// When it ended, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at_ms: Option<u64>,
}

/// What a request for a sandbox has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// None was ready: it was made when it was asked for.
    #[default]
    Cold,
    /// One was ready. Nobody had used it.
    Warm,
}

/// How a sandbox is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum SandboxState {
    /// It is being made.
    Starting,
    /// It runs, and its posture was checked.
    Running,
    /// It is being taken down.
    Stopping,
    /// Somebody or a limit ended it.
    Ended,
    /// It ended without being asked to.
    Lost,
}

/// Why a sandbox ended. The set is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// Somebody with the right to do so stopped it.
    Stopped,
    /// Nobody called and no exec ran for its idle time.
    Idle,
    /// Its time to live was over.
    Expired,
    /// An exec went on after its deadline, and the guest could not end it.
    Overdue,
    /// It could not be started; `error` says why.
    StartFailed,
    /// The server died while it was being started. Nothing ran in it but what its template starts.
    Interrupted,
    /// Its guest died or was killed.
    Died,
    /// The memory of the whole sandbox was used up, in a tier where that ends it.
    Oom,
    /// Its machine was restarted.
    HostReboot,
}

/// A new idle time for a sandbox, counted from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Lease {
    /// It is stopped when for so long nobody has called and no exec has run.
    pub idle_ms: u64,
}

/// What a sandbox uses now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Usage {
    /// Memory charged to user code.
    pub memory_bytes: u64,
    /// Memory charged to all of it, with what serves it.
    #[serde(default)]
    pub sandbox_memory_bytes: u64,
    /// The most memory ever charged to user code.
    pub memory_peak_bytes: u64,
    /// Processes and threads of user code.
    pub pids: u64,
    /// Processor time used, in microseconds.
    pub cpu_us: u64,
    /// Execs that run.
    pub execs: u32,
}

/// Something that happened to a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum SandboxEvent {
    /// Its state is another one.
    Changed {
        /// The sandbox as it is now.
        sandbox: Box<Sandbox>,
    },
    /// It will be stopped soon unless somebody calls.
    Expiring {
        /// Which.
        sandbox: SandboxId,
        /// What will end it.
        reason: EndReason,
        /// In how long, in milliseconds.
        in_ms: u64,
    },
    /// Events were missed by this reader because it was too slow; list the sandboxes to know how they are.
    Missed {
        /// How many.
        count: u64,
    },
    /// Nothing happened for a while.
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
            labels: BTreeMap::new(),
            env: BTreeMap::new(),
            datasets: BTreeMap::new(),
            policy: None,
        }
    }
}

impl Sandbox {
    /// A sandbox as it is when it has just been asked for, of a template that wants these limits.
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
            labels: request.labels.clone(),
            policy: request.policy.clone().unwrap_or_default(),
            state: SandboxState::Starting,
            paused: false,
            start: Start::Cold,
            reason: None,
            error: None,
            created_at_ms: now_ms,
            ended_at_ms: None,
        }
    }
}

impl CreateSandbox {
    /// Refuses what cannot be made, by name, before anything is.
    ///
    /// # Errors
    /// The first thing wrong with the request, as an error with `ran: no`.
    pub fn check(&self) -> Result<(), Error> {
        check_idle(self.idle_ms)?;
        dataset::check_places(&self.datasets)?;
        // The same rules as for a command.
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
            if name.is_empty() || name.starts_with("belljar.") {
                return Err(Error::invalid(
                    format!("{name:?} is not a label's name"),
                    "Use a name that is not empty and does not begin with `belljar.`.",
                ));
            }
            let bytes = name.len() + value.len();
            if bytes > limits::LABEL_BYTES_MAX {
                return Err(limits::exceeded(
                    "one label, in bytes",
                    bytes as u64,
                    limits::LABEL_BYTES_MAX as u64,
                ));
            }
        }
        Ok(())
    }
}

impl Lease {
    /// Refuses an idle time that is too short or too long.
    ///
    /// # Errors
    /// `limit_exceeded` or `invalid_request`.
    pub fn check(self) -> Result<(), Error> {
        check_idle(self.idle_ms)
    }
}

impl SandboxState {
    /// Whether nothing comes after it.
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Starting | Self::Running | Self::Stopping => false,
            Self::Ended | Self::Lost => true,
        }
    }

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Ended => "ended",
            Self::Lost => "lost",
        }
    }
}

impl EndReason {
    /// The state a sandbox is in that ended for this reason.
    pub fn state(self) -> SandboxState {
        match self {
            Self::Stopped | Self::Idle | Self::Expired | Self::Overdue | Self::StartFailed => {
                SandboxState::Ended
            }
            Self::Interrupted | Self::Died | Self::Oom | Self::HostReboot => SandboxState::Lost,
        }
    }

    /// The name on the wire.
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
        }
    }
}

fn check_idle(idle_ms: u64) -> Result<(), Error> {
    if idle_ms > limits::DEADLINE_MS_MAX {
        return Err(limits::exceeded("idle_ms", idle_ms, limits::DEADLINE_MS_MAX));
    }
    if idle_ms < limits::IDLE_MS_MIN {
        return Err(Error::invalid(
            format!("idle_ms is {idle_ms}, the least is {}", limits::IDLE_MS_MIN),
            format!("Ask for {} or more.", limits::IDLE_MS_MIN),
        ));
    }
    Ok(())
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
        // D-02
        for body in [r#"{"privileged":true}"#, r#"{"limits":{"swap":1}}"#, r#"{"mounts":["/"]}"#] {
            assert!(serde_json::from_str::<CreateSandbox>(body).is_err(), "{body}");
        }
    }

    #[test]
    fn labels_of_ours_are_refused() {
        // D-06
        let labels = BTreeMap::from([("belljar.owner".to_owned(), "x".to_owned())]);
        assert!(CreateSandbox { labels, ..CreateSandbox::default() }.check().is_err());
    }
}
