//! A random number generator that prints its seed, so that a failed test can be repeated.

/// Random number generator of sufficient quality for choosing points in time.
pub struct Random(u64);

impl Random {
    /// Creates a generator with the seed in `BELLGLASS_SEED`, or with a new seed if the variable is not set.
    #[expect(clippy::new_without_default, reason = "it prints")]
    pub fn new() -> Self {
        let seed = std::env::var("BELLGLASS_SEED").ok().and_then(|text| text.parse().ok());
        let seed = seed.unwrap_or_else(|| u64::from(std::process::id()) * 2_654_435_761 + 1);
        eprintln!("seed: BELLGLASS_SEED={seed}");
        Self(seed)
    }

    /// Returns a number from 0 up to, but not including, `most`.
    pub fn below(&mut self, most: u64) -> u64 {
        // An xorshift generator.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}
