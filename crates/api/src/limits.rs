//! Resource limits of a sandbox (defaults and hard maxima), and bounds of the wire protocol.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorCode, Layer, Ran, Retry};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Default number of bytes kept of each output stream of an exec (requirement A2.10).
pub const OUTPUT_BYTES: u64 = 10_000_000;
/// Minimum of `output_bytes`. With a smaller value, the kept head and tail of the output would be too short
/// to be useful.
pub const OUTPUT_BYTES_MIN: u64 = 4096;
/// Maximum of `output_bytes`. The default disk can hold both streams of several such execs.
pub const OUTPUT_BYTES_MAX: u64 = 100_000_000;
/// Default wall-clock limit of a run (requirement A2.08).
pub const DEADLINE_MS: u64 = 60_000;
/// Maximum wall-clock limit of an exec: the maximum lifetime of a sandbox (requirement A1.05: 24 h).
pub const DEADLINE_MS_MAX: u64 = 24 * 3_600_000;
/// Default time between SIGTERM and SIGKILL.
pub const GRACE_MS: u64 = 500;
/// Default idle timeout. After this time without a call or a running exec, a sandbox is stopped.
pub const IDLE_MS: u64 = 300_000;
/// Minimum idle timeout. With a shorter timeout, a slow network could cause a sandbox to be stopped between
/// two calls.
pub const IDLE_MS_MIN: u64 = 1000;
/// Maximum number of labels of one sandbox.
pub const LABELS_MAX: usize = 32;
/// Maximum total length of a label's name and value.
pub const LABEL_BYTES_MAX: usize = 512;
/// Maximum time between SIGTERM and SIGKILL. A longer grace period would delay stopping a sandbox for too
/// long.
pub const GRACE_MS_MAX: u64 = 60_000;
/// Maximum total size of argv and env. Linux limits them to a quarter of the stack limit (8 MiB), and this
/// maximum is slightly lower as a safety margin.
pub const ARGV_ENV_BYTES_MAX: usize = 2_000_000;
/// Maximum length of one argument: `MAX_ARG_STRLEN` of Linux without the terminating NUL.
pub const WORD_BYTES_MAX: usize = 131_071;
/// Maximum length of argv in listings, where a longer argv is truncated.
pub const ARGV_SHOWN_BYTES: usize = 256;
/// Maximum uid of an exec. The next two uids in a sandbox's range belong to the interpreter and to the user
/// `nobody`.
pub const UID_MAX: u32 = 65_532;
/// Uid of the interpreter from which runs of code are forked. Execs cannot use this uid, so user code cannot
/// send signals to the interpreter.
pub const INTERPRETER_UID: u32 = UID_MAX + 1;
/// Uid of user code (requirement A2.03).
pub const UID: u32 = 1000;
/// User name of user code (requirement A2.03).
pub const USER: &str = "sandbox";
/// Maximum size of the code of one run (requirement A3.07).
pub const CODE_BYTES_MAX: usize = 5_000_000;
/// Maximum size of the code of one cell in a Bash context. It is low because the shell reads the code byte by
/// byte.
pub const SHELL_CELL_BYTES_MAX: usize = 262_144;
/// Maximum number of packages that a run may require.
pub const REQUIREMENTS_MAX: usize = 100;
/// Maximum length of one requirement.
pub const REQUIREMENT_BYTES_MAX: usize = 512;
/// Default time limit of an installation (requirement A4.07).
pub const INSTALL_MS: u64 = 120_000;
/// Maximum time limit of an installation (requirement A4.07).
pub const INSTALL_MS_MAX: u64 = 300_000;
/// Maximum size of one line of results: enough for an image of several megapixels in base64.
pub const RESULT_BYTES_MAX: usize = 8_100_000;
/// Maximum total size of the results of one exec.
pub const RESULTS_BYTES_MAX: u64 = 32_000_000;
/// Maximum number of contexts of one sandbox at a time. Each context is a process.
pub const CONTEXTS_MAX: usize = 32;
/// Maximum time to stop a cell. The guest interrupts the cell twice before it kills the cell.
pub const CELL_GRACE_MS: u64 = 4000;
/// Maximum number of queued cells in one context.
pub const CELLS_WAITING_MAX: usize = 100;
/// Maximum number of execs that a guest lists, including execs that have ended. The oldest ended execs are
/// evicted first.
pub const EXECS_MAX: usize = 1024;
/// Maximum number of terminals of one sandbox at a time. Each terminal uses kernel memory, and a host has
/// only 4096 terminals for all its containers.
pub const TERMINALS_MAX: usize = 32;
/// Range of the supplementary groups that identify the processes of an exec. The guest assigns one group to
/// each exec, and the node checks that each user process has exactly one. The range is above all groups of an
/// image and below `nogroup`.
pub const EXEC_GROUPS: RangeInclusive<u32> = 20_000..=59_999;
/// Maximum size of a JSON body between guest and node: an exec with the maximum argv and env, after escaping.
pub const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Number of uids that are assigned to each sandbox.
pub const UID_RANGE: u32 = 65_536;

/// Resource limits of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Maximum memory charged to user code, in bytes: 16 MiB to 4 GiB. Default 512 MiB. There is no swap.
    pub memory_bytes: u64,
    /// Maximum processor time per second, in thousandths of a core: 10 to 4,000. Default 1,000.
    pub cpu_millis: u64,
    /// Maximum number of processes and threads of user code: 4 to 1,024. Default 128.
    pub pids: u64,
    /// Disk space in bytes for `/workspace`, the home directory and kept output together: 64 MiB to 64 GiB. Default 1 GiB.
    pub disk_bytes: u64,
    /// Maximum number of files and directories on the disk of the sandbox: 256 to 4,194,304. Default 65,536.
    pub disk_inodes: u64,
    /// Size of `/tmp` in bytes: 1 MiB to 4 GiB, at most half of `memory_bytes`. Default 64 MiB. Files in `/tmp` use memory. With 0, `/tmp`
    /// is a directory on the disk and counts towards `disk_bytes`.
    pub tmp_bytes: u64,
    /// Maximum lifetime in milliseconds: 1 second to 24 hours. Default 1 hour. The guest enforces this limit even if the server is not
    /// running.
    pub ttl_ms: u64,
}

/// Requested resource limits. Omitted limits come from the template or are the defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct WantedLimits {
    /// Maximum memory charged to user code, in bytes: 16 MiB to 4 GiB. There is no swap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Maximum processor time per second, in thousandths of a core: 10 to 4,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u64>,
    /// Maximum number of processes and threads of user code: 4 to 1,024.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
    /// Disk space in bytes for `/workspace`, the home directory and kept output together: 64 MiB to 64 GiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
    /// Maximum number of files and directories on the disk of the sandbox: 256 to 4,194,304.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_inodes: Option<u64>,
    /// Size of `/tmp` in bytes: 1 MiB to 4 GiB, at most half of `memory_bytes`. Files in `/tmp` use memory. With 0, `/tmp` is a directory
    /// on the disk and counts towards `disk_bytes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tmp_bytes: Option<u64>,
    /// Maximum lifetime in milliseconds: 1 second to 24 hours. The guest enforces this limit even if the server is not running.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
}

impl WantedLimits {
    /// Returns true if no limit is set.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Returns a complete set of limits: the limits that are set in `self`, and all others from `others`.
    #[must_use]
    pub fn over(&self, others: Limits) -> Limits {
        let memory_bytes = self.memory_bytes.unwrap_or(others.memory_bytes);
        Limits {
            memory_bytes,
            cpu_millis: self.cpu_millis.unwrap_or(others.cpu_millis),
            pids: self.pids.unwrap_or(others.pids),
            disk_bytes: self.disk_bytes.unwrap_or(others.disk_bytes),
            disk_inodes: self.disk_inodes.unwrap_or(others.disk_inodes),
            // If less memory is requested, the default size of /tmp is reduced as well, to at most half of
            // the memory.
            tmp_bytes: self.tmp_bytes.unwrap_or_else(|| others.tmp_bytes.min(memory_bytes / 2)),
            ttl_ms: self.ttl_ms.unwrap_or(others.ttl_ms),
        }
    }
}

impl From<Limits> for WantedLimits {
    fn from(all: Limits) -> Self {
        Self {
            memory_bytes: Some(all.memory_bytes),
            cpu_millis: Some(all.cpu_millis),
            pids: Some(all.pids),
            disk_bytes: Some(all.disk_bytes),
            disk_inodes: Some(all.disk_inodes),
            tmp_bytes: Some(all.tmp_bytes),
            ttl_ms: Some(all.ttl_ms),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_bytes: 512 * MIB,
            cpu_millis: 1000,
            pids: 128,
            disk_bytes: GIB,
            disk_inodes: 65_536,
            tmp_bytes: 64 * MIB,
            ttl_ms: 3_600_000,
        }
    }
}

impl Limits {
    /// Maximum values (requirement A2.09).
    pub const MAX: Self = Self {
        memory_bytes: 4 * GIB,
        cpu_millis: 4000,
        pids: 1024,
        disk_bytes: 64 * GIB,
        disk_inodes: 4_194_304,
        tmp_bytes: 4 * GIB,
        ttl_ms: DEADLINE_MS_MAX,
    };

    /// Minimum values that a sandbox needs to start.
    pub const MIN: Self = Self {
        memory_bytes: 16 * MIB,
        cpu_millis: 10,
        pids: 4,
        disk_bytes: 64 * MIB,
        disk_inodes: 256,
        tmp_bytes: MIB,
        ttl_ms: 1000,
    };

    /// Checks that each limit is within its minimum and maximum.
    ///
    /// # Errors
    /// Returns `limit_exceeded` if a limit is out of range. The error names the first such limit.
    pub fn check(&self) -> Result<(), Error> {
        let named = |limits: &Self| {
            [
                ("memory_bytes", limits.memory_bytes),
                ("cpu_millis", limits.cpu_millis),
                ("pids", limits.pids),
                ("disk_bytes", limits.disk_bytes),
                ("disk_inodes", limits.disk_inodes),
                ("tmp_bytes", limits.tmp_bytes),
                ("ttl_ms", limits.ttl_ms),
            ]
        };
        for (((name, value), (_, most)), (_, least)) in
            named(self).into_iter().zip(named(&Self::MAX)).zip(named(&Self::MIN))
        {
            if value > most {
                return Err(exceeded(name, value, most));
            }
            let on_disk = (name, value) == ("tmp_bytes", 0);
            if value < least && !on_disk {
                return Err(refused(
                    format!("{name} is {value}, the minimum is {least}"),
                    format!("Use {least} or more."),
                ));
            }
        }
        // Files in /tmp remain charged after an OOM kill. If they could use more than half of the memory,
        // later execs might not have enough memory to delete them.
        if self.tmp_bytes > self.memory_bytes / 2 {
            return Err(refused(
                format!(
                    "tmp_bytes is {}, which is more than half of memory_bytes ({})",
                    self.tmp_bytes, self.memory_bytes
                ),
                format!("Set tmp_bytes to {} or less, or increase memory_bytes.", self.memory_bytes / 2),
            ));
        }
        Ok(())
    }
}

/// Returns the error for a value above its hard maximum.
pub fn exceeded(name: &str, value: u64, most: u64) -> Error {
    refused(format!("{name} is {value}, the hard maximum is {most}"), format!("Use {most} or less."))
}

fn refused(message: String, fix: String) -> Error {
    let (code, layer) = (ErrorCode::LimitExceeded, Layer::Policy);
    Error { code, message, layer, ran: Ran::No, retry: Retry::Useless, fix }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_the_requirements() {
        // Covers requirements A2.05, A2.06, A2.07, A2.09 and A2.10.
        let limits = Limits::default();
        assert_eq!(limits.memory_bytes, 512 << 20);
        assert_eq!(limits.cpu_millis, 1000);
        assert_eq!(limits.tmp_bytes, 64 << 20);
        assert_eq!(limits.pids, 128);
        assert_eq!(limits.disk_bytes, 1 << 30);
        assert_eq!(OUTPUT_BYTES, 10_000_000);
        assert_eq!(limits.check(), Ok(()));
    }

    #[test]
    fn there_are_more_groups_than_execs_and_all_are_mapped() {
        assert!(
            EXEC_GROUPS.count() > EXECS_MAX,
            "a full table needs a group for each exec, and one for the next"
        );
        assert!(*EXEC_GROUPS.end() < UID_MAX && INTERPRETER_UID < UID_RANGE - 2);
    }

    #[test]
    fn a_limit_above_its_maximum_is_refused_by_name() {
        // Covers requirement A2.09.
        let limits = Limits { memory_bytes: Limits::MAX.memory_bytes + 1, ..Limits::default() };
        let error = limits.check().unwrap_err();
        assert_eq!(error.code, ErrorCode::LimitExceeded);
        assert!(error.message.contains("memory_bytes"), "{}", error.message);
        let limits = Limits { tmp_bytes: 257 << 20, ..Limits::default() };
        assert!(limits.check().unwrap_err().message.contains("tmp_bytes"));
        assert_eq!(Limits { tmp_bytes: 0, ..Limits::default() }.check(), Ok(()), "on the disk");
        let limits = Limits { pids: 0, ..Limits::default() };
        assert!(limits.check().unwrap_err().message.contains("pids"));
    }
}
