//! The systems to measure: the trait of targets, and the list of targets.
//!
//! | module | target |
//! |---|---|
//! | [`bellglass`] | a Bellglass server, either an existing one or a new one for the run |
//! | [`e2b`] | any server with the protocol of E2B |
//! | [`runc`] | bare runc on the same root file system |
//! | [`docker`] | Docker's command line on the same root file system |
//! | [`driver`] | Python programs that communicate in lines of JSON: `llm-sandbox`, `jupyter` |
//!
//! Each optional capability is a separate trait; a target without the capability returns `None`. Everything
//! that a target started is gone when [`Target::close`] returns.

pub mod bellglass;
pub mod docker;
pub mod driver;
pub mod e2b;
pub mod runc;

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::rootfs::Rootfs;

/// Memory limit of a sandbox, the same for all targets that support limits.
pub const MEMORY_BYTES: u64 = 128 << 20;
/// Memory limit of a sandbox in which pandas is imported.
pub const MEMORY_BYTES_DATA: u64 = 1 << 30;
/// Maximum number of processes and threads in a sandbox.
pub const PIDS: u64 = 128;
/// Program that does nothing.
pub const NOTHING: &str = "/bin/true";

/// Names of all targets, in the order of the report.
pub const NAMES: [&str; 6] = ["bellglass", "runc", "docker", "e2b", "llm-sandbox", "jupyter"];

/// Image of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Image {
    /// A minimal system.
    Plain,
    /// A system with pandas and matplotlib.
    Data,
}

/// A sandbox that was created.
#[derive(Clone, Debug)]
pub struct Made {
    /// Identifier that its target uses.
    pub handle: String,
    /// Kind of start, if the target reports it: `warm` (from a pool) or `cold`.
    pub start: Option<String>,
}

/// A failure of an operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct TargetFailure {
    /// Code by which failures are counted.
    pub code: String,
    /// Error message.
    pub message: String,
    /// True if the target refused the operation before it did anything, because of missing capacity or a rate
    /// limit.
    pub refused: bool,
}

/// Resources that a target needs to start.
pub struct TargetResources<'a> {
    /// Root file systems of the images; an error if they are not available on this machine.
    pub rootfs: Result<&'a Rootfs, String>,
    /// Directory that is removed at the end of the run.
    pub scratch: &'a std::path::Path,
    /// Unique name that marks everything this run creates on shared machines.
    pub run: &'a str,
    /// Timeout for one operation.
    pub deadline: Duration,
}

/// A system that creates sandboxes.
#[async_trait]
pub trait Target: Send + Sync {
    /// Returns the name, one of [`NAMES`].
    fn name(&self) -> &'static str;
    /// Returns versions and other facts that are necessary for a comparison.
    fn facts(&self) -> BTreeMap<String, String>;
    /// Creates a sandbox and returns when it is usable.
    async fn create(&self, image: Image) -> Result<Made, TargetFailure>;
    /// Stops a sandbox and waits until it is gone.
    async fn stop(&self, handle: &str) -> Result<(), TargetFailure>;
    /// Waits until the pool of pre-warmed sandboxes is full, if the target has one.
    async fn rested(&self) {}
    /// Stops everything that the target started.
    async fn close(&self);

    /// Returns the capability to run commands in a sandbox.
    fn execs(&self) -> Option<&dyn Execs> {
        None
    }
    /// Returns the capability to run Python in a sandbox without state.
    fn code(&self) -> Option<&dyn CodeRuns> {
        None
    }
    /// Returns the capability to run Python in a sandbox with state.
    fn contexts(&self) -> Option<&dyn Contexts> {
        None
    }
    /// Returns the capability to transfer files.
    fn files(&self) -> Option<&dyn FileTransfers> {
        None
    }
    /// Returns the capability to run a whole lifecycle in one command.
    fn lives(&self) -> Option<&dyn Lives> {
        None
    }
    /// Returns the memory that the machine charges to these sandboxes, if it can be read.
    fn charged_bytes(&self, _handles: &[String]) -> Option<u64> {
        None
    }
}

/// Capability to run commands.
#[async_trait]
pub trait Execs: Send + Sync {
    /// Runs [`NOTHING`] and waits for its end.
    async fn exec(&self, handle: &str) -> Result<(), TargetFailure>;
}

/// Capability to run Python in a separate interpreter for each run, without state.
#[async_trait]
pub trait CodeRuns: Send + Sync {
    /// Runs the code to its end.
    async fn run(&self, handle: &str, source: &str) -> Result<(), TargetFailure>;
}

/// Capability to run Python in one live interpreter per sandbox, which the first call starts.
#[async_trait]
pub trait Contexts: Send + Sync {
    /// Runs a cell to its end.
    async fn cell(&self, handle: &str, source: &str) -> Result<(), TargetFailure>;
}

/// Capability to transfer files.
#[async_trait]
pub trait FileTransfers: Send + Sync {
    /// Writes the bytes to a file of this name.
    async fn upload(&self, handle: &str, name: &str, bytes: Bytes) -> Result<(), TargetFailure>;
    /// Reads a file and returns its size.
    async fn download(&self, handle: &str, name: &str) -> Result<u64, TargetFailure>;
}

/// Capability to run [`NOTHING`] in a new sandbox, from its creation to its end, in one command.
#[async_trait]
pub trait Lives: Send + Sync {
    /// Runs one lifecycle.
    async fn live(&self) -> Result<(), TargetFailure>;
}

impl TargetFailure {
    /// Creates a failure.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), refused: false }
    }

    /// Creates a failure for an operation that the target refused.
    pub fn refused(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { refused: true, ..Self::new(code, message) }
    }
}

impl<'a> TargetResources<'a> {
    /// Returns the root file systems, for a target that requires them.
    pub fn rootfs(&self) -> Result<&'a Rootfs, TargetFailure> {
        self.rootfs.clone().map_err(|why| TargetFailure::new("no_templates", why))
    }
}

/// Returns true if a target runs on this machine, on the root file systems of the templates.
pub fn needs_templates(name: &str) -> bool {
    match name {
        "bellglass" => bellglass::named().is_none(),
        "e2b" => false,
        _ => true,
    }
}

/// Starts a target.
pub async fn open(name: &str, place: &TargetResources<'_>) -> Result<Box<dyn Target>, TargetFailure> {
    match name {
        "bellglass" => Ok(Box::new(bellglass::Bellglass::open(place).await?)),
        "runc" => Ok(Box::new(runc::Runc::open(place).await?)),
        "docker" => Ok(Box::new(docker::Docker::open(place).await?)),
        "e2b" => Ok(Box::new(e2b::E2b::open(place).await?)),
        "llm-sandbox" => Ok(Box::new(driver::llm_sandbox(place).await?)),
        "jupyter" => Ok(Box::new(driver::jupyter(place).await?)),
        _ => Err(TargetFailure::new("unknown_target", format!("targets are {}", NAMES.join(", ")))),
    }
}
