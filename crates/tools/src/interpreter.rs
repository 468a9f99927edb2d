//! The tool set `interpreter`: Python code, with a separate sandbox for each run (requirement A8).

use api::session::{SessionArtifact, ToolSet};
use api::{Error, ErrorCode, SessionId};
use serde::Serialize;
use serde_json::json;

use crate::call::Call;
use crate::publish::{Category, Definition, Facts};
use crate::python::checked_code;
use crate::ran::{EndedExec, megabytes};

/// Directory in which code runs and saves its files.
pub const WORKSPACE: &str = "/workspace";
/// File name under which the code is stored (requirement A5.07).
pub const SCRIPT: &str = "script.py";
/// File name under which the standard output of the code is stored (requirement A5.07).
pub const STDOUT: &str = "stdout.txt";
/// Maximum number of files that one answer lists (requirement A5.09).
pub const FILES_MAX: usize = 10;
/// Maximum size of a file that an answer lists, in bytes. A larger file remains only in the session's folder
/// (requirement A5.09).
pub const FILE_BYTES_MAX: u64 = 10 << 20;
/// Maximum size of an image that an answer contains, in bytes (requirement A5.11).
pub const PICTURE_BYTES_MAX: u64 = 5 << 20;
/// Directory that contains [`HOOK`]. At startup, Python imports the hook from this directory.
pub const HOOK_DIRECTORY: &str = "/tmp/.bellglass";
/// Python hook that saves open figures when the code ends (requirement A5.12).
pub const HOOK: &str = include_str!("sitecustomize.py");

/// Instructions for the model.
pub const PROMPT: &str = include_str!("interpreter.md");

/// Answer of `execute_python_code` (requirement A8.03).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InterpreterAnswer {
    success: bool,
    stdout: String,
    stderr: String,
    exit_code: i32,
    files: Vec<File>,
    output_dir: String,
    runtime: String,
    execution_time_ms: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stdout_truncated: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stderr_truncated: bool,
}

/// File that a run created or changed (requirement A8.04).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct File {
    name: String,
    #[serde(rename = "type")]
    mime: String,
    path: String,
    size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
}

/// Returns the definition of the tool in this set (requirements A8.01, A8.02).
pub fn definitions(facts: &Facts) -> Vec<Definition> {
    let description = format!(
        "Execute Python code in a secure sandbox environment.\n\n\
         The sandbox has access to:\n\
         - numpy, pandas, matplotlib, scipy, seaborn, scikit-learn\n\
         - pillow, sympy\n\
         - Standard library\n\n\
         Limitations:\n\
         - No internet access\n\
         - No filesystem access outside /workspace\n\
         - {} second timeout\n\
         - {} memory limit\n\n\
         For plots, use matplotlib - figures are automatically saved to the session's\n\
         output directory (data/files/{{session_id}}/output/code/) and returned.\n\
         For data output, print to stdout or save files to /workspace/ - they will\n\
         be collected and persisted alongside other generated documents.",
        facts.timeout_seconds,
        megabytes(facts.memory_bytes)
    );
    let parameters = json!({
        "type": "object",
        "properties": {"code": {"type": "string", "description": "Python code to execute"}},
        "required": ["code"]
    });
    vec![Definition {
        name: "execute_python_code",
        description,
        parameters,
        category: Category::CodeExecution,
    }]
}

/// Validates a call and returns the code.
///
/// # Errors
/// Returns an error that names the tool if it is unknown, or the argument that is missing or invalid.
pub fn asked(tool: &str, call: &Call) -> Result<String, Error> {
    if tool != "execute_python_code" {
        return Err(crate::publish::no_tool(ToolSet::Interpreter, tool));
    }
    let code = checked_code(call.text("code")?, "code")?;
    call.only(&["code"])?;
    Ok(code)
}

/// Returns the path of a session's files as it appears in answers (requirement A8.05).
pub fn output_dir(session: &SessionId) -> String {
    format!("data/files/{session}/output/code")
}

/// Returns true if answers list files with names like this (requirement A5.08).
pub fn is_collected(name: &str) -> bool {
    const ENDINGS: [&str; 9] = ["png", "jpg", "jpeg", "svg", "csv", "json", "txt", "html", "pdf"];
    let own = [SCRIPT, STDOUT].contains(&name);
    let last = name.rsplit('/').next().unwrap_or(name);
    let ending = last.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase());
    !own && ending.is_some_and(|ending| ENDINGS.contains(&ending.as_str()))
}

impl File {
    /// Creates the entry for a stored file. For an image, `base64` holds its content.
    pub fn new(artifact: &SessionArtifact, base64: Option<String>) -> Self {
        Self {
            name: artifact.name.clone(),
            mime: artifact.mime.clone(),
            path: artifact.path.clone(),
            size: artifact.size,
            base64,
        }
    }
}

impl InterpreterAnswer {
    /// Creates the answer for code that ran. `files` are the files that the code created or changed.
    pub fn new(session: &SessionId, runtime: &str, ran: &EndedExec, files: Vec<File>) -> Self {
        let said = ran.said();
        Self {
            success: said.exit_code == 0,
            stdout: said.stdout,
            stderr: said.stderr,
            exit_code: said.exit_code,
            files,
            output_dir: output_dir(session),
            runtime: runtime.to_owned(),
            execution_time_ms: u64::try_from(ran.duration.as_millis()).unwrap_or(u64::MAX),
            stdout_truncated: said.stdout_truncated,
            stderr_truncated: said.stderr_truncated,
        }
    }

    /// Creates the answer for code that did not run, including the reason (requirement A8.07).
    pub fn failed(session: &SessionId, error: &Error) -> Self {
        let known = [
            (ErrorCode::TierUnavailable, "No container runtime available"),
            (ErrorCode::NotFound, "Sandbox image missing"),
            (ErrorCode::SandboxLost, "Sandbox died"),
            (ErrorCode::InvalidRequest, "Invalid code"),
            (ErrorCode::LimitExceeded, "Invalid code"),
            // The call was cancelled, or the session ended.
            (ErrorCode::Conflict, "Not executed"),
        ];
        let named = known.into_iter().find(|(code, _)| *code == error.code);
        let what = named.map_or("Sandbox failed", |(_, what)| what);
        Self {
            success: false,
            stdout: String::new(),
            stderr: format!("{what}: {}. {}", error.message, error.fix),
            exit_code: 1,
            files: Vec::new(),
            output_dir: output_dir(session),
            runtime: String::new(),
            execution_time_ms: 0,
            stdout_truncated: false,
            stderr_truncated: false,
        }
    }

    /// Returns true if the code succeeded.
    pub fn is_well(&self) -> bool {
        self.success
    }
}

#[cfg(test)]
mod tests {
    use api::exec::Outcome;
    use serde_json::Value;

    use super::*;

    #[test]
    fn the_tool_is_published_as_it_was_written_down() {
        // Covers requirements A8.01 and A8.02.
        let facts = Facts { timeout_seconds: 60, memory_bytes: 512 << 20 };
        let [tool] = &definitions(&facts)[..] else { panic!() };
        assert_eq!(
            tool.description,
            "Execute Python code in a secure sandbox environment.\n\nThe sandbox has access to:\n- numpy, pandas, \
             matplotlib, scipy, seaborn, scikit-learn\n- pillow, sympy\n- Standard library\n\nLimitations:\n- No internet \
             access\n- No filesystem access outside /workspace\n- 60 second timeout\n- 512MB memory limit\n\nFor plots, use \
             matplotlib - figures are automatically saved to the session's\noutput directory \
             (data/files/{session_id}/output/code/) and returned.\nFor data output, print to stdout or save files to \
             /workspace/ - they will\nbe collected and persisted alongside other generated documents."
        );
        let expected = r#"{"type":"object","properties":{"code":{"type":"string","description":"Python code to execute"}},"required":["code"]}"#;
        assert_eq!(tool.parameters, serde_json::from_str::<Value>(expected).unwrap());
    }

    #[test]
    fn files_of_these_kinds_are_told_of() {
        // Covers requirement A5.08.
        for name in ["a.png", "A.JPG", "b.jpeg", "c.SVG", "d/e.csv", "f.json", "g.txt", "h.html", "i.pdf"] {
            assert!(is_collected(name), "{name}");
        }
        for name in ["script.py", "stdout.txt", "a.pkl", "b.parquet", "noending", "c.py"] {
            assert!(!is_collected(name), "{name}");
        }
        assert!(is_collected("sub/stdout.txt"), "that is somebody else's");
    }

    #[test]
    fn an_answer_has_all_its_fields() {
        // Covers requirements A8.03, A8.04 and A8.05.
        let session = SessionId::from_random([7; 16]);
        let artifact = SessionArtifact {
            name: "figure_1.png".into(),
            path: format!("{}/figure_1.png", output_dir(&session)),
            mime: "image/png".into(),
            size: 3,
        };
        let ran = EndedExec { outcome: Outcome::Exited { code: 0 }, ..EndedExec::not_started("", 60.0, 1) };
        let files = vec![File::new(&artifact, Some("AAAA".into()))];
        let value = serde_json::to_value(InterpreterAnswer::new(&session, "podman", &ran, files)).unwrap();
        let mut keys: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(
            keys,
            [
                "execution_time_ms",
                "exit_code",
                "files",
                "output_dir",
                "runtime",
                "stderr",
                "stdout",
                "success"
            ]
        );
        assert_eq!(value["files"][0]["path"], format!("data/files/{session}/output/code/figure_1.png"));
        assert_eq!(value["output_dir"], format!("data/files/{session}/output/code"));
        assert_eq!(
            (value["success"].clone(), value["files"][0]["base64"].clone()),
            (json!(true), json!("AAAA"))
        );
    }

    #[test]
    fn what_fails_keeps_the_shape() {
        // Covers requirement A8.07.
        let session = SessionId::from_random([7; 16]);
        let error = Error {
            code: ErrorCode::TierUnavailable,
            ..Error::invalid("No backend available", "Install one.")
        };
        let failed = serde_json::to_value(InterpreterAnswer::failed(&session, &error)).unwrap();
        assert_eq!((failed["success"].clone(), failed["files"].clone()), (json!(false), json!([])));
        assert_eq!(failed["stderr"], "No container runtime available: No backend available. Install one.");
    }
}
