//! What an exec is asked to do, how it is doing, and how it ended.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::artifact::Keep;
use crate::code::Code;
use crate::error::Error;
use crate::id::{ContextId, ExecId};
use crate::limits;
use crate::terminal::TerminalSize;

/// A request to run one command, or code. Sent with `PUT /execs/{id}`; sent again with the same id it changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ExecSpec {
    /// The program and its arguments. A program without `/` is looked up in `PATH`. Empty where code is run.
    #[serde(default)]
    pub argv: Vec<String>,
    /// Variables added to the sandbox's own few.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The directory to start in; `/workspace` if none is named.
    #[serde(default)]
    pub cwd: Option<String>,
    /// The user to run as; the sandbox's own user (1000) if none is named. 0 is root of the sandbox's own user namespace, where its
    /// project may have that and its template is a workstation.
    #[serde(default)]
    pub uid: Option<u32>,
    /// Whether bytes will be sent to standard input. If not, it is `/dev/null`.
    #[serde(default)]
    pub stdin: bool,
    /// The wall-clock limit, from the start of the process. None: until the sandbox ends.
    #[serde(default)]
    pub deadline_ms: Option<u64>,
    /// How long the processes of the exec have between SIGTERM and SIGKILL when it is ended from outside.
    #[serde(default)]
    pub grace_ms: Option<u64>,
    /// What happens when the output is larger than what is kept.
    #[serde(default)]
    pub output: OutputMode,
    /// How many bytes of each stream are kept; [`limits::OUTPUT_BYTES`] if none is named.
    #[serde(default)]
    pub output_bytes: Option<u64>,
    /// Whether processes that the command leaves behind go on after it has ended.
    #[serde(default)]
    pub background: Background,
    /// Runs it on a terminal of this size: its three streams are one pseudo-terminal, which it controls. What it writes
    /// is standard output; standard input is implied.
    // Left out where there is none: a guest of a release that knew no terminals refuses fields it does not know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<TerminalSize>,
    /// Code to run instead of a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// Which of the files that it makes or changes are kept; none, if nothing is said. For the node: a guest is not told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifacts: Option<Keep>,
}

/// What happens when an exec's output is larger than what is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum OutputMode {
    /// The process never waits. The first and the last half of the kept bytes stay; the middle is reported as a gap.
    #[default]
    Keep,
    /// The process waits until a reader has taken bytes. Nothing is dropped.
    Block,
    /// The exec is ended with [`Outcome::OutputLimit`].
    Kill,
}

/// What becomes of processes that outlive the command itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Background {
    /// They go on, and are listed with the exec that started them.
    #[default]
    Keep,
    /// They are ended with it.
    Kill,
}

/// One of the streams of an exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Descriptor 1.
    Stdout,
    /// Descriptor 2.
    Stderr,
    /// What code shows besides: lines of JSON, each a [`crate::code::ResultLine`]. A gap is all of them: of execs that ended long ago, output makes
    /// room for others'.
    Results,
}

/// The exit code of a guest whose time to live was over.
pub const GUEST_EXPIRED: u8 = 87;

/// How an exec ended. The set is closed; a missing status is [`Outcome::Unknown`], never an exit with code 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Outcome {
    /// It ended by itself.
    Exited {
        /// Its exit code.
        code: i32,
    },
    /// A signal ended it.
    Signaled {
        /// The signal's number.
        signal: i32,
    },
    /// Its deadline came.
    Timeout,
    /// The memory of the sandbox was used up.
    Oom,
    /// It wrote more than was allowed, in mode `kill`.
    OutputLimit,
    /// Somebody with the right to do so ended it.
    Cancelled,
    /// The sandbox ended under it.
    SandboxLost {
        /// Why the sandbox ended.
        cause: LostCause,
    },
    /// It cannot be known.
    Unknown,
}

/// Why a sandbox ended without being asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum LostCause {
    /// The guest or the whole sandbox was killed or died.
    Died,
    /// The memory of the whole sandbox was used up (tiers in which an overrun ends the sandbox).
    Oom,
    /// The sandbox's time to live was over.
    Expired,
    /// Somebody stopped it.
    Stopped,
}

/// How an exec is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ExecInfo {
    /// Its name.
    pub id: ExecId,
    /// The program and its arguments, shortened to [`limits::ARGV_SHOWN_BYTES`].
    pub argv: String,
    /// How it ended, once it has.
    pub outcome: Option<Outcome>,
    /// Processes alive that belong to it: the command itself and what it left behind. Never counts a zombie.
    pub processes: u32,
    /// Bytes written to standard output so far.
    pub stdout_bytes: u64,
    /// Bytes written to standard error so far.
    pub stderr_bytes: u64,
    /// Bytes of results so far.
    #[serde(default)]
    pub results_bytes: u64,
    /// The context it is a cell of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<ContextId>,
    /// Bytes of standard input taken so far: the offset of the next.
    #[serde(default)]
    pub stdin_bytes: u64,
    /// How long the command itself has run, or ran.
    pub duration_ms: u64,
    /// Its own wall-clock limit, if it has one. A node that was not there when it started learns from this, with
    /// `duration_ms`, when to end it from outside.
    #[serde(default)]
    pub deadline_ms: Option<u64>,
    /// How long its processes have between SIGTERM and SIGKILL when it is ended from outside.
    #[serde(default)]
    pub grace_ms: u64,
    /// How long ago it ended, once it has.
    #[serde(default)]
    pub ended_ms_ago: Option<u64>,
    /// The size of its terminal, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<TerminalSize>,
}

/// The last thing a reader of an exec's output gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ExecEnd {
    /// How it ended.
    pub outcome: Outcome,
    /// All bytes written to standard output, kept or not.
    pub stdout_bytes: u64,
    /// Bytes of standard output that were not kept.
    pub stdout_dropped: u64,
    /// All bytes written to standard error, kept or not.
    pub stderr_bytes: u64,
    /// Bytes of standard error that were not kept.
    pub stderr_dropped: u64,
    /// All bytes of results.
    #[serde(default)]
    pub results_bytes: u64,
    /// Whether the context it was a cell of lost its variables.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub state_lost: bool,
    /// How long the command itself ran, in microseconds.
    pub duration_us: u64,
    /// Processes it left behind, alive when it ended.
    pub left_running: u32,
    /// What memory looked like, where the outcome is `oom`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryReport>,
}

/// What memory looked like when it was used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct MemoryReport {
    /// The limit.
    pub limit_bytes: u64,
    /// The most that was ever used.
    pub peak_bytes: u64,
}

/// A request to send a signal to every process of an exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SignalRequest {
    /// The signal's number, 1 to 64.
    pub signal: i32,
}

impl Outcome {
    /// The exit code a shell would show: the command's own, or 128 and the signal, or timeout's 124.
    pub fn shell_code(&self) -> i32 {
        match self {
            Self::Exited { code } => *code,
            Self::Signaled { signal } => 128 + signal,
            Self::Timeout => 124,
            // A2.05: exceeding the memory limit yields 137.
            Self::Oom => 137,
            Self::OutputLimit => 125,
            Self::Cancelled => 130,
            Self::SandboxLost { .. } | Self::Unknown => 125,
        }
    }
}

impl ExecSpec {
    /// Refuses what cannot be run, by name, before anything is started.
    ///
    /// # Errors
    /// The first thing wrong with the request, as an error with `ran: no`.
    pub fn check(&self) -> Result<(), Error> {
        match (&self.code, self.argv.first()) {
            (Some(code), _) => code.check(self)?,
            (None, Some(program)) if !program.is_empty() => {}
            (None, program) => {
                let what = if program.is_some() { "argv[0] is empty" } else { "argv is empty" };
                return Err(Error::invalid(what, "Name the program to run as argv[0]."));
            }
        }
        let argv_bytes: usize = self.argv.iter().map(|word| word.len() + 1).sum();
        let env_bytes: usize = self.env.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
        if argv_bytes + env_bytes > limits::ARGV_ENV_BYTES_MAX {
            return Err(limits::exceeded(
                "argv and env together, in bytes",
                (argv_bytes + env_bytes) as u64,
                limits::ARGV_ENV_BYTES_MAX as u64,
            ));
        }
        if let Some(word) = self.argv.iter().find(|word| word.len() > limits::WORD_BYTES_MAX) {
            return Err(limits::exceeded(
                "one word of argv, in bytes",
                word.len() as u64,
                limits::WORD_BYTES_MAX as u64,
            ));
        }
        let texts = self.argv.iter().chain(self.env.keys()).chain(self.env.values()).chain(self.cwd.as_ref());
        if texts.into_iter().any(|text| text.contains('\0')) {
            return Err(Error::invalid(
                "argv, env or cwd holds a NUL byte",
                "Send such bytes through standard input or a file.",
            ));
        }
        self.check_env()?;
        self.check_terminal()?;
        if let Some(keep) = &self.artifacts {
            keep.check()?;
        }
        self.check_numbers()
    }

    fn check_terminal(&self) -> Result<(), Error> {
        let Some(size) = self.terminal else { return Ok(()) };
        size.check()?;
        // Its readers come and go: a program must not stand still because nobody looks.
        if self.output == OutputMode::Block {
            return Err(Error::invalid(
                "a terminal has no output mode `block`",
                "Use `keep`, which leaves the last bytes as scrollback, or `kill`.",
            ));
        }
        Ok(())
    }

    fn check_env(&self) -> Result<(), Error> {
        for (name, value) in &self.env {
            if name.is_empty() || name.contains('=') {
                return Err(Error::invalid(
                    format!("{name:?} is not the name of a variable"),
                    "A name has at least one character and no '='.",
                ));
            }
            let bytes = name.len() + value.len() + 1;
            if bytes > limits::WORD_BYTES_MAX {
                return Err(limits::exceeded(
                    "one variable of env, in bytes",
                    bytes as u64,
                    limits::WORD_BYTES_MAX as u64,
                ));
            }
        }
        Ok(())
    }

    /// Refuses root where it is not to be had.
    ///
    /// # Errors
    /// It is to run as root, and nobody may here, or it is code.
    pub fn check_root(&self, rooted: bool) -> Result<(), Error> {
        if self.uid != Some(0) || (rooted && self.code.is_none()) {
            return Ok(());
        }
        let fix = "Leave the uid out: the sandbox's own user runs it. Commands run as root in a workstation of tier `container` whose project may have that: \
                   `belljar project set NAME --root true`.";
        Err(Error::invalid("uid 0 is not offered here", fix))
    }

    fn check_numbers(&self) -> Result<(), Error> {
        if self.uid.is_some_and(|uid| uid > limits::UID_MAX) {
            return Err(Error::invalid(
                format!("uid {} is not offered", self.uid.unwrap_or_default()),
                format!("Use a uid from 1 to {}, or none for the sandbox's own user.", limits::UID_MAX),
            ));
        }
        if self.deadline_ms == Some(0) {
            return Err(Error::invalid(
                "deadline_ms is 0",
                "Give at least 1 ms, or leave it out to run until the sandbox ends.",
            ));
        }
        for (name, value, most) in [
            ("deadline_ms", self.deadline_ms, limits::DEADLINE_MS_MAX),
            ("grace_ms", self.grace_ms, limits::GRACE_MS_MAX),
            ("output_bytes", self.output_bytes, limits::OUTPUT_BYTES_MAX),
        ] {
            if let Some(value) = value.filter(|value| *value > most) {
                return Err(limits::exceeded(name, value, most));
            }
        }
        if self.output_bytes.is_some_and(|bytes| bytes < limits::OUTPUT_BYTES_MIN) {
            return Err(Error::invalid(
                format!("output_bytes is below {}", limits::OUTPUT_BYTES_MIN),
                "Keep at least that much, and read less of it.",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_refused_unless_the_sandbox_has_one_and_for_code_always() {
        let root = ExecSpec { argv: vec!["id".into()], uid: Some(0), ..ExecSpec::default() };
        assert_eq!(root.check(), Ok(()));
        assert_eq!(root.check_root(true), Ok(()));
        assert!(root.check_root(false).unwrap_err().fix.contains("--root true"));
        let code = ExecSpec { code: Some(Code::default()), ..root.clone() };
        assert!(code.check_root(true).is_err());
        assert_eq!(ExecSpec { uid: None, ..root }.check_root(false), Ok(()));
    }

    #[test]
    fn a_request_without_a_terminal_is_written_as_before_there_were_any() {
        let spec = ExecSpec { argv: vec!["true".into()], ..ExecSpec::default() };
        assert!(!serde_json::to_string(&spec).unwrap().contains("terminal"));
        let size = TerminalSize { cols: 80, rows: 24 };
        let spec = ExecSpec { terminal: Some(size), ..spec };
        assert_eq!(spec.check(), Ok(()));
        let spec = ExecSpec { output: OutputMode::Block, ..spec };
        assert!(spec.check().unwrap_err().message.contains("block"));
    }

    #[test]
    fn an_exec_without_a_deadline_may_leave_it_unsaid() {
        let text = r#"{"id":"e1","argv":"sleep 9","outcome":null,"processes":1,"stdout_bytes":0,
                       "stderr_bytes":0,"duration_ms":5}"#;
        let info: ExecInfo = serde_json::from_str(text).unwrap();
        assert_eq!(info.deadline_ms, None);
        let info = ExecInfo { deadline_ms: Some(7), ..info };
        let again: ExecInfo = serde_json::from_slice(&serde_json::to_vec(&info).unwrap()).unwrap();
        assert_eq!(again, info);
    }
}
