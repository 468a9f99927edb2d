//! Retry policy: how long and how often a request is repeated. Performs no I/O; the time is a parameter.

use std::time::{Duration, Instant};

/// Default time for which requests are retried while the server does not respond. A restart of the server
/// with its sandboxes takes less time; a server that does not respond for longer counts as down.
pub const CONNECTION_WITHIN: Duration = Duration::from_secs(60);
/// Default time for which requests are retried while the server is busy. A full machine may have capacity
/// again as soon as a sandbox ends. After this time, an error is more useful to the caller.
pub const BUSY_WITHIN: Duration = Duration::from_secs(15);
/// Duration of the first pause. After a random connection failure, an immediate retry usually succeeds.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// Maximum pause that the client chooses itself. Half a second is negligible for both users and the server.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Limits on how long a request is retried, counted from its first failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Limit while the server does not respond or reports that it is not ready.
    pub connection: Duration,
    /// Limit while the server reports a lack of capacity or an exceeded rate limit.
    pub busy: Duration,
}

/// Reason for a retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The server did not respond, or reported that it is not ready.
    Connection,
    /// The server is temporarily busy.
    Busy,
}

/// Retry state of one request or one reader.
#[derive(Debug)]
pub(crate) struct Attempts {
    patience: Patience,
    since: Option<Instant>,
    pause: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { connection: CONNECTION_WITHIN, busy: BUSY_WITHIN }
    }
}

impl Attempts {
    pub fn new(patience: Patience) -> Self {
        Self { patience, since: None, pause: PAUSE_MIN }
    }

    /// Returns the pause before the next attempt, or `None` if the retry time is over. If the server requests
    /// a longer pause, that pause is used, unless it exceeds the retry time.
    pub fn after(&mut self, trouble: Trouble, asked: Option<Duration>, now: Instant) -> Option<Duration> {
        let within = match trouble {
            Trouble::Connection => self.patience.connection,
            Trouble::Busy => self.patience.busy,
        };
        let since = *self.since.get_or_insert(now);
        let pause = asked.unwrap_or_default().max(self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        (now.saturating_duration_since(since) + pause <= within).then_some(pause)
    }

    /// Resets the retry state after a success.
    pub fn progress(&mut self) {
        self.since = None;
        self.pause = PAUSE_MIN;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience { connection: Duration::from_secs(2), busy: Duration::from_secs(1) };

    #[test]
    fn pauses_grow_to_half_a_second_and_end_at_the_deadline() {
        let (mut attempts, mut now, mut pauses) = (Attempts::new(PATIENCE), Instant::now(), Vec::new());
        while let Some(pause) = attempts.after(Trouble::Connection, None, now) {
            pauses.push(pause.as_millis());
            now += pause;
        }
        assert_eq!(pauses, [20, 40, 80, 160, 320, 500, 500]);
        attempts.progress();
        assert_eq!(attempts.after(Trouble::Connection, None, now), Some(PAUSE_MIN));
    }

    #[test]
    fn what_the_server_asks_for_is_waited_for_unless_it_is_too_long() {
        let (mut attempts, now) = (Attempts::new(PATIENCE), Instant::now());
        let second = Some(Duration::from_secs(1));
        assert_eq!(attempts.after(Trouble::Busy, second, now), second);
        assert_eq!(attempts.after(Trouble::Busy, Some(Duration::from_secs(2)), now), None);
    }
}
