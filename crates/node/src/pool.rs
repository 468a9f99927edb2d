//! The pool: pre-warmed sandboxes, which are ready before they are requested.
//!
//! ```text
//! created ─▶ posture checked ─▶ interpreter warmed ─▶ on its shelf ──claim──▶ claimed ──order──▶ running, owned by a project
//!   └──────────────┴──────────────────┴─ failed, dead, too old or surplus: removed, never visible to clients
//! ```
//!
//! A pre-warmed sandbox is a sandbox whose startup is suspended halfway. Its record is marked `starting` and
//! `pooled`; it belongs to no project, no client sees it, and no user code has run in it. A claim passes an
//! order to the suspended startup, which then continues. A claim is therefore atomic for the same reason as
//! every startup: one write records the sandbox as running and owned, and a restarted server removes all
//! sandboxes that are still in the state `starting`. A sandbox is claimed at most once, by one project, and
//! never returns to the pool after use.

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
use crate::journal::SandboxRecord;
use crate::plan::PoolKind;
use crate::ready::Preparation;
pub use claim::Claim;
use demand::Demand;
use forget::{EvictionCandidate, KINDS_MAX, forgotten};

/// Maximum number of sandboxes that are pre-warmed at the same time: the number of cores of a small machine.
/// Requested sandboxes have priority.
const MAKING_AT_ONCE: usize = 2;
/// Maximum number of pre-warmed sandboxes of one kind, regardless of demand.
const OF_A_KIND_MAX: u32 = 256;
/// Delay before the next attempt to pre-warm a sandbox of a kind after a failure.
const AGAIN_AFTER: Duration = Duration::from_secs(10);
/// Assumed memory use of a pre-warmed sandbox in bytes, until one sandbox of its kind has been measured.
pub(crate) const UNKNOWN_BYTES: u64 = 64 << 20;
/// Minimum memory use of a pre-warmed sandbox in bytes that is assumed, even if less was measured.
const LEAST_BYTES: u64 = 1 << 20;

/// All shelves, one for each kind of sandbox, and the limits of the pool.
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
    pub of: HashMap<PoolKind, Shelf>,
    pub last_claim: Option<Instant>,
    /// Time at which pre-warming began to wait for a short period without claims.
    pub waiting: Option<Instant>,
    /// True if the pool accepts no more sandboxes, because the server is shutting down.
    pub closed: bool,
}

/// The pre-warmed sandboxes of one kind.
pub(crate) struct Shelf {
    pub ready: VecDeque<Ready>,
    pub making: u32,
    pub demand: Demand,
    /// Project that was the first to request this kind.
    pub project: String,
    /// True if the operator configured the template to be always pre-warmed.
    pub always: bool,
    /// Memory use in bytes of the most recently pre-warmed sandbox.
    pub each_bytes: u64,
    pub not_before: Option<Instant>,
    pub warm: u64,
    pub cold: u64,
}

/// A pre-warmed sandbox on its shelf.
pub(crate) struct Ready {
    pub handle: Arc<Handle>,
    /// Announces a claim before its order arrives. Only the last value counts.
    pub near: watch::Sender<Option<Near>>,
    pub claims: oneshot::Sender<Claimed>,
    /// Time at which the sandbox ends if it is not claimed. The guest enforces it.
    pub until: Instant,
}

/// The announcement of a claim.
#[derive(Clone)]
pub(crate) struct Near {
    /// Time to live after the claim.
    pub ttl: Duration,
    /// Span of the request that claims the sandbox.
    pub request: Span,
}

/// The claim that a suspended startup receives, and with which it continues.
pub(crate) struct Claimed {
    /// New record of the sandbox, with its project.
    pub record: SandboxRecord,
    /// Work to do in the sandbox before it counts as running.
    pub preparation: Preparation,
    /// Notified as soon as the sandbox is known to be alive and has its new record.
    pub taken: oneshot::Sender<()>,
}

/// Marks a sandbox as being pre-warmed, until this value is dropped.
pub(crate) struct Making {
    pub(crate) pool: Arc<Pool>,
    pub(crate) kind: PoolKind,
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

    /// Keeps a kind pre-warmed from now on, regardless of demand.
    pub fn keep(&self, kind: PoolKind) {
        let now_ms = self.now_ms();
        if let Some(shelf) = self.shelves().shelf(kind, "", now_ms) {
            shelf.always = true;
        }
        self.changed.notify_one();
    }

    /// Returns true if the pool accepts no more sandboxes.
    pub fn is_closed(&self) -> bool {
        self.shelves().closed
    }

    /// Returns the status of each kind.
    pub fn status(&self) -> Vec<PoolStatus> {
        let now_ms = self.now_ms();
        let mut shelves = self.shelves();
        let status = |(kind, shelf): (&PoolKind, &mut Shelf)| PoolStatus {
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

    /// Puts a sandbox onto its shelf. If the pool is closed or the kind was forgotten, drops the sandbox,
    /// which removes it.
    pub(crate) fn put(&self, kind: &PoolKind, each_bytes: u64, ready: Ready) {
        let mut shelves = self.shelves();
        let closed = shelves.closed;
        if let Some(shelf) = shelves.of.get_mut(kind).filter(|_| !closed) {
            shelf.each_bytes = each_bytes.max(LEAST_BYTES);
            shelf.ready.push_back(ready);
        }
    }

    /// Returns the notification that signals changes to the pool.
    pub fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.changed)
    }

    /// Empties all shelves, and returns their sandboxes, which are then removed.
    pub(crate) fn clear(&self) -> Vec<Arc<Handle>> {
        let mut shelves = self.shelves();
        let all = shelves.of.values_mut().flat_map(|shelf| shelf.ready.drain(..));
        // Dropping the claim channels ends the suspended startups.
        all.map(|ready| ready.handle).collect()
    }

    /// Takes a pre-warmed sandbox of this kind that `same` accepts. `same` rejects sandboxes whose template
    /// has since been rebuilt under the same name.
    fn take(&self, kind: &PoolKind, same: impl Fn(&SandboxRecord) -> bool) -> Option<Ready> {
        if api::defence::is_off("X-25") {
            self.count_undefended(kind);
        }
        let mut shelves = self.shelves();
        shelves.last_claim = Some(Instant::now());
        let shelf = shelves.of.get_mut(kind)?;
        shelf.ready.retain(|ready| !ready.claims.is_closed() && same(&ready.handle.record()));
        shelf.ready.pop_front()
    }

    /// Counts an accepted request for this kind, so that sandboxes of this kind are pre-warmed while the
    /// demand lasts. Refused requests are not counted.
    pub fn asked(&self, kind: &PoolKind, project: &str, start: Start) {
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
        // Dropped after the lock is released, because this wakes the tasks that hold the forgotten sandboxes.
        drop(forgotten);
        self.changed.notify_one();
    }

    /// Disables the defence against attack X-25 in test builds, to show that the attack then succeeds: counts
    /// refused requests too, and never forgets a kind.
    fn count_undefended(&self, kind: &PoolKind) {
        let now_ms = self.now_ms();
        if let Some(shelf) = self.shelves().shelf(kind.clone(), "", now_ms) {
            shelf.demand.add(now_ms);
        }
        self.changed.notify_one();
    }
}

impl Shelves {
    /// Forgets a kind if there is no slot for another one. Returns the shelf of the forgotten kind.
    fn make_place(&mut self, kind: &PoolKind, project: &str) -> Option<Shelf> {
        if self.of.contains_key(kind) || api::defence::is_off("X-25") {
            return None;
        }
        let (kinds, known): (Vec<&PoolKind>, Vec<EvictionCandidate<'_>>) = self
            .of
            .iter()
            .map(|(kind, shelf)| {
                let Shelf { project, always, demand, .. } = shelf;
                (kind, EvictionCandidate { project, last_ms: demand.last_ms(), always: *always })
            })
            .unzip();
        let kind = (*kinds.get(forgotten(&known, project)?)?).clone();
        self.of.remove(&kind)
    }

    /// Returns the shelf of a kind, or `None` if the pool is closed or already has the maximum number of
    /// kinds.
    fn shelf(&mut self, kind: PoolKind, project: &str, now_ms: u64) -> Option<&mut Shelf> {
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
    /// Logs a failure, and delays the next attempt for this kind.
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
