//! What sandboxes can leave on a machine, looked at from outside: processes, cgroups, mounts, loop devices,
//! namespaces.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// Orphans are reaped by process 1 of the machine, which may take its time.
const SETTLES_WITHIN: Duration = Duration::from_secs(10);

/// A look at the machine.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Traces {
    seen: BTreeSet<String>,
}

impl Traces {
    /// Looks.
    pub fn look() -> Self {
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
        Self { seen }
    }

    /// What is here now and was not here then.
    pub fn left(&self) -> Vec<String> {
        Self::look().seen.difference(&self.seen).cloned().collect()
    }

    /// Fails with a list of what is left, once it has had time to go.
    pub fn assert_nothing_left(&self) {
        let since = Instant::now();
        loop {
            let left = self.left();
            if left.is_empty() {
                return;
            }
            assert!(since.elapsed() < SETTLES_WITHIN, "left behind: {left:#?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Processes of sandboxes and of what starts them, by what their command line or cgroup says; zombies included.
/// A namespace lives no longer than its last process, mount or descriptor, so those three tell of it too.
fn processes(seen: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let read = |name: &str| std::fs::read(entry.path().join(name)).unwrap_or_default();
        let command = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
        let cgroup = String::from_utf8_lossy(&read("cgroup")).into_owned();
        let stat = String::from_utf8_lossy(&read("stat")).into_owned();
        let zombie = stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'));
        let named = ["/.belljar/guest", "runsc", "runc "].iter().any(|word| command.contains(word));
        let zombie_of_ours = zombie && ["(guest)", "(exe)", "(runc", "(runsc"].iter().any(|name| stat.contains(name));
        if named || zombie_of_ours || cgroup.contains("/belljar/") {
            seen.insert(format!("process {pid} {command} {}", stat.split(' ').nth(1).unwrap_or_default()));
        }
    }
}

/// Cgroups below a directory named `belljar`.
fn cgroups(directory: &Path, depth: u32, seen: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let path = entry.path();
        if directory.file_name().is_some_and(|name| name == "belljar") {
            seen.insert(format!("cgroup {}", path.display()));
        } else if depth > 0 && (entry.file_name() == "belljar" || depth == 3) {
            cgroups(&path, depth - 1, seen);
        }
    }
}
