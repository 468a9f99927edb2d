//! Isolation that the guest sets up around itself if no runtime does so. This happens in a workspace that a
//! third party, such as Daytona, created and where the guest is root. The node writes this description next
//! to the guest's executable.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Isolation that the guest of one sandbox sets up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Walls {
    /// Memory limit of user code in bytes. It applies to all memory that the kernel charges to user code.
    pub memory_bytes: u64,
    /// Processor time that user code may use per second, in thousandths of a core.
    pub cpu_millis: u64,
    /// Maximum number of processes and threads of user code.
    pub pids: u64,
    /// Maximum number of open files per process.
    pub open_files: u64,
    /// Capabilities that process 1 keeps, as a bit mask.
    pub capabilities: u64,
    /// In-memory disks, as a map from mount points to mount options. The options include the size.
    pub disks: BTreeMap<String, String>,
    /// Mount options of the spool: the in-memory disk with process 1's socket and the output that process 1
    /// keeps.
    pub spool: String,
    /// Maximum number of open terminals.
    pub terminals: usize,
    /// Files that the guest replaces, such as `/etc/hosts`, as a map from paths to contents.
    pub files: BTreeMap<String, String>,
    /// Paths of the machine that are hidden in the sandbox.
    pub masked: Vec<String>,
    /// Paths of the machine that are read-only in the sandbox.
    pub read_only: Vec<String>,
    /// System call filters as BPF programs. A system call is allowed only if all filters allow it.
    pub filters: Vec<Vec<Instruction>>,
}

/// BPF instruction: operation code, jump offset if true, jump offset if false, and operand.
pub type Instruction = (u16, u8, u8, u32);

/// Resource usage of user code, as counted by its cgroups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// Current memory usage in bytes.
    pub memory_bytes: u64,
    /// Peak memory usage in bytes.
    pub memory_peak_bytes: u64,
    /// Current memory usage of the whole workspace in bytes.
    pub workspace_memory_bytes: u64,
    /// Number of processes and threads.
    pub pids: u64,
    /// Number of OOM kills.
    pub oom_kills: u64,
    /// Number of times that a process could not be created because the process limit was reached.
    pub pids_refused: u64,
    /// Processor time of the whole workspace, in microseconds.
    pub cpu_us: u64,
}
