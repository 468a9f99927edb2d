//! The end of a sandbox: waiting for process 1, and the removal of the workspace.

use std::time::Duration;

use api::SandboxId;
use api::exec::Outcome;
use tokio::time::Instant;

use super::Daytona;
use super::backoff::Backoff;
use super::workspace::{CommandResult, Workspace};
use crate::{Error, Exit};

/// Timeout for the removal of a workspace, regardless of which process requested the removal.
const REMOVED_WITHIN: Duration = Duration::from_secs(120);
/// Maximum duration of one wait request to the guest. A longer wait is split into several requests, because
/// no connection stays open forever.
const WAIT_PIECE: Duration = Duration::from_secs(45);
/// Exit code of `guest wait` and `guest end` if process 1 is still alive.
const NOT_YET: i64 = 4;

impl Daytona {
    /// Removes the workspace, regardless of its state, and then the record.
    pub(super) async fn teardown(&self, id: &SandboxId) -> Result<(), Error> {
        self.shared.written.teardown(id, self.remove(id)).await
    }

    /// Removes all workspaces of a sandbox, and waits until they are gone. Daytona renames a workspace as
    /// soon as its removal is requested, but keeps it running until it is actually removed.
    async fn remove(&self, id: &SandboxId) -> Result<(), Error> {
        let deadline = Instant::now() + REMOVED_WITHIN;
        let account = &self.shared.account;
        let mut left = Workspace::all(account, &self.shared.owner, Some(id), usize::MAX).await?;
        left.extend(self.find(id).await?);
        let mut pause = Backoff::default();
        loop {
            let mut still = Vec::new();
            for workspace in left {
                let found = match workspace.look_again(account).await {
                    Ok(found) => found,
                    // Errors are retried until the deadline.
                    Err(error) if Instant::now() >= deadline => return Err(error),
                    Err(_) => Some(workspace),
                };
                let Some(found) = found.filter(|found| !found.is_removed()) else { continue };
                if !found.is_being_removed() {
                    found.remove(account).await?;
                }
                still.push(found);
            }
            left = still;
            if left.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(Error::Deadline { what: "removing a Daytona workspace", after: REMOVED_WITHIN });
            }
            pause.take().await;
        }
    }

    /// Returns true if the account has a workspace for a sandbox. Retries until Daytona responds.
    pub(super) async fn is_known(&self, id: &SandboxId) -> bool {
        let mut pause = Backoff::default();
        loop {
            match self.find(id).await {
                Ok(found) => return found.is_some_and(|found| !found.is_removed()),
                Err(_) => pause.take().await,
            }
        }
    }

    /// Waits until an existing sandbox has ended, even if Daytona becomes unavailable in the meantime.
    pub(super) async fn await_end(&self, id: &SandboxId) -> Exit {
        let mut pause = Backoff::default();
        loop {
            match self.find(id).await {
                Ok(None) => return Exit::Unknown,
                Ok(Some(workspace)) if workspace.is_over() => return Exit::Unknown,
                Ok(Some(workspace)) if workspace.is_running() => {
                    match self.ended(&workspace, WAIT_PIECE).await {
                        Ok(Some(exit)) => return exit,
                        Ok(None) => pause = Backoff::default(),
                        Err(_) => {}
                    }
                }
                // The workspace is changing its state, or its state is unknown.
                Ok(Some(_)) | Err(_) => {}
            }
            pause.take().await;
        }
    }

    /// Returns how process 1 ended, or `None` if it is still alive after this time.
    pub(super) async fn ended(&self, workspace: &Workspace, within: Duration) -> Result<Option<Exit>, Error> {
        let words = format!("/.bellglass/guest wait {}", within.as_millis());
        let CommandResult { code, said } = workspace.run(&self.shared.account, &words, within).await?;
        match (code, serde_json::from_str(&said)) {
            (NOT_YET, _) => Ok(None),
            (0, Ok(Outcome::Exited { code })) => Ok(Some(Exit::Exited(code))),
            (0, Ok(Outcome::Signaled { signal })) => Ok(Some(Exit::Signaled(signal))),
            (0, Ok(_)) => Ok(Some(Exit::Unknown)),
            // A failed query says nothing about the state of process 1.
            _ => Err(Error::Unavailable {
                what: "Daytona's agent could not query the guest".into(),
                why: format!("`{words}` exited with {code}: {}", said.trim()),
                fix: "Check which other processes run in the workspace.".into(),
            }),
        }
    }
}
