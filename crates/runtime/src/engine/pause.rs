//! Pauses containers with the engine's own call.

use api::SandboxId;
use bollard::models::ContainerState;

use super::{Engine, container, is_over, unless_gone};
use crate::{Error, Pausing};

#[async_trait::async_trait]
impl Pausing for Engine {
    async fn pause(&self, id: &SandboxId) -> Result<(), Error> {
        if is_paused(&self.live(id).await?) {
            return Ok(());
        }
        let paused = self.docker().await?.pause_container(&container::name(id)).await;
        match unless_gone(paused) {
            Ok(Some(())) => Ok(()),
            Ok(None) => Err(Error::NotFound(id.clone())),
            // A request that was sent twice: the engine refuses the second one.
            Err(_) if is_paused(&self.live(id).await?) => Ok(()),
            Err(error) => Err(self.failed("pause a container", error)),
        }
    }

    async fn resume(&self, id: &SandboxId) -> Result<(), Error> {
        if !is_paused(&self.live(id).await?) {
            return Ok(());
        }
        let resumed = self.docker().await?.unpause_container(&container::name(id)).await;
        match unless_gone(resumed) {
            Ok(Some(())) => Ok(()),
            Ok(None) => Err(Error::NotFound(id.clone())),
            Err(_) if !is_paused(&self.live(id).await?) => Ok(()),
            Err(error) => Err(self.failed("resume a container", error)),
        }
    }
}

impl Engine {
    /// The state of a container whose processes have not ended.
    async fn live(&self, id: &SandboxId) -> Result<ContainerState, Error> {
        let state = self.state(id).await?.ok_or_else(|| Error::NotFound(id.clone()))?;
        if is_over(&state) { Err(Error::Ended(id.clone())) } else { Ok(state) }
    }
}

pub(super) fn is_paused(state: &ContainerState) -> bool {
    state.paused == Some(true)
}
