//! Kernel tables that all sandboxes of a machine share: how large they are, and how much of each one sandbox may have.
//!
//! Most tables are counted for each user id or charged to memory, and need nothing here: each sandbox has ids and a limit of its own.
//! Processes and open files have one total for the machine. A sandbox may reach only a part of each, whatever its limits say, so that no
//! single one uses them up; that many together do not is what admission looks at.

use std::path::Path;

use api::limits::Limits;

use crate::Tier;

/// Threads of the guest and of the OCI runtime while it starts it.
const GUEST_TASKS: u64 = 64;
/// Threads of a user-space kernel and its file server.
const KERNEL_TASKS: u64 = 1024;
/// Host tasks that a user-space kernel makes for one task of its own: a stub process and its threads.
const STUB_TASKS: u64 = 4;
/// Processes that stay for the host: the kernel's own threads, services, and a way to log in.
pub const TASKS_RESERVE: u64 = 2048;
/// Open files that stay for the host.
pub const FILES_RESERVE: u64 = 16_384;
/// Open files of one process; what servers and build tools usually get.
const OPEN_FILES: u64 = 65_536;
/// The least that programs are written for.
const OPEN_FILES_MIN: u64 = 1024;
/// All processes of one sandbox together may have one in so many of the machine's open files.
const FILES_SHARE: u64 = 8;

/// How large a table is, and how much of it is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Entries in use.
    pub used: u64,
    /// Entries there can be.
    pub total: u64,
}

impl Table {
    /// Entries that can still be had.
    pub fn free(self) -> u64 {
        self.total.saturating_sub(self.used)
    }
}

/// Processes and threads of the whole machine.
pub fn tasks() -> Table {
    let [pids, threads] = ["kernel/pid_max", "kernel/threads-max"].map(setting);
    // The fourth word of the load average is `running/all`.
    let load = read(Path::new("/proc/loadavg"));
    let used = load.split_whitespace().nth(3).and_then(|word| word.split_once('/')?.1.parse().ok());
    Table { used: used.unwrap_or(0), total: pids.unwrap_or(u64::MAX).min(threads.unwrap_or(u64::MAX)) }
}

/// Open files of the whole machine.
pub fn files() -> Table {
    let text = read(Path::new("/proc/sys/fs/file-nr"));
    let used = text.split_whitespace().next().and_then(|word| word.parse().ok());
    Table { used: used.unwrap_or(0), total: setting("fs/file-max").unwrap_or(u64::MAX) }
}

/// File locks of the whole machine, if this kernel tells. There is no total: Linux does not limit them.
pub fn locks() -> Option<u64> {
    let text = read(Path::new("/proc/slabinfo"));
    let line = text.lines().find_map(|line| line.strip_prefix("file_lock_cache "));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
}

/// Tasks of the host that one sandbox can have at most.
pub fn tasks_of(limits: &Limits, tier: Tier) -> u64 {
    match tier {
        Tier::Container => limits.pids + GUEST_TASKS,
        Tier::UserKernel => limits.pids * STUB_TASKS + KERNEL_TASKS,
    }
}

/// Tasks that all sandboxes together can have.
pub fn tasks_of_all() -> u64 {
    let total = tasks().total;
    total.saturating_sub(TASKS_RESERVE).max(total / 2)
}

/// Open files that one process of a sandbox can have.
pub fn open_files(limits: &Limits) -> u64 {
    open_files_within(limits, files().total)
}

/// Open files that one sandbox can have at most.
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

/// A file of the kernel's; one that is not there has no words.
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
