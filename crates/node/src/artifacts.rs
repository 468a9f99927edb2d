//! Artifacts: files that a run made or changed, taken out of the sandbox when it has ended.
//!
//! ```text
//! look at the folders ─▶ write down what is wanted ─▶ start the exec ─▶ wait for its end ─▶ look again, take out ─▶ manifest
//!                             │                                             │
//!        a server that starts │ goes on here, if the sandbox lives          └ the sandbox is asked to end: what is there now
//! ```
//!
//! What a file was before is known by its version, as the guest saw it before the exec was started: no clock is asked. One task
//! for each such exec does all of it, whoever asked and left. The end of a sandbox waits a little for those whose exec has ended.
//!
//! | module | holds |
//! |---|---|
//! | `attendant` | the task of one exec |
//! | `choice` | which files are kept, as a pure function |
//! | `collect` | looking at folders, and taking files out |
//! | `shelf` | where they are kept, and for how long |

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
use host::objects::{Objects, Tally};
use tokio::sync::{Semaphore, watch};

pub(crate) use attendant::{Attendant, gone};
pub(crate) use choice::Marks;
pub(crate) use collect::regular_files;
use shelf::Shelf;
pub(crate) use shelf::{Of, Wanted};

/// Collections at once: each holds a page of a listing and a piece of a file.
const COLLECTIONS_AT_ONCE: usize = 16;
/// Of these, those of one project: one whose code is slow to be read keeps nobody else's from being read.
const COLLECTIONS_OF_PROJECT: usize = 4;
/// Execs of one sandbox whose files are waited for. Each is asked for now and then.
const UNDER_WAY_MAX: usize = 64;
/// How long the end of a sandbox waits for collections.
const SETTLE_WITHIN: Duration = Duration::from_secs(10);
/// Bytes of manifests in one answer, beyond which it ends.
pub(crate) const PAGE_BYTES_MAX: usize = 8 << 20;

/// What is kept, and what is under way.
pub(crate) struct Keeper {
    pub shelf: Shelf,
    turns: Semaphore,
    turns_of: Mutex<HashMap<String, Arc<Semaphore>>>,
    under_way: Mutex<HashMap<Of, Arc<Progress>>>,
}

/// How far the task of one exec is.
pub(crate) struct Progress {
    /// Whether the sandbox is about to end.
    pub closing: watch::Sender<bool>,
    pub launch: watch::Sender<Launch>,
    pub done: watch::Sender<bool>,
}

/// Whether the exec was started.
#[derive(Clone)]
pub(crate) enum Launch {
    NotYet,
    Started(Box<ExecInfo>),
    Refused(api::Error),
    /// By whoever asks for it again: what is wanted was written down by a server that is gone.
    Elsewhere,
}

impl Keeper {
    pub fn open(
        data: &Path,
        reserve_bytes: u64,
        retention: Duration,
        ledger: &Arc<Ledger>,
    ) -> Result<Self, Error> {
        // The project stands behind what is kept and what is wanted.
        let tally = Tally { ledger: Arc::clone(ledger), depth: 1 };
        let objects = Objects::open(data.join("artifacts"), reserve_bytes, Some(tally))?;
        let shelf = Shelf::new(objects, retention);
        let turns = Semaphore::new(COLLECTIONS_AT_ONCE);
        Ok(Self { shelf, turns, turns_of: Mutex::default(), under_way: Mutex::default() })
    }

    /// The turns of one project.
    fn turns_of(&self, project: &str) -> Arc<Semaphore> {
        let mut all = self.turns_of.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that nobody holds need no handle.
        all.retain(|_, turns| Arc::strong_count(turns) > 1);
        let fresh = || Arc::new(Semaphore::new(COLLECTIONS_OF_PROJECT));
        Arc::clone(all.entry(project.to_owned()).or_insert_with(fresh))
    }

    /// Waits until what can be had of a sandbox that is about to end has been taken out of it, but not for long.
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

    /// The progress of an exec, and whether it is new here.
    pub fn progress(&self, of: &Of, launch: Launch) -> Result<(Arc<Progress>, bool), Error> {
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
        let progress = Arc::new(Progress {
            closing: watch::Sender::new(false),
            launch: watch::Sender::new(launch),
            done: watch::Sender::new(false),
        });
        under_way.insert(of.clone(), Arc::clone(&progress));
        Ok((progress, true))
    }

    pub fn under_way(&self) -> MutexGuard<'_, HashMap<Of, Arc<Progress>>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Progress {
    pub async fn until_done(&self) {
        // We hold the sender.
        let _ = self.done.subscribe().wait_for(|done| *done).await;
    }
}
