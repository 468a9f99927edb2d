//! Running code instead of a command: requests, results and contexts.
//!
//! A run of code is an exec with a third stream: its *results*, one JSON object per line ([`ResultLine`]).
//! Each result carries its position in the other two streams. A *context* is an interpreter that keeps its
//! state between cells. Each cell is an exec.

mod context;
mod result;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::exec::{ExecSpec, OutputMode};
use crate::id::ContextId;
use crate::limits;

pub use context::{ContextInfo, ContextSpec, ContextState, Loss, Variable};
pub use result::{Bundle, Exception, Frame, Installed, ResultLine, RunResult};

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
}
