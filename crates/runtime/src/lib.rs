//! Isolation: the [`Runtime`] trait, its laws, and the backends.
//!
//! A runtime makes one sandbox out of a template's layers, with process 1 (the guest) inside and one byte channel
//! to it. It knows nothing of execs, files or outcomes: those are said on the channel.
//!
//! | module | holds |
//! |---|---|
//! | [`oci`] | any OCI runtime by its command line: `runc`, `runsc`, `youki` |
//! | [`engine`] | Docker and Podman, by the API that both serve |
//! | [`daytona`] | workspaces of a Daytona account, behind walls that the guest puts up |
//! | `sim` | a runtime in memory that isolates nothing, for tests; behind the feature of its name |
//! | [`tables`] | what the machine's kernel has of processes and open files, and how much of it one sandbox may have |
//! | [`laws`] | what every backend must keep, as a suite that runs on any of them |
//!
//! Invariants: everything a start acquires is written down before it is made, has a name derived from the sandbox
//! id, and is removed by [`Runtime::stop`] of any process that knows only the id. Nothing weaker than what the
//! spec asks for is ever started.

pub mod daytona;
pub mod engine;
mod files;
mod hand;
mod http;
pub mod laws;
pub mod oci;
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

/// How strong the wall around a sandbox is. The order is that of strength.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Namespaces, a uid range, seccomp, cgroups: the host's kernel serves the sandbox.
    Container,
    /// A kernel of its own in user space (gVisor) serves the sandbox.
    UserKernel,
}

/// What to start.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Directories that make up the root file system, the lowest first, with ids as in the image (0 is root).
    pub layers: Vec<PathBuf>,
    /// The name by which an engine knows the same root file system.
    pub image: String,
    /// What the sandbox may use.
    pub limits: Limits,
    /// What process 1 and the code inside may do.
    pub profile: Profile,
    /// The guest's executable on this machine: static, world-readable, executable.
    pub guest: PathBuf,
}

/// What process 1 and the code inside may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Runs code: the default posture.
    Run,
    /// The same for people and agents who install things: the root can be written too, within the sandbox's disk, by whoever may write
    /// there. Nobody in it is more than in [`Profile::Run`].
    Workstation,
    /// The same, where root of the sandbox's own user namespace may run commands too, with what installing packages takes.
    Rooted,
    /// Unpacks layers of an image and runs no code of anybody's: process 1 may also own files on behalf of the
    /// image's users. `done` are bound read-only at `/layers/0`, `/layers/1`, …, `target` writable at `/layers/target`.
    Unpack {
        /// Layers unpacked before, the lowest first.
        done: Vec<PathBuf>,
        /// The directory to fill.
        target: PathBuf,
    },
    /// Runs one step of a recipe: code as root of the sandbox's own user namespace, with what installing packages takes, and a
    /// writable root. What changes lies on the sandbox's disk and is bound read-only at `/.bellglass/upper`.
    Build,
}

impl Profile {
    /// Whether process 1 may own files on behalf of others.
    pub fn owns_files(&self) -> bool {
        match self {
            Self::Run | Self::Workstation => false,
            Self::Unpack { .. } | Self::Rooted | Self::Build => true,
        }
    }

    /// Whether the root can be written; what is written lies on the sandbox's disk.
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
    /// It ended by itself.
    Exited(i32),
    /// A signal ended it.
    Signaled(i32),
    /// It is gone, and nobody was there to be told how.
    Unknown,
}

/// What a sandbox uses now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Memory charged to user code.
    pub memory_bytes: u64,
    /// The most memory ever charged to user code.
    pub memory_peak_bytes: u64,
    /// Memory charged to the whole sandbox, guest and kernel memory included.
    pub sandbox_memory_bytes: u64,
    /// Processes and threads of user code (of the whole sandbox where the tier cannot tell them apart).
    pub pids: u64,
    /// Times the kernel killed for memory.
    pub oom_kills: u64,
    /// Times a process could not be made because of the limit.
    pub pids_refused: u64,
    /// Processor time used, in microseconds.
    pub cpu_us: u64,
}

/// One sandbox that has left traces on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub id: SandboxId,
    /// Whether a living process (this one or another) has it in hand.
    pub owned: bool,
    /// Whether its process 1 lives.
    pub alive: bool,
}

/// The sandbox that uses too much of a kernel resource for which Linux has no limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Culprit {
    /// Its name.
    pub id: SandboxId,
    /// What it used, for people.
    pub what: String,
}

/// Why isolation failed.
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
        /// The limit or part, by name.
        what: &'static str,
        /// What is missing, ending with what to install or change.
        why: String,
    },
    /// What isolates is not there, or does not answer.
    #[error("{what}: {why}")]
    Unavailable {
        /// What there is not.
        what: String,
        /// Why, as far as can be told.
        why: String,
        /// What to do.
        fix: String,
    },
    /// The machine has no room.
    #[error("no room for {what}: {why}")]
    Capacity {
        /// What ran out.
        what: &'static str,
        /// How much is there and how much was asked for.
        why: String,
    },
    /// A command of the OCI runtime or of the system failed.
    #[error("`{argv}` failed with {status}: {stderr}")]
    Command {
        /// The command line.
        argv: String,
        /// How it ended.
        status: String,
        /// The last lines it wrote to standard error.
        stderr: String,
    },
    /// A system call failed.
    #[error("cannot {act}")]
    System {
        /// The act and the thing.
        act: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The dialler is not process 1, or does not speak the protocol.
    #[error("rejected the guest of sandbox {id}: {why}")]
    Impostor {
        /// The sandbox.
        id: SandboxId,
        /// What was wrong.
        why: String,
    },
    /// The sandbox ended before or while it was asked.
    #[error("sandbox {0} has ended")]
    Ended(SandboxId),
    /// The wait reached its deadline.
    #[error("{what} timed out after {after:?}")]
    Deadline {
        /// What was waited for.
        what: &'static str,
        /// The deadline.
        after: Duration,
    },
}

/// An error's message and its causes on one line.
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

/// Has the C library keep two pools of memory instead of eight for each core. The threads on which starts and stops block
/// come and go, each would fill a pool of its own, and a server would slowly grow by what lies idle in them.
pub fn keep_few_pools() {
    #[cfg(target_env = "gnu")]
    // SAFETY: changes a number of the allocator's; before any other thread is there.
    let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, 2) };
}

/// The memory that this machine has.
pub fn machine_memory_bytes() -> u64 {
    let machine = rustix::system::sysinfo();
    machine.totalram.saturating_mul(u64::from(machine.mem_unit))
}

/// One way to isolate. Implementations are cheap to share; every method may be called again after any failure.
#[async_trait::async_trait]
pub trait Runtime: Send + Sync {
    /// The name people use for it: `runc`, `runsc`.
    fn name(&self) -> &str;

    /// The strength of its wall.
    fn tier(&self) -> Tier;

    /// Whether it knows a root file system by the name of an image, and not by the directories of its layers.
    fn takes_images(&self) -> bool {
        false
    }

    /// Whether process 1 is within the limits of user code, so that using up memory can end it too.
    fn shares_limits(&self) -> bool {
        self.tier() == Tier::UserKernel
    }

    /// Whether sandboxes may be made before anybody asks for them: not where each is paid for.
    fn makes_ahead(&self) -> bool {
        true
    }

    /// Whether it has a root file system of that name.
    async fn has_image(&self, _image: &str) -> Result<bool, Error> {
        Ok(false)
    }

    /// These limits, with what is larger than this backend can hold cut down to what it can: what somebody gets who has not
    /// asked for a number. Who has asked for more is refused by [`Runtime::start`].
    fn within(&self, limits: Limits) -> Limits {
        limits
    }

    /// What the default posture of its tier has and this backend has not, in one line each.
    async fn lacks(&self) -> Result<Vec<String>, Error> {
        Ok(Vec::new())
    }

    /// Starts a sandbox. Afterwards process 1 runs (it may not have dialled yet), all limits hold, and the sandbox is
    /// listed. If it fails nothing is left. A second start of the same id is [`Error::Exists`] and harms nothing.
    async fn start(&self, id: &SandboxId, spec: &Spec) -> Result<(), Error>;

    /// The next connection that process 1 dials, greeted. Called again after a connection broke, it gives the next
    /// one; called in a new process, it takes the sandbox over from a dead one.
    async fn connect(&self, id: &SandboxId, within: Duration) -> Result<UnixStream, Error>;

    /// Waits until process 1 is gone. After the end it answers at once. An unknown id is [`Error::NotFound`].
    async fn wait(&self, id: &SandboxId) -> Result<Exit, Error>;

    /// Ends a sandbox, with `grace` for its processes after a SIGTERM to process 1, and removes everything of it:
    /// processes, cgroups, mounts, loop device, namespaces, directory, uid range, socket. An unknown id is success.
    async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<(), Error>;

    /// How this backend pauses sandboxes; `None` if it cannot.
    fn pausing(&self) -> Option<&dyn Pausing> {
        None
    }

    /// All sandboxes that have left traces, those of dead processes and half-made ones included.
    async fn list(&self) -> Result<Vec<Listed>, Error>;

    /// What a sandbox uses now.
    async fn usage(&self, id: &SandboxId) -> Result<Usage, Error>;

    /// The sandbox to end because it uses too much of a kernel resource that has no limit. Cheap while there is none.
    async fn culprit(&self) -> Result<Option<Culprit>, Error> {
        Ok(None)
    }

    /// What can be seen from outside of the privileges of process 1 (of the user-space kernel that runs it),
    /// compared with what the tier promises. The differences, one line each; none is what a start wants.
    async fn posture(&self, id: &SandboxId) -> Result<(Posture, Vec<String>), Error>;
}

/// Suspends the processes of sandboxes. Their memory stays where it is.
#[async_trait::async_trait]
pub trait Pausing: Send + Sync {
    /// Suspends all processes of a sandbox. If it fails, none is suspended. Pausing a paused sandbox does nothing.
    async fn pause(&self, id: &SandboxId) -> Result<(), Error>;

    /// Lets the processes of a sandbox run again. Resuming a running sandbox does nothing.
    async fn resume(&self, id: &SandboxId) -> Result<(), Error>;
}
