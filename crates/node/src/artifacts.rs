//! Artifacts: files that a run created or changed, copied out of the sandbox when the run has ended.
//!
//! ```text
//! list the folders ─▶ record the request ─▶ start the exec ─▶ wait for its end ─▶ list again, copy out ─▶ manifest
//!                           │                                     │
//!                           └ a restarted server resumes here     └ a stop of the sandbox continues
//!                             if the sandbox is alive               here without waiting any longer
//! ```
//!
//! A file counts as changed if its version differs from the version that the guest reported before the exec
//! started; no clock is used. One task per exec does all the work, and continues even if its client
//! disconnects. Before a sandbox is stopped, its collections get a short time to finish.
//!
//! | module | holds |
//! |---|---|
//! | `attendant` | the task of one exec |
//! | `choice` | a pure function that selects the files to keep |
//! | `collect` | code that lists folders and copies files |
//! | `shelf` | storage of artifacts, and their retention |

mod attendant;
mod choice;
mod collect;
mod shelf;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::SandboxId;
use api::exec::ExecInfo;
use host::error::Error;
use host::ledger::Ledger;
use host::objects::{LedgerScope, Objects};
use tokio::sync::{Semaphore, watch};

pub(crate) use attendant::{Attendant, gone};
pub(crate) use choice::Marks;
pub(crate) use collect::regular_files;
use shelf::Shelf;
pub(crate) use shelf::{CollectionRequest, Of};

/// Maximum number of collections that run at the same time. Each keeps a listing page and a file chunk in
/// memory.
const COLLECTIONS_AT_ONCE: usize = 16;
/// Maximum number of collections of one project at a time, so that a sandbox that is slow to read does not
/// block other projects.
const COLLECTIONS_OF_PROJECT: usize = 4;
/// Maximum number of execs per sandbox with a collection in progress. Each collection polls its exec.
const UNDER_WAY_MAX: usize = 64;
/// Maximum time by which unfinished collections delay the stop of their sandbox.
const SETTLE_WITHIN: Duration = Duration::from_secs(10);
/// Total size of the manifests, in bytes, after which a listing page ends.
pub(crate) const PAGE_BYTES_MAX: usize = 1 << 20;

/// Stored artifacts, and collections in progress.
pub(crate) struct Keeper {
    pub shelf: Shelf,
    turns: Semaphore,
    turns_of: Mutex<HashMap<String, Arc<Semaphore>>>,
    under_way: Mutex<HashMap<Of, Arc<CollectionProgress>>>,
}

/// Progress of one exec's artifact collection.
pub(crate) struct CollectionProgress {
    /// True if the sandbox is about to stop.
    pub closing: watch::Sender<bool>,
    pub launch: watch::Sender<Launch>,
    pub done: watch::Sender<bool>,
}

/// State of the exec's launch.
#[derive(Clone)]
pub(crate) enum Launch {
    NotYet,
    Started(Box<ExecInfo>),
    Refused(api::Error),
    /// This server does not know the result: the launch failed without a definite result, or an earlier
    /// server process recorded the request. Only the guest knows whether the exec started.
    Elsewhere,
}

impl Keeper {
    pub fn open(
        data: &Path,
        reserve_bytes: u64,
        retention: Duration,
        ledger: &Arc<Ledger>,
    ) -> Result<Self, Error> {
        // The project is the second part of a key, after `kept` or `wanted`.
        let tally = LedgerScope { ledger: Arc::clone(ledger), depth: 1 };
        let objects = Objects::open(data.join("artifacts"), reserve_bytes, Some(tally))?;
        let shelf = Shelf::new(objects, retention);
        let turns = Semaphore::new(COLLECTIONS_AT_ONCE);
        Ok(Self { shelf, turns, turns_of: Mutex::default(), under_way: Mutex::default() })
    }

    /// Returns the semaphore that limits the collections of one project.
    fn turns_of(&self, project: &str) -> Arc<Semaphore> {
        let mut all = self.turns_of.lock().unwrap_or_else(PoisonError::into_inner);
        // Drops semaphores that no collection holds; they are created again on demand.
        all.retain(|_, turns| Arc::strong_count(turns) > 1);
        let fresh = || Arc::new(Semaphore::new(COLLECTIONS_OF_PROJECT));
        Arc::clone(all.entry(project.to_owned()).or_insert_with(fresh))
    }

    /// Waits, for a limited time, until all collections of a sandbox that is about to stop are complete.
    pub async fn settle(&self, sandbox: &SandboxId) {
        let of_it: Vec<_> = self
            .under_way()
            .iter()
            .filter(|(of, _)| of.sandbox == *sandbox)
            .map(|(_, progress)| Arc::clone(progress))
            .collect();
        for progress in &of_it {
            progress.closing.send_replace(true);
        }
        let all = async {
            for progress in &of_it {
                progress.until_done().await;
            }
        };
        let _ = tokio::time::timeout(SETTLE_WITHIN, all).await;
    }

    pub async fn tidy(&self) -> Result<(), Error> {
        self.shelf.tidy().await
    }

    /// Returns the progress entry of an exec's collection, and creates the entry if it does not exist. The
    /// flag is true if the entry was created.
    pub fn progress(&self, of: &Of, launch: Launch) -> Result<(Arc<CollectionProgress>, bool), Error> {
        let mut under_way = self.under_way();
        if let Some(progress) = under_way.get(of) {
            return Ok((Arc::clone(progress), false));
        }
        if under_way.keys().filter(|one| one.sandbox == of.sandbox).count() >= UNDER_WAY_MAX {
            let why =
                format!("{UNDER_WAY_MAX} execs with artifacts are in progress in this sandbox, the maximum");
            let what = "another exec with artifacts";
            return Err(Error::Runtime(runtime::Error::Capacity { what, why }));
        }
        let progress = Arc::new(CollectionProgress {
            closing: watch::Sender::new(false),
            launch: watch::Sender::new(launch),
            done: watch::Sender::new(false),
        });
        under_way.insert(of.clone(), Arc::clone(&progress));
        Ok((progress, true))
    }

    pub fn under_way(&self) -> MutexGuard<'_, HashMap<Of, Arc<CollectionProgress>>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CollectionProgress {
    pub async fn until_done(&self) {
        // Cannot fail: `self` holds the sender.
        let _ = self.done.subscribe().wait_for(|done| *done).await;
    }
}
