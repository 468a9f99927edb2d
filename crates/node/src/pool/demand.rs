//! Decides from recent demand how many sandboxes of one kind are pre-warmed.
//!
//! The number is the highest number of requests in any one of the last [`SLOTS`] slots of [`SLOT_MS`] ms, so
//! that a burst of that size can be served again. An average rate would ignore bursts.

/// Length of a slot in milliseconds: about the time in which a machine replaces a few sandboxes.
const SLOT_MS: u64 = 2000;
/// Number of slots, which together cover five minutes.
const SLOTS: usize = 150;
/// Time without requests in milliseconds after which a kind is no longer pre-warmed.
const FORGET_MS: u64 = 3_600_000;

/// Recent requests for one kind.
#[derive(Clone, Debug)]
pub struct Demand {
    counts: [u32; SLOTS],
    /// Number of the newest slot, counted from time zero.
    newest: u64,
    /// Time of the last request, or the creation time if there was none.
    last_ms: u64,
}

impl Demand {
    /// Creates a demand record without any requests.
    pub fn new(now_ms: u64) -> Self {
        Self { counts: [0; SLOTS], newest: now_ms / SLOT_MS, last_ms: now_ms }
    }

    /// Counts a request.
    pub fn add(&mut self, now_ms: u64) {
        self.advance(now_ms);
        self.last_ms = now_ms;
        if let Some(count) = self.counts.get_mut(place(self.newest)) {
            *count = count.saturating_add(1);
        }
    }

    /// Returns the number of sandboxes to keep ready: at least `least`, and 0 once the demand is over.
    pub fn wanted(&mut self, now_ms: u64, least: u32) -> u32 {
        self.advance(now_ms);
        if self.is_over(now_ms) {
            return 0;
        }
        self.counts.iter().copied().max().unwrap_or(0).max(least)
    }

    /// Returns the time of the last request, or the creation time if there was none.
    pub fn last_ms(&self) -> u64 {
        self.last_ms
    }

    /// Returns true if the last request was more than `FORGET_MS` ago.
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
