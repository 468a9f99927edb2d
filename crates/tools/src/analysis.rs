//! The tool set `analysis`: commands and files for analysing datasets (requirement A6).

use api::Error;
use api::limits;
use api::session::{TIMEOUT_SECONDS, TIMEOUT_SECONDS_MAX, ToolSet};
use serde::Serialize;
use serde_json::json;

use crate::call::{Call, missing, wrong};
use crate::publish::{Category, Definition};
use crate::ran::EndedExec;

/// Directory to which code saves its output files.
pub const OUTPUT: &str = "/tmp/output";
/// Maximum number of files that one answer lists (requirement A5.04).
pub const FILES_MAX: usize = 20;
/// Size in bytes that `content` must stay below (requirement A6.11).
pub const CONTENT_BYTES_MAX: usize = 5 << 20;
/// Error for a path outside the two permitted directories (requirement A6.10).
const INVALID_PATH: &str = "Invalid path: must be /tmp/* or /workspace/*";

/// Instructions for the model (requirement A6.17).
pub const PROMPT: &str = include_str!("analysis.md");

/// Validated call of a tool in this set.
#[derive(Clone, Debug, PartialEq)]
pub enum AnalysisCall {
    /// `sandbox_exec`.
    Exec(ExecCall),
    /// `sandbox_write_file`.
    Write {
        /// File to write.
        file: File,
        /// New content of the file.
        content: String,
    },
    /// `sandbox_edit_file`.
    Edit {
        /// File to edit.
        file: File,
        /// Text to replace. It must occur exactly once.
        old_string: String,
        /// Replacement text.
        new_string: String,
    },
}

/// File below one of the two permitted directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Path as given in the call.
    pub given: String,
    /// Normalized path, without `.` and `..`.
    pub place: String,
}

/// Command to run.
#[derive(Clone, Debug, PartialEq)]
pub struct ExecCall {
    /// Program and its arguments.
    pub command: Vec<String>,
    /// Timeout in seconds, if the call sets one.
    pub timeout: Option<f64>,
}

/// Answer of a file tool that refuses a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileToolRefusal {
    success: bool,
    error: String,
    file_path: String,
    hint: String,
}

/// Answer of `sandbox_exec` (requirements A6.04, A6.15).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExecAnswer {
    exit_code: i32,
    stdout: String,
    stderr: String,
    stdout_truncated: bool,
    stderr_truncated: bool,
    output_files: Vec<String>,
    total_output_files: u64,
    execution_time: f64,
    hint: String,
}

/// Answer of `sandbox_write_file` (requirement A6.09).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WriteAnswer {
    success: bool,
    file_path: String,
    bytes_written: u64,
    hint: &'static str,
}

/// Answer of `sandbox_edit_file` (requirement A6.12).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EditAnswer {
    success: bool,
    file_path: String,
    hint: &'static str,
}

/// Returns the definitions of the tools in this set.
pub fn definitions() -> Vec<Definition> {
    let path = "Path of the file, below /tmp/ or /workspace/";
    vec![
        Definition {
            name: "sandbox_exec",
            description: format!(
                "Execute a command in the isolated sandbox of this session. The command is run directly, without a shell. \
                 Datasets are at /tmp/data/{{dataset_name}}.csv; save results to /tmp/output/. Files can be read with Unix \
                 commands such as cat, head, tail, grep, ls, wc and find. There is no network. Standard output and standard \
                 error are cut at 10KB, which is flagged. Timeout: {TIMEOUT_SECONDS}s (adjustable to {TIMEOUT_SECONDS_MAX}s max)."
            ),
            parameters: json!({
                "type": "object",
                "properties": {
                    "command": {
                        "type": "array",
                        "items": {"type": "string"},
                        "description": "Program and arguments, for example [\"python\", \"/tmp/analysis.py\"]"
                    },
                    "timeout": {
                        "type": "integer",
                        "minimum": 1,
                        "maximum": TIMEOUT_SECONDS_MAX,
                        "default": TIMEOUT_SECONDS,
                        "description": "Seconds the command may run"
                    }
                },
                "required": ["command"]
            }),
            category: Category::CodeExecution,
        },
        Definition {
            name: "sandbox_write_file",
            description: "Create or overwrite a file in the sandbox. Paths must be /tmp/* or /workspace/*; \
                          content must be smaller than 5MB."
                .into(),
            parameters: json!({
                "type": "object",
                "properties": {
                    "file_path": {"type": "string", "description": path},
                    "content": {"type": "string", "description": "The whole content of the file"}
                },
                "required": ["file_path", "content"]
            }),
            category: Category::FileManagement,
        },
        Definition {
            name: "sandbox_edit_file",
            description:
                "Modify an existing file in the sandbox by exact string replacement. old_string must occur \
                          exactly once, spaces and newlines included."
                    .into(),
            parameters: json!({
                "type": "object",
                "properties": {
                    "file_path": {"type": "string", "description": path},
                    "old_string": {"type": "string", "description": "The text to replace, exactly as it stands in the file"},
                    "new_string": {"type": "string", "description": "The text to put in its place"}
                },
                "required": ["file_path", "old_string", "new_string"]
            }),
            category: Category::FileManagement,
        },
    ]
}

/// Validates a call. A file tool may refuse a call with its own answer, before a sandbox is involved.
///
/// # Errors
/// Returns an error that names the tool if it is unknown, or the argument that is missing or invalid.
pub fn asked(tool: &str, call: &Call) -> Result<Result<AnalysisCall, FileToolRefusal>, Error> {
    match tool {
        "sandbox_exec" => {
            let command = call.texts("command")?.ok_or_else(|| missing("command"))?;
            call.only(&["command", "timeout"])?;
            if command.first().is_none_or(String::is_empty) {
                return Err(wrong("`command` is empty", "Give the program as the first element."));
            }
            let bytes: usize = command.iter().map(|word| word.len() + 1).sum();
            let long = command.iter().any(|word| word.len() > limits::WORD_BYTES_MAX);
            if long || bytes > limits::ARGV_ENV_BYTES_MAX || command.iter().any(|word| word.contains('\0')) {
                return Err(wrong(
                    "`command` is too long, or holds a NUL byte",
                    "Write a file with sandbox_write_file and name it in the command.",
                ));
            }
            let timeout = call.seconds("timeout", TIMEOUT_SECONDS_MAX)?;
            Ok(Ok(AnalysisCall::Exec(ExecCall { command, timeout })))
        }
        "sandbox_write_file" => {
            let (file_path, content) = (call.text("file_path")?, call.text("content")?);
            call.only(&["file_path", "content"])?;
            let Some(place) = placed(file_path) else { return Ok(Err(FileToolRefusal::path(file_path))) };
            if content.len() >= CONTENT_BYTES_MAX {
                return Ok(Err(FileToolRefusal::too_large(file_path, content.len())));
            }
            let file = File { given: file_path.to_owned(), place };
            Ok(Ok(AnalysisCall::Write { file, content: content.to_owned() }))
        }
        "sandbox_edit_file" => {
            let file_path = call.text("file_path")?;
            let (old, new) = (call.text("old_string")?, call.text("new_string")?);
            call.only(&["file_path", "old_string", "new_string"])?;
            let Some(place) = placed(file_path) else { return Ok(Err(FileToolRefusal::path(file_path))) };
            if old.is_empty() {
                return Ok(Err(FileToolRefusal::empty(file_path)));
            }
            let file = File { given: file_path.to_owned(), place };
            Ok(Ok(AnalysisCall::Edit { file, old_string: old.into(), new_string: new.into() }))
        }
        other => Err(crate::publish::no_tool(ToolSet::Analysis, other)),
    }
}

impl FileToolRefusal {
    /// Returns the refusal for a path outside the permitted directories (requirement A6.10).
    pub fn path(file_path: &str) -> Self {
        Self::new(INVALID_PATH.into(), file_path, "Invalid path. Use /tmp/ or /workspace/ only.")
    }

    /// Returns the refusal for content that is too large (requirement A6.11).
    fn too_large(file_path: &str, bytes: usize) -> Self {
        let error = format!("Content too large: {bytes} bytes (limit 5MB)");
        Self::new(error, file_path, "Content too large. Write less, or create the data with a script.")
    }

    /// Returns the refusal for an edit without text to replace (requirement A6.14).
    fn empty(file_path: &str) -> Self {
        let hint = "Edit failed - old_string is empty. Give the text to replace.";
        Self::new("old_string is empty".into(), file_path, hint)
    }

    /// Returns the refusal for an edit whose text occurs `count` times: more than once (requirement A6.13) or
    /// not at all (requirement A6.14).
    pub fn occurrences(file_path: &str, count: usize) -> Self {
        match count {
            0 => Self::new(
                "old_string not found".into(),
                file_path,
                "Edit failed - old_string not found. Read file first with sandbox_exec.",
            ),
            count => Self::new(
                format!("old_string found {count} times - not unique. Include more context."),
                file_path,
                "Edit failed - old_string not unique. Include more surrounding context.",
            ),
        }
    }

    /// Returns the refusal for an edit of a file that is not text (requirement A6.14).
    pub fn not_text(file_path: &str) -> Self {
        let hint = "Edit failed - the file is not text. Rewrite it with sandbox_write_file or with a script.";
        Self::new("File is not UTF-8 text".into(), file_path, hint)
    }

    /// Returns the refusal for an edit of a file that does not exist (requirement A6.14).
    pub fn no_file(file_path: &str) -> Self {
        let hint = "Edit failed - file not found. Create it with sandbox_write_file.";
        Self::new("File not found".into(), file_path, hint)
    }

    /// Returns the refusal for any other error from the sandbox.
    pub fn said(file_path: &str, error: &Error) -> Self {
        Self::new(error.message.clone(), file_path, &error.fix)
    }

    fn new(error: String, file_path: &str, hint: &str) -> Self {
        Self { success: false, error, file_path: file_path.into(), hint: hint.into() }
    }
}

impl ExecAnswer {
    /// Creates the answer for a command that ran. `files` are the names of all files below the output
    /// directory, in order.
    pub fn new(ran: &EndedExec, files: &[String]) -> Self {
        let said = ran.said();
        let total = files.len() as u64;
        let hint = match (said.exit_code, total) {
            // Requirement A6.06 specifies this text.
            (0, 1..) => format!(
                "Code executed successfully. {total} output files created. Consider using 'complete' to present results."
            ),
            // Requirement A6.07 specifies this text.
            (0, 0) => "Code executed but no outputs in /tmp/output/. Verify script saves results.".into(),
            // Requirement A6.08 specifies this text.
            (_, _) => "Execution failed. Review stderr and use sandbox_edit_file to fix errors.".into(),
        };
        Self {
            exit_code: said.exit_code,
            stdout: said.stdout,
            stderr: said.stderr,
            stdout_truncated: said.stdout_truncated,
            stderr_truncated: said.stderr_truncated,
            output_files: files.iter().take(FILES_MAX).cloned().collect(),
            total_output_files: total,
            // Milliseconds are precise enough.
            execution_time: (ran.duration.as_secs_f64() * 1000.0).round() / 1000.0,
            hint,
        }
    }
}

impl WriteAnswer {
    /// Creates the answer for a successful write.
    pub fn new(file_path: &str, bytes_written: u64) -> Self {
        let hint = "File written successfully. Use sandbox_exec to run it.";
        Self { success: true, file_path: file_path.into(), bytes_written, hint }
    }
}

impl EditAnswer {
    /// Creates the answer for a successful edit.
    pub fn new(file_path: &str) -> Self {
        let hint = "File edited successfully. Re-run with sandbox_exec.";
        Self { success: true, file_path: file_path.into(), hint }
    }
}

/// Normalizes a path below one of the two permitted directories. Returns `None` for any other path
/// (requirement A2.12).
fn placed(path: &str) -> Option<String> {
    if !path.starts_with('/') || path.contains('\0') || path.ends_with('/') {
        return None;
    }
    let mut names: Vec<&str> = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => {
                names.pop()?;
            }
            name => names.push(name),
        }
    }
    let plain = format!("/{}", names.join("/"));
    is_placed(&plain).then_some(plain)
}

/// Returns true if a normalized path is below one of the two permitted directories.
pub fn is_placed(plain: &str) -> bool {
    ["/tmp/", "/workspace/"].iter().any(|place| plain.len() > place.len() && plain.starts_with(place))
}

/// Returns true if a file with this name is kept as an artifact. Text files and images are kept. All other
/// files remain in the sandbox only (requirement A5.05).
pub fn is_kept(name: &str) -> bool {
    const TEXTS: [&str; 12] =
        ["csv", "tsv", "json", "jsonl", "ndjson", "txt", "log", "md", "html", "xml", "yaml", "yml"];
    is_picture(name) || ending(name).is_some_and(|ending| TEXTS.contains(&ending.as_str()))
}

/// Returns true if a file with this name is an image that clients display (requirement A5.06).
pub fn is_picture(name: &str) -> bool {
    ending(name).is_some_and(|ending| ["png", "jpg", "jpeg", "svg"].contains(&ending.as_str()))
}

fn ending(name: &str) -> Option<String> {
    let name = name.rsplit('/').next().unwrap_or(name);
    name.rsplit_once('.')
        .filter(|(before, _)| !before.is_empty())
        .map(|(_, ending)| ending.to_ascii_lowercase())
}

#[cfg(test)]
mod tests;
