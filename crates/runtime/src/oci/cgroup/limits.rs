//! A sandbox's limits as what is written to which file of its cgroups.

use std::path::Path;

use api::limits::Limits;

use super::Hierarchy;
use crate::files;
use crate::{Error, Tier, tables};

/// What the guest and the kernel may use beside user code: a resident guest takes 1 MiB, its page tables, sockets and
/// a full spool buffer a few more, and an unpacking one its decompressor's window.
const GUEST_MEMORY_BYTES: u64 = 64 << 20;
/// What a user-space kernel needs for itself: a fresh one takes about 50 MiB.
const KERNEL_MEMORY_BYTES: u64 = 96 << 20;
/// Buffers of sockets, as a part of memory, and at most and at least. Version 1 counts them beside memory, version 2 as memory. A
/// megabyte is what one busy connection wants.
const SOCKETS_SHARE: u64 = 8;
const SOCKETS_BYTES_MAX: u64 = 64 << 20;
const SOCKETS_BYTES_MIN: u64 = 1 << 20;
/// The span over which processor time is limited: the kernel's own default.
const PERIOD_US: u64 = 100_000;

/// Writes the limits of one controller to the sandbox's cgroup and to `user` in it.
pub(super) fn apply(
    hierarchy: &Hierarchy,
    controller: &str,
    sandbox: &Path,
    (limits, tier): (&Limits, Tier),
) -> Result<(), Error> {
    let user = sandbox.join("user");
    match (controller, tier) {
        ("memory", Tier::Container) => {
            if !hierarchy.unified {
                write_if_there(&sandbox.join("memory.use_hierarchy"), "1")?;
            }
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
        // The guest has one thread, so user code's limit and one core bound the sandbox.
        (_, Tier::Container) => cpu(hierarchy, &user, limits.cpu_millis),
        (_, Tier::UserKernel) => cpu(hierarchy, sandbox, limits.cpu_millis),
    }
}

/// Limits memory, and makes sure that swap is no way round the limit.
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

/// Limits the buffers of TCP and UDP where memory does not.
fn sockets(hierarchy: &Hierarchy, group: &Path, limits: &Limits) -> Result<(), Error> {
    if hierarchy.unified || api::defence::is_off("C-32") {
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

/// How much the buffers of all sockets of a sandbox may take.
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

/// Writes to a file that not every kernel has; says whether it was there.
fn write_if_there(path: &Path, value: &str) -> Result<bool, Error> {
    if !path.exists() {
        return Ok(false);
    }
    files::write(path, value).map(|()| true)
}

fn host_has_swap() -> Result<bool, Error> {
    // One line of headings, then one for each swap device. A kernel without swap has no such file.
    Ok(files::read_if_there(Path::new("/proc/swaps"))?.is_some_and(|text| text.lines().count() > 1))
}
