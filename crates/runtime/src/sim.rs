//! An in-memory runtime without isolation, for testing lifecycles and fleets that are too large for any real
//! machine.
//!
//! | module | holds |
//! |---|---|
//! | [`faults`] | faults that tests can inject |
//! | [`world`] | the sandboxes of one simulated machine, and the processes that own them |
//! | [`guest`] | the simulated guest, which serves the routes of the channel |
//! | [`exec`], [`program`] | the guest's execs, and the few programs that they can run |
//!
//! A [`Sim`] is a handle to one *process* on a simulated machine. The machine outlives its processes:
//!
//! ```text
//! Sim::new ──▶ process ──clone──▶ the same process        machine: sandboxes, their guests and execs, faults
//!                 ├─beside──▶ another process, which runs at the same time
//!                 └─restart─▶ the next process; all earlier ones are dead, and no sandbox is owned
//! ```
//!
//! A call on a dead process fails, and a call that is in progress when its process dies never returns. A dead
//! process therefore receives no results and cannot interfere with its successors. A process also ends when
//! its last handle is dropped.
//!
//! All times are measured with tokio's clock. If that clock is paused, only sleeps advance it, and
//! communication over a channel takes no time.

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

/// A handle to one process on a simulated machine. Clones refer to the same process.
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
    /// closed, and sandboxes that they were starting or stopping stay partially created or partially removed.
    /// Guests and execs keep running, and the guests connect again.
    #[must_use]
    pub fn restart(&self) -> Self {
        self.world.end_processes();
        Self::on(Arc::clone(&self.world))
    }

    /// Reads or changes the faults of this machine. A change affects subsequent calls.
    pub fn faults<T>(&self, change: impl FnOnce(&mut Faults) -> T) -> T {
        self.world.faults(change)
    }

    /// Kills process 1 of a sandbox without involving the process that owns the sandbox. Only the first exit
    /// counts. Everything else that belongs to the sandbox remains until the sandbox is stopped.
    ///
    /// # Errors
    /// Returns an error if there is no such sandbox.
    pub fn kill(&self, id: &SandboxId, exit: Exit) -> Result<(), Error> {
        self.world.see(id, |sandbox| sandbox.guest.life.end(exit))
    }

    /// Sets the resource usage that the sandbox reports from now on.
    ///
    /// # Errors
    /// Returns an error if there is no such sandbox.
    pub fn set_usage(&self, id: &SandboxId, usage: Usage) -> Result<(), Error> {
        self.world.see(id, |sandbox| sandbox.usage = usage)
    }

    /// Fails if this process is dead.
    fn check(&self, act: &str) -> Result<(), Error> {
        if !self.process.is_gone() {
            return Ok(());
        }
        let source =
            std::io::Error::other("another process owns the machine, because this process has ended");
        Err(Error::System { act: format!("{act} on a simulated machine"), source })
    }

    /// Waits for an answer. Never returns if this process dies first.
    async fn alive<T>(&self, answer: impl Future<Output = T>) -> T {
        tokio::select! {
            biased;
            () = self.process.gone() => pending().await,
            answer = answer => answer,
        }
    }

    /// Runs `work` to completion even if the caller stops waiting, unless this process ends. An abandoned
    /// operation must not leave a partially created sandbox behind.
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
        // A guest opens one connection at a time, so wait until the previous connection has ended.
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
            // If the sandbox has been stopped in the meantime, the start fails.
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
        // Process 1 does not exist yet, so its exit cannot be observed.
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

/// Refuses specs that no machine could start, because a layer directory is missing or a limit is above its
/// maximum.
fn refuse(spec: &Spec) -> Result<(), Error> {
    if let Some(layer) = spec.layers.iter().find(|layer| !layer.is_dir()) {
        let source = std::io::ErrorKind::NotFound.into();
        return Err(Error::System { act: format!("mount layer {}", layer.display()), source });
    }
    let checked = spec.limits.check();
    checked.map_err(|refusal| Error::Capacity { what: "a sandbox with these limits", why: refusal.message })
}

/// Builds the error that a real runtime returns when its command fails.
fn broken_command(id: &SandboxId) -> Error {
    Error::Command {
        argv: format!("sim run {id}"),
        status: "exit status: 1".into(),
        stderr: "injected fault".into(),
    }
}

/// Ends the guest when its time to live expires, unless it ends earlier.
async fn expire(guest: Arc<Guest>) {
    tokio::select! {
        _ = guest.life.ended() => {}
        () = guest.expired() => guest.life.end(Exit::Exited(i32::from(GUEST_EXPIRED))),
    }
}
