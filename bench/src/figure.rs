//! Figures of the report: each has a measurement, its target and the result.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::samples::{AttemptTally, Summary};

/// Results of one scenario.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Name of the scenario.
    pub name: String,
    /// Description of the scenario, in one sentence.
    pub about: String,
    /// Unit or meaning of the `at` field in the figures.
    pub scale: Option<&'static str>,
    /// Load averages before the scenario.
    pub load_before: String,
    /// Load averages after the scenario.
    pub load_after: String,
    /// Duration of the scenario in seconds, for all targets together.
    pub took_s: f64,
    /// Figures that the scenario measured.
    pub figures: Vec<Figure>,
}

/// Result of one measurement on one target, as the report shows it.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// Name of the measurement.
    pub what: &'static str,
    /// Value of the parameter that the scenario varies: concurrency, bytes or live sandboxes.
    pub at: Option<u64>,
    /// Name of the target.
    pub target: &'static str,
    /// Result of the measurement.
    pub got: Got,
    /// Number of failed attempts by failure code.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub failures: BTreeMap<String, u64>,
    /// Message of the first failure with each code.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub said: BTreeMap<String, String>,
    /// Number of starts of each kind (warm or cold), if the target reports the kind.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub starts: BTreeMap<String, u64>,
}

/// Result of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Got {
    /// Percentiles of the measured durations.
    Times(Summary),
    /// Single number.
    Value {
        /// Numeric value.
        value: f64,
        /// Unit of the value.
        unit: Unit,
    },
    /// No attempt succeeded.
    Nothing,
    /// The target does not support the operation.
    Unsupported,
}

/// Unit of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Operations per second.
    PerSecond,
    /// Bytes.
    Bytes,
}

impl Figure {
    /// Creates a figure from the durations of several attempts.
    pub fn times(what: &'static str, at: Option<u64>, target: &'static str, tally: &AttemptTally) -> Self {
        let got = tally.times.summary().map_or(Got::Nothing, Got::Times);
        let (failures, said) = (tally.failures.clone(), tally.said.clone());
        Self { what, at, target, got, failures, said, starts: tally.starts.clone() }
    }

    /// Creates a figure from a number.
    pub fn value(what: &'static str, at: Option<u64>, target: &'static str, value: f64, unit: Unit) -> Self {
        Self::bare(what, at, target, Got::Value { value, unit })
    }

    /// Creates the figure for an operation that a target does not support.
    pub fn unsupported(what: &'static str, at: Option<u64>, target: &'static str) -> Self {
        Self::bare(what, at, target, Got::Unsupported)
    }

    fn bare(what: &'static str, at: Option<u64>, target: &'static str, got: Got) -> Self {
        let (failures, said, starts) = Default::default();
        Self { what, at, target, got, failures, said, starts }
    }
}

impl Got {
    /// Returns the number that is used to compare targets. For durations, this is the median.
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Times(summary) => Some(summary.p50_ms),
            Self::Value { value, .. } => Some(*value),
            Self::Nothing | Self::Unsupported => None,
        }
    }
}
