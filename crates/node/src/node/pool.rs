//! Maintains the pool: creates missing pre-warmed sandboxes and removes surplus ones.

use std::sync::{Arc, Weak};
use std::time::Duration;

use api::policy::Policy;
use api::sandbox::{CreateSandbox, SandboxState};
use host::admission;
use host::machine;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::handle::Handle;
use crate::journal::SandboxRecord;
use crate::plan::{Order, PoolKind};
use crate::pool::deal::{Want, deal};
use crate::pool::{Making, Shelves};
use crate::shared::NodeState;
use crate::{AutoResume, Node};

/// Time after a claim during which no sandbox is pre-warmed, because more claims may follow and have
/// priority.
const QUIET: Duration = Duration::from_millis(20);
/// Maximum time for which a series of claims can delay pre-warming.
const QUIET_MAX: Duration = Duration::from_millis(200);
/// Maximum time between two checks of the pool. Demand and free resources also change without a notification.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Divisor of the free disk space: the disks of pre-warmed sandboxes may use a quarter of this space.
const DISK_PART: u64 = 4;

impl Node {
    /// Keeps sandboxes of these templates pre-warmed from now on, regardless of demand.
    pub fn keep_ready(&self, templates: &[String]) {
        for template in templates {
            let request = CreateSandbox { template: template.clone(), ..CreateSandbox::default() };
            let order = Order {
                project: String::new(),
                request,
                may_open: false,
                may_root: false,
                auto_resume: AutoResume::default(),
            };
            match self.plan(&order).map(|plan| plan.kind(&order)) {
                Ok(Some(kind)) => self.shared.pool.keep(kind),
                Ok(None) => tracing::warn!(
                    template,
                    "backend does not support pre-warming; no sandbox of this template is pre-warmed"
                ),
                Err(error) => {
                    tracing::warn!(
                        template,
                        error = host::error::chain(&error),
                        "cannot pre-warm sandboxes of this template"
                    );
                }
            }
        }
    }

    /// Removes all pre-warmed sandboxes to free their capacity, and waits until they are gone. Returns true
    /// if there were any.
    pub(crate) async fn make_room(&self) -> bool {
        let all = self.shared.pool.clear();
        for handle in &all {
            handle.until(SandboxState::is_terminal).await;
        }
        !all.is_empty()
    }

    /// Closes the pool before the server exits: stops pre-warming and removes all unclaimed sandboxes. If the
    /// server exits earlier, it removes the rest when it is started again.
    pub async fn close_pool(&self) {
        self.shared.pool.shelves().closed = true;
        drop(self.shared.pool.clear());
        // A closed pool accepts no sandboxes, so a sandbox that is still being created is removed afterwards.
        loop {
            let is_left =
                |handle: &&Arc<Handle>| handle.record().pooled && !handle.shown().state.is_terminal();
            let left = self.shared.handles().values().find(is_left).map(Arc::clone);
            let Some(handle) = left else { return };
            // A sandbox whose claim is in progress may become running instead.
            handle.until(|state| state.is_terminal() || state == SandboxState::Running).await;
        }
    }

    /// Creates missing and removes surplus pre-warmed sandboxes until the node is gone.
    pub(crate) async fn tend_pool(shared: Weak<NodeState>, changed: Arc<Notify>) {
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

    /// Checks all shelves, one for each kind of sandbox, once. Returns a time to wait if pre-warming is
    /// postponed because of recent claims.
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
            (if let Some(shelf) = of.get_mut(&kind) {
                shelf.making += 1;
            });
            *waiting = None;
            let making = Making { pool: Arc::clone(&shared.pool), kind, _turn: turn };
            tokio::spawn(self.clone().make_ahead(making));
        }
        drop(shelves);
        drop(unwanted);
        None
    }

    /// Starts to pre-warm a sandbox.
    async fn make_ahead(self, making: Making) {
        let PoolKind { tier, template, limits, rooted, .. } = making.kind.clone();
        let request = CreateSandbox { template, tier, limits: limits.into(), ..CreateSandbox::default() };
        let order = Order {
            project: String::new(),
            request,
            may_open: false,
            may_root: rooted,
            auto_resume: crate::AutoResume::default(),
        };
        // This lock protects the template's layers from removal until the record exists, which then protects
        // them.
        let using = match template::using(&self.shared.data).await {
            Ok(using) => using,
            Err(error) => return making.failed(&error),
        };
        let planned = self.plan(&order).and_then(|plan| {
            let record = self.record(&machine::fresh_id()?, &order, &plan, Policy::default())?;
            Ok(SandboxRecord { pooled: true, ..record })
        });
        match planned {
            Ok(record) => self.admit_ahead(record, making),
            Err(error) => making.failed(&error),
        }
        drop(using);
    }
}

/// Resources that pre-warmed sandboxes may use in total, including the resources that they already use.
struct PoolRoom {
    memory_bytes: u64,
    disk_bytes: u64,
    /// True if requested sandboxes are waiting to start, or many are starting.
    is_busy: bool,
}

impl NodeState {
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
}
