//! Percentiles of a number of measurements.

use std::time::Duration;

/// Measurements of one subject.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples {
    taken: Vec<Duration>,
}

impl Samples {
    /// Adds one.
    pub(crate) fn add(&mut self, sample: Duration) {
        self.taken.push(sample);
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.taken.len()
    }

    /// Half of them took no longer, in milliseconds.
    pub(crate) fn p50(&self) -> f64 {
        self.percentile(50)
    }

    /// All but a twentieth took no longer, in milliseconds.
    pub(crate) fn p95(&self) -> f64 {
        self.percentile(95)
    }

    /// The smallest measurement that this share of all does not exceed.
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
