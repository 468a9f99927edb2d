//! Environment of the controls, called a room: plain runc in separate namespaces, with users that own nothing
//! on the host. The defence under test and most other defences are off, but processes and memory are still
//! limited.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use super::field::{Said, payload};

/// First host user ID of a room's users, above the ID ranges of sandboxes.
pub(crate) const BASE: u32 = 2_130_000_000;
/// Maximum number of processes in a room.
const PIDS: u64 = 100;
/// Maximum memory of a room.
const MEMORY_BYTES: u64 = 256 << 20;
/// All capabilities. These capabilities are valid only in the room's own user namespace.
const CAPABILITIES: &str = "\
    CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE \
    NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN \
    SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE \
    MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND";

/// The environment of one control.
pub(crate) struct Room {
    /// User ID of the payload.
    pub(crate) uid: u32,
    /// Additional group IDs of the payload.
    pub(crate) groups: Vec<u32>,
    /// True if the payload has all capabilities of the room's user namespace.
    pub(crate) powerful: bool,
    /// Directories of the host that are mounted writable in the room, with their mount points.
    pub(crate) binds: Vec<(PathBuf, &'static str)>,
    /// True if the room shares the host's network namespace, and therefore the host's abstract sockets.
    pub(crate) host_network: bool,
}

impl Default for Room {
    fn default() -> Self {
        Self { uid: 0, groups: Vec::new(), powerful: true, binds: Vec::new(), host_network: false }
    }
}

impl Room {
    /// Runs an attack's payload in the room.
    pub(crate) fn attack(&self, id: &str, arguments: &[&str]) -> Said {
        self.run(&payload(id, arguments))
    }

    /// Runs a command in the room.
    pub(crate) fn run(&self, argv: &[String]) -> Said {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("control-{}-{number}", std::process::id());
        let bundle = tempfile::Builder::new().prefix("bellglass-control").tempdir().unwrap();
        std::fs::set_permissions(bundle.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711)).unwrap();
        std::fs::write(bundle.path().join("config.json"), self.config(&name, argv).to_string()).unwrap();
        std::fs::create_dir(bundle.path().join("rootfs")).unwrap();
        // The host's users cannot traverse the directories of layers. A separate mount namespace makes the
        // layer available to the room.
        let output = Command::new("unshare")
            .args([
                "--mount",
                "sh",
                "-c",
                "mount --bind \"$0\" \"$1/rootfs\" && shift && exec timeout 60 \"$@\"",
            ])
            .args([e2e::layer::base().as_path(), bundle.path()])
            .args(["runc", "--root"])
            .arg(bundle.path().join("state"))
            .args(["run", "--bundle"])
            .arg(bundle.path())
            .arg(&name)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        e2e::attack::count_control();
        let more = format!("{}{}", String::from_utf8_lossy(&output.stderr), output.status);
        Said::read(&text, &more, output.status.code())
    }

    fn config(&self, name: &str, argv: &[String]) -> Value {
        let all: Vec<String> = CAPABILITIES.split_whitespace().map(|name| format!("CAP_{name}")).collect();
        let held = if self.powerful { all } else { Vec::new() };
        let map = json!([{ "containerID": 0, "hostID": BASE, "size": 65_536 }]);
        let kinds = ["user", "pid", "mount", "ipc", "uts", "cgroup", "network"];
        let kinds: Vec<Value> = kinds
            .iter()
            .filter(|kind| **kind != "network" || !self.host_network)
            .map(|kind| json!({ "type": kind }))
            .collect();
        json!({
            "ociVersion": "1.0.2",
            "process": {
                "user": { "uid": self.uid, "gid": self.uid, "additionalGids": self.groups },
                "args": argv,
                "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp"],
                "cwd": "/tmp",
                "capabilities": {
                    "bounding": held, "effective": held, "permitted": held, "inheritable": held, "ambient": held,
                },
                "noNewPrivileges": false,
            },
            "root": { "path": "rootfs", "readonly": true },
            "mounts": self.mounts(),
            "linux": {
                "namespaces": kinds,
                "uidMappings": map,
                "gidMappings": map,
                "cgroupsPath": format!("/{name}"),
                "resources": {
                    "pids": { "limit": PIDS },
                    "memory": { "limit": MEMORY_BYTES },
                    "devices": [{ "allow": false, "access": "rwm" }],
                },
            },
        })
    }

    fn mounts(&self) -> Vec<Value> {
        let mount = |kind: &str, target: &str, options: &[&str]| json!({ "destination": target, "type": kind, "source": kind, "options": options });
        let mut mounts = vec![
            mount("proc", "/proc", &[]),
            mount("tmpfs", "/dev", &["nosuid", "mode=755", "size=64k"]),
            mount("devpts", "/dev/pts", &["newinstance", "ptmxmode=0666"]),
            mount("tmpfs", "/tmp", &["mode=1777", "size=16m"]),
        ];
        mounts.extend(self.binds.iter().map(|(source, target)| bind(source, target)));
        mounts
    }
}

fn bind(source: &Path, target: &str) -> Value {
    json!({ "destination": target, "type": "bind", "source": source, "options": ["bind", "rw"] })
}

/// Runs a program as the host's root in separate mount, process and network namespaces, where it can create
/// device nodes in one directory only.
pub(crate) fn as_maker(place: &Path, argv: &[String]) -> Said {
    let script = "mount --bind \"$1\" \"$0\" && mount -o remount,bind,ro \"$0\" && mount --bind \"$2\" \"$0/mnt\" \
                  && mount -t proc proc \"$0/proc\" && mount -t tmpfs tmpfs \"$0/tmp\" && mount -t tmpfs tmpfs \"$0/dev\" && shift 2 && exec chroot \"$0\" \"$@\"";
    let root = tempfile::tempdir().unwrap();
    let output = Command::new("timeout")
        .args([
            "60",
            "unshare",
            "--mount",
            "--pid",
            "--net",
            "--ipc",
            "--fork",
            "--kill-child",
            "sh",
            "-c",
            script,
        ])
        .arg(root.path())
        .arg(e2e::layer::base())
        .arg(place)
        .args(argv)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    e2e::attack::count_control();
    Said::read(&text, &String::from_utf8_lossy(&output.stderr), output.status.code())
}
