//! What the drivers of all sandboxes of this machine share.

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
use host::objects::{Objects, Tally};
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

/// Events that a slow reader may be behind.
const EVENTS: usize = 4096;
/// Decisions that whoever writes them down may be behind.
const DECISIONS: usize = 4096;

pub(crate) type Handles = HashMap<SandboxId, Arc<Handle>>;

/// What all drivers share.
pub(crate) struct Shared {
    pub journal: Journal,
    /// Turns to start.
    pub turns: Arc<Turns>,
    /// Turns to launch a command.
    pub launches: Arc<Turns>,
    /// Sandboxes that are ready before anybody asks for one.
    pub pool: Arc<Pool>,
    /// What is kept of runs.
    pub keeper: Arc<Keeper>,
    /// What projects keep for sandboxes.
    pub datasets: Datasets,
    /// What sessions keep.
    pub folders: Arc<Objects>,
    /// How much of all that each project keeps.
    pub ledger: Arc<Ledger>,
    pub data: PathBuf,
    pub guest: PathBuf,
    /// What isolates here.
    pub choice: Choice,
    pub bounds: Bounds,
    pub draining: AtomicBool,
    handles: Mutex<Handles>,
    events: broadcast::Sender<SandboxEvent>,
    /// Lets out what may leave.
    pub broker: Arc<Broker>,
    pub decisions: broadcast::Sender<Decided>,
    /// Who keeps secrets.
    pub vault: Arc<LateVault>,
    /// Which start of the machine this is.
    pub boot: String,
}

impl Shared {
    /// Opens what is stored on this machine.
    ///
    /// # Errors
    /// Another server has it, or what is stored cannot be read.
    pub fn open(machine: &Machine, choice: Choice, bounds: Bounds, gate: Gate) -> Result<Arc<Self>, Error> {
        let boot =
            clock::boot_id().map_err(|source| Error::System { act: "read the boot id".into(), source })?;
        let retention = Duration::from_millis(bounds.artifact_retention_ms);
        let (reserve, ledger) = (bounds.disk_reserve_bytes, Arc::new(Ledger::new(machine.data())));
        let tally = Tally { ledger: Arc::clone(&ledger), depth: 0 };
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

    /// What happens to sandboxes from now on.
    pub fn events(&self) -> broadcast::Receiver<SandboxEvent> {
        self.events.subscribe()
    }

    /// Tells everybody who listens.
    pub fn say(&self, event: SandboxEvent) {
        // Nobody may be listening.
        let _ = self.events.send(event);
    }

    /// The first runtime whose wall is at least as strong. Never a weaker one.
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
            // Nobody has asked for those that are ready, and whoever does makes one of them live.
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

    /// Forgets one that nobody was told of.
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

/// The wall that is asked for, as runtimes have it.
pub(crate) fn wall(tier: Tier) -> runtime::Tier {
    match tier {
        Tier::Container => runtime::Tier::Container,
        Tier::UserKernel => runtime::Tier::UserKernel,
    }
}
