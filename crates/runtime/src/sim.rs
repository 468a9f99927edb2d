//! A runtime in memory: it isolates nothing, and is for tests of lifecycles and for fleets that no machine could hold.
//!
//! | module | holds |
//! |---|---|
//! | [`faults`] | what goes wrong on demand |
//! | [`world`] | the sandboxes of one simulated machine, and the processes that have them in hand |
//! | [`guest`] | the simulated guest: the routes of the channel |
//! | [`exec`], [`program`] | its execs, and the few programs they run |
//!
//! A [`Sim`] is a handle of one *process* on a simulated machine. The machine outlives its processes:
//!
//! ```text
//! Sim::new ──▶ process ──clone──▶ the same process        machine: sandboxes, their guests and execs, faults
//!                 ├─beside──▶ another process, which lives at the same time
//!                 └─restart─▶ the next process; all before it are gone, and nothing is owned
//! ```
//!
//! A call on a process that is gone is refused, and one that was under way when it went never returns: the dead are told
//! nothing, so what they would have done cannot disturb their successors. A process also goes with its last handle.
//!
//! All time is tokio's, and where the clock is paused only sleeps take any: what is said on a channel takes none.

mod exec;
mod faults;
mod guest;
mod program;
#[cfg(test)]
mod tests;
mod world;

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use api::SandboxId;
use api::exec::GUEST_EXPIRED;
use api::posture::Posture;
use tokio::net::UnixStream;

pub use faults::Faults;

use crate::{Error, Exit, Listed, Runtime, Spec, Tier, Usage};
use guest::Guest;
use world::{Process, World};

/// The handle of one process on a simulated machine. Clones are the same process.
#[derive(Clone)]
pub struct Sim {
    world: Arc<World>,
    process: Arc<Process>,
}

impl Default for Sim {
    fn default() -> Self {
        Self::new()
    }
}

impl Sim {
    /// The first process on a machine without sandboxes.
    pub fn new() -> Self {
        Self::on(Arc::default())
    }

    fn on(world: Arc<World>) -> Self {
        let process = world.enter();
        Self { world, process }
    }

    /// Another process on the same machine, which lives beside this one: what one has in hand the other cannot take.
    #[must_use]
    pub fn beside(&self) -> Self {
        Self::on(Arc::clone(&self.world))
    }

    /// The machine's only process from now on. All before it are gone as by SIGKILL: their connections are cut, what they
    /// were starting is half made, what they were stopping is half removed. Guests and execs go on, and dial again.
    #[must_use]
    pub fn restart(&self) -> Self {
        self.world.end_processes();
        Self::on(Arc::clone(&self.world))
    }

    /// Changes what goes wrong on this machine, or looks at it. What is set holds for calls from now on.
    pub fn faults<T>(&self, change: impl FnOnce(&mut Faults) -> T) -> T {
        self.world.faults(change)
    }

    /// Ends process 1 of a sandbox behind the back of whoever has it in hand; the first end counts. Everything else of
    /// the sandbox stays until it is stopped.
    ///
    /// # Errors
    /// There is no such sandbox.
    pub fn kill(&self, id: &SandboxId, exit: Exit) -> Result<(), Error> {
        self.world.see(id, |sandbox| sandbox.guest.life.end(exit))
    }

    /// Has a sandbox use this much from now on.
    ///
    /// # Errors
    /// There is no such sandbox.
    pub fn set_usage(&self, id: &SandboxId, usage: Usage) -> Result<(), Error> {
        self.world.see(id, |sandbox| sandbox.usage = usage)
    }

    /// Refuses calls on a process that is gone.
    fn check(&self, act: &str) -> Result<(), Error> {
        if !self.process.is_gone() {
            return Ok(());
        }
        let source =
            std::io::Error::other("another process owns the machine, because this process has ended");
        Err(Error::System { act: format!("{act} on a simulated machine"), source })
    }

    /// Waits for an answer, and for ever once this process is gone.
    async fn alive<T>(&self, answer: impl Future<Output = T>) -> T {
        tokio::select! {
            biased;
            () = self.process.gone() => pending().await,
            answer = answer => answer,
        }
    }

    /// Works to the end even if nobody waits for it any more, unless this process goes: what was given up half-way must
    /// still become a sandbox or nothing.
    async fn finish(
        &self,
        work: impl Future<Output = Result<(), Error>> + Send + 'static,
    ) -> Result<(), Error> {
        let process = Arc::clone(&self.process);
        let task = tokio::spawn(async move {
            tokio::select! {
                biased;
                () = process.gone() => None,
                done = work => Some(done),
            }
        });
        match task.await {
            Ok(Some(done)) => done,
            Ok(None) => pending().await,
            Err(lost) => Err(Error::System { act: "finish a simulated task".into(), source: lost.into() }),
        }
    }

    /// The next connection that a guest dials.
    async fn dialled(&self, id: &SandboxId, guest: Arc<Guest>) -> Result<UnixStream, Error> {
        // A guest dials one connection at a time: the next when the one before is over.
        let line = Arc::clone(&guest.line).acquire_owned().await.map_err(|_| Error::Ended(id.clone()))?;
        self.world.until_guests_dial().await;
        let (ours, theirs) = UnixStream::pair()
            .map_err(|source| Error::System { act: format!("create a channel to sandbox {id}"), source })?;
        let process = self.process.watch();
        tokio::spawn(async move {
            guest::serve(theirs, guest, process).await;
            drop(line);
        });
        Ok(ours)
    }
}

#[async_trait::async_trait]
impl Runtime for Sim {
    fn name(&self) -> &str {
        "sim"
    }

    fn tier(&self) -> Tier {
        Tier::Container
    }

    async fn start(&self, id: &SandboxId, spec: &Spec) -> Result<(), Error> {
        self.check("start")?;
        refuse(spec)?;
        let begun = self.world.begin(id, &self.process)?;
        let (world, id) = (Arc::clone(&self.world), id.clone());
        let ttl = Duration::from_millis(spec.limits.ttl_ms);
        self.finish(async move {
            tokio::time::sleep(begun.delay).await;
            if begun.fails {
                world.remove(&id, &begun.guest);
                return Err(broken_command(&id));
            }
            // Ended meanwhile, it is not made.
            world.made(&id, &begun.guest).inspect_err(|_| world.remove(&id, &begun.guest))?;
            begun.guest.live_for(ttl);
            tokio::spawn(expire(begun.guest));
            Ok(())
        })
        .await
    }

    async fn connect(&self, id: &SandboxId, within: Duration) -> Result<UnixStream, Error> {
        self.check("connect")?;
        let guest = self.world.take(id, &self.process)?;
        self.alive(async {
            tokio::select! {
                biased;
                _ = guest.life.ended() => Err(Error::Ended(id.clone())),
                dialled = tokio::time::timeout(within, self.dialled(id, Arc::clone(&guest))) => {
                    dialled.unwrap_or(Err(Error::Deadline { what: "waiting for the guest to connect", after: within }))
                }
            }
        })
        .await
    }

    async fn wait(&self, id: &SandboxId) -> Result<Exit, Error> {
        if self.process.is_gone() {
            return pending().await;
        }
        if self.faults(Faults::fails_wait) {
            let source = std::io::Error::from_raw_os_error(libc::EMFILE);
            return Err(Error::System { act: "wait for a simulated process".into(), source });
        }
        let (guest, is_made) = self.world.see(id, |sandbox| (Arc::clone(&sandbox.guest), sandbox.is_made))?;
        // There is no process 1 yet whose end somebody could see.
        if !is_made {
            return Ok(Exit::Unknown);
        }
        Ok(self.alive(guest.life.ended()).await)
    }

    async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<(), Error> {
        self.check("stop")?;
        let Some(ending) = self.world.end(id, grace) else { return Ok(()) };
        let (world, id) = (Arc::clone(&self.world), id.clone());
        self.finish(async move {
            tokio::time::sleep(ending.delay).await;
            if ending.fails {
                let source = std::io::ErrorKind::ResourceBusy.into();
                return Err(Error::System { act: format!("remove the cgroups of {id}"), source });
            }
            world.remove(&id, &ending.guest);
            Ok(())
        })
        .await
    }

    async fn list(&self) -> Result<Vec<Listed>, Error> {
        self.check("list")?;
        Ok(self.world.list())
    }

    async fn usage(&self, id: &SandboxId) -> Result<Usage, Error> {
        self.check("read usage")?;
        self.world.see(id, |sandbox| sandbox.usage)
    }

    async fn posture(&self, id: &SandboxId) -> Result<(Posture, Vec<String>), Error> {
        self.check("read a posture")?;
        let is_alive = self.world.see(id, |sandbox| sandbox.is_alive())?;
        if !is_alive {
            return Err(Error::Ended(id.clone()));
        }
        let differences = self.world.faults(|faults| faults.posture_differences.clone());
        Ok((program::posture(0, &[]), differences))
    }
}

/// Refuses what no machine could start: what is laid over layers that are not there, and limits above every maximum.
fn refuse(spec: &Spec) -> Result<(), Error> {
    if let Some(layer) = spec.layers.iter().find(|layer| !layer.is_dir()) {
        let source = std::io::ErrorKind::NotFound.into();
        return Err(Error::System { act: format!("mount layer {}", layer.display()), source });
    }
    let checked = spec.limits.check();
    checked.map_err(|refusal| Error::Capacity { what: "a sandbox with these limits", why: refusal.message })
}

/// What a failed start of a real runtime looks like.
fn broken_command(id: &SandboxId) -> Error {
    Error::Command {
        argv: format!("sim run {id}"),
        status: "exit status: 1".into(),
        stderr: "injected fault".into(),
    }
}

/// The guest's dead-man timer.
async fn expire(guest: Arc<Guest>) {
    tokio::select! {
        _ = guest.life.ended() => {}
        () = guest.expired() => guest.life.end(Exit::Exited(i32::from(GUEST_EXPIRED))),
    }
}
