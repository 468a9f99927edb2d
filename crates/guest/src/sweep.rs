//! Finding and killing all processes of an exec by its group.
//!
//! Every exec runs with its own additional group id. Code without capabilities cannot drop it, every
//! descendant inherits it, and `/proc/<pid>/status` shows it under every runtime. So a scan also finds
//! processes that `setsid` and double forks hide from process groups. A process that forks during a scan can
//! escape one scan, but not three.
//!
//! Root in a sandbox has the capability to drop its group. A process without any known group that began no
//! earlier than an exec of root counts as that exec's: see [`Strays`].
//!
//! gVisor writes a process's name into `/proc/<pid>/status` unescaped, including line breaks. The name comes
//! first, so the last of several lines with the same key is the kernel's.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::descent::SETPCAP;

/// Groups of the processes that process 1 starts for itself.
const OWN_GROUPS: std::ops::RangeInclusive<u32> =
    *api::limits::EXEC_GROUPS.end() + 1..=*api::limits::EXEC_GROUPS.end() + 3;
/// Clock ticks per second in `/proc`: the same on every supported Linux.
const TICKS: u64 = 100;
/// Number of consecutive scans that must find no process before a group counts as ended.
const CLEAN_SCANS: u32 = 3;
/// First pause between two scans, in which killed processes can exit.
const BETWEEN_SCANS: Duration = Duration::from_millis(1);
/// Maximum pause between two scans. A process that is stuck in the kernel must not cost more than an
/// occasional scan.
const BETWEEN_SCANS_LAST: Duration = Duration::from_millis(16);

thread_local! {
    /// True if processes can enter this sandbox from outside.
    static VISITED: Cell<bool> = const { Cell::new(false) };
}

/// Groups that belong to an exec, a context or a process of the guest.
pub type KnownGroups = Rc<RefCell<HashSet<u32>>>;

/// Processes without a known group that began no earlier than an exec of root.
#[derive(Clone)]
pub struct Strays {
    /// Start of the exec, in ticks since boot, as in `/proc/<pid>/stat`.
    since: u64,
    known: KnownGroups,
}

/// Content of `/proc/<pid>/status`, as far as it is used.
struct ProcessStatus {
    zombie: bool,
    groups: Vec<u32>,
    /// True if its bounding set contains a capability that only process 1 and its new forks have.
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

/// Declares that an engine, or another foreign system, can start processes in this sandbox from outside.
pub fn expect_visitors() {
    VISITED.set(true);
}

impl Strays {
    /// Returns the strays of an exec that begins now.
    pub fn from_now(known: &KnownGroups) -> Self {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the pointer is to a time that outlives the call, which writes it.
        unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut now) };
        let (seconds, nanos) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
        // Rounded down to whole ticks, like the kernel's value, so that a process that begins in the current
        // tick is included.
        Self { since: seconds * TICKS + nanos * TICKS / 1_000_000_000, known: Rc::clone(known) }
    }

    /// Returns the living processes.
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

    /// Kills the processes, until three scans in a row find none.
    pub async fn kill(&self) {
        kill_found(|| self.find()).await;
    }
}

/// Returns the living processes of `whom`.
pub fn find(whom: Whom) -> Vec<Pid> {
    processes()
        .filter(|(_, seen)| match whom {
            Whom::Group(group) => seen.groups.contains(&group),
            Whom::Everybody => true,
        })
        .map(|(pid, _)| pid)
        .collect()
}

/// Returns the number of living processes for each group.
pub fn census() -> HashMap<u32, u32> {
    let mut census = HashMap::new();
    for (_, seen) in processes() {
        for group in seen.groups {
            *census.entry(group).or_insert(0) += 1;
        }
    }
    census
}

/// Sends a signal to all processes of `whom`. Returns their number.
pub fn signal(whom: Whom, signal: Signal) -> usize {
    let found = find(whom);
    for pid in &found {
        // An error means that the process is already gone, which is fine.
        let _ = kill_process(*pid, signal);
    }
    found.len()
}

/// Kills all processes of `whom`: first stops them, then kills them, until three scans in a row find none.
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

/// Sends SIGTERM to `whom`, waits up to `grace`, then kills.
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

/// Sends SIGTERM to all processes and waits until they are gone. There is no time limit here: the sender of
/// our own SIGTERM kills us when its time limit has passed.
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
            // A process that an engine started here is the node's entrance, and must not be killed.
            let may_be = VISITED.get() || api::defence::is_off("A-23");
            let seen = Some(look(&status)).filter(|_| !(may_be && is_from_outside(&status)))?;
            Some((Pid::from_raw(pid)?, seen)).filter(|(_, seen)| !seen.zombie)
        })
}

/// Returns true if a process was started in this sandbox from outside, according to its `/proc/<pid>/status`:
/// its parent is in no visible namespace. An orphan that was started inside has process 1 as its parent
/// instead.
pub fn is_from_outside(status: &str) -> bool {
    let mut parents = status.lines().filter_map(|line| line.strip_prefix("PPid:"));
    let parent = if api::defence::is_off("A-23") { parents.next() } else { parents.next_back() };
    parent.is_some_and(|parent| parent.trim() == "0")
}

/// Returns the start time of a process, in ticks since boot.
fn began(pid: Pid) -> Option<u64> {
    began_in(&std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?)
}

/// Returns the 22nd field of `/proc/<pid>/stat`. The second field is the process's name, which can contain
/// any text; the fields of the kernel follow its last parenthesis.
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
    // A process whose first thread has ended looks like a zombie, but its other threads continue.
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
