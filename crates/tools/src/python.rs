//! The tool set `python`: scripts with their requirements, in a workspace that persists between calls
//! (requirement A7).

use api::session::ToolSet;
use api::{Error, ErrorCode, Ran, limits};
use serde::Serialize;
use serde_json::json;

use crate::call::{Call, wrong};
use crate::capture::TEXT_BYTES_MAX;
use crate::publish::{Category, Definition};
use crate::ran::EndedExec;

/// Path of the file that a script is written to before it runs (requirement A7.04).
pub const SCRIPT: &str = "/workspace/task.py";

/// Prefix of the error for a failed installation (requirement A4.05).
const NOT_INSTALLED: &str = "Failed to install requirements: ";

/// Error if no isolation backend is available (requirement A7.05).
const NO_BACKEND: &str =
    "Failed to initialize sandbox engine: Failed to initialize any sandbox backend (Daytona or Docker)";
/// Error codes for mistakes that the caller can correct by changing the call.
const WRONG: [ErrorCode; 2] = [ErrorCode::InvalidRequest, ErrorCode::LimitExceeded];

/// Instructions for the model.
pub const PROMPT: &str = include_str!("python.md");

/// Validated call of a tool in this set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PythonCall {
    /// `execute_python`.
    Execute {
        /// Source code of the script.
        script: String,
        /// Packages to install before the script runs.
        requirements: Vec<String>,
    },
    /// `cleanup_sandbox`.
    Cleanup,
}

/// Answer of `execute_python`. It always has the first three fields, plus a flag for each truncated stream
/// (requirements A7.03, A3.02).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PythonAnswer {
    exit_code: i32,
    stdout: String,
    stderr: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stdout_truncated: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stderr_truncated: bool,
}

/// Answer of `cleanup_sandbox` (requirement A7.08).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CleanedUp {
    /// True if the sandbox was removed completely.
    pub success: bool,
}

/// Returns the definitions of the tools in this set.
pub fn definitions() -> Vec<Definition> {
    vec![
        Definition {
            name: "execute_python",
            description: "Execute a Python script in an isolated sandbox. Files in /workspace and installed packages persist \
                          between executions of the session; variables and imports do not, so import what you need in each \
                          script. There is no network while the script runs."
                .into(),
            parameters: json!({
                "type": "object",
                "properties": {
                    "script": {"type": "string", "description": "The Python script to execute"},
                    "requirements": {
                        "type": "array",
                        "items": {"type": "string"},
                        "description": "Python packages to install first, one requirement each, for example \"requests==2.32.3\""
                    }
                },
                "required": ["script"]
            }),
            category: Category::CodeExecution,
        },
        Definition {
            name: "cleanup_sandbox",
            description: "Release the sandbox of this session with all its files and installed packages. The next execution \
                          starts in a new, empty one."
                .into(),
            parameters: json!({"type": "object", "properties": {}}),
            category: Category::CodeExecution,
        },
    ]
}

/// Validates a call.
///
/// # Errors
/// Returns an error that names the tool if it is unknown, or the argument that is missing or invalid.
pub fn asked(tool: &str, call: &Call) -> Result<PythonCall, Error> {
    match tool {
        "execute_python" => {
            let script = checked_code(call.text("script")?, "script")?;
            call.only(&["script", "requirements"])?;
            let requirements = call.texts("requirements")?.unwrap_or_default();
            check_requirements(&requirements)?;
            Ok(PythonCall::Execute { script, requirements })
        }
        "cleanup_sandbox" => {
            call.only(&[])?;
            Ok(PythonCall::Cleanup)
        }
        other => Err(crate::publish::no_tool(ToolSet::Python, other)),
    }
}

/// Checks that code is neither empty nor too long (requirement A3.07).
pub(crate) fn checked_code(code: &str, name: &str) -> Result<String, Error> {
    if code.trim().is_empty() {
        return Err(wrong(format!("`{name}` is empty"), "Send the code to run."));
    }
    if code.len() > limits::CODE_BYTES_MAX {
        return Err(limits::exceeded(
            &format!("`{name}`, in bytes,"),
            code.len() as u64,
            limits::CODE_BYTES_MAX as u64,
        ));
    }
    Ok(code.to_owned())
}

fn check_requirements(requirements: &[String]) -> Result<(), Error> {
    let most = limits::REQUIREMENTS_MAX;
    if requirements.len() > most {
        return Err(limits::exceeded("the number of `requirements`", requirements.len() as u64, most as u64));
    }
    let bad = |one: &&String| {
        one.trim().is_empty() || one.len() > limits::REQUIREMENT_BYTES_MAX || one.contains('\n')
    };
    match requirements.iter().find(bad) {
        Some(_) => Err(wrong(
            "`requirements` has an entry that is empty or too long",
            "Write exactly one package in each entry of `requirements`.",
        )),
        None => Ok(()),
    }
}

impl PythonAnswer {
    /// Creates the answer for a script that ran.
    pub fn new(ran: &EndedExec) -> Self {
        let said = ran.said();
        Self {
            exit_code: said.exit_code,
            stdout: said.stdout,
            stderr: said.stderr,
            stdout_truncated: said.stdout_truncated,
            stderr_truncated: said.stderr_truncated,
        }
    }

    /// Creates the answer for a failed installation, after which the script does not run (requirement A4.05).
    /// The answer always begins with the prefix. If the error message is too long, only its end is kept.
    pub fn not_installed(ran: &EndedExec) -> Self {
        let Self { stderr, stderr_truncated, .. } = Self::new(ran);
        let complaint = stderr.strip_prefix(NOT_INSTALLED).unwrap_or(&stderr);
        let over = (NOT_INSTALLED.len() + complaint.len()).saturating_sub(TEXT_BYTES_MAX);
        let from = (over..=complaint.len()).find(|at| complaint.is_char_boundary(*at)).unwrap_or(0);
        let stderr = format!("{NOT_INSTALLED}{}", complaint.get(from..).unwrap_or_default());
        Self {
            exit_code: 1,
            stdout: String::new(),
            stderr,
            stdout_truncated: false,
            stderr_truncated: stderr_truncated || from > 0,
        }
    }

    /// Creates the answer for a failure outside the script (requirement A7.03). If no backend is available,
    /// the answer contains the text that requirement A7.05 specifies.
    pub fn failed(error: &Error) -> Self {
        if error.code == ErrorCode::TierUnavailable {
            return Self::said(NO_BACKEND.into());
        }
        let not_run = error.ran == Ran::No;
        let what = if WRONG.contains(&error.code) {
            "Invalid arguments"
        } else if not_run && error.code == ErrorCode::Conflict {
            // The call was cancelled, or the session ended.
            "Not executed"
        } else if not_run {
            "Failed to initialize sandbox engine"
        } else {
            "Execution failed"
        };
        Self::said(format!("{what}: {}. {}", error.message, error.fix))
    }

    fn said(stderr: String) -> Self {
        Self { exit_code: 1, stdout: String::new(), stderr, stdout_truncated: false, stderr_truncated: false }
    }

    /// Returns true if the script succeeded.
    pub fn is_well(&self) -> bool {
        self.exit_code == 0
    }
}

#[cfg(test)]
mod tests {
    use api::exec::Outcome;
    use serde_json::{Value, json};

    use super::*;

    fn ask(tool: &str, arguments: Value) -> Result<PythonCall, Error> {
        asked(tool, &Call::read(tool, arguments).unwrap())
    }

    #[test]
    fn there_are_two_tools_and_they_have_no_other_arguments() {
        // Covers requirements A7.01, A7.02 and A15.03.
        let names: Vec<_> = definitions().iter().map(|tool| tool.name).collect();
        assert_eq!(names, ["execute_python", "cleanup_sandbox"]);
        let asked = ask("execute_python", json!({"script": "1"})).unwrap();
        assert_eq!(asked, PythonCall::Execute { script: "1".into(), requirements: Vec::new() });
        assert_eq!(ask("cleanup_sandbox", json!({})).unwrap(), PythonCall::Cleanup);
        for (tool, arguments) in [
            ("execute_python", json!({"script": "1", "timeout": 3})),
            ("execute_python", json!({"script": ""})),
            ("execute_python", json!({"script": 1})),
            ("execute_python", json!({})),
            ("execute_python", json!({"script": "1", "requirements": "numpy"})),
            ("execute_python", json!({"script": "1", "requirements": [" "]})),
            ("execute_python", json!({"script": "1", "requirements": ["a\nb"]})),
            ("cleanup_sandbox", json!({"force": true})),
            ("other", json!({})),
        ] {
            assert!(ask(tool, arguments.clone()).is_err(), "{tool} {arguments}");
        }
    }

    #[test]
    fn an_answer_has_three_keys_and_flags_only_where_something_was_cut() {
        // Covers requirements A7.03 and A3.02.
        let mut ran =
            EndedExec { outcome: Outcome::Exited { code: 0 }, ..EndedExec::not_started("", 60.0, 1) };
        ran.stdout.push(b"42\n");
        let text = serde_json::to_string(&PythonAnswer::new(&ran)).unwrap();
        assert_eq!(text, r#"{"exit_code":0,"stdout":"42\n","stderr":""}"#);
        ran.stdout.push(&[b'x'; 20_000]);
        let value = serde_json::to_value(PythonAnswer::new(&ran)).unwrap();
        assert_eq!((value["stdout_truncated"].clone(), value.get("stderr_truncated")), (json!(true), None));
    }

    #[test]
    fn what_fails_before_the_script_has_the_same_shape() {
        // Covers requirement A7.05.
        let none = Error { code: ErrorCode::TierUnavailable, ..wrong("No backend available", "x") };
        assert_eq!(
            serde_json::to_string(&PythonAnswer::failed(&none)).unwrap(),
            "{\"exit_code\":1,\"stdout\":\"\",\"stderr\":\"Failed to initialize sandbox engine: \
             Failed to initialize any sandbox backend (Daytona or Docker)\"}"
        );
        let called_off = Error {
            code: ErrorCode::Conflict,
            ..wrong("the call was cancelled while it was queued", "Call again.")
        };
        assert_eq!(
            PythonAnswer::failed(&called_off).stderr,
            "Not executed: the call was cancelled while it was queued. Call again."
        );
        let lost =
            Error { code: ErrorCode::SandboxLost, ran: Ran::Unknown, ..wrong("it is gone", "Call again.") };
        assert_eq!(PythonAnswer::failed(&lost).stderr, "Execution failed: it is gone. Call again.");
        // Covers requirement A4.05.
        let mut ran = EndedExec {
            outcome: Outcome::Exited { code: 1 },
            ..EndedExec::not_started("Failed to install requirements: no", 60.0, 1)
        };
        ran.stdout.push(b"noise");
        let told = PythonAnswer::not_installed(&ran);
        assert_eq!((told.exit_code, told.stdout.as_str()), (1, ""));
        assert_eq!(told.stderr, "Failed to install requirements: no");
        ran.stderr.push(&[b'x'; 20_000]);
        let told = PythonAnswer::not_installed(&ran);
        assert!(told.stderr.starts_with("Failed to install requirements: xx") && told.stderr.len() <= 10_240);
        let memory = EndedExec { outcome: Outcome::Oom, ..EndedExec::not_started("", 60.0, 512 << 20) };
        assert_eq!(
            PythonAnswer::not_installed(&memory).stderr,
            "Failed to install requirements: Memory limit of 512MB exceeded\n"
        );
    }
}
