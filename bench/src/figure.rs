//! One figure of the report: what was measured, of whom, and what came out.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::samples::{Summary, Tally};

/// What one scenario came to.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The name of the scenario.
    pub name: String,
    /// What it is, in a sentence.
    pub about: String,
    /// What `at` of its figures counts.
    pub scale: Option<&'static str>,
    /// The load averages before it.
    pub load_before: String,
    /// And after it.
    pub load_after: String,
    /// How long it took, all targets together.
    pub took_s: f64,
    /// What came out.
    pub figures: Vec<Figure>,
}

/// One figure.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// What was measured.
    pub what: &'static str,
    /// How many at once, how many bytes, how many live: what the scenario varies.
    pub at: Option<u64>,
    /// The name of the target.
    pub target: &'static str,
    /// What came out.
    pub got: Got,
    /// Attempts that failed, by code.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub failures: BTreeMap<String, u64>,
    /// What was said at the first of each.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub said: BTreeMap<String, String>,
    /// How sandboxes were started, where the target says so.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub starts: BTreeMap<String, u64>,
}

/// What came out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Got {
    /// Times.
    Times(Summary),
    /// A number.
    Value {
        /// How much.
        value: f64,
        /// Of what.
        unit: Unit,
    },
    /// Nothing succeeded.
    Nothing,
    /// The target cannot do it.
    Unsupported,
}

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// So many a second.
    PerSecond,
    /// Bytes.
    Bytes,
}

impl Figure {
    /// The times of a number of attempts.
    pub fn times(what: &'static str, at: Option<u64>, target: &'static str, tally: &Tally) -> Self {
        let got = tally.times.summary().map_or(Got::Nothing, Got::Times);
        let (failures, said) = (tally.failures.clone(), tally.said.clone());
        Self { what, at, target, got, failures, said, starts: tally.starts.clone() }
    }

    /// A number.
    pub fn value(
        what: &'static str,
        at: Option<u64>,
        target: &'static str,
        (value, unit): (f64, Unit),
    ) -> Self {
        Self::bare(what, at, target, Got::Value { value, unit })
    }

    /// Something that a target cannot do.
    pub fn unsupported(what: &'static str, at: Option<u64>, target: &'static str) -> Self {
        Self::bare(what, at, target, Got::Unsupported)
    }

    fn bare(what: &'static str, at: Option<u64>, target: &'static str, got: Got) -> Self {
        let (failures, said, starts) = Default::default();
        Self { what, at, target, got, failures, said, starts }
    }
}

impl Got {
    /// The number by which targets are compared: the median of times.
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Times(summary) => Some(summary.p50_ms),
            Self::Value { value, .. } => Some(*value),
            Self::Nothing | Self::Unsupported => None,
        }
    }
}
