//! Traces: the steps of a create, exec or stop request, with their durations.
//!
//! **How to record a step.** A step is a `tracing` span with the target [`STEP`] and the level `INFO`. Its
//! name is a short description of one or two words (`disk`, `dial`, `first byte`). Its parent is the span
//! that is current at its creation, so code that spawns a task or switches to another thread must carry the
//! current span along. If one name is used for several operations, the field `what` distinguishes them.
//!
//! A span with the field `sandbox` (and `exec`, if the span is about an exec) starts a new *trace*. Both
//! fields may be empty at first and be recorded once they are known. A step outside of such a span does not
//! belong to a request and is discarded.
//!
//! ```text
//! let root = info_span!(target: STEP, "stop", sandbox = tracing::field::Empty, exec = tracing::field::Empty);
//! dialled.instrument(info_span!(target: STEP, "dial")).await?;
//! info_span!(target: STEP, "disk").in_scope(|| disk::make(…))?;
//! ```
//!
//! A trace ends when its span and all spans below it are dropped. A task that lives as long as the sandbox
//! must therefore not hold any of these spans.

use serde::{Deserialize, Serialize};

use crate::ExecId;

/// Target of all spans that are steps.
pub const STEP: &str = "bellglass::step";

/// Steps of one request that acted on a sandbox, in order of their start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Trace {
    /// Exec that the request was about, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<ExecId>,
    /// Start time, Unix time in milliseconds.
    pub at_ms: u64,
    /// Steps. The first step covers the whole request and is named after the request: `create`, `exec` or `stop`.
    pub steps: Vec<Step>,
    /// Number of steps that were dropped because the request had too many steps.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u32,
}

/// Step of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Step {
    /// Name of the step.
    pub name: String,
    /// Object that the step acts on, if the name alone is not sufficient.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub what: Option<String>,
    /// Index of the parent step. Absent only for the first step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<u32>,
    /// Start time in microseconds after the first step.
    pub begun_us: u64,
    /// Duration in microseconds. Absent while the step is in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_us: Option<u64>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde requires a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}
