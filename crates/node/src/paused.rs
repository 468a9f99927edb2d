//! Sandboxes that stand still, with what they have in memory, and go on where they were.
//!
//! What is written down comes first: a server that is killed in between finds a sandbox that is to stand still, and has it do so. Its guest is
//! told before that it may live for long, since its own clock goes on.

use std::sync::Arc;
use std::time::Duration;

use api::SandboxId;
use api::sandbox::{Sandbox as Shown, SandboxState};

use crate::driver::Word;
use crate::entry::{Entry, not_running};
use crate::error::Error;
use crate::live::{LIFE_WITHIN, Node};

/// How long a sandbox stands still before it ends.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

impl Node {
    /// Has a sandbox stand still. Says whether it did not before.
    ///
    /// # Errors
    /// It is not known, does not run or does not answer, or what isolates it cannot do that: then it goes on.
    pub async fn pause(&self, id: &SandboxId) -> Result<bool, Error> {
        let entry = self.known(id)?;
        let _turn = entry.standing().await;
        if entry.is_paused() {
            return Ok(false);
        }
        let before = entry.left();
        {
            let call = entry.call()?;
            call.sandbox_and_disk().0.live_for(KEPT, LIFE_WITHIN).await?;
        }
        self.keep(&entry, true, KEPT)?;
        if let Err(error) = self.shared.runtime_of(&entry)?.pause(id).await {
            self.go_on(&entry, before).await?;
            return Err(error.into());
        }
        Ok(true)
    }

    /// Has a sandbox go on, and live so long from now on. Says whether it stood still.
    ///
    /// # Errors
    /// It is not known, has ended, or does not answer.
    pub async fn resume(&self, id: &SandboxId, ttl: Duration) -> Result<bool, Error> {
        let entry = self.known(id)?;
        let _turn = entry.standing().await;
        if entry.state() != SandboxState::Running {
            return Err(not_running(&entry.shown()));
        }
        if !entry.is_paused() {
            return Ok(false);
        }
        self.shared.runtime_of(&entry)?.resume(id).await?;
        self.go_on(&entry, ttl).await?;
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

    /// Writes down that a sandbox stands still or goes on, and tells everybody.
    fn keep(&self, entry: &Arc<Entry>, paused: bool, ttl: Duration) -> Result<Shown, Error> {
        let alone = entry.alone();
        entry.expire_in(ttl);
        entry.set_paused(paused);
        self.shared.journal.save(&entry.record())?;
        drop(alone);
        let shown = entry.shown();
        self.shared.say(api::sandbox::SandboxEvent::Changed { sandbox: Box::new(shown.clone()) });
        Ok(shown)
    }
}
