//! The sandbox's time to live, which process 1 enforces even if the node is gone.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// The end of the sandbox's time to live.
pub struct Lifetime {
    expires: watch::Sender<Instant>,
}

impl Lifetime {
    /// Creates a lifetime that ends `ttl` from now.
    pub fn new(ttl: Duration) -> Self {
        Self { expires: watch::Sender::new(after(ttl)) }
    }

    /// Sets the time to live, which counts from now.
    pub fn set(&self, ttl: Duration) {
        self.expires.send_replace(after(ttl));
    }

    /// Waits for the end of the time to live.
    pub async fn expired(&self) {
        let mut expires = self.expires.subscribe();
        loop {
            let at = *expires.borrow_and_update();
            tokio::select! {
                // After a pause, the timer may fire before this task is notified of a later end, so check the
                // end again.
                () = tokio::time::sleep_until(at) => if *expires.borrow() <= Instant::now() {
                    return;
                },
                // This cannot fail, because `self` owns the sender.
                _ = expires.changed() => {}
            }
        }
    }
}

/// Returns the time `ttl` from now, limited to a century so that the sum cannot overflow.
fn after(ttl: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    Instant::now() + ttl.min(CENTURY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_time_to_live_is_the_last_that_was_given() {
        let lifetime = Lifetime::new(Duration::MAX);
        let waits = Duration::from_millis(50);
        assert!(tokio::time::timeout(waits, lifetime.expired()).await.is_err());
        let shortened = async {
            tokio::task::yield_now().await;
            lifetime.set(Duration::ZERO);
        };
        let expired = tokio::time::timeout(Duration::from_secs(10), lifetime.expired());
        assert!(tokio::join!(expired, shortened).0.is_ok(), "the waiting task is notified");
        lifetime.set(Duration::MAX);
        assert!(tokio::time::timeout(waits, lifetime.expired()).await.is_err());
    }
}
