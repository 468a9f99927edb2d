//! Tends the pool: creates the ready sandboxes that are missing and removes those that are not needed.

use std::sync::{Arc, Weak};
use std::time::Duration;

use api::policy::Policy;
use api::sandbox::{CreateSandbox, SandboxState};
use host::admission;
use host::machine;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::handle::Handle;
use crate::journal::Record;
use crate::plan::{Kind, Order};
use crate::pool::deal::{Want, deal};
use crate::pool::{Making, Shelves};
use crate::shared::Shared;
use crate::{AutoResume, Node};

/// Nothing is made while claims come one after the other, for a moment: they are what somebody waits for.
const QUIET: Duration = Duration::from_millis(20);
/// But no longer than this.
const QUIET_MAX: Duration = Duration::from_millis(200);
/// Sizes are looked at this often, whatever happens.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Their disks may have this part of what is free.
const DISK_PART: u64 = 4;

impl Node {
    /// Has sandboxes of these templates ready from now on, before anybody asks for one.
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

    /// Removes all ready sandboxes, and waits until they are gone: somebody needs their room.
    pub(crate) async fn make_room(&self) -> bool {
        let all = self.shared.pool.clear();
        for handle in &all {
            handle.until(SandboxState::is_terminal).await;
        }
        !all.is_empty()
    }

    /// Ends making sandboxes ahead, and removes what is nobody's: the server ends. What is left, the next one removes.
    pub async fn close_pool(&self) {
        self.shared.pool.shelves().closed = true;
        drop(self.shared.pool.clear());
        // One that is still being made finds no shelf, and is removed then.
        loop {
            let is_left =
                |handle: &&Arc<Handle>| handle.record().pooled && !handle.shown().state.is_terminal();
            let left = self.shared.handles().values().find(is_left).map(Arc::clone);
            let Some(handle) = left else { return };
            // Or it is somebody's: a claim may have been on its way.
            handle.until(|state| state.is_terminal() || state == SandboxState::Running).await;
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
}
