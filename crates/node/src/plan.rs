//! Resolves an order on this machine: its template, limits, policy and runtime, and the kind of pre-warmed
//! sandboxes that fits the order.

use std::sync::Arc;

use api::limits::Limits;
use api::policy::Policy;
use api::sandbox::{CreateSandbox, Tier};
use host::error::Error;
use runtime::{Pausing, Runtime};
use template::Template;

use crate::journal::{AutoResume, SandboxRecord};
use crate::ready::Readiness;

/// Time to live of an unclaimed pre-warmed sandbox. The guest enforces it as well.
pub(crate) const READY_MS: u64 = 3_600_000;

/// A request for a sandbox, with the project and its permissions.
#[derive(Clone, Debug)]
pub struct Order {
    /// Project to which the sandbox will belong.
    pub project: String,
    /// The request.
    pub request: CreateSandbox,
    /// True if the project may give a sandbox access to the whole internet.
    pub may_open: bool,
    /// True if the project may run commands as root in a workstation.
    pub may_root: bool,
    /// Settings that decide which requests resume the sandbox while it is paused.
    pub auto_resume: AutoResume,
}

/// An order resolved on this machine.
pub struct Plan {
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) template: Template,
    pub(crate) limits: Limits,
    pub(crate) rooted: bool,
}

/// Properties that a pre-warmed sandbox shares with the orders that can claim it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PoolKind {
    pub runtime: String,
    pub tier: Tier,
    pub template: String,
    /// Limits of the sandbox. Their time to live is [`READY_MS`].
    pub limits: Limits,
    /// True if root may run commands in the sandbox.
    pub rooted: bool,
}

impl Plan {
    /// Returns the limits of the sandbox.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Returns the conditions under which a sandbox of this plan counts as started.
    pub(crate) fn readiness(&self) -> Readiness {
        Readiness::of(&self.template)
    }

    /// Returns true if a pre-warmed sandbox was created from the same template. A template can be rebuilt
    /// under the same name, so its name is not enough.
    pub(crate) fn is_of(&self, record: &SandboxRecord) -> bool {
        let Template { layers, env, cwd, imports, posture, .. } = &self.template;
        (&record.layers, &record.env, &record.cwd, &record.imports, &record.posture, &record.rooted)
            == (layers, env, cwd, imports, posture, &self.rooted)
    }

    /// Returns the kind of pre-warmed sandboxes that fits the order, or `None` if the backend does not
    /// support pre-warming.
    pub(crate) fn kind(&self, order: &Order) -> Option<PoolKind> {
        self.runtime.properties().prewarms.then(|| PoolKind {
            runtime: self.runtime.name().to_owned(),
            tier: order.request.tier,
            template: order.request.template.clone(),
            limits: Limits { ttl_ms: READY_MS, ..self.limits },
            rooted: self.rooted,
        })
    }
}

/// Returns the egress policy of a sandbox. Fails if its project may not use that policy.
pub(crate) fn policy(order: &Order, plan: &Plan) -> Result<Policy, Error> {
    let policy = order.request.policy.clone().unwrap_or_else(|| plan.template.policy.clone());
    if policy.open && !order.may_open {
        return Err(Error::Request(not_open(&order.project)));
    }
    Ok(policy)
}

/// Returns the error for a project that may not use an open policy.
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

/// Returns the pause operations of a backend, or an error if it cannot pause sandboxes.
pub(crate) fn pausing(runtime: &dyn runtime::Runtime) -> Result<&dyn Pausing, Error> {
    runtime.pausing().ok_or_else(|| {
        let why = format!("{} cannot pause sandboxes", runtime.name());
        Error::Runtime(runtime::Error::Unsupported { what: "pausing a sandbox", why })
    })
}
