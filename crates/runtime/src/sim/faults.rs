//! What goes wrong on a simulated machine, on demand. Without being asked for, nothing does.

use std::time::Duration;

/// The faults of one machine. They outlive its processes; each counter counts itself down.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// How long a start takes once the sandbox is written down: disks, mounts, the OCI runtime.
    pub start_delay: Duration,
    /// Which start from now on fails after its delay, leaving nothing; 1 is the next. Imitates an OCI runtime that refuses.
    pub start_error_at: Option<u32>,
    /// How many starts are refused at once with [`crate::Error::Capacity`]: a machine whose disk is full.
    pub full_starts: u32,
    /// How long a stop takes once process 1 is dead: cgroups that empty, devices that detach.
    pub stop_delay: Duration,
    /// How many stops of known sandboxes fail with [`crate::Error::System`] after process 1 was killed: a cgroup that
    /// stays busy. The sandbox stays listed, dead, until a stop succeeds.
    pub stop_errors: u32,
    /// How many waits for an end fail with [`crate::Error::System`]: a machine without descriptors.
    pub wait_errors: u32,
    /// Guests do not dial, those of connections that break included: a guest that hangs before its first word.
    pub silent_guest: bool,
    /// What [`crate::Runtime::posture`] finds wrong with every sandbox: a host whose isolation is not what was promised.
    pub posture_differences: Vec<String>,
}

impl Faults {
    /// Whether this start is the one that fails.
    pub(super) fn fails_start(&mut self) -> bool {
        let at = self.start_error_at.take();
        // At 0 none is asked for.
        self.start_error_at = at.and_then(|at| at.checked_sub(1)).filter(|left| *left > 0);
        at == Some(1)
    }

    /// Whether this start finds no room.
    pub(super) fn fills_start(&mut self) -> bool {
        spend(&mut self.full_starts)
    }

    /// Whether this wait fails.
    pub(super) fn fails_wait(&mut self) -> bool {
        spend(&mut self.wait_errors)
    }

    /// Whether this stop fails.
    pub(super) fn fails_stop(&mut self) -> bool {
        spend(&mut self.stop_errors)
    }
}

fn spend(left: &mut u32) -> bool {
    let any = *left > 0;
    *left = left.saturating_sub(1);
    any
}
