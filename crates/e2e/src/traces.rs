//! What sandboxes can leave on a machine, looked at from outside: processes, cgroups, mounts, loop devices,
//! namespaces.
//!
//! A look sees only what carries a mark: a part of a sandbox's name or of the data directory's. Other sandboxes on
//! the machine are nobody's leak.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Orphans are reaped by process 1 of the machine, which may take its time.
const SETTLES_WITHIN: Duration = Duration::from_secs(10);

/// What to look for.
#[derive(Clone, Debug)]
pub struct Traces {
    marks: Vec<String>,
}

/// Separates a test from earlier tests in the same process. Process 1 of the machine adopts orphans of the test's servers, unless the
/// test itself uses a runtime, and zombies of earlier tests are ignored.
pub fn begin_test() {
    // The kernel allows this call to every process.
    let _ = rustix::process::set_child_subreaper(None);
    *before() = all_zombies();
}

/// The zombies of earlier tests.
fn before() -> MutexGuard<'static, BTreeSet<String>> {
    static BEFORE: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    BEFORE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Traces {
    /// Of sandboxes whose names, directories or command lines hold one of these.
    pub fn of(marks: &[&str]) -> Self {
        Self { marks: marks.iter().map(|mark| (*mark).to_owned()).collect() }
    }

    /// What is there now.
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
        // Podman keeps the process that watched an exec for five minutes.
        seen.retain(|trace| !trace.contains("/conmon "));
        seen.retain(|trace| self.marks.iter().any(|mark| trace.contains(mark)));
        seen.extend(zombies());
        seen
    }

    /// Fails with a list of what is left, once it has had time to go.
    pub fn assert_nothing_left(&self) {
        self.assert_nothing_left_but("nothing");
    }

    /// Likewise, where a server still runs.
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

/// All processes with their command lines and cgroups. A namespace lives no longer than its last process, mount or
/// descriptor, so those tell of it too.
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

/// Dead children of this process that nobody has collected.
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

/// Cgroups below a directory named `bellglass`.
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
