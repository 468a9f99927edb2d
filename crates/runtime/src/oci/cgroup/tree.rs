//! Handles cgroups as directories: finds the hierarchies, and walks and removes subtrees.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use api::SandboxId;

use super::Hierarchy;
use crate::Error;
use crate::files::{self, failed, is_gone};

/// Maximum depth of a walk below a sandbox's cgroup: `guest`, and the cgroups that an OCI runtime may create
/// in it.
pub(super) const DEPTH_MAX: u32 = 4;

/// Returns the hierarchies in a mount table. `offered` returns the content of `cgroup.controllers` in a
/// version 2 hierarchy.
pub(super) fn hierarchies(mounts: &str, offered: impl Fn(&Path) -> String) -> Vec<Hierarchy> {
    let mut found: Vec<Hierarchy> = Vec::new();
    for line in mounts.lines() {
        let mut words = line.split_whitespace().skip(1);
        let (Some(root), Some(kind), Some(options)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let root = PathBuf::from(root);
        let unified = kind == "cgroup2";
        if !unified && kind != "cgroup" || found.iter().any(|hierarchy| hierarchy.root == root) {
            continue;
        }
        let controllers = match unified {
            true => offered(&root).split_whitespace().map(str::to_owned).collect(),
            false => options.split(',').map(str::to_owned).collect(),
        };
        found.push(Hierarchy { root, unified, controllers });
    }
    found
}

/// Adds the processes in a cgroup and its descendants to `pids`.
pub(super) fn processes(group: &Path, depth: u32, pids: &mut Vec<i32>) -> Result<(), Error> {
    let Some(text) = files::read_if_there(&group.join("cgroup.procs"))? else { return Ok(()) };
    // The kernel shows 0 for a process that is not visible in this pid namespace.
    pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|pid| *pid > 0));
    if depth > 0 {
        for child in children(group).map_err(|source| failed("list", group, source))? {
            processes(&child, depth - 1, pids)?;
        }
    }
    Ok(())
}

/// Removes a cgroup and its descendants. Succeeds if they no longer exist.
pub(super) fn remove(group: &Path, depth: u32) -> io::Result<()> {
    if depth > 0 {
        for child in children(group)? {
            remove(&child, depth - 1)?;
        }
    }
    match fs::remove_dir(group) {
        Err(error) if is_gone(&error) => Ok(()),
        other => other,
    }
}

/// Returns true if `text`, the content of `/proc/<pid>/cgroup`, names this cgroup or one of its descendants.
pub(super) fn names(text: &str, group: &str) -> bool {
    text.lines()
        .filter_map(|line| line.splitn(3, ':').nth(2))
        .any(|path| path.strip_prefix(group).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

/// Returns the sandbox that `text`, the content of `/proc/<pid>/cgroup`, names below the cgroup `parent`.
pub(super) fn sandbox(text: &str, parent: &str) -> Option<SandboxId> {
    text.lines()
        .filter_map(|line| line.splitn(3, ':').nth(2)?.strip_prefix(parent))
        .find_map(|rest| rest.split('/').next()?.parse().ok())
}

fn children(group: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(group) {
        Ok(entries) => entries,
        Err(error) if is_gone(&error) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            paths.push(entry.path());
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_of_every_kind_of_host_are_found() {
        let hybrid = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                      cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n\
                      cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let found = hierarchies(hybrid, |_| String::new());
        assert_eq!(found.len(), 3);
        assert!(found[0].has("memory") && !found[0].unified);
        assert!(found[1].has("cpu") && found[1].has("cpuacct"));
        assert!(found[2].unified && found[2].controllers.is_empty());
        let two =
            hierarchies("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", |_| "cpuset cpu memory pids\n".to_owned());
        assert!(two[0].unified && two[0].has("pids"));
    }

    #[test]
    fn a_name_that_only_begins_alike_is_another_sandbox() {
        let text = "8:pids:/bellglass/ab/guest\n0::/bellglass/ab/guest\n";
        assert!(names(text, "/bellglass/ab"));
        assert!(!names(text, "/bellglass/a"));
        assert!(!names("4:memory:/x/bellglass/ab\n", "/bellglass/ab"));
    }
}
