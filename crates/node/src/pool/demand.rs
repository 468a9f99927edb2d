//! How many sandboxes of one kind should be ready, by how many were asked for lately.
//!
//! What is kept ready is the most that was asked for in any [`SLOT_MS`] of the last [`SLOTS`] of them: a burst of that size is
//! then served again. A rate alone would forget that requests come in bursts.

/// About what a machine needs to make a few anew.
const SLOT_MS: u64 = 2000;
/// Five minutes of them.
const SLOTS: usize = 150;
/// A kind that nobody has asked for in an hour is not kept ready.
const FORGET_MS: u64 = 3_600_000;

/// What was asked for of one kind.
#[derive(Clone, Debug)]
pub struct Demand {
    counts: [u32; SLOTS],
    /// The newest slot, counted from the beginning of time.
    newest: u64,
    /// When it was last asked for, or set up.
    last_ms: u64,
}

impl Demand {
    /// Nothing was asked for until now.
    pub fn new(now_ms: u64) -> Self {
        Self { counts: [0; SLOTS], newest: now_ms / SLOT_MS, last_ms: now_ms }
    }

    /// One is asked for.
    pub fn add(&mut self, now_ms: u64) {
        self.advance(now_ms);
        self.last_ms = now_ms;
        if let Some(count) = self.counts.get_mut(place(self.newest)) {
            *count = count.saturating_add(1);
        }
    }

    /// How many should be ready: at least `least`, while it is asked for at all.
    pub fn wanted(&mut self, now_ms: u64, least: u32) -> u32 {
        self.advance(now_ms);
        if self.is_over(now_ms) {
            return 0;
        }
        self.counts.iter().copied().max().unwrap_or(0).max(least)
    }

    /// When it was last asked for, or set up.
    pub fn last_ms(&self) -> u64 {
        self.last_ms
    }

    /// Whether nobody has asked for it in a long time.
    pub fn is_over(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.last_ms) > FORGET_MS
    }

    fn advance(&mut self, now_ms: u64) {
        let now = now_ms / SLOT_MS;
        let passed = now.saturating_sub(self.newest).min(SLOTS as u64);
        for number in 0..passed {
            if let Some(count) = self.counts.get_mut(place(now - number)) {
                *count = 0;
            }
        }
        self.newest = self.newest.max(now);
    }
}

fn place(slot: u64) -> usize {
    usize::try_from(slot % SLOTS as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_largest_burst_of_the_last_minutes_is_kept_ready() {
        let mut demand = Demand::new(0);
        assert_eq!(demand.wanted(0, 1), 1);
        for _ in 0..50 {
            demand.add(10_000);
        }
        demand.add(20_000);
        assert_eq!(demand.wanted(30_000, 1), 50);
        assert_eq!(demand.wanted(10_000 + SLOT_MS * (SLOTS as u64 - 1), 1), 50);
        assert_eq!(
            demand.wanted(10_000 + SLOT_MS * SLOTS as u64, 1),
            1,
            "five minutes later it is forgotten"
        );
        assert_eq!(demand.wanted(20_000 + FORGET_MS + 1, 1), 0, "and after an hour, the kind");
    }

    proptest! {
        #[test]
        fn never_more_than_was_asked_for_and_never_less_than_in_the_last_slot(
            asks in prop::collection::vec(0_u64..600_000, 0..200), least in 0_u32..3
        ) {
            let mut asks = asks;
            asks.sort_unstable();
            let mut demand = Demand::new(0);
            for at in &asks {
                demand.add(*at);
            }
            let now = asks.last().copied().unwrap_or(0);
            let wanted = demand.wanted(now, least);
            let last = asks.iter().filter(|at| **at / SLOT_MS == now / SLOT_MS).count();
            prop_assert!(wanted as usize >= last.max(least as usize));
            prop_assert!(wanted as usize <= asks.len().max(least as usize));
        }
    }
}
