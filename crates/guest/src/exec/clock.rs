//! The clock of an exec: its duration and its time limit. Time during which the sandbox is paused counts
//! toward neither.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::Instant;

/// The clock of one exec.
pub(super) struct ExecClock {
    /// Time from which the exec's duration and deadline count. Not set while code is queued or its packages
    /// are being installed.
    started: Cell<Option<Instant>>,
    /// Time at which the current phase (preparation or run) times out, if it has a time limit.
    limit: Cell<Option<Instant>>,
    deadline: Option<Duration>,
    /// Start of the sandbox's current pause, if it is paused.
    held: Cell<Option<Instant>>,
}

impl ExecClock {
    /// Creates a clock that has not started, for an exec with this deadline.
    pub fn new(deadline: Option<Duration>) -> Self {
        Self { started: Cell::new(None), limit: Cell::new(None), deadline, held: Cell::new(None) }
    }

    /// Returns the deadline, which counts from the start of the clock.
    pub fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// Starts the clock. Only the first call has an effect. Returns true if it is this call.
    pub fn start(&self) -> bool {
        if self.started.get().is_some() {
            return false;
        }
        let now = self.now_in_pause();
        self.started.set(Some(now));
        self.limit.set(self.deadline.map(|after| now + after));
        true
    }

    /// Sets a time limit for the preparation phase, which precedes the start of the clock.
    pub fn prepare(&self, within: Duration) {
        let now = self.now_in_pause();
        self.limit.set(Some(now + within));
    }

    /// Returns the current time, at which a phase begins. If it begins during a pause, only the rest of the
    /// pause is excluded from its time.
    fn now_in_pause(&self) -> Instant {
        let now = Instant::now();
        self.held.set(self.held.get().map(|_| now));
        now
    }

    /// Stops the clock, because the sandbox is about to be paused.
    pub fn hold(&self) {
        self.held.set(self.held.get().or_else(|| Some(Instant::now())));
    }

    /// Restarts the clock, and moves the deadline by the length of the pause. Returns false if the clock was
    /// not stopped.
    pub fn release(&self) -> bool {
        let Some(held) = self.held.take() else { return false };
        let paused = held.elapsed();
        let later = |at: Option<Instant>| at.map(|at| at + paused);
        self.started.set(later(self.started.get()));
        self.limit.set(later(self.limit.get()));
        true
    }

    /// Returns the current time limit, or `None` while the clock is stopped.
    pub fn limit(&self) -> Option<Instant> {
        self.limit.get().filter(|_| self.held.get().is_none())
    }

    /// Returns the time since the clock started, excluding pauses.
    pub fn age(&self) -> Duration {
        let now = self.held.get().unwrap_or_else(Instant::now);
        self.started.get().map_or(Duration::ZERO, |started| now.saturating_duration_since(started))
    }
}
