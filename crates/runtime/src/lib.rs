//! Isolation: the [`Runtime`] trait, its laws, and the backends.
//!
//! A runtime creates one sandbox from a template's layers, with process 1 (the guest) inside and one byte
//! channel to it. It knows nothing of execs, files or outcomes: these are handled on the channel.
//!
//! | module | holds |
//! |---|---|
//! | [`oci`] | any OCI runtime, driven by its command line: `runc`, `runsc`, `youki` |
//! | [`engine`] | Docker and Podman, driven by the API that both serve |
//! | [`daytona`] | workspaces of a Daytona account, isolated by walls that the guest sets up |
//! | `sim` | an in-memory runtime without isolation, for tests; behind the feature of the same name |
//! | [`confinement`], [`seccomp`] | what every backend applies: capabilities, hidden paths, limits, the system call filter |
//! | [`memory_disks`], [`posture`], [`handshake`] | parts of backends that cannot use disks of the machine or transfer descriptors |
//! | [`probe`] | detection of kernel features inside a user namespace |
//! | [`tables`] | sizes of the kernel's process and open-file tables, and the share of one sandbox |
//! | [`laws`] | the behavior required of every backend, as a test suite that runs on any of them |
//!
//! Invariants: every resource that a start acquires is recorded before it is created, has a name derived from
//! the sandbox id, and can be removed by [`Runtime::stop`] of any process that knows only the id. A sandbox
//! with weaker isolation than its spec requires is never started.

mod confinement;
pub mod daytona;
pub mod engine;
mod files;
mod hand;
mod handshake;
mod http;
pub mod laws;
mod memory_disks;
pub mod oci;
mod posture;
mod probe;
mod seccomp;
#[cfg(feature = "sim")]
pub mod sim;
pub mod tables;
mod written;

use std::path::PathBuf;
use std::time::Duration;

use api::SandboxId;
use api::limits::Limits;
use api::posture::Posture;
use tokio::net::UnixStream;

/// Strength of the isolation around a sandbox, ordered from weaker to stronger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Namespaces, a uid range, seccomp and cgroups; the host's kernel serves the sandbox.
    Container,
    /// A dedicated user-space kernel (gVisor) serves the sandbox.
    UserKernel,
}

/// Description of the sandbox to start.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Directories that make up the root file system, lowest first, with ids as in the image (0 is root).
    pub layers: Vec<PathBuf>,
    /// Image name under which an engine knows the same root file system.
    pub image: String,
    /// Resource limits of the sandbox.
    pub limits: Limits,
    /// Privileges of process 1 and of the code inside.
    pub profile: Profile,
    /// The guest's executable on this machine: static, world-readable, executable.
    pub guest: PathBuf,
}

/// Privileges of process 1 and of the code inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Runs code: the default posture.
    Run,
    /// Like [`Profile::Run`], for people and agents who install software: the root file system is also
    /// writable, on the sandbox's disk, as far as file permissions allow. No process has more privileges than
    /// in [`Profile::Run`].
    Workstation,
    /// Like [`Profile::Workstation`], but commands may also run as root of the sandbox's own user namespace,
    /// with the capabilities that package installation needs.
    Rooted,
    /// Unpacks layers of an image and runs no untrusted code. Process 1 may also create files owned by the
    /// image's users. `done` is bound read-only at `/layers/0`, `/layers/1`, …, and `target` is bound
    /// writable at `/layers/target`.
    Unpack {
        /// Layers that are already unpacked, lowest first.
        done: Vec<PathBuf>,
        /// The directory to unpack into.
        target: PathBuf,
    },
    /// Runs one step of a recipe: code as root of the sandbox's own user namespace, with the capabilities
    /// that package installation needs and a writable root. Changes are stored on the sandbox's disk, and
    /// that directory is bound read-only at `/.bellglass/upper`.
    Build,
}

impl Profile {
    /// Returns true if process 1 may create files owned by other users.
    pub fn owns_files(&self) -> bool {
        match self {
            Self::Run | Self::Workstation => false,
            Self::Unpack { .. } | Self::Rooted | Self::Build => true,
        }
    }

    /// Returns true if the root file system is writable; changes are stored on the sandbox's disk.
    pub fn writes_root(&self) -> bool {
        match self {
            Self::Run | Self::Unpack { .. } => false,
            Self::Workstation | Self::Rooted | Self::Build => true,
        }
    }
}

/// The way in which process 1 of a sandbox ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Process 1 exited with this status.
    Exited(i32),
    /// Process 1 was killed by this signal.
    Signaled(i32),
    /// Process 1 has ended, and its exit status is not known.
    Unknown,
}

/// Current resource usage of a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Memory charged to user code.
    pub memory_bytes: u64,
    /// Highest amount of memory ever charged to user code.
    pub memory_peak_bytes: u64,
    /// Memory charged to the whole sandbox, guest and kernel memory included.
    pub sandbox_memory_bytes: u64,
    /// Processes and threads of user code (of the whole sandbox if the tier cannot distinguish them).
    pub pids: u64,
    /// Number of OOM kills.
    pub oom_kills: u64,
    /// Number of times that the limit prevented the creation of a process.
    pub pids_refused: u64,
    /// Processor time used, in microseconds.
    pub cpu_us: u64,
}

/// A sandbox that exists, at least in part, on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its id.
    pub id: SandboxId,
    /// True if a living process (this one or another) owns the sandbox.
    pub owned: bool,
    /// True if its process 1 is alive.
    pub alive: bool,
}

/// The sandbox that uses too much of a kernel resource for which Linux has no limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Culprit {
    /// Its id.
    pub id: SandboxId,
    /// The excessive usage, in human-readable form.
    pub what: String,
}

/// Failure of an isolation backend.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The id is in use.
    #[error("sandbox {0} already exists")]
    Exists(SandboxId),
    /// There is no such sandbox.
    #[error("there is no sandbox {0}")]
    NotFound(SandboxId),
    /// A limit or a part of the posture cannot be enforced on this machine.
    #[error("{what} is not supported here: {why}")]
    Unsupported {
        /// Name of the limit or part.
        what: &'static str,
        /// The missing prerequisite, followed by the software to install or the setting to change.
        why: String,
    },
    /// The backend is not installed or does not respond.
    #[error("{what}: {why}")]
    Unavailable {
        /// The component that is unavailable.
        what: String,
        /// The cause, as far as it is known.
        why: String,
        /// The remedy.
        fix: String,
    },
    /// The machine does not have enough capacity.
    #[error("no room for {what}: {why}")]
    Capacity {
        /// The resource that is exhausted.
        what: &'static str,
        /// The available and the requested amount.
        why: String,
    },
    /// A command of the OCI runtime or of the system failed.
    #[error("`{argv}` failed with {status}: {stderr}")]
    Command {
        /// The command line.
        argv: String,
        /// Its exit status.
        status: String,
        /// The last lines it wrote to standard error.
        stderr: String,
    },
    /// A system call failed.
    #[error("cannot {act}")]
    System {
        /// The operation and its object.
        act: String,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// The peer on the channel is not process 1, or does not speak the protocol.
    #[error("rejected the guest of sandbox {id}: {why}")]
    Impostor {
        /// Id of the sandbox.
        id: SandboxId,
        /// Reason for the rejection.
        why: String,
    },
    /// The sandbox ended before or during the call.
    #[error("sandbox {0} has ended")]
    Ended(SandboxId),
    /// The wait reached its deadline.
    #[error("{what} timed out after {after:?}")]
    Deadline {
        /// The operation that timed out.
        what: &'static str,
        /// The time limit.
        after: Duration,
    },
}

/// Returns an error's message and its causes on one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// Limits the C library to two malloc arenas instead of eight per core. The threads that run blocking starts
/// and stops come and go; each would fill an arena of its own, and the idle memory in the arenas would
/// make a server grow slowly.
pub fn keep_few_pools() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `mallopt` takes no pointers and only changes a setting of the allocator; no other thread exists
    // yet.
    let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, 2) };
}

/// Returns the total memory of this machine.
pub fn machine_memory_bytes() -> u64 {
    let machine = rustix::system::sysinfo();
    machine.totalram.saturating_mul(u64::from(machine.mem_unit))
}

/// Fixed properties of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Name as users know it, such as `runc` or `runsc`.
    pub name: &'static str,
    /// Strength of the isolation.
    pub tier: Tier,
    /// True if the backend identifies a root file system by the name of an image, and not by layer directories.
    pub takes_images: bool,
    /// True if process 1 is subject to the limits of user code, so that running out of memory can kill it too.
    pub shares_limits: bool,
    /// True if sandboxes may be pre-warmed. False for backends that charge for each sandbox.
    pub prewarms: bool,
}

impl Properties {
    /// Returns the usual properties of a backend of this tier.
    pub fn new(name: &'static str, tier: Tier) -> Self {
        let shares_limits = tier == Tier::UserKernel;
        Self { name, tier, takes_images: false, shares_limits, prewarms: true }
    }
}

/// One isolation backend. Implementations are cheap to share; every method may be called again after any
/// failure.
#[async_trait::async_trait]
pub trait Runtime: Inspect + Send + Sync {
    /// Returns the properties of the backend.
    fn properties(&self) -> Properties;

    /// Returns its name as users know it.
    fn name(&self) -> &'static str {
        self.properties().name
    }

    /// Returns the strength of its isolation.
    fn tier(&self) -> Tier {
        self.properties().tier
    }

    /// Returns true if it has a root file system of this name.
    async fn has_image(&self, _image: &str) -> Result<bool, Error> {
        Ok(false)
    }

    /// Returns these limits, each reduced to the maximum that this backend can enforce. Used for default
    /// limits only: a limit that the caller set explicitly and that is too large is refused by
    /// [`Runtime::start`].
    fn within(&self, limits: Limits) -> Limits {
        limits
    }

    /// Starts a sandbox. On success, process 1 runs (it may not have connected yet), all limits are in force,
    /// and the sandbox is listed. On failure, nothing is left behind. A second start of the same id returns
    /// [`Error::Exists`] and does not affect the first.
    async fn start(&self, id: &SandboxId, spec: &Spec) -> Result<(), Error>;

    /// Returns the next connection from process 1, after the handshake. Called again after a disconnect, it
    /// returns the next connection. Called in a new process, it takes the sandbox over from the process that
    /// died.
    async fn connect(&self, id: &SandboxId, within: Duration) -> Result<UnixStream, Error>;

    /// Waits until process 1 has ended; returns at once if it already has. Returns [`Error::NotFound`] for an
    /// unknown id.
    async fn wait(&self, id: &SandboxId) -> Result<Exit, Error>;

    /// Stops a sandbox: sends SIGTERM to process 1, allows `grace` for a clean exit, and removes everything
    /// that belongs to the sandbox: processes, cgroups, mounts, loop device, namespaces, directory, uid range
    /// and socket. Succeeds if the id is unknown.
    async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<(), Error>;

    /// Returns the interface to pause sandboxes; `None` if this backend cannot pause them.
    fn pausing(&self) -> Option<&dyn Pausing> {
        None
    }

    /// Lists all sandboxes that exist at least in part, including half-made ones and those of dead processes.
    async fn list(&self) -> Result<Vec<Listed>, Error>;
}

/// Observation of a backend and of its sandboxes, without changing them.
#[async_trait::async_trait]
pub trait Inspect: Send + Sync {
    /// Returns the current resource usage of a sandbox.
    async fn usage(&self, id: &SandboxId) -> Result<Usage, Error>;

    /// Returns the privileges of process 1 (or of the user-space kernel that runs it) as seen from outside,
    /// and their differences from what its tier promises, one line each. A correctly started sandbox has no
    /// differences.
    async fn posture(&self, id: &SandboxId) -> Result<(Posture, Vec<String>), Error>;

    /// Returns the sandbox to stop because it uses too much of a kernel resource that has no limit. Cheap if
    /// there is none.
    async fn culprit(&self) -> Result<Option<Culprit>, Error> {
        Ok(None)
    }

    /// Returns the parts of its tier's default posture that this backend does not provide, one line each.
    async fn lacks(&self) -> Result<Vec<String>, Error> {
        Ok(Vec::new())
    }
}

/// Suspends the processes of sandboxes and keeps their memory.
#[async_trait::async_trait]
pub trait Pausing: Send + Sync {
    /// Suspends all processes of a sandbox. If it fails, none is suspended. Pausing a paused sandbox does nothing.
    async fn pause(&self, id: &SandboxId) -> Result<(), Error>;

    /// Resumes all processes of a sandbox. Resuming a running sandbox does nothing.
    async fn resume(&self, id: &SandboxId) -> Result<(), Error>;
}
