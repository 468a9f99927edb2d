//! The sandboxes that live on this machine: admitted, found, stopped, and taken over from a server that is gone.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::SandboxId;
use api::limits::Limits;
use api::sandbox::{EndReason, Sandbox as Shown, SandboxEvent, SandboxState, Start, Tier, Usage};
use api::server::NodeStatus;
use api::trace::STEP;
use egress::{Broker, Gate};
use runtime::{Profile, Runtime, Spec};
use tokio::sync::{broadcast, mpsc};
use tokio::time::Instant;
use tracing::{Span, info_span};

use crate::admission::{self, Bounds, Room};
use crate::artifacts::Keeper;
use crate::backend::Choice;
use crate::clock;
use crate::datasets::{Datasets, Placed};
use crate::driver::{Beginning, Driver, DriverMessage, For, Wanted};
use crate::egress::Decided;
use crate::entry::Entry;
pub use crate::entry::not_running;
use crate::error::Error;
use crate::journal::{Journal, Ports, Record};
use crate::ledger::Ledger;
use crate::machine::{self, Machine};
use crate::objects::{Objects, Tally};
use crate::plan::{Order, policy};
use crate::pool::{Claim, Making, Pool};
use crate::sandbox::Sandbox;
use crate::secrets::LateVault;
use crate::template;
use crate::turns::{LAUNCHES, STARTS, Turns};

/// Messages waiting for a driver that is busy with a start or a stop.
pub(crate) const INBOX: usize = 16;
/// A guest is told how long it lives within this.
pub(crate) const LIFE_WITHIN: Duration = Duration::from_secs(10);
/// Events that a slow reader may be behind.
const EVENTS: usize = 4096;
/// Decisions that whoever writes them down may be behind.
const DECISIONS: usize = 4096;

/// This machine as a place where sandboxes live. Cheap to clone.
#[derive(Clone)]
pub struct Node {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) type Entries = HashMap<SandboxId, Arc<Entry>>;

/// What all drivers share.
pub(crate) struct Shared {
    pub journal: Journal,
    /// Turns to start.
    pub turns: Arc<Turns>,
    /// Turns to launch a command.
    pub launches: Arc<Turns>,
    /// Sandboxes that are ready before anybody asks for one.
    pub pool: Pool,
    /// What is kept of runs.
    pub keeper: Keeper,
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
    entries: Mutex<Entries>,
    events: broadcast::Sender<SandboxEvent>,
    /// Lets out what may leave.
    pub broker: Arc<Broker>,
    pub decisions: broadcast::Sender<Decided>,
    /// Who keeps secrets.
    pub vault: Arc<LateVault>,
    /// Which start of the machine this is.
    pub boot: String,
}

impl Node {
    /// Opens this machine: takes over what a server before this one left running, and removes what it left half-done.
    ///
    /// # Errors
    /// Another server has it, or what is written down cannot be read.
    pub async fn open(
        machine: &Machine,
        choice: impl Into<Choice>,
        bounds: Bounds,
        gate: Gate,
    ) -> Result<Self, Error> {
        let boot =
            clock::boot_id().map_err(|source| Error::System { act: "read the boot id".into(), source })?;
        let retention = Duration::from_millis(bounds.artifact_retention_ms);
        let (reserve, ledger) = (bounds.disk_reserve_bytes, Arc::new(Ledger::new(machine.data())));
        let tally = Tally { ledger: Arc::clone(&ledger), depth: 0 };
        let shared = Arc::new(Shared {
            journal: Journal::open(machine.data())?,
            turns: Turns::new(STARTS),
            launches: Turns::new(LAUNCHES),
            pool: Pool::new(&bounds),
            keeper: Keeper::open(machine.data(), reserve, retention, &ledger)?,
            datasets: Datasets::open(machine.data(), reserve, &ledger)?,
            folders: Arc::new(Objects::open(machine.data().join("sessions"), reserve, Some(tally))?),
            ledger,
            data: machine.data().to_owned(),
            guest: machine.guest().to_owned(),
            choice: choice.into(),
            bounds,
            draining: AtomicBool::new(false),
            entries: Mutex::default(),
            events: broadcast::Sender::new(EVENTS),
            broker: Arc::new(Broker::new(gate)),
            decisions: broadcast::Sender::new(DECISIONS),
            vault: Arc::default(),
            boot,
        });
        let node = Self { shared };
        node.recover().await?;
        node.recover_artifacts().await;
        tokio::spawn(Self::watch_kernel(Arc::downgrade(&node.shared)));
        tokio::spawn(Self::tend_pool(Arc::downgrade(&node.shared), node.shared.pool.changed()));
        Ok(node)
    }

    /// Makes a sandbox, or takes the claimed one, and waits until it runs. An id that is known already is waited for in the same way.
    ///
    /// # Errors
    /// There is no room, the template or the tier is not there, or the start failed: then nothing is left of it.
    pub async fn create(&self, id: &SandboxId, order: &Order, claim: Option<Claim>) -> Result<Shown, Error> {
        let entry = match self.entry(id) {
            Some(entry) => entry,
            None => {
                let wanted = &order.request.datasets;
                let datasets = self.shared.datasets.resolve(&order.project, wanted).await?;
                // A template binds no secrets: they are a project's.
                if let Some(policy) = &order.request.policy {
                    self.vouch(&order.project, policy).await?;
                }
                match claim.filter(|claim| claim.id() == id) {
                    Some(claim) => self.give(claim, order, datasets).await?,
                    None => self.make(id, order, datasets).await?,
                }
            }
        };
        let shown = entry.until(|state| state != SandboxState::Starting).await;
        if [SandboxState::Running, SandboxState::Paused].contains(&shown.state) {
            return Ok(shown);
        }
        Err(match entry.until(SandboxState::is_terminal).await.error {
            Some(error) => Error::Request(error),
            None => Error::Lost(api::exec::LostCause::Stopped),
        })
    }

    /// How a sandbox is doing as soon as it is not starting any more; one whose start was interrupted, as soon as nothing of
    /// it is left.
    pub async fn settled(&self, id: &SandboxId) -> Option<Shown> {
        let entry = self.entry(id)?;
        let shown = entry.until(|state| state != SandboxState::Starting).await;
        if shown.reason == Some(EndReason::Interrupted) {
            return Some(entry.until(SandboxState::is_terminal).await);
        }
        Some(shown)
    }

    /// How a sandbox is doing.
    pub fn find(&self, id: &SandboxId) -> Option<Shown> {
        self.entry(id).map(|entry| entry.shown())
    }

    /// All sandboxes: those that live, and those that ended and are not forgotten yet.
    pub fn list(&self) -> Vec<Shown> {
        let entries = self.shared.entries();
        entries.values().filter(|entry| !entry.is_pooled()).map(|entry| entry.shown()).collect()
    }

    /// Gives a sandbox another idle time, counted from now.
    ///
    /// # Errors
    /// It is not known, or does not run.
    pub async fn renew(&self, id: &SandboxId, idle: Duration) -> Result<Shown, Error> {
        let call = self.call(id).await?;
        let entry = call.entry();
        let record = self.shared.update(entry, |record| {
            record.sandbox.idle_ms = clock::millis(idle);
            Ok(())
        })?;
        entry.active(Instant::now());
        entry.tell(DriverMessage::Look);
        Ok(record.sandbox)
    }

    /// Who may reach the ports of a sandbox, and whose it is.
    pub fn ports(&self, id: &SandboxId) -> Option<(String, Ports)> {
        let record = self.entry(id)?.record();
        Some((record.sandbox.project, record.ports))
    }

    /// The sandbox that runs and whose ports pass this check. Nothing but the ports is looked at: it is asked before anybody is known.
    pub fn opened_by(&self, is_right: impl Fn(&Ports) -> bool) -> Option<SandboxId> {
        let entries: Vec<_> = self.shared.entries().values().cloned().collect();
        let found = entries.iter().find(|entry| !entry.is_pooled() && entry.has_ports(&is_right));
        found.map(|entry| entry.record().sandbox.id)
    }

    /// Opens a port of a sandbox to everybody, or closes it again. It is written down before this returns.
    ///
    /// # Errors
    /// It is not known, does not run, or has as many public ports as it may.
    pub async fn publish(&self, id: &SandboxId, port: u16, public: bool) -> Result<Ports, Error> {
        let call = self.call(id).await?;
        Ok(self.shared.update(call.entry(), |record| record.ports.publish(port, public))?.ports)
    }

    /// Opens all ports of a sandbox to everybody, or leaves those that were opened one by one. It is written down before this returns.
    ///
    /// # Errors
    /// It is not known or does not run, or it could not be written down.
    pub async fn publish_all(&self, id: &SandboxId, public: bool) -> Result<(), Error> {
        let call = self.call(id).await?;
        let update = self.shared.update(call.entry(), |record| {
            record.ports.all_public = public;
            Ok(())
        });
        update.map(drop)
    }

    /// How long a sandbox may still live.
    pub fn time_left(&self, id: &SandboxId) -> Option<Duration> {
        Some(self.entry(id)?.left())
    }

    /// Has a sandbox live so long from now on, longer or shorter than it would have.
    ///
    /// # Errors
    /// It is not known, does not run, or does not answer.
    pub async fn live_for(&self, id: &SandboxId, ttl: Duration) -> Result<Shown, Error> {
        let call = self.call(id).await?;
        let entry = call.entry();
        let _lifetime = entry.lifetime().await?;
        // Its guest ends it where nobody else does, so it is told first: what is written down is never more than what it was told.
        call.sandbox_and_disk().0.live_for(entry.guest_ttl(ttl), LIFE_WITHIN).await?;
        let record = self.shared.update(entry, |record| {
            record.expire_in(ttl);
            Ok(())
        })?;
        entry.tell(DriverMessage::Look);
        Ok(record.sandbox)
    }

    /// Ends a sandbox and waits until nothing of it is left. One that is not known is nothing.
    pub async fn stop(&self, id: &SandboxId, reason: EndReason) -> Option<Shown> {
        let entry = self.entry(id)?;
        if !entry.state().is_terminal() {
            entry.asked_by(Span::current());
            entry.insist(DriverMessage::End(reason)).await;
        }
        Some(entry.until(SandboxState::is_terminal).await)
    }

    /// Forgets a sandbox that has ended: somebody else has taken note of it.
    ///
    /// # Errors
    /// What the file system said.
    pub fn forget(&self, id: &SandboxId) -> Result<(), Error> {
        let Some(entry) = self.entry(id).filter(|entry| entry.state().is_terminal()) else { return Ok(()) };
        self.shared.journal.remove(id)?;
        self.shared.entries().remove(entry.id());
        Ok(())
    }

    /// What a sandbox uses now. Looking is not a call: it keeps nothing from being idle.
    ///
    /// # Errors
    /// It is not known, or does not run.
    pub async fn usage(&self, id: &SandboxId) -> Result<Usage, Error> {
        let entry = self.known(id)?;
        let Some(sandbox) = entry.sandbox() else { return entry.call().map(|_| Usage::default()) };
        let used = sandbox.usage().await?;
        // A paused sandbox does not answer.
        let execs = if entry.is_paused() { Vec::new() } else { sandbox.execs().await? };
        Ok(Usage {
            memory_bytes: used.memory_bytes,
            sandbox_memory_bytes: used.sandbox_memory_bytes,
            memory_peak_bytes: used.memory_peak_bytes,
            pids: used.pids,
            cpu_us: used.cpu_us,
            execs: u32::try_from(execs.iter().filter(|exec| exec.outcome.is_none()).count())
                .unwrap_or(u32::MAX),
        })
    }

    /// What happens from now on.
    pub fn events(&self) -> broadcast::Receiver<SandboxEvent> {
        self.shared.events.subscribe()
    }

    /// Refuses new sandboxes from now on, or takes them again.
    pub fn drain(&self, draining: bool) {
        self.shared.draining.store(draining, Ordering::Release);
    }

    /// How this machine is doing.
    pub fn status(&self) -> NodeStatus {
        let room = self.shared.room(&self.shared.entries());
        NodeStatus {
            draining: self.shared.draining.load(Ordering::Acquire),
            sandboxes: room.live,
            sandboxes_max: self.shared.bounds.sandboxes_max,
            memory_free_bytes: room.memory_free_bytes,
            disk_free_bytes: room.disk_free_bytes,
            runtimes: self.shared.choice.runtimes.iter().map(|one| one.name().to_owned()).collect(),
            backends: self.shared.choice.considered.clone(),
            pool: self.shared.pool.status(),
        }
    }

    /// Starts a sandbox without a template, sees that code runs in it sealed, and ends it. Where every sandbox needs a template, sees
    /// that the backend answers.
    ///
    /// # Errors
    /// What did not work.
    pub async fn probe(&self) -> Result<(), Error> {
        let runtime = self.shared.choice.at_least(runtime::Tier::Container)?;
        if runtime.takes_images() && !runtime.has_image(runtime::engine::EMPTY).await? {
            // Nothing can be started there without a template, and it has answered.
            return Ok(());
        }
        let layers = match runtime.takes_images() {
            true => Vec::new(),
            false => vec![template::empty(&self.shared.data).await?],
        };
        let limits = Limits { disk_bytes: Limits::MIN.disk_bytes, ttl_ms: 60_000, ..Limits::default() };
        let (image, guest) = (runtime::engine::EMPTY.to_owned(), self.shared.guest.clone());
        let spec = Spec { layers, image, limits, profile: Profile::Run, guest };
        let sandbox = Sandbox::start(runtime, machine::fresh_id()?, &spec).await?;
        sandbox.stop(Duration::ZERO).await
    }

    /// Where this machine keeps things.
    pub fn data(&self) -> &std::path::Path {
        &self.shared.data
    }

    /// The datasets of projects.
    pub fn datasets(&self) -> &Datasets {
        &self.shared.datasets
    }

    /// A project may keep so many bytes of datasets, session files and artifacts here, all together.
    pub fn set_quota(&self, project: &str, disk_bytes: u64) {
        self.shared.ledger.set_quota(project, disk_bytes);
    }

    /// Removes layers that no template names and no sandbox uses, and artifacts whose time is over.
    ///
    /// # Errors
    /// What could not be removed.
    pub async fn tidy(&self) -> Result<(), Error> {
        let sandboxes = self.shared.data.join("sandboxes");
        self.shared.journal.tidy(|id| sandboxes.join(id.as_str()).exists())?;
        self.shared.keeper.tidy().await?;
        self.shared.datasets.tidy().await?;
        self.shared.folders.sweep().await?;
        template::sent::Archives::open(&self.shared.data)?.tidy().await?;
        let (data, broker) = (self.shared.data.clone(), Arc::clone(&self.shared.broker));
        let tidied = move || {
            let packages = broker.gate().tidy();
            packages.map_err(|source| Error::System { act: "remove old packages".into(), source })?;
            template::tidy(&data)
        };
        tokio::task::spawn_blocking(tidied)
            .await
            .map_err(|source| Error::System { act: "remove layers".into(), source: source.into() })?
    }

    /// A sandbox that is somebody's.
    fn entry(&self, id: &SandboxId) -> Option<Arc<Entry>> {
        self.shared.entries().get(id).filter(|entry| !entry.is_pooled()).cloned()
    }

    pub(crate) fn known(&self, id: &SandboxId) -> Result<Arc<Entry>, Error> {
        self.entry(id).ok_or_else(|| Error::Runtime(runtime::Error::NotFound(id.clone())))
    }

    /// Gives a ready sandbox its order. Where it turns out not to be alive, another one is made under its id.
    async fn give(&self, claim: Claim, order: &Order, datasets: Vec<Placed>) -> Result<Arc<Entry>, Error> {
        let (id, plan) = (claim.id().clone(), claim.plan());
        self.shared.pool.asked(claim.kind(), &order.project, Start::Warm);
        let record = self.record(&id, order, plan, policy(order, plan)?)?;
        let sandbox = Shown { start: Start::Warm, ..record.sandbox };
        let record = Record { sandbox, ..record };
        let (datasets_again, request) = (datasets.clone(), Span::current());
        let wanted = Wanted { datasets, readiness: plan.readiness(), request };
        match claim.give(record, wanted).await {
            Some(entry) => Ok(entry),
            None => self.make(&id, order, datasets_again).await,
        }
    }

    /// Begins to make a sandbox. What is ready for others makes room for it if it must.
    async fn make(&self, id: &SandboxId, order: &Order, datasets: Vec<Placed>) -> Result<Arc<Entry>, Error> {
        // Until the record is written, the template's layers are kept by this lock, and then by the record.
        let _using = template::using(&self.shared.data).await?;
        match self.admit(id, order, datasets.clone()) {
            Err(Error::Runtime(runtime::Error::Capacity { .. })) if self.make_room().await => {
                self.admit(id, order, datasets)
            }
            admitted => admitted,
        }
    }

    /// Decides, writes down, and only then begins.
    fn admit(&self, id: &SandboxId, order: &Order, datasets: Vec<Placed>) -> Result<Arc<Entry>, Error> {
        let shared = &self.shared;
        let plan = self.plan(order)?;
        let record = self.record(id, order, &plan, policy(order, &plan)?)?;
        let mut entries = shared.entries();
        if let Some(entry) = entries.get(id) {
            return Ok(Arc::clone(entry));
        }
        if shared.draining.load(Ordering::Acquire) {
            return Err(no_room("another sandbox", "this machine is draining".into()));
        }
        let asked = (&record.sandbox.limits, wall(record.sandbox.tier));
        admission::admit(&shared.bounds, &shared.room(&entries), asked)
            .map_err(|(what, why)| no_room(what, why))?;
        info_span!(target: STEP, "journal").in_scope(|| shared.journal.save(&record))?;
        if let Some(kind) = plan.kind(order).filter(|_| shared.bounds.pool_ready > 0) {
            // Only now: nobody has refused it.
            shared.pool.asked(&kind, &order.project, Start::Cold);
        }
        let shown = record.sandbox.clone();
        let wanted = Wanted { datasets, readiness: plan.readiness(), request: Span::current() };
        let entry = self.begin(record, Beginning::Start(For::Somebody(wanted)), &mut entries);
        drop(entries);
        shared.say(SandboxEvent::Changed { sandbox: Box::new(shown) });
        Ok(entry)
    }

    /// The same for one that is made ahead. That there is no room for it is nobody's error.
    pub(crate) fn admit_ahead(&self, record: Record, making: Making) {
        let shared = &self.shared;
        let mut entries = shared.entries();
        // Whoever closes the pool looks at the entries afterwards.
        if shared.pool.is_closed() {
            return;
        }
        // How many may live is said of those that somebody has asked for.
        let room = Room { live: 0, ..shared.room(&entries) };
        let asked = (&record.sandbox.limits, wall(record.sandbox.tier));
        let admitted = admission::admit(&shared.bounds, &room, asked);
        let admitted = admitted.map_err(|(what, why)| no_room(what, why));
        match admitted.and_then(|()| shared.journal.save(&record)) {
            Ok(()) => drop(self.begin(record, Beginning::Start(For::Anybody(making)), &mut entries)),
            Err(error) => making.failed(&error),
        }
    }

    pub(crate) fn begin(&self, record: Record, beginning: Beginning, entries: &mut Entries) -> Arc<Entry> {
        let (tell, inbox) = mpsc::channel(INBOX);
        let entry = Arc::new(self.entry_of(record, tell));
        self.drive(&entry, inbox, beginning, entries);
        entry
    }

    pub(crate) fn entry_of(&self, record: Record, tell: mpsc::Sender<DriverMessage>) -> Entry {
        let vault: Arc<LateVault> = Arc::clone(&self.shared.vault);
        Entry::new(record, tell, vault)
    }

    pub(crate) fn drive(
        &self,
        entry: &Arc<Entry>,
        inbox: mpsc::Receiver<DriverMessage>,
        beginning: Beginning,
        entries: &mut Entries,
    ) {
        entries.insert(entry.id().clone(), Arc::clone(entry));
        let driver = Driver::new(Arc::clone(&self.shared), Arc::clone(entry), inbox);
        tokio::spawn(driver.drive(beginning));
    }
}

impl Shared {
    /// Tells everybody who listens.
    pub fn say(&self, event: SandboxEvent) {
        // Nobody may be listening.
        let _ = self.events.send(event);
    }

    /// The first runtime whose wall is at least as strong. Never a weaker one.
    pub fn at_least(&self, tier: Tier) -> Result<Arc<dyn Runtime>, Error> {
        self.choice.at_least(wall(tier))
    }

    pub fn room(&self, entries: &Entries) -> Room {
        let mut room = Room {
            memory_free_bytes: admission::memory_free_bytes(),
            disk_free_bytes: admission::disk_free_bytes(&self.data),
            inodes_free: admission::inodes_free(&self.data),
            tasks: runtime::tables::tasks(),
            files: runtime::tables::files(),
            ..Room::default()
        };
        for entry in entries.values() {
            let state = entry.state();
            // Nobody has asked for those that are ready, and whoever does makes one of them live.
            if !state.is_terminal() && !entry.is_pooled() {
                room.live += 1;
            }
            if state == SandboxState::Starting && !entry.is_made() {
                room.starting += 1;
                room.starting_disk_bytes += entry.shown().limits.disk_bytes;
            }
        }
        room
    }

    /// Forgets one that nobody was told of.
    pub fn forget(&self, id: &SandboxId) {
        if let Err(error) = self.journal.remove(id) {
            tracing::error!(sandbox = %id, error = crate::error::chain(&error), "cannot remove the sandbox record");
        }
        self.entries().remove(id);
    }

    pub fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The wall that is asked for, as runtimes have it.
fn wall(tier: Tier) -> runtime::Tier {
    match tier {
        Tier::Container => runtime::Tier::Container,
        Tier::UserKernel => runtime::Tier::UserKernel,
    }
}

fn no_room(what: &'static str, why: String) -> Error {
    Error::Runtime(runtime::Error::Capacity { what, why })
}
