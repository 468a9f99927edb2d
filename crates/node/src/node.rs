//! The node as the control plane sees it: all operations on the sandboxes of this machine.

mod artifacts;
mod create;
mod exec;
mod folders;
mod kernel;
mod pause;
mod policy;
mod pool;
mod recovery;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use api::SandboxId;
use api::limits::Limits;
use api::sandbox::{EndReason, Sandbox as Shown, SandboxEvent, SandboxState, Usage};
use api::server::NodeStatus;
use egress::Gate;
use guest_client::sandbox::Sandbox;
use host::admission::Bounds;
use host::backend::Choice;
use host::error::Error;
use host::machine::{self, Machine};
use runtime::{Profile, Spec};
use tokio::sync::broadcast;
use tracing::Span;

use crate::call::Call;
use crate::datasets::Datasets;
use crate::handle::Handle;
use crate::message::DriverMessage;
use crate::orphan::remove_unused_layers;
use crate::shared::NodeState;

/// This machine and its sandboxes. Cheap to clone.
#[derive(Clone)]
pub struct Node {
    pub(crate) shared: Arc<NodeState>,
}

impl Node {
    /// Opens the node: takes over the sandboxes that an earlier server left running, and removes incomplete
    /// sandboxes.
    ///
    /// # Errors
    /// Another server is using the data directory, or stored state cannot be read.
    pub async fn open(
        machine: &Machine,
        choice: impl Into<Choice>,
        bounds: Bounds,
        gate: Gate,
    ) -> Result<Self, Error> {
        let shared = NodeState::open(machine, choice.into(), bounds, gate)?;
        let node = Self { shared };
        node.recover().await?;
        node.recover_artifacts().await;
        tokio::spawn(Self::watch_kernel(Arc::downgrade(&node.shared)));
        tokio::spawn(Self::tend_pool(Arc::downgrade(&node.shared), node.shared.pool.changed()));
        Ok(node)
    }

    /// Returns a sandbox, if it is known.
    pub fn find(&self, id: &SandboxId) -> Option<Shown> {
        self.handle(id).map(|handle| handle.shown())
    }

    /// Returns the name of the backend that runs a sandbox.
    pub fn runtime_of(&self, id: &api::SandboxId) -> Option<String> {
        self.known(id).ok().map(|handle| handle.record().runtime)
    }

    /// Lists all sandboxes, including ended sandboxes that have not been forgotten yet.
    pub fn list(&self) -> Vec<Shown> {
        let handles = self.shared.handles();
        handles.values().filter(|handle| !handle.is_pooled()).map(|handle| handle.shown()).collect()
    }

    /// Returns the remaining time to live of a sandbox.
    pub fn time_left(&self, id: &SandboxId) -> Option<Duration> {
        Some(self.handle(id)?.left())
    }

    /// Stops a sandbox and waits until it is removed completely. Returns `None` if it is unknown.
    pub async fn stop(&self, id: &SandboxId, reason: EndReason) -> Option<Shown> {
        let handle = self.handle(id)?;
        if !handle.state().is_terminal() {
            handle.asked_by(Span::current());
            handle.insist(DriverMessage::End(reason)).await;
        }
        Some(handle.until(SandboxState::is_terminal).await)
    }

    /// Forgets a sandbox that has ended. The control plane calls this method after it has recorded the end.
    ///
    /// # Errors
    /// A file system operation failed.
    pub fn forget(&self, id: &SandboxId) -> Result<(), Error> {
        let Some(handle) = self.handle(id).filter(|handle| handle.state().is_terminal()) else {
            return Ok(());
        };
        self.shared.journal.remove(id)?;
        self.shared.handles().remove(handle.id());
        Ok(())
    }

    /// Returns the resource usage of a sandbox. This does not count as a call, so the sandbox can still
    /// become idle.
    ///
    /// # Errors
    /// The sandbox is unknown or is not running.
    pub async fn usage(&self, id: &SandboxId) -> Result<Usage, Error> {
        let handle = self.known(id)?;
        let Some(sandbox) = handle.sandbox() else { return Call::begin(&handle).map(|_| Usage::default()) };
        let used = sandbox.usage().await?;
        // The guest of a paused sandbox does not respond.
        let execs = if handle.is_paused() { Vec::new() } else { sandbox.execs().await? };
        Ok(Usage {
            memory_bytes: used.memory_bytes,
            sandbox_memory_bytes: used.sandbox_memory_bytes,
            memory_peak_bytes: used.memory_peak_bytes,
            pids: used.pids,
            cpu_us: used.cpu_us,
            execs: u32::try_from(execs.iter().filter(|exec| exec.outcome.is_none()).count())
                .unwrap_or(u32::MAX),
        })
    }

    /// Subscribes to changes of all sandboxes.
    pub fn events(&self) -> broadcast::Receiver<SandboxEvent> {
        self.shared.events()
    }

    /// Starts or ends draining. While the node is draining, new sandboxes are refused.
    pub fn drain(&self, draining: bool) {
        self.shared.draining.store(draining, Ordering::Release);
    }

    /// Returns the status of this machine.
    pub fn status(&self) -> NodeStatus {
        let room = self.shared.room(&self.shared.handles());
        NodeStatus {
            draining: self.shared.draining.load(Ordering::Acquire),
            sandboxes: room.live,
            sandboxes_max: self.shared.bounds.sandboxes_max,
            memory_free_bytes: room.memory_free_bytes,
            disk_free_bytes: room.disk_free_bytes,
            runtimes: self.shared.choice.runtimes.iter().map(|one| one.name().to_owned()).collect(),
            backends: self.shared.choice.considered.clone(),
            pool: self.shared.pool.status(),
        }
    }

    /// Starts a sandbox without a template, checks its posture, and stops it. If the backend needs a template
    /// for every sandbox, only checks that the backend responds.
    ///
    /// # Errors
    /// The backend does not respond, or the sandbox could not be started, checked or stopped.
    pub async fn probe(&self) -> Result<(), Error> {
        let runtime = self.shared.choice.at_least(runtime::Tier::Container)?;
        if runtime.properties().takes_images && !runtime.has_image(runtime::engine::EMPTY).await? {
            // The backend has responded, and it cannot start a sandbox without a template.
            return Ok(());
        }
        let layers = match runtime.properties().takes_images {
            true => Vec::new(),
            false => vec![template::empty(&self.shared.data).await?],
        };
        let limits = Limits { disk_bytes: Limits::MIN.disk_bytes, ttl_ms: 60_000, ..Limits::default() };
        let (image, guest) = (runtime::engine::EMPTY.to_owned(), self.shared.guest.clone());
        let spec = Spec { layers, image, limits, profile: Profile::Run, guest };
        let sandbox = Sandbox::start(runtime, machine::fresh_id()?, &spec).await?;
        sandbox.stop(Duration::ZERO).await
    }

    /// Returns the data directory.
    pub fn data(&self) -> &std::path::Path {
        &self.shared.data
    }

    /// Returns the datasets of all projects.
    pub fn datasets(&self) -> &Datasets {
        &self.shared.datasets
    }

    /// Sets a project's total disk quota for datasets, session files and artifacts.
    pub fn set_quota(&self, project: &str, disk_bytes: u64) {
        self.shared.ledger.set_quota(project, disk_bytes);
    }

    /// Removes unused layers, expired artifacts, and other stored data that is no longer referenced.
    ///
    /// # Errors
    /// Stored data could not be read or removed. The cleanup stops at the first error.
    pub async fn tidy(&self) -> Result<(), Error> {
        let sandboxes = self.shared.data.join("sandboxes");
        self.shared.journal.tidy(|id| sandboxes.join(id.as_str()).exists())?;
        self.shared.keeper.tidy().await?;
        self.shared.datasets.tidy().await?;
        self.shared.folders.sweep().await?;
        template::sent::Archives::open(&self.shared.data)?.tidy().await?;
        let (data, broker) = (self.shared.data.clone(), Arc::clone(&self.shared.broker));
        let tidied = move || {
            let packages = broker.gate().tidy();
            packages.map_err(|source| Error::System { act: "remove old packages".into(), source })?;
            remove_unused_layers(&data)
        };
        tokio::task::spawn_blocking(tidied)
            .await
            .map_err(|source| Error::System { act: "remove layers".into(), source: source.into() })?
    }

    /// Returns the handle of a sandbox, unless it is pre-warmed and unclaimed.
    fn handle(&self, id: &SandboxId) -> Option<Arc<Handle>> {
        self.shared.handles().get(id).filter(|handle| !handle.is_pooled()).cloned()
    }

    pub(crate) fn known(&self, id: &SandboxId) -> Result<Arc<Handle>, Error> {
        self.handle(id).ok_or_else(|| Error::Runtime(runtime::Error::NotFound(id.clone())))
    }
}
