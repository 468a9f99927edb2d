//! Sandboxes that are ready before anybody asks for one.
//!
//! ```text
//! made ──▶ posture checked ──▶ interpreter warmed ──▶ on its shelf ──claim──▶ ours to give ──▶ running, somebody's
//!   └──────────┴───────────────────┴─ failed, dead, too old, too many: removed, and nobody was told of it
//! ```
//!
//! A ready sandbox is a start that is held in its middle. Its record says `starting` and `pooled`; it belongs to no project,
//! nobody sees it, and nothing of anybody's has run in it. A claim gives the start its order, and it goes on. So a claim is atomic for
//! the reason that a start is: the record in which it runs and is somebody's is written in one step, and what a killed server leaves
//! `starting` is removed by the next one. It is claimed once, by one project, and never comes back.

mod claim;
mod deal;
mod demand;
mod forget;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use api::exec::LostCause;
use api::limits::Limits;
use api::policy::Policy;
use api::sandbox::{CreateSandbox, SandboxState, Start, Tier};
use api::server::PoolStatus;
use api::trace::STEP;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::Instant;
use tracing::field::Empty;
use tracing::{Instrument as _, Span, info_span};

use crate::admission::{self, Bounds};
use crate::driver::Wanted;
use crate::entry::Entry;
use crate::error::Error;
use crate::journal::Record;
use crate::live::{Node, Shared};
use crate::machine;
use crate::plan::Order;
use crate::sandbox::Sandbox;
use crate::template;
pub use claim::Claim;
use deal::{Want, deal};
use demand::Demand;
use forget::{KINDS_MAX, Known, forgotten};

/// How long one is kept ready; its guest ends itself then, too. Until somebody claims it, it has no other time to live.
pub(crate) const READY_MS: u64 = 3_600_000;
/// It is taken off its shelf this long before, so that nobody claims one that is about to end.
const RETIRE_BEFORE: Duration = Duration::from_secs(60);
/// Made at once: as many as a small machine has cores. Whoever waits for a sandbox comes first.
const MAKING_AT_ONCE: usize = 2;
/// Of one kind, whatever was asked for.
const OF_A_KIND_MAX: u32 = 256;
/// Nothing is made while claims come one after the other, for a moment: they are what somebody waits for.
const QUIET: Duration = Duration::from_millis(20);
/// But no longer than this.
const QUIET_MAX: Duration = Duration::from_millis(200);
/// After one could not be made, the next is tried after this.
const AGAIN_AFTER: Duration = Duration::from_secs(10);
/// Sizes are looked at this often, whatever happens.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A guest that is asked whether it lives answers in less than a millisecond.
const ALIVE_WITHIN: Duration = Duration::from_secs(1);
/// What one is thought to take until one was weighed.
const UNKNOWN_BYTES: u64 = 64 << 20;
/// And no less than this, whatever the scale says.
const LEAST_BYTES: u64 = 1 << 20;
/// Their disks may have this part of what is free.
const DISK_PART: u64 = 4;

/// What ready sandboxes are ready for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kind {
    pub runtime: String,
    pub tier: Tier,
    pub template: String,
    /// With the time to live of one that nobody has claimed.
    pub limits: Limits,
    /// Whether root may run commands in it.
    pub rooted: bool,
}

/// All shelves.
pub(crate) struct Pool {
    ready_least: u32,
    memory_bytes: u64,
    shelves: Mutex<Shelves>,
    turns: Arc<Semaphore>,
    changed: Arc<Notify>,
    began: Instant,
}

#[derive(Default)]
struct Shelves {
    of: HashMap<Kind, Shelf>,
    last_claim: Option<Instant>,
    /// Since when making waits for a quiet moment.
    waiting: Option<Instant>,
    /// Nothing is made ahead any more.
    closed: bool,
}

/// The sandboxes of one kind.
struct Shelf {
    ready: VecDeque<Ready>,
    making: u32,
    demand: Demand,
    /// The project that asked for it first.
    project: String,
    /// Its template is one that the operator wants ready in any case.
    always: bool,
    /// What the last one that was made takes.
    each_bytes: u64,
    not_before: Option<Instant>,
    warm: u64,
    cold: u64,
}

/// One that is ready.
struct Ready {
    entry: Arc<Entry>,
    /// Told who is about to claim it. The last word counts.
    near: watch::Sender<Option<Near>>,
    claims: oneshot::Sender<Claimed>,
    /// When its guest ends itself.
    until: Instant,
}

/// Who is about to claim a ready sandbox.
#[derive(Clone)]
struct Near {
    /// How long it will live.
    ttl: Duration,
    /// Whose time it takes.
    request: Span,
}

/// What a start that was held gets to go on.
pub(crate) struct Claimed {
    /// What is written down of it from now on.
    pub record: Record,
    /// What it is to have before it runs.
    pub wanted: Wanted,
    /// Told as soon as it is alive and somebody's.
    pub taken: oneshot::Sender<()>,
}

/// One is being made, until this is dropped.
pub(crate) struct Making {
    shared: Arc<Shared>,
    kind: Kind,
    _turn: OwnedSemaphorePermit,
}

impl Pool {
    pub fn new(bounds: &Bounds) -> Self {
        Self {
            ready_least: bounds.pool_ready,
            memory_bytes: bounds.pool_memory_bytes,
            shelves: Mutex::default(),
            turns: Arc::new(Semaphore::new(MAKING_AT_ONCE)),
            changed: Arc::default(),
            began: Instant::now(),
        }
    }

    fn shelves(&self) -> MutexGuard<'_, Shelves> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        crate::clock::millis(self.began.elapsed())
    }

    /// Has a kind ready from now on, whether or not anybody asks for it.
    pub fn keep(&self, kind: Kind) {
        let now_ms = self.now_ms();
        if let Some(shelf) = self.shelves().shelf(kind, "", now_ms) {
            shelf.always = true;
        }
        self.changed.notify_one();
    }

    /// Whether nothing is made ahead any more.
    pub fn is_closed(&self) -> bool {
        self.shelves().closed
    }

    /// How its kinds are doing.
    pub fn status(&self) -> Vec<PoolStatus> {
        let now_ms = self.now_ms();
        let mut shelves = self.shelves();
        let status = |(kind, shelf): (&Kind, &mut Shelf)| PoolStatus {
            template: kind.template.clone(),
            runtime: kind.runtime.clone(),
            memory_bytes: kind.limits.memory_bytes,
            ready: u32::try_from(shelf.ready.len()).unwrap_or(u32::MAX),
            making: shelf.making,
            wanted: shelf.wanted(now_ms, self.ready_least),
            warm: shelf.warm,
            cold: shelf.cold,
        };
        let mut all: Vec<_> = shelves.of.iter_mut().map(status).collect();
        all.sort_by(|one, other| {
            (&one.template, &one.runtime, one.memory_bytes).cmp(&(
                &other.template,
                &other.runtime,
                other.memory_bytes,
            ))
        });
        all
    }

    /// Puts one onto its shelf, unless nothing is wanted any more.
    fn put(&self, kind: &Kind, each_bytes: u64, ready: Ready) {
        let mut shelves = self.shelves();
        let closed = shelves.closed;
        if let Some(shelf) = shelves.of.get_mut(kind).filter(|_| !closed) {
            shelf.each_bytes = each_bytes.max(LEAST_BYTES);
            shelf.ready.push_back(ready);
        }
    }

    /// Who tells that something has changed.
    pub fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.changed)
    }

    /// Takes everything off the shelves; says what has to go.
    fn clear(&self) -> Vec<Arc<Entry>> {
        let mut shelves = self.shelves();
        let all = shelves.of.values_mut().flat_map(|shelf| shelf.ready.drain(..));
        // Whoever holds a start hears that its order never comes.
        all.map(|ready| ready.entry).collect()
    }

    /// A ready one of this kind that is made of the same: a template may have been made anew under its name.
    fn take(&self, kind: &Kind, same: impl Fn(&Record) -> bool) -> Option<Ready> {
        if api::defence::is_off("X-25") {
            self.count_undefended(kind);
        }
        let mut shelves = self.shelves();
        shelves.last_claim = Some(Instant::now());
        let shelf = shelves.of.get_mut(kind)?;
        shelf.ready.retain(|ready| !ready.claims.is_closed() && same(&ready.entry.record()));
        shelf.ready.pop_front()
    }

    /// A project asked for one of this kind, and may have it: that it was refused nothing is known here. From now on some are
    /// ready, for as long as it is asked for.
    pub fn asked(&self, kind: &Kind, project: &str, start: Start) {
        let now_ms = self.now_ms();
        let mut shelves = self.shelves();
        let forgotten = shelves.make_place(kind, project);
        if let Some(shelf) = shelves.shelf(kind.clone(), project, now_ms) {
            shelf.demand.add(now_ms);
            shelf.not_before = None;
            match start {
                Start::Warm => shelf.warm += 1,
                Start::Cold => shelf.cold += 1,
            }
        }
        drop(shelves);
        // What was ready of it ends, which others are told of.
        drop(forgotten);
        self.changed.notify_one();
    }

    /// For the control of X-25, in test builds: whoever asks is counted, whether or not it is refused, and no kind is forgotten.
    fn count_undefended(&self, kind: &Kind) {
        let now_ms = self.now_ms();
        if let Some(shelf) = self.shelves().shelf(kind.clone(), "", now_ms) {
            shelf.demand.add(now_ms);
        }
        self.changed.notify_one();
    }
}

impl Shelves {
    /// Forgets a kind where there is no place for one more; says what was ready of it.
    fn make_place(&mut self, kind: &Kind, project: &str) -> Option<Shelf> {
        if self.of.contains_key(kind) || api::defence::is_off("X-25") {
            return None;
        }
        let (kinds, known): (Vec<&Kind>, Vec<Known<'_>>) = self
            .of
            .iter()
            .map(|(kind, shelf)| {
                let Shelf { project, always, demand, .. } = shelf;
                (kind, Known { project, last_ms: demand.last_ms(), always: *always })
            })
            .unzip();
        let kind = (*kinds.get(forgotten(&known, project)?)?).clone();
        self.of.remove(&kind)
    }

    /// The shelf of a kind; there is none where too many kinds are asked for.
    fn shelf(&mut self, kind: Kind, project: &str, now_ms: u64) -> Option<&mut Shelf> {
        if self.closed || (self.of.len() >= KINDS_MAX && !self.of.contains_key(&kind)) {
            return None;
        }
        Some(self.of.entry(kind).or_insert_with(|| Shelf {
            ready: VecDeque::new(),
            making: 0,
            demand: Demand::new(now_ms),
            project: project.to_owned(),
            always: false,
            each_bytes: UNKNOWN_BYTES,
            not_before: None,
            warm: 0,
            cold: 0,
        }))
    }
}

impl Shelf {
    fn wanted(&mut self, now_ms: u64, least: u32) -> u32 {
        let wanted = self.demand.wanted(now_ms, least);
        if self.always { wanted.max(least).max(1) } else { wanted }.min(OF_A_KIND_MAX)
    }
}

impl Making {
    /// It could not be: the next one is tried after a while.
    pub(crate) fn failed(&self, error: &Error) {
        let template = &self.kind.template;
        tracing::warn!(
            template,
            error = crate::error::chain(error),
            "cannot pre-warm a sandbox of this template"
        );
        if let Some(shelf) = self.shared.pool.shelves().of.get_mut(&self.kind) {
            shelf.not_before = Some(Instant::now() + AGAIN_AFTER);
        }
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        if let Some(shelf) = self.shared.pool.shelves().of.get_mut(&self.kind) {
            shelf.making = shelf.making.saturating_sub(1);
        }
        self.shared.pool.changed.notify_one();
    }
}

impl Node {
    /// Removes all ready sandboxes, and waits until they are gone: somebody needs their room.
    pub(crate) async fn make_room(&self) -> bool {
        let all = self.shared.pool.clear();
        for entry in &all {
            entry.until(SandboxState::is_terminal).await;
        }
        !all.is_empty()
    }

    /// Ends making sandboxes ahead, and removes what is nobody's: the server ends. What is left, the next one removes.
    pub async fn close_pool(&self) {
        self.shared.pool.shelves().closed = true;
        drop(self.shared.pool.clear());
        // One that is still being made finds no shelf, and is removed then.
        loop {
            let is_left = |entry: &&Arc<Entry>| entry.record().pooled && !entry.shown().state.is_terminal();
            let left = self.shared.entries().values().find(is_left).map(Arc::clone);
            let Some(entry) = left else { return };
            // Or it is somebody's: a claim may have been on its way.
            entry.until(|state| state.is_terminal() || state == SandboxState::Running).await;
        }
    }

    /// Makes what is wanted and removes what is not, for as long as there is this node.
    pub(crate) async fn tend_pool(shared: Weak<Shared>, changed: Arc<Notify>) {
        loop {
            let Some(node) = shared.upgrade().map(|shared| Self { shared }) else { return };
            let pause = node.tend();
            drop(node);
            if let Some(pause) = pause {
                tokio::time::sleep(pause).await;
            } else {
                let _ = tokio::time::timeout(LOOK_EVERY, changed.notified()).await;
            }
        }
    }

    /// Looks once at all shelves. Says how long to wait where it is not a good moment.
    fn tend(&self) -> Option<Duration> {
        let shared = &self.shared;
        let (now, now_ms) = (Instant::now(), shared.pool.now_ms());
        let room = shared.pool_room();
        let mut shelves = shared.pool.shelves();
        let Shelves { of, last_claim, waiting, closed } = &mut *shelves;
        if *closed {
            return None;
        }
        let mut kinds: Vec<_> = of.iter_mut().collect();
        let wants: Vec<_> = kinds
            .iter_mut()
            .map(|(kind, shelf)| Want {
                count: shelf.wanted(now_ms, shared.pool.ready_least),
                memory_bytes: shelf.each_bytes,
                disk_bytes: kind.limits.disk_bytes,
            })
            .collect();
        let dealt = deal(room.memory_bytes.min(shared.pool.memory_bytes), room.disk_bytes, &wants);
        let (mut missing, mut unwanted) = (Vec::new(), Vec::new());
        for ((kind, shelf), wanted) in kinds.into_iter().zip(dealt) {
            shelf.ready.retain(|ready| !ready.claims.is_closed());
            let ready = u32::try_from(shelf.ready.len()).unwrap_or(u32::MAX);
            unwanted.extend((wanted..ready).filter_map(|_| shelf.ready.pop_back()));
            let able = shelf.not_before.is_none_or(|at| at <= now);
            if able && ready + shelf.making < wanted {
                missing.push(kind.clone());
            }
        }
        of.retain(|_, shelf| shelf.always || shelf.making > 0 || !shelf.demand.is_over(now_ms));
        if missing.is_empty() || room.is_busy {
            *waiting = None;
            return None;
        }
        let since = *waiting.get_or_insert(now);
        let quiet = last_claim.is_none_or(|at| at + QUIET <= now);
        if !quiet && since + QUIET_MAX > now {
            return Some(QUIET);
        }
        for kind in missing {
            let Ok(turn) = Arc::clone(&shared.pool.turns).try_acquire_owned() else { break };
            if let Some(shelf) = of.get_mut(&kind) {
                shelf.making += 1;
            }
            *waiting = None;
            let making = Making { shared: Arc::clone(shared), kind, _turn: turn };
            tokio::spawn(self.clone().make_ahead(making));
        }
        drop(shelves);
        drop(unwanted);
        None
    }

    /// Begins to make one.
    async fn make_ahead(self, making: Making) {
        let Kind { tier, template, limits, rooted, .. } = making.kind.clone();
        let request = CreateSandbox { template, tier, limits: limits.into(), ..CreateSandbox::default() };
        let order = Order {
            project: String::new(),
            request,
            may_open: false,
            may_root: rooted,
            auto_resume: crate::AutoResume::default(),
        };
        // Until the record is written, the template's layers are kept by this lock, and then by the record.
        let using = match template::using(&self.shared.data).await {
            Ok(using) => using,
            Err(error) => return making.failed(&error),
        };
        let planned = self.plan(&order).and_then(|plan| {
            let record = self.record(&machine::fresh_id()?, &order, &plan, Policy::default())?;
            Ok(Record { pooled: true, ..record })
        });
        match planned {
            Ok(record) => self.admit_ahead(record, making),
            Err(error) => making.failed(&error),
        }
        drop(using);
    }
}

/// What may be used for sandboxes that nobody has asked for yet, those that are there included.
struct PoolRoom {
    memory_bytes: u64,
    disk_bytes: u64,
    /// Somebody waits for a sandbox of their own.
    is_busy: bool,
}

impl Shared {
    fn pool_room(&self) -> PoolRoom {
        let (mut disks, mut memory) = (0, 0);
        for (kind, shelf) in &self.pool.shelves().of {
            let count = shelf.ready.len() as u64 + u64::from(shelf.making);
            disks += count * kind.limits.disk_bytes;
            memory += count * shelf.each_bytes;
        }
        let free = admission::disk_free_bytes(&self.data).saturating_sub(self.bounds.disk_reserve_bytes);
        let spare = admission::memory_free_bytes().saturating_sub(self.bounds.memory_reserve_bytes);
        PoolRoom {
            memory_bytes: spare + memory,
            disk_bytes: (free + disks) / DISK_PART,
            is_busy: self.turns.are_scarce(),
        }
    }

    /// Makes a sandbox, and has it ready on its shelf until somebody claims it; then it is that one's. The end of a wait for nobody is
    /// an error, like the end of any start that came to nothing.
    pub(crate) async fn hold_ready(
        &self,
        entry: &Arc<Entry>,
        making: Making,
        mut unwanted: watch::Receiver<bool>,
    ) -> Result<(Sandbox, Wanted), Error> {
        let begun = Instant::now();
        let started = async {
            let sandbox = self.start(entry).await?;
            self.warm(entry, &sandbox).await.map(|()| sandbox)
        };
        // How it was made is shown to whoever has it.
        let whole = info_span!(target: STEP, "made ahead", sandbox = entry.id().as_str(), exec = Empty);
        let sandbox = started.instrument(whole).await.inspect_err(|error| making.failed(error))?;
        let each_bytes = sandbox.usage().await.map_or(UNKNOWN_BYTES, |usage| usage.sandbox_memory_bytes);
        let (near, mut nearing) = watch::channel(None::<Near>);
        let (claims, mut claimed) = oneshot::channel();
        let until = begun + Duration::from_millis(READY_MS);
        self.pool.put(&making.kind, each_bytes, Ready { entry: Arc::clone(entry), near, claims, until });
        drop(making);
        let nobody = || Error::Lost(LostCause::Stopped);
        let until = until - RETIRE_BEFORE;
        let claimed = loop {
            tokio::select! {
                biased;
                // While the claim is written down, both at once: that it is alive, and how long it may live from now on. One that
                // comes back to its shelf gets its time back.
                Ok(()) = nearing.changed() => {
                    let Some(near) = nearing.borrow_and_update().clone() else { continue };
                    let claim = near.request.in_scope(|| info_span!(target: STEP, "claim"));
                    sandbox.live_for(near.ttl, ALIVE_WITHIN).instrument(claim).await?;
                }
                claimed = &mut claimed => break claimed.map_err(|_| nobody())?,
                cause = sandbox.ended() => return Err(Error::Lost(cause)),
                Ok(()) = async { unwanted.wait_for(|unwanted| *unwanted).await.map(drop) } => return Err(nobody()),
                () = tokio::time::sleep_until(until) => return Err(nobody()),
            }
        };
        entry.replace(claimed.record);
        entry.active(Instant::now());
        let _ = claimed.taken.send(());
        Ok((sandbox, claimed.wanted))
    }

    /// Has the interpreter of a template that names imports do them.
    async fn warm(&self, entry: &Entry, sandbox: &Sandbox) -> Result<(), Error> {
        let record = entry.record();
        if !record.imports.is_empty() {
            sandbox.prepare(&record.imports, &record.env, record.sandbox.limits.cpu_millis).await?;
            sandbox.interpreter().await?;
            entry.now_prepared();
        }
        Ok(())
    }
}
