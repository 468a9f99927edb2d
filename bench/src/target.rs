//! What is measured: the trait of targets, and the list of them.
//!
//! | module | target |
//! |---|---|
//! | [`bellglass`] | a Bellglass server: one by address, or one that is started for the run |
//! | [`e2b`] | anything that speaks the protocol of E2B |
//! | [`runc`] | bare runc on the same root file system |
//! | [`docker`] | Docker's command line on the same root file system |
//! | [`driver`] | programs in Python that answer lines of JSON: `llm-sandbox`, `jupyter` |
//!
//! A power that not every target has is a trait of its own, and a target without it says so by `None`. Whatever a target
//! starts is gone when [`Target::close`] has returned.

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

/// What every target gives a sandbox, where it can: the same for all.
pub const MEMORY_BYTES: u64 = 128 << 20;
/// The same, for one in which pandas is imported.
pub const MEMORY_BYTES_DATA: u64 = 1 << 30;
/// Processes and threads of one sandbox.
pub const PIDS: u64 = 128;
/// The program that does nothing.
pub const NOTHING: &str = "/bin/true";

/// Names of all targets, in the order in which they are told.
pub const NAMES: [&str; 6] = ["bellglass", "runc", "docker", "e2b", "llm-sandbox", "jupyter"];

/// What a sandbox is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Image {
    /// A small system.
    Plain,
    /// One with pandas and matplotlib.
    Data,
}

/// A sandbox that was made.
#[derive(Clone, Debug)]
pub struct Made {
    /// By what its target knows it.
    pub handle: String,
    /// How it was started, where the target says so: `warm` out of a pool, or `cold`.
    pub start: Option<String>,
}

/// Something that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Failure {
    /// A word to count it by.
    pub code: String,
    /// What was said.
    pub message: String,
    /// Whether the target said no before it did anything, because it had no room or was asked too fast.
    pub refused: bool,
}

/// What a target needs to be started.
pub struct Place<'a> {
    /// The root file systems of the images, where they are on this machine; or why they are not.
    pub rootfs: Result<&'a Rootfs, String>,
    /// A directory that goes with the run.
    pub scratch: &'a std::path::Path,
    /// Marks what this run makes on machines that others use, too.
    pub run: &'a str,
    /// How long one operation may take.
    pub deadline: Duration,
}

/// Something that makes sandboxes.
#[async_trait]
pub trait Target: Send + Sync {
    /// Its name, one of [`NAMES`].
    fn name(&self) -> &'static str;
    /// Versions of what it consists of, and whatever else a reader has to know to compare it.
    fn facts(&self) -> BTreeMap<String, String>;
    /// Makes a sandbox that can be used when this returns.
    async fn create(&self, image: Image) -> Result<Made, Failure>;
    /// Ends one and waits until it has.
    async fn stop(&self, handle: &str) -> Result<(), Failure>;
    /// Waits until it has ready what it makes before it is asked for, if it makes anything.
    async fn rested(&self) {}
    /// Ends everything that was made.
    async fn close(&self);

    /// Commands in a sandbox.
    fn execs(&self) -> Option<&dyn Execs> {
        None
    }
    /// Python in a sandbox, without state.
    fn code(&self) -> Option<&dyn Code> {
        None
    }
    /// Python in a sandbox, with state.
    fn contexts(&self) -> Option<&dyn Contexts> {
        None
    }
    /// Files in a sandbox.
    fn files(&self) -> Option<&dyn Files> {
        None
    }
    /// A whole life in one command.
    fn lives(&self) -> Option<&dyn Lives> {
        None
    }
    /// What the machine has charged to these sandboxes, where that can be read.
    fn charged_bytes(&self, _handles: &[String]) -> Option<u64> {
        None
    }
}

/// Runs commands.
#[async_trait]
pub trait Execs: Send + Sync {
    /// Runs [`NOTHING`] and waits for its end.
    async fn exec(&self, handle: &str) -> Result<(), Failure>;
}

/// Runs Python in an interpreter of its own: nothing of it stays.
#[async_trait]
pub trait Code: Send + Sync {
    /// Runs it to its end.
    async fn run(&self, handle: &str, source: &str) -> Result<(), Failure>;
}

/// Runs Python in the one interpreter of a sandbox that stays, which is started by the first call.
#[async_trait]
pub trait Contexts: Send + Sync {
    /// Runs a cell to its end.
    async fn cell(&self, handle: &str, source: &str) -> Result<(), Failure>;
}

/// Carries files.
#[async_trait]
pub trait Files: Send + Sync {
    /// Puts these bytes into a file of this name.
    async fn upload(&self, handle: &str, name: &str, bytes: Bytes) -> Result<(), Failure>;
    /// Reads that file; says how many bytes it had.
    async fn download(&self, handle: &str, name: &str) -> Result<u64, Failure>;
}

/// Runs [`NOTHING`] in a sandbox of its own, from its making to its end, in one command.
#[async_trait]
pub trait Lives: Send + Sync {
    /// One such life.
    async fn live(&self) -> Result<(), Failure>;
}

impl Failure {
    /// Something went wrong.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), refused: false }
    }

    /// The target said no.
    pub fn refused(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { refused: true, ..Self::new(code, message) }
    }
}

impl<'a> Place<'a> {
    /// The root file systems, for a target that cannot do without.
    pub fn rootfs(&self) -> Result<&'a Rootfs, Failure> {
        self.rootfs.clone().map_err(|why| Failure::new("no_templates", why))
    }
}

/// Whether a target runs on this machine, on the root file systems of the templates.
pub fn needs_templates(name: &str) -> bool {
    match name {
        "bellglass" => bellglass::named().is_none(),
        "e2b" => false,
        _ => true,
    }
}

/// Starts a target, or says why it cannot be.
pub async fn open(name: &str, place: &Place<'_>) -> Result<Box<dyn Target>, Failure> {
    match name {
        "bellglass" => Ok(Box::new(bellglass::Bellglass::open(place).await?)),
        "runc" => Ok(Box::new(runc::Runc::open(place).await?)),
        "docker" => Ok(Box::new(docker::Docker::open(place).await?)),
        "e2b" => Ok(Box::new(e2b::E2b::open(place).await?)),
        "llm-sandbox" => Ok(Box::new(driver::llm_sandbox(place).await?)),
        "jupyter" => Ok(Box::new(driver::jupyter(place).await?)),
        _ => Err(Failure::new("unknown_target", format!("targets are {}", NAMES.join(", ")))),
    }
}
