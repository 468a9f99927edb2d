//! How many keys are looked up in the store at once. Each waits with its request in memory, and anybody can ask: those that are more are
//! refused before they wait.

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::account::busy;
use crate::fault::Answer;

/// More than a burst of clients that are new here; a lookup takes less than a millisecond.
const LOOKUPS_MAX: usize = 128;

/// Places for lookups.
pub struct Lookups(Semaphore);

impl Default for Lookups {
    fn default() -> Self {
        Self(Semaphore::new(LOOKUPS_MAX))
    }
}

impl Lookups {
    /// A place for one.
    ///
    /// # Errors
    /// `rate_limited`: all are taken.
    pub fn place(&self) -> Answer<SemaphorePermit<'_>> {
        self.0
            .try_acquire()
            .map_err(|_| busy(format!("{LOOKUPS_MAX} key lookups are already in progress, the maximum")))
    }
}
