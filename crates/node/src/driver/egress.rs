//! Serves the outgoing connections of a sandbox.

use std::sync::Arc;

use egress::gate::HOST;
use egress::{BrokerReport, Decision, Keyring, Party};
use guest_client::Sandbox;
use tokio_util::task::AbortOnDropHandle;

use crate::egress::Decided;
use crate::handle::Handle;
use crate::shared::NodeState;

/// Task that serves the outgoing connections of a sandbox.
pub(super) type Attendant = AbortOnDropHandle<()>;

/// Starts the task that serves the outgoing connections of a sandbox.
pub(super) fn attended(shared: &Arc<NodeState>, handle: &Arc<Handle>, sandbox: &Arc<Sandbox>) -> Attendant {
    let attending = attend(Arc::clone(shared), Arc::clone(handle), Arc::clone(sandbox));
    AbortOnDropHandle::new(tokio::spawn(attending))
}

/// Serves the outgoing connections of a sandbox until the sandbox ends.
async fn attend(shared: Arc<NodeState>, handle: Arc<Handle>, sandbox: Arc<Sandbox>) {
    let (id, project) = (handle.id().clone(), handle.shown().project);
    let tell = {
        let shared = Arc::clone(&shared);
        move |told| match told {
            BrokerReport::Decided(decision) => {
                let (sandbox, project) = (id.clone(), project.clone());
                // The send fails if there is no subscriber.
                drop(shared.decisions.send(Decided { sandbox, project, decision }));
            }
            BrokerReport::Installed(installed) => {
                let kept = if installed.cached { ", from cache" } else { "" };
                let decision = Decision {
                    target: HOST.into(),
                    ask: format!("installed {}", installed.file),
                    verdict: Ok(format!("{}{kept}", installed.hash)),
                };
                let (sandbox, project) = (id.clone(), project.clone());
                drop(shared.decisions.send(Decided { sandbox, project, decision }));
                if let Err(error) = shared.journal.add_package(&id, &installed) {
                    tracing::warn!(sandbox = %id, error = host::error::chain(&error), "cannot record an installed package");
                }
            }
        }
    };
    let project = handle.shown().project;
    let keyring = Keyring::new(Arc::clone(handle.vault()), &project, handle.id().as_str());
    let party = Party::new(handle.policy(), Box::new(tell)).of(&project).holding(keyring);
    let party = Arc::new(party);
    guest_client::egress::attend(&sandbox, &shared.broker, &party).await;
}
