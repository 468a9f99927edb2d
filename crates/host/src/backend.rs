//! Chooses the isolation backends to use on this machine, and records the reason for each choice.
//!
//! If no order is configured, the first backend that works is used: OCI runtimes if the server runs as root,
//! then Podman, then Docker. If a Daytona account is configured, it is tried before these backends, and the
//! first local backend that works is used in addition. If an order is configured, all of its backends that
//! work are used in that order: if one backend cannot start a sandbox, the next one is tried.

use std::str::FromStr;
use std::sync::Arc;

use api::limits::Limits;
use api::server::BackendStatus;
use runtime::daytona::{self, Account, Daytona};
use runtime::engine::{Engine, EngineKind};
use runtime::{Inspect as _, Runtime, Tier};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::machine::Machine;

/// A backend, as named in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// The OCI runtimes of this machine, driven through their command line.
    Oci,
    /// Podman, then Docker.
    Engine,
    /// Podman's service.
    Podman,
    /// Docker's service.
    Docker,
    /// A Daytona account.
    Daytona,
}

/// The backends in use, and the reasons for this choice.
#[derive(Clone, Default)]
pub struct Choice {
    /// Runtimes in use, in order of preference.
    pub runtimes: Vec<Arc<dyn Runtime>>,
    /// Backends that are not in use but may still run sandboxes that this machine started. Recovery also
    /// takes over or removes the sandboxes on these backends.
    pub kept: Vec<Arc<dyn Runtime>>,
    /// All backends that were considered, in order, with the reason why each one is or is not used.
    pub considered: Vec<BackendStatus>,
}

/// Result of probing one backend: its runtimes, the reason for using it, and the gaps in its isolation.
type ProbeResult = Result<(Vec<Arc<dyn Runtime>>, String, Vec<String>), Error>;

impl Choice {
    /// Returns the backend in use, as a sentence for users (requirement A12.02).
    pub fn words(&self) -> String {
        match self.considered.iter().find(|one| one.used) {
            Some(used) => format!("Using backend: {}", used.name),
            None => "No backend available".to_owned(),
        }
    }

    /// Logs the choice and the reasons.
    pub fn log(&self) {
        match self.is_none() {
            true => tracing::warn!("{}", self.words()),
            false => tracing::info!("{}", self.words()),
        }
        for one in &self.considered {
            if one.used {
                let lacks = Some(one.lacks.join("; ")).filter(|lacks| !lacks.is_empty());
                tracing::info!(backend = one.name, lacks, "backend is used: {}", one.why);
            } else {
                let fix = Some(one.fix.as_str()).filter(|fix| !fix.is_empty());
                tracing::info!(backend = one.name, fix, "backend is not used: {}", one.why);
            }
        }
    }

    /// Returns true if no backend works.
    pub fn is_none(&self) -> bool {
        !self.considered.iter().any(|one| one.used)
    }

    /// Returns the first runtime for which this machine can build templates. This is never Daytona: a local
    /// engine builds the images for Daytona and pushes them.
    ///
    /// # Errors
    /// Returns an error if there is no such runtime. The error says why each backend is not used and how to
    /// fix that.
    pub fn maker(&self) -> Result<Arc<dyn Runtime>, Error> {
        match self.runtimes.iter().find(|one| one.name() != daytona::NAME) {
            Some(runtime) => Ok(Arc::clone(runtime)),
            None => self.at_least(Tier::Container),
        }
    }

    /// Returns the next runtime to try after the runtimes in `tried` failed with `error`, if there is one.
    /// Its isolation is at least as strong as `tier`, and it can enforce the same limits, because limits are
    /// never reduced silently.
    pub fn next(
        &self,
        tried: &[String],
        tier: Tier,
        limits: Limits,
        error: &Error,
    ) -> Option<&Arc<dyn Runtime>> {
        self.runtimes.iter().filter(|_| may_elsewhere(error)).find(|one| {
            one.tier() >= tier && one.within(limits) == limits && !tried.iter().any(|name| name == one.name())
        })
    }

    /// Returns the first runtime whose isolation is at least as strong as `tier`. Never returns a weaker one.
    ///
    /// # Errors
    /// Returns an error if there is no such runtime. The error says why each backend is not used and how to
    /// fix that.
    pub fn at_least(&self, tier: Tier) -> Result<Arc<dyn Runtime>, Error> {
        match self.runtimes.iter().find(|one| one.tier() >= tier) {
            Some(runtime) => Ok(Arc::clone(runtime)),
            None if self.runtimes.is_empty() => Err(Error::Request(none(&self.considered))),
            None => Err(Error::Request(too_weak())),
        }
    }
}

/// Uses exactly these runtimes, without probing any backend.
impl From<Vec<Arc<dyn Runtime>>> for Choice {
    fn from(runtimes: Vec<Arc<dyn Runtime>>) -> Self {
        Self { runtimes, ..Self::default() }
    }
}

impl Machine {
    /// Chooses the backends to use: all backends in `order` that work, or the first backend that works if
    /// `order` is empty.
    pub async fn choose(&self, order: &[Backend]) -> Choice {
        let automatic = [Backend::Daytona, Backend::Oci, Backend::Podman, Backend::Docker];
        // If no Daytona account is configured, the report does not mention Daytona.
        let automatic = automatic.get(usize::from(!Account::is_meant())..).unwrap_or_default();
        let order = if order.is_empty() { (automatic, true) } else { (order, false) };
        let mut choice = Choice::default();
        let mut away: Vec<Arc<dyn Runtime>> = Vec::new();
        for backend in expanded(order.0) {
            let name = backend.name().to_owned();
            // Daytona cannot build images, so a local backend is used in addition (requirement A9.02).
            let mut here = choice.considered.iter().filter(|one: &&BackendStatus| one.name != daytona::NAME);
            let first = here.find(|one| one.used);
            let status = match first.filter(|_| order.1) {
                Some(first) => {
                    let why = format!("{} comes first in the order of backends and works", first.name);
                    BackendStatus { name, why, ..BackendStatus::default() }
                }
                None => match self.find(backend).await {
                    Ok((found, why, lacks)) => {
                        choice.runtimes.extend(found);
                        BackendStatus { name, used: true, why, fix: String::new(), lacks }
                    }
                    Err(error) => {
                        let is_away = matches!(error, Error::Runtime(runtime::Error::Unavailable { .. }));
                        away.extend(self.away(backend).filter(|_| is_away));
                        let error = error.to_api();
                        BackendStatus { name, why: error.message, fix: error.fix, ..BackendStatus::default() }
                    }
                },
            };
            choice.considered.push(status);
        }
        if choice.runtimes.is_empty() {
            // No backend works now. The unavailable ones are kept, and each later call tries them again.
            choice.runtimes.extend(away);
        }
        for kind in EngineKind::ALL {
            let known = choice.runtimes.iter().any(|one| one.name() == kind.name());
            if let Some(engine) = Engine::of_before(kind, self.data()).filter(|_| !known) {
                choice.kept.push(Arc::new(engine));
            }
        }
        if !choice.runtimes.iter().any(|one| one.name() == daytona::NAME) && Daytona::has_before(self.data())
        {
            choice.kept.extend(self.away(Backend::Daytona));
        }
        choice
    }

    /// Returns the runtime of a backend that is unavailable now and may become available later.
    fn away(&self, backend: Backend) -> Option<Arc<dyn Runtime>> {
        match backend {
            Backend::Podman | Backend::Docker => Some(Arc::new(self.engine(backend.kind()?).ok()?)),
            Backend::Daytona => Some(Arc::new(self.daytona().ok()?)),
            Backend::Oci | Backend::Engine => None,
        }
    }

    async fn find(&self, backend: Backend) -> ProbeResult {
        match backend {
            Backend::Oci => self.find_oci(),
            Backend::Podman | Backend::Engine => Self::try_engine(self.engine(EngineKind::Podman)?).await,
            Backend::Docker => Self::try_engine(self.engine(EngineKind::Docker)?).await,
            Backend::Daytona => self.find_daytona().await,
        }
    }

    /// Uses the Daytona account if Daytona's API responds and accepts the key (requirement A9.03).
    async fn find_daytona(&self) -> ProbeResult {
        let daytona = self.daytona()?;
        daytona.check().await?;
        let (why, lacks) =
            (format!("the API key is accepted by {}", daytona.address()), daytona.lacks().await?);
        Ok((vec![Arc::new(daytona)], why, lacks))
    }

    fn find_oci(&self) -> ProbeResult {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::Runtime(runtime::Error::Unavailable {
                what: "OCI runtimes are not available".into(),
                why: "creating namespaces, cgroups and disks for sandboxes requires root".into(),
                fix: "Run the command again with sudo, or use Podman or Docker.".into(),
            }));
        }
        // If no runtime is installed, this fails with the list of known runtimes.
        self.at_least(Tier::Container)?;
        let mut found = Vec::new();
        for flavor in Self::flavors() {
            if flavor.clone().find().is_ok() {
                found.push(self.runtime(flavor.name)?);
            }
        }
        let names: Vec<&str> = found.iter().map(|one| one.name()).collect();
        let why = format!("running as root with {}", names.join(", "));
        Ok((found, why, Vec::new()))
    }

    /// Uses an engine if it responds and can enforce the limits of every sandbox (requirement A9.03).
    async fn try_engine(engine: Engine) -> ProbeResult {
        let facts = engine.facts().await?;
        let who = if facts.rootless { "rootless" } else { "rootful" };
        let why = format!("version {}, {who}, at {}", facts.version, engine.place().address);
        let lacks = engine.lacks().await?;
        Ok((vec![Arc::new(engine)], why, lacks))
    }
}

impl FromStr for Backend {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Oci, Self::Engine, Self::Podman, Self::Docker, Self::Daytona];
        let found = all.into_iter().find(|one| one.name() == text);
        found.ok_or_else(|| format!("expected one of {}", all.map(Self::name).join(", ")))
    }
}

impl Backend {
    fn kind(self) -> Option<EngineKind> {
        match self {
            Self::Oci | Self::Engine | Self::Daytona => None,
            Self::Podman => Some(EngineKind::Podman),
            Self::Docker => Some(EngineKind::Docker),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Oci => "oci",
            Self::Engine => "engine",
            Self::Podman => "podman",
            Self::Docker => "docker",
            Self::Daytona => daytona::NAME,
        }
    }
}

/// Expands `engine` to Podman and Docker, and removes duplicates.
fn expanded(order: &[Backend]) -> Vec<Backend> {
    let mut all = Vec::new();
    for backend in order {
        let meant: &[Backend] = match backend {
            Backend::Engine => &[Backend::Podman, Backend::Docker],
            one @ (Backend::Oci | Backend::Podman | Backend::Docker | Backend::Daytona) => {
                std::slice::from_ref(one)
            }
        };
        for one in meant {
            if !all.contains(one) {
                all.push(*one);
            }
        }
    }
    all
}

/// Returns true if a start that failed on one backend may succeed on a different one, because the failed
/// backend is missing, does not respond, has no capacity, or does not support the request.
fn may_elsewhere(error: &Error) -> bool {
    use runtime::Error::{Capacity, Deadline, Unavailable, Unsupported};
    if let Error::Runtime(error) = error {
        return matches!(error, Unavailable { .. } | Unsupported { .. } | Deadline { .. } | Capacity { .. });
    }
    // The guest never connected, so no user code ran.
    matches!(error, Error::Deadline { .. })
}

/// Builds the error for a machine without a working backend.
fn none(considered: &[BackendStatus]) -> api::Error {
    let reasons: Vec<String> = considered.iter().map(|one| format!("{}: {}", one.name, one.why)).collect();
    let fix = considered.iter().map(|one| one.fix.as_str()).find(|fix| !fix.is_empty()).unwrap_or_default();
    api::Error {
        code: api::ErrorCode::TierUnavailable,
        message: format!("No backend available. {}", reasons.join(". ")),
        layer: api::Layer::Platform,
        ran: api::Ran::No,
        retry: api::Retry::Safe,
        fix: format!("{fix} `bellglass doctor` tests every backend."),
    }
}

/// Builds the error for a machine whose runtimes all provide weaker isolation than requested.
pub(crate) fn too_weak() -> api::Error {
    api::Error {
        code: api::ErrorCode::TierUnavailable,
        message: "no runtime on this machine provides the requested isolation tier".into(),
        layer: api::Layer::Platform,
        ran: api::Ran::No,
        retry: api::Retry::Useless,
        fix: "Install `runsc` (gVisor) on the machine and restart the server, or request a weaker tier."
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_podman_first_and_everybody_once() {
        use Backend::{Docker, Engine, Oci, Podman};
        assert_eq!(expanded(&[Engine, Oci, Docker]), [Podman, Docker, Oci]);
        assert_eq!(expanded(&[Docker, Engine]), [Docker, Podman]);
    }

    #[test]
    fn where_nothing_works_everybody_is_named_with_a_reason() {
        let status = |name: &str| BackendStatus {
            name: name.into(),
            why: "it is not here".into(),
            fix: "Install it.".into(),
            ..BackendStatus::default()
        };
        let choice = Choice { considered: vec![status("podman"), status("docker")], ..Choice::default() };
        assert_eq!(choice.words(), "No backend available");
        let error = choice.at_least(Tier::Container).err().unwrap().to_api();
        assert_eq!(error.message, "No backend available. podman: it is not here. docker: it is not here");
        assert!(error.fix.starts_with("Install it."));
    }
}
