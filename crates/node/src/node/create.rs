//! Creates sandboxes: from a request to a plan, a claim or a record, and the driver.

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
use crate::journal::{Ports, Record};
use crate::message::DriverMessage;
use crate::plan::{Order, Plan, pausing, policy};
use crate::pool::{Claim, Making};
use crate::ready::Preparation;
use crate::secrets::LateVault;
use crate::shared::{Handles, wall};

/// Messages waiting for a driver that is busy with a start or a stop.
pub(super) const INBOX: usize = 16;

impl Node {
    /// What an order comes to here.
    ///
    /// # Errors
    /// The request is wrong, or the template or the tier is not there.
    pub fn plan(&self, order: &Order) -> Result<Plan, Error> {
        let request = &order.request;
        request.check().map_err(Error::Request)?;
        let runtime = self.shared.at_least(request.tier)?;
        if request.on_timeout == OnTimeout::Pause {
            pausing(&*runtime)?;
        }
        let template = template::Store::new(&self.shared.data).load(&request.template)?;
        // Who asks for more than can be held is refused by the start; who does not say gets what can be.
        let wanted = request.limits.over(template.limits.over(Limits::default()));
        let limits = request.limits.over(runtime.within(wanted));
        limits.check().map_err(Error::Request)?;
        // In a kernel in user space root would reach process 1.
        let guarded = runtime.tier() == runtime::Tier::Container;
        let rooted = order.may_root && template.posture == Posture::Workstation && guarded;
        Ok(Plan { runtime, template, limits, rooted })
    }

    /// Whether a sandbox that is not ready may be made for an order that was asked for then: whose turn does not come soon had better ask again.
    ///
    /// # Errors
    /// `capacity`.
    pub fn may_wait(&self, order: &Order, asked: Instant) -> Result<(), Error> {
        self.shared.turns.may_wait(&order.project, asked).map_err(|waiting| {
            let why = format!("{waiting} sandboxes are queued");
            Error::Runtime(runtime::Error::Capacity { what: "another sandbox to start", why })
        })
    }

    /// A sandbox that is ready for an order, if there is one. Until it is used or given back, nobody else can have it.
    pub fn claim(&self, order: &Order, plan: Plan) -> Option<Claim> {
        let (shared, kind) = (&self.shared, plan.kind(order)?);
        if shared.bounds.pool_ready == 0 || shared.draining.load(Ordering::Acquire) {
            return None;
        }
        // Its disk is there; what it will use of its memory is not.
        let room = shared.room(&shared.handles());
        let disk = Limits { disk_bytes: 0, ..plan.limits };
        admission::admit(&shared.bounds, &room, (&disk, plan.runtime.tier())).ok()?;
        shared.pool.claim(kind, plan)
    }

    /// What is written down of a sandbox when it is asked for.
    pub(crate) fn record(
        &self,
        id: &SandboxId,
        order: &Order,
        plan: &Plan,
        policy: Policy,
    ) -> Result<Record, Error> {
        let Template { layers, env, cwd, imports, limits, posture, .. } = plan.template.clone();
        let asked = Shown::asked(id.clone(), &order.project, &order.request, &limits, clock::wall_ms());
        let env = env.into_iter().chain(order.request.env.clone()).collect();
        Ok(Record {
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

    /// Makes a sandbox, or takes the claimed one, and waits until it runs. An id that is known already is waited for in the same way.
    ///
    /// # Errors
    /// There is no room, the template or the tier is not there, or the start failed: then nothing is left of it.
    pub async fn create(&self, id: &SandboxId, order: &Order, claim: Option<Claim>) -> Result<Shown, Error> {
        let handle = match self.handle(id) {
            Some(handle) => handle,
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
        let shown = handle.until(|state| state != SandboxState::Starting).await;
        if [SandboxState::Running, SandboxState::Paused].contains(&shown.state) {
            return Ok(shown);
        }
        Err(match handle.until(SandboxState::is_terminal).await.error {
            Some(error) => Error::Request(error),
            None => Error::Lost(api::exec::LostCause::Stopped),
        })
    }

    /// How a sandbox is doing as soon as it is not starting any more; one whose start was interrupted, as soon as nothing of
    /// it is left.
    pub async fn settled(&self, id: &SandboxId) -> Option<Shown> {
        let handle = self.handle(id)?;
        let shown = handle.until(|state| state != SandboxState::Starting).await;
        if shown.reason == Some(EndReason::Interrupted) {
            return Some(handle.until(SandboxState::is_terminal).await);
        }
        Some(shown)
    }

    /// Gives a ready sandbox its order. Where it turns out not to be alive, another one is made under its id.
    async fn give(&self, claim: Claim, order: &Order, datasets: Vec<Placed>) -> Result<Arc<Handle>, Error> {
        let (id, plan) = (claim.id().clone(), claim.plan());
        self.shared.pool.asked(claim.kind(), &order.project, Start::Warm);
        let record = self.record(&id, order, plan, policy(order, plan)?)?;
        let sandbox = Shown { start: Start::Warm, ..record.sandbox };
        let record = Record { sandbox, ..record };
        let (datasets_again, request) = (datasets.clone(), Span::current());
        let preparation = Preparation { datasets, readiness: plan.readiness(), request };
        match claim.give(record, preparation).await {
            Some(handle) => Ok(handle),
            None => self.make(&id, order, datasets_again).await,
        }
    }

    /// Begins to make a sandbox. What is ready for others makes room for it if it must.
    async fn make(&self, id: &SandboxId, order: &Order, datasets: Vec<Placed>) -> Result<Arc<Handle>, Error> {
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
        let asked = (&record.sandbox.limits, wall(record.sandbox.tier));
        admission::admit(&shared.bounds, &shared.room(&handles), asked)
            .map_err(|(what, why)| no_room(what, why))?;
        info_span!(target: STEP, "journal").in_scope(|| shared.journal.save(&record))?;
        if let Some(kind) = plan.kind(order).filter(|_| shared.bounds.pool_ready > 0) {
            // Only now: nobody has refused it.
            shared.pool.asked(&kind, &order.project, Start::Cold);
        }
        let shown = record.sandbox.clone();
        let preparation = Preparation { datasets, readiness: plan.readiness(), request: Span::current() };
        let handle = self.begin(record, Beginning::Start(StartFor::Client(preparation)), &mut handles);
        drop(handles);
        shared.say(SandboxEvent::Changed { sandbox: Box::new(shown) });
        Ok(handle)
    }

    /// The same for one that is made ahead. That there is no room for it is nobody's error.
    pub(crate) fn admit_ahead(&self, record: Record, making: Making) {
        let shared = &self.shared;
        let mut handles = shared.handles();
        // Whoever closes the pool looks at the handles afterwards.
        if shared.pool.is_closed() {
            return;
        }
        // How many may live is said of those that somebody has asked for.
        let room = Room { live: 0, ..shared.room(&handles) };
        let asked = (&record.sandbox.limits, wall(record.sandbox.tier));
        let admitted = admission::admit(&shared.bounds, &room, asked);
        let admitted = admitted.map_err(|(what, why)| no_room(what, why));
        match admitted.and_then(|()| shared.journal.save(&record)) {
            Ok(()) => drop(self.begin(record, Beginning::Start(StartFor::Pool(making)), &mut handles)),
            Err(error) => making.failed(&error),
        }
    }

    pub(crate) fn begin(&self, record: Record, beginning: Beginning, handles: &mut Handles) -> Arc<Handle> {
        let (tell, inbox) = mpsc::channel(INBOX);
        let handle = Arc::new(self.handle_of(record, tell));
        self.drive(&handle, inbox, beginning, handles);
        handle
    }

    pub(crate) fn handle_of(&self, record: Record, tell: mpsc::Sender<DriverMessage>) -> Handle {
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
