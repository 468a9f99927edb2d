//! Finds and kills all processes of an exec by its group.
//!
//! Every exec runs with its own supplementary group ID. Code without capabilities cannot drop it, every
//! descendant inherits it, and `/proc/<pid>/status` shows it under every runtime. A scan for this ID
//! therefore also finds processes that have left their process group with `setsid` and a double fork. A
//! process that forks during a scan can escape that scan, so a group counts as ended only after three
//! consecutive scans find nothing.
//!
//! Root in a sandbox can drop its group. So a process also counts as part of an exec that runs as root if the
//! process has no known group and started no earlier than that exec: see [`Strays`].
//!
//! gVisor writes a process's name into `/proc/<pid>/status` unescaped, including line breaks. The name comes
//! first, so if several lines have the same key, the last line is the kernel's.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::descent::SETPCAP;

/// Groups reserved for the guest's own processes, not for execs.
const OWN_GROUPS: std::ops::RangeInclusive<u32> =
    *api::limits::EXEC_GROUPS.end() + 1..=*api::limits::EXEC_GROUPS.end() + 3;
/// Clock ticks per second in `/proc`. The value is the same on every supported Linux system.
const TICKS: u64 = 100;
/// Number of consecutive scans that must find no process before a group counts as ended.
const CLEAN_SCANS: u32 = 3;
/// First pause between two scans, which gives killed processes time to exit.
const BETWEEN_SCANS: Duration = Duration::from_millis(1);
/// Maximum pause between two scans. It is long enough that a process stuck in the kernel costs only an
/// occasional scan.
const BETWEEN_SCANS_LAST: Duration = Duration::from_millis(16);

thread_local! {
    /// True if processes can enter this sandbox from outside.
    static VISITED: Cell<bool> = const { Cell::new(false) };
}

/// Groups that belong to an exec, a context or a helper process of the guest.
pub type KnownGroups = Rc<RefCell<HashSet<u32>>>;

/// Processes without a known group that started no earlier than an exec that runs as root.
#[derive(Clone)]
pub struct Strays {
    /// Start of the exec, in ticks since boot, as in `/proc/<pid>/stat`.
    since: u64,
    known: KnownGroups,
}

/// The fields of `/proc/<pid>/status` that are used here.
struct ProcessStatus {
    zombie: bool,
    groups: Vec<u32>,
    /// True if the bounding set contains a capability that only process 1 and its newly forked children have.
    is_young: bool,
}

/// The processes that an operation applies to.
#[derive(Clone, Copy)]
pub enum Whom {
    /// All processes that carry this group.
    Group(u32),
    /// All processes except process 1.
    Everybody,
}

/// Records that a container engine or similar system can start processes in this sandbox from outside.
pub fn expect_visitors() {
    VISITED.set(true);
}

impl Strays {
    /// Returns the strays of an exec that begins now.
    pub fn from_now(known: &KnownGroups) -> Self {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: The pointer refers to a local variable that outlives the call, and the call only writes to
        // it.
        unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut now) };
        let (seconds, nanos) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
        // Round down to whole ticks, as the kernel does, so that a process that begins in the current tick is
        // included.
        Self { since: seconds * TICKS + nanos * TICKS / 1_000_000_000, known: Rc::clone(known) }
    }

    /// Returns the strays that are still alive.
    pub fn find(&self) -> Vec<Pid> {
        if api::defence::is_off("A-22") {
            return Vec::new();
        }
        let known = self.known.borrow();
        processes()
            .filter(|(_, seen)| {
                !seen.is_young
                    && !seen.groups.iter().any(|group| known.contains(group) || OWN_GROUPS.contains(group))
            })
            .map(|(pid, _)| pid)
            .filter(|pid| began(*pid).is_none_or(|began| began >= self.since))
            .collect()
    }

    /// Kills the strays, until three scans in a row find none.
    pub async fn kill(&self) {
        kill_found(|| self.find()).await;
    }
}

/// Returns the living processes that `whom` selects.
pub fn find(whom: Whom) -> Vec<Pid> {
    processes()
        .filter(|(_, seen)| match whom {
            Whom::Group(group) => seen.groups.contains(&group),
            Whom::Everybody => true,
        })
        .map(|(pid, _)| pid)
        .collect()
}

/// Returns the number of living processes in each group.
pub fn census() -> HashMap<u32, u32> {
    let mut census = HashMap::new();
    for (_, seen) in processes() {
        for group in seen.groups {
            *census.entry(group).or_insert(0) += 1;
        }
    }
    census
}

/// Sends a signal to all processes that `whom` selects. Returns their number.
pub fn signal(whom: Whom, signal: Signal) -> usize {
    let found = find(whom);
    for pid in &found {
        // Ignore an error: the process is already gone.
        let _ = kill_process(*pid, signal);
    }
    found.len()
}

/// Stops and then kills all processes that `whom` selects, until three scans in a row find none.
pub async fn kill(whom: Whom) {
    kill_found(|| find(whom)).await;
}

async fn kill_found(find: impl Fn() -> Vec<Pid>) {
    let (mut clean, mut pause) = (0, BETWEEN_SCANS);
    while clean < CLEAN_SCANS {
        let found = find();
        for pid in &found {
            let _ = kill_process(*pid, Signal::STOP);
        }
        for pid in &found {
            let _ = kill_process(*pid, Signal::KILL);
        }
        if found.is_empty() {
            clean += 1;
            tokio::task::yield_now().await;
        } else {
            clean = 0;
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(BETWEEN_SCANS_LAST);
        }
    }
}

/// Sends SIGTERM to all processes that `whom` selects, waits up to `grace`, then kills the rest.
pub async fn end(whom: Whom, grace: Duration) {
    if !grace.is_zero() && signal(whom, Signal::TERM) > 0 {
        let asked = tokio::time::Instant::now();
        let mut pause = BETWEEN_SCANS;
        while asked.elapsed() < grace && !find(whom).is_empty() {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(BETWEEN_SCANS_LAST);
        }
    }
    kill(whom).await;
}

/// Sends SIGTERM to all processes and waits until they are gone. This wait has no time limit: if it takes too
/// long, the sender of process 1's SIGTERM kills process 1.
pub async fn end_everybody() {
    signal(Whom::Everybody, Signal::TERM);
    while !find(Whom::Everybody).is_empty() {
        tokio::time::sleep(BETWEEN_SCANS).await;
    }
}

fn processes() -> impl Iterator<Item = (Pid, ProcessStatus)> {
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| *pid != 1)
        .filter_map(|pid| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            // Skip processes that an engine started from outside. The node reaches the guest through them, so
            // they must not be killed.
            let may_be = VISITED.get() || api::defence::is_off("A-23");
            let seen = Some(look(&status)).filter(|_| !(may_be && is_from_outside(&status)))?;
            Some((Pid::from_raw(pid)?, seen)).filter(|(_, seen)| !seen.zombie)
        })
}

/// Returns true if this `/proc/<pid>/status` belongs to a process that was started in the sandbox from
/// outside. The parent of such a process is not visible in this namespace, so its pid appears as 0. An orphan
/// that was started inside has process 1 as its parent instead.
pub fn is_from_outside(status: &str) -> bool {
    let mut parents = status.lines().filter_map(|line| line.strip_prefix("PPid:"));
    let parent = if api::defence::is_off("A-23") { parents.next() } else { parents.next_back() };
    parent.is_some_and(|parent| parent.trim() == "0")
}

/// Returns the start time of a process, in ticks since boot.
fn began(pid: Pid) -> Option<u64> {
    began_in(&std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?)
}

/// Returns the 22nd field of `/proc/<pid>/stat`, the start time. The second field is the process's name,
/// which can contain any text, so the remaining fields are those after the last closing parenthesis.
fn began_in(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

fn look(status: &str) -> ProcessStatus {
    let mut seen = ProcessStatus { zombie: false, groups: Vec::new(), is_young: false };
    let mut threads = 1;
    for line in status.lines() {
        if let Some(rest) = line.strip_prefix("State:") {
            seen.zombie = rest.trim_start().starts_with(['Z', 'X']);
        } else if let Some(rest) = line.strip_prefix("Groups:") {
            seen.groups = rest.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        } else if let Some(rest) = line.strip_prefix("CapBnd:") {
            seen.is_young = u64::from_str_radix(rest.trim(), 16).is_ok_and(|set| set & SETPCAP != 0);
        } else if let Some(rest) = line.strip_prefix("Threads:") {
            threads = rest.trim().parse().unwrap_or(1);
        }
    }
    // A process whose main thread has ended looks like a zombie, but its other threads still run.
    seen.zombie &= threads <= 1;
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_engine_put_in_is_told_from_what_was_started_inside() {
        assert!(is_from_outside("Pid:\t7\nPPid:\t0\n"));
        assert!(!is_from_outside("Pid:\t7\nPPid:\t1\n"));
        assert!(!is_from_outside("Pid:\t7\n"));
    }

    #[test]
    fn a_name_with_line_breaks_says_nothing_of_its_process() {
        let status =
            "Name:\tx\nPPid:\t0\nGroups:\t5\nState:\tZ\n\nState:\tS (sleeping)\nPPid:\t1\nGroups:\t20001 \n";
        assert!(!is_from_outside(status));
        let seen = look(status);
        assert!(!seen.zombie);
        assert_eq!(seen.groups, [20001]);
        let fields: Vec<String> = (3..=52).map(|number| number.to_string()).collect();
        for name in ["sh", ") 1 2 (", "a) R 0 0 0"] {
            assert_eq!(began_in(&format!("7 ({name}) {}\n", fields.join(" "))), Some(22), "{name}");
        }
    }

    #[test]
    fn what_process_1_has_just_forked_is_no_stray() {
        assert!(look("CapBnd:\t00000000000001fb\n").is_young);
        assert!(!look("CapBnd:\t00000000000000fb\n").is_young);
    }

    #[test]
    fn a_zombie_is_never_taken_for_running() {
        assert!(look("Name:\tx\nState:\tZ (zombie)\nGroups:\t20001 \n").zombie);
        let seen = look("Name:\tx\nState:\tS (sleeping)\nGroups:\t7 20001 \n");
        assert!(!seen.zombie);
        assert_eq!(seen.groups, [7, 20001]);
        assert!(
            !look("State:\tZ (zombie)\nGroups:\t20001 \nThreads:\t2\n").zombie,
            "it goes on in its threads"
        );
    }
}
