//! The state of the host that no attack may change.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use node::Machine;

/// Files of the host that an attack with access to the host would change.
const FILES: [&str; 7] = [
    "/etc/passwd",
    "/etc/shadow",
    "/etc/group",
    "/etc/hosts",
    "/etc/resolv.conf",
    "/etc/ld.so.preload",
    "/etc/crontab",
];
const SETTINGS: [&str; 6] =
    ["core_pattern", "modprobe", "hostname", "panic", "tainted", "unprivileged_bpf_disabled"];
/// Names of mounts, network namespaces and cgroups that belong to tests and engines. They come and go while
/// an attack runs. `e2e::traces` checks those of the attacked sandbox.
const OURS: [&str; 7] = ["bellglass", "control-", "docker", "containers", "libpod", "podman", "daytona"];
/// Lines of the kernel's log about a damaged kernel.
const DAMAGE: [&str; 6] =
    ["BUG:", "Oops", "general protection fault", "KASAN", "Kernel panic", "WARNING: CPU"];
/// Other programs on the machine may mount file systems for a short time.
const SETTLES_WITHIN: Duration = Duration::from_secs(5);

/// The state of the host at one moment.
pub(crate) struct Host {
    files: BTreeMap<PathBuf, Entry>,
    runtime: Vec<u8>,
    settings: Vec<String>,
    damage: Vec<String>,
    places: BTreeSet<String>,
}

/// A file's metadata and content.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    mode: u32,
    owner: (u32, u32),
    links: u64,
    modified: (i64, i64),
    content: Vec<u8>,
}

impl Host {
    /// Returns the current state.
    pub(crate) fn look(sentinel: &Path, runtime: &str) -> Self {
        // Engines use runc as their runtime.
        let known = |name: &str| Machine::flavors().into_iter().find(|flavor| flavor.name == name);
        let flavor = known(runtime).or_else(|| known("runc")).unwrap();
        let mut files = BTreeMap::new();
        tree(sentinel, &mut files);
        for path in FILES.map(Path::new).into_iter().filter(|path| path.exists()) {
            files.insert(path.to_owned(), Entry::of(path));
        }
        let setting = |name| fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
        Self {
            files,
            runtime: fs::read(flavor.find().unwrap().binary).unwrap(),
            settings: SETTINGS.map(setting).into(),
            damage: damage(),
            places: places(),
        }
    }

    /// Asserts that nothing has changed since an earlier state.
    pub(crate) fn assert_same_as(&self, before: &Self, id: &str) {
        for (path, entry) in &self.files {
            assert_eq!(Some(entry), before.files.get(path), "{id}: {} has changed", path.display());
        }
        assert_eq!(self.files.len(), before.files.len(), "{id}: a file of the host is gone");
        assert!(self.runtime == before.runtime, "{id}: the runtime's program has changed");
        assert_eq!(self.settings, before.settings, "{id}: a setting of the kernel has changed");
        let damage: Vec<&String> = self.damage.iter().filter(|line| !before.damage.contains(line)).collect();
        assert!(damage.is_empty(), "{id}: the kernel reports damage: {damage:#?}");
        let since = Instant::now();
        let mut now = places();
        while now != before.places && since.elapsed() < SETTLES_WITHIN {
            std::thread::sleep(Duration::from_millis(50));
            now = places();
        }
        let changed: Vec<&String> = now.symmetric_difference(&before.places).collect();
        assert!(changed.is_empty(), "{id}: mounts, namespaces or cgroups have changed: {changed:#?}");
    }
}

impl Entry {
    fn of(path: &Path) -> Self {
        let about = fs::symlink_metadata(path).unwrap();
        Self {
            mode: about.mode(),
            owner: (about.uid(), about.gid()),
            links: about.nlink(),
            modified: (about.mtime(), about.mtime_nsec()),
            content: if about.is_file() { fs::read(path).unwrap() } else { Vec::new() },
        }
    }
}

fn tree(path: &Path, seen: &mut BTreeMap<PathBuf, Entry>) {
    seen.insert(path.to_owned(), Entry::of(path));
    let is_directory = fs::symlink_metadata(path).unwrap().is_dir();
    for entry in fs::read_dir(path).into_iter().flatten().flatten().filter(|_| is_directory) {
        tree(&entry.path(), seen);
    }
}

/// Returns the lines of the kernel's log that report damage. The log is empty if this process may not read it.
fn damage() -> Vec<String> {
    let log = File::options().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg");
    let Ok(mut log) = log else { return Vec::new() };
    let (mut found, mut line) = (Vec::new(), [0; 8192]);
    loop {
        let count = match log.read(&mut line) {
            Ok(count @ 1..) => count,
            // The kernel has overwritten the next lines.
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => continue,
            Ok(0) | Err(_) => return found,
        };
        let text = String::from_utf8_lossy(&line[..count]).into_owned();
        if DAMAGE.iter().any(|word| text.contains(word)) {
            found.push(text);
        }
    }
}

/// Returns the host's mounts, named network namespaces and cgroups, except for those of tests and engines.
fn places() -> BTreeSet<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    // The first two fields are ids, which the kernel reuses.
    let mounts =
        mounts.lines().filter_map(|line| line.splitn(3, ' ').nth(2).map(|rest| format!("mount {rest}")));
    let named = |directory: &str| {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries
            .filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_symlink()))
            .map(|entry| entry.path())
    };
    let spaces = named("/run/netns");
    let groups = named("/sys/fs/cgroup")
        .flat_map(|top| std::iter::once(top.clone()).chain(named(&top.to_string_lossy())))
        .filter(|path| path.is_dir());
    let paths = spaces.chain(groups).map(|path| path.display().to_string());
    mounts.chain(paths).filter(|place| !OURS.iter().any(|word| place.contains(word))).collect()
}
