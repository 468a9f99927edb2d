//! What a sandbox may use: defaults, hard maxima, and the bounds of the wire itself.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorCode, Layer, Ran, Retry};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Bytes kept of each output stream of an exec, unless it asks for another number (requirement A2.10).
pub const OUTPUT_BYTES: u64 = 10_000_000;
/// Below this the head and the tail hold no useful text.
pub const OUTPUT_BYTES_MIN: u64 = 4096;
/// The reserved blocks of the smallest disk hold the two streams of a few such execs.
pub const OUTPUT_BYTES_MAX: u64 = 100_000_000;
/// The wall-clock limit of a run unless another is asked for (requirement A2.08).
pub const DEADLINE_MS: u64 = 60_000;
/// No sandbox lives longer, so no exec can (requirement A1.05: 24 h).
pub const DEADLINE_MS_MAX: u64 = 24 * 3_600_000;
/// The time between SIGTERM and SIGKILL unless another is asked for.
pub const GRACE_MS: u64 = 500;
/// A sandbox is stopped when nobody has called and no exec has run for so long, unless it asks for another time.
pub const IDLE_MS: u64 = 300_000;
/// Shorter, and a slow network would end sandboxes between two calls.
pub const IDLE_MS_MIN: u64 = 1000;
/// Labels of one sandbox.
pub const LABELS_MAX: usize = 32;
/// The name and the value of one label together.
pub const LABEL_BYTES_MAX: usize = 512;
/// Longer graces would hold up the end of a sandbox.
pub const GRACE_MS_MAX: u64 = 60_000;
/// Linux gives argv and env a quarter of the stack limit (8 MiB); leave room for the rest.
pub const ARGV_ENV_BYTES_MAX: usize = 2_000_000;
/// `MAX_ARG_STRLEN` of Linux, less its NUL.
pub const WORD_BYTES_MAX: usize = 131_071;
/// What a listing shows of an argv.
pub const ARGV_SHOWN_BYTES: usize = 256;
/// The last uid of a sandbox's range that an exec may have. Above it are that of the interpreter, and `nobody`.
pub const UID_MAX: u32 = 65_532;
/// The user of the interpreter that runs of code are forked from: nobody else has it, so nobody can signal it.
pub const INTERPRETER_UID: u32 = UID_MAX + 1;
/// The user that code runs as (requirement A2.03).
pub const UID: u32 = 1000;
/// Its name (requirement A2.03).
pub const USER: &str = "sandbox";
/// The code of one run (requirement A3.07).
pub const CODE_BYTES_MAX: usize = 5_000_000;
/// The code of one cell of a shell, which reads it byte by byte.
pub const SHELL_CELL_BYTES_MAX: usize = 262_144;
/// Packages that a run may name.
pub const REQUIREMENTS_MAX: usize = 100;
/// One of them.
pub const REQUIREMENT_BYTES_MAX: usize = 512;
/// How long an installation may take, unless another time is asked for (requirement A4.07).
pub const INSTALL_MS: u64 = 120_000;
/// The most that may be asked for (requirement A4.07).
pub const INSTALL_MS_MAX: u64 = 300_000;
/// What one line of results may hold: a picture of several megapixels in base64.
pub const RESULT_BYTES_MAX: usize = 8_100_000;
/// What all results of one exec may hold together.
pub const RESULTS_BYTES_MAX: u64 = 32_000_000;
/// Contexts of one sandbox at once: each is a process.
pub const CONTEXTS_MAX: usize = 32;
/// From a reason to end a cell to its end, at most: interrupted, interrupted again, killed.
pub const CELL_GRACE_MS: u64 = 4000;
/// Cells that may wait for their turn in one context.
pub const CELLS_WAITING_MAX: usize = 100;
/// Execs a guest keeps in its table, ended ones included; the oldest ended ones make room.
pub const EXECS_MAX: usize = 1024;
/// Terminals of one sandbox at once. Each is memory of the kernel, and on a container's host there are 4096 for all.
pub const TERMINALS_MAX: usize = 32;
/// The extra groups by which the processes of execs are told apart: the guest gives each exec one of them, the node
/// checks that a user process has exactly one. Above every group of an image, below `nogroup`.
pub const EXEC_GROUPS: RangeInclusive<u32> = 20_000..=59_999;
/// The largest JSON body that guest and node take from each other: an exec with a full argv and env, escaped.
pub const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Width of the range of user ids that each sandbox has to itself.
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
    /// Whether nothing is said.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// All limits: those that are said, and the others from there.
    #[must_use]
    pub fn over(&self, others: Limits) -> Limits {
        let memory_bytes = self.memory_bytes.unwrap_or(others.memory_bytes);
        Limits {
            memory_bytes,
            cpu_millis: self.cpu_millis.unwrap_or(others.cpu_millis),
            pids: self.pids.unwrap_or(others.pids),
            disk_bytes: self.disk_bytes.unwrap_or(others.disk_bytes),
            disk_inodes: self.disk_inodes.unwrap_or(others.disk_inodes),
            // Memory that was chosen smaller has a smaller part for it.
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
    /// The most that may be asked for (requirement A2.09).
    pub const MAX: Self = Self {
        memory_bytes: 4 * GIB,
        cpu_millis: 4000,
        pids: 1024,
        disk_bytes: 64 * GIB,
        disk_inodes: 4_194_304,
        tmp_bytes: 4 * GIB,
        ttl_ms: DEADLINE_MS_MAX,
    };

    /// The least with which a sandbox starts at all.
    pub const MIN: Self = Self {
        memory_bytes: 16 * MIB,
        cpu_millis: 10,
        pids: 4,
        disk_bytes: 64 * MIB,
        disk_inodes: 256,
        tmp_bytes: MIB,
        ttl_ms: 1000,
    };

    /// Refuses a limit above its maximum or below its minimum, by name.
    ///
    /// # Errors
    /// `limit_exceeded` for the first such limit.
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
        // What lies in /tmp stays charged after a memory kill: more, and no later exec would have room to clear it.
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

/// The error for a value above its hard maximum.
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
        // Requirements A2.05, A2.06, A2.07, A2.09, A2.10.
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
        // Requirement A2.09.
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
