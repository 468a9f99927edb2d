//! The isolation that the guest sets up around itself if no runtime does so: in a workspace that a third
//! party created and in which the guest is root. The node writes this description next to the guest's
//! program.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Walls of one sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Walls {
    /// Memory limit of user code, including everything that is charged to it.
    pub memory_bytes: u64,
    /// Processor time limit of user code per second, in thousandths of a core.
    pub cpu_millis: u64,
    /// Maximum number of processes and threads of user code.
    pub pids: u64,
    /// Maximum number of open files per process.
    pub open_files: u64,
    /// Capabilities that process 1 keeps, as a bit mask.
    pub capabilities: u64,
    /// In-memory disks: mount points, and mount options with the size.
    pub disks: BTreeMap<String, String>,
    /// Mount options of the spool, the in-memory disk with the output that process 1 keeps. It also contains
    /// the socket of process 1.
    pub spool: String,
    /// Maximum number of open terminals.
    pub terminals: usize,
    /// Files that each sandbox has its own version of: paths and contents.
    pub files: BTreeMap<String, String>,
    /// Paths of the machine that are hidden.
    pub masked: Vec<String>,
    /// Paths of the machine that are read-only.
    pub read_only: Vec<String>,
    /// System call filters as BPF programs. A call must be allowed by all of them.
    pub filters: Vec<Vec<Instruction>>,
}

/// Instruction of a filter: code, jump if true, jump if false, and a value.
pub type Instruction = (u16, u8, u8, u32);

/// Resource usage of user code, as counted by its cgroups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// Current memory usage.
    pub memory_bytes: u64,
    /// Peak memory usage.
    pub memory_peak_bytes: u64,
    /// Current memory usage of the whole workspace.
    pub workspace_memory_bytes: u64,
    /// Number of processes and threads.
    pub pids: u64,
    /// Number of OOM kills.
    pub oom_kills: u64,
    /// Number of times that a process could not be created because of the limit.
    pub pids_refused: u64,
    /// Processor time of the whole workspace, in microseconds.
    pub cpu_us: u64,
}
