//! Where the time of a create, an exec or a stop went: its steps.
//!
//! **How a step is told.** A step is a `tracing` span of the target [`STEP`], of level `INFO`, with a short name of one or two words
//! that say what is done (`disk`, `dial`, `first byte`). Its parent is the span that is current when it is made, so whoever spawns a
//! task or goes to another thread takes the current span along. Where one name stands for several things, the field `what` says which.
//!
//! A span that has the field `sandbox` (and `exec`, of an exec) begins a *trace* of its own; both may be empty at first and be recorded
//! on it when they are known. A step below no such span belongs to nobody's request, and is not kept.
//!
//! ```text
//! let root = info_span!(target: STEP, "stop", sandbox = tracing::field::Empty, exec = tracing::field::Empty);
//! dialled.instrument(info_span!(target: STEP, "dial")).await?;
//! info_span!(target: STEP, "disk").in_scope(|| disk::make(…))?;
//! ```
//!
//! A trace lasts as long as anybody holds its span or one below it: what is spawned to live on with the sandbox is not to hold one.

use serde::{Deserialize, Serialize};

use crate::ExecId;

/// The target of every span that is a step.
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
