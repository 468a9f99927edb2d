//! Lines about wrong keys in the audit log: a few a second, each with how many there were besides. Whoever has many addresses would
//! otherwise fill the log, and push out what it is kept for.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

/// Lines in a second: 3 MiB an hour.
const LINES_PER_SECOND: NonZeroU32 = NonZeroU32::new(5).unwrap();

/// Counts what is not written.
pub struct Failures {
    lines: DefaultDirectRateLimiter,
    unsaid: AtomicU64,
}

impl Default for Failures {
    fn default() -> Self {
        Self { lines: RateLimiter::direct(Quota::per_second(LINES_PER_SECOND)), unsaid: AtomicU64::new(0) }
    }
}

impl Failures {
    /// Whether a line may be written now, and how many were not since the last one.
    pub fn say(&self) -> Option<u64> {
        if self.lines.check().is_ok() {
            return Some(self.unsaid.swap(0, Ordering::Relaxed));
        }
        self.unsaid.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_written_is_counted() {
        let failures = Failures::default();
        let said: Vec<_> = (0..20).filter_map(|_| failures.say()).collect();
        // On a slow machine time for another line may pass meanwhile.
        assert!((5..10).contains(&said.len()), "{said:?}");
        std::thread::sleep(std::time::Duration::from_millis(300));
        let last = failures.say().unwrap();
        assert_eq!(said.len() as u64 + said.iter().sum::<u64>() + last, 20, "{said:?} {last}");
    }
}
