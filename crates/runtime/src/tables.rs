//! Kernel tables that all sandboxes on a machine share: the sizes of the tables, and the share that one
//! sandbox may use.
//!
//! Most tables are limited per user ID or charged to memory and need no handling here, because each sandbox
//! has its own IDs and memory limit. Processes and open files are limited only for the machine as a whole. A
//! sandbox may use only a share of each, regardless of its own limits, so that no single sandbox can exhaust
//! them. Admission ensures that all sandboxes together cannot exhaust them either.

use std::path::Path;

use api::limits::Limits;

use crate::Tier;

/// Number of tasks allowed for the guest, and for the OCI runtime while it starts the guest.
const GUEST_TASKS: u64 = 64;
/// Number of tasks allowed for a user-space kernel and its file server.
const KERNEL_TASKS: u64 = 1024;
/// Number of host tasks that a user-space kernel creates for each of its own tasks: a stub process and its
/// threads.
const STUB_TASKS: u64 = 4;
/// Number of tasks reserved for the host: the kernel's own threads, services, and a login.
pub const TASKS_RESERVE: u64 = 2048;
/// Number of open files reserved for the host.
pub const FILES_RESERVE: u64 = 16_384;
/// Highest limit on open files per process. This is the usual limit for servers and build tools.
const OPEN_FILES: u64 = 65_536;
/// Lowest limit on open files per process. This is the traditional default, which programs rely on.
const OPEN_FILES_MIN: u64 = 1024;
/// Divisor of the machine's maximum number of open files: all of a sandbox's processes together may open an
/// eighth of that number.
const FILES_SHARE: u64 = 8;

/// Size and usage of a kernel table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableUsage {
    /// Number of used entries.
    pub used: u64,
    /// Maximum number of entries.
    pub total: u64,
}

impl TableUsage {
    /// Returns the number of free entries.
    pub fn free(self) -> u64 {
        self.total.saturating_sub(self.used)
    }
}

/// Returns the size and usage of the machine-wide table of processes and threads.
pub fn tasks() -> TableUsage {
    let [pids, threads] = ["kernel/pid_max", "kernel/threads-max"].map(setting);
    // The fourth word of `/proc/loadavg` contains the numbers of running tasks and of all tasks, as
    // `running/all`.
    let load = read(Path::new("/proc/loadavg"));
    let used = load.split_whitespace().nth(3).and_then(|word| word.split_once('/')?.1.parse().ok());
    TableUsage { used: used.unwrap_or(0), total: pids.unwrap_or(u64::MAX).min(threads.unwrap_or(u64::MAX)) }
}

/// Returns the size and usage of the machine-wide table of open files.
pub fn files() -> TableUsage {
    let text = read(Path::new("/proc/sys/fs/file-nr"));
    let used = text.split_whitespace().next().and_then(|word| word.parse().ok());
    TableUsage { used: used.unwrap_or(0), total: setting("fs/file-max").unwrap_or(u64::MAX) }
}

/// Returns the number of file locks on the whole machine, if this kernel exposes it. There is no maximum,
/// because Linux does not limit file locks.
pub fn locks() -> Option<u64> {
    let text = read(Path::new("/proc/slabinfo"));
    let line = text.lines().find_map(|line| line.strip_prefix("file_lock_cache "));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
}

/// Returns the maximum number of host tasks that one sandbox can have.
pub fn tasks_of(limits: &Limits, tier: Tier) -> u64 {
    match tier {
        Tier::Container => limits.pids + GUEST_TASKS,
        Tier::UserKernel => limits.pids * STUB_TASKS + KERNEL_TASKS,
    }
}

/// Returns the maximum number of host tasks that all sandboxes together can have.
pub fn tasks_of_all() -> u64 {
    let total = tasks().total;
    total.saturating_sub(TASKS_RESERVE).max(total / 2)
}

/// Returns the maximum number of open files for each process of a sandbox.
pub fn open_files(limits: &Limits) -> u64 {
    open_files_within(limits, files().total)
}

/// Returns the maximum number of files that all of a sandbox's processes together can have open.
pub fn files_of(limits: &Limits) -> u64 {
    open_files(limits).saturating_mul(limits.pids)
}

fn open_files_within(limits: &Limits, total: u64) -> u64 {
    if api::defence::is_off("C-36") {
        return OPEN_FILES;
    }
    (total / FILES_SHARE / limits.pids.max(1)).clamp(OPEN_FILES_MIN, OPEN_FILES)
}

fn setting(name: &str) -> Option<u64> {
    read(&Path::new("/proc/sys").join(name)).trim().parse().ok()
}

/// Reads one of the kernel's files, or returns an empty string if it cannot be read.
fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_sandbox_reaches_a_part_of_the_open_files() {
        let limits = Limits::default();
        assert_eq!(open_files_within(&limits, u64::MAX), OPEN_FILES);
        let total = 2_400_000;
        assert!(open_files_within(&limits, total) * limits.pids <= total / FILES_SHARE);
        assert_eq!(open_files_within(&Limits { pids: 1024, ..limits }, 100_000), OPEN_FILES_MIN);
    }

    #[test]
    fn the_machines_tables_are_read() {
        assert!(tasks().used > 0 && tasks().total > tasks().used, "{:?}", tasks());
        assert!(files().used > 0 && files().total > files().used, "{:?}", files());
    }

    #[test]
    fn a_user_space_kernel_has_more_tasks_than_the_code_in_it() {
        let limits = Limits { pids: 64, ..Limits::default() };
        assert_eq!(tasks_of(&limits, Tier::Container), 128);
        assert_eq!(tasks_of(&limits, Tier::UserKernel), 1280);
    }
}
