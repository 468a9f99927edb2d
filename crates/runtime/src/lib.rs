//! Sandbox isolation: the [`Runtime`] trait, the laws that every backend must obey, and the backends.
//!
//! A runtime creates a sandbox from a template's layers, starts process 1 (the guest) in it, and opens one
//! byte channel to the guest. A runtime knows nothing about execs, files or outcomes: the node handles these
//! over the channel.
//!
//! | module | holds |
//! |---|---|
//! | [`oci`] | the OCI runtimes `runc`, `runsc` and `youki`, driven through their command line |
//! | [`engine`] | Docker and Podman, driven through the API that both provide |
//! | [`daytona`] | workspaces of a Daytona account, in which the guest applies its own confinement |
//! | `sim` | an in-memory runtime without isolation, for tests; requires the `sim` feature |
//! | [`confinement`], [`seccomp`] | confinement that every backend applies: capabilities, hidden paths, limits, the system call filter |
//! | [`memory_disks`], [`posture`], [`handshake`] | code for backends that cannot use the machine's disks or pass file descriptors |
//! | [`probe`] | detection of kernel features inside a user namespace |
//! | [`tables`] | sizes of the kernel's process and open-file tables, and the share that one sandbox may use |
//! | [`laws`] | the behavior required of every backend, as a test suite that runs against any backend |
//!
//! Invariants: every resource that a start acquires is recorded before it is created, and has a name derived
//! from the sandbox ID. Any process that knows the ID can therefore remove the resource with
//! [`Runtime::stop`]. A sandbox never starts with weaker isolation than its spec requires.

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
    /// Namespaces, a uid range, seccomp and cgroups. The sandbox uses the host's kernel.
    Container,
    /// The sandbox has its own user-space kernel (gVisor).
    UserKernel,
}

/// Description of the sandbox to start.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Layer directories that make up the root file system, lowest first. Their files have the owners from
    /// the image, where user 0 is root.
    pub layers: Vec<PathBuf>,
    /// Name of the engine's image, or of the Daytona snapshot, that contains the same root file system.
    pub image: String,
    /// Resource limits of the sandbox.
    pub limits: Limits,
    /// Privileges of process 1 and of the code that runs in the sandbox.
    pub profile: Profile,
    /// Path of the guest's executable on this machine. The file is statically linked, and every user may read
    /// and execute it.
    pub guest: PathBuf,
}

/// Privileges of process 1 and of the code that runs in the sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Runs code with the default privileges.
    Run,
    /// Like [`Profile::Run`], but the root file system is also writable, for people and agents that install
    /// software. Changes go to the sandbox's disk, and file permissions still apply. No process has more
    /// privileges than with [`Profile::Run`].
    Workstation,
    /// Like [`Profile::Workstation`], but commands may also run as root of the sandbox's own user namespace,
    /// with the capabilities that package installation needs.
    Rooted,
    /// Unpacks the layers of an image and runs no untrusted code. Process 1 may also create files owned by
    /// the image's users. The layers in `done` are mounted read-only at `/layers/0`, `/layers/1`, …, and
    /// `target` is mounted writable at `/layers/target`.
    Unpack {
        /// Layers that are already unpacked, lowest first.
        done: Vec<PathBuf>,
        /// The directory to unpack into.
        target: PathBuf,
    },
    /// Runs one step of a recipe. The step's code runs as root of the sandbox's own user namespace, with the
    /// capabilities that package installation needs and a writable root file system. Changes are stored in a
    /// directory on the sandbox's disk, which is mounted read-only at `/.bellglass/upper`.
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

    /// Returns true if the root file system is writable. Changes are then stored on the sandbox's disk.
    pub fn writes_root(&self) -> bool {
        match self {
            Self::Run | Self::Unpack { .. } => false,
            Self::Workstation | Self::Rooted | Self::Build => true,
        }
    }
}

/// How process 1 of a sandbox ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Process 1 exited with this status.
    Exited(i32),
    /// Process 1 was killed by this signal.
    Signaled(i32),
    /// Process 1 has ended, but its exit status is unknown.
    Unknown,
}

/// Current resource usage of a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Memory charged to user code.
    pub memory_bytes: u64,
    /// Highest amount of memory ever charged to user code.
    pub memory_peak_bytes: u64,
    /// Memory charged to the whole sandbox, including guest and kernel memory.
    pub sandbox_memory_bytes: u64,
    /// Number of processes and threads of user code, or of the whole sandbox if the tier cannot tell them
    /// apart.
    pub pids: u64,
    /// Number of OOM kills.
    pub oom_kills: u64,
    /// Number of times that the process limit prevented the creation of a process.
    pub pids_refused: u64,
    /// Processor time used, in microseconds.
    pub cpu_us: u64,
}

/// A sandbox that exists, at least in part, on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The sandbox's ID.
    pub id: SandboxId,
    /// True if a living process (this process or a different one) owns the sandbox.
    pub owned: bool,
    /// True if the sandbox's process 1 is alive.
    pub alive: bool,
}

/// A sandbox that uses too much of a kernel resource that Linux does not limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Culprit {
    /// The sandbox's ID.
    pub id: SandboxId,
    /// The excessive usage, in human-readable form.
    pub what: String,
}

/// Failure of an isolation backend.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The sandbox ID is already in use.
    #[error("sandbox {0} already exists")]
    Exists(SandboxId),
    /// No sandbox has this ID.
    #[error("there is no sandbox {0}")]
    NotFound(SandboxId),
    /// A limit or a part of the isolation cannot be enforced on this machine.
    #[error("{what} is not supported here: {why}")]
    Unsupported {
        /// Name of the limit, or of the part of the isolation.
        what: &'static str,
        /// The missing prerequisite, followed by the software to install or the setting to change.
        why: String,
    },
    /// The backend is not installed or does not respond.
    #[error("{what}: {why}")]
    Unavailable {
        /// The component that is unavailable.
        what: String,
        /// The cause, if it is known.
        why: String,
        /// The action that fixes the problem.
        fix: String,
    },
    /// The machine does not have enough capacity.
    #[error("no room for {what}: {why}")]
    Capacity {
        /// The resource that is exhausted.
        what: &'static str,
        /// The available and requested amounts.
        why: String,
    },
    /// A command of an OCI runtime or a system tool failed.
    #[error("`{argv}` failed with {status}: {stderr}")]
    Command {
        /// The command line.
        argv: String,
        /// The command's exit status.
        status: String,
        /// The last lines that the command wrote to standard error.
        stderr: String,
    },
    /// A system call failed.
    #[error("cannot {act}")]
    System {
        /// The operation that failed and the object it acted on, such as a path.
        act: String,
        /// The operating system's error.
        #[source]
        source: std::io::Error,
    },
    /// The peer on the channel is not process 1, or does not speak the protocol.
    #[error("rejected the guest of sandbox {id}: {why}")]
    Impostor {
        /// The sandbox's ID.
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

/// Formats an error's message and the messages of its causes on one line.
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

/// Limits the C library to two malloc arenas instead of eight per core. Sandboxes are started and stopped on
/// short-lived threads. Without the limit, each thread would fill an arena of its own, and the idle memory in
/// these arenas would make the server's memory usage grow slowly.
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
    /// Name shown to users, such as `runc` or `runsc`.
    pub name: &'static str,
    /// Strength of the isolation.
    pub tier: Tier,
    /// True if the backend identifies a root file system by an image name instead of by layer directories.
    pub takes_images: bool,
    /// True if the limits on user code also apply to process 1, which may then be killed when memory runs
    /// out.
    pub shares_limits: bool,
    /// True if sandboxes may be pre-warmed. False for backends that charge for each sandbox.
    pub prewarms: bool,
}

impl Properties {
    /// Returns the usual properties for a backend with this name and tier.
    pub fn new(name: &'static str, tier: Tier) -> Self {
        let shares_limits = tier == Tier::UserKernel;
        Self { name, tier, takes_images: false, shares_limits, prewarms: true }
    }
}

/// An isolation backend. Implementations are cheap to share. After a failure, every method may be called
/// again.
#[async_trait::async_trait]
pub trait Runtime: Inspect + Send + Sync {
    /// Returns the properties of the backend.
    fn properties(&self) -> Properties;

    /// Returns the backend's name, as shown to users.
    fn name(&self) -> &'static str {
        self.properties().name
    }

    /// Returns the strength of the backend's isolation.
    fn tier(&self) -> Tier {
        self.properties().tier
    }

    /// Returns true if the backend has a root file system with this image name.
    async fn has_image(&self, _image: &str) -> Result<bool, Error> {
        Ok(false)
    }

    /// Returns these limits, each reduced to the maximum that this backend can enforce. Used only for default
    /// limits: [`Runtime::start`] refuses an explicit limit that is too large.
    fn within(&self, limits: Limits) -> Limits {
        limits
    }

    /// Starts a sandbox. On success, process 1 is running (but may not have connected yet), all limits are in
    /// force, and the sandbox is listed. On failure, nothing is left behind. A second start with the same ID
    /// returns [`Error::Exists`] and does not affect the first sandbox.
    async fn start(&self, id: &SandboxId, spec: &Spec) -> Result<(), Error>;

    /// Waits for the next connection from process 1, performs the handshake, and returns the connection.
    /// After a disconnect, another call returns the next connection. In a new process, a call also takes the
    /// sandbox over from the process that died.
    async fn connect(&self, id: &SandboxId, within: Duration) -> Result<UnixStream, Error>;

    /// Waits until process 1 has ended. Returns at once if it has already ended, and returns
    /// [`Error::NotFound`] for an unknown ID.
    async fn wait(&self, id: &SandboxId) -> Result<Exit, Error>;

    /// Stops a sandbox: sends SIGTERM to process 1, allows `grace` for a clean exit, and removes everything
    /// that belongs to the sandbox: processes, cgroups, mounts, loop device, namespaces, directory, uid range
    /// and socket. Also succeeds if the ID is unknown.
    async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<(), Error>;

    /// Returns the interface for pausing sandboxes, or `None` if this backend cannot pause them.
    fn pausing(&self) -> Option<&dyn Pausing> {
        None
    }

    /// Lists all sandboxes that exist at least in part. This includes sandboxes that are only partially
    /// created, and sandboxes whose owning process has died.
    async fn list(&self) -> Result<Vec<Listed>, Error>;
}

/// Read-only inspection of a backend and its sandboxes.
#[async_trait::async_trait]
pub trait Inspect: Send + Sync {
    /// Returns the current resource usage of a sandbox.
    async fn usage(&self, id: &SandboxId) -> Result<Usage, Error>;

    /// Returns the observed privileges of process 1 (or of the user-space kernel that runs it), and one line
    /// for each difference from the privileges that its tier promises. A correctly started sandbox has no
    /// differences.
    async fn posture(&self, id: &SandboxId) -> Result<(Posture, Vec<String>), Error>;

    /// Returns a sandbox that must be stopped because it uses too much of a kernel resource that has no
    /// limit. The check is cheap if there is no such sandbox.
    async fn culprit(&self) -> Result<Option<Culprit>, Error> {
        Ok(None)
    }

    /// Returns the parts of the tier's full isolation that this backend does not provide, one line each.
    async fn lacks(&self) -> Result<Vec<String>, Error> {
        Ok(Vec::new())
    }
}

/// The ability to pause sandboxes: their processes are suspended, and their memory is kept.
#[async_trait::async_trait]
pub trait Pausing: Send + Sync {
    /// Suspends all processes of a sandbox. On failure, no process stays suspended. Does nothing if the
    /// sandbox is already paused.
    async fn pause(&self, id: &SandboxId) -> Result<(), Error>;

    /// Resumes all processes of a sandbox. Does nothing if the sandbox is running.
    async fn resume(&self, id: &SandboxId) -> Result<(), Error>;
}
