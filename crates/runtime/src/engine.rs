//! The backends for Docker and Podman, which use the API that both provide.
//!
//! | module | holds |
//! |---|---|
//! | [`place`] | an engine's address, and the errors for an engine that cannot be reached |
//! | [`facts`] | the capabilities that an engine reports |
//! | [`container`] | the container configuration of one sandbox |
//! | [`creation`] | the creation of a sandbox's container |
//! | [`end`] | waiting for the end of a container, and its removal |
//! | [`image`] | sealed images: root file systems that contain the guest |
//! | [`known`] | the image ID that is recorded for each image name |
//! | [`channel`] | the channel to the guest, carried by the streams of an exec |
//! | [`posture`] | comparison of the reported posture (privileges and isolation) with the expected one |
//!
//! ```text
//! (nothing) ──directory, lock──▶   recorded   ─sealed image, container─▶ created ─start──▶ running
//!     ▲                               │                                      │               │
//!     └─────────────── stop: container by its name, directory last ──────────┴───────────────┘
//! ```
//!
//! An engine keeps everything that belongs to a sandbox in one container. The container's name is derived
//! from the sandbox's ID, and its labels name the owner. Nothing from this machine is mounted into the
//! container (except, with Podman, a hosts file), so Docker may run on a different machine. On the server's
//! own machine, a sandbox has only a directory with a lock.

pub(crate) mod channel;
pub(crate) mod container;
mod creation;
mod end;
mod facts;
mod image;
mod known;
mod pause;
pub mod place;
pub(crate) mod posture;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use api::SandboxId;
use api::limits::Limits;
use api::posture::Posture;
use bollard::Docker;
use bollard::models::{ContainerInspectResponse, ContainerState};
use bollard::query_parameters::{
    ListContainersOptionsBuilder, StatsOptionsBuilder, StopContainerOptionsBuilder,
};
use futures_util::StreamExt as _;
use tokio::net::UnixStream;
use tokio::sync::OnceCell;
use tokio::time::Instant;

pub use facts::Facts;
pub use image::{EMPTY, ImageBuild};
pub use place::{EngineEndpoint, EngineKind};

use crate::written::{self, BackendRecords, owner};
use crate::{
    Error, Exit, Inspect, Listed, Pausing, Profile, Properties, Runtime, Spec, Tier, Usage, files,
    memory_disks,
};

/// Delay between attempts to reach an engine. An engine that restarts is unavailable for a few seconds.
const AGAIN: Duration = Duration::from_millis(200);
/// Maximum delay between attempts to make process 1 connect. Each attempt runs a process in the sandbox,
/// which fails while the sandbox is at its process limit.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// HTTP status that an engine returns for an object that does not exist.
const NOT_FOUND: u16 = 404;
/// HTTP status that an engine returns for a conflict, for example a concurrent removal.
const CONFLICT: u16 = 409;

/// The runtime for one engine and one data directory. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<EngineState>,
}

struct EngineState {
    place: EngineEndpoint,
    /// Local records of the sandboxes on this engine.
    written: BackendRecords,
    /// Name that distinguishes this data directory's sandboxes from others on the same engine.
    owner: String,
    /// The engine's client and reported capabilities, obtained on first use.
    reached: OnceCell<(Docker, Facts)>,
}

impl Engine {
    /// Creates a runtime for the engine at this address. The runtime keeps its records in this data
    /// directory. Does not contact the engine yet.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be created.
    pub fn new(place: EngineEndpoint, data: &std::path::Path) -> Result<Self, Error> {
        let home = data.join("engine");
        std::fs::create_dir_all(&home).map_err(|source| files::failed("create directory", &home, source))?;
        // The same engine may serve both the Docker and the Podman socket, so the owner includes the kind to
        // keep the containers of the two runtimes apart.
        let owner = format!("{}-{}", owner(&home)?, place.kind.name());
        let written = BackendRecords::open(home.join(place.kind.name()))?;
        Ok(Self { shared: Arc::new(EngineState { place, written, owner, reached: OnceCell::new() }) })
    }

    /// Returns the runtime for the engine that this data directory's recorded sandboxes run on, regardless of
    /// the current configuration. Returns `None` if no sandboxes are recorded.
    pub fn of_before(kind: EngineKind, data: &std::path::Path) -> Option<Self> {
        let address = written::address_in(&data.join("engine").join(kind.name()))?;
        Self::new(EngineEndpoint { kind, address }, data).ok()
    }

    /// Returns the properties and capabilities that the engine reports.
    ///
    /// # Errors
    /// Returns an error if the engine does not respond, or cannot enforce every sandbox's limits and system
    /// call filter.
    pub async fn facts(&self) -> Result<&Facts, Error> {
        Ok(&self.reach().await?.1)
    }

    /// Returns the engine's address and kind.
    pub fn place(&self) -> &EngineEndpoint {
        &self.shared.place
    }

    async fn reach(&self) -> Result<&(Docker, Facts), Error> {
        let reach = async || {
            let docker = self.shared.place.connect().await?;
            let facts = Facts::ask(&docker, &self.shared.place).await?;
            Ok((docker, facts))
        };
        self.shared.reached.get_or_try_init(reach).await
    }

    async fn docker(&self) -> Result<&Docker, Error> {
        Ok(&self.reach().await?.0)
    }

    /// Builds the error for a failed engine operation.
    fn failed(&self, act: &str, error: bollard::errors::Error) -> Error {
        self.shared.place.failed(act, error)
    }

    /// Returns the engine's description of a sandbox's container, or `None` if it does not exist.
    async fn inspect(&self, id: &SandboxId) -> Result<Option<ContainerInspectResponse>, Error> {
        let found = self.docker().await?.inspect_container(&container::name(id), None).await;
        unless_gone(found).map_err(|error| self.failed("inspect a container", error))
    }

    async fn state(&self, id: &SandboxId) -> Result<Option<ContainerState>, Error> {
        Ok(self.inspect(id).await?.map(|found| found.state.unwrap_or_default()))
    }
}

#[async_trait::async_trait]
impl Runtime for Engine {
    fn properties(&self) -> Properties {
        Properties {
            takes_images: true,
            shares_limits: true,
            ..Properties::new(self.shared.place.kind.name(), Tier::Container)
        }
    }

    async fn has_image(&self, image: &str) -> Result<bool, Error> {
        if image == EMPTY {
            // The empty image is created when it is first needed.
            return Ok(true);
        }
        Ok(self.known(image).await?.is_some())
    }

    fn within(&self, limits: Limits) -> Limits {
        memory_disks::within(limits)
    }

    async fn start(&self, id: &SandboxId, spec: &Spec) -> Result<(), Error> {
        if spec.profile != Profile::Run {
            return Err(Error::Unsupported {
                what: "building a template",
                why: format!(
                    "{} runs sandboxes but does not unpack or build layers; use `bellglass build-sandbox`, or run as root on Linux",
                    self.name()
                ),
            });
        }
        memory_disks::check(&spec.limits)?;
        // The start runs in its own task, so that it finishes or cleans up even if the caller stops waiting.
        let (engine, id, spec) = (self.clone(), id.clone(), spec.clone());
        let start = tokio::spawn(async move {
            engine.shared.written.reserve(&id)?;
            match engine.make(&id, &spec).await {
                Ok(()) => Ok(()),
                Err(error) => {
                    // Report the first error. Anything that a failed teardown leaves behind stays listed and
                    // can be stopped again.
                    let _ = engine.teardown(&id).await;
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
            let mut pause = AGAIN / 10;
            loop {
                match self.dial(id, deadline).await {
                    Ok(stream) => return stream,
                    // The guest is not listening yet, the engine is unavailable, or the sandbox is at its
                    // process limit.
                    Err(_) => tokio::time::sleep(pause).await,
                }
                pause = (pause * 2).min(PAUSE_MAX);
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
            && self.state(id).await?.is_some_and(|state| state.running == Some(true))
        {
            let seconds = i32::try_from(grace.as_millis().div_ceil(1000)).unwrap_or(i32::MAX);
            let options = StopContainerOptionsBuilder::new().t(seconds).build();
            // On failure or timeout, the teardown below kills the container.
            let _ = self.docker().await?.stop_container(&container::name(id), Some(options)).await;
        }
        self.teardown(id).await
    }

    async fn list(&self) -> Result<Vec<Listed>, Error> {
        let place = &self.shared.place;
        self.shared.written.check_place(&place.address, self.name(), place.kind.variable())?;
        // The states are listed explicitly, because Podman has additional states for ended containers that
        // Docker's API does not define.
        let states = ["created", "running", "paused", "exited"].map(str::to_owned).to_vec();
        let filters =
            HashMap::from([("label", vec![container::owned(&self.shared.owner)]), ("status", states)]);
        let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
        let found = self.docker().await?.list_containers(Some(options)).await;
        let found = found.map_err(|error| self.failed("list containers", error))?;
        let mut alive = BTreeSet::new();
        let mut known = BTreeSet::new();
        for summary in found {
            let Some(id) = container::id_in(summary.labels.unwrap_or_default()) else { continue };
            if summary.state.is_some_and(|state| container::LIVES.contains(&state)) {
                alive.insert(id.clone());
            }
            known.insert(id);
        }
        known.extend(self.shared.written.all()?);
        let owned = |id: &SandboxId| self.shared.written.is_taken(id);
        let listed = known.into_iter();
        Ok(listed.map(|id| Listed { owned: owned(&id), alive: alive.contains(&id), id }).collect())
    }

    fn pausing(&self) -> Option<&dyn Pausing> {
        Some(self)
    }
}

#[async_trait::async_trait]
impl Inspect for Engine {
    async fn usage(&self, id: &SandboxId) -> Result<Usage, Error> {
        let state = self.state(id).await?.ok_or_else(|| Error::NotFound(id.clone()))?;
        let options = StatsOptionsBuilder::new().stream(false).one_shot(true).build();
        let docker = self.docker().await?;
        let mut answers = std::pin::pin!(docker.stats(&container::name(id), Some(options)));
        let stats = match answers.next().await {
            Some(stats) => {
                stats.map_err(|error| self.failed("report the resource usage of a container", error))?
            }
            None => return Err(Error::Ended(id.clone())),
        };
        Ok(container::usage(&stats, &state))
    }

    async fn posture(&self, id: &SandboxId) -> Result<(Posture, Vec<String>), Error> {
        let found = self.inspect(id).await?.ok_or_else(|| Error::NotFound(id.clone()))?;
        let said = self.ask_first(id).await?;
        let facts = self.facts().await?;
        let differences = posture::differences(&said, &found, facts);
        Ok((said, differences))
    }

    async fn lacks(&self) -> Result<Vec<String>, Error> {
        Ok(self.facts().await?.lacks())
    }
}

/// Returns the HTTP status of an engine's error response.
fn status(error: &bollard::errors::Error) -> Option<u16> {
    if let bollard::errors::Error::DockerResponseServerError { status_code, .. } = error {
        return Some(*status_code);
    }
    None
}

/// Converts the error for an object that does not exist to `None`.
fn unless_gone<T>(found: Result<T, bollard::errors::Error>) -> Result<Option<T>, bollard::errors::Error> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if status(&error) == Some(NOT_FOUND) => Ok(None),
        Err(error) => Err(error),
    }
}
