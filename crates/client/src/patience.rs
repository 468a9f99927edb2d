//! Retry policy: for how long and how often a request is repeated. Pure: time is a parameter.

use std::time::{Duration, Instant};

/// Default for the retry time while the server does not respond. A restart, including its sandboxes, takes
/// less; a server that is away for longer is down.
pub const CONNECTION_WITHIN: Duration = Duration::from_secs(60);
/// Default for the retry time while the server is busy. A full machine may have capacity again when a sandbox
/// ends; after this time, the caller should get an error instead.
pub const BUSY_WITHIN: Duration = Duration::from_secs(15);
/// First pause. A connection that broke by chance works again immediately.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// Maximum pause that we choose. Half a second is negligible for a person and for the server.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Time for which a request is retried, from its first failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Limit while the server does not respond or reports that it is not ready.
    pub connection: Duration,
    /// Limit while the server reports that it has no capacity or that the rate limit is exceeded.
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

    /// Returns the pause before the next attempt; none if the time is up. A pause that the server requests is
    /// respected, unless it is too long.
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

    /// Resets the state after a success.
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
