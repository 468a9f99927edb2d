//! Writes a sandbox's limits to the files of its cgroups.

use std::path::Path;

use api::defence;
use api::limits::Limits;

use super::Hierarchy;
use crate::files;
use crate::{Error, Tier, tables};

/// Memory for the guest and the kernel, on top of the limit for user code. A resident guest needs 1 MiB. Its
/// page tables, its sockets and a full spool buffer need a few MiB more, and a guest that unpacks layers also
/// needs memory for the decompressor's window.
const GUEST_MEMORY_BYTES: u64 = 64 << 20;
/// Memory for a user-space kernel itself; a fresh one uses about 50 MiB.
const KERNEL_MEMORY_BYTES: u64 = 96 << 20;
/// Limit for socket buffers: an eighth of the memory limit, within these bounds. Version 1 counts socket
/// buffers separately from memory, and version 2 counts them as memory. One busy connection needs about a
/// megabyte.
const SOCKETS_SHARE: u64 = 8;
const SOCKETS_BYTES_MAX: u64 = 64 << 20;
const SOCKETS_BYTES_MIN: u64 = 1 << 20;
/// Period of the CPU limit: the kernel's default.
const PERIOD_US: u64 = 100_000;

/// Writes the limits of one controller to the sandbox's cgroup and to its child `user`.
pub(super) fn apply(
    hierarchy: &Hierarchy,
    controller: &str,
    sandbox: &Path,
    limits: &Limits,
    tier: Tier,
) -> Result<(), Error> {
    let user = sandbox.join("user");
    let limits = &Limits {
        pids: defence::limit(limits.pids, "C-01"),
        memory_bytes: defence::limit(limits.memory_bytes, "C-04"),
        ..*limits
    };
    if controller == "memory" && !hierarchy.unified {
        write_if_there(&sandbox.join("memory.use_hierarchy"), "1")?;
    }
    match (controller, tier) {
        ("memory", Tier::Container) => {
            memory(hierarchy, sandbox, limits.memory_bytes + GUEST_MEMORY_BYTES)?;
            memory(hierarchy, &user, limits.memory_bytes)?;
            sockets(hierarchy, &user, limits)?;
            write_if_there(&user.join("memory.oom.group"), "1").map(|_| ())
        }
        ("memory", Tier::UserKernel) => {
            memory(hierarchy, sandbox, limits.memory_bytes + KERNEL_MEMORY_BYTES)?;
            write_if_there(&sandbox.join("memory.oom.group"), "1").map(|_| ())
        }
        ("pids", Tier::Container) => {
            files::write(&sandbox.join("pids.max"), &tables::tasks_of(limits, tier).to_string())?;
            files::write(&user.join("pids.max"), &limits.pids.to_string())
        }
        ("pids", Tier::UserKernel) => {
            files::write(&sandbox.join("pids.max"), &tables::tasks_of(limits, tier).to_string())
        }
        // The guest has only one thread, so the whole sandbox can use at most one core more than user code
        // may use.
        (_, Tier::Container) => cpu(hierarchy, &user, limits.cpu_millis),
        (_, Tier::UserKernel) => cpu(hierarchy, sandbox, limits.cpu_millis),
    }
}

/// Limits memory, and ensures that a sandbox cannot use swap to exceed the limit.
fn memory(hierarchy: &Hierarchy, group: &Path, bytes: u64) -> Result<(), Error> {
    let text = bytes.to_string();
    let without_swap = if hierarchy.unified {
        files::write(&group.join("memory.max"), &text)?;
        write_if_there(&group.join("memory.zswap.max"), "0")?;
        write_if_there(&group.join("memory.swap.max"), "0")?
    } else {
        files::write(&group.join("memory.limit_in_bytes"), &text)?;
        write_if_there(&group.join("memory.memsw.limit_in_bytes"), &text)?
            || write_if_there(&group.join("memory.swappiness"), "0")?
    };
    if !without_swap && host_has_swap()? {
        return Err(Error::Unsupported {
            what: "memory_bytes",
            why: "this kernel does not account swap per cgroup and the machine has swap; boot with `swapaccount=1` or \
                  turn swap off"
                .into(),
        });
    }
    Ok(())
}

/// Limits TCP and UDP socket buffers, unless the memory limit already includes them.
fn sockets(hierarchy: &Hierarchy, group: &Path, limits: &Limits) -> Result<(), Error> {
    if hierarchy.unified || defence::is_off("C-32") {
        return Ok(());
    }
    if write_if_there(&group.join("memory.kmem.tcp.limit_in_bytes"), &sockets_bytes(limits).to_string())? {
        return Ok(());
    }
    Err(Error::Unsupported {
        what: "memory_bytes",
        why: "this kernel does not count socket buffers per cgroup (memory.kmem.tcp.limit_in_bytes); boot with cgroup version 2 \
              (`systemd.unified_cgroup_hierarchy=1`)"
            .into(),
    })
}

/// Returns the limit for the buffers of all sockets of a sandbox.
fn sockets_bytes(limits: &Limits) -> u64 {
    (limits.memory_bytes / SOCKETS_SHARE).clamp(SOCKETS_BYTES_MIN, SOCKETS_BYTES_MAX)
}

fn cpu(hierarchy: &Hierarchy, group: &Path, millis: u64) -> Result<(), Error> {
    let quota = millis * PERIOD_US / 1000;
    if hierarchy.unified {
        return files::write(&group.join("cpu.max"), &format!("{quota} {PERIOD_US}"));
    }
    if !group.join("cpu.cfs_quota_us").exists() {
        return Err(Error::Unsupported {
            what: "cpu_millis",
            why: "this kernel has no bandwidth control (CONFIG_CFS_BANDWIDTH); boot a kernel that has it"
                .into(),
        });
    }
    files::write(&group.join("cpu.cfs_period_us"), &PERIOD_US.to_string())?;
    files::write(&group.join("cpu.cfs_quota_us"), &quota.to_string())
}

/// Writes to a file that does not exist on every kernel. Returns true if the file exists.
fn write_if_there(path: &Path, value: &str) -> Result<bool, Error> {
    if !path.exists() {
        return Ok(false);
    }
    files::write(path, value).map(|()| true)
}

fn host_has_swap() -> Result<bool, Error> {
    // The file has a header line, followed by one line for each swap device. A kernel without swap support
    // does not have this file.
    Ok(files::read_if_there(Path::new("/proc/swaps"))?.is_some_and(|text| text.lines().count() > 1))
}
