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
pub const STEP: &str = "belljar::step";

/// What became of one request that acted on a sandbox: its steps, in the order in which they began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Trace {
    /// The exec that it was about, if it was about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<ExecId>,
    /// When it began, in milliseconds since 1970.
    pub at_ms: u64,
    /// The steps. The first is the whole, and named for what was done: `create`, `exec`, `stop`.
    pub steps: Vec<Step>,
    /// Steps that were not kept, because there were too many.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u32,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Step {
    /// What was done.
    pub name: String,
    /// Of what, where the name does not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub what: Option<String>,
    /// The place among the steps of the one that this is a part of; only the first has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<u32>,
    /// When it began, in microseconds after the first.
    pub begun_us: u64,
    /// How long it took, in microseconds; absent while it goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_us: Option<u64>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}
