//! What an order for a sandbox comes to on this machine: its template, its limits, what isolates it, and whether one is ready for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use api::SandboxId;
use api::limits::Limits;
use api::policy::Policy;
use api::sandbox::{CreateSandbox, OnTimeout, Sandbox as Shown};
use runtime::Runtime;
use tokio::time::Instant;

use crate::admission;
use crate::clock;
use crate::driver::pausing;
use crate::error::Error;
use crate::journal::{AutoResume, Ports, Record};
use crate::live::Node;
use crate::pool::{self, Claim, Kind};
use crate::ready::Readiness;
use crate::template::{self, Posture, Template};

/// Who asks for a sandbox, and for what.
#[derive(Clone, Debug)]
pub struct Order {
    /// The project it will belong to.
    pub project: String,
    /// What was asked for.
    pub request: CreateSandbox,
    /// Whether that project may let a sandbox reach the whole internet.
    pub may_open: bool,
    /// Whether it may have root run commands in a workstation.
    pub may_root: bool,
    /// Which requests resume the sandbox when it is paused.
    pub auto_resume: AutoResume,
}

/// What an order comes to on this machine.
pub struct Plan {
    runtime: Arc<dyn Runtime>,
    template: Template,
    limits: Limits,
    rooted: bool,
}

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
                        error = crate::error::chain(&error),
                        "cannot pre-warm sandboxes of this template"
                    );
                }
            }
        }
    }

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
        let room = shared.room(&shared.entries());
        let disk = Limits { disk_bytes: 0, ..plan.limits };
        admission::admit(&shared.bounds, &room, (&disk, plan.runtime.tier())).ok()?;
        self.take_ready(kind, plan)
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
}

impl Plan {
    /// What the sandbox may use.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// What has to be so for a sandbox of it to count as started.
    pub(crate) fn readiness(&self) -> Readiness {
        Readiness::of(&self.template)
    }

    /// Whether a sandbox is made of the same: a template may have been made anew under its name.
    pub(crate) fn is_of(&self, record: &Record) -> bool {
        let Template { layers, env, cwd, imports, posture, .. } = &self.template;
        (&record.layers, &record.env, &record.cwd, &record.imports, &record.posture, &record.rooted)
            == (layers, env, cwd, imports, posture, &self.rooted)
    }

    /// What a ready sandbox for it is made as, where there can be one.
    pub(crate) fn kind(&self, order: &Order) -> Option<Kind> {
        self.runtime.makes_ahead().then(|| Kind {
            runtime: self.runtime.name().to_owned(),
            tier: order.request.tier,
            template: order.request.template.clone(),
            limits: Limits { ttl_ms: pool::READY_MS, ..self.limits },
            rooted: self.rooted,
        })
    }
}

/// What may leave a sandbox, if its project may have that.
pub(crate) fn policy(order: &Order, plan: &Plan) -> Result<Policy, Error> {
    let policy = order.request.policy.clone().unwrap_or_else(|| plan.template.policy.clone());
    if policy.open && !order.may_open {
        return Err(Error::Request(not_open(&order.project)));
    }
    Ok(policy)
}

/// The error for a project that may not have the whole internet.
pub fn not_open(project: &str) -> api::Error {
    api::Error {
        code: api::ErrorCode::Forbidden,
        message: format!("project {project} is not allowed to use an open policy"),
        layer: api::Layer::Policy,
        ran: api::Ran::No,
        retry: api::Retry::Useless,
        fix: format!(
            "Allow only the hosts that are needed, or ask an administrator to permit open policies: `bellglass project set {project} --open true`."
        ),
    }
}
