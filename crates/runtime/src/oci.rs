//! The backend for OCI runtimes, driven through their command line.
//!
//! | module | holds |
//! |---|---|
//! | [`flavor`] | the supported OCI runtimes, described as data |
//! | [`start`], [`stop`] | starting and stopping, in named steps |
//! | [`record`] | the record that is written before anything else is created, and the ownership lock |
//! | [`config`] | the configuration for the OCI runtime |
//! | [`cgroup`], [`disk`], [`blank`], [`mounts`], [`nodes`], [`owners`] | the resources that a start creates itself |
//! | [`channel`] | the socket that the guest connects to |
//! | [`posture`] | comparison of process 1's observed privileges with the expected ones |
//! | [`locks`] | detection of sandboxes that hold too many file locks, which Linux does not limit |
//! | [`process`] | processes held by descriptor, and commands that run to completion |
//!
//! ```text
//! (nothing) ──record──▶   recorded   ──cgroups, disk, bundle, channel──▶ prepared ──run──▶ running
//!     ▲                     │                                              │                 │
//!     └──────────── stop: kill, remove by name, directory last ────────────┴─────────────────┘
//! ```
//!
//! There is only one cleanup path, and it works from any state. It is used by a failed start, by a stop, and
//! by the next server process if this one is killed.

mod blank;
mod cgroup;
mod channel;
mod child;
pub(crate) mod config;
mod disk;
pub mod flavor;
mod locks;
mod mounts;
mod nodes;
mod owners;
mod posture;
mod process;
pub mod record;
mod start;
mod stop;

use std::collections::HashMap;
use std::os::unix::net::UnixListener as StdListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::SandboxId;
use api::posture::Posture;
use api::trace::STEP;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::Instant;
use tracing::{Instrument as _, info_span};

pub use flavor::Flavor;
pub use record::Dirs;

use crate::hand::Lock;
use crate::{Error, Exit, Inspect, Listed, Pausing, Properties, Runtime, Spec, Tier, Usage};
use cgroup::Cgroups;
use channel::{ExpectedPeer, Unmet};
use process::ProcessHandle;
use record::OciRecord;

/// The [`Runtime`] for one OCI runtime and one data directory.
#[derive(Clone)]
pub struct Oci {
    flavor: Flavor,
    dirs: Dirs,
    cgroups: Cgroups,
    /// Handles for the sandboxes that this process has worked with.
    hands: Arc<Mutex<HashMap<SandboxId, Arc<Hand>>>>,
    /// The startup step after which this process kills itself, for tests.
    crash_at: Option<String>,
}

/// The handles that this process holds for one sandbox.
#[derive(Default)]
struct Hand {
    /// The ownership lock, held while this process owns the sandbox.
    lock: Mutex<Option<Lock>>,
    process: Mutex<Option<Arc<ProcessHandle>>>,
    /// The bound socket, until it is registered with the async runtime.
    bound: Mutex<Option<StdListener>>,
    listener: tokio::sync::Mutex<Option<UnixListener>>,
}

impl Oci {
    /// Creates the backend that drives this OCI runtime and stores all its data in these directories.
    ///
    /// From then on, this process adopts its orphaned descendants. Process 1 of each sandbox becomes such an
    /// orphan, and only the process that adopts it can read its exit status.
    ///
    /// # Errors
    /// Returns an error if the directories cannot be created or the machine's cgroups cannot be read.
    pub fn new(flavor: Flavor, dirs: Dirs) -> Result<Self, Error> {
        dirs.prepare(flavor.name)?;
        process::inherit_orphans()?;
        Ok(Self { flavor, dirs, cgroups: Cgroups::find()?, hands: Arc::default(), crash_at: None })
    }

    /// Returns the startup steps after which [`Oci::crash_at`] can kill the process.
    #[doc(hidden)]
    pub fn steps() -> &'static [&'static str] {
        &start::STEPS
    }

    /// Makes this process kill itself after the given step of the next sandbox startup.
    #[doc(hidden)]
    #[must_use]
    pub fn crash_at(self, step: &str) -> Self {
        Self { crash_at: Some(step.to_owned()), ..self }
    }

    fn hands(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<Hand>>> {
        self.hands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads a sandbox's record. Returns `None` if there is no record, or if a different runtime created the
    /// sandbox.
    fn record(&self, id: &SandboxId) -> Result<Option<OciRecord>, Error> {
        Ok(self.dirs.load(id)?.filter(|record| record.runtime == self.flavor.name))
    }

    /// Returns this process's handles for a sandbox, and the sandbox's record. Opens a handle to process 1 if
    /// process 1 exists and has no handle yet.
    fn hand(&self, id: &SandboxId) -> Result<(Arc<Hand>, OciRecord), Error> {
        let Some(record) = self.record(id)? else {
            self.hands().remove(id);
            return Err(Error::NotFound(id.clone()));
        };
        let hand = Arc::clone(self.hands().entry(id.clone()).or_default());
        let mut process = locked(&hand.process);
        let same_boot = record.boot == process::boot_id()?;
        if let Some(identity) = record.process.filter(|_| process.is_none() && same_boot) {
            *process = ProcessHandle::reopen(identity)?.map(Arc::new);
        }
        drop(process);
        Ok((hand, record))
    }

    /// Acquires ownership of a sandbox and listens for its guest, unless this process already owns the
    /// sandbox.
    fn take(
        &self,
        id: &SandboxId,
        hand: &Hand,
        process: &ProcessHandle,
        record: &OciRecord,
    ) -> Result<(), Error> {
        let mut lock = locked(&hand.lock);
        if lock.is_none() {
            *lock = Some(self.dirs.take(id)?.ok_or_else(|| Error::System {
                act: format!("take over sandbox {id}"),
                source: std::io::Error::other("another running process owns the sandbox"),
            })?);
            *locked(&hand.bound) = Some(self.listen_again(id, process, record)?);
        }
        Ok(())
    }

    /// Listens for the guest of a sandbox that a different process started. If an earlier version of
    /// Bellglass started the container, the channel's socket is in a host directory, as for a user-space
    /// kernel.
    fn listen_again(
        &self,
        id: &SandboxId,
        process: &ProcessHandle,
        record: &OciRecord,
    ) -> Result<StdListener, Error> {
        let on_host = self.dirs.channel(id);
        match self.flavor.tier {
            Tier::Container if !on_host.exists() => channel::listen_inside(process, record.base()),
            Tier::Container | Tier::UserKernel => channel::listen(&on_host, record.base()),
        }
    }

    /// Accepts connections until process 1 has connected and completed the handshake. If a peer is rejected,
    /// stores the reason in `refused`.
    async fn accept(
        &self,
        id: &SandboxId,
        expected: ExpectedPeer,
        listener: &UnixListener,
        refused: &mut Option<String>,
    ) -> Result<UnixStream, Error> {
        loop {
            let (mut stream, _) = listener.accept().await.map_err(|source| Error::System {
                act: format!("accept a connection from sandbox {id}"),
                source,
            })?;
            let peer = stream.peer_cred().map_err(|source| Error::System {
                act: format!("read the peer credentials of a connection from sandbox {id}"),
                source,
            })?;
            let in_cgroup = Cgroups::holds(id, peer.pid().unwrap_or(0))?;
            *refused = channel::objection(peer, self.flavor.tier, expected, in_cgroup);
            if refused.is_some() {
                continue;
            }
            let handout = self.cgroups.handout(id, self.flavor.tier)?;
            let token = self.dirs.sandbox(id).join(channel::TOKEN);
            match (channel::greet(&mut stream, &handout, &token).await, self.flavor.tier) {
                (Ok(()), _) => return Ok(stream),
                (Err(Unmet::Stranger(why)), _) | (Err(Unmet::Wrong(why)), Tier::UserKernel) => {
                    *refused = Some(why);
                }
                // The kernel has confirmed that the peer is process 1, so its handshake would fail on the
                // next attempt too.
                (Err(Unmet::Wrong(why)), Tier::Container) => {
                    return Err(Error::Impostor { id: id.clone(), why });
                }
            }
        }
    }
}

#[async_trait::async_trait]
impl Runtime for Oci {
    fn properties(&self) -> Properties {
        Properties::new(self.flavor.name, self.flavor.tier)
    }

    async fn start(&self, id: &SandboxId, spec: &Spec) -> Result<(), Error> {
        let (oci, id, spec) = (self.clone(), id.clone(), spec.clone());
        let hand = blocking({
            let id = id.clone();
            move || start::start(&oci, &id, &spec)
        });
        let hand = hand.await?;
        self.hands().insert(id, Arc::new(hand));
        Ok(())
    }

    async fn connect(&self, id: &SandboxId, within: Duration) -> Result<UnixStream, Error> {
        let (hand, record) = self.hand(id)?;
        let process = locked(&hand.process).clone().ok_or_else(|| Error::Ended(id.clone()))?;
        self.take(id, &hand, &process, &record)?;
        let deadline = Instant::now() + within;
        let late = || Error::Deadline { what: "waiting for the guest to connect", after: within };
        let mut listener =
            tokio::time::timeout_at(deadline, hand.listener.lock()).await.map_err(|_| late())?;
        let bound = locked(&hand.bound).take();
        if let Some(bound) = bound {
            *listener = Some(channel::watch(bound)?);
        }
        let listener = listener.as_ref().ok_or_else(|| Error::Ended(id.clone()))?;
        let expected = ExpectedPeer { pid: process.identity.pid, user: record.base() };
        let mut refused = None;
        tokio::select! {
            stream = self.accept(id, expected, listener, &mut refused) => return stream,
            ended = process.ended() => return ended.and(Err(Error::Ended(id.clone()))),
            () = tokio::time::sleep_until(deadline) => {}
        }
        match refused {
            Some(why) => Err(Error::Impostor { id: id.clone(), why }),
            None => Err(late()),
        }
    }

    async fn wait(&self, id: &SandboxId) -> Result<Exit, Error> {
        let (hand, _) = self.hand(id)?;
        let Some(process) = locked(&hand.process).clone() else { return Ok(Exit::Unknown) };
        process.ended().await?;
        Ok(process.exit())
    }

    async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<(), Error> {
        let held = match self.hand(id) {
            Ok((hand, _)) => locked(&hand.process).clone(),
            Err(Error::NotFound(_)) => None,
            Err(error) => return Err(error),
        };
        if let Some(process) = held.clone().filter(|process| !grace.is_zero() && process.is_alive()) {
            let ending = async {
                self.ask_to_end(id, &process).await?;
                // On timeout, the teardown below kills process 1.
                let _ = tokio::time::timeout(grace, process.ended()).await;
                Ok::<_, Error>(())
            };
            ending.instrument(info_span!(target: STEP, "grace")).await?;
        }
        let (oci, name) = (self.clone(), id.clone());
        blocking(move || stop::teardown(&oci, &name, held.as_deref())).await?;
        self.hands().remove(id);
        Ok(())
    }

    async fn list(&self) -> Result<Vec<Listed>, Error> {
        let oci = self.clone();
        blocking(move || stop::list(&oci)).await
    }

    fn pausing(&self) -> Option<&dyn Pausing> {
        self.cgroups.can_freeze().then_some(self)
    }
}

#[async_trait::async_trait]
impl Inspect for Oci {
    async fn usage(&self, id: &SandboxId) -> Result<Usage, Error> {
        self.record(id)?.ok_or_else(|| Error::NotFound(id.clone()))?;
        self.cgroups.usage(id, self.flavor.tier)
    }

    async fn posture(&self, id: &SandboxId) -> Result<(Posture, Vec<String>), Error> {
        let (hand, record) = self.hand(id)?;
        let process = locked(&hand.process).clone().ok_or_else(|| Error::Ended(id.clone()))?;
        posture::compare(id, &record, self.flavor.tier, &process)
    }

    async fn culprit(&self) -> Result<Option<crate::Culprit>, Error> {
        let oci = self.clone();
        blocking(move || oci.locks_culprit()).await
    }
}

#[async_trait::async_trait]
impl Pausing for Oci {
    async fn pause(&self, id: &SandboxId) -> Result<(), Error> {
        self.record(id)?.ok_or_else(|| Error::NotFound(id.clone()))?;
        let (cgroups, id) = (self.cgroups.clone(), id.clone());
        blocking(move || cgroups.freeze(&id)).await
    }

    async fn resume(&self, id: &SandboxId) -> Result<(), Error> {
        let (cgroups, id) = (self.cgroups.clone(), id.clone());
        blocking(move || cgroups.thaw(&id)).await
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work` on a thread that may block. `work` runs to completion even if the caller stops waiting,
/// because an abandoned start must still either succeed or clean up. The trace steps of `work` belong to the
/// caller's span.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let asked = tracing::Span::current();
    tokio::task::spawn_blocking(move || asked.in_scope(work))
        .await
        .map_err(|source| Error::System { act: "finish a blocking task".into(), source: source.into() })?
}
