//! An in-memory runtime without isolation, for tests of lifecycles and of fleets larger than any machine
//! could hold.
//!
//! | module | holds |
//! |---|---|
//! | [`faults`] | faults that tests can inject |
//! | [`world`] | the sandboxes of one simulated machine, and the processes that own them |
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
//! A call on a process that is gone fails, and a call in progress at that moment never returns: a dead
//! process receives no results, so it cannot interfere with its successors. A process also ends with its last
//! handle.
//!
//! All time is tokio's. If the clock is paused, only sleeps advance it; communication on a channel takes no
//! time.

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

use crate::{Error, Exit, Inspect, Listed, Properties, Runtime, Spec, Tier, Usage};
use guest::Guest;
use world::{SimProcess, World};

/// Handle of one process on a simulated machine. Clones are the same process.
#[derive(Clone)]
pub struct Sim {
    world: Arc<World>,
    process: Arc<SimProcess>,
}

impl Default for Sim {
    fn default() -> Self {
        Self::new()
    }
}

impl Sim {
    /// Creates a machine without sandboxes, and returns its first process.
    pub fn new() -> Self {
        Self::on(Arc::default())
    }

    fn on(world: Arc<World>) -> Self {
        let process = world.enter();
        Self { world, process }
    }

    /// Creates another process on the same machine, which runs concurrently with this one. A sandbox that one
    /// process owns cannot be taken over by the other.
    #[must_use]
    pub fn beside(&self) -> Self {
        Self::on(Arc::clone(&self.world))
    }

    /// Kills all processes of the machine, as if by SIGKILL, and returns a new one. Their connections are
    /// closed, and sandboxes that they were starting or stopping stay half-made or half-removed. Guests and
    /// execs keep running, and the guests connect again.
    #[must_use]
    pub fn restart(&self) -> Self {
        self.world.end_processes();
        Self::on(Arc::clone(&self.world))
    }

    /// Reads or changes the faults of this machine. A change affects subsequent calls.
    pub fn faults<T>(&self, change: impl FnOnce(&mut Faults) -> T) -> T {
        self.world.faults(change)
    }

    /// Kills process 1 of a sandbox without the knowledge of the owning process. Only the first exit counts.
    /// Everything else of the sandbox remains until it is stopped.
    ///
    /// # Errors
    /// There is no such sandbox.
    pub fn kill(&self, id: &SandboxId, exit: Exit) -> Result<(), Error> {
        self.world.see(id, |sandbox| sandbox.guest.life.end(exit))
    }

    /// Sets the resource usage that the sandbox reports from now on.
    ///
    /// # Errors
    /// There is no such sandbox.
    pub fn set_usage(&self, id: &SandboxId, usage: Usage) -> Result<(), Error> {
        self.world.see(id, |sandbox| sandbox.usage = usage)
    }

    /// Fails if this process is gone.
    fn check(&self, act: &str) -> Result<(), Error> {
        if !self.process.is_gone() {
            return Ok(());
        }
        let source =
            std::io::Error::other("another process owns the machine, because this process has ended");
        Err(Error::System { act: format!("{act} on a simulated machine"), source })
    }

    /// Waits for an answer; never returns if this process is gone.
    async fn alive<T>(&self, answer: impl Future<Output = T>) -> T {
        tokio::select! {
            biased;
            () = self.process.gone() => pending().await,
            answer = answer => answer,
        }
    }

    /// Runs `work` to completion even if the caller stops waiting, unless this process ends: an abandoned
    /// operation must still leave a sandbox or nothing.
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

    /// Returns the guest's next connection.
    async fn dialled(&self, id: &SandboxId, guest: Arc<Guest>) -> Result<UnixStream, Error> {
        // A guest opens one connection at a time: the next one after the previous one has ended.
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
    fn properties(&self) -> Properties {
        Properties::new("sim", Tier::Container)
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
            // If the sandbox was stopped meanwhile, the start fails.
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
        // There is no process 1 yet whose exit could be observed.
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
}

#[async_trait::async_trait]
impl Inspect for Sim {
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

/// Refuses specs that no machine could start: missing layer directories, and limits above their maximum.
fn refuse(spec: &Spec) -> Result<(), Error> {
    if let Some(layer) = spec.layers.iter().find(|layer| !layer.is_dir()) {
        let source = std::io::ErrorKind::NotFound.into();
        return Err(Error::System { act: format!("mount layer {}", layer.display()), source });
    }
    let checked = spec.limits.check();
    checked.map_err(|refusal| Error::Capacity { what: "a sandbox with these limits", why: refusal.message })
}

/// Returns an error like that of a failed start of a real runtime.
fn broken_command(id: &SandboxId) -> Error {
    Error::Command {
        argv: format!("sim run {id}"),
        status: "exit status: 1".into(),
        stderr: "injected fault".into(),
    }
}

/// The guest's dead-man timer: ends it when its time to live expires.
async fn expire(guest: Arc<Guest>) {
    tokio::select! {
        _ = guest.life.ended() => {}
        () = guest.expired() => guest.life.end(Exit::Exited(i32::from(GUEST_EXPIRED))),
    }
}
