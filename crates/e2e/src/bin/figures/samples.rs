//! Percentiles of measured durations.

use std::time::Duration;

/// Measured durations of one subject.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples {
    taken: Vec<Duration>,
}

impl Samples {
    /// Adds a duration.
    pub(crate) fn add(&mut self, sample: Duration) {
        self.taken.push(sample);
    }

    /// Returns true if there are no durations.
    pub(crate) fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    /// Returns the number of durations.
    pub(crate) fn len(&self) -> usize {
        self.taken.len()
    }

    /// Returns the median, in milliseconds.
    pub(crate) fn p50(&self) -> f64 {
        self.percentile(50)
    }

    /// Returns the 95th percentile, in milliseconds.
    pub(crate) fn p95(&self) -> f64 {
        self.percentile(95)
    }

    /// Returns the nearest-rank percentile: the smallest duration that at least this percentage of durations
    /// do not exceed.
    fn percentile(&self, percent: usize) -> f64 {
        let mut sorted = self.taken.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * percent).div_ceil(100).max(1);
        sorted.get(rank - 1).map_or(f64::NAN, |sample| sample.as_secs_f64() * 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measurements_that_were_taken() {
        let mut samples = Samples::default();
        for millis in (1..=20).rev() {
            samples.add(Duration::from_millis(millis));
        }
        assert_eq!((samples.p50(), samples.p95()), (10.0, 19.0));
        assert!(Samples::default().p50().is_nan());
    }
}
