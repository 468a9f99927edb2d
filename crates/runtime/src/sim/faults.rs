//! Faults that tests can inject into a simulated machine. By default there are none.

use std::time::Duration;

/// Faults of one machine, which outlive the machine's processes. Each counter is decremented when its fault
/// occurs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Duration of a start after the sandbox has been recorded. Simulates the work of creating disks and
    /// mounts and running the OCI runtime.
    pub start_delay: Duration,
    /// Selects the start that fails after its delay and leaves nothing behind: 1 is the next start, 2 the one
    /// after it. Simulates an OCI runtime that fails.
    pub start_error_at: Option<u32>,
    /// Number of starts that fail at once with [`crate::Error::Capacity`]. Simulates a full disk.
    pub full_starts: u32,
    /// Duration of a stop after process 1 has died. Simulates waiting for cgroups to empty and for devices to
    /// detach.
    pub stop_delay: Duration,
    /// Number of stops of existing sandboxes that fail with [`crate::Error::System`] after process 1 was
    /// killed. Simulates a cgroup that stays busy. The sandbox stays listed as dead until a stop succeeds.
    pub stop_errors: u32,
    /// Number of waits that fail with [`crate::Error::System`]. Simulates a machine that is out of file
    /// descriptors.
    pub wait_errors: u32,
    /// If true, guests do not connect, not even after a disconnect. Simulates a guest that hangs before its
    /// first byte.
    pub silent_guest: bool,
    /// Differences that [`crate::Inspect::posture`] reports for every sandbox. Simulates a host with weaker
    /// isolation than promised.
    pub posture_differences: Vec<String>,
}

impl Faults {
    /// Returns true if this start fails.
    pub(super) fn fails_start(&mut self) -> bool {
        let at = self.start_error_at.take();
        // 0 means that no fault is requested.
        self.start_error_at = at.and_then(|at| at.checked_sub(1)).filter(|left| *left > 0);
        at == Some(1)
    }

    /// Returns true if this start fails because the disk is full.
    pub(super) fn fills_start(&mut self) -> bool {
        spend(&mut self.full_starts)
    }

    /// Returns true if this wait fails.
    pub(super) fn fails_wait(&mut self) -> bool {
        spend(&mut self.wait_errors)
    }

    /// Returns true if this stop fails.
    pub(super) fn fails_stop(&mut self) -> bool {
        spend(&mut self.stop_errors)
    }
}

fn spend(left: &mut u32) -> bool {
    let any = *left > 0;
    *left = left.saturating_sub(1);
    any
}
