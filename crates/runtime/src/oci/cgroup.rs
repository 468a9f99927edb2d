//! A sandbox's cgroups, on hosts with version 1, version 2, or both.
//!
//! ```text
//! bellglass/<id>            the whole sandbox; its limit is slightly above the limit of user code
//!   guest                 created by the OCI runtime: process 1
//!   user                  user code: memory, pids, cpu; the guest moves its children here through a descriptor
//!   runtime               the OCI runtime's own command while it runs, so that processes left by
//!                         a killed server are found (only in the hierarchy of `pids`)
//! ```
//!
//! Version 2 does not allow processes in a cgroup whose children have controllers, so the guest, user code
//! and the OCI runtime are in three sibling cgroups. A user-space kernel runs the guest and user code in one
//! process. For this tier, the limits apply to `bellglass/<id>`, and `user` does not exist.

mod freeze;
mod limits;
mod tree;

use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use api::SandboxId;
use api::limits::Limits;
use rustix::event::EventfdFlags;
use rustix::process::Signal;

use crate::files::{self, failed};
use crate::oci::process::{self, ENDING, ProcessHandle};
use crate::{Error, Tier, Usage, tables};

/// Name of the cgroup that contains all sandboxes' cgroups.
const PARENT: &str = "bellglass";
/// The controllers that enforce limits, and `cpuacct`, which counts CPU time if version 1 mounts it
/// separately from `cpu`.
const CONTROLLERS: [&str; 4] = ["memory", "pids", "cpu", "cpuacct"];
/// Timeout for removing a cgroup, which is busy until the kernel has released its processes.
const REMOVAL: Duration = Duration::from_secs(2);
/// Polling interval for conditions that become true within milliseconds.
const PAUSE: Duration = Duration::from_millis(1);

/// One mounted cgroup hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hierarchy {
    /// The hierarchy's mount point.
    root: PathBuf,
    /// True if this is the version 2 hierarchy.
    unified: bool,
    /// The controllers of the hierarchy.
    controllers: Vec<String>,
}

/// The cgroup hierarchies of this machine.
#[derive(Clone, Debug)]
pub(crate) struct Cgroups {
    hierarchies: Vec<Hierarchy>,
}

/// Descriptors that let the guest move its children into the cgroup `user` and detect OOM kills.
#[derive(Debug)]
pub(crate) struct Handout {
    /// The files through which processes enter the cgroup `user`, one for each hierarchy.
    pub procs: Vec<OwnedFd>,
    /// The file that contains the number of OOM kills.
    pub oom_count: Option<OwnedFd>,
    /// An eventfd that becomes readable on an OOM kill. It is not needed in version 2, where the file that
    /// contains the number can be polled.
    pub oom_event: Option<OwnedFd>,
}

impl Cgroups {
    /// Finds the cgroup hierarchies of this machine.
    pub(crate) fn find() -> Result<Self, Error> {
        let mounts = files::read(Path::new("/proc/self/mounts"))?;
        let hierarchies = tree::hierarchies(&mounts, |root| {
            files::read_if_there(&root.join("cgroup.controllers")).ok().flatten().unwrap_or_default()
        });
        Ok(Self { hierarchies })
    }

    /// Returns the path of the cgroup where the OCI runtime puts process 1.
    pub(crate) fn guest_path(id: &SandboxId) -> String {
        format!("/{PARENT}/{id}/guest")
    }

    /// Creates the sandbox's cgroups with their limits, except `guest`, which the OCI runtime creates.
    pub(crate) fn make(&self, id: &SandboxId, limits: &Limits, tier: Tier) -> Result<(), Error> {
        for hierarchy in self.used() {
            let parent = hierarchy.root.join(PARENT);
            let sandbox = parent.join(id.as_str());
            hierarchy.delegate(&hierarchy.root)?;
            files::directory(&parent, 0o755)?;
            hierarchy.delegate(&parent)?;
            if hierarchy.has("pids") {
                // This limits all sandboxes together, so that the host can always create processes,
                // regardless of the limits of individual sandboxes.
                files::write(&parent.join("pids.max"), &tables::tasks_of_all().to_string())?;
            }
            files::directory(&sandbox, 0o755)?;
            hierarchy.delegate(&sandbox)?;
            if tier == Tier::Container {
                files::directory(&sandbox.join("user"), 0o755)?;
            }
            if hierarchy.has("pids") {
                files::directory(&sandbox.join("runtime"), 0o755)?;
            }
        }
        for (controller, limit) in [("memory", "memory_bytes"), ("pids", "pids"), ("cpu", "cpu_millis")] {
            let hierarchy = self.controller(controller).ok_or_else(|| Error::Unsupported {
                what: limit,
                why: format!(
                    "the cgroup controller `{controller}` is not mounted; mount it or enable it at boot"
                ),
            })?;
            limits::apply(hierarchy, controller, &hierarchy.of(id), limits, tier)?;
        }
        Ok(())
    }

    /// Opens the file through which the OCI runtime's own command enters its cgroup.
    pub(crate) fn runtime_procs(&self, id: &SandboxId) -> Result<OwnedFd, Error> {
        let hierarchy = self.controller("pids").ok_or_else(|| Error::NotFound(id.clone()))?;
        open(&hierarchy.of(id).join("runtime").join(hierarchy.entrance()), true)
    }

    /// Opens the descriptors for the guest.
    pub(crate) fn handout(&self, id: &SandboxId, tier: Tier) -> Result<Handout, Error> {
        if tier == Tier::UserKernel {
            return Ok(Handout { procs: Vec::new(), oom_count: None, oom_event: None });
        }
        let procs = self
            .used()
            .map(|hierarchy| open(&hierarchy.of(id).join("user").join(hierarchy.entrance()), true))
            .collect::<Result<_, _>>()?;
        let memory = self.controller("memory").ok_or_else(|| Error::NotFound(id.clone()))?;
        let user = memory.of(id).join("user");
        if memory.unified {
            return Ok(Handout {
                procs,
                oom_count: Some(open(&user.join("memory.events"), false)?),
                oom_event: None,
            });
        }
        let count = open(&user.join("memory.oom_control"), false)?;
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::System { act: "create an eventfd".into(), source: error.into() })?;
        let registration = format!("{} {}", event.as_raw_fd(), count.as_raw_fd());
        files::write(&user.join("cgroup.event_control"), &registration)?;
        Ok(Handout { procs, oom_count: Some(count), oom_event: Some(event) })
    }

    /// Returns the sandbox's current usage. Cgroups that no longer exist count as zero.
    pub(crate) fn usage(&self, id: &SandboxId, tier: Tier) -> Result<Usage, Error> {
        let mut usage = Usage::default();
        let charged = match tier {
            Tier::Container => "user",
            Tier::UserKernel => "",
        };
        if let Some(memory) = self.controller("memory") {
            let sandbox = memory.of(id);
            let (now, peak, kills) = match memory.unified {
                true => ("memory.current", "memory.peak", "memory.events"),
                false => ("memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control"),
            };
            usage.memory_bytes = number(&sandbox.join(charged).join(now))?;
            usage.memory_peak_bytes = number(&sandbox.join(charged).join(peak))?;
            usage.sandbox_memory_bytes = number(&sandbox.join(now))?;
            if !memory.unified {
                // Version 1 counts socket buffers separately.
                let sockets = number(&sandbox.join(charged).join("memory.kmem.tcp.usage_in_bytes"))?;
                usage.memory_bytes += sockets;
                usage.sandbox_memory_bytes += sockets;
                usage.memory_peak_bytes = usage.memory_peak_bytes.max(usage.memory_bytes);
            }
            // Version 1 counts an OOM kill only in the killed process's cgroup. Version 2 also counts it in
            // all ancestors of that cgroup.
            let places: &[&str] = if memory.unified { &[""] } else { &["", "guest", "user"] };
            for place in places {
                usage.oom_kills += field(&sandbox.join(place).join(kills), "oom_kill")?;
            }
        }
        if let Some(pids) = self.controller("pids") {
            let group = pids.of(id).join(charged);
            usage.pids = number(&group.join("pids.current"))?;
            usage.pids_refused = field(&group.join("pids.events"), "max")?;
        }
        usage.cpu_us = match (self.controller("cpu"), self.controller("cpuacct")) {
            (Some(cpu), _) if cpu.unified => field(&cpu.of(id).join("cpu.stat"), "usage_usec")?,
            (_, Some(cpuacct)) => number(&cpuacct.of(id).join("cpuacct.usage"))? / 1000,
            (_, None) => 0,
        };
        Ok(usage)
    }

    /// Returns the processes in all cgroups of the sandbox.
    pub(crate) fn processes(&self, id: &SandboxId) -> Result<Vec<i32>, Error> {
        let mut pids = Vec::new();
        for hierarchy in &self.hierarchies {
            tree::processes(&hierarchy.of(id), tree::DEPTH_MAX, &mut pids)?;
        }
        pids.sort_unstable();
        pids.dedup();
        Ok(pids)
    }

    /// Returns true if a process is in a cgroup of the sandbox.
    pub(crate) fn holds(id: &SandboxId, pid: i32) -> Result<bool, Error> {
        let text = files::read_if_there(Path::new(&format!("/proc/{pid}/cgroup")))?.unwrap_or_default();
        Ok(tree::names(&text, &format!("/{PARENT}/{id}")))
    }

    /// Returns the sandbox whose cgroups contain a process.
    pub(crate) fn sandbox_of(pid: i32) -> Option<SandboxId> {
        let text = files::read_if_there(Path::new(&format!("/proc/{pid}/cgroup"))).ok()??;
        tree::sandbox(&text, &format!("/{PARENT}/"))
    }

    /// Kills all of the sandbox's processes, reaps the processes that this process adopted, and waits until
    /// all have ended.
    pub(crate) fn kill_all(&self, id: &SandboxId) -> Result<(), Error> {
        let deadline = Instant::now() + ENDING;
        let mut inherited = Vec::new();
        loop {
            for hierarchy in self.hierarchies.iter().filter(|hierarchy| hierarchy.unified) {
                let kill = hierarchy.of(id).join("cgroup.kill");
                if kill.exists() {
                    files::write(&kill, "1")
                        .or_else(|error| if kill.exists() { Err(error) } else { Ok(()) })?;
                }
            }
            let pids = self.processes(id)?;
            for pid in &pids {
                // Open the process first, and check its cgroup afterwards: if the pid was reused after it was
                // read, the new process is not in the cgroup.
                if let Some(process) = ProcessHandle::open(*pid)?
                    && Self::holds(id, *pid)?
                {
                    process.signal(Signal::KILL)?;
                    inherited.push(*pid);
                }
            }
            inherited.sort_unstable();
            inherited.dedup();
            inherited.retain(|pid| !process::reap(*pid));
            if pids.is_empty() && inherited.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(Error::Deadline { what: "killing the processes of a sandbox", after: ENDING });
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Removes the sandbox's cgroups from every hierarchy, because OCI runtimes create cgroups in each
    /// hierarchy and do not remove the parents.
    pub(crate) fn remove(&self, id: &SandboxId) -> Result<(), Error> {
        let deadline = Instant::now() + REMOVAL;
        for hierarchy in &self.hierarchies {
            let path = hierarchy.of(id);
            while let Err(error) = tree::remove(&path, tree::DEPTH_MAX) {
                if error.raw_os_error() != Some(libc::EBUSY) || Instant::now() > deadline {
                    return Err(failed("remove cgroup", &path, error));
                }
                std::thread::sleep(PAUSE);
            }
        }
        Ok(())
    }

    fn controller(&self, name: &str) -> Option<&Hierarchy> {
        self.hierarchies.iter().find(|hierarchy| hierarchy.has(name))
    }

    /// Returns the hierarchies that have at least one controller that this module uses.
    fn used(&self) -> impl Iterator<Item = &Hierarchy> {
        self.hierarchies.iter().filter(|hierarchy| CONTROLLERS.iter().any(|name| hierarchy.has(name)))
    }
}

impl Hierarchy {
    fn has(&self, controller: &str) -> bool {
        self.controllers.iter().any(|name| name == controller)
    }

    /// Returns the name of the file to which a single-threaded process writes 0 to enter a cgroup. In version
    /// 1 this is `tasks`: moving only one thread avoids a machine-wide lock on all processes, which the
    /// kernel takes milliseconds to acquire.
    fn entrance(&self) -> &'static str {
        if self.unified { "cgroup.procs" } else { "tasks" }
    }

    fn of(&self, id: &SandboxId) -> PathBuf {
        self.root.join(PARENT).join(id.as_str())
    }

    /// Enables the controllers that enforce limits for the children of a version 2 cgroup.
    fn delegate(&self, group: &Path) -> Result<(), Error> {
        if !self.unified {
            return Ok(());
        }
        let path = group.join("cgroup.subtree_control");
        let enabled = files::read(&path)?;
        for (controller, limit) in [("memory", "memory_bytes"), ("pids", "pids"), ("cpu", "cpu_millis")] {
            if !self.has(controller) || enabled.split_whitespace().any(|name| name == controller) {
                continue;
            }
            std::fs::write(&path, format!("+{controller}")).map_err(|error| Error::Unsupported {
                what: limit,
                why: format!(
                    "cannot enable the cgroup controller `{controller}` in {}: {error}; make sure that no process \
                     is directly in this cgroup, or configure the service manager to delegate the controller",
                    group.display()
                ),
            })?;
        }
        Ok(())
    }
}

fn open(path: &Path, to_write: bool) -> Result<OwnedFd, Error> {
    OpenOptions::new()
        .read(!to_write)
        .write(to_write)
        .open(path)
        .map(OwnedFd::from)
        .map_err(|source| failed("open", path, source))
}

/// Reads a number from a file, or returns 0 if the file does not exist.
fn number(path: &Path) -> Result<u64, Error> {
    Ok(files::read_if_there(path)?.and_then(|text| text.trim().parse().ok()).unwrap_or(0))
}

/// Returns the number on the line that begins with `name`, or 0 if there is no such line.
fn field(path: &Path, name: &str) -> Result<u64, Error> {
    let text = files::read_if_there(path)?.unwrap_or_default();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok());
    Ok(value.unwrap_or(0))
}
