//! Execs: requests, states and outcomes.

mod outcome;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::artifact::Keep;
use crate::code::Code;
use crate::error::Error;
use crate::id::{ContextId, ExecId};
use crate::limits;
use crate::terminal::TerminalSize;

pub use outcome::{ExecEnd, GUEST_EXPIRED, LostCause, MemoryReport, Outcome};

/// Command or code to run.
// The node sends this to the guest with `PUT /execs/{id}`. A repeated request with the same ID has no effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ExecSpec {
    /// Program and arguments. A program name without `/` is looked up in `PATH`. The list is empty if `code` is set. `argv` and `env`
    /// together have at most 2,000,000 bytes; one argument has at most 131,071 bytes.
    #[serde(default)]
    pub argv: Vec<String>,
    /// Environment variables, in addition to those of the sandbox.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Working directory. Default `/workspace`.
    #[serde(default)]
    pub cwd: Option<String>,
    /// User ID to run as, at most 65,532. Default 1000, the sandbox's own user. 0 is root of the sandbox's own user namespace; root
    /// requires a workstation template and `root` in the project's quota.
    #[serde(default)]
    pub uid: Option<u32>,
    /// Accept standard input. If false (default), standard input is `/dev/null`.
    #[serde(default)]
    pub stdin: bool,
    /// Wall-clock limit in milliseconds from the start of the process, at most 24 hours. If absent, the exec can run until the sandbox
    /// ends.
    #[serde(default)]
    pub deadline_ms: Option<u64>,
    /// Time between SIGTERM and SIGKILL when the exec is stopped from outside, in milliseconds. Default 500, maximum 60,000.
    #[serde(default)]
    pub grace_ms: Option<u64>,
    /// Behaviour when the output exceeds `output_bytes`. Default `keep`.
    #[serde(default)]
    pub output: OutputMode,
    /// Number of bytes to keep of each output stream: 4,096 to 100,000,000. Default 10,000,000.
    #[serde(default)]
    pub output_bytes: Option<u64>,
    /// Treatment of processes that outlive the command. Default `keep`.
    #[serde(default)]
    pub background: Background,
    /// Run the command on a pseudo-terminal of this size, which replaces all three standard streams and is the controlling terminal. The
    /// output of the terminal is returned as standard output; `stdin` is implied.
    // Omitted if there is no terminal, because guests from releases without terminal support reject unknown
    // fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<TerminalSize>,
    /// Code to run instead of a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// New or changed files to keep as artifacts. By default, no files are kept.
    // Only the node uses this field. It is not sent to the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifacts: Option<Keep>,
}

/// Behaviour when the output of an exec exceeds the bytes to keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum OutputMode {
    /// The process never blocks. The first and last half of the limit are kept; the middle is reported as a gap.
    #[default]
    Keep,
    /// The process blocks until a reader has consumed output. Nothing is dropped.
    Block,
    /// The exec is killed, with the outcome `output_limit`.
    Kill,
}

/// Treatment of processes that outlive the command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Background {
    /// They keep running and are listed with the exec that started them.
    #[default]
    Keep,
    /// They are killed when the command ends.
    Kill,
}

/// Output stream of an exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output, descriptor 1.
    Stdout,
    /// Standard error, descriptor 2.
    Stderr,
    /// Results of code: JSON lines of the type `ResultLine`. A gap covers all of them: output of execs that ended long ago is dropped to
    /// make room for others.
    Results,
}

/// Exec and its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ExecInfo {
    /// Exec ID.
    pub id: ExecId,
    /// Program and arguments, truncated to 256 bytes.
    pub argv: String,
    /// Outcome. `null` while the command is running.
    pub outcome: Option<Outcome>,
    /// Number of live processes of the exec, including those that outlive the command. Zombies are not counted.
    pub processes: u32,
    /// Bytes written to standard output so far.
    pub stdout_bytes: u64,
    /// Bytes written to standard error so far.
    pub stderr_bytes: u64,
    /// Bytes of results so far.
    #[serde(default)]
    pub results_bytes: u64,
    /// Context of the exec, if it is a cell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<ContextId>,
    /// Bytes of standard input received so far, which is the offset of the next byte.
    #[serde(default)]
    pub stdin_bytes: u64,
    /// Run time of the command so far, or in total once it has ended, in milliseconds.
    pub duration_ms: u64,
    /// Wall-clock limit in milliseconds, if the exec has one.
    // A node that did not start the exec uses this field and `duration_ms` to determine when to stop the exec
    // from outside.
    #[serde(default)]
    pub deadline_ms: Option<u64>,
    /// Time between SIGTERM and SIGKILL when the exec is stopped from outside, in milliseconds.
    #[serde(default)]
    pub grace_ms: u64,
    /// Time since the command ended, in milliseconds. `null` while the command is running.
    #[serde(default)]
    pub ended_ms_ago: Option<u64>,
    /// Size of the terminal, if the exec has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<TerminalSize>,
}

/// Signal for every process of an exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SignalRequest {
    /// Signal number, 1 to 64.
    pub signal: i32,
}

impl ExecSpec {
    /// Checks the request before anything is started.
    ///
    /// # Errors
    /// Returns an error if a field is invalid. The error names the first invalid field and has `ran: no`.
    pub fn check(&self) -> Result<(), Error> {
        match (&self.code, self.argv.first()) {
            (Some(code), _) => code.check(self)?,
            (None, Some(program)) if !program.is_empty() => {}
            (None, program) => {
                let what = if program.is_some() { "argv[0] is empty" } else { "argv is empty" };
                return Err(Error::invalid(what, "Set argv[0] to the program to run."));
            }
        }
        let argv_bytes: usize = self.argv.iter().map(|word| word.len() + 1).sum();
        let env_bytes: usize = self.env.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
        if argv_bytes + env_bytes > limits::ARGV_ENV_BYTES_MAX {
            return Err(limits::exceeded(
                "the total size of argv and env in bytes",
                (argv_bytes + env_bytes) as u64,
                limits::ARGV_ENV_BYTES_MAX as u64,
            ));
        }
        if let Some(word) = self.argv.iter().find(|word| word.len() > limits::WORD_BYTES_MAX) {
            return Err(limits::exceeded(
                "the length of one argv entry in bytes",
                word.len() as u64,
                limits::WORD_BYTES_MAX as u64,
            ));
        }
        let texts = self.argv.iter().chain(self.env.keys()).chain(self.env.values()).chain(self.cwd.as_ref());
        if texts.into_iter().any(|text| text.contains('\0')) {
            return Err(Error::invalid(
                "argv, env or cwd contains a NUL byte",
                "Pass NUL bytes through standard input or a file.",
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
        // Clients of a terminal may disconnect at any time, and the program must not block while no client is
        // connected.
        if self.output == OutputMode::Block {
            return Err(Error::invalid(
                "a terminal does not support output mode `block`",
                "Use `keep`, which retains the last bytes as scrollback, or `kill`.",
            ));
        }
        Ok(())
    }

    fn check_env(&self) -> Result<(), Error> {
        for (name, value) in &self.env {
            if name.is_empty() || name.contains('=') {
                return Err(Error::invalid(
                    format!("{name:?} is not a valid variable name"),
                    "Use a name with at least one character and no '='.",
                ));
            }
            let bytes = name.len() + value.len() + 1;
            if bytes > limits::WORD_BYTES_MAX {
                return Err(limits::exceeded(
                    "the length of one env variable in bytes",
                    bytes as u64,
                    limits::WORD_BYTES_MAX as u64,
                ));
            }
        }
        Ok(())
    }

    /// Checks that the exec may run with the requested uid. `rooted` is true if the sandbox allows commands
    /// to run as root.
    ///
    /// # Errors
    /// Returns an error if the exec requests uid 0 while the sandbox forbids root or the exec runs code.
    pub fn check_root(&self, rooted: bool) -> Result<(), Error> {
        if self.uid != Some(0) || (rooted && self.code.is_none()) || crate::defence::is_off("R-09") {
            return Ok(());
        }
        let fix = "Omit uid to run as the sandbox's own user. Commands can run as root in a workstation of tier `container` whose project allows it: \
                   `bellglass project set NAME --root true`.";
        Err(Error::invalid("uid 0 is not allowed here", fix))
    }

    fn check_numbers(&self) -> Result<(), Error> {
        if self.uid.is_some_and(|uid| uid > limits::UID_MAX) {
            return Err(Error::invalid(
                format!("uid {} is not allowed", self.uid.unwrap_or_default()),
                format!(
                    "Use a uid from 1 to {}, or omit uid to run as the sandbox's own user.",
                    limits::UID_MAX
                ),
            ));
        }
        if self.deadline_ms == Some(0) {
            return Err(Error::invalid(
                "deadline_ms is 0",
                "Set deadline_ms to at least 1, or omit deadline_ms to let the command run until the sandbox stops.",
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
                format!("output_bytes is below the minimum of {}", limits::OUTPUT_BYTES_MIN),
                "Set output_bytes to at least this minimum. A client can still read only part of the output.",
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
