//! Artifacts: files that a run created or changed, copied out of the sandbox when the run has ended.
//!
//! ```text
//! list the folders ─▶ record the request ─▶ start the exec ─▶ wait for its end ─▶ list again, copy out ─▶ manifest
//!                           │                                     │
//!                           └ a new server resumes here           └ a stop of the sandbox continues
//!                             if the sandbox is alive               here without waiting any longer
//! ```
//!
//! A changed file is recognized by its version, which differs from the version that the guest reported before
//! the exec was started; no clock is used. One task per exec does all the work, even if its client
//! disconnects. The stop of a sandbox waits briefly for collections whose exec has ended.
//!
//! | module | holds |
//! |---|---|
//! | `attendant` | the task of one exec |
//! | `choice` | the choice of the files to keep, as a pure function |
//! | `collect` | listing of folders, and copying of files |
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

/// Maximum number of collections that run at the same time. Each holds a page of a listing and a chunk of a
/// file in memory.
const COLLECTIONS_AT_ONCE: usize = 16;
/// Maximum number of collections of one project at a time, so that a sandbox that is slow to read does not
/// block other projects.
const COLLECTIONS_OF_PROJECT: usize = 4;
/// Maximum number of execs per sandbox with a collection in progress. Each collection polls its exec.
const UNDER_WAY_MAX: usize = 64;
/// Maximum time for which the stop of a sandbox waits for collections.
const SETTLE_WITHIN: Duration = Duration::from_secs(10);
/// Total size of manifests in bytes at which a page of a listing ends.
pub(crate) const PAGE_BYTES_MAX: usize = 8 << 20;

/// Stored artifacts, and collections in progress.
pub(crate) struct Keeper {
    pub shelf: Shelf,
    turns: Semaphore,
    turns_of: Mutex<HashMap<String, Arc<Semaphore>>>,
    under_way: Mutex<HashMap<Of, Arc<CollectionProgress>>>,
}

/// Progress of the collection of one exec.
pub(crate) struct CollectionProgress {
    /// True if the sandbox is about to stop.
    pub closing: watch::Sender<bool>,
    pub launch: watch::Sender<Launch>,
    pub done: watch::Sender<bool>,
}

/// State of the launch of the exec.
#[derive(Clone)]
pub(crate) enum Launch {
    NotYet,
    Started(Box<ExecInfo>),
    Refused(api::Error),
    /// The result is not known here: the launch failed without a definite result, or an earlier server
    /// recorded the request. The guest knows the state of the exec.
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

    /// Waits for a limited time until the collections of a sandbox that is about to stop are complete.
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

    /// Returns the progress of an exec's collection, and creates it if needed. The flag is true if it was
    /// created.
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
