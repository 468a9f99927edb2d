//! Creates sandboxes: plans the request, and then either claims a pre-warmed sandbox or writes a record and
//! starts a driver.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use api::SandboxId;
use api::limits::Limits;
use api::policy::Policy;
use api::sandbox::{EndReason, OnTimeout, Sandbox as Shown, SandboxEvent, SandboxState, Start};
use api::trace::STEP;
use host::admission::{self, Room};
use host::clock;
use host::error::Error;
use template::{Posture, Template};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{Span, info_span};

use crate::Node;
use crate::datasets::Placed;
use crate::driver::{Beginning, Driver, StartFor};
use crate::handle::Handle;
use crate::journal::{Ports, SandboxRecord};
use crate::message::DriverMessage;
use crate::plan::{Order, Plan, pausing, policy};
use crate::pool::{Claim, Making};
use crate::ready::Preparation;
use crate::secrets::LateVault;
use crate::shared::{Handles, wall};

/// Capacity of a driver's inbox. Messages wait there while a sandbox starts or stops.
pub(super) const INBOX: usize = 16;

impl Node {
    /// Resolves an order, a sandbox request with its project and permissions, on this machine.
    ///
    /// # Errors
    /// The request is invalid, or the template or the tier is not available.
    pub fn plan(&self, order: &Order) -> Result<Plan, Error> {
        let request = &order.request;
        request.check().map_err(Error::Request)?;
        let runtime = self.shared.at_least(request.tier)?;
        if request.on_timeout == OnTimeout::Pause {
            pausing(&*runtime)?;
        }
        let template = template::Store::new(&self.shared.data).load(&request.template)?;
        // Explicit limits that the backend cannot enforce are refused when the sandbox is started. Limits
        // that are not set are reduced to the backend's maximum.
        let wanted = request.limits.over(template.limits.over(Limits::default()));
        let limits = request.limits.over(runtime.within(wanted));
        limits.check().map_err(Error::Request)?;
        // With a user-space kernel, root could reach the sandbox's process 1.
        let guarded = runtime.tier() == runtime::Tier::Container;
        let rooted = order.may_root && template.posture == Posture::Workstation && guarded;
        Ok(Plan { runtime, template, limits, rooted })
    }

    /// Checks that an order received at `asked` may wait for its turn to start. If its turn is too far away,
    /// the order is refused, so that the client can retry.
    ///
    /// # Errors
    /// The queue is too long. The error code is `capacity`.
    pub fn may_wait(&self, order: &Order, asked: Instant) -> Result<(), Error> {
        self.shared.turns.may_wait(&order.project, asked).map_err(|waiting| {
            let why = format!("{waiting} sandboxes are queued");
            Error::Runtime(runtime::Error::Capacity { what: "another sandbox to start", why })
        })
    }

    /// Claims a pre-warmed sandbox for an order, if there is one. No other order can get this sandbox until
    /// the claim is dropped.
    pub fn claim(&self, order: &Order, plan: Plan) -> Option<Claim> {
        let (shared, kind) = (&self.shared, plan.kind(order)?);
        if shared.bounds.pool_ready == 0 || shared.draining.load(Ordering::Acquire) {
            return None;
        }
        // The disk of a pre-warmed sandbox is already allocated, but most of its memory is not.
        let room = shared.room(&shared.handles());
        let disk = Limits { disk_bytes: 0, ..plan.limits };
        admission::admit(&shared.bounds, &room, &disk, plan.runtime.tier()).ok()?;
        shared.pool.claim(kind, plan)
    }

    /// Builds the record of a requested sandbox.
    pub(crate) fn record(
        &self,
        id: &SandboxId,
        order: &Order,
        plan: &Plan,
        policy: Policy,
    ) -> Result<SandboxRecord, Error> {
        let Template { layers, env, cwd, imports, limits, posture, .. } = plan.template.clone();
        let asked = Shown::asked(id.clone(), &order.project, &order.request, &limits, clock::wall_ms());
        let env = env.into_iter().chain(order.request.env.clone()).collect();
        Ok(SandboxRecord {
            first_policy: policy.clone(),
            sandbox: Shown { policy, limits: plan.limits, ..asked },
            runtime: plan.runtime.name().to_owned(),
            layers,
            env,
            cwd,
            imports,
            posture,
            rooted: plan.rooted,
            pooled: false,
            auto_resume: order.auto_resume,
            boot: self.shared.boot.clone(),
            expires_boot_ms: clock::boot_ms() + plan.limits.ttl_ms,
            ports: Ports::fresh()?,
        })
    }

    /// Creates a sandbox, or hands over the claimed sandbox, and waits until it is running. If a sandbox with
    /// this ID is already known, waits for that sandbox.
    ///
    /// # Errors
    /// There is no capacity, the template or the tier is not available, or startup failed. In all of these
    /// cases, nothing remains of the sandbox.
    pub async fn create(&self, id: &SandboxId, order: &Order, claim: Option<Claim>) -> Result<Shown, Error> {
        let handle = match self.handle(id) {
            Some(handle) => handle,
            None => {
                let wanted = &order.request.datasets;
                let datasets = self.shared.datasets.resolve(&order.project, wanted).await?;
                // A policy from a template binds no secrets, because secrets belong to projects.
                if let Some(policy) = &order.request.policy {
                    self.vouch(&order.project, policy).await?;
                }
                match claim.filter(|claim| claim.id() == id) {
                    Some(claim) => self.give(claim, order, datasets).await?,
                    None => self.make(id, order, datasets).await?,
                }
            }
        };
        let shown = handle.until(|state| state != SandboxState::Starting).await;
        if [SandboxState::Running, SandboxState::Paused].contains(&shown.state) {
            return Ok(shown);
        }
        Err(match handle.until(SandboxState::is_terminal).await.error {
            Some(error) => Error::Request(error),
            None => Error::Lost(api::exec::LostCause::Stopped),
        })
    }

    /// Waits until a sandbox is no longer starting. If its startup was interrupted because a server ended,
    /// waits until the sandbox is removed.
    pub async fn settled(&self, id: &SandboxId) -> Option<Shown> {
        let handle = self.handle(id)?;
        let shown = handle.until(|state| state != SandboxState::Starting).await;
        if shown.reason == Some(EndReason::Interrupted) {
            return Some(handle.until(SandboxState::is_terminal).await);
        }
        Some(shown)
    }

    /// Hands a pre-warmed sandbox over to an order. If the sandbox is no longer alive, creates a new sandbox
    /// with the same ID.
    async fn give(&self, claim: Claim, order: &Order, datasets: Vec<Placed>) -> Result<Arc<Handle>, Error> {
        let (id, plan) = (claim.id().clone(), claim.plan());
        self.shared.pool.asked(claim.kind(), &order.project, Start::Warm);
        let record = self.record(&id, order, plan, policy(order, plan)?)?;
        let sandbox = Shown { start: Start::Warm, ..record.sandbox };
        let record = SandboxRecord { sandbox, ..record };
        let (datasets_again, request) = (datasets.clone(), Span::current());
        let preparation = Preparation { datasets, readiness: plan.readiness(), request };
        match claim.give(record, preparation).await {
            Some(handle) => Ok(handle),
            None => self.make(&id, order, datasets_again).await,
        }
    }

    /// Begins to create a sandbox. Removes pre-warmed sandboxes if their capacity is needed.
    async fn make(&self, id: &SandboxId, order: &Order, datasets: Vec<Placed>) -> Result<Arc<Handle>, Error> {
        // This lock protects the template's layers from removal until the record exists, which then protects
        // them.
        let _using = template::using(&self.shared.data).await?;
        match self.admit(id, order, datasets.clone()) {
            Err(Error::Runtime(runtime::Error::Capacity { .. })) if self.make_room().await => {
                self.admit(id, order, datasets)
            }
            admitted => admitted,
        }
    }

    /// Checks the capacity, writes the record, and only then starts the driver.
    fn admit(&self, id: &SandboxId, order: &Order, datasets: Vec<Placed>) -> Result<Arc<Handle>, Error> {
        let shared = &self.shared;
        let plan = self.plan(order)?;
        let record = self.record(id, order, &plan, policy(order, &plan)?)?;
        let mut handles = shared.handles();
        if let Some(handle) = handles.get(id) {
            return Ok(Arc::clone(handle));
        }
        if shared.draining.load(Ordering::Acquire) {
            return Err(no_room("another sandbox", "this machine is draining".into()));
        }
        let (limits, tier) = (&record.sandbox.limits, wall(record.sandbox.tier));
        admission::admit(&shared.bounds, &shared.room(&handles), limits, tier)
            .map_err(|(what, why)| no_room(what, why))?;
        info_span!(target: STEP, "journal").in_scope(|| shared.journal.save(&record))?;
        if let Some(kind) = plan.kind(order).filter(|_| shared.bounds.pool_ready > 0) {
            // Counted after all checks, because refused requests do not count as demand.
            shared.pool.asked(&kind, &order.project, Start::Cold);
        }
        let shown = record.sandbox.clone();
        let preparation = Preparation { datasets, readiness: plan.readiness(), request: Span::current() };
        let handle = self.begin(record, Beginning::Start(StartFor::Client(preparation)), &mut handles);
        drop(handles);
        shared.say(SandboxEvent::Changed { sandbox: Box::new(shown) });
        Ok(handle)
    }

    /// Begins to create a pre-warmed sandbox, if there is capacity. A failure is only logged, because no
    /// client is waiting for the sandbox.
    pub(crate) fn admit_ahead(&self, record: SandboxRecord, making: Making) {
        let shared = &self.shared;
        let mut handles = shared.handles();
        // `close_pool` sets this flag before it searches the handles, so it misses no sandbox.
        if shared.pool.is_closed() {
            return;
        }
        // The maximum number of sandboxes applies only to requested sandboxes.
        let room = Room { live: 0, ..shared.room(&handles) };
        let (limits, tier) = (&record.sandbox.limits, wall(record.sandbox.tier));
        let admitted = admission::admit(&shared.bounds, &room, limits, tier);
        let admitted = admitted.map_err(|(what, why)| no_room(what, why));
        match admitted.and_then(|()| shared.journal.save(&record)) {
            Ok(()) => drop(self.begin(record, Beginning::Start(StartFor::Pool(making)), &mut handles)),
            Err(error) => making.failed(&error),
        }
    }

    pub(crate) fn begin(
        &self,
        record: SandboxRecord,
        beginning: Beginning,
        handles: &mut Handles,
    ) -> Arc<Handle> {
        let (tell, inbox) = mpsc::channel(INBOX);
        let handle = Arc::new(self.handle_of(record, tell));
        self.drive(&handle, inbox, beginning, handles);
        handle
    }

    pub(crate) fn handle_of(&self, record: SandboxRecord, tell: mpsc::Sender<DriverMessage>) -> Handle {
        let vault: Arc<LateVault> = Arc::clone(&self.shared.vault);
        Handle::new(record, tell, vault)
    }

    pub(crate) fn drive(
        &self,
        handle: &Arc<Handle>,
        inbox: mpsc::Receiver<DriverMessage>,
        beginning: Beginning,
        handles: &mut Handles,
    ) {
        handles.insert(handle.id().clone(), Arc::clone(handle));
        let driver = Driver::new(Arc::clone(&self.shared), Arc::clone(handle), inbox);
        tokio::spawn(driver.drive(beginning));
    }
}

fn no_room(what: &'static str, why: String) -> Error {
    Error::Runtime(runtime::Error::Capacity { what, why })
}
