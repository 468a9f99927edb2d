//! Running code instead of a command: requests, results and contexts.
//!
//! A run of code is an exec with a third stream: its *results*, one JSON object per line ([`ResultLine`]).
//! Each result carries its position in the other two streams. A *context* is an interpreter that keeps its
//! state between cells. Each cell is an exec.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::Error;
use crate::exec::{ExecSpec, OutputMode};
use crate::id::ContextId;
use crate::limits;

/// Code to run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Code {
    /// Source code, at most 5,000,000 bytes (262,144 in a Bash context).
    pub source: String,
    /// Language. Defaults to the language of the context, or to Python without a context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<Language>,
    /// Context in which the code runs as a cell. Without a context, only files persist after the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<ContextId>,
    /// Python packages to install before the code runs, each in the format of a line of a requirements file. At most 100 entries of at most
    /// 512 bytes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requirements: Vec<String>,
    /// If the code imports a module that is not installed, try once to install it, then continue the import. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub install_missing: bool,
    /// Time limit for the installation in milliseconds. Default 120,000, maximum 300,000. The installation does not count towards the
    /// deadline of the exec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub install_ms: Option<u64>,
}

/// Programming language.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Language {
    /// Python, forked from an interpreter that has already imported the template's modules.
    #[default]
    Python,
    /// Run by `bash`.
    Bash,
    /// Run by `node`.
    Javascript,
    /// Run by `node`, which strips the types.
    Typescript,
}

/// Parameters of a new context.
// The node sends this to the guest with `PUT /contexts/{id}`. A repeated request has no effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct ContextSpec {
    /// Language of the cells: `python` (default) or `bash`.
    pub language: Language,
    /// Working directory. Default `/workspace`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Environment variables, in addition to those of the sandbox.
    pub env: BTreeMap<String, String>,
}

/// Context and its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ContextInfo {
    /// Context ID.
    pub id: ContextId,
    /// Language of the cells in this context.
    pub language: Language,
    /// Directory in which the context started.
    pub cwd: String,
    /// Current state.
    pub state: ContextState,
    /// Number of cells started, including cells before a restart.
    pub cells: u64,
    /// Number of queued cells.
    pub waiting: u32,
    /// Number of times the state of the context was lost or discarded.
    pub restarts: u32,
    /// Reason for the last loss of state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<Loss>,
}

/// State of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ContextState {
    /// Waiting for a cell.
    Idle,
    /// Running a cell.
    Busy,
    /// Its process has ended and its variables are gone. The next cell runs in a new process and reports `restarted`.
    Lost,
}

/// Reason why the state of a context is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// Its process exited or crashed.
    Ended,
    /// A cell ignored its interrupt and was killed.
    Killed,
    /// The sandbox ran out of memory.
    Oom,
    /// A client restarted the context.
    Restarted,
}

/// Variable of a context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Variable {
    /// Variable name.
    pub name: String,
    /// Type of the variable, such as `pandas.DataFrame`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Dimensions, if the variable has any.
    #[serde(default)]
    pub shape: Option<Vec<u64>>,
    /// Approximate size in bytes.
    #[serde(default)]
    pub size: Option<u64>,
    /// First characters of the variable's printed form.
    pub preview: String,
}

/// Result of code and its position in the output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ResultLine {
    /// Bytes of standard output written before this result.
    pub stdout: u64,
    /// Bytes of standard error written before this result.
    pub stderr: u64,
    /// Result.
    pub result: RunResult,
}

/// Result that code shows in addition to its output, or a report about the run of the code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RunResult {
    /// Value of the last expression.
    Value(Bundle),
    /// Object passed to `display`, or a figure that was still open at the end of the run.
    Display(Bundle),
    /// Request to clear the results shown so far.
    Clear {
        /// Clear only when the next result arrives. Default false.
        #[serde(default)]
        wait: bool,
    },
    /// Uncaught exception.
    Error(Exception),
    /// Packages that were installed because the code imports them.
    Installed {
        /// Installed packages.
        packages: Vec<Installed>,
    },
    /// Package that could not be installed.
    NotInstalled {
        /// Module that the code imports.
        module: String,
        /// Package that the installer tried.
        package: String,
        /// Message of the installer.
        why: String,
    },
    /// The run used a new interpreter instead of a fork of the preloaded interpreter.
    Plain {
        /// Preloaded modules of which the sandbox has its own versions.
        shadowed: Vec<String>,
    },
    /// The context was restarted before this cell. Variables of earlier cells are gone.
    Restarted {
        /// Reason.
        because: Loss,
    },
    /// Output written between two cells, by code that an earlier cell left running.
    Late {
        /// Text written to standard output.
        stdout: String,
        /// Text written to standard error.
        stderr: String,
    },
    /// Result that was not kept because it is too large or cannot be read.
    Omitted {
        /// Size in bytes.
        bytes: u64,
        /// MIME types of the result, as far as known.
        #[serde(default)]
        types: Vec<String>,
    },
    /// The cell could not start.
    Refused {
        /// Reason.
        error: Error,
    },
}

/// Result in one or more representations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Bundle {
    /// Representations of the result by MIME type. Each is text or JSON; binary data is encoded as base64.
    pub data: BTreeMap<String, Value>,
    /// Metadata of the representations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, Value>,
    /// Display ID, by which a later result can replace this result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// True if this result replaces an earlier result with the same `id`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub update: bool,
    /// File name for saving the result, such as `figure_1.png`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Data of the chart that the result shows: type, title, axes, units and elements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chart: Option<Value>,
}

/// Uncaught exception.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Exception {
    /// Type of the exception, such as `ValueError`.
    pub name: String,
    /// Message.
    pub message: String,
    /// Stack frames, outermost first. Line numbers refer to the code as it was sent.
    pub frames: Vec<Frame>,
    /// Complete traceback, as Python prints it.
    pub text: String,
}

/// Stack frame of a traceback.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Frame {
    /// File name. Code that a client sent has a name such as `<code>` or `<cell 3>`.
    pub file: String,
    /// Line number, from 1.
    pub line: u64,
    /// Function name.
    pub function: String,
    /// Source text of the line.
    pub source: String,
}

/// Package that was installed because the code imports one of its modules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Installed {
    /// Module that the code imports.
    pub module: String,
    /// Installed package.
    pub package: String,
}

/// Configuration of a sandbox's interpreter. The node sends it to the guest before the first code runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InterpreterSpec {
    /// Modules that the interpreter imports in advance.
    pub imports: Vec<String>,
    /// Environment variables: the template's variables, and the thread limits of native libraries.
    pub env: BTreeMap<String, String>,
}

/// State of the interpreter that a guest has started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterpreterInfo {
    /// Python version.
    pub python: String,
    /// Top-level modules that are loaded and are not part of the standard library.
    pub modules: Vec<String>,
    /// Modules that could not be imported.
    pub failed: Vec<FailedImport>,
    /// First module that started a thread, if any. A process with threads cannot be forked safely.
    pub threaded_by: Option<String>,
    /// Duration of the imports, in milliseconds.
    pub import_ms: u64,
}

/// Module that could not be imported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedImport {
    /// Module name.
    pub module: String,
    /// Error message of the import.
    pub error: String,
}

impl Language {
    /// Returns the name that the wire protocol uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Bash => "bash",
            Self::Javascript => "javascript",
            Self::Typescript => "typescript",
        }
    }
}

impl Code {
    /// Checks the code before anything starts, and rejects fields that cannot be combined with code
    /// (requirement A3.07). The error names the invalid field.
    pub(crate) fn check(&self, spec: &ExecSpec) -> Result<(), Error> {
        if self.source.trim().is_empty() {
            return Err(Error::invalid("code.source is empty", "Send the code to run."));
        }
        if self.source.len() > limits::CODE_BYTES_MAX {
            let bytes = self.source.len() as u64;
            return Err(limits::exceeded(
                "the length of code.source in bytes",
                bytes,
                limits::CODE_BYTES_MAX as u64,
            ));
        }
        let not_with_code = [
            ("argv", !spec.argv.is_empty()),
            ("stdin", spec.stdin),
            ("terminal", spec.terminal.is_some()),
            ("uid", spec.uid.is_some() && self.context.is_some()),
            ("cwd", spec.cwd.is_some() && self.context.is_some()),
            // The context's interpreter also serves other cells, so it must not block to wait for a reader.
            ("output mode `block`", spec.output == OutputMode::Block && self.context.is_some()),
        ];
        if let Some((name, _)) = not_with_code.into_iter().find(|(_, is_there)| *is_there) {
            let (message, fix) = match name {
                "uid" | "cwd" | "output mode `block`" => (
                    format!("a cell in a context cannot set {name}"),
                    "Run the code without a context. The working directory of a context is set when the context is created.",
                ),
                _ => (format!("code and {name} cannot be combined"), "Send either code or the other field."),
            };
            return Err(Error::invalid(message, fix));
        }
        self.check_packages()
    }

    fn check_packages(&self) -> Result<(), Error> {
        let wanted = !self.requirements.is_empty() || self.install_missing;
        if wanted && self.language.is_some_and(|language| language != Language::Python) {
            return Err(Error::invalid(
                "requirements and install_missing are supported only for Python",
                "Install packages for other languages with a command.",
            ));
        }
        if self.requirements.len() > limits::REQUIREMENTS_MAX {
            let count = self.requirements.len() as u64;
            return Err(limits::exceeded(
                "the number of requirements",
                count,
                limits::REQUIREMENTS_MAX as u64,
            ));
        }
        for entry in &self.requirements {
            if entry.trim().is_empty()
                || entry.len() > limits::REQUIREMENT_BYTES_MAX
                || entry.contains(['\n', '\r', '\0'])
            {
                return Err(Error::invalid(
                    format!("{entry:?} is not a valid requirement"),
                    "Name one package per entry, such as \"numpy==2.1.0\".",
                ));
            }
        }
        match self.install_ms {
            Some(0) => {
                Err(Error::invalid("install_ms is 0", "Set install_ms to at least 1, or omit install_ms."))
            }
            Some(ms) if ms > limits::INSTALL_MS_MAX => {
                Err(limits::exceeded("install_ms", ms, limits::INSTALL_MS_MAX))
            }
            _ => Ok(()),
        }
    }
}

impl ContextSpec {
    /// Checks the parameters of a context.
    ///
    /// # Errors
    /// Returns an error if a field is invalid. The error names the first invalid field.
    pub fn check(&self) -> Result<(), Error> {
        if !matches!(self.language, Language::Python | Language::Bash) {
            return Err(Error::invalid(
                format!("contexts do not support {}", self.language.name()),
                "Use python or bash, or run the code without a context.",
            ));
        }
        // The directory and the variables must follow the same rules as in a command.
        let (cwd, env) = (self.cwd.clone(), self.env.clone());
        ExecSpec { argv: vec!["true".into()], cwd, env, ..ExecSpec::default() }.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(code: Code) -> ExecSpec {
        ExecSpec { code: Some(code), ..ExecSpec::default() }
    }

    #[test]
    fn code_is_checked_before_anything_is_started() {
        // Covers requirement A3.07.
        let good = Code { source: "print(1)".into(), ..Code::default() };
        assert_eq!(with(good.clone()).check(), Ok(()));
        for (bad, names) in [
            (Code { source: " \n".into(), ..good.clone() }, "empty"),
            (Code { source: "x".repeat(limits::CODE_BYTES_MAX + 1), ..good.clone() }, "code.source"),
            (Code { requirements: vec!["a\nb".into()], ..good.clone() }, "requirement"),
            (Code { language: Some(Language::Bash), install_missing: true, ..good.clone() }, "Python"),
            (Code { install_ms: Some(limits::INSTALL_MS_MAX + 1), ..good.clone() }, "install_ms"),
        ] {
            let error = with(bad).check().unwrap_err();
            assert!(error.message.contains(names), "{}", error.message);
        }
        let both = ExecSpec { argv: vec!["true".into()], ..with(good.clone()) };
        assert!(both.check().unwrap_err().message.contains("argv"));
        let cell = Code { context: Some("c1".parse().unwrap()), ..good };
        let placed = ExecSpec { cwd: Some("/".into()), ..with(cell) };
        assert!(placed.check().unwrap_err().message.contains("cwd"));
    }

    #[test]
    fn results_are_told_apart_by_their_kind() {
        let text =
            r#"{"stdout":3,"stderr":0,"result":{"kind":"value","data":{"text/plain":"42"},"metadata":{}}}"#;
        let line: ResultLine = serde_json::from_str(text).unwrap();
        let RunResult::Value(bundle) = &line.result else { panic!("{line:?}") };
        assert_eq!(bundle.data["text/plain"], "42");
        let error = r#"{"kind":"error","name":"E","message":"m","frames":[],"text":"t"}"#;
        assert!(matches!(serde_json::from_str(error).unwrap(), RunResult::Error(_)));
    }
}
