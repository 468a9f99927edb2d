//! Sessions: an agent's conversation with one sandbox, which is made when the first tool is called.
//!
//! A tool call belongs to one session and is one *run*. Runs of a session go one after the other, in the order in which they were asked
//! for. What is kept of them (files, output, results) belongs to the session and outlives its sandboxes.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::Error;
use crate::exec::{Outcome, Stream};
use crate::id::{ExecId, SandboxId, SessionId};
use crate::limits::{self, Limits, WantedLimits};
use crate::policy::Policy;
use crate::sandbox::{Lease, Sandbox, Tier};

/// How long one tool call may run, unless another time is asked for (A2.08).
pub const TIMEOUT_SECONDS: u64 = 60;
/// The most that may be asked for (A2.08).
pub const TIMEOUT_SECONDS_MAX: u64 = 300;
/// The sandbox of a session ends when for so long nothing was asked of it, unless another time is asked for (A1.05).
pub const IDLE_MS: u64 = 900_000;
/// Datasets of one session.
pub const DATASETS_MAX: usize = 64;
/// The size of one: as much as fits the disk of a sandbox with the usual limits, with room for what is made of it.
pub const DATASET_BYTES_MAX: u64 = 512 << 20;
/// The size of all datasets of one session together.
pub const DATASETS_BYTES_MAX: u64 = 4 << 30;
/// The length of a dataset's name, so that its file's fits a directory.
const DATASET_NAME_BYTES_MAX: usize = 200;
/// Calls of one session that may wait for their turn.
pub const WAITING_MAX: usize = 100;
/// The response header that names the run.
pub const RUN_HEADER: &str = "belljar-run";

/// The tools that a session offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ToolSet {
    /// Commands and files, for analysing datasets.
    Analysis,
    /// Python scripts with their requirements.
    Python,
    /// Python code, each run in a sandbox of its own.
    Interpreter,
}

/// What stays from one run to the next (A1.03).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Persistence {
    /// The sandbox, with all its files and packages.
    Session,
    /// Files in `/workspace`. Each run has a sandbox of its own.
    Run,
}

/// A request for a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateSession {
    /// Which tools it offers.
    pub set: ToolSet,
    /// The template of its sandboxes; the tool set's own, if none is named.
    #[serde(default)]
    pub template: Option<String>,
    /// What stays from one run to the next; what the tool set says, if nothing is said.
    #[serde(default)]
    pub persistence: Option<Persistence>,
    /// The weakest isolation that will do.
    #[serde(default)]
    pub tier: Tier,
    /// What a sandbox of it may use.
    #[serde(default)]
    pub limits: WantedLimits,
    /// How long a run may take, in seconds: 1 to 300.
    #[serde(default = "timeout_seconds")]
    pub timeout_seconds: u64,
    /// Its sandbox is stopped when for so long nothing was asked of it. The next call makes a new one.
    #[serde(default = "idle_ms")]
    pub idle_ms: u64,
    /// What may leave its sandboxes; nothing, if nothing is said.
    #[serde(default)]
    pub policy: Option<Policy>,
}

/// A session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Session {
    /// Its id.
    pub id: SessionId,
    /// The project it belongs to.
    pub project: String,
    /// Which tools it offers.
    pub set: ToolSet,
    /// The template of its sandboxes.
    pub template: String,
    /// What stays from one run to the next.
    pub persistence: Persistence,
    /// The isolation that was asked for.
    pub tier: Tier,
    /// What a sandbox of it may use; what its template says, where this does not.
    pub limits: WantedLimits,
    /// How long a run may take, in seconds, unless the call says less.
    pub timeout_seconds: u64,
    /// When its sandbox is stopped.
    pub idle_ms: u64,
    /// What may leave its sandboxes.
    pub policy: Policy,
    /// Whether it takes calls.
    pub state: SessionState,
    /// The sandbox it has now, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxId>,
    /// What is copied into each sandbox before anything runs in it.
    #[serde(default)]
    pub datasets: Vec<SessionDataset>,
    /// When it was made, in milliseconds since 1970, by the server's clock.
    pub created_at_ms: u64,
    /// When it was ended, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at_ms: Option<u64>,
}

/// Whether a session takes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// It does.
    Open,
    /// It does not any more. What was kept is still there.
    Ended,
}

/// A file that a session copies into its sandboxes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SessionDataset {
    /// Its name.
    pub name: String,
    /// Where it is in a sandbox.
    pub path: String,
    /// Its size.
    pub size_bytes: u64,
}

/// One tool call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Run {
    /// Its id. That of its exec, where it has one.
    pub id: ExecId,
    /// Which tool.
    pub tool: String,
    /// Why it was called, as whoever called it says; for people, never for the sandbox (A6.02).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_trace: Option<String>,
    /// Whether it goes on.
    pub state: RunState,
    /// The sandbox it ran in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxId>,
    /// How its exec ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Bytes of standard output.
    pub stdout_bytes: u64,
    /// Bytes of standard error.
    pub stderr_bytes: u64,
    /// The first byte of standard output that was not kept, and the first that was again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout_gap: Option<(u64, u64)>,
    /// The same of standard error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr_gap: Option<(u64, u64)>,
    /// When it was begun, in milliseconds since 1970, by the server's clock.
    pub started_at_ms: u64,
    /// How long it took, waiting for its turn not included.
    pub duration_ms: u64,
    /// What was answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
}

/// Whether a run goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// It does; or its server was killed under it.
    Running,
    /// It has ended.
    Ended,
}

/// A file that a session keeps, whatever becomes of its sandboxes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SessionArtifact {
    /// Its name: its path below the folder that it was found in.
    pub name: String,
    /// What the tool sets call it: a path among the files of all sessions.
    pub path: String,
    /// Its type, by the end of its name.
    #[serde(rename = "type")]
    pub mime: String,
    /// Its size.
    pub size: u64,
}

/// Something that happens in a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum SessionEvent {
    /// Its sandbox runs, or has ended.
    Sandbox {
        /// The sandbox as it is now.
        sandbox: Box<Sandbox>,
    },
    /// A run has begun: it was its turn.
    RunStarted {
        /// The run.
        run: Box<Run>,
    },
    /// A run has written something: `text` or `base64`, never both.
    Output {
        /// Which run.
        run: ExecId,
        /// To which stream.
        stream: Stream,
        /// The offset of the first byte.
        offset: u64,
        /// The bytes, where they are UTF-8.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
        /// The bytes in base64, where they are not.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        base64: Option<String>,
    },
    /// A picture was kept (A5.06).
    Visualization {
        /// Of which run.
        run: ExecId,
        /// The picture.
        artifact: SessionArtifact,
    },
    /// A run has ended.
    RunEnded {
        /// The run.
        run: Box<Run>,
    },
    /// The session was ended. The last event.
    SessionEnded,
    /// Events were missed by this reader because it was too slow; the runs have what they wrote.
    Missed {
        /// How many.
        count: u64,
    },
    /// Nothing happened for a while.
    Heartbeat,
}

impl ToolSet {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Analysis, Self::Python, Self::Interpreter];

    /// The name on the wire, which is that of its template too.
    pub fn name(self) -> &'static str {
        match self {
            Self::Analysis => "analysis",
            Self::Python => "python",
            Self::Interpreter => "interpreter",
        }
    }

    /// What stays from one run to the next, unless another thing is asked for (A1.03).
    pub fn persistence(self) -> Persistence {
        match self {
            Self::Analysis | Self::Python => Persistence::Session,
            Self::Interpreter => Persistence::Run,
        }
    }
}

impl Session {
    /// The memory of a sandbox of it (A2.05).
    pub fn memory_bytes(&self) -> u64 {
        self.limits.memory_bytes.unwrap_or(Limits::default().memory_bytes)
    }
}

impl CreateSession {
    /// A session of a tool set with all its defaults.
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

    /// Refuses what cannot be made, by name, before anything is.
    ///
    /// # Errors
    /// The first thing wrong with the request.
    pub fn check(&self) -> Result<(), Error> {
        Lease { idle_ms: self.idle_ms }.check()?;
        self.policy.as_ref().map_or(Ok(()), Policy::check)?;
        self.limits.over(Limits::default()).check()?;
        if self.timeout_seconds > TIMEOUT_SECONDS_MAX {
            return Err(limits::exceeded("timeout_seconds", self.timeout_seconds, TIMEOUT_SECONDS_MAX));
        }
        if self.timeout_seconds == 0 {
            return Err(Error::invalid("timeout_seconds is 0", "Give at least 1."));
        }
        if (self.set, self.persistence) == (ToolSet::Analysis, Some(Persistence::Run)) {
            return Err(Error::invalid(
                "the tool set analysis keeps its files in /tmp, which does not outlive a sandbox: persistence is session",
                "Leave `persistence` out, or use another tool set.",
            ));
        }
        Ok(())
    }
}

/// Where a dataset of this name is in a sandbox (A5.01).
///
/// # Errors
/// The name is none.
pub fn dataset_path(name: &str) -> Result<String, Error> {
    let bad = name.is_empty()
        || name.len() > DATASET_NAME_BYTES_MAX
        || name.chars().any(char::is_control)
        || [".", ".."].contains(&name);
    if bad {
        let shown: String = name.chars().take(DATASET_NAME_BYTES_MAX).collect();
        return Err(Error::invalid(
            format!("{shown:?} is not the name of a dataset"),
            format!("Use 1 to {DATASET_NAME_BYTES_MAX} bytes without control characters."),
        ));
    }
    Ok(format!("/tmp/data/{}.csv", name.replace(['/', ' '], "_")))
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
        // A2.09
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

    #[test]
    fn a_dataset_is_a_file_of_its_name() {
        // A5.01
        for (name, path) in [
            ("sales", "/tmp/data/sales.csv"),
            ("a/b c", "/tmp/data/a_b_c.csv"),
            ("../up", "/tmp/data/.._up.csv"),
        ] {
            assert_eq!(dataset_path(name).unwrap(), path);
        }
        for bad in ["", ".", "..", "a\nb", "a\0", &"x".repeat(201)] {
            assert!(dataset_path(bad).is_err(), "{bad:?}");
        }
    }
}
