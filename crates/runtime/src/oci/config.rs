//! The configuration that the OCI runtime is given, one literal for each section.

use std::path::{Path, PathBuf};

use api::SandboxId;
use api::limits::{Limits, TERMINALS_MAX, UID_RANGE};
use rustix::process::Resource;
use serde_json::{Value, json};

use crate::oci::cgroup::Cgroups;
use crate::oci::{probe, seccomp};
use crate::{Profile, Spec, Tier, tables};

/// Signals that wait to be delivered, and timers, of all processes of the sandbox: each costs a little kernel memory. A program
/// that uses real-time signals has a few.
const SIGNALS: u64 = 1024;
/// Memory that no swapping could touch; the kernel's old default, enough for keys.
const LOCKED_BYTES: u64 = 64 << 10;
/// `/dev/shm` at most; above this it would be a second `/tmp`.
const SHARED_BYTES: u64 = 64 << 20;
/// After a memory kill what lies in `/dev/shm` stays charged: this part of memory leaves the next exec its room.
const SHARED_SHARE: u64 = 4;
/// As many terminals as the platform opens are left to programs inside that open their own: `tmux`, `script`.
const TERMINALS_SHARE: usize = 2;
/// Files in `/tmp` at most; each costs kernel memory.
const TMP_INODES_MAX: u64 = 65_536;
/// One file in `/tmp` for each page of it, so that many small files fill it as fast as one large one.
const PAGE_BYTES: u64 = 4096;

/// What process 1 needs to start, group and kill user processes, and to empty their bounding set.
pub(crate) const RUNS: [&str; 4] = ["CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_SETPCAP"];
/// What it also needs to own files on behalf of an image's users, and lets the steps of a recipe have.
const OWNS: [&str; 4] = ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID"];

/// What of the host shows through `/proc` and `/sys` and is nobody's business inside: hardware, keys, timers, and
/// counters and names by which one sandbox could watch or signal another (the disks of all sandboxes are block devices
/// with their paths, their sizes and their traffic).
pub(crate) const MASKED: [&str; 29] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/cmdline",
    "/proc/diskstats",
    "/proc/fs",
    "/proc/interrupts",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/key-users",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/modules",
    "/proc/partitions",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/softirqs",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/block",
    "/sys/class/bdi",
    "/sys/class/block",
    "/sys/dev/block",
    "/sys/devices/virtual/bdi",
    "/sys/devices/virtual/block",
    "/sys/devices/virtual/dmi",
    "/sys/devices/virtual/powercap",
    "/sys/devices/virtual/thermal",
    "/sys/firmware",
    "/sys/fs",
];
/// What may be read and not written.
pub(crate) const READ_ONLY: [&str; 4] = ["/proc/bus", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// The whole configuration.
pub(crate) fn config(
    id: &SandboxId,
    spec: &Spec,
    bundle: &Path,
    (base, tier, namespace): (u32, Tier, &Path),
) -> Value {
    json!({
        "ociVersion": "1.0.2",
        "process": process(spec, tier),
        "root": { "path": "rootfs", "readonly": !spec.profile.writes_root() },
        "hostname": "sandbox",
        "mounts": mounts(spec, bundle, tier),
        "linux": linux(id, base, tier, namespace),
    })
}

/// The capabilities of process 1, as bits.
pub(crate) fn capability_bits(owns_files: bool) -> u64 {
    // CAP_KILL 5, CAP_SETGID 6, CAP_SETUID 7, CAP_SETPCAP 8; CAP_CHOWN 0, DAC_OVERRIDE 1, FOWNER 3, FSETID 4.
    0b1_1110_0000 | if owns_files { 0b1_1011 } else { 0 }
}

fn process(spec: &Spec, tier: Tier) -> Value {
    let mut capabilities = RUNS.to_vec();
    if spec.profile.owns_files() {
        capabilities.extend(OWNS);
    }
    let mut words = vec!["/.bellglass/guest".to_owned(), "init".to_owned()];
    words.extend(["--ttl-ms".to_owned(), spec.limits.ttl_ms.to_string()]);
    match spec.profile {
        Profile::Build => words.push("--build".to_owned()),
        Profile::Rooted => words.push("--rooted".to_owned()),
        Profile::Run | Profile::Workstation | Profile::Unpack { .. } => {}
    }
    // A container inherits them from its OCI runtime ([`process_limits`]). To set them for a process in a namespace that another user
    // made takes CAP_SYS_RESOURCE, which a service may have been denied. A user-space kernel keeps its own.
    let rlimits: Vec<Value> = match tier {
        Tier::Container => Vec::new(),
        Tier::UserKernel => process_limits(&spec.limits)
            .map(|(_, kind, value)| json!({ "type": kind, "soft": value, "hard": value }))
            .to_vec(),
    };
    let undefended = api::defence::off().map(|attacks| format!("{}={attacks}", api::defence::VARIABLE));
    json!({
        "terminal": false,
        "user": { "uid": 0, "gid": 0 },
        "args": words,
        "env": std::iter::once("PATH=/usr/bin:/bin".to_owned()).chain(undefended).collect::<Vec<_>>(),
        "cwd": "/",
        "capabilities": {
            "bounding": capabilities,
            "effective": capabilities,
            "permitted": capabilities,
            "inheritable": [],
            "ambient": [],
        },
        "rlimits": rlimits,
        "noNewPrivileges": true,
    })
}

fn mounts(spec: &Spec, bundle: &Path, tier: Tier) -> Value {
    let limits = &spec.limits;
    let bind = |target: &str, source: &str, writable: bool| bind(target, &bundle.join(source), writable);
    let mut mounts = vec![
        json!({ "destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "nodev", "noexec"] }),
        json!({
            "destination": "/dev",
            "type": "tmpfs",
            "source": "tmpfs",
            "options": ["nosuid", "noexec", "strictatime", "mode=755", "size=64k"],
        }),
        match limits.tmp_bytes {
            0 => bind("/tmp", "disk/tmp", true),
            _ => {
                json!({ "destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": tmp_options(limits) })
            }
        },
        self::bind("/.bellglass/guest", &guest(spec, bundle), false),
        match tier {
            // Writable for the node, which takes over through it. Nobody inside may write to the directory.
            // The options are those of the file system: a user namespace may not take one away.
            Tier::Container => json!({
                "destination": "/.bellglass/channel",
                "type": "bind",
                "source": bundle.join("nodes/channel"),
                "options": ["bind", "nosuid", "nodev", "noexec", "rw"],
            }),
            Tier::UserKernel => self::bind("/.bellglass/channel", &bundle.with_file_name("channel"), false),
        },
        bind("/.bellglass/spool", "disk/spool", true),
    ];
    // Linux counts the terminals of all sandboxes together, and one that opens them all would leave the others none.
    let pts_max = format!("max={}", terminals());
    match &spec.profile {
        Profile::Run | Profile::Workstation | Profile::Rooted | Profile::Build => mounts.extend([
            json!({
                "destination": "/dev/pts",
                "type": "devpts",
                "source": "devpts",
                "options": [
                    "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5", pts_max,
                ],
            }),
            json!({ "destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": shared_options(limits) }),
            json!({
                "destination": "/sys",
                "type": "sysfs",
                "source": "sysfs",
                "options": ["nosuid", "nodev", "noexec", "ro"],
            }),
            bind("/workspace", "disk/workspace", true),
            bind("/home/sandbox", "disk/home", true),
        ]),
        Profile::Unpack { done, .. } => {
            mounts.push(bind("/layers/target", "target", true));
            let numbered = (0..done.len()).map(|number| bind(&format!("/layers/{number}"), &format!("done/{number}"), false));
            mounts.extend(numbered);
        }
    }
    if spec.profile == Profile::Build {
        mounts.push(bind("/.bellglass/upper", "disk/upper", false));
    }
    Value::Array(mounts)
}

/// The guest's executable, in the overlay of its directory.
fn guest(spec: &Spec, bundle: &Path) -> PathBuf {
    bundle.join("guest").join(spec.guest.file_name().unwrap_or_default())
}

fn bind(target: &str, source: &Path, writable: bool) -> Value {
    let access = if writable { "rw" } else { "ro" };
    json!({
        "destination": target,
        "type": "bind",
        "source": source,
        "options": ["bind", "nosuid", "nodev", access],
    })
}

fn linux(id: &SandboxId, base: u32, tier: Tier, namespace: &Path) -> Value {
    let map = json!([{ "containerID": 0, "hostID": base, "size": UID_RANGE }]);
    let kinds = ["pid", "mount", "ipc", "uts", "cgroup", "network"];
    let mut namespaces: Vec<Value> = kinds.iter().map(|kind| json!({ "type": kind })).collect();
    namespaces.push(match tier {
        Tier::Container => json!({ "type": "user", "path": namespace }),
        // It has many threads when it would enter, which Linux does not allow. What is counted by namespace it counts itself.
        Tier::UserKernel => json!({ "type": "user" }),
    });
    json!({
        "namespaces": namespaces,
        "sysctl": settings(tier),
        "uidMappings": map,
        "gidMappings": map,
        "cgroupsPath": Cgroups::guest_path(id),
        // Only devices: the limits are on cgroups that the OCI runtime does not know.
        "resources": { "devices": [{ "allow": false, "access": "rwm" }] },
        "seccomp": seccomp::filter(tier),
        "maskedPaths": MASKED,
        "readonlyPaths": READ_ONLY,
    })
}

/// How many terminals may be open.
pub(crate) fn terminals() -> usize {
    if api::defence::is_off("C-37") { 2048 } else { TERMINALS_MAX * TERMINALS_SHARE }
}

/// How many files `/tmp` may have.
pub(crate) fn tmp_inodes(limits: &Limits) -> u64 {
    (limits.tmp_bytes / PAGE_BYTES).min(TMP_INODES_MAX)
}

fn tmp_options(limits: &Limits) -> Vec<String> {
    let inodes = tmp_inodes(limits);
    let options = ["nosuid", "nodev", "mode=1777"].map(str::to_owned);
    options.into_iter().chain([format!("size={}", limits.tmp_bytes), format!("nr_inodes={inodes}")]).collect()
}

/// The size of `/dev/shm`.
pub(crate) fn shared_bytes(limits: &Limits) -> u64 {
    SHARED_BYTES.min(limits.memory_bytes / SHARED_SHARE)
}

fn shared_options(limits: &Limits) -> Vec<String> {
    let bytes = shared_bytes(limits);
    let options = ["nosuid", "nodev", "noexec", "mode=1777"].map(str::to_owned);
    options.into_iter().chain([format!("size={bytes}")]).collect()
}

/// Limits of process 1 and of everything it starts, each with the name that OCI runtimes know.
pub(crate) fn process_limits(limits: &Limits) -> [(Resource, &'static str, u64); 5] {
    [
        (Resource::Nofile, "RLIMIT_NOFILE", open_files(limits)),
        (Resource::Sigpending, "RLIMIT_SIGPENDING", signals()),
        (Resource::Msgqueue, "RLIMIT_MSGQUEUE", queue_bytes()),
        (Resource::Memlock, "RLIMIT_MEMLOCK", allowed(Resource::Memlock, LOCKED_BYTES)),
        (Resource::Core, "RLIMIT_CORE", 0),
    ]
}

/// How many files a process may have open.
pub(crate) fn open_files(limits: &Limits) -> u64 {
    allowed(Resource::Nofile, tables::open_files(limits))
}

/// How many signals may wait.
pub(crate) fn signals() -> u64 {
    let wanted = if api::defence::is_off("C-34") { u64::MAX } else { SIGNALS };
    allowed(Resource::Sigpending, wanted)
}

/// How much POSIX message queues may hold: nothing. They outlive their processes, and hardly any program has one.
pub(crate) fn queue_bytes() -> u64 {
    if api::defence::is_off("C-35") { allowed(Resource::Msgqueue, u64::MAX) } else { 0 }
}

/// Settings of the sandbox's own network namespace. What a connection holds that nobody has accepted is charged to nobody, so buffers
/// begin small; they grow to a megabyte where a program reads.
pub(crate) fn settings(tier: Tier) -> Value {
    match tier {
        Tier::Container if !api::defence::is_off("C-32") => {
            let buffers = ["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"].map(|name| (name, "4096 16384 1048576"));
            // Where it cannot be set it is 4,096: four times as many connections that nobody has accepted.
            let backlog = probe::has_backlog().then_some(("net.core.somaxconn", "1024"));
            buffers.into_iter().chain(backlog).collect()
        }
        // Its network is its own, in its own memory.
        Tier::Container | Tier::UserKernel => json!({}),
    }
}

/// What is wanted of a resource, or what this process may hand on of it: without CAP_SYS_RESOURCE, asking for more
/// would fail the start.
fn allowed(resource: Resource, wanted: u64) -> u64 {
    rustix::process::getrlimit(resource).maximum.map_or(wanted, |hard| hard.min(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(profile: Profile) -> Spec {
        Spec {
            layers: vec!["/layer".into()],
            image: String::new(),
            limits: Limits::default(),
            profile,
            guest: "/guest".into(),
        }
    }

    #[test]
    fn every_mount_is_nosuid_and_all_but_dev_and_pts_are_nodev() {
        let unpack = Profile::Unpack { done: vec!["/a".into()], target: "/b".into() };
        for profile in [Profile::Run, unpack] {
            let mounts = mounts(&spec(profile), Path::new("/bundle"), Tier::Container);
            for mount in mounts.as_array().unwrap() {
                let options = mount["options"].as_array().unwrap();
                let target = mount["destination"].as_str().unwrap();
                assert!(options.contains(&json!("nosuid")), "{mount}");
                assert!(
                    options.contains(&json!("nodev")) || ["/dev", "/dev/pts"].contains(&target),
                    "{mount}"
                );
            }
        }
    }

    #[test]
    fn process_1_has_what_it_needs_and_no_more() {
        let process = process(&spec(Profile::Run), Tier::Container);
        assert_eq!(process["capabilities"]["bounding"].as_array().unwrap().len(), 4);
        assert_eq!(process["capabilities"]["inheritable"], json!([]));
        assert_eq!(process["noNewPrivileges"], json!(true));
        assert_eq!(capability_bits(false), 0x1e0);
    }

    #[test]
    fn shared_memory_leaves_room_after_a_memory_kill() {
        let limits = Limits { memory_bytes: 16 << 20, ..Limits::default() };
        assert!(shared_options(&limits).contains(&format!("size={}", 4 << 20)));
    }
}
