//! Rate limit for audit log entries about invalid keys. At most a few such entries are written per second.
//! Each one states how many failures were not recorded since the previous entry. Without this limit, a client
//! with many addresses could fill the log and displace all other entries.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

/// Maximum number of entries per second. At this rate, the entries take about 3 MiB per hour.
const LINES_PER_SECOND: NonZeroU32 = NonZeroU32::new(5).unwrap();

/// Rate limiter that counts the failures that it leaves out of the log.
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
    /// Counts a failure. If the caller may record an entry now, returns the number of failures left out since
    /// the previous entry. Otherwise returns `None`.
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
        // On a slow machine, the loop can take long enough for the limit to permit more entries.
        assert!((5..10).contains(&said.len()), "{said:?}");
        std::thread::sleep(std::time::Duration::from_millis(300));
        let last = failures.say().unwrap();
        assert_eq!(said.len() as u64 + said.iter().sum::<u64>() + last, 20, "{said:?} {last}");
    }
}
