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

use api::artifact::{Artifact, Artifacts};
use api::exec::{ExecInfo, ExecSpec};
use api::sandbox::SandboxState;
use api::{ErrorCode, ExecId, Layer, Ran, Retry, SandboxId};
use tokio::sync::{Semaphore, watch};

use crate::entry::Call;
use crate::error::{Error, chain};
use crate::exec::Exec;
use crate::ledger::Ledger;
use crate::live::Node;
use crate::objects::{Objects, Outgoing, Tally};
use attendant::{Attendant, gone};
pub(crate) use collect::regular_files;
use shelf::{Of, Shelf, Wanted};

/// Collections at once: each holds a page of a listing and a piece of a file.
const COLLECTIONS_AT_ONCE: usize = 16;
/// Of these, those of one project: one whose code is slow to be read keeps nobody else's from being read.
const COLLECTIONS_OF_PROJECT: usize = 4;
/// Execs of one sandbox whose files are waited for. Each is asked for now and then.
const UNDER_WAY_MAX: usize = 64;
/// How long the end of a sandbox waits for collections.
const SETTLE_WITHIN: Duration = Duration::from_secs(10);
/// Bytes of manifests in one answer, beyond which it ends.
const PAGE_BYTES_MAX: usize = 8 << 20;

/// What is kept, and what is under way.
pub(crate) struct Keeper {
    shelf: Shelf,
    turns: Semaphore,
    turns_of: Mutex<HashMap<String, Arc<Semaphore>>>,
    under_way: Mutex<HashMap<Of, Arc<Progress>>>,
}

/// How far the task of one exec is.
struct Progress {
    /// Whether the sandbox is about to end.
    closing: watch::Sender<bool>,
    launch: watch::Sender<Launch>,
    done: watch::Sender<bool>,
}

/// Whether the exec was started.
#[derive(Clone)]
enum Launch {
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
        // Those that nobody holds need no entry.
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
    fn progress(&self, of: &Of, launch: Launch) -> Result<(Arc<Progress>, bool), Error> {
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

    fn under_way(&self) -> MutexGuard<'_, HashMap<Of, Arc<Progress>>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Progress {
    async fn until_done(&self) {
        // We hold the sender.
        let _ = self.done.subscribe().wait_for(|done| *done).await;
    }
}

impl Node {
    /// Starts a command like [`Call::exec`], and keeps the files that it asks to be kept.
    ///
    /// # Errors
    /// As [`Call::exec`]; and this machine keeps none, or cannot write down that it is to.
    pub async fn exec(&self, call: &Call, id: &ExecId, spec: ExecSpec) -> Result<ExecInfo, Error> {
        let _turn = self.turn_to_launch(call, id, &spec).await?;
        self.launch(call, id, spec).await
    }

    /// Launches it, and has somebody attend to the files it is to leave.
    async fn launch(&self, call: &Call, id: &ExecId, mut spec: ExecSpec) -> Result<ExecInfo, Error> {
        let Some(keep) = spec.artifacts.take() else { return call.exec(id, spec).await };
        keep.check().map_err(Error::Request)?;
        let keeper = &self.shared.keeper;
        if keeper.shelf.retention().is_zero() {
            return Err(Error::Request(keeps_none()));
        }
        let entry = Arc::clone(call.entry());
        let of = Of { project: entry.shown().project, sandbox: entry.id().clone(), exec: id.clone() };
        if keeper.shelf.kept(&of).await?.is_some() {
            return call.exec(id, spec).await;
        }
        let (progress, is_new) = keeper.progress(&of, Launch::NotYet)?;
        let mut launch = progress.launch.subscribe();
        if is_new {
            let attendant = Attendant { shared: Arc::clone(&self.shared), entry, of, progress };
            let wanted = Wanted {
                of: attendant.of.clone(),
                keep,
                before: choice::Marks::default(),
                unseen: false,
                started: false,
            };
            tokio::spawn(attendant.begin(wanted, spec.clone(), tracing::Span::current()));
        }
        let launched = match launch.wait_for(|launch| !matches!(launch, Launch::NotYet)).await {
            Ok(launch) => launch.clone(),
            // The task holds the sender until it has said something.
            Err(_) => Launch::Elsewhere,
        };
        match launched {
            Launch::Started(info) => Ok(*info),
            Launch::Refused(error) => Err(Error::Request(error)),
            Launch::NotYet | Launch::Elsewhere => call.exec(id, spec).await,
        }
    }

    /// The same, and a reader of what it writes.
    ///
    /// # Errors
    /// As [`Node::exec`].
    pub async fn follow(&self, call: &Call, id: &ExecId, spec: ExecSpec) -> Result<(ExecInfo, Exec), Error> {
        let _turn = self.turn_to_launch(call, id, &spec).await?;
        match spec.artifacts {
            None => call.follow(id, spec).await,
            Some(_) => Ok((self.launch(call, id, spec).await?, call.reader(id.clone()))),
        }
    }

    /// What was kept of an exec; waits so long for what is under way. Works after its sandbox is gone.
    ///
    /// # Errors
    /// What the file system said.
    pub async fn artifacts(
        &self,
        project: &str,
        sandbox: &SandboxId,
        exec: &ExecId,
        wait: Duration,
    ) -> Result<Option<Artifacts>, Error> {
        let of = Of { project: project.into(), sandbox: sandbox.clone(), exec: exec.clone() };
        let keeper = &self.shared.keeper;
        let progress = keeper.under_way().get(&of).map(Arc::clone);
        if let Some(progress) = progress {
            let _ = tokio::time::timeout(wait, progress.until_done()).await;
        }
        if let Some(kept) = keeper.shelf.kept(&of).await? {
            return Ok(Some(kept));
        }
        let under_way = keeper.under_way().contains_key(&of);
        let wanted = under_way || keeper.shelf.is_wanted(&of).await?;
        Ok(wanted.then(|| Artifacts::pending(of.sandbox, of.exec)))
    }

    /// One artifact, and its bytes.
    ///
    /// # Errors
    /// What the file system said.
    pub async fn artifact(
        &self,
        project: &str,
        sandbox: &SandboxId,
        exec: &ExecId,
        number: u32,
    ) -> Result<Option<(Artifact, Outgoing)>, Error> {
        let of = Of { project: project.into(), sandbox: sandbox.clone(), exec: exec.clone() };
        let shelf = &self.shared.keeper.shelf;
        let kept = shelf.kept(&of).await?;
        let item = kept.and_then(|kept| kept.items.into_iter().find(|item| item.number == number));
        let Some(item) = item else { return Ok(None) };
        Ok(shelf.contents(&of, number).await?.map(|outgoing| (item, outgoing)))
    }

    /// What was kept of the execs of a sandbox after this one, in the order of their ids; and whether there is more.
    ///
    /// # Errors
    /// What the file system said.
    pub async fn artifacts_of(
        &self,
        project: &str,
        sandbox: &SandboxId,
        after: Option<&ExecId>,
        limit: usize,
    ) -> Result<(Vec<Artifacts>, bool), Error> {
        let shelf = &self.shared.keeper.shelf;
        let (mut page, mut bytes) = (Vec::new(), 0);
        for exec in shelf.execs(project, sandbox).await? {
            if after.is_some_and(|after| exec <= *after) {
                continue;
            }
            if page.len() >= limit || bytes >= PAGE_BYTES_MAX {
                return Ok((page, true));
            }
            let of = Of { project: project.into(), sandbox: sandbox.clone(), exec };
            if let Some(kept) = shelf.kept(&of).await? {
                bytes += serde_json::to_vec(&kept).map_or(0, |text| text.len());
                page.push(kept);
            }
        }
        Ok((page, false))
    }

    /// Goes on with what a server before this one had begun to keep. A server starts without what cannot be read or written now;
    /// the next one tries again.
    pub(crate) async fn recover_artifacts(&self) {
        let all = match self.shared.keeper.shelf.all_wanted().await {
            Ok(all) => all,
            Err(error) => {
                return tracing::error!(
                    error = chain(&error),
                    "cannot list unfinished artifact collections to resume"
                );
            }
        };
        for wanted in all {
            let of = wanted.of.clone();
            if let Err(error) = self.recover_wanted(wanted).await {
                tracing::error!(sandbox = %of.sandbox, error = chain(&error), "cannot resume artifact collection");
            }
        }
    }

    async fn recover_wanted(&self, wanted: Wanted) -> Result<(), Error> {
        let keeper = &self.shared.keeper;
        if keeper.shelf.kept(&wanted.of).await?.is_some() {
            // Killed between the two.
            return keeper.shelf.unwant(&wanted.of).await;
        }
        let entry = self.shared.entries().get(&wanted.of.sandbox).map(Arc::clone);
        let living = entry.filter(|entry| {
            [SandboxState::Running, SandboxState::Paused].contains(&entry.state())
                && entry.shown().project == wanted.of.project
        });
        match living {
            Some(entry) => {
                // More than may be under way are not there: they were counted when they were begun.
                let Ok((progress, _)) = keeper.progress(&wanted.of, Launch::Elsewhere) else { return Ok(()) };
                let (shared, of) = (Arc::clone(&self.shared), wanted.of.clone());
                let attendant = Attendant { shared, entry, of, progress };
                tokio::spawn(attendant.go_on(wanted));
                Ok(())
            }
            None => {
                let (sandbox, exec) = (wanted.of.sandbox.clone(), wanted.of.exec.clone());
                keeper.shelf.clear(&wanted.of).await?;
                keeper.shelf.keep(&wanted.of, &Artifacts::lost(sandbox, exec, gone())).await?;
                keeper.shelf.unwant(&wanted.of).await
            }
        }
    }
}

fn keeps_none() -> api::Error {
    api::Error {
        code: ErrorCode::Unsupported,
        message: "this server does not store artifacts: artifact_retention_ms is 0".into(),
        layer: Layer::Policy,
        ran: Ran::No,
        retry: Retry::Useless,
        fix: "Omit `artifacts` and read the files while the sandbox runs.".into(),
    }
}
