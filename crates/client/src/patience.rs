//! How long and how often to ask again. Pure: time is a parameter.

use std::time::{Duration, Instant};

/// A server that is restarted is back within this, sandboxes and all; what is away longer is down.
pub const CONNECTION_WITHIN: Duration = Duration::from_secs(60);
/// A full machine may have room again when a sandbox ends; whoever waits longer had better be told.
pub const BUSY_WITHIN: Duration = Duration::from_secs(15);
/// The first pause: a connection that broke by chance is there again at once.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// The longest pause that is our own idea: half a second is not felt by a person and not by a server.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// For how long a request is repeated, from the first time it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// While no answer comes, or one that says the server is not ready.
    pub connection: Duration,
    /// While the server answers that it has no room or is asked too fast.
    pub busy: Duration,
}

/// Why a request is to be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// No answer, or one that says that the server is not ready.
    Connection,
    /// An answer that says: not now.
    Busy,
}

/// One request, or one reader, in trouble.
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

    /// How long to wait before the next try; none when it is time to give up. What the server asks for is waited for,
    /// unless that would be too long.
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

    /// All is well again.
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
