//! Builds the configuration for the OCI runtime, with one JSON literal for each section.

use std::path::{Path, PathBuf};

use api::SandboxId;
use api::defence;
use api::limits::{Limits, UID_RANGE};
use serde_json::{Value, json};

use crate::confinement::settings;
use crate::confinement::{MASKED, READ_ONLY, RUNS, process_limits, shared_bytes, terminals, tmp_inodes};
use crate::oci::cgroup::Cgroups;
use crate::{Profile, Spec, Tier, seccomp};

/// Additional capabilities that process 1 needs to create files owned by an image's users. It also passes
/// them on to the steps of a recipe.
const OWNS: [&str; 4] = ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID"];

/// The user namespace of a sandbox.
#[derive(Clone, Copy)]
pub(crate) struct UserNamespace<'a> {
    /// The host user ID of the sandbox's root.
    pub base: u32,
    /// The path of the user namespace.
    pub path: &'a Path,
}

/// Returns the complete configuration.
pub(crate) fn config(
    id: &SandboxId,
    spec: &Spec,
    bundle: &Path,
    tier: Tier,
    namespace: UserNamespace<'_>,
) -> Value {
    json!({
        "ociVersion": "1.0.2",
        "process": process(spec, tier),
        "root": { "path": "rootfs", "readonly": !spec.profile.writes_root() },
        "hostname": "sandbox",
        "mounts": mounts(spec, bundle, tier),
        "linux": linux(id, namespace.base, tier, namespace.path),
    })
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
    // A container inherits its limits ([`process_limits`]) from the OCI runtime's process, because setting
    // them for a process in a namespace that a different user created requires CAP_SYS_RESOURCE, which a
    // service may not have. A user-space kernel enforces the limits itself.
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
            // The mount is writable for the node, which replaces the socket when it takes the sandbox over.
            // File permissions prevent writes from inside the sandbox. The mount has all options of the
            // underlying file system, because a mount in a user namespace may not drop any of them.
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
    // Linux counts the terminals of all sandboxes together, so one sandbox without a limit could use up the
    // terminals of all others.
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

/// Returns the path of the guest's executable in the overlay that contains it.
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
        // gVisor cannot join a prepared namespace, because it is multithreaded at that point and Linux does
        // not allow multithreaded processes to join a user namespace. It does not need the prepared
        // namespace's separate resource counts either, because it counts these resources itself.
        Tier::UserKernel => json!({ "type": "user" }),
    });
    json!({
        "namespaces": namespaces,
        "sysctl": settings(tier),
        "uidMappings": map,
        "gidMappings": map,
        "cgroupsPath": Cgroups::guest_path(id),
        // This section only restricts devices. The limits are set on cgroups that the OCI runtime does not
        // manage.
        "resources": { "devices": [{ "allow": false, "access": "rwm" }] },
        "seccomp": (!defence::is_off("K-05")).then(|| seccomp::filter(tier)),
        "maskedPaths": if defence::is_off("K-12") { &[] } else { &MASKED[..] },
        "readonlyPaths": READ_ONLY,
    })
}

fn tmp_options(limits: &Limits) -> Vec<String> {
    let inodes = tmp_inodes(limits);
    let options = ["nosuid", "nodev", "mode=1777"].map(str::to_owned);
    options.into_iter().chain([format!("size={}", limits.tmp_bytes), format!("nr_inodes={inodes}")]).collect()
}

fn shared_options(limits: &Limits) -> Vec<String> {
    let bytes = shared_bytes(limits);
    let options = ["nosuid", "nodev", "noexec", "mode=1777"].map(str::to_owned);
    options.into_iter().chain([format!("size={bytes}")]).collect()
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
        assert_eq!(crate::confinement::capability_bits(false), 0x1e0);
    }

    #[test]
    fn shared_memory_leaves_room_after_a_memory_kill() {
        let limits = Limits { memory_bytes: 16 << 20, ..Limits::default() };
        assert!(shared_options(&limits).contains(&format!("size={}", 4 << 20)));
    }
}
