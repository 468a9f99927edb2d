//! Access to stored artifacts, and recovery of unfinished collections.

use std::sync::Arc;
use std::time::Duration;

use api::artifact::{Artifact, Artifacts};
use api::sandbox::SandboxState;
use api::{ExecId, SandboxId};
use host::error::{Error, chain};
use host::objects::Outgoing;

use crate::Node;
use crate::artifacts::{Attendant, CollectionRequest, Launch, Of, PAGE_BYTES_MAX, gone};

impl Node {
    /// Returns the artifacts of an exec. Waits up to `wait` for a collection in progress. Also works after
    /// the sandbox has ended.
    ///
    /// # Errors
    /// A file system operation failed.
    pub async fn artifacts(
        &self,
        project: &str,
        sandbox: &SandboxId,
        exec: &ExecId,
        wait: Duration,
    ) -> Result<Option<Artifacts>, Error> {
        let of = Of { project: project.into(), sandbox: sandbox.clone(), exec: exec.clone() };
        let keeper = &self.shared.keeper;
        let progress = keeper.under_way().get(&of).map(Arc::clone);
        if let Some(progress) = progress {
            let _ = tokio::time::timeout(wait, progress.until_done()).await;
        }
        if let Some(kept) = keeper.shelf.kept(&of).await? {
            return Ok(Some(kept));
        }
        let under_way = keeper.under_way().contains_key(&of);
        let wanted = under_way || keeper.shelf.is_wanted(&of).await?;
        Ok(wanted.then(|| Artifacts::pending(of.sandbox, of.exec)))
    }

    /// Returns one artifact and its content.
    ///
    /// # Errors
    /// A file system operation failed.
    pub async fn artifact(
        &self,
        project: &str,
        sandbox: &SandboxId,
        exec: &ExecId,
        number: u32,
    ) -> Result<Option<(Artifact, Outgoing)>, Error> {
        let of = Of { project: project.into(), sandbox: sandbox.clone(), exec: exec.clone() };
        let shelf = &self.shared.keeper.shelf;
        let kept = shelf.kept(&of).await?;
        let item = kept.and_then(|kept| kept.items.into_iter().find(|item| item.number == number));
        let Some(item) = item else { return Ok(None) };
        Ok(shelf.contents(&of, number).await?.map(|outgoing| (item, outgoing)))
    }

    /// Returns a page of the artifacts of a sandbox, ordered by exec ID and starting after `after`. The flag
    /// is true if more artifacts follow.
    ///
    /// # Errors
    /// A file system operation failed.
    pub async fn artifacts_of(
        &self,
        project: &str,
        sandbox: &SandboxId,
        after: Option<&ExecId>,
        limit: usize,
    ) -> Result<(Vec<Artifacts>, bool), Error> {
        let shelf = &self.shared.keeper.shelf;
        let (mut page, mut bytes) = (Vec::new(), 0);
        for exec in shelf.execs(project, sandbox).await? {
            if after.is_some_and(|after| exec <= *after) {
                continue;
            }
            if page.len() >= limit || bytes >= PAGE_BYTES_MAX {
                return Ok((page, true));
            }
            let of = Of { project: project.into(), sandbox: sandbox.clone(), exec };
            if let Some(kept) = shelf.kept(&of).await? {
                bytes += serde_json::to_vec(&kept).map_or(0, |text| text.len());
                page.push(kept);
            }
        }
        Ok((page, false))
    }

    /// Resumes the collections that an earlier server did not finish. If a collection cannot be read or
    /// written, the error is logged, and the next server start tries again.
    pub(crate) async fn recover_artifacts(&self) {
        let all = match self.shared.keeper.shelf.all_wanted().await {
            Ok(all) => all,
            Err(error) => {
                return tracing::error!(
                    error = chain(&error),
                    "cannot list unfinished artifact collections to resume"
                );
            }
        };
        for wanted in all {
            let of = wanted.of.clone();
            if let Err(error) = self.recover_wanted(wanted).await {
                tracing::error!(sandbox = %of.sandbox, error = chain(&error), "cannot resume artifact collection");
            }
        }
    }

    async fn recover_wanted(&self, wanted: CollectionRequest) -> Result<(), Error> {
        let keeper = &self.shared.keeper;
        if keeper.shelf.kept(&wanted.of).await?.is_some() {
            // The earlier server was killed between writing the manifest and removing this record.
            return keeper.shelf.unwant(&wanted.of).await;
        }
        let handle = self.shared.handles().get(&wanted.of.sandbox).map(Arc::clone);
        let living = handle.filter(|handle| {
            [SandboxState::Running, SandboxState::Paused].contains(&handle.state())
                && handle.shown().project == wanted.of.project
        });
        match living {
            Some(handle) => {
                // Cannot exceed `UNDER_WAY_MAX`, because the limit was enforced when these collections were
                // started.
                let Ok((progress, _)) = keeper.progress(&wanted.of, Launch::Elsewhere) else { return Ok(()) };
                let (keeper, of) = (Arc::clone(keeper), wanted.of.clone());
                let attendant = Attendant { keeper, handle, of, progress };
                tokio::spawn(attendant.go_on(wanted));
                Ok(())
            }
            None => {
                let (sandbox, exec) = (wanted.of.sandbox.clone(), wanted.of.exec.clone());
                keeper.shelf.clear(&wanted.of).await?;
                keeper.shelf.keep(&wanted.of, &Artifacts::lost(sandbox, exec, gone())).await?;
                keeper.shelf.unwant(&wanted.of).await
            }
        }
    }
}
