//! The confinement that every backend applies in its own format: capabilities, hidden paths, and limits on
//! processes and mounts.

use api::limits::{Limits, TERMINALS_MAX};
use rustix::process::Resource;
use serde_json::{Value, json};

use crate::{Tier, probe, tables};

/// Maximum number of queued signals and timers for all of a sandbox's processes together. Each signal or
/// timer takes a little kernel memory, and programs that use real-time signals need only a few.
const SIGNALS: u64 = 1024;
/// Maximum amount of locked memory, which cannot be swapped out. The kernel had this default for a long time,
/// and it is enough for cryptographic keys.
const LOCKED_BYTES: u64 = 64 << 10;
/// Maximum size of `/dev/shm`. If it were larger, it would amount to a second `/tmp`.
const SHARED_BYTES: u64 = 64 << 20;
/// Divisor that limits `/dev/shm` to a quarter of the memory limit. The contents of `/dev/shm` still count
/// toward the memory limit after an OOM kill, so they must leave room for the next exec.
const SHARED_SHARE: u64 = 4;
/// Ratio of the sandbox's terminal limit to the number of terminals that the platform may open. The other
/// half of the limit is for programs that open their own terminals, such as `tmux` and `script`.
const TERMINALS_SHARE: usize = 2;
/// Maximum number of files in `/tmp`. Each file takes kernel memory.
const TMP_INODES_MAX: u64 = 65_536;
/// Page size of the kernel. `/tmp` may hold one file per page of its size, so that even one-page files fill
/// `/tmp` before they reach the file limit.
const PAGE_BYTES: u64 = 4096;

/// Capabilities that process 1 needs to start, group and kill user processes, and to empty their bounding
/// sets.
pub(crate) const RUNS: [&str; 4] = ["CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_SETPCAP"];

/// Paths in `/proc` and `/sys` that are hidden because they reveal information about the host. They show the
/// host's hardware, keys and timers, and counters and names through which one sandbox could observe or signal
/// another. For example, they list the disks of all sandboxes as block devices, with paths, sizes and
/// traffic.
pub(crate) const MASKED: [&str; 29] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/cmdline",
    "/proc/diskstats",
    "/proc/fs",
    "/proc/interrupts",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/key-users",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/modules",
    "/proc/partitions",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/softirqs",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/block",
    "/sys/class/bdi",
    "/sys/class/block",
    "/sys/dev/block",
    "/sys/devices/virtual/bdi",
    "/sys/devices/virtual/block",
    "/sys/devices/virtual/dmi",
    "/sys/devices/virtual/powercap",
    "/sys/devices/virtual/thermal",
    "/sys/firmware",
    "/sys/fs",
];

/// Paths that are mounted read-only.
pub(crate) const READ_ONLY: [&str; 4] = ["/proc/bus", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Returns the capabilities of process 1 as a bit mask.
pub(crate) fn capability_bits(owns_files: bool) -> u64 {
    // CAP_KILL 5, CAP_SETGID 6, CAP_SETUID 7, CAP_SETPCAP 8; CAP_CHOWN 0, DAC_OVERRIDE 1, FOWNER 3, FSETID 4.
    0b1_1110_0000 | if owns_files { 0b1_1011 } else { 0 }
}

/// Returns the maximum number of open terminals.
pub(crate) fn terminals() -> usize {
    if api::defence::is_off("C-37") { 2048 } else { TERMINALS_MAX * TERMINALS_SHARE }
}

/// Returns the maximum number of files in `/tmp`.
pub(crate) fn tmp_inodes(limits: &Limits) -> u64 {
    (limits.tmp_bytes / PAGE_BYTES).min(TMP_INODES_MAX)
}

/// Returns the size of `/dev/shm`.
pub(crate) fn shared_bytes(limits: &Limits) -> u64 {
    SHARED_BYTES.min(limits.memory_bytes / SHARED_SHARE)
}

/// Returns the resource limits of process 1 and its descendants, each with its name in the OCI configuration.
pub(crate) fn process_limits(limits: &Limits) -> [(Resource, &'static str, u64); 5] {
    [
        (Resource::Nofile, "RLIMIT_NOFILE", open_files(limits)),
        (Resource::Sigpending, "RLIMIT_SIGPENDING", signals()),
        (Resource::Msgqueue, "RLIMIT_MSGQUEUE", queue_bytes()),
        (Resource::Memlock, "RLIMIT_MEMLOCK", allowed(Resource::Memlock, LOCKED_BYTES)),
        (Resource::Core, "RLIMIT_CORE", 0),
    ]
}

/// Returns the maximum number of open files per process.
pub(crate) fn open_files(limits: &Limits) -> u64 {
    allowed(Resource::Nofile, tables::open_files(limits))
}

/// Returns the maximum number of queued signals.
pub(crate) fn signals() -> u64 {
    let wanted = if api::defence::is_off("C-34") { u64::MAX } else { SIGNALS };
    allowed(Resource::Sigpending, wanted)
}

/// Returns the maximum size of POSIX message queues. It is zero, because queues outlive their processes and
/// hardly any program uses them.
pub(crate) fn queue_bytes() -> u64 {
    if api::defence::is_off("C-35") { allowed(Resource::Msgqueue, u64::MAX) } else { 0 }
}

/// Returns the kernel settings for the sandbox's own network namespace. The socket buffers of connections
/// that have not been accepted yet are not charged to any cgroup, so buffers start small. They grow to up to
/// a megabyte when a program reads from the connection.
pub(crate) fn settings(tier: Tier) -> Value {
    match tier {
        Tier::Container if !api::defence::is_off("C-32") => {
            let buffers = ["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"].map(|name| (name, "4096 16384 1048576"));
            // If the backlog cannot be set, it stays at 4,096, which allows four times as many unaccepted
            // connections.
            let backlog = probe::has_backlog().then_some(("net.core.somaxconn", "1024"));
            buffers.into_iter().chain(backlog).collect()
        }
        // A user-space kernel has its own network stack, which uses the kernel's own memory.
        Tier::Container | Tier::UserKernel => json!({}),
    }
}

/// Returns the wanted limit, reduced to this process's hard limit if necessary. Without CAP_SYS_RESOURCE, a
/// higher value would make the start fail.
fn allowed(resource: Resource, wanted: u64) -> u64 {
    rustix::process::getrlimit(resource).maximum.map_or(wanted, |hard| hard.min(wanted))
}
