//! Decides whether this machine has capacity for one more sandbox, before anything is created.
//!
//! Memory is overcommitted: most sandboxes use a hundredth of their limit, and each limit is enforced
//! regardless of the usage of other sandboxes. The check therefore compares the memory that is free now with
//! the memory that starting sandboxes are about to use. Disks are not overcommitted: their blocks are
//! allocated when the sandbox starts. Processes and open files are overcommitted like memory: the machine has
//! one table for each, and a sandbox uses far fewer entries than it is allowed to.

use std::path::Path;

use api::limits::Limits;
use runtime::Tier;
use runtime::tables::{self, FILES_RESERVE, TASKS_RESERVE, TableUsage};

/// Memory that a starting sandbox, in any tier, will use but that the machine's own figures do not show yet.
/// For example, gVisor uses 60 MiB of resident memory.
const START_MEMORY_BYTES: u64 = 64 << 20;

/// Number of files that a sandbox needs in the data directory. Its directory, with a bundle, a disk, sockets
/// and records, uses about 30.
const START_INODES: u64 = 64;
/// Number of inodes reserved for everything else, such as the store, logs, and layers that are being
/// unpacked.
const INODES_RESERVE: u64 = 1024;
/// Number of tasks that a starting sandbox will use but that the machine's own figures do not show yet. They
/// are threads of the OCI runtime and the guest.
const START_TASKS: u64 = 16;

/// Capacity limits and retention times that the operator sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum number of live sandboxes.
    pub sandboxes_max: u32,
    /// Memory that admission keeps free.
    pub memory_reserve_bytes: u64,
    /// Disk space that admission keeps free.
    pub disk_reserve_bytes: u64,
    /// Retention time of artifacts; 0 disables artifacts.
    pub artifact_retention_ms: u64,
    /// Time after which a paused sandbox is stopped.
    pub paused_max_ms: u64,
    /// Minimum number of pre-warmed sandboxes for each kind in demand; 0 disables the pool.
    pub pool_ready: u32,
    /// Maximum total memory of all pre-warmed sandboxes.
    pub pool_memory_bytes: u64,
}

/// The resources that are available on the machine now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Number of sandboxes that have not ended, excluding pre-warmed ones.
    pub live: u32,
    /// Number of starting sandboxes, including pre-warmed ones, whose memory and disk are not allocated yet.
    pub starting: u32,
    /// Total size of the disks that are not allocated yet.
    pub starting_disk_bytes: u64,
    /// Free memory.
    pub memory_free_bytes: u64,
    /// Free disk space.
    pub disk_free_bytes: u64,
    /// Number of free inodes in the file system.
    pub inodes_free: u64,
    /// Usage of the machine's process table.
    pub tasks: TableUsage,
    /// Usage of the machine's open-file table.
    pub files: TableUsage,
}

/// The resource that is running short, and the figures behind the refusal, for an error message.
pub type ResourceShortage = (&'static str, String);

/// Checks that the machine has capacity for one more sandbox with these limits.
///
/// # Errors
/// Returns the first resource that is running short, if any is.
pub fn admit(bounds: &Bounds, room: &Room, limits: &Limits, tier: Tier) -> Result<(), ResourceShortage> {
    if room.live >= bounds.sandboxes_max {
        return Err((
            "another sandbox",
            format!("{} sandboxes are live, the maximum for this machine", room.live),
        ));
    }
    let coming = u64::from(room.starting + 1) * START_MEMORY_BYTES;
    let needed = bounds.memory_reserve_bytes.saturating_add(coming);
    if room.memory_free_bytes < needed {
        let free = room.memory_free_bytes;
        return Err((
            "memory",
            format!("{free} bytes are free, {needed} are required, including the reserve"),
        ));
    }
    let needed =
        bounds.disk_reserve_bytes.saturating_add(room.starting_disk_bytes).saturating_add(limits.disk_bytes);
    if room.disk_free_bytes < needed {
        let free = room.disk_free_bytes;
        return Err((
            "the sandbox's disk",
            format!("{free} bytes are free, {needed} are required, including the reserve"),
        ));
    }
    let needed = INODES_RESERVE.saturating_add(u64::from(room.starting + 1) * START_INODES);
    if room.inodes_free < needed && !api::defence::is_off("L-15") {
        let free = room.inodes_free;
        let why = format!(
            "{free} inodes are free on the file system, {needed} are required, including the reserve"
        );
        return Err(("the files of another sandbox", why));
    }
    let wanted = tables::tasks_of(limits, tier);
    let needed = wanted + u64::from(room.starting) * START_TASKS + TASKS_RESERVE;
    if room.tasks.free() < needed {
        return Err((
            "the sandbox's processes",
            short(&room.tasks, needed, "kernel.pid_max and kernel.threads-max"),
        ));
    }
    let needed = tables::files_of(limits).saturating_add(FILES_RESERVE);
    if room.files.free() < needed {
        return Err(("the sandbox's open files", short(&room.files, needed, "fs.file-max")));
    }
    Ok(())
}

fn short(table: &TableUsage, needed: u64, setting: &str) -> String {
    let TableUsage { used, total } = table;
    format!(
        "the machine uses {used} of {total}, and {needed} must be free; raise {setting} or request fewer `pids`"
    )
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            sandboxes_max: 1000,
            memory_reserve_bytes: 512 << 20,
            disk_reserve_bytes: 1 << 30,
            artifact_retention_ms: 7 * 24 * 3_600_000,
            paused_max_ms: 30 * 24 * 3_600_000,
            pool_ready: 1,
            pool_memory_bytes: 1 << 30,
        }
    }
}

/// Returns the memory of this machine that is available without swapping, or 0 if it cannot be read.
pub fn memory_free_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Returns the disk space that is available below this directory, or 0 if it cannot be read.
pub fn disk_free_bytes(data: &Path) -> u64 {
    rustix::fs::statvfs(data).map_or(0, |found| found.f_bavail.saturating_mul(found.f_frsize))
}

/// Returns the number of files that can still be created below this directory. A file system that does not
/// count inodes is treated as unlimited.
pub fn inodes_free(data: &Path) -> u64 {
    match rustix::fs::statvfs(data) {
        Ok(found) if found.f_files > 0 => found.f_favail,
        Ok(_) => u64::MAX,
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn roomy() -> Room {
        let table = TableUsage { used: 1000, total: 4 << 20 };
        Room {
            memory_free_bytes: 8 << 30,
            disk_free_bytes: 1 << 40,
            inodes_free: 1 << 20,
            tasks: table,
            files: TableUsage { total: u64::MAX, ..table },
            ..Room::default()
        }
    }

    #[test]
    fn what_is_short_is_named() {
        let (bounds, limits, tier) = (Bounds::default(), Limits::default(), Tier::Container);
        assert_eq!(admit(&bounds, &roomy(), &limits, tier), Ok(()));
        let full = Room { live: 1000, ..roomy() };
        assert_eq!(admit(&bounds, &full, &limits, tier).unwrap_err().0, "another sandbox");
        let tight = Room { memory_free_bytes: 512 << 20, ..roomy() };
        assert_eq!(admit(&bounds, &tight, &limits, tier).unwrap_err().0, "memory");
        let small = Room { disk_free_bytes: 3 << 29, ..roomy() };
        assert_eq!(admit(&bounds, &small, &limits, tier).unwrap_err().0, "the sandbox's disk");
        let files = Room { inodes_free: INODES_RESERVE, ..roomy() };
        let (what, why) = admit(&bounds, &files, &limits, tier).unwrap_err();
        assert!(what.contains("files") && why.contains("1024 inodes are free"), "{what}: {why}");
        let crowded = Room { tasks: TableUsage { used: 32_000, total: 32_768 }, ..roomy() };
        let (what, why) = admit(&bounds, &crowded, &limits, tier).unwrap_err();
        assert!(what == "the sandbox's processes" && why.contains("kernel.pid_max"), "{what}: {why}");
        let open = Room { files: TableUsage { used: u64::MAX - 5, total: u64::MAX }, ..roomy() };
        assert_eq!(admit(&bounds, &open, &limits, tier).unwrap_err().0, "the sandbox's open files");
    }

    #[test]
    fn a_user_space_kernel_needs_room_for_its_own_processes() {
        let (bounds, limits) = (Bounds::default(), Limits { pids: 1024, ..Limits::default() });
        let room = Room { tasks: TableUsage { used: 28_000, total: 32_768 }, ..roomy() };
        assert_eq!(admit(&bounds, &room, &limits, Tier::Container), Ok(()));
        assert_eq!(
            admit(&bounds, &room, &limits, Tier::UserKernel).unwrap_err().0,
            "the sandbox's processes"
        );
    }

    proptest! {
        #[test]
        fn the_reserve_is_never_promised(starting in 0_u32..100, memory in 0_u64..(16 << 30), disk in 0_u64..(64 << 30)) {
            let (bounds, limits) = (Bounds::default(), Limits::default());
            let starting_disk_bytes = u64::from(starting) * limits.disk_bytes;
            let room = Room { live: starting, starting, starting_disk_bytes, memory_free_bytes: memory, disk_free_bytes: disk, ..roomy() };
            if admit(&bounds, &room, &limits, Tier::Container).is_ok() {
                prop_assert!(memory - u64::from(starting + 1) * START_MEMORY_BYTES >= bounds.memory_reserve_bytes);
                prop_assert!(disk - starting_disk_bytes - limits.disk_bytes >= bounds.disk_reserve_bytes);
            }
        }
    }
}
