//! Pausing and resuming containers with the engine's own API.

use api::SandboxId;
use bollard::models::ContainerState;

use super::end::is_over;
use super::{Engine, container, unless_gone};
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
            // A concurrent request has already paused the container, so the engine refused this one.
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
    /// Returns the state of a container that has not ended.
    async fn live(&self, id: &SandboxId) -> Result<ContainerState, Error> {
        let state = self.state(id).await?.ok_or_else(|| Error::NotFound(id.clone()))?;
        if is_over(&state) { Err(Error::Ended(id.clone())) } else { Ok(state) }
    }
}

pub(super) fn is_paused(state: &ContainerState) -> bool {
    state.paused == Some(true)
}
