//! The health of the server: whether the store can be written, and whether a test sandbox works.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use api::server::Health;
use node::clock;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::Platform;

/// Interval between health probes. The reported health is at most slightly older than this.
const TRY_EVERY: Duration = Duration::from_secs(30);
/// Minimum interval between checks of the store.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Timeout for a health probe.
const TRY_WITHIN: Duration = Duration::from_secs(20);

/// Results of the last health checks.
pub(super) struct HealthChecks {
    began: Instant,
    /// Milliseconds from `began` to the end of the last probe, or 0 before the first probe has ended.
    at_ms: AtomicU64,
    /// Duration of the last probe; `u64::MAX` if it failed.
    took_ms: AtomicU64,
    /// Time and result of the last check of the store.
    store: Mutex<Option<(Instant, bool)>>,
}

impl HealthChecks {
    /// Creates the state before the first check.
    pub(super) fn new() -> Self {
        Self {
            began: Instant::now(),
            at_ms: AtomicU64::new(0),
            took_ms: AtomicU64::new(u64::MAX),
            store: Mutex::default(),
        }
    }
}

impl Platform {
    /// Returns the health of the server.
    pub async fn health(&self) -> Health {
        let (at, took_ms) =
            (self.checks.at_ms.load(Ordering::Acquire), self.checks.took_ms.load(Ordering::Acquire));
        let now = clock::millis(self.checks.began.elapsed());
        let tried_ms_ago = now.saturating_sub(at);
        let late = clock::millis(2 * TRY_EVERY + TRY_WITHIN);
        let sandbox = at > 0 && took_ms != u64::MAX && tried_ms_ago < late;
        let store = self.store_answers().await;
        let took_ms = if took_ms == u64::MAX { 0 } else { took_ms };
        Health { ok: store && sandbox, store, sandbox, tried_ms_ago, took_ms }
    }

    /// Returns true if the store can be written. Reuses a recent result, because any caller may request the
    /// server's health, and each check delays other writers.
    async fn store_answers(&self) -> bool {
        let mut seen = self.checks.store.lock().await;
        match *seen {
            Some((at, answers)) if at.elapsed() < LOOK_EVERY => answers,
            Some(_) | None => {
                let answers = self.store.ping().await.is_ok();
                *seen = Some((Instant::now(), answers));
                answers
            }
        }
    }

    /// Runs a health probe of the node at regular intervals, forever.
    pub async fn try_sandboxes(&self) {
        loop {
            let begun = Instant::now();
            let tried = timeout(TRY_WITHIN, self.node.probe()).await;
            let took = match tried {
                Ok(Ok(())) => clock::millis(begun.elapsed()),
                Ok(Err(error)) => {
                    tracing::error!(
                        error = node::error::chain(&error),
                        "health probe failed: a test sandbox did not work"
                    );
                    u64::MAX
                }
                Err(_) => {
                    tracing::error!("health probe failed: a test sandbox took longer than {TRY_WITHIN:?}");
                    u64::MAX
                }
            };
            self.checks.took_ms.store(took, Ordering::Release);
            self.checks.at_ms.store(clock::millis(self.checks.began.elapsed()).max(1), Ordering::Release);
            tokio::time::sleep(TRY_EVERY).await;
        }
    }
}
