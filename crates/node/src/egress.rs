//! What leaves sandboxes: each connection that a program inside makes to its proxy is taken from the guest and given to the broker.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::exec::ExecSpec;
use api::policy::{Installed, Policy, Preset};
use api::{ErrorCode, SandboxId, limits};
use bytes::Bytes;
use egress::gate::HOST;
pub use egress::gate::upstream::Upstreams;
pub use egress::{Broker, Decision, Gate, Keyring, Party, Told};
use hyper::Method;
use tokio::sync::{broadcast, watch};

use crate::entry::Entry;
use crate::error::Error;
use crate::link::Ask;
use crate::live::{Node, Shared};
use crate::port::Port;
use crate::sandbox::Sandbox;

/// One wait for a connection. The loop around it has no end: a program may make its first after a day.
const NEXT_WITHIN: Duration = Duration::from_millis(2 * limits::DEADLINE_MS_MAX);
/// After a failure that may pass.
const AGAIN: Duration = Duration::from_secs(1);

/// What was decided, and for whom.
#[derive(Clone, Debug)]
pub struct Decided {
    /// The sandbox that asked.
    pub sandbox: SandboxId,
    /// Its project.
    pub project: String,
    /// What for, and what the answer was.
    pub decision: Decision,
}

impl Node {
    /// What is decided from now on about what leaves sandboxes.
    pub fn decisions(&self) -> broadcast::Receiver<Decided> {
        self.shared.decisions.subscribe()
    }

    /// Gives a sandbox another policy. It is written down before this returns; what is under way and no longer allowed is cut.
    ///
    /// # Errors
    /// It is not known, does not run, or the policy is none.
    pub async fn set_policy(&self, id: &SandboxId, policy: Policy) -> Result<api::sandbox::Sandbox, Error> {
        policy.check().map_err(Error::Request)?;
        let call = self.call(id).await?;
        let record = self.shared.update(call.entry(), |record| {
            record.sandbox.policy = policy;
            Ok(())
        })?;
        Ok(record.sandbox)
    }

    /// Returns the policy that a sandbox was created with.
    ///
    /// # Errors
    /// The sandbox is not known.
    pub fn first_policy(&self, id: &SandboxId) -> Result<Policy, Error> {
        Ok(self.known(id)?.record().first_policy)
    }

    /// The packages that a sandbox was given, for as long as it is known here.
    ///
    /// # Errors
    /// What the file system said.
    pub fn packages(&self, id: &SandboxId) -> Result<Vec<Installed>, Error> {
        self.shared.journal.packages(id)
    }
}

impl Shared {
    /// Serves what a sandbox's programs ask of the outside, until it ends.
    pub(crate) async fn attend_egress(self: Arc<Self>, entry: Arc<Entry>, sandbox: Arc<Sandbox>) {
        let (id, project) = (entry.id().clone(), entry.shown().project);
        let tell = {
            let shared = Arc::clone(&self);
            move |told| match told {
                Told::Decided(decision) => {
                    let (sandbox, project) = (id.clone(), project.clone());
                    // Nobody may be listening.
                    drop(shared.decisions.send(Decided { sandbox, project, decision }));
                }
                Told::Installed(installed) => {
                    let kept = if installed.cached { ", from cache" } else { "" };
                    let decision = Decision {
                        target: HOST.into(),
                        ask: format!("installed {}", installed.file),
                        verdict: Ok(format!("{}{kept}", installed.hash)),
                    };
                    let (sandbox, project) = (id.clone(), project.clone());
                    drop(shared.decisions.send(Decided { sandbox, project, decision }));
                    if let Err(error) = shared.journal.add_package(&id, &installed) {
                        tracing::warn!(sandbox = %id, error = crate::error::chain(&error), "cannot record an installed package");
                    }
                }
            }
        };
        let project = entry.shown().project;
        let keyring = Keyring::new(Arc::clone(entry.vault()), &project, entry.id().as_str());
        let party = Party::new(entry.policy(), Box::new(tell)).of(&project).holding(keyring);
        let party = Arc::new(party);
        attend(&sandbox, &self.broker, &party).await;
    }
}

/// Takes one connection after the other, until the sandbox has ended.
pub async fn attend(sandbox: &Sandbox, broker: &Arc<Broker>, party: &Arc<Party>) {
    let ask = Ask { method: Method::POST, path: "/egress".into(), body: Bytes::new() };
    loop {
        match sandbox.link().both_ways(&ask, NEXT_WITHIN).await {
            Ok((response, said)) => {
                let stream = Port::new(response.into_body(), said, None);
                tokio::spawn(Arc::clone(broker).serve(stream, Arc::clone(party)));
            }
            Err(Error::Deadline { .. }) => {}
            Err(Error::Lost(_)) => return,
            // Of a release that had no way out, or one that could not take its port: then nothing leaves.
            Err(Error::Guest(error))
                if matches!(error.code, ErrorCode::NotFound | ErrorCode::Unsupported) =>
            {
                tracing::warn!(sandbox = %sandbox.id(), error = error.message, "sandbox has no network access");
                return;
            }
            Err(_) => tokio::time::sleep(AGAIN).await,
        }
    }
}

/// Where fetched packages are kept, below a data directory.
pub fn packages(data: &Path) -> PathBuf {
    data.join("packages")
}

/// An exec whose programs look for packages where its policy lets them in, unless it says otherwise.
#[must_use]
pub fn pointed(policy: &Policy, mut spec: ExecSpec) -> ExecSpec {
    for preset in &policy.presets {
        let index = format!("http://{HOST}/python/simple/");
        let variables: &[(&str, &str)] = match preset {
            Preset::PythonPackages => &[
                ("PIP_INDEX_URL", &index),
                ("PIP_TRUSTED_HOST", HOST),
                ("UV_DEFAULT_INDEX", &index),
                ("UV_INSECURE_HOST", HOST),
            ],
            Preset::NodePackages => &[("NPM_CONFIG_REGISTRY", &format!("http://{HOST}/npm/"))],
            Preset::DebianPackages | Preset::Git => &[],
        };
        for (name, value) in variables {
            spec.env.entry((*name).to_owned()).or_insert_with(|| (*value).to_owned());
        }
    }
    spec
}

/// A policy that stays as it is.
pub fn fixed(policy: Policy) -> watch::Receiver<Policy> {
    watch::channel(policy).1
}
