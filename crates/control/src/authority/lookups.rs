//! Limit on concurrent key lookups in the store. Waiting requests use memory and need no valid key, so
//! requests above the limit are rejected immediately.

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::account::busy;
use crate::fault::Answer;

/// Maximum number of concurrent lookups. Enough for a burst of new clients: a lookup takes less than a millisecond.
const LOOKUPS_MAX: usize = 128;

/// Permits for lookups.
pub struct Lookups(Semaphore);

impl Default for Lookups {
    fn default() -> Self {
        Self(Semaphore::new(LOOKUPS_MAX))
    }
}

impl Lookups {
    /// Acquires a permit for one lookup.
    ///
    /// # Errors
    /// `rate_limited`: all permits are in use.
    pub fn place(&self) -> Answer<SemaphorePermit<'_>> {
        self.0
            .try_acquire()
            .map_err(|_| busy(format!("{LOOKUPS_MAX} key lookups are already in progress, the maximum")))
    }
}
