//! The backend that runs sandboxes in the workspaces of a Daytona account, through Daytona's public API.
//!
//! | module | holds |
//! |---|---|
//! | [`account`] | an account's address and key, and the errors for an account that cannot be used |
//! | [`workspace`] | one workspace: creating, querying and removing it, running commands and uploading files |
//! | [`end`] | waiting for the end of a sandbox, and the removal of its workspace |
//! | [`backoff`] | exponential backoff between attempts |
//! | [`channel`] | the channel to the guest, carried by a terminal in the workspace |
//! | [`walls`] | the isolation settings for the guest |
//!
//! ```text
//! (nothing) ──directory, lock──▶   recorded   ─POST /sandbox─▶ created ──upload guest, set up walls─▶ running
//!     ▲                               │                            │                                    │
//!     └──────────────── stop: workspace by its name, directory last ───────────────────────────────────┘
//! ```
//!
//! A workspace is a machine that Daytona provides, and Daytona's agent runs in it as root. The guest isolates
//! the sandbox inside the workspace with its own confinement (the walls): namespaces, cgroups, mounts and a
//! system call filter. The limits and the privileges are therefore the same as with every other backend, and
//! user code can reach neither the agent nor a network. If the guest cannot set up one of the walls, the
//! sandbox does not start. The workspace itself has no network either, so the guest cannot connect to the
//! node. Instead, the channel is a terminal that the agent provides.

mod account;
mod backoff;
mod channel;
mod end;
mod walls;
mod workspace;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use api::SandboxId;
use api::limits::Limits;
use api::posture::Posture;
use api::walls::Used;
use tokio::net::UnixStream;
use tokio::time::Instant;

pub use account::Account;

use crate::written::{BackendRecords, owner};
use crate::{
    Error, Exit, Inspect, Listed, Profile, Properties, Runtime, Spec, Tier, Usage, files, memory_disks,
    posture,
};
use backoff::Backoff;
use channel::Terminals;
use workspace::{CommandResult, Workspace};

/// Name of this backend, as shown to users.
pub const NAME: &str = "daytona";

/// Timeout for the creation of a workspace. It takes only seconds if the snapshot is already on Daytona's
/// machine.
const MADE_WITHIN: Duration = Duration::from_secs(180);
/// Memory of a workspace that is not available to user code, because the guest, spooled output and the agent
/// need it.
const OWN_BYTES: u64 = 128 << 20;

/// The runtime for one account and one data directory. Cheap to clone.
#[derive(Clone)]
pub struct Daytona {
    shared: Arc<DaytonaState>,
}

struct DaytonaState {
    account: Account,
    written: BackendRecords,
    /// Name that distinguishes this data directory's workspaces from other workspaces in the same account.
    owner: String,
    /// The terminals that this process is using.
    terminals: Terminals,
}

impl Daytona {
    /// Creates a runtime for this account that keeps its records in this data directory. Does not contact
    /// Daytona yet.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be created.
    pub fn new(account: Account, data: &Path) -> Result<Self, Error> {
        let home = data.join(NAME);
        std::fs::create_dir_all(&home).map_err(|source| files::failed("create directory", &home, source))?;
        let owner = owner(&home)?;
        let written = BackendRecords::open(home.join("sandboxes"))?;
        let terminals = Terminals::default();
        Ok(Self { shared: Arc::new(DaytonaState { account, written, owner, terminals }) })
    }

    /// Returns true if this data directory has records of sandboxes, which may still exist in a Daytona
    /// account.
    pub fn has_before(data: &Path) -> bool {
        crate::written::address_in(&data.join(NAME).join("sandboxes")).is_some()
    }

    /// Checks that Daytona responds and accepts the key.
    ///
    /// # Errors
    /// Returns an error if Daytona does not respond or rejects the key.
    pub async fn check(&self) -> Result<(), Error> {
        Workspace::all(&self.shared.account, &self.shared.owner, None, 1).await.map(|_| ())
    }

    /// Returns the address of Daytona's API.
    pub fn address(&self) -> &str {
        self.shared.account.address()
    }

    /// Returns the workspace of a sandbox, or `None` if it does not exist or belongs to a different data
    /// directory.
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
        let mut pause = Backoff::default();
        while !workspace.has_begun()? {
            if Instant::now() >= deadline {
                return Err(Error::Deadline { what: "creating a Daytona workspace", after: MADE_WITHIN });
            }
            pause.take().await;
            match self.find(id).await {
                Ok(found) => workspace = found.ok_or_else(|| Error::Ended(id.clone()))?,
                // A single missing response does not mean that the workspace has failed.
                Err(Error::Unavailable { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        workspace.check(&spec.limits, OWN_BYTES)?;
        workspace.put_in(account, &spec.guest, &walls).await?;
        workspace.begin(account, spec.limits.ttl_ms).await
    }

    /// Runs a subcommand of the guest's program in a sandbox's workspace, and parses its output.
    async fn ask<T: serde::de::DeserializeOwned>(&self, id: &SandboxId, words: &str) -> Result<T, Error> {
        let workspace = self.find(id).await?.ok_or_else(|| Error::NotFound(id.clone()))?;
        let words = format!("/.bellglass/guest {words}");
        let CommandResult { said, .. } = workspace.run(&self.shared.account, &words, Duration::ZERO).await?;
        serde_json::from_str(&said).map_err(|error| Error::Impostor {
            id: id.clone(),
            why: format!("`{words}` returned invalid output: {error}"),
        })
    }
}

#[async_trait::async_trait]
impl Runtime for Daytona {
    fn properties(&self) -> Properties {
        Properties { takes_images: true, prewarms: false, ..Properties::new(NAME, Tier::Container) }
    }

    async fn has_image(&self, image: &str) -> Result<bool, Error> {
        workspace::has_snapshot(&self.shared.account, image).await
    }

    fn within(&self, limits: Limits) -> Limits {
        memory_disks::within(limits)
    }

    async fn start(&self, id: &SandboxId, spec: &Spec) -> Result<(), Error> {
        if spec.profile != Profile::Run {
            return Err(Error::Unsupported {
                what: "building a template",
                why: "Daytona runs sandboxes but does not unpack or build layers; build the template with an engine, or as root on Linux".into(),
            });
        }
        memory_disks::check(&spec.limits)?;
        // The start runs in its own task, so that it finishes or cleans up even if the caller stops waiting.
        let (daytona, id, spec) = (self.clone(), id.clone(), spec.clone());
        let start = tokio::spawn(async move {
            daytona.shared.written.reserve(&id)?;
            match daytona.make(&id, &spec).await {
                Ok(()) => Ok(()),
                Err(error) => {
                    // Report the first error. Anything that a failed teardown leaves behind stays listed and
                    // can be stopped again.
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
            let mut pause = Backoff::default();
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
            // On failure or timeout, the teardown below removes the workspace.
            let _ = workspace.run(&self.shared.account, &words, grace).await;
        }
        self.teardown(id).await
    }

    async fn list(&self) -> Result<Vec<Listed>, Error> {
        let (account, written) = (&self.shared.account, &self.shared.written);
        written.check_place(account.address(), "Daytona", account::ADDRESS)?;
        let found = Workspace::all(account, &self.shared.owner, None, usize::MAX).await?;
        let mut alive = BTreeSet::new();
        let mut known: BTreeSet<SandboxId> = written.all()?.into_iter().collect();
        for workspace in found.iter().filter(|found| !found.is_removed()) {
            let Some(id) = workspace.sandbox() else { continue };
            // A sandbox that cannot be queried now may still be alive, so it is reported as alive.
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
}

#[async_trait::async_trait]
impl Inspect for Daytona {
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
}
