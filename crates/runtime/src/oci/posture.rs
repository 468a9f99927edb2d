//! Compares process 1's observable privileges with the expected ones.
//!
//! With a user-space kernel, the observed process is that kernel. It stays in the host's pid and cgroup
//! namespaces and holds descriptors for all files that it serves, so fewer properties can be checked here.
//! The guest itself reports the privileges inside the sandbox.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use api::SandboxId;
use api::limits::UID_RANGE;
use api::posture::Posture;

use super::cgroup::Cgroups;
use super::process::ProcessHandle;
use super::record::OciRecord;
use crate::{Error, Tier, confinement, files};

/// Capabilities that gVisor's kernel keeps in its own user namespace, in addition to process 1's
/// capabilities. It needs CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER and FSETID to serve files, and
/// SYS_PTRACE for its stub processes.
const KERNEL_CAPABILITIES: u64 = 0x8_0000 | 0x1f;
/// Namespaces that process 1 must not share with the host.
const SEPARATE: [&str; 7] = ["user", "pid", "mnt", "ipc", "uts", "cgroup", "net"];
/// Namespaces that gVisor's kernel must not share with the host.
const SEPARATE_KERNEL: [&str; 5] = ["user", "mnt", "ipc", "uts", "net"];
/// Kinds of descriptors that give no access to anything outside the sandbox.
const HARMLESS: [&str; 9] = [
    "socket:",
    "pipe:",
    "pidfd:",
    "anon_inode:[eventpoll]",
    "anon_inode:[eventfd]",
    "anon_inode:[signalfd]",
    "anon_inode:[timerfd]",
    "anon_inode:[pidfd]",
    "anon_inode:inotify",
];
/// Controllers whose hierarchies must list process 1 in the sandbox's cgroup.
const CONTROLLERS: [&str; 5] = ["memory", "pids", "cpu", "cpuacct", "devices"];

/// Inspects process 1, and returns its posture (its privileges) and the differences from the expected one.
pub(super) fn compare(
    id: &SandboxId,
    record: &OciRecord,
    tier: Tier,
    process: &ProcessHandle,
) -> Result<(Posture, Vec<String>), Error> {
    let home = PathBuf::from(format!("/proc/{}", process.identity.pid));
    let posture =
        look(&home).map_err(|error| if process.is_alive() { error } else { Error::Ended(id.clone()) })?;
    let own = namespaces(Path::new("/proc/self"))?;
    let mut differences = Vec::new();
    let mut expect = |what: &str, seen: String, wanted: String| {
        if seen != wanted {
            differences.push(format!("{what} is {seen}, not {wanted}"));
        }
    };
    let base = record.base();
    expect("uids", format!("{:?}", posture.uids), format!("{:?}", [base; 4]));
    expect("gids", format!("{:?}", posture.gids), format!("{:?}", [base; 4]));
    expect("groups", format!("{:?}", posture.groups), "[]".into());
    expect("no_new_privileges", posture.no_new_privileges.to_string(), "true".into());
    expect("seccomp", posture.seccomp.to_string(), "2".into());
    let capabilities = confinement::capability_bits(record.owns_files);
    let (held, separate) = match tier {
        Tier::Container => (capabilities, SEPARATE.as_slice()),
        Tier::UserKernel => (capabilities | KERNEL_CAPABILITIES, SEPARATE_KERNEL.as_slice()),
    };
    for (set, wanted) in [("CapPrm", held), ("CapEff", held), ("CapBnd", held), ("CapInh", 0), ("CapAmb", 0)]
    {
        let seen = posture.capabilities.get(set).map_or("missing".into(), |bits| format!("{bits:#x}"));
        expect(set, seen, format!("{wanted:#x}"));
    }
    for kind in separate {
        let seen = posture.namespaces.get(*kind);
        let shared = seen.is_none() || seen == own.get(*kind);
        expect(
            &format!("the {kind} namespace"),
            if shared { "shared" } else { "separate" }.into(),
            "separate".into(),
        );
    }
    for map in ["uid_map", "gid_map"] {
        let text = files::read_if_there(&home.join(map))?.unwrap_or_default();
        let seen: Vec<&str> = text.split_whitespace().collect();
        expect(map, seen.join(" "), format!("0 {base} {UID_RANGE}"));
    }
    if tier == Tier::Container {
        expect("the core limit", posture.core_bytes.to_string(), "0".into());
    }
    differences.extend(descriptors(&posture, id, tier));
    let groups = files::read_if_there(&home.join("cgroup"))?.unwrap_or_default();
    differences.extend(cgroups(&groups, &Cgroups::guest_path(id)));
    Ok((posture, differences))
}

fn look(home: &Path) -> Result<Posture, Error> {
    let mut posture =
        Posture::parse(&files::read(&home.join("status"))?, &files::read(&home.join("limits"))?);
    posture.namespaces = namespaces(home)?;
    for entry in list(&home.join("fd"))? {
        let Some(number) = entry.file_name().and_then(|name| name.to_str()?.parse().ok()) else { continue };
        // Skip a descriptor that was closed after the directory was listed.
        let Ok(target) = fs::read_link(&entry) else { continue };
        let is_null = fs::metadata(&entry).is_ok_and(|seen| seen.rdev() == rustix::fs::makedev(1, 3));
        let shown = if is_null { "/dev/null".into() } else { target.to_string_lossy().into_owned() };
        posture.descriptors.insert(number, shown);
    }
    Ok(posture)
}

fn namespaces(home: &Path) -> Result<std::collections::BTreeMap<String, String>, Error> {
    let mut found = std::collections::BTreeMap::new();
    for entry in list(&home.join("ns"))? {
        let Some(kind) = entry.file_name().and_then(|name| name.to_str()) else { continue };
        let name = fs::read_link(&entry).map_err(|source| files::failed("read", &entry, source))?;
        found.insert(kind.to_owned(), name.to_string_lossy().into_owned());
    }
    Ok(found)
}

fn list(path: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = fs::read_dir(path).map_err(|source| files::failed("list", path, source))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

fn descriptors(posture: &Posture, id: &SandboxId, tier: Tier) -> Vec<String> {
    let mut differences = Vec::new();
    for number in 0..3 {
        let seen = posture.descriptors.get(&number).map_or("closed", String::as_str);
        if seen != "/dev/null" {
            differences.push(format!("descriptor {number} is {seen}, not /dev/null"));
        }
    }
    if tier == Tier::UserKernel {
        return differences;
    }
    let group = format!("/bellglass/{id}/user/");
    for (number, seen) in posture.descriptors.range(3..) {
        let harmless = HARMLESS.iter().any(|kind| seen.starts_with(kind));
        let own = seen == "/dev/null" || seen.starts_with("/.bellglass/spool") || seen.contains(&group);
        if !harmless && !own {
            differences.push(format!("descriptor {number} is {seen}, which process 1 does not need"));
        }
    }
    differences
}

/// Returns a difference for each hierarchy where process 1 is outside its expected cgroup. Version 2 has a
/// single hierarchy, whose line names no controllers.
fn cgroups(text: &str, wanted: &str) -> Vec<String> {
    let lines =
        || text.lines().filter_map(|line| line.split_once(':').and_then(|(_, rest)| rest.split_once(':')));
    let carries = |controllers: &str| controllers.split(',').any(|name| CONTROLLERS.contains(&name));
    let first = lines().any(|(controllers, _)| carries(controllers));
    let wrong: Vec<String> = lines()
        .filter(|(controllers, path)| {
            (carries(controllers) || !first && controllers.is_empty()) && *path != wanted
        })
        .map(|(controllers, path)| format!("the cgroup of [{controllers}] is {path}, not {wanted}"))
        .collect();
    if text.is_empty() { vec!["the cgroups of process 1 cannot be read".into()] } else { wrong }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_outside_its_cgroup_is_seen_on_every_version() {
        let wanted = "/bellglass/a/guest";
        assert!(cgroups("0::/bellglass/a/guest\n", wanted).is_empty());
        assert_eq!(cgroups("0::/\n", wanted).len(), 1);
        let hybrid = "9:name=systemd:/\n8:pids:/bellglass/a/guest\n4:memory:/bellglass/a/guest\n0::/\n";
        assert!(cgroups(hybrid, wanted).is_empty());
        assert_eq!(cgroups(&hybrid.replace("memory:/bellglass/a", "memory:/bellglass/b"), wanted).len(), 1);
        assert_eq!(cgroups("", wanted).len(), 1);
    }

    #[test]
    fn a_descriptor_of_a_host_file_is_a_difference() {
        let id: SandboxId = "a".parse().unwrap();
        let mut posture = Posture::default();
        for (number, target) in [(0, "/dev/null"), (1, "/dev/null"), (2, "/dev/null"), (3, "socket:[1]")] {
            posture.descriptors.insert(number, target.into());
        }
        posture.descriptors.insert(4, "/sys/fs/cgroup/memory/bellglass/a/user/cgroup.procs".into());
        assert!(descriptors(&posture, &id, Tier::Container).is_empty());
        posture.descriptors.insert(5, "/etc".into());
        assert_eq!(descriptors(&posture, &id, Tier::Container).len(), 1);
    }
}
