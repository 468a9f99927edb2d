//! Results of code: the third stream of an exec that runs code, as one JSON object per line ([`ResultLine`]).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::context::Loss;
use crate::error::Error;

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

#[cfg(test)]
mod tests {
    use super::*;

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
