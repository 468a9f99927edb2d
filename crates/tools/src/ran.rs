//! Ended execs, described in wording that all tool sets share.

use std::time::Duration;

use api::exec::{LostCause, Outcome};

use crate::capture::Capture;

/// Exit code of a program that could not be started (requirement A6.05).
pub const NOT_STARTED: i32 = 127;

/// Exec that has ended.
#[derive(Clone, Debug)]
pub struct EndedExec {
    /// Outcome of the exec.
    pub outcome: Outcome,
    /// Standard output of the exec.
    pub stdout: Capture,
    /// Standard error of the exec.
    pub stderr: Capture,
    /// Duration of the run.
    pub duration: Duration,
    /// Timeout of the exec in seconds.
    pub timeout_seconds: f64,
    /// Memory limit in bytes.
    pub memory_bytes: u64,
}

/// Parts of an ended exec that an answer contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecSummary {
    /// Exit code as a shell would report it.
    pub exit_code: i32,
    /// Beginning of standard output.
    pub stdout: String,
    /// True if standard output was truncated.
    pub stdout_truncated: bool,
    /// End of standard error. If the exec was terminated, the last line states the reason.
    pub stderr: String,
    /// True if standard error was truncated.
    pub stderr_truncated: bool,
}

impl EndedExec {
    /// Creates the record of an exec that could not be started. The reason becomes the standard error.
    pub fn not_started(why: &str, timeout_seconds: f64, memory_bytes: u64) -> Self {
        let mut stderr = Capture::default();
        stderr.push(why.as_bytes());
        Self {
            outcome: Outcome::Exited { code: NOT_STARTED },
            stdout: Capture::default(),
            stderr,
            duration: Duration::ZERO,
            timeout_seconds,
            memory_bytes,
        }
    }

    /// Returns the parts of the exec that an answer contains. If the program did not end on its own, the last
    /// line of standard error states the reason.
    pub fn said(&self) -> ExecSummary {
        let (stdout, stdout_truncated) = self.stdout.beginning();
        let (stderr, stderr_truncated) = self.stderr.ending(self.line().as_deref());
        let exit_code = match self.outcome {
            // Requirement A2.05 also applies in tiers where exceeding the memory limit ends the sandbox.
            Outcome::SandboxLost { cause: LostCause::Oom } => Outcome::Oom.shell_code(),
            Outcome::Exited { .. }
            | Outcome::Signaled { .. }
            | Outcome::Timeout
            | Outcome::Oom
            | Outcome::OutputLimit
            | Outcome::Cancelled
            | Outcome::SandboxLost { .. }
            | Outcome::Unknown => self.outcome.shell_code(),
        };
        ExecSummary { exit_code, stdout, stdout_truncated, stderr, stderr_truncated }
    }

    /// Returns a line that states why the exec was terminated, or `None` if the program ended on its own or
    /// was killed by a signal.
    fn line(&self) -> Option<String> {
        match &self.outcome {
            Outcome::Exited { .. } | Outcome::Signaled { .. } => None,
            // Requirement A3.03 specifies this text.
            Outcome::Timeout => Some(format!("Execution timed out after {} seconds", self.timeout_seconds)),
            // Requirement A2.05 specifies this text.
            Outcome::Oom => Some(format!("Memory limit of {} exceeded", megabytes(self.memory_bytes))),
            Outcome::SandboxLost { cause: LostCause::Oom } => Some(format!(
                "Memory limit of {} exceeded, which ended the sandbox. The files of the sandbox are lost; the next call starts a new sandbox",
                megabytes(self.memory_bytes)
            )),
            Outcome::OutputLimit => Some("Execution ended: the output exceeded the limit".into()),
            Outcome::Cancelled => Some("Execution was cancelled".into()),
            Outcome::SandboxLost { .. } => Some(
                "The sandbox ended during the execution. The files of the sandbox are lost; the next call starts a new sandbox"
                    .into(),
            ),
            Outcome::Unknown => Some("The outcome of the execution is not known".into()),
        }
    }
}

/// Formats a size in megabytes for models, such as `512MB`.
pub fn megabytes(bytes: u64) -> String {
    format!("{}MB", bytes >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(outcome: Outcome) -> EndedExec {
        let mut ran = EndedExec { outcome, ..EndedExec::not_started("", 60.0, 512 << 20) };
        ran.stdout.push(b"out");
        ran.stderr.push(b"err");
        ran
    }

    #[test]
    fn a_time_limit_is_an_exit_with_124_that_says_so() {
        // Covers requirement A3.03.
        let said = ran(Outcome::Timeout).said();
        assert_eq!((said.exit_code, said.stdout.as_str()), (124, "out"));
        assert_eq!(said.stderr, "err\nExecution timed out after 60 seconds\n");
        let short = EndedExec { timeout_seconds: 0.5, ..ran(Outcome::Timeout) };
        assert!(short.said().stderr.ends_with("Execution timed out after 0.5 seconds\n"));
    }

    #[test]
    fn a_memory_limit_is_an_exit_with_137_that_names_it() {
        // Covers requirement A2.05.
        let said = ran(Outcome::Oom).said();
        assert_eq!((said.exit_code, said.stderr.as_str()), (137, "err\nMemory limit of 512MB exceeded\n"));
        let lost = ran(Outcome::SandboxLost { cause: LostCause::Oom }).said();
        assert!(lost.exit_code == 137 && lost.stderr.contains("Memory limit of 512MB exceeded"));
    }

    #[test]
    fn what_a_program_did_itself_is_told_as_it_is() {
        for (outcome, code) in [
            (Outcome::Exited { code: 3 }, 3),
            (Outcome::Signaled { signal: 9 }, 137),
            (Outcome::Exited { code: 0 }, 0),
        ] {
            let said = ran(outcome).said();
            assert_eq!((said.exit_code, said.stderr.as_str()), (code, "err"));
        }
    }
}
