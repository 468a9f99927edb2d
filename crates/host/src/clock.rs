//! A clock that cannot be set: the time since this machine booted, including suspended time.
//!
//! A sandbox's time to live is measured with this clock, so that neither a server restart nor a jump of the
//! wall clock affects it. The wall clock is used only for times that are shown to people.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// Returns the milliseconds since this machine booted.
pub fn boot_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000
}

/// Returns the identifier of the current boot of this machine.
///
/// # Errors
/// Returns an error if `/proc` cannot be read.
pub fn boot_id() -> std::io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Returns the wall clock's time in milliseconds since 1970, for display.
pub fn wall_ms() -> u64 {
    millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// Converts a duration to whole milliseconds.
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
