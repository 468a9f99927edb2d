//! Workspaces of a Daytona account, by its public API.
//!
//! | module | holds |
//! |---|---|
//! | [`account`] | where the account is, its key, and what is said when neither works |
//! | [`workspace`] | one workspace: made, asked, removed; what is run and put inside |
//! | [`channel`] | the channel: bytes through a terminal of the workspace |
//! | [`walls`] | what the guest is told to put up |
//!
//! ```text
//! (nothing) ──directory, lock──▶ written down ──POST /sandbox──▶ made ──guest put in, walls put up──▶ running
//!     ▲                               │                            │                                    │
//!     └──────────────── stop: workspace by its name, directory last ───────────────────────────────────┘
//! ```
//!
//! A workspace is a machine of Daytona's with an agent of theirs, who are root in it. The sandbox is behind walls that our guest puts
//! up in it: namespaces, cgroups, mounts and a filter of its own, so that the limits and the posture are those of every other backend,
//! and user code can reach neither the agent nor a network. If the guest cannot put up one of them there is no sandbox. The workspace
//! has no network either, so nobody inside could dial: the channel is a terminal that the agent gives us.

mod account;
mod channel;
mod walls;
mod workspace;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use api::SandboxId;
use api::exec::Outcome;
use api::limits::Limits;
use api::posture::Posture;
use api::walls::Used;
use tokio::net::UnixStream;
use tokio::time::Instant;

pub use account::Account;

use crate::engine::{container, posture};
use crate::written::{Written, owner};
use crate::{Error, Exit, Listed, Profile, Runtime, Spec, Tier, Usage, files};
use channel::Terminals;
use workspace::{Ran, Workspace};

/// The name people use for it.
pub const NAME: &str = "daytona";

/// Before something is asked again, first and at most: an account counts requests.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_LAST: Duration = Duration::from_secs(3);
/// A workspace is there after seconds, if its snapshot is on the machine that makes it.
const MADE_WITHIN: Duration = Duration::from_secs(180);
const REMOVED_WITHIN: Duration = Duration::from_secs(120);
/// The guest is asked in pieces whether it has ended: nobody holds a request for ever.
const WAIT_PIECE: Duration = Duration::from_secs(45);
/// What `guest wait` and `guest end` exit with as long as it has not.
const NOT_YET: i64 = 4;
/// The memory of a workspace that is not user code's: the guest, kept output, the agent.
const OWN_BYTES: u64 = 128 << 20;

/// The time before something is asked again, longer each time.
struct Pause(Duration);

impl Default for Pause {
    fn default() -> Self {
        Self(PAUSE_FIRST)
    }
}

impl Pause {
    async fn take(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 2).min(PAUSE_LAST);
    }
}

/// One account and one data directory. Cheap to clone.
#[derive(Clone)]
pub struct Daytona {
    shared: Arc<Shared>,
}

struct Shared {
    account: Account,
    written: Written,
    /// What tells our workspaces from others' of the same account.
    owner: String,
    /// The terminals on which this process speaks.
    terminals: Terminals,
}

impl Daytona {
    /// Uses this account, with what has to be written down kept below this directory. Nobody is asked yet.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn new(account: Account, data: &Path) -> Result<Self, Error> {
        let home = data.join(NAME);
        std::fs::create_dir_all(&home).map_err(|source| files::failed("create directory", &home, source))?;
        let owner = owner(&home)?;
        let written = Written::open(home.join("sandboxes"))?;
        let terminals = Terminals::default();
        Ok(Self { shared: Arc::new(Shared { account, written, owner, terminals }) })
    }

    /// Whether there may be sandboxes of this data directory in an account.
    pub fn has_before(data: &Path) -> bool {
        crate::written::address_in(&data.join(NAME).join("sandboxes")).is_some()
    }

    /// Asks whether the account answers and takes the key.
    ///
    /// # Errors
    /// It does not.
    pub async fn check(&self) -> Result<(), Error> {
        Workspace::all(&self.shared.account, &self.shared.owner, None, 1).await.map(|_| ())
    }

    /// Where it is.
    pub fn address(&self) -> &str {
        self.shared.account.address()
    }

    /// The workspace of a sandbox, if there is one and it is ours.
    async fn find(&self, id: &SandboxId) -> Result<Option<Workspace>, Error> {
        let found = Workspace::find(&self.shared.account, id).await?;
        Ok(found.filter(|found| found.is_of(&self.shared.owner)))
    }

    async fn make(&self, id: &SandboxId, spec: &Spec) -> Result<(), Error> {
        let account = &self.shared.account;
        let walls = walls::walls(&spec.limits)?;
        self.shared.written.make(id, account.address())?;
        let deadline = Instant::now() + MADE_WITHIN;
        let mut workspace = Workspace::make(account, id, &self.shared.owner, spec).await?;
        let mut pause = Pause::default();
        while !workspace.has_begun()? {
            if Instant::now() >= deadline {
                return Err(Error::Deadline { what: "creating a Daytona workspace", after: MADE_WITHIN });
            }
            pause.take().await;
            match self.find(id).await {
                Ok(found) => workspace = found.ok_or_else(|| Error::Ended(id.clone()))?,
                // One answer that did not come is no reason to throw away what is being made.
                Err(Error::Unavailable { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        workspace.check(&spec.limits, OWN_BYTES)?;
        workspace.put_in(account, &spec.guest, &walls).await?;
        workspace.begin(account, spec.limits.ttl_ms).await
    }

    /// Removes the workspace, whatever it is doing, and then what is written down of it.
    async fn teardown(&self, id: &SandboxId) -> Result<(), Error> {
        self.shared.written.teardown(id, self.remove(id)).await
    }

    /// Has all workspaces of a sandbox removed, and sees them gone: Daytona gives one that it is to remove another name at once, and
    /// goes on running it until it has come to that.
    async fn remove(&self, id: &SandboxId) -> Result<(), Error> {
        let deadline = Instant::now() + REMOVED_WITHIN;
        let account = &self.shared.account;
        let mut left = Workspace::all(account, &self.shared.owner, Some(id), usize::MAX).await?;
        left.extend(self.find(id).await?);
        let mut pause = Pause::default();
        loop {
            let mut still = Vec::new();
            for workspace in left {
                let found = match workspace.look_again(account).await {
                    Ok(found) => found,
                    // Asked again, as long as there is time.
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

    /// Whether the account has a sandbox's workspace, however long it takes until it answers.
    async fn is_known(&self, id: &SandboxId) -> bool {
        let mut pause = Pause::default();
        loop {
            match self.find(id).await {
                Ok(found) => return found.is_some_and(|found| !found.is_removed()),
                Err(_) => pause.take().await,
            }
        }
    }

    /// Waits for the end of a sandbox that was seen, however often the account is away meanwhile.
    async fn await_end(&self, id: &SandboxId) -> Exit {
        let mut pause = Pause::default();
        loop {
            match self.find(id).await {
                Ok(None) => return Exit::Unknown,
                Ok(Some(workspace)) if workspace.is_over() => return Exit::Unknown,
                Ok(Some(workspace)) if workspace.is_running() => {
                    match self.ended(&workspace, WAIT_PIECE).await {
                        Ok(Some(exit)) => return exit,
                        Ok(None) => pause = Pause::default(),
                        Err(_) => {}
                    }
                }
                // Something else is being done to it, or it cannot be told.
                Ok(Some(_)) | Err(_) => {}
            }
            pause.take().await;
        }
    }

    /// How process 1 ended, if it has within this time.
    async fn ended(&self, workspace: &Workspace, within: Duration) -> Result<Option<Exit>, Error> {
        let words = format!("/.bellglass/guest wait {}", within.as_millis());
        let Ran { code, said } = workspace.run(&self.shared.account, &words, within).await?;
        match (code, serde_json::from_str(&said)) {
            (NOT_YET, _) => Ok(None),
            (0, Ok(Outcome::Exited { code })) => Ok(Some(Exit::Exited(code))),
            (0, Ok(Outcome::Signaled { signal })) => Ok(Some(Exit::Signaled(signal))),
            (0, Ok(_)) => Ok(Some(Exit::Unknown)),
            // That it could not be asked says nothing of how it is.
            _ => Err(Error::Unavailable {
                what: "Daytona's agent could not query the guest".into(),
                why: format!("`{words}` exited with {code}: {}", said.trim()),
                fix: "Check which other processes run in the workspace.".into(),
            }),
        }
    }

    /// What a program of the guest says of a sandbox.
    async fn ask<T: serde::de::DeserializeOwned>(&self, id: &SandboxId, words: &str) -> Result<T, Error> {
        let workspace = self.find(id).await?.ok_or_else(|| Error::NotFound(id.clone()))?;
        let words = format!("/.bellglass/guest {words}");
        let Ran { said, .. } = workspace.run(&self.shared.account, &words, Duration::ZERO).await?;
        serde_json::from_str(&said).map_err(|error| Error::Impostor {
            id: id.clone(),
            why: format!("`{words}` returned invalid output: {error}"),
        })
    }
}

#[async_trait::async_trait]
impl Runtime for Daytona {
    fn name(&self) -> &str {
        NAME
    }

    fn tier(&self) -> Tier {
        Tier::Container
    }

    fn takes_images(&self) -> bool {
        true
    }

    fn makes_ahead(&self) -> bool {
        false
    }

    async fn has_image(&self, image: &str) -> Result<bool, Error> {
        workspace::has_snapshot(&self.shared.account, image).await
    }

    fn within(&self, limits: Limits) -> Limits {
        container::within(limits)
    }

    async fn lacks(&self) -> Result<Vec<String>, Error> {
        Ok([
            "a machine of your own: Daytona and its agent, which runs as root in the same workspace, can see everything in the sandbox",
            "support for untrusted images: programs from the template's image run as root of the workspace to set up the isolation; use images that you have built",
            "a user namespace: root in the sandbox is root of the workspace, although user code never runs as root",
            "a disk: /workspace and the home directory are in memory and count toward the memory limit",
        ]
        .map(str::to_owned)
        .to_vec())
    }

    async fn start(&self, id: &SandboxId, spec: &Spec) -> Result<(), Error> {
        if spec.profile != Profile::Run {
            return Err(Error::Unsupported {
                what: "building a template",
                why: "Daytona runs sandboxes but does not unpack or build layers; build the template with an engine, or as root on Linux".into(),
            });
        }
        container::check(&spec.limits)?;
        // A start that nobody waits for any more must still become a sandbox or nothing.
        let (daytona, id, spec) = (self.clone(), id.clone(), spec.clone());
        let start = tokio::spawn(async move {
            daytona.shared.written.reserve(&id)?;
            match daytona.make(&id, &spec).await {
                Ok(()) => Ok(()),
                Err(error) => {
                    // The first error is the one to know; what a failed teardown leaves is listed and can be stopped again.
                    let _ = daytona.teardown(&id).await;
                    Err(error)
                }
            }
        });
        start.await.map_err(|source| Error::System {
            act: "finish starting a sandbox".into(),
            source: source.into(),
        })?
    }

    async fn connect(&self, id: &SandboxId, within: Duration) -> Result<UnixStream, Error> {
        let deadline = Instant::now() + within;
        let late = || Error::Deadline { what: "waiting for the guest to connect", after: within };
        match tokio::time::timeout_at(deadline, self.is_known(id)).await {
            Ok(true) => self.shared.written.take(id)?,
            Ok(false) => return Err(Error::NotFound(id.clone())),
            Err(_) => return Err(late()),
        }
        let ended = self.await_end(id);
        let dialled = async {
            let mut pause = Pause::default();
            loop {
                match self.dial(id, deadline).await {
                    Ok(stream) => return stream,
                    Err(_) => pause.take().await,
                }
            }
        };
        tokio::select! {
            stream = dialled => Ok(stream),
            _ = ended => Err(Error::Ended(id.clone())),
            () = tokio::time::sleep_until(deadline) => Err(late()),
        }
    }

    async fn wait(&self, id: &SandboxId) -> Result<Exit, Error> {
        match self.is_known(id).await {
            true => Ok(self.await_end(id).await),
            false => Err(Error::NotFound(id.clone())),
        }
    }

    async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<(), Error> {
        if !grace.is_zero()
            && self.shared.written.is_made(id)
            && let Some(workspace) = self.find(id).await?.filter(Workspace::is_running)
        {
            let words = format!("/.bellglass/guest end {}", grace.as_millis());
            // Either it ended by itself, or it is removed now.
            let _ = workspace.run(&self.shared.account, &words, grace).await;
        }
        self.teardown(id).await
    }

    async fn list(&self) -> Result<Vec<Listed>, Error> {
        let (account, written) = (&self.shared.account, &self.shared.written);
        written.check_place(account.address(), ("Daytona", account::ADDRESS))?;
        let found = Workspace::all(account, &self.shared.owner, None, usize::MAX).await?;
        let mut alive = BTreeSet::new();
        let mut known: BTreeSet<SandboxId> = written.all()?.into_iter().collect();
        for workspace in found.iter().filter(|found| !found.is_removed()) {
            let Some(id) = workspace.sandbox() else { continue };
            // One that does not say so now may live.
            let has_ended = match workspace.is_running() {
                true => matches!(self.ended(workspace, Duration::ZERO).await, Ok(Some(_))),
                false => workspace.is_over(),
            };
            if !has_ended {
                alive.insert(id.clone());
            }
            known.insert(id);
        }
        let owned = |id: &SandboxId| written.is_taken(id);
        let listed = known.into_iter();
        Ok(listed.map(|id| Listed { owned: owned(&id), alive: alive.contains(&id), id }).collect())
    }

    async fn usage(&self, id: &SandboxId) -> Result<Usage, Error> {
        let used: Used = self.ask(id, "usage").await?;
        Ok(Usage {
            memory_bytes: used.memory_bytes,
            memory_peak_bytes: used.memory_peak_bytes,
            sandbox_memory_bytes: used.workspace_memory_bytes,
            pids: used.pids,
            oom_kills: used.oom_kills,
            pids_refused: used.pids_refused,
            cpu_us: used.cpu_us,
        })
    }

    async fn posture(&self, id: &SandboxId) -> Result<(Posture, Vec<String>), Error> {
        let said: Posture = self.ask(id, "posture first").await?;
        let differences = posture::of_first(&said, posture::INITIAL.into_iter());
        Ok((said, differences))
    }
}
