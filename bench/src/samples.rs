//! Percentiles of durations, and tallies of attempts.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::target::TargetFailure;

/// Durations of one operation.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    taken: Vec<Duration>,
}

/// Summary of durations, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Number of measurements.
    pub count: usize,
    /// Median.
    pub p50_ms: f64,
    /// 95th percentile.
    pub p95_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Maximum.
    pub max_ms: f64,
}

/// Tally of attempts at one operation: the durations of successful attempts, and the failures.
#[derive(Clone, Debug, Default)]
pub struct AttemptTally {
    /// Durations of successful attempts.
    pub times: Samples,
    /// Durations of refused attempts, measured until the refusal.
    pub refusals: Samples,
    /// Number of failures by code, including refusals.
    pub failures: BTreeMap<String, u64>,
    /// Number of warm starts (from a pool) and cold starts (on demand), if the target reports the kind.
    pub starts: BTreeMap<String, u64>,
    /// Message of the first failure with each code.
    pub said: BTreeMap<String, String>,
}

impl Samples {
    /// Adds a duration.
    pub fn add(&mut self, sample: Duration) {
        self.taken.push(sample);
    }

    /// Returns the number of durations.
    pub fn len(&self) -> usize {
        self.taken.len()
    }

    /// Returns the percentiles, or `None` if there are no durations.
    pub fn summary(&self) -> Option<Summary> {
        let mut sorted = self.taken.clone();
        sorted.sort_unstable();
        let max = sorted.last()?;
        Some(Summary {
            count: sorted.len(),
            p50_ms: percentile(&sorted, 50)?,
            p95_ms: percentile(&sorted, 95)?,
            p99_ms: percentile(&sorted, 99)?,
            max_ms: millis(*max),
        })
    }
}

impl AttemptTally {
    /// Adds the result of one attempt.
    pub fn note(&mut self, attempt: Result<Duration, (TargetFailure, Duration)>) {
        match attempt {
            Ok(took) => self.times.add(took),
            Err((failure, took)) => {
                if failure.refused {
                    self.refusals.add(took);
                }
                *self.failures.entry(failure.code.clone()).or_default() += 1;
                self.said.entry(failure.code).or_insert(failure.message);
            }
        }
    }

    /// Counts how a sandbox was started, if the target reports it.
    pub fn started(&mut self, start: Option<String>) {
        if let Some(start) = start {
            *self.starts.entry(start).or_default() += 1;
        }
    }

    /// Adds the results of a second tally to this tally.
    pub fn merge(&mut self, other: Self) {
        self.times.taken.extend(other.times.taken);
        self.refusals.taken.extend(other.refusals.taken);
        for (code, count) in other.failures {
            *self.failures.entry(code).or_default() += count;
        }
        for (start, count) in other.starts {
            *self.starts.entry(start).or_default() += count;
        }
        for (code, message) in other.said {
            self.said.entry(code).or_insert(message);
        }
    }
}

/// Converts a duration to milliseconds, the unit of all figures.
pub fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Returns the smallest duration that at least this percentage of all durations do not exceed. The result is
/// always a measured duration, never an interpolated value.
fn percentile(sorted: &[Duration], percent: usize) -> Option<f64> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().map(millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(millis: impl IntoIterator<Item = u64>) -> Samples {
        let mut samples = Samples::default();
        millis.into_iter().for_each(|one| samples.add(Duration::from_millis(one)));
        samples
    }

    #[test]
    fn percentiles_are_measurements_that_were_taken() {
        let summary = of((1..=20).rev()).summary().unwrap();
        assert_eq!((summary.p50_ms, summary.p95_ms, summary.p99_ms), (10.0, 19.0, 20.0));
        assert_eq!((summary.count, summary.max_ms), (20, 20.0));
        let hundred = of(1..=100).summary().unwrap();
        assert_eq!((hundred.p50_ms, hundred.p95_ms, hundred.p99_ms), (50.0, 95.0, 99.0));
    }

    #[test]
    fn one_measurement_is_all_percentiles_and_none_is_none() {
        let summary = of([7]).summary().unwrap();
        assert_eq!((summary.p50_ms, summary.p95_ms, summary.p99_ms), (7.0, 7.0, 7.0));
        assert_eq!(Samples::default().summary(), None);
    }

    #[test]
    fn a_failure_is_counted_by_its_code_and_only_a_refusal_is_timed() {
        let mut tally = AttemptTally::default();
        tally.note(Ok(Duration::from_millis(3)));
        tally.note(Err((TargetFailure::refused("capacity", "full"), Duration::from_millis(1))));
        tally.note(Err((TargetFailure::new("exit_1", "no"), Duration::from_millis(9))));
        [Some("warm".to_owned()), None].into_iter().for_each(|start| tally.started(start));
        let mut twice = tally.clone();
        twice.merge(tally);
        assert_eq!(twice.times.len(), 2);
        assert_eq!(twice.starts, BTreeMap::from([("warm".into(), 2)]));
        assert_eq!(twice.refusals.len(), 2);
        assert_eq!(twice.failures, BTreeMap::from([("capacity".into(), 2), ("exit_1".into(), 2)]));
    }
}
