//! Whether this machine has room for one more, decided before anything is made.
//!
//! Memory is promised more than once: most sandboxes use a hundredth of their limit, and the limit of each holds whatever
//! the others do. So what counts is what the machine has free now, less what those being started are about to take.
//! Disks are promised once: their blocks are taken at the start.

use std::path::Path;

use api::limits::Limits;

/// What a sandbox takes until it is seen in the machine's own figures, in any tier (gVisor: 60 MiB resident).
const START_MEMORY_BYTES: u64 = 64 << 20;

/// What the operator holds back, and for how long what is kept is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Sandboxes at once.
    pub sandboxes_max: u32,
    /// Memory that stays free.
    pub memory_reserve_bytes: u64,
    /// Disk that stays free.
    pub disk_reserve_bytes: u64,
    /// How long artifacts are kept; 0 for not at all.
    pub artifact_retention_ms: u64,
    /// Sandboxes that are ready of each kind that is asked for; 0 for none of any.
    pub pool_ready: u32,
    /// Memory for all of those together.
    pub pool_memory_bytes: u64,
}

/// What there is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Sandboxes that are starting, running or stopping.
    pub live: u32,
    /// Of these, those whose memory and disk are not taken yet.
    pub starting: u32,
    /// The disks of those.
    pub starting_disk_bytes: u64,
    /// Memory that is free.
    pub memory_free_bytes: u64,
    /// Disk that is free.
    pub disk_free_bytes: u64,
}

/// What ran out, for an error's text: the thing, and how much there is of it.
pub type Refusal = (&'static str, String);

/// Whether one more with these limits may be started.
///
/// # Errors
/// What there is not enough of.
pub fn admit(bounds: &Bounds, room: &Room, limits: &Limits) -> Result<(), Refusal> {
    if room.live >= bounds.sandboxes_max {
        return Err(("one more sandbox", format!("{} live here, which is the most", room.live)));
    }
    let coming = u64::from(room.starting + 1) * START_MEMORY_BYTES;
    let needed = bounds.memory_reserve_bytes.saturating_add(coming);
    if room.memory_free_bytes < needed {
        let free = room.memory_free_bytes;
        return Err(("memory", format!("{free} bytes are free, {needed} must be, the reserve included")));
    }
    let needed =
        bounds.disk_reserve_bytes.saturating_add(room.starting_disk_bytes).saturating_add(limits.disk_bytes);
    if room.disk_free_bytes < needed {
        let free = room.disk_free_bytes;
        return Err(("its disk", format!("{free} bytes are free, {needed} must be, the reserve included")));
    }
    Ok(())
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            sandboxes_max: 1000,
            memory_reserve_bytes: 512 << 20,
            disk_reserve_bytes: 1 << 30,
            artifact_retention_ms: 7 * 24 * 3_600_000,
            pool_ready: 1,
            pool_memory_bytes: 1 << 30,
        }
    }
}

/// Memory of this machine that can be had without taking it from anybody.
pub fn memory_free_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Disk that can be had below this directory.
pub fn disk_free_bytes(data: &Path) -> u64 {
    rustix::fs::statvfs(data).map_or(0, |found| found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn roomy() -> Room {
        Room { memory_free_bytes: 8 << 30, disk_free_bytes: 1 << 40, ..Room::default() }
    }

    #[test]
    fn what_is_short_is_named() {
        let (bounds, limits) = (Bounds::default(), Limits::default());
        assert_eq!(admit(&bounds, &roomy(), &limits), Ok(()));
        let full = Room { live: 1000, ..roomy() };
        assert_eq!(admit(&bounds, &full, &limits).unwrap_err().0, "one more sandbox");
        let tight = Room { memory_free_bytes: 512 << 20, ..roomy() };
        assert_eq!(admit(&bounds, &tight, &limits).unwrap_err().0, "memory");
        let small = Room { disk_free_bytes: 3 << 29, ..roomy() };
        assert_eq!(admit(&bounds, &small, &limits).unwrap_err().0, "its disk");
    }

    proptest! {
        #[test]
        fn the_reserve_is_never_promised(starting in 0_u32..100, memory in 0_u64..(16 << 30), disk in 0_u64..(64 << 30)) {
            let (bounds, limits) = (Bounds::default(), Limits::default());
            let starting_disk_bytes = u64::from(starting) * limits.disk_bytes;
            let room = Room { live: starting, starting, starting_disk_bytes, memory_free_bytes: memory, disk_free_bytes: disk };
            if admit(&bounds, &room, &limits).is_ok() {
                prop_assert!(memory - u64::from(starting + 1) * START_MEMORY_BYTES >= bounds.memory_reserve_bytes);
                prop_assert!(disk - starting_disk_bytes - limits.disk_bytes >= bounds.disk_reserve_bytes);
            }
        }
    }
}
