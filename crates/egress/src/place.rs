//! Connection limits: the maximum number of concurrent connections of a sandbox, and of all sandboxes of a
//! project.
//!
//! Each connection of a program holds one permit from its sandbox and one from its project. The connection's
//! resources share these permits: the program's stream, the task that dials, and the connection to the host.
//! The permits are released when the last of these resources is gone, so programs cannot evade the limits by
//! connecting and disconnecting at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of concurrent connections of one sandbox.
const SANDBOX_MAX: usize = 512;
/// Maximum number of concurrent connections of all sandboxes of a project: eight times the limit of one
/// sandbox. Each connection costs the server a descriptor and at most 64 KiB for a response head, so endless
/// heads can occupy at most 256 MiB per project.
const PROJECT_MAX: usize = 4096;

/// The permits of one connection, shared by all of its resources.
#[derive(Clone)]
pub struct ConnectionPermit {
    _permits: Arc<[OwnedSemaphorePermit]>,
}

/// The permits of all projects. A project without connections has no entry.
#[derive(Default)]
pub struct Projects {
    places: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// Returns the maximum number of concurrent connections of one sandbox.
pub fn sandbox_max() -> usize {
    if api::defence::is_off("C-15") { 2 * SANDBOX_MAX } else { SANDBOX_MAX }
}

impl ConnectionPermit {
    /// Combines permits into a shared permit for all resources of a connection.
    pub fn of(permits: impl Into<Arc<[OwnedSemaphorePermit]>>) -> Self {
        Self { _permits: permits.into() }
    }
}

impl Projects {
    /// Takes one permit from a project, if its limit allows it.
    pub fn take(&self, project: &str) -> Option<OwnedSemaphorePermit> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.retain(|_, own| own.available_permits() < PROJECT_MAX);
        let own = places.entry(project.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(PROJECT_MAX)));
        Arc::clone(own).try_acquire_owned().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_project_has_so_many_places_and_no_entry_without_connections() {
        let projects = Projects::default();
        let held: Vec<_> = (0..PROJECT_MAX).map(|_| projects.take("pa").unwrap()).collect();
        assert!(projects.take("pa").is_none());
        assert!(projects.take("pb").is_some(), "the places of a project are its own");
        drop(held);
        assert!(projects.take("pa").is_some());
        assert_eq!(projects.places.lock().unwrap().len(), 1);
    }

    #[test]
    fn a_place_is_free_when_the_last_that_shares_it_is_gone() {
        let places = Arc::new(Semaphore::new(1));
        let place = ConnectionPermit::of([Arc::clone(&places).try_acquire_owned().unwrap()]);
        let dialling = place.clone();
        drop(place);
        assert_eq!(places.available_permits(), 0);
        drop(dialling);
        assert_eq!(places.available_permits(), 1);
    }
}
