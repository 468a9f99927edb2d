//! Contexts: interpreters that keep their state between cells.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Language;
use crate::error::Error;
use crate::exec::ExecSpec;
use crate::id::ContextId;

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
