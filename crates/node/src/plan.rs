//! What an order for a sandbox comes to on this machine: its template, its limits, what isolates it, and whether one is ready for it.

use std::sync::Arc;

use api::limits::Limits;
use api::policy::Policy;
use api::sandbox::{CreateSandbox, Tier};
use host::error::Error;
use runtime::{Pausing, Runtime};
use template::Template;

use crate::journal::{AutoResume, Record};
use crate::ready::Readiness;

/// How long one is kept ready; its guest ends itself then, too. Until somebody claims it, it has no other time to live.
pub(crate) const READY_MS: u64 = 3_600_000;

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
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) template: Template,
    pub(crate) limits: Limits,
    pub(crate) rooted: bool,
}

/// What ready sandboxes are ready for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kind {
    pub runtime: String,
    pub tier: Tier,
    pub template: String,
    /// With the time to live of one that nobody has claimed.
    pub limits: Limits,
    /// Whether root may run commands in it.
    pub rooted: bool,
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
            limits: Limits { ttl_ms: READY_MS, ..self.limits },
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

/// How a backend pauses sandboxes.
pub(crate) fn pausing(runtime: &dyn runtime::Runtime) -> Result<&dyn Pausing, Error> {
    runtime.pausing().ok_or_else(|| {
        let why = format!("{} cannot pause sandboxes", runtime.name());
        Error::Runtime(runtime::Error::Unsupported { what: "pausing a sandbox", why })
    })
}
