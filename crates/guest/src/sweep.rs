//! Finding and ending all processes of an exec by its group.
//!
//! Every exec runs with an extra group id of its own. Code without capabilities cannot drop it, every descendant
//! inherits it, and it shows in `/proc/<pid>/status` under every runtime, so a scan finds what `setsid` and double
//! forks hide from process groups. A process that forks while it is being looked for can escape one scan, not three.

use std::collections::HashMap;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Scans that must find nobody before a group counts as ended.
const CLEAN_SCANS: u32 = 3;
/// Time for killed processes to leave between two scans.
const BETWEEN_SCANS: Duration = Duration::from_millis(1);
/// The longest pause: a process that the kernel holds must not cost more than looking at it now and then.
const BETWEEN_SCANS_LAST: Duration = Duration::from_millis(16);

/// What one look at `/proc/<pid>/status` tells.
struct Seen {
    zombie: bool,
    groups: Vec<u32>,
}

/// Who is meant.
#[derive(Clone, Copy)]
pub enum Whom {
    /// All that carry the group of an exec.
    Group(u32),
    /// All but process 1.
    Everybody,
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
    let (mut clean, mut pause) = (0, BETWEEN_SCANS);
    while clean < CLEAN_SCANS {
        let found = find(whom);
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
            let seen = Some(look(&status)).filter(|_| !is_from_outside(&status))?;
            Some((Pid::from_raw(pid)?, seen)).filter(|(_, seen)| !seen.zombie)
        })
}

/// Whether a process was put into this sandbox from outside, by what `/proc/<pid>/status` says: its parent is in no namespace
/// that can be seen from here. Whatever is started inside, and left by its parent, has process 1 for one.
pub fn is_from_outside(status: &str) -> bool {
    status.lines().find_map(|line| line.strip_prefix("PPid:")).is_some_and(|parent| parent.trim() == "0")
}

fn look(status: &str) -> Seen {
    let mut seen = Seen { zombie: false, groups: Vec::new() };
    let mut threads = 1;
    for line in status.lines() {
        if let Some(rest) = line.strip_prefix("State:") {
            seen.zombie = rest.trim_start().starts_with(['Z', 'X']);
        } else if let Some(rest) = line.strip_prefix("Groups:") {
            seen.groups = rest.split_whitespace().filter_map(|word| word.parse().ok()).collect();
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
