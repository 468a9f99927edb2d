//! Traces that sandboxes can leave on a machine, as seen from outside: processes, cgroups, mounts, loop
//! devices and namespaces.
//!
//! A trace counts only if it contains a mark: a part of a sandbox's name or of the data directory's path.
//! Other sandboxes on the machine are therefore ignored.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Timeout for cleanup. The machine's process 1 reaps orphans, which may take some time.
const SETTLES_WITHIN: Duration = Duration::from_secs(10);

/// A search for traces.
#[derive(Clone, Debug)]
pub struct Traces {
    marks: Vec<String>,
}

/// Separates a test from earlier tests in the same process. Unless the test itself uses a runtime, the
/// machine's process 1 adopts the orphans of the test's servers, instead of this process. Zombies of earlier
/// tests are ignored.
pub fn begin_test() {
    // The call cannot fail, because the kernel permits it to every process.
    let _ = rustix::process::set_child_subreaper(None);
    *before() = all_zombies();
}

/// Returns the zombies of earlier tests.
fn before() -> MutexGuard<'static, BTreeSet<String>> {
    static BEFORE: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    BEFORE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Traces {
    /// Creates a search for sandboxes whose names, directories or command lines contain one of these marks.
    pub fn of(marks: &[&str]) -> Self {
        Self { marks: marks.iter().map(|mark| (*mark).to_owned()).collect() }
    }

    /// Returns the traces that exist now.
    pub fn left(&self) -> BTreeSet<String> {
        let mut seen = BTreeSet::new();
        processes(&mut seen);
        cgroups(Path::new("/sys/fs/cgroup"), 3, &mut seen);
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        seen.extend(mounts.lines().map(|line| format!("mount {line}")));
        for entry in std::fs::read_dir("/sys/block").into_iter().flatten().flatten() {
            if let Ok(file) = std::fs::read_to_string(entry.path().join("loop/backing_file")) {
                seen.insert(format!("loop {} {}", entry.file_name().to_string_lossy(), file.trim()));
            }
        }
        // Podman keeps the process that monitors an exec for five minutes after the exec's end.
        seen.retain(|trace| !trace.contains("/conmon "));
        seen.retain(|trace| self.marks.iter().any(|mark| trace.contains(mark)));
        seen.extend(zombies());
        seen
    }

    /// Waits for cleanup, and panics with a list of the traces that still exist after the timeout.
    pub fn assert_nothing_left(&self) {
        self.assert_nothing_left_but("nothing");
    }

    /// Does the same as [`Traces::assert_nothing_left`], but ignores the server that is still running.
    pub fn assert_nothing_left_but_the_server(&self, pid: u32) {
        self.assert_nothing_left_but(&format!("process {pid} "));
    }

    fn assert_nothing_left_but(&self, known: &str) {
        let since = Instant::now();
        loop {
            let mut left = self.left();
            left.retain(|trace| !trace.starts_with(known));
            if left.is_empty() {
                return;
            }
            assert!(since.elapsed() < SETTLES_WITHIN, "left behind: {left:#?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Collects all processes with their command lines and cgroups. This covers namespaces as well, because a
/// namespace exists only as long as a process, a mount or a descriptor refers to it.
fn processes(seen: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if pid == std::process::id() {
            continue;
        }
        let read = |name: &str| {
            String::from_utf8_lossy(&std::fs::read(entry.path().join(name)).unwrap_or_default()).into_owned()
        };
        let cgroups = read("cgroup");
        let cgroup = cgroups.lines().find(|line| line.contains("/bellglass/")).unwrap_or_default();
        seen.insert(format!("process {pid} {} {cgroup}", read("cmdline").replace('\0', " ")));
    }
}

/// Returns the zombie children of this process, except for the zombies of earlier tests.
fn zombies() -> BTreeSet<String> {
    let before = before().clone();
    all_zombies().difference(&before).cloned().collect()
}

fn all_zombies() -> BTreeSet<String> {
    let me = format!(" Z {} ", std::process::id());
    let stats = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    stats
        .filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok())
        .filter(|stat| stat.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(&me)))
        .map(|stat| format!("zombie {}", stat.split(')').next().unwrap_or_default()))
        .collect()
}

/// Collects the cgroups below a directory named `bellglass`.
fn cgroups(directory: &Path, depth: u32, seen: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let path = entry.path();
        if directory.file_name().is_some_and(|name| name == "bellglass") {
            seen.insert(format!("cgroup {}", path.display()));
        } else if depth > 0 && (entry.file_name() == "bellglass" || depth == 3) {
            cgroups(&path, depth - 1, seen);
        }
    }
}
