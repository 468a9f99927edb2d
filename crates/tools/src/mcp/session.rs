//! One client and its host, from the first message to the last.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::Host;

/// Session of one client with its host.
pub(super) struct McpSession {
    host: Arc<dyn Host>,
    ended: CancellationToken,
    uses: Mutex<Uses>,
    /// Tracker of the requests to the host that are in progress.
    asked: TaskTracker,
}

/// Guard that marks a session as in use while the guard exists.
pub(super) struct Use(Arc<McpSession>);

/// Guard that marks a session as in use and tracks a request to its host while the guard exists.
pub(super) struct RequestGuard {
    _use: Use,
    _asked: TaskTrackerToken,
}

struct Uses {
    count: usize,
    last: Instant,
}

impl McpSession {
    /// Creates a session, which ends when `stop` is cancelled, or earlier.
    pub(super) fn new(host: Arc<dyn Host>, stop: &CancellationToken) -> Arc<Self> {
        let uses = Mutex::new(Uses { count: 0, last: Instant::now() });
        Arc::new(Self { host, ended: stop.child_token(), uses, asked: TaskTracker::new() })
    }

    pub(super) fn host(&self) -> &dyn Host {
        self.host.as_ref()
    }

    /// Ends the session and cancels its requests to the host.
    pub(super) fn end(&self) {
        self.ended.cancel();
    }

    /// Ends the host's session after all cancelled requests have finished. Only the task that owns the
    /// session may call this function.
    pub(super) async fn finish(&self) {
        self.end();
        self.asked.close();
        self.asked.wait().await;
        self.host.end().await;
    }

    /// Waits until the session has ended.
    pub(super) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Waits until the session has ended, or has been idle for this long.
    pub(super) async fn over(&self, idle: Duration) {
        tokio::select! {
            () = self.ended() => {}
            () = self.unused(idle) => {}
        }
    }

    /// Marks the session as in use until the returned guard is dropped.
    pub(super) fn used(self: &Arc<Self>) -> Use {
        let mut uses = self.uses();
        uses.count += 1;
        uses.last = Instant::now();
        Use(Arc::clone(self))
    }

    /// Marks the session as in use for a request to the host until the returned guard is dropped.
    pub(super) fn asking(self: &Arc<Self>) -> RequestGuard {
        RequestGuard { _use: self.used(), _asked: self.asked.token() }
    }

    /// Returns the time since which the session has been idle, or `None` while it is in use.
    pub(super) fn unused_since(&self) -> Option<Instant> {
        let uses = self.uses();
        (uses.count == 0).then_some(uses.last)
    }

    async fn unused(&self, idle: Duration) {
        loop {
            match self.unused_since() {
                None => sleep(idle).await,
                Some(since) if since.elapsed() >= idle => return,
                Some(since) => sleep_until(since + idle).await,
            }
        }
    }

    fn uses(&self) -> MutexGuard<'_, Uses> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let mut uses = self.0.uses();
        uses.count = uses.count.saturating_sub(1);
        uses.last = Instant::now();
    }
}
