//! Tracking of the latest observed time, so that expired keys stay expired even if the machine's clock is set
//! back (attack L-12).
//!
//! The latest observed time never goes back and never stops. It is the later of two times: the machine's
//! clock, and the previously observed time plus the time elapsed since then, which is measured with the boot
//! clock, which cannot be set. It is saved in the store, so that it survives a restart.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use node::clock;
use tokio::sync::Notify;

use super::{Error, Lasting, Store, Writer, failed, integer};

/// Maximum lag of the stored time behind the observed time. If the server is killed and the clock is then set
/// back, an expired key may become valid again for at most this long.
const WRITE_EVERY_MS: u64 = 60_000;
/// Minimum lag of the machine's clock behind the observed time that causes a warning. Corrections by a time
/// server are smaller.
const BEHIND_MS: u64 = 60_000;

/// The latest observed time.
#[derive(Debug, Default)]
pub(super) struct Latest {
    seen: Mutex<ObservedTime>,
    /// The time in the store.
    written_ms: AtomicU64,
    due: Notify,
}

/// A time, and the value of the boot clock at that time.
#[derive(Clone, Copy, Debug, Default)]
struct ObservedTime {
    time_ms: u64,
    boot_ms: u64,
}

impl Latest {
    /// Returns the latest observed time after observing these values of the machine's clock and of the boot
    /// clock.
    fn now_ms(&self, wall_ms: u64, boot_ms: u64) -> u64 {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let passed_ms = boot_ms.saturating_sub(seen.boot_ms);
        *seen = ObservedTime { time_ms: wall_ms.max(seen.time_ms.saturating_add(passed_ms)), boot_ms };
        seen.time_ms
    }

    fn is_due(&self, now_ms: u64) -> bool {
        now_ms > self.written_ms.load(Ordering::Acquire).saturating_add(WRITE_EVERY_MS)
    }
}

impl Store {
    /// Returns the time against which the expiry of keys is checked. `wall_ms` is the current value of the
    /// machine's clock.
    pub fn now_ms(&self, wall_ms: u64) -> u64 {
        if api::defence::is_off("L-12") {
            return wall_ms;
        }
        let now_ms = self.latest.now_ms(wall_ms, clock::boot_ms());
        if self.latest.is_due(now_ms) {
            self.latest.due.notify_one();
        }
        now_ms
    }

    /// Loads the time from the store. Logs a warning if the machine's clock is behind the stored time.
    pub(super) async fn read_time(&self) -> Result<(), Error> {
        let latest: Option<i64> = sqlx::query_scalar("SELECT latest_ms FROM clock")
            .fetch_optional(&self.writer)
            .await
            .map_err(failed("be opened"))?;
        let (written_ms, wall_ms) = (latest.unwrap_or(0).unsigned_abs(), clock::wall_ms());
        self.latest.written_ms.store(written_ms, Ordering::Release);
        self.latest.now_ms(written_ms, clock::boot_ms());
        if wall_ms.saturating_add(BEHIND_MS) < written_ms {
            let behind = Duration::from_millis(written_ms - wall_ms);
            tracing::warn!(
                "the system clock is {behind:?} behind the latest recorded time, which determines when keys expire; set the clock, or, if \
                 the recorded time is wrong, stop the server and delete the row of the table `clock` in bellglass.db"
            );
        }
        Ok(())
    }

    /// Waits until the time should be saved, but no longer than `within`.
    pub async fn time_is_due(&self, within: Duration) {
        let _ = tokio::time::timeout(within, self.latest.due.notified()).await;
    }

    /// Saves the time if it is much later than the stored time.
    pub(super) async fn write_time_if_due(&self) -> Result<(), Error> {
        const ACT: &str = "save the time";
        if !self.latest.is_due(self.now_ms(clock::wall_ms())) {
            return Ok(());
        }
        let mut connection = self.connection(Lasting::Process, ACT).await?;
        self.write_time(&mut connection, ACT).await
    }

    pub(super) async fn write_time(&self, writer: &mut Writer, act: &'static str) -> Result<(), Error> {
        let now_ms = self.now_ms(clock::wall_ms());
        sqlx::query(
            "INSERT INTO clock (id, latest_ms) VALUES (0, ?)
             ON CONFLICT (id) DO UPDATE SET latest_ms = max(latest_ms, excluded.latest_ms)",
        )
        .bind(integer(now_ms))
        .execute(&mut **writer)
        .await
        .map_err(failed(act))?;
        writer.had_its_turn();
        self.latest.written_ms.fetch_max(now_ms, Ordering::AcqRel);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Place;
    use super::*;

    #[test]
    fn time_neither_goes_back_nor_stands_still() {
        let latest = Latest::default();
        assert_eq!(latest.now_ms(1000, 50), 1000);
        assert_eq!(latest.now_ms(900, 50), 1000, "the clock went back");
        assert_eq!(latest.now_ms(900, 80), 1030, "and what has passed since counts");
        assert_eq!(latest.now_ms(5000, 90), 5000, "the clock went forward");
        assert_eq!(latest.now_ms(0, 90), 5000);
    }

    #[tokio::test]
    async fn the_latest_time_outlives_the_server() {
        // Attack L-12: the clock is set back while the server is down.
        let place = Place::new().await;
        let ahead = clock::wall_ms() + 86_400_000;
        assert!(place.store.now_ms(ahead) >= ahead);
        place.store.upkeep().await;
        place.store.close().await;
        let store = Store::open(&place.path).await.unwrap();
        assert!(store.now_ms(clock::wall_ms()) >= ahead);
    }
}
