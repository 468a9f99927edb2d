//! State that the drivers of all sandboxes of this machine share.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::SandboxId;
use api::sandbox::{SandboxEvent, SandboxState, Tier};
use egress::{Broker, Gate};
use host::admission::{self, Bounds, Room};
use host::backend::Choice;
use host::clock;
use host::error::Error;
use host::ledger::Ledger;
use host::machine::Machine;
use host::objects::{LedgerScope, Objects};
use runtime::Runtime;
use tokio::sync::broadcast;

use crate::artifacts::Keeper;
use crate::datasets::Datasets;
use crate::egress::Decided;
use crate::handle::Handle;
use crate::journal::Journal;
use crate::pool::Pool;
use crate::secrets::LateVault;
use crate::turns::{LAUNCHES, STARTS, Turns};

/// Maximum number of events by which a slow subscriber may lag behind.
const EVENTS: usize = 4096;
/// Maximum number of decisions by which the audit log may lag behind.
const DECISIONS: usize = 4096;

pub(crate) type Handles = HashMap<SandboxId, Arc<Handle>>;

/// State that all drivers share.
pub(crate) struct NodeState {
    pub journal: Journal,
    /// Scheduler of sandbox starts.
    pub turns: Arc<Turns>,
    /// Scheduler of command launches.
    pub launches: Arc<Turns>,
    /// Pre-warmed sandboxes.
    pub pool: Arc<Pool>,
    /// Artifact collections and stored artifacts.
    pub keeper: Arc<Keeper>,
    /// Stored datasets of all projects.
    pub datasets: Datasets,
    /// Session folders of all projects.
    pub folders: Arc<Objects>,
    /// Counter of the stored bytes of each project.
    pub ledger: Arc<Ledger>,
    pub data: PathBuf,
    pub guest: PathBuf,
    /// Backends in use.
    pub choice: Choice,
    pub bounds: Bounds,
    pub draining: AtomicBool,
    handles: Mutex<Handles>,
    events: broadcast::Sender<SandboxEvent>,
    /// Egress proxy of all sandboxes.
    pub broker: Arc<Broker>,
    pub decisions: broadcast::Sender<Decided>,
    /// Access to the vault with secrets and authorities.
    pub vault: Arc<LateVault>,
    /// Identifier of the current boot of the machine.
    pub boot: String,
}

impl NodeState {
    /// Opens the stored state of this machine.
    ///
    /// # Errors
    /// Another server is using the data directory, or stored state cannot be read.
    pub fn open(machine: &Machine, choice: Choice, bounds: Bounds, gate: Gate) -> Result<Arc<Self>, Error> {
        let boot =
            clock::boot_id().map_err(|source| Error::System { act: "read the boot id".into(), source })?;
        let retention = Duration::from_millis(bounds.artifact_retention_ms);
        let (reserve, ledger) = (bounds.disk_reserve_bytes, Arc::new(Ledger::new(machine.data())));
        let tally = LedgerScope { ledger: Arc::clone(&ledger), depth: 0 };
        Ok(Arc::new(Self {
            journal: Journal::open(machine.data())?,
            turns: Turns::new(STARTS),
            launches: Turns::new(LAUNCHES),
            pool: Arc::new(Pool::new(&bounds)),
            keeper: Arc::new(Keeper::open(machine.data(), reserve, retention, &ledger)?),
            datasets: Datasets::open(machine.data(), reserve, &ledger)?,
            folders: Arc::new(Objects::open(machine.data().join("sessions"), reserve, Some(tally))?),
            ledger,
            data: machine.data().to_owned(),
            guest: machine.guest().to_owned(),
            choice,
            bounds,
            draining: AtomicBool::new(false),
            handles: Mutex::default(),
            events: broadcast::Sender::new(EVENTS),
            broker: Arc::new(Broker::new(gate)),
            decisions: broadcast::Sender::new(DECISIONS),
            vault: Arc::default(),
            boot,
        }))
    }

    /// Subscribes to changes of all sandboxes.
    pub fn events(&self) -> broadcast::Receiver<SandboxEvent> {
        self.events.subscribe()
    }

    /// Publishes an event to all subscribers.
    pub fn say(&self, event: SandboxEvent) {
        // The send fails if there is no subscriber.
        let _ = self.events.send(event);
    }

    /// Returns the first runtime whose isolation is at least as strong as `tier`. Never returns a runtime
    /// with weaker isolation.
    pub fn at_least(&self, tier: Tier) -> Result<Arc<dyn Runtime>, Error> {
        self.choice.at_least(wall(tier))
    }

    pub fn room(&self, handles: &Handles) -> Room {
        let mut room = Room {
            memory_free_bytes: admission::memory_free_bytes(),
            disk_free_bytes: admission::disk_free_bytes(&self.data),
            inodes_free: admission::inodes_free(&self.data),
            tasks: runtime::tables::tasks(),
            files: runtime::tables::files(),
            ..Room::default()
        };
        for handle in handles.values() {
            let state = handle.state();
            // Pre-warmed sandboxes do not count as live: they belong to no request until they are claimed.
            if !state.is_terminal() && !handle.is_pooled() {
                room.live += 1;
            }
            if state == SandboxState::Starting && !handle.is_made() {
                room.starting += 1;
                room.starting_disk_bytes += handle.shown().limits.disk_bytes;
            }
        }
        room
    }

    /// Removes the record and the handle of a sandbox that was never visible to clients.
    pub fn forget(&self, id: &SandboxId) {
        if let Err(error) = self.journal.remove(id) {
            tracing::error!(sandbox = %id, error = host::error::chain(&error), "cannot remove the sandbox record");
        }
        self.handles().remove(id);
    }

    pub fn handles(&self) -> MutexGuard<'_, Handles> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Converts a tier of the API to the corresponding tier of the runtimes.
pub(crate) fn wall(tier: Tier) -> runtime::Tier {
    match tier {
        Tier::Container => runtime::Tier::Container,
        Tier::UserKernel => runtime::Tier::UserKernel,
    }
}
