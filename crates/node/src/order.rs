//! Builds the spec of a sandbox and chooses the runtime that starts it: the runtime in the sandbox's record,
//! or the next suitable runtime if the recorded one cannot start the sandbox.

use std::sync::Arc;
use std::time::Duration;

use api::trace::STEP;
use guest_client::sandbox::Sandbox;
use host::error::Error;
use runtime::{Profile, Runtime, Spec, Tier};
use tracing::{Instrument as _, info_span};

use crate::handle::Handle;
use crate::shared::NodeState;

impl NodeState {
    /// Returns the spec of a sandbox, and the runtime that starts the sandbox.
    pub fn order(&self, handle: &Handle) -> Result<(Spec, Arc<dyn Runtime>), Error> {
        let record = handle.record();
        let (layers, image) = template::root(&self.data, &record.layers);
        let (limits, guest) = (record.sandbox.limits, self.guest.clone());
        let spec = Spec { layers, image, limits, profile: record.profile(), guest };
        Ok((spec, self.runtime_of(handle)?))
    }

    /// Starts a sandbox on the backend in its record. If that backend cannot start it, tries the next one
    /// that can enforce the same limits (requirement A9.02). A sandbox that has started is never moved.
    pub async fn start(&self, handle: &Handle) -> Result<Sandbox, Error> {
        let mut tried = Vec::new();
        loop {
            let (spec, runtime) = self.order(handle)?;
            let name = runtime.name().to_owned();
            let error = match Sandbox::start(Arc::clone(&runtime), handle.id().clone(), &spec).await {
                Ok(sandbox) => {
                    handle.now_made();
                    return Ok(sandbox);
                }
                Err(error) => error,
            };
            tried.push(name.clone());
            let next = self.choice.next(&tried, runtime.tier(), spec.limits, &error);
            // Root is allowed only on the container tier: with a user-space kernel, root could reach the
            // sandbox's process 1.
            let rooted = spec.profile == Profile::Rooted;
            let next = next.filter(|next| !rooted || next.tier() == Tier::Container);
            let Some(next) = next else { return Err(error) };
            // Remains of the failed attempt must be removed before another backend is tried.
            let step = info_span!(target: STEP, "undo", what = name.as_str());
            runtime.stop(handle.id(), Duration::ZERO).instrument(step).await?;
            tracing::warn!(
                sandbox = %handle.id(), backend = name, next = next.name(), error = error.to_api().message,
                "backend cannot create the sandbox; trying the next backend"
            );
            self.update(handle, |record| {
                next.name().clone_into(&mut record.runtime);
                Ok(())
            })?;
        }
    }

    /// Returns the runtime of a sandbox.
    pub fn runtime_of(&self, handle: &Handle) -> Result<Arc<dyn Runtime>, Error> {
        let name = handle.record().runtime;
        let mut all = self.choice.runtimes.iter().chain(&self.choice.kept);
        let known = all.find(|one| one.name() == name);
        known.cloned().ok_or_else(|| {
            let why =
                format!("the sandbox was created with {name}, which is no longer installed; install {name}");
            Error::Runtime(runtime::Error::Unsupported { what: "stopping a sandbox", why })
        })
    }
}
