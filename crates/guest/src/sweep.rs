//! Finding and ending all processes of an exec by its group.
//!
//! Every exec runs with an extra group id of its own. Code without capabilities cannot drop it, every descendant
//! inherits it, and it shows in `/proc/<pid>/status` under every runtime, so a scan finds what `setsid` and double
//! forks hide from process groups. A process that forks while it is being looked for can escape one scan, not three.
//!
//! Root of a workstation has the capability to drop its group. What has none that is known, and began no earlier than an exec of
//! root, counts as that exec's: see [`Strays`].
//!
//! gVisor writes a process's name into `/proc/<pid>/status` as it is, line breaks and all. The name comes first, so of several lines
//! of one kind the last is the kernel's.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::descent::SETPCAP;

/// The groups of what process 1 starts for itself.
const OWN_GROUPS: std::ops::RangeInclusive<u32> =
    *api::limits::EXEC_GROUPS.end() + 1..=*api::limits::EXEC_GROUPS.end() + 3;
/// Ticks of a second in `/proc`: the same on every Linux that we run on.
const TICKS: u64 = 100;
/// Scans that must find nobody before a group counts as ended.
const CLEAN_SCANS: u32 = 3;
/// Time for killed processes to leave between two scans.
const BETWEEN_SCANS: Duration = Duration::from_millis(1);
/// The longest pause: a process that the kernel holds must not cost more than looking at it now and then.
const BETWEEN_SCANS_LAST: Duration = Duration::from_millis(16);

thread_local! {
    /// Whether processes are put in here from outside.
    static VISITED: Cell<bool> = const { Cell::new(false) };
}

/// The groups that belong to an exec, a context or a process of ours.
pub type Known = Rc<RefCell<HashSet<u32>>>;

/// The processes without a known group that began no earlier than an exec of root.
#[derive(Clone)]
pub struct Strays {
    /// In ticks since the machine was started, as `/proc/<pid>/stat` has it.
    since: u64,
    known: Known,
}

/// What one look at `/proc/<pid>/status` tells.
struct Seen {
    zombie: bool,
    groups: Vec<u32>,
    /// Whether it has a capability in its bounding set that only process 1 and what it just forked have.
    is_young: bool,
}

/// Who is meant.
#[derive(Clone, Copy)]
pub enum Whom {
    /// All that carry the group of an exec.
    Group(u32),
    /// All but process 1.
    Everybody,
}

/// Says that an engine, or somebody else, puts processes in here from outside.
pub fn expect_visitors() {
    VISITED.set(true);
}

impl Strays {
    /// Those of an exec that begins now.
    pub fn from_now(known: &Known) -> Self {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the pointer is to a time that outlives the call, which writes it.
        unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut now) };
        let (seconds, nanos) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
        // Whole ticks, as the kernel counts: one that begins in this one is not missed.
        Self { since: seconds * TICKS + nanos * TICKS / 1_000_000_000, known: Rc::clone(known) }
    }

    /// Those that live.
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

    /// Ends them, until three scans in a row find none.
    pub async fn kill(&self) {
        kill_found(|| self.find()).await;
    }
}

/// The living processes of `whom`.
pub fn find(whom: Whom) -> Vec<Pid> {
    processes()
        .filter(|(_, seen)| match whom {
            Whom::Group(group) => seen.groups.contains(&group),
            Whom::Everybody => true,
        })
        .map(|(pid, _)| pid)
        .collect()
}

/// How many living processes carry each group.
pub fn census() -> HashMap<u32, u32> {
    let mut census = HashMap::new();
    for (_, seen) in processes() {
        for group in seen.groups {
            *census.entry(group).or_insert(0) += 1;
        }
    }
    census
}

/// Sends a signal to all of `whom`; says how many there were.
pub fn signal(whom: Whom, signal: Signal) -> usize {
    let found = find(whom);
    for pid in &found {
        // A process that is gone meanwhile is what we wanted.
        let _ = kill_process(*pid, signal);
    }
    found.len()
}

/// Ends all of `whom`: stop, then kill, until three scans in a row find nobody.
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

/// Asks `whom` to end, waits up to `grace`, then kills.
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

/// Asks everybody to end and waits for it. Whoever sent us SIGTERM kills us when its patience is over.
pub async fn end_everybody() {
    signal(Whom::Everybody, Signal::TERM);
    while !find(Whom::Everybody).is_empty() {
        tokio::time::sleep(BETWEEN_SCANS).await;
    }
}

fn processes() -> impl Iterator<Item = (Pid, Seen)> {
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| *pid != 1)
        .filter_map(|pid| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            // What an engine has put in here is the node's way in, and not ours to end.
            let may_be = VISITED.get() || api::defence::is_off("A-23");
            let seen = Some(look(&status)).filter(|_| !(may_be && is_from_outside(&status)))?;
            Some((Pid::from_raw(pid)?, seen)).filter(|(_, seen)| !seen.zombie)
        })
}

/// Whether a process was put into this sandbox from outside, by what `/proc/<pid>/status` says: its parent is in no namespace
/// that can be seen from here. Whatever is started inside, and left by its parent, has process 1 for one.
pub fn is_from_outside(status: &str) -> bool {
    let mut parents = status.lines().filter_map(|line| line.strip_prefix("PPid:"));
    let parent = if api::defence::is_off("A-23") { parents.next() } else { parents.next_back() };
    parent.is_some_and(|parent| parent.trim() == "0")
}

/// When a process began, in ticks since the machine was started.
fn began(pid: Pid) -> Option<u64> {
    began_in(&std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?)
}

/// The 22nd field of `/proc/<pid>/stat`. The second is the process's name, which may hold anything: the fields that the kernel
/// writes follow its last parenthesis.
fn began_in(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

fn look(status: &str) -> Seen {
    let mut seen = Seen { zombie: false, groups: Vec::new(), is_young: false };
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
    // A process whose first thread has ended looks like a zombie and goes on in its others.
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
