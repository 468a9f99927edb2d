//! What the guest is told to put around itself, where nobody else does: in a workspace that somebody else has made and whose root it
//! is. Written by the node, beside the guest's program.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The walls of one sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Walls {
    /// Memory of user code, with everything charged to it.
    pub memory_bytes: u64,
    /// Processor time of user code per second, in thousandths of a core.
    pub cpu_millis: u64,
    /// Processes and threads of user code.
    pub pids: u64,
    /// What a process may have open at once.
    pub open_files: u64,
    /// The capabilities that process 1 keeps, as bits.
    pub capabilities: u64,
    /// Disks in memory: where, and as which options Linux is told how large.
    pub disks: BTreeMap<String, String>,
    /// The same for what process 1 keeps of output, which is also where it is met.
    pub spool: String,
    /// Terminals that may be open at once.
    pub terminals: usize,
    /// Files that every sandbox has of its own.
    pub files: BTreeMap<String, String>,
    /// What of the machine is hidden.
    pub masked: Vec<String>,
    /// What of it may be read and not be written.
    pub read_only: Vec<String>,
    /// The filters of system calls, as Linux takes them: the instructions of each, all of which have to allow a call.
    pub filters: Vec<Vec<Instruction>>,
}

/// One instruction of a filter: code, jump if true, jump if false, and a value.
pub type Instruction = (u16, u8, u8, u32);

/// What user code uses, as its cgroups count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// Memory now.
    pub memory_bytes: u64,
    /// The most memory ever.
    pub memory_peak_bytes: u64,
    /// Memory of the whole workspace.
    pub workspace_memory_bytes: u64,
    /// Processes and threads.
    pub pids: u64,
    /// Times the kernel killed for memory.
    pub oom_kills: u64,
    /// Times a process could not be made because of the limit.
    pub pids_refused: u64,
    /// Processor time of the whole workspace, in microseconds.
    pub cpu_us: u64,
}
