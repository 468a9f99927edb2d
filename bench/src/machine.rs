//! Properties of the machine on which the bench runs. The figures are meaningless without them.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// Properties of this machine.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Start time of the run, in UTC.
    pub date: String,
    /// Kernel release.
    pub kernel: String,
    /// Processor model.
    pub processor: String,
    /// Number of usable cores.
    pub cores: usize,
    /// Total memory in bytes.
    pub memory_bytes: u64,
    /// Version of the cgroup hierarchy that limits memory: 1 or 2.
    pub cgroup_version: u32,
    /// True if this program was built with optimizations. Without them, the bench's own hashing and
    /// compression take longer than the operations that it measures.
    pub optimized: bool,
    /// Load averages over 1, 5 and 15 minutes before the run.
    pub load_before: String,
    /// Load averages after the run.
    pub load_after: String,
}

impl Machine {
    /// Reads the properties of this machine.
    pub fn look() -> Self {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let processor = field(&read("/proc/cpuinfo"), "model name").unwrap_or("unknown").to_owned();
        Self {
            date: date(seconds),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            processor,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: meminfo("MemTotal"),
            cgroup_version: if memory_cgroup().ends_with("memory") { 1 } else { 2 },
            optimized: !cfg!(debug_assertions),
            load_before: load(),
            load_after: String::new(),
        }
    }
}

/// Returns the current load averages.
pub fn load() -> String {
    read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// Returns the amount of memory that is available without swapping, in bytes.
pub fn available_bytes() -> u64 {
    meminfo("MemAvailable")
}

/// Returns the memory charged to a cgroup and its descendants, including kernel memory, in bytes.
pub fn charged_bytes(below: &str) -> Option<u64> {
    let group = memory_cgroup().join(below);
    let current = ["memory.current", "memory.usage_in_bytes"].map(|name| group.join(name));
    let text = current.iter().find_map(|path| std::fs::read_to_string(path).ok())?;
    text.trim().parse().ok()
}

/// Returns the mount point of the cgroup hierarchy that has the memory controller.
fn memory_cgroup() -> &'static Path {
    let first = Path::new("/sys/fs/cgroup/memory");
    if first.exists() { first } else { Path::new("/sys/fs/cgroup") }
}

fn meminfo(name: &str) -> u64 {
    let text = read("/proc/meminfo");
    let kib = field(&text, name).and_then(|value| value.strip_suffix("kB"));
    kib.and_then(|value| value.trim().parse::<u64>().ok()).unwrap_or(0) * 1024
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then_some(value.trim())
    })
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Formats seconds since 1970 as a date and time. The Gregorian calendar repeats every 400 years, or 146,097
/// days. Internally, years start on March 1, so that the leap day is the last day of its year.
fn date(seconds: u64) -> String {
    let days = seconds / 86_400 + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let moon = (5 * of_year + 2) / 153;
    let day = of_year - (153 * moon + 2) / 5 + 1;
    let month = if moon < 10 { moon + 3 } else { moon - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hours, minutes) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!("{year:04}-{month:02}-{day:02} {hours:02}:{minutes:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_798_761_599), "2026-12-31 23:59 UTC");
    }

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let text = "MemTotal:       1 kB\nMem:  2 kB\n";
        assert_eq!((field(text, "Mem"), field(text, "Total")), (Some("2 kB"), None));
        assert!(Machine::look().memory_bytes > 0);
    }
}
