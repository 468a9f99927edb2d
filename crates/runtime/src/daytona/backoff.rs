//! Exponential backoff between attempts.

use std::time::Duration;

/// Initial and maximum delay between attempts. The delay grows because Daytona limits an account's request
/// rate.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_LAST: Duration = Duration::from_secs(3);

/// The delay before the next attempt.
pub(super) struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(PAUSE_FIRST)
    }
}

impl Backoff {
    /// Waits for the current delay, and doubles it.
    pub async fn take(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 2).min(PAUSE_LAST);
    }
}
