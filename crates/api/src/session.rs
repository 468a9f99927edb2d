//! Sessions: the tool calls of one agent, which usually share one sandbox that the first call creates.
//!
//! A tool call belongs to one session and is one *run*. The runs of a session are executed one at a time, in
//! the order of the requests. Their files, output and results belong to the session and outlive its
//! sandboxes.

mod dataset;
mod run;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::exec::Stream;
use crate::id::{ExecId, SandboxId, SessionId};
use crate::limits::{self, Limits, WantedLimits};
use crate::policy::Policy;
use crate::sandbox::{Lease, Sandbox, Tier};

pub use dataset::{DATASET_BYTES_MAX, DATASETS_BYTES_MAX, DATASETS_MAX, SessionDataset, dataset_path};
pub use run::{RUN_HEADER, Run, RunState, TIMEOUT_SECONDS, TIMEOUT_SECONDS_MAX, WAITING_MAX};

/// Default idle timeout of a session's sandbox (requirement A1.05). After this time without a call, the
/// sandbox is stopped.
pub const IDLE_MS: u64 = 900_000;

/// Set of tools that a session offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ToolSet {
    /// Commands and files, for analysing datasets.
    Analysis,
    /// Python scripts with their requirements.
    Python,
    /// Python code. Each run has its own sandbox.
    Interpreter,
}

/// State that is kept from one run to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Persistence {
    /// The sandbox, with all its files and packages.
    Session,
    /// Files in `/workspace`. Each run has its own sandbox.
    Run,
}

/// Parameters of a new session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateSession {
    /// Tool set.
    pub set: ToolSet,
    /// Template of the session's sandboxes. Defaults to the template of the tool set.
    #[serde(default)]
    pub template: Option<String>,
    /// State to keep from one run to the next. Default `run` for `interpreter`, otherwise `session`. `analysis` requires `session`.
    #[serde(default)]
    pub persistence: Option<Persistence>,
    /// Minimum isolation tier. Default `container`.
    #[serde(default)]
    pub tier: Tier,
    /// Resource limits of the session's sandboxes.
    #[serde(default)]
    pub limits: WantedLimits,
    /// Time limit of a run in seconds: 1 to 300. Default 60.
    #[serde(default = "timeout_seconds")]
    pub timeout_seconds: u64,
    /// Idle timeout of the session's sandbox in milliseconds: 1 second to 24 hours. Default 15 minutes. The sandbox is stopped after this
    /// time without a call; the next call creates a new sandbox.
    #[serde(default = "idle_ms")]
    pub idle_ms: u64,
    /// Egress policy of the session's sandboxes. By default, no egress is allowed.
    #[serde(default)]
    pub policy: Option<Policy>,
}

/// Sequence of an agent's tool calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Session {
    /// Session ID.
    pub id: SessionId,
    /// Project that the session belongs to.
    pub project: String,
    /// Tool set.
    pub set: ToolSet,
    /// Template of the session's sandboxes.
    pub template: String,
    /// State that is kept from one run to the next.
    pub persistence: Persistence,
    /// Requested isolation tier.
    pub tier: Tier,
    /// Resource limits of the session's sandboxes. Omitted limits come from the template.
    pub limits: WantedLimits,
    /// Time limit of a run in seconds, unless the call sets a lower limit.
    pub timeout_seconds: u64,
    /// Idle timeout of the session's sandbox in milliseconds.
    pub idle_ms: u64,
    /// Egress policy of the session's sandboxes.
    pub policy: Policy,
    /// Current state.
    pub state: SessionState,
    /// Current sandbox, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxId>,
    /// Files that are copied into each sandbox before anything runs in it.
    #[serde(default)]
    pub datasets: Vec<SessionDataset>,
    /// Creation time by the server's clock, Unix time in milliseconds.
    pub created_at_ms: u64,
    /// Time when the session ended, as Unix time in milliseconds by the server's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at_ms: Option<u64>,
}

/// State of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// Accepts calls.
    Open,
    /// No longer accepts calls. Stored data is still available.
    Ended,
}

/// File that a session stores, independently of its sandboxes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SessionArtifact {
    /// Artifact name: the path relative to the folder that contained the file.
    pub name: String,
    /// Path that the tool sets use for this file, unique among the files of all sessions.
    pub path: String,
    /// MIME type, derived from the file extension.
    #[serde(rename = "type")]
    pub mime: String,
    /// Size in bytes.
    pub size: u64,
}

/// Event of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum SessionEvent {
    /// The sandbox of the session is running or has ended.
    Sandbox {
        /// Sandbox with its current state.
        sandbox: Box<Sandbox>,
    },
    /// A run started after waiting in the queue.
    RunStarted {
        /// Run.
        run: Box<Run>,
    },
    /// Output of a run, as `text` or `base64`, never both.
    Output {
        /// Run ID.
        run: ExecId,
        /// Stream.
        stream: Stream,
        /// Offset of the first byte.
        offset: u64,
        /// Bytes that are valid UTF-8.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
        /// Bytes that are not valid UTF-8, in base64.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        base64: Option<String>,
    },
    /// An image was stored as an artifact.
    Visualization {
        /// Run ID.
        run: ExecId,
        /// Image.
        artifact: SessionArtifact,
    },
    /// A run ended.
    RunEnded {
        /// Run.
        run: Box<Run>,
    },
    /// The session was ended. This is the last event.
    SessionEnded,
    /// Events were dropped because this reader was too slow. To get missing output, read the output of the runs.
    Missed {
        /// Number of dropped events.
        count: u64,
    },
    /// Keep-alive, sent while there is nothing else to report.
    Heartbeat,
}

impl ToolSet {
    /// All tool sets.
    pub const ALL: [Self; 3] = [Self::Analysis, Self::Python, Self::Interpreter];

    /// Returns the name on the wire, which is also the name of the tool set's template.
    pub fn name(self) -> &'static str {
        match self {
            Self::Analysis => "analysis",
            Self::Python => "python",
            Self::Interpreter => "interpreter",
        }
    }

    /// Returns the default persistence of the tool set (requirement A1.03).
    pub fn persistence(self) -> Persistence {
        match self {
            Self::Analysis | Self::Python => Persistence::Session,
            Self::Interpreter => Persistence::Run,
        }
    }
}

impl Session {
    /// Returns the memory limit of the session's sandboxes (requirement A2.05).
    pub fn memory_bytes(&self) -> u64 {
        self.limits.memory_bytes.unwrap_or(Limits::default().memory_bytes)
    }
}

impl CreateSession {
    /// Returns the parameters of a session with this tool set, with defaults for everything else.
    pub fn of(set: ToolSet) -> Self {
        Self {
            set,
            template: None,
            persistence: None,
            tier: Tier::default(),
            limits: WantedLimits::default(),
            timeout_seconds: TIMEOUT_SECONDS,
            idle_ms: IDLE_MS,
            policy: None,
        }
    }

    /// Checks the request before anything is created.
    ///
    /// # Errors
    /// Returns an error if a field is invalid. The error names the first invalid field.
    pub fn check(&self) -> Result<(), Error> {
        Lease { idle_ms: self.idle_ms }.check()?;
        self.policy.as_ref().map_or(Ok(()), Policy::check)?;
        self.limits.over(Limits::default()).check()?;
        if self.timeout_seconds > TIMEOUT_SECONDS_MAX {
            return Err(limits::exceeded("timeout_seconds", self.timeout_seconds, TIMEOUT_SECONDS_MAX));
        }
        if self.timeout_seconds == 0 {
            return Err(Error::invalid("timeout_seconds is 0", "Set timeout_seconds to at least 1."));
        }
        if (self.set, self.persistence) == (ToolSet::Analysis, Some(Persistence::Run)) {
            return Err(Error::invalid(
                "the tool set `analysis` supports only the persistence `session`, because it keeps its files in /tmp, which is lost with the sandbox",
                "Omit `persistence`, or use another tool set.",
            ));
        }
        Ok(())
    }
}

fn timeout_seconds() -> u64 {
    TIMEOUT_SECONDS
}

fn idle_ms() -> u64 {
    IDLE_MS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_needs_to_say_no_more_than_its_tools() {
        let request: CreateSession = serde_json::from_str(r#"{"set":"python"}"#).unwrap();
        assert_eq!(request, CreateSession::of(ToolSet::Python));
        assert_eq!(request.check(), Ok(()));
        assert!(serde_json::from_str::<CreateSession>(r#"{"set":"python","mounts":["/"]}"#).is_err());
        assert!(serde_json::from_str::<CreateSession>("{}").is_err());
    }

    #[test]
    fn what_is_above_a_maximum_is_refused_by_name() {
        // Covers requirement A2.09.
        let asked = |change: fn(&mut CreateSession)| {
            let mut request = CreateSession::of(ToolSet::Analysis);
            change(&mut request);
            request.check().unwrap_err().message
        };
        assert!(asked(|request| request.timeout_seconds = 301).contains("timeout_seconds"));
        assert!(asked(|request| request.timeout_seconds = 0).contains("timeout_seconds"));
        assert!(asked(|request| request.limits.memory_bytes = Some(5 << 30)).contains("memory_bytes"));
        assert!(asked(|request| request.idle_ms = 25 * 3_600_000).contains("idle_ms"));
        assert!(asked(|request| request.persistence = Some(Persistence::Run)).contains("persistence"));
    }
}
