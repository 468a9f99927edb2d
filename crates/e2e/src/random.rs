//! Random numbers from a seed that is printed, so that a failed test can be repeated.

/// Random numbers of a quality that is sufficient for choosing points in time.
pub struct Random(u64);

impl Random {
    /// Creates a generator from the seed in `BELLGLASS_SEED`, or from a fresh one.
    #[expect(clippy::new_without_default, reason = "it prints")]
    pub fn new() -> Self {
        let seed = std::env::var("BELLGLASS_SEED").ok().and_then(|text| text.parse().ok());
        let seed = seed.unwrap_or_else(|| u64::from(std::process::id()) * 2_654_435_761 + 1);
        eprintln!("seed: BELLGLASS_SEED={seed}");
        Self(seed)
    }

    /// Returns a number below `most`.
    pub fn below(&mut self, most: u64) -> u64 {
        // xorshift
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}
