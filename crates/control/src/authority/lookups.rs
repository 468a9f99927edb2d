//! Limit on concurrent key lookups in the store. A request that waits for a lookup uses memory before its key
//! is known to be valid. Therefore requests above the limit are rejected immediately instead of waiting.

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::account::busy;
use crate::fault::Answer;

/// Maximum number of concurrent lookups. A lookup takes less than a millisecond, so this is enough for a
/// burst of new clients.
const LOOKUPS_MAX: usize = 128;

/// Permits for key lookups.
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
    /// Returns `rate_limited` if all permits are in use.
    pub fn place(&self) -> Answer<SemaphorePermit<'_>> {
        self.0
            .try_acquire()
            .map_err(|_| busy(format!("{LOOKUPS_MAX} key lookups are already in progress, the maximum")))
    }
}
