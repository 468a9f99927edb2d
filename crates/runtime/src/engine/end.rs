//! The end of a sandbox's container: waiting for it, and the container's removal.

use std::time::Duration;

use api::SandboxId;
use bollard::models::{ContainerState, ContainerStateStatusEnum as Status};
use bollard::query_parameters::{RemoveContainerOptionsBuilder, WaitContainerOptionsBuilder};
use futures_util::StreamExt as _;
use tokio::time::Instant;

use super::{AGAIN, CONFLICT, Engine, NOT_FOUND, container, pause, status};
use crate::{Error, Exit};

/// Timeout for the removal of a container, regardless of which process requested the removal.
const REMOVED_WITHIN: Duration = Duration::from_secs(30);
/// Maximum duration of one wait request. A longer wait is split into several requests, because a connection
/// without any traffic may be dead.
const WAIT_PIECE: Duration = Duration::from_secs(60);

impl Engine {
    /// Removes the container, regardless of its state, and then the record.
    pub(super) async fn teardown(&self, id: &SandboxId) -> Result<(), Error> {
        self.shared.written.teardown(id, self.remove_container(id)).await
    }

    async fn remove_container(&self, id: &SandboxId) -> Result<(), Error> {
        let docker = self.docker().await?;
        let deadline = Instant::now() + REMOVED_WITHIN;
        loop {
            // A container that belongs to a different data directory may have the same name. It is not
            // removed.
            let found = self.inspect(id).await?;
            let Some(found) = found.filter(|found| container::is_of(found, &self.shared.owner)) else {
                return Ok(());
            };
            if found.state.as_ref().is_some_and(pause::is_paused) {
                // Some engines cannot kill a paused container.
                let _ = docker.unpause_container(&container::name(id)).await;
            }
            let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
            match docker.remove_container(&container::name(id), Some(options)).await {
                Ok(()) => {}
                // The container is already gone, or is being removed concurrently.
                Err(error) if matches!(status(&error), Some(NOT_FOUND | CONFLICT)) => {}
                Err(error) => return Err(self.failed("remove a container", error)),
            }
            if Instant::now() >= deadline {
                return Err(Error::Deadline { what: "removing a container", after: REMOVED_WITHIN });
            }
            tokio::time::sleep(AGAIN / 10).await;
        }
    }

    /// Returns true if the engine has a sandbox's container. Retries until the engine responds.
    pub(super) async fn is_known(&self, id: &SandboxId) -> bool {
        loop {
            match self.state(id).await {
                Ok(state) => return state.is_some_and(|state| state.status != Some(Status::REMOVING)),
                Err(_) => tokio::time::sleep(AGAIN).await,
            }
        }
    }

    /// Waits until an existing container has ended, even if the engine becomes unavailable in the meantime.
    pub(super) async fn await_end(&self, id: &SandboxId) -> Exit {
        loop {
            match self.state(id).await {
                Ok(None) => return Exit::Unknown,
                Ok(Some(state)) if is_over(&state) => return exit(&state),
                Ok(Some(_)) => self.await_piece(id).await,
                Err(_) => {}
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Waits until the container has ended, for at most the duration of one wait request.
    async fn await_piece(&self, id: &SandboxId) {
        let Ok(docker) = self.docker().await else { return };
        let options = WaitContainerOptionsBuilder::new().condition("not-running").build();
        let mut waiting = std::pin::pin!(docker.wait_container(&container::name(id), Some(options)));
        let _ = tokio::time::timeout(WAIT_PIECE, waiting.next()).await;
    }
}

/// Returns true if no process of a container is running or will ever run.
pub(super) fn is_over(state: &ContainerState) -> bool {
    matches!(state.status, Some(Status::EXITED | Status::DEAD | Status::REMOVING))
}

/// Returns how process 1 ended. Engines report exit codes and signals as one number, and the guest uses no
/// exit codes above 128. The number is also 0 until the engine knows the outcome, so 0 is reported as
/// unknown.
fn exit(state: &ContainerState) -> Exit {
    match state.exit_code.and_then(|code| i32::try_from(code).ok()) {
        Some(code @ 1..=127) => Exit::Exited(code),
        Some(code @ 129..=192) => Exit::Signaled(code - 128),
        _ => Exit::Unknown,
    }
}
