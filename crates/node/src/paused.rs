//! Sandboxes that stand still, with what they have in memory, and go on where they were.
//!
//! What is written down comes first: a server that is killed in between finds a sandbox that is to stand still, and has it do so. Its guest is
//! told before that it may live for long, since its own clock goes on.

use std::sync::Arc;
use std::time::Duration;

use api::SandboxId;
use api::sandbox::SandboxState;
use tokio::task::{JoinError, JoinHandle};

use crate::driver::Word;
use crate::entry::{Entry, not_running};
use crate::error::Error;
use crate::live::{LIFE_WITHIN, Node};

/// How long a sandbox stands still before it ends.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

impl Node {
    /// Has a sandbox stand still. Says whether it did not before. It goes on to its end even if whoever asked is gone.
    ///
    /// # Errors
    /// It is not known, does not run or does not answer, or what isolates it cannot do that: then it goes on.
    pub async fn pause(&self, id: &SandboxId) -> Result<bool, Error> {
        let (node, entry) = (self.clone(), self.known(id)?);
        finished(tokio::spawn(async move { node.stand(&entry).await })).await
    }

    /// Has a sandbox go on, and live so long from now on. Says whether it stood still. Likewise.
    ///
    /// # Errors
    /// It is not known, has ended, or does not answer: then it stands still as before.
    pub async fn resume(&self, id: &SandboxId, ttl: Duration) -> Result<bool, Error> {
        let (node, entry) = (self.clone(), self.known(id)?);
        finished(tokio::spawn(async move { node.walk(&entry, ttl).await })).await
    }

    async fn stand(&self, entry: &Arc<Entry>) -> Result<bool, Error> {
        let _turn = entry.standing().await;
        if entry.is_paused() {
            return Ok(false);
        }
        let (before, runtime) = (entry.left(), self.shared.runtime_of(entry)?);
        {
            let call = entry.call()?;
            call.sandbox_and_disk().0.live_for(KEPT, LIFE_WITHIN).await?;
        }
        let kept = self.keep(entry, true, KEPT);
        let stood = match kept {
            Ok(()) => runtime.pause(entry.id()).await.map_err(Error::from),
            Err(error) => Err(error),
        };
        if let Err(error) = stood {
            self.go_on(entry, before).await?;
            return Err(error);
        }
        Ok(true)
    }

    async fn walk(&self, entry: &Arc<Entry>, ttl: Duration) -> Result<bool, Error> {
        let _turn = entry.standing().await;
        if entry.state() != SandboxState::Running {
            return Err(not_running(&entry.shown()));
        }
        if !entry.is_paused() {
            return Ok(false);
        }
        let runtime = self.shared.runtime_of(entry)?;
        runtime.resume(entry.id()).await?;
        if let Err(error) = self.go_on(entry, ttl).await {
            // It is said to stand still, so it does.
            runtime.pause(entry.id()).await?;
            return Err(error);
        }
        Ok(true)
    }

    async fn go_on(&self, entry: &Arc<Entry>, ttl: Duration) -> Result<(), Error> {
        if let Some(sandbox) = entry.sandbox() {
            sandbox.live_for(ttl, LIFE_WITHIN).await?;
        }
        entry.active(tokio::time::Instant::now());
        self.keep(entry, false, ttl)?;
        entry.tell(Word::Look);
        Ok(())
    }

    /// Records that a sandbox is paused or resumed, and its time to live.
    fn keep(&self, entry: &Arc<Entry>, paused: bool, ttl: Duration) -> Result<(), Error> {
        self.shared.update(entry, |record| {
            record.expire_in(ttl);
            record.sandbox.paused = paused;
            Ok(())
        })?;
        Ok(())
    }
}

async fn finished(task: JoinHandle<Result<bool, Error>>) -> Result<bool, Error> {
    let failed =
        |source: JoinError| Error::System { act: "pause or resume a sandbox".into(), source: source.into() };
    task.await.map_err(failed)?
}
