//! Randomness: unique names and unpredictable arrival times.

use std::time::Duration;

use crate::target::TargetFailure;

/// Returns a random name of 32 hexadecimal digits.
pub fn name() -> Result<String, TargetFailure> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| TargetFailure::new("random", error.to_string()))?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

/// Pseudorandom sequence. The same seed always yields the same sequence, so that differences between runs
/// come from the machine and not from chance.
#[derive(Clone, Debug)]
pub struct Sequence(u64);

impl Sequence {
    /// Creates the sequence for a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number of the SplitMix64 generator.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from 0 to `count` - 1, or 0 if `count` is 0.
    pub fn below(&mut self, count: usize) -> usize {
        self.next().checked_rem(count as u64).unwrap_or(0) as usize
    }

    /// Returns the pause before the next arrival in a Poisson process with this rate.
    pub fn pause(&mut self, per_second: f64) -> Duration {
        // The fraction consists of the upper 53 bits. It is never 0, because the logarithm of 0 is undefined.
        let fraction = ((self.next() >> 11) as f64 + 1.0) / (1_u64 << 53) as f64;
        let seconds = -fraction.min(1.0).ln() / per_second;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_as_long_as_they_should_be_on_average() {
        let mut sequence = Sequence::new(7);
        let total: Duration = (0..10_000).map(|_| sequence.pause(100.0)).sum();
        assert!((95.0..105.0).contains(&total.as_secs_f64()), "{total:?}");
    }

    #[test]
    fn one_of_none_is_the_first() {
        assert_eq!(Sequence::new(1).below(0), 0);
        assert!((0..100).all(|seed| Sequence::new(seed).below(3) < 3));
        assert_eq!(name().unwrap().len(), 32);
    }
}
