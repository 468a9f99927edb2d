//! The systems to measure: the `Target` trait, and the list of its implementations.
//!
//! | module | target |
//! |---|---|
//! | [`bellglass`] | a Bellglass server, either an existing one or a new one for the run |
//! | [`e2b`] | any server that implements E2B's protocol |
//! | [`runc`] | bare runc on the same root file system |
//! | [`docker`] | Docker's command line on the same root file system |
//! | [`driver`] | Python programs that communicate in lines of JSON: `llm-sandbox`, `jupyter` |
//!
//! Each optional capability is a separate trait. If a target does not have a capability, it returns `None`.
//! When [`Target::close`] returns, everything that the target started is gone.

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

/// Memory limit of a sandbox in bytes. It is the same for all targets that support limits.
pub const MEMORY_BYTES: u64 = 128 << 20;
/// Memory limit of a sandbox that imports pandas, in bytes.
pub const MEMORY_BYTES_DATA: u64 = 1 << 30;
/// Maximum number of processes and threads in a sandbox.
pub const PIDS: u64 = 128;
/// Program that does nothing and exits.
pub const NOTHING: &str = "/bin/true";

/// Names of all targets, in the order in which the report lists them.
pub const NAMES: [&str; 6] = ["bellglass", "runc", "docker", "e2b", "llm-sandbox", "jupyter"];

/// Image of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Image {
    /// Minimal system.
    Plain,
    /// System with pandas and matplotlib.
    Data,
}

/// Sandbox that a target has created.
#[derive(Clone, Debug)]
pub struct Made {
    /// Identifier that the target uses for the sandbox.
    pub handle: String,
    /// Kind of start, if the target reports it: `warm` (from a pool) or `cold`.
    pub start: Option<String>,
}

/// Failure of an operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct TargetFailure {
    /// Code under which the report counts the failure.
    pub code: String,
    /// Error message.
    pub message: String,
    /// True if the target refused the operation before doing any work, because it lacked capacity or a rate
    /// limit was exceeded.
    pub refused: bool,
}

/// Resources that are available to a target when it starts.
pub struct TargetResources<'a> {
    /// Root file systems of the images, or an error if they are not available on this machine.
    pub rootfs: Result<&'a Rootfs, String>,
    /// Directory that is removed at the end of the run.
    pub scratch: &'a std::path::Path,
    /// Unique name of the run. It marks everything that the run creates on shared servers.
    pub run: &'a str,
    /// Timeout for one operation.
    pub deadline: Duration,
}

/// System that creates sandboxes.
#[async_trait]
pub trait Target: Send + Sync {
    /// Returns the name of the target, which is one of [`NAMES`].
    fn name(&self) -> &'static str;
    /// Returns versions and other facts that readers need to interpret a comparison.
    fn facts(&self) -> BTreeMap<String, String>;
    /// Creates a sandbox, and returns when the sandbox is usable.
    async fn create(&self, image: Image) -> Result<Made, TargetFailure>;
    /// Stops a sandbox, and waits until it is gone.
    async fn stop(&self, handle: &str) -> Result<(), TargetFailure>;
    /// Waits until the target's pool of pre-warmed sandboxes is full. Without a pool, returns immediately.
    async fn rested(&self) {}
    /// Stops everything that the target has started, and returns when all of it is gone.
    async fn close(&self);

    /// Returns the capability to run commands in a sandbox, if the target has it.
    fn execs(&self) -> Option<&dyn Execs> {
        None
    }
    /// Returns the capability to run Python code in a sandbox without state, if the target has it.
    fn code(&self) -> Option<&dyn CodeRuns> {
        None
    }
    /// Returns the capability to run Python code in a sandbox with state, if the target has it.
    fn contexts(&self) -> Option<&dyn Contexts> {
        None
    }
    /// Returns the capability to transfer files, if the target has it.
    fn files(&self) -> Option<&dyn FileTransfers> {
        None
    }
    /// Returns the capability to run a whole lifecycle with one command, if the target has it.
    fn lives(&self) -> Option<&dyn Lives> {
        None
    }
    /// Returns the memory in bytes that the kernel charges to these sandboxes, or `None` if it cannot be read
    /// on this machine.
    fn charged_bytes(&self, _handles: &[String]) -> Option<u64> {
        None
    }
}

/// Capability to run commands in a sandbox.
#[async_trait]
pub trait Execs: Send + Sync {
    /// Runs [`NOTHING`], and waits until it ends.
    async fn exec(&self, handle: &str) -> Result<(), TargetFailure>;
}

/// Capability to run Python code in a separate interpreter for each run, without state.
#[async_trait]
pub trait CodeRuns: Send + Sync {
    /// Runs the code to its end.
    async fn run(&self, handle: &str, source: &str) -> Result<(), TargetFailure>;
}

/// Capability to run Python code in one live interpreter per sandbox. The first call starts the interpreter.
#[async_trait]
pub trait Contexts: Send + Sync {
    /// Runs a cell to its end.
    async fn cell(&self, handle: &str, source: &str) -> Result<(), TargetFailure>;
}

/// Capability to transfer files.
#[async_trait]
pub trait FileTransfers: Send + Sync {
    /// Writes the bytes to a file with this name.
    async fn upload(&self, handle: &str, name: &str, bytes: Bytes) -> Result<(), TargetFailure>;
    /// Reads a file, and returns its size in bytes.
    async fn download(&self, handle: &str, name: &str) -> Result<u64, TargetFailure>;
}

/// Capability to run [`NOTHING`] in a new sandbox with a single command, from creation to removal.
#[async_trait]
pub trait Lives: Send + Sync {
    /// Runs one lifecycle.
    async fn live(&self) -> Result<(), TargetFailure>;
}

impl TargetFailure {
    /// Creates a failure with this code and message.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), refused: false }
    }

    /// Creates a failure for an operation that the target refused.
    pub fn refused(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { refused: true, ..Self::new(code, message) }
    }
}

impl<'a> TargetResources<'a> {
    /// Returns the root file systems, or a failure if they are not available.
    pub fn rootfs(&self) -> Result<&'a Rootfs, TargetFailure> {
        self.rootfs.clone().map_err(|why| TargetFailure::new("no_templates", why))
    }
}

/// Returns true if a target runs on this machine and uses the root file systems of the templates.
pub fn needs_templates(name: &str) -> bool {
    match name {
        "bellglass" => bellglass::named().is_none(),
        "e2b" => false,
        _ => true,
    }
}

/// Starts the target with this name.
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
