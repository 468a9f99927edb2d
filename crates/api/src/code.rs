//! Running code instead of a command: what is asked for, what it shows besides its output, and interpreters that stay.
//!
//! A run of code is an exec like any other, with a third stream: its *results*, one JSON object a line ([`ResultLine`]),
//! in order with what was written to the other two. A *context* is an interpreter that stays; its cells are execs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::Error;
use crate::exec::{ExecSpec, OutputMode};
use crate::id::ContextId;
use crate::limits;

/// Code to run (A3.07).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Code {
    /// The code, at most [`limits::CODE_BYTES_MAX`] bytes.
    pub source: String,
    /// What it is written in; that of the context, or Python, if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<Language>,
    /// The context it is a cell of. Without one nothing of it stays but files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<ContextId>,
    /// Python packages that are installed first, as lines of a requirements file (A4.01).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requirements: Vec<String>,
    /// Whether a module that the code imports and that is missing is installed, once, and the import goes on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub install_missing: bool,
    /// How long the installation may take; [`limits::INSTALL_MS`] if nothing is said (A4.07). It does not count as time of the code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub install_ms: Option<u64>,
}

/// What code is written in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Language {
    /// Forked from an interpreter that has the template's imports done.
    #[default]
    Python,
    /// Run by `bash`.
    Bash,
    /// Run by `node`.
    Javascript,
    /// Run by `node`, without its types.
    Typescript,
}

/// A request for a context. Sent with `PUT /contexts/{id}` to a guest; the same again changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct ContextSpec {
    /// Python or Bash.
    pub language: Language,
    /// The directory to start in; `/workspace` if none is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Variables added to the sandbox's own few.
    pub env: BTreeMap<String, String>,
}

/// A context and how it is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ContextInfo {
    /// Its name.
    pub id: ContextId,
    /// What its cells are written in.
    pub language: Language,
    /// The directory it started in.
    pub cwd: String,
    /// What it does.
    pub state: ContextState,
    /// Cells that have begun in it, those before a restart included.
    pub cells: u64,
    /// Cells that wait for their turn.
    pub waiting: u32,
    /// How often its state was lost or given up.
    pub restarts: u32,
    /// Why that was, the last time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<Loss>,
}

/// What a context does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ContextState {
    /// It waits for a cell.
    Idle,
    /// It runs one.
    Busy,
    /// Its process has ended, and its variables with it. The next cell begins in a new one, and says so.
    Lost,
}

/// Why the state of a context is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// Its process ended: the code ended it, or it crashed.
    Ended,
    /// A cell did not heed its interruption and was killed.
    Killed,
    /// The memory of the sandbox was used up.
    Oom,
    /// Somebody asked for a new beginning.
    Restarted,
}

/// A variable of a context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Its type, such as `pandas.DataFrame`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its dimensions, where it has some.
    #[serde(default)]
    pub shape: Option<Vec<u64>>,
    /// About how many bytes it takes.
    #[serde(default)]
    pub size: Option<u64>,
    /// The beginning of how it is shown.
    pub preview: String,
}

/// One line of an exec's third stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ResultLine {
    /// Bytes of standard output that were written before it.
    pub stdout: u64,
    /// Bytes of standard error that were written before it.
    pub stderr: u64,
    /// What is shown.
    pub result: RunResult,
}

/// Something that code shows besides what it writes, or that is said about its run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RunResult {
    /// The value of the last expression.
    Value(Bundle),
    /// What `display` was called with, or a figure that was open at the end.
    Display(Bundle),
    /// What was shown so far is to be cleared.
    Clear {
        /// Only when the next thing is shown.
        #[serde(default)]
        wait: bool,
    },
    /// An exception that nobody caught.
    Error(Exception),
    /// Packages that were installed because the code imports them.
    Installed {
        /// Which.
        packages: Vec<Installed>,
    },
    /// A package that could not be installed.
    NotInstalled {
        /// The module that was imported.
        module: String,
        /// The package that was tried.
        package: String,
        /// What the installer said.
        why: String,
    },
    /// The run was not forked from the warmed interpreter: a plain one was started.
    Plain {
        /// Modules imported ahead that the sandbox has others of.
        shadowed: Vec<String>,
    },
    /// The context began anew before this cell: variables of earlier cells are gone.
    Restarted {
        /// Why.
        because: Loss,
    },
    /// Written between two cells, by what an earlier one left running.
    Late {
        /// To standard output.
        stdout: String,
        /// To standard error.
        stderr: String,
    },
    /// Something was shown that is too large to be kept, or cannot be read.
    Omitted {
        /// Its size.
        bytes: u64,
        /// What it was, as far as is known.
        #[serde(default)]
        types: Vec<String>,
    },
    /// The cell could not begin.
    Refused {
        /// Why.
        error: Error,
    },
}

/// One thing in several representations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Bundle {
    /// By MIME type: text, or JSON; bytes are in base64.
    pub data: BTreeMap<String, Value>,
    /// What is said about them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, Value>,
    /// Its name among displays, by which it can be updated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Whether it takes the place of the display of that name.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub update: bool,
    /// The name under which it would be kept as a file: `figure_1.png`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What is drawn, as data: type, title, axes, units, elements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chart: Option<Value>,
}

/// An exception that nobody caught.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Exception {
    /// Its type: `ValueError`.
    pub name: String,
    /// What it says.
    pub message: String,
    /// Where it came from, the outermost first. Lines are those of the code as it was sent.
    pub frames: Vec<Frame>,
    /// All of it as Python prints it.
    pub text: String,
}

/// One frame of a traceback.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Frame {
    /// The file; `<code>` or `<cell 3>` for code that was sent.
    pub file: String,
    /// The line in it, from 1.
    pub line: u64,
    /// The function.
    pub function: String,
    /// The text of that line.
    pub source: String,
}

/// A package that was installed because the code imports a module of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Installed {
    /// The module.
    pub module: String,
    /// The package.
    pub package: String,
}

/// What the interpreter of a sandbox begins with. Said by the node to a guest, before the first code.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InterpreterSpec {
    /// Modules that are imported ahead.
    pub imports: Vec<String>,
    /// The template's variables, and how many threads native libraries are to have.
    pub env: BTreeMap<String, String>,
}

/// What a guest says about the interpreter it has started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterpreterInfo {
    /// The version of Python.
    pub python: String,
    /// Top-level modules that are loaded and not of the standard library.
    pub modules: Vec<String>,
    /// Modules that could not be imported.
    pub failed: Vec<FailedImport>,
    /// The first module that started a thread: a process with threads cannot be forked.
    pub threaded_by: Option<String>,
    /// How long the imports took.
    pub import_ms: u64,
}

/// A module that could not be imported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedImport {
    /// Which.
    pub module: String,
    /// Why.
    pub error: String,
}

impl Language {
    /// Its name.
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
    /// Refuses what cannot be run, by name, before anything is started (A3.07).
    pub(crate) fn check(&self, spec: &ExecSpec) -> Result<(), Error> {
        if self.source.trim().is_empty() {
            return Err(Error::invalid("code.source is empty", "Send the code to run."));
        }
        if self.source.len() > limits::CODE_BYTES_MAX {
            let bytes = self.source.len() as u64;
            return Err(limits::exceeded("code.source, in bytes", bytes, limits::CODE_BYTES_MAX as u64));
        }
        let not_with_code = [
            ("argv", !spec.argv.is_empty()),
            ("stdin", spec.stdin),
            ("terminal", spec.terminal.is_some()),
            ("uid", spec.uid.is_some() && self.context.is_some()),
            ("cwd", spec.cwd.is_some() && self.context.is_some()),
            // Its context has others to serve, and cannot wait for a reader.
            ("output mode `block`", spec.output == OutputMode::Block && self.context.is_some()),
        ];
        if let Some((name, _)) = not_with_code.into_iter().find(|(_, is_there)| *is_there) {
            let (message, fix) = match name {
                "uid" | "cwd" | "output mode `block`" => (
                    format!("a cell has no {name} of its own"),
                    "Give it to the context when it is created, or run without one.",
                ),
                _ => (format!("code and {name} exclude each other"), "Send one of them."),
            };
            return Err(Error::invalid(message, fix));
        }
        self.check_packages()
    }

    fn check_packages(&self) -> Result<(), Error> {
        let wanted = !self.requirements.is_empty() || self.install_missing;
        if wanted && self.language.is_some_and(|language| language != Language::Python) {
            return Err(Error::invalid(
                "requirements and install_missing are for Python",
                "Install what other languages need by a command.",
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
                    format!("{entry:?} is no requirement"),
                    "Name one package a line, such as \"numpy==2.1.0\".",
                ));
            }
        }
        match self.install_ms {
            Some(0) => Err(Error::invalid("install_ms is 0", "Give at least 1 ms, or leave it out.")),
            Some(ms) if ms > limits::INSTALL_MS_MAX => {
                Err(limits::exceeded("install_ms", ms, limits::INSTALL_MS_MAX))
            }
            _ => Ok(()),
        }
    }
}

impl ContextSpec {
    /// Refuses what cannot be a context, by name.
    ///
    /// # Errors
    /// The first thing wrong with the request.
    pub fn check(&self) -> Result<(), Error> {
        if !matches!(self.language, Language::Python | Language::Bash) {
            return Err(Error::invalid(
                format!("there are no contexts of {}", self.language.name()),
                "Use python or bash, or run the code without a context.",
            ));
        }
        // The same rules as for a command.
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
        // A3.07
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
