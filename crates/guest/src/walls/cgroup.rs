//! The resource limits of user code, set with cgroups below those of the workspace. The limits are the same
//! as in every other sandbox.
//!
//! In cgroup version 2, a group that contains processes cannot enable controllers for its subgroups. The
//! processes of the workspace are therefore first moved to a subgroup.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::walls::{Used, Walls};
use rustix::event::{EventfdFlags, eventfd};

use super::{Failed, mounts, step};
use crate::dial::Descriptors;

/// Mount point of the workspace's cgroups.
const ROOT: &str = "/sys/fs/cgroup";
/// Group of user code.
const GROUP: &str = "bellglass";
/// Group of all other processes, in cgroup version 2.
const OTHERS: &str = "bellglass-others";
const PERIOD_US: u64 = 100_000;
/// Maximum number of attempts to move the processes. New processes can appear during each attempt, and are
/// moved in the next.
const ROUNDS: u32 = 100;
const BETWEEN_ROUNDS: Duration = Duration::from_millis(10);

/// Descriptors for entering the cgroups of user code and for reading the OOM counter.
pub struct Entrances {
    cgroups: Vec<OwnedFd>,
    oom_count: OwnedFd,
    oom_event: Option<OwnedFd>,
}

/// Paths of the cgroups of user code.
struct Groups {
    memory: PathBuf,
    pids: PathBuf,
    cpu: PathBuf,
    unified: bool,
}

impl Entrances {
    /// Duplicates the descriptors, in the form that a node sends with its greeting.
    pub fn descriptors(&self) -> io::Result<Descriptors> {
        Ok(Descriptors {
            cgroups: self.cgroups.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?,
            oom_count: Some(self.oom_count.try_clone()?),
            oom_event: self.oom_event.as_ref().map(OwnedFd::try_clone).transpose()?,
        })
    }
}

impl Groups {
    fn find(root: &Path) -> Self {
        let unified = root.join("cgroup.controllers").exists();
        let at =
            |controller: &str| if unified { root.join(GROUP) } else { root.join(controller).join(GROUP) };
        Self { memory: at("memory"), pids: at("pids"), cpu: at("cpu"), unified }
    }

    fn all(&self) -> Vec<&Path> {
        if self.unified { vec![&self.memory] } else { vec![&self.memory, &self.pids, &self.cpu] }
    }
}

/// Creates the cgroups of user code, with their limits.
pub fn make(walls: &Walls) -> Result<Entrances, Failed> {
    let groups = Groups::find(Path::new(ROOT));
    limit(&groups, walls)?;
    let mut cgroups = Vec::new();
    for group in groups.all() {
        let path = group.join("cgroup.procs");
        cgroups.push(step("open a cgroup", File::options().write(true).open(path))?.into());
    }
    let counted = if groups.unified { "memory.events" } else { "memory.oom_control" };
    let oom_count: OwnedFd = step("open the OOM counter", File::open(groups.memory.join(counted)))?.into();
    let oom_event = match groups.unified {
        // In version 2, the kernel itself kills all user code, so no event is needed.
        true => None,
        false => Some(step("subscribe to OOM events", told(&groups.memory, &oom_count))?),
    };
    Ok(Entrances { cgroups, oom_count, oom_event })
}

fn limit(groups: &Groups, walls: &Walls) -> Result<(), Failed> {
    for group in groups.all() {
        let above = group.parent().unwrap_or(group);
        // The workspace's provider may have mounted the hierarchy read-only.
        if rustix::fs::statvfs(above)
            .is_ok_and(|found| found.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
        {
            mounts::make_writable(above)?;
        }
    }
    if groups.unified {
        move_others(Path::new(ROOT))?;
    }
    for group in groups.all() {
        match std::fs::create_dir(group) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(format!("cannot create the cgroup {}: {error}", group.display()));
            }
            _ => {}
        }
    }
    let (memory, quota) = (walls.memory_bytes.to_string(), walls.cpu_millis * PERIOD_US / 1000);
    if groups.unified {
        write(&groups.memory.join("memory.max"), &memory)?;
        write(&groups.memory.join("memory.oom.group"), "1")?;
        without_swap(&groups.memory, &[("memory.swap.max", "0")])?;
        write(&groups.cpu.join("cpu.max"), &format!("{quota} {PERIOD_US}"))?;
    } else {
        write(&groups.memory.join("memory.limit_in_bytes"), &memory)?;
        without_swap(
            &groups.memory,
            &[("memory.memsw.limit_in_bytes", &memory), ("memory.swappiness", "0")],
        )?;
        write(&groups.cpu.join("cpu.cfs_period_us"), &PERIOD_US.to_string())?;
        write(&groups.cpu.join("cpu.cfs_quota_us"), &quota.to_string())?;
    }
    write(&groups.pids.join("pids.max"), &walls.pids.to_string())
}

/// Disables swap for user code by writing to the first of these files that exists. If none exists, requires a
/// machine without swap.
fn without_swap(group: &Path, ways: &[(&str, &str)]) -> Result<(), Failed> {
    for (name, value) in ways {
        if group.join(name).exists() {
            return write(&group.join(name), value);
        }
    }
    match std::fs::read_to_string("/proc/swaps").is_ok_and(|text| text.lines().count() > 1) {
        true => Err("cannot limit swap: this machine has swap but does not account for it".into()),
        false => Ok(()),
    }
}

/// Moves the workspace's processes to a subgroup, and enables the controllers for all subgroups.
fn move_others(root: &Path) -> Result<(), Failed> {
    let others = root.join(OTHERS);
    match std::fs::create_dir(&others) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(format!("cannot create the cgroup {}: {error}", others.display()));
        }
        _ => {}
    }
    for _ in 0..ROUNDS {
        let here = step("read a cgroup", std::fs::read_to_string(root.join("cgroup.procs")))?;
        // The kernel shows 0 for a process that is not visible in this namespace. Writing it would move this
        // process instead.
        for pid in here.lines().filter(|pid| *pid != "0") {
            // Ignore errors: a process that has exited meanwhile does not need to be moved.
            let _ = std::fs::write(others.join("cgroup.procs"), pid);
        }
        match std::fs::write(root.join("cgroup.subtree_control"), "+memory +pids +cpu") {
            // A new process has appeared in the group meanwhile, so try again.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => std::thread::sleep(BETWEEN_ROUNDS),
            written => return step("enable cgroup controllers", written),
        }
    }
    Err("cannot move the processes of the workspace out of its cgroup".into())
}

/// Registers an event for OOM kills, in cgroup version 1. Returns its eventfd.
fn told(group: &Path, count: &OwnedFd) -> io::Result<OwnedFd> {
    use std::os::fd::AsRawFd as _;
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let words = format!("{} {}", event.as_fd().as_raw_fd(), count.as_raw_fd());
    std::fs::write(group.join("cgroup.event_control"), words)?;
    Ok(event)
}

fn write(path: &Path, value: &str) -> Result<(), Failed> {
    std::fs::write(path, value)
        .map_err(|error| format!("cannot write {value} to {}: {error}", path.display()))
}

/// Returns the resource usage of user code.
pub fn used() -> Used {
    let groups = Groups::find(Path::new(ROOT));
    let number = |path: PathBuf| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let field = |path: PathBuf, name: &str| {
        let text = std::fs::read_to_string(path).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        line.trim().parse::<u64>().ok()
    };
    let (memory, pids) = (&groups.memory, &groups.pids);
    let pids_now = number(pids.join("pids.current"));
    let refused = field(pids.join("pids.events"), "max");
    let all = memory.parent().unwrap_or(memory);
    let used = if groups.unified {
        [
            number(memory.join("memory.current")),
            number(all.join("memory.current")),
            number(memory.join("memory.peak")),
            field(memory.join("memory.events"), "oom_kill"),
            field(all.join("cpu.stat"), "usage_usec"),
        ]
    } else {
        [
            number(memory.join("memory.usage_in_bytes")),
            number(all.join("memory.usage_in_bytes")),
            number(memory.join("memory.max_usage_in_bytes")),
            field(memory.join("memory.oom_control"), "oom_kill"),
            number(Path::new(ROOT).join("cpuacct/cpuacct.usage")).map(|nanos| nanos / 1000),
        ]
    };
    let [memory_bytes, workspace_memory_bytes, memory_peak_bytes, oom_kills, cpu_us] =
        used.map(Option::unwrap_or_default);
    Used {
        memory_bytes,
        memory_peak_bytes,
        workspace_memory_bytes,
        oom_kills,
        cpu_us,
        pids: pids_now.unwrap_or_default(),
        pids_refused: refused.unwrap_or_default(),
    }
}
