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
pub(crate) mod deal;
mod demand;
mod forget;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::sandbox::Start;
use api::server::PoolStatus;
use host::admission::Bounds;
use host::error::Error;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::Instant;
use tracing::Span;

use crate::handle::Handle;
use crate::journal::Record;
use crate::plan::Kind;
use crate::ready::Preparation;
pub use claim::Claim;
use demand::Demand;
use forget::{KINDS_MAX, Known, forgotten};

/// Made at once: as many as a small machine has cores. Whoever waits for a sandbox comes first.
const MAKING_AT_ONCE: usize = 2;
/// Of one kind, whatever was asked for.
const OF_A_KIND_MAX: u32 = 256;
/// After one could not be made, the next is tried after this.
const AGAIN_AFTER: Duration = Duration::from_secs(10);
/// What one is thought to take until one was weighed.
pub(crate) const UNKNOWN_BYTES: u64 = 64 << 20;
/// And no less than this, whatever the scale says.
const LEAST_BYTES: u64 = 1 << 20;

/// All shelves.
pub(crate) struct Pool {
    pub ready_least: u32,
    pub memory_bytes: u64,
    pub shelves: Mutex<Shelves>,
    pub turns: Arc<Semaphore>,
    pub changed: Arc<Notify>,
    pub began: Instant,
}

#[derive(Default)]
pub(crate) struct Shelves {
    pub of: HashMap<Kind, Shelf>,
    pub last_claim: Option<Instant>,
    /// Since when making waits for a quiet moment.
    pub waiting: Option<Instant>,
    /// Nothing is made ahead any more.
    pub closed: bool,
}

/// The sandboxes of one kind.
pub(crate) struct Shelf {
    pub ready: VecDeque<Ready>,
    pub making: u32,
    pub demand: Demand,
    /// The project that asked for it first.
    pub project: String,
    /// Its template is one that the operator wants ready in any case.
    pub always: bool,
    /// What the last one that was made takes.
    pub each_bytes: u64,
    pub not_before: Option<Instant>,
    pub warm: u64,
    pub cold: u64,
}

/// One that is ready.
pub(crate) struct Ready {
    pub handle: Arc<Handle>,
    /// Told who is about to claim it. The last word counts.
    pub near: watch::Sender<Option<Near>>,
    pub claims: oneshot::Sender<Claimed>,
    /// When its guest ends itself.
    pub until: Instant,
}

/// Who is about to claim a ready sandbox.
#[derive(Clone)]
pub(crate) struct Near {
    /// How long it will live.
    pub ttl: Duration,
    /// Whose time it takes.
    pub request: Span,
}

/// What a start that was held gets to go on.
pub(crate) struct Claimed {
    /// What is written down of it from now on.
    pub record: Record,
    /// What it is to have before it runs.
    pub preparation: Preparation,
    /// Told as soon as it is alive and somebody's.
    pub taken: oneshot::Sender<()>,
}

/// One is being made, until this is dropped.
pub(crate) struct Making {
    pub(crate) pool: Arc<Pool>,
    pub(crate) kind: Kind,
    pub(crate) _turn: OwnedSemaphorePermit,
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

    pub(crate) fn shelves(&self) -> MutexGuard<'_, Shelves> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now_ms(&self) -> u64 {
        host::clock::millis(self.began.elapsed())
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
    pub(crate) fn put(&self, kind: &Kind, each_bytes: u64, ready: Ready) {
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
    pub(crate) fn clear(&self) -> Vec<Arc<Handle>> {
        let mut shelves = self.shelves();
        let all = shelves.of.values_mut().flat_map(|shelf| shelf.ready.drain(..));
        // Whoever holds a start hears that its order never comes.
        all.map(|ready| ready.handle).collect()
    }

    /// A ready one of this kind that is made of the same: a template may have been made anew under its name.
    fn take(&self, kind: &Kind, same: impl Fn(&Record) -> bool) -> Option<Ready> {
        if api::defence::is_off("X-25") {
            self.count_undefended(kind);
        }
        let mut shelves = self.shelves();
        shelves.last_claim = Some(Instant::now());
        let shelf = shelves.of.get_mut(kind)?;
        shelf.ready.retain(|ready| !ready.claims.is_closed() && same(&ready.handle.record()));
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
    pub(crate) fn wanted(&mut self, now_ms: u64, least: u32) -> u32 {
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
            error = host::error::chain(error),
            "cannot pre-warm a sandbox of this template"
        );
        if let Some(shelf) = self.pool.shelves().of.get_mut(&self.kind) {
            shelf.not_before = Some(Instant::now() + AGAIN_AFTER);
        }
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        if let Some(shelf) = self.pool.shelves().of.get_mut(&self.kind) {
            shelf.making = shelf.making.saturating_sub(1);
        }
        self.pool.changed.notify_one();
    }
}
