//! What an engine is told of one sandbox: the same posture and limits that an OCI runtime is told, in the engine's words.

use std::collections::HashMap;
use std::path::PathBuf;

use api::SandboxId;
use api::limits::Limits;
use bollard::models::{
    ContainerCreateBody, ContainerInspectResponse, ContainerState, ContainerStatsResponse,
    ContainerSummaryStateEnum, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig,
    ResourcesUlimits,
};

use crate::oci::{config, seccomp};
use crate::{Error, Spec, Tier, Usage};

/// Says whose container it is, and of which sandbox.
const OWNER: &str = "dev.bellglass.owner";
const SANDBOX: &str = "dev.bellglass.sandbox";
/// What of the limit on processes is process 1's, and that of two execs of `guest connect`, an old one and a new one.
const OWN_PIDS: u64 = 5;
/// The part of the disk that is the home directory's; the rest is the workspace's.
const HOME_SHARE: u64 = 4;
/// One file for each of so many bytes.
const FILE_BYTES: u64 = 1024;
/// What is kept of output besides what process 1 has in memory, as a part of all memory, and at most.
const SPOOL_SHARE: u64 = 8;
const SPOOL_BYTES_MAX: u64 = 64 << 20;
/// Processes of one user on the whole machine, as Linux has them where nobody says otherwise.
const PROCESSES_MAX: u64 = 32_768;
/// Calls that are not allowed, and that C libraries and runtimes of languages try before they do without.
const UNKNOWN: [&str; 7] =
    ["cachestat", "clone3", "io_setup", "listmount", "memfd_secret", "set_mempolicy_home_node", "statmount"];
/// What else is in the directory of the cgroups: the disks of the machine, by kind.
const FILE_SYSTEMS: [&str; 9] = [
    "/sys/fs/bcache",
    "/sys/fs/bpf",
    "/sys/fs/btrfs",
    "/sys/fs/ext4",
    "/sys/fs/f2fs",
    "/sys/fs/fuse",
    "/sys/fs/pstore",
    "/sys/fs/selinux",
    "/sys/fs/xfs",
];
/// What says how the machine's kernel uses its memory. Only root may read it, and on an engine without a user namespace root inside is
/// root of the machine.
const KERNEL_MEMORY: [&str; 6] = [
    "/proc/kpagecgroup",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/pagetypeinfo",
    "/proc/slabinfo",
    "/proc/vmallocinfo",
];
/// Where a sandbox has its list of names.
pub(super) const HOSTS_AT: &str = "/etc/hosts";
/// The names that a sandbox of Podman's has, and no others: those that Docker writes.
pub(super) const HOSTS: &str =
    "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.0.1\tsandbox\n";
/// The states in which process 1 lives.
pub(super) const LIVES: [ContainerSummaryStateEnum; 2] =
    [ContainerSummaryStateEnum::RUNNING, ContainerSummaryStateEnum::PAUSED];

/// What differs between what engines understand.
pub(super) enum Dialect {
    /// Docker's own.
    Docker,
    /// Podman's service reads the filter of system calls from a file of its machine, knows another word for what is masked, and does
    /// not know how many files a memory disk may have, nor whose it is.
    Podman {
        /// Where the filter is.
        filter: PathBuf,
        /// Where [`HOSTS`] is: Podman would copy the machine's own list, and add the machine's address.
        hosts: PathBuf,
    },
}

impl Dialect {
    /// What of the machine is mounted: for Podman, our own list of names. `z` is for SELinux, which would hide it otherwise.
    fn binds(&self) -> Option<Vec<String>> {
        match self {
            Self::Podman { hosts, .. } if !api::defence::is_off("I-14") => {
                Some(vec![format!("{}:{HOSTS_AT}:ro,z", hosts.display())])
            }
            Self::Docker | Self::Podman { .. } => None,
        }
    }
}

/// The name of a sandbox's container.
pub(super) fn name(id: &SandboxId) -> String {
    format!("bellglass-{id}")
}

/// What a sandbox's container is labelled with.
pub(super) fn labels(id: &SandboxId, owner: &str) -> HashMap<String, String> {
    HashMap::from([(OWNER.to_owned(), owner.to_owned()), (SANDBOX.to_owned(), id.to_string())])
}

/// The label that all of an owner's containers have, as engines filter by it.
pub(super) fn owned(owner: &str) -> String {
    format!("{OWNER}={owner}")
}

/// Whether a container is this owner's.
pub(super) fn is_of(found: &ContainerInspectResponse, owner: &str) -> bool {
    let labels = found.config.as_ref().and_then(|config| config.labels.as_ref());
    labels.and_then(|labels| labels.get(OWNER)).is_some_and(|named| named == owner)
}

/// The sandbox that a container is labelled with.
pub(super) fn id_in(labels: HashMap<String, String>) -> Option<SandboxId> {
    labels.get(SANDBOX)?.parse().ok()
}

/// The largest disk: it is memory, and code has to have some too. The smallest there is is let through in any case.
fn disk_bytes_max(limits: &Limits) -> u64 {
    (limits.memory_bytes / 2).max(Limits::MIN.disk_bytes)
}

/// The most files: each costs kernel memory, which counts as well.
fn disk_inodes_max(limits: &Limits) -> u64 {
    limits.disk_bytes / FILE_BYTES
}

/// What of these can be held.
pub(crate) fn within(limits: Limits) -> Limits {
    let limits = Limits { disk_bytes: limits.disk_bytes.min(disk_bytes_max(&limits)), ..limits };
    Limits { disk_inodes: limits.disk_inodes.min(disk_inodes_max(&limits)), ..limits }
}

/// Refuses what cannot be held where files are memory.
pub(crate) fn check(limits: &Limits) -> Result<(), Error> {
    let (most, most_files) = (disk_bytes_max(limits), disk_inodes_max(limits));
    if limits.disk_inodes > most_files {
        return Err(Error::Unsupported {
            what: "disk_inodes",
            why: format!(
                "this backend keeps sandbox files in memory and cannot provide {} inodes; request {most_files} or fewer",
                limits.disk_inodes
            ),
        });
    }
    if limits.disk_bytes > most {
        return Err(Error::Unsupported {
            what: "disk_bytes",
            why: format!(
                "this backend keeps sandbox files in memory and cannot provide {} bytes; request {most} bytes or fewer, or request more memory",
                limits.disk_bytes
            ),
        });
    }
    Ok(())
}

/// All that the engine is told.
pub(super) fn body(
    spec: &Spec,
    image: String,
    dialect: &Dialect,
    labels: HashMap<String, String>,
) -> ContainerCreateBody {
    let words = ["/.bellglass/guest", "init", "--ttl-ms", &spec.limits.ttl_ms.to_string(), "--listen"];
    ContainerCreateBody {
        hostname: Some("sandbox".into()),
        user: Some("0:0".into()),
        env: Some(vec!["PATH=/usr/bin:/bin".into()]),
        entrypoint: Some(words.map(str::to_owned).to_vec()),
        cmd: Some(Vec::new()),
        healthcheck: Some(HealthConfig { test: Some(vec!["NONE".into()]), ..HealthConfig::default() }),
        image: Some(image),
        working_dir: Some("/".into()),
        labels: Some(labels),
        stop_signal: Some("SIGTERM".into()),
        host_config: Some(host(&spec.limits, dialect)),
        ..ContainerCreateBody::default()
    }
}

fn host(limits: &Limits, dialect: &Dialect) -> HostConfig {
    let number = |value: u64| i64::try_from(value).ok();
    let text = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect());
    HostConfig {
        // The same twice: no swap.
        memory: number(limits.memory_bytes),
        memory_swap: number(limits.memory_bytes),
        nano_cpus: number(limits.cpu_millis.saturating_mul(1_000_000)),
        pids_limit: number(limits.pids + OWN_PIDS),
        shm_size: number(config::shared_bytes(limits)),
        ulimits: Some(ulimits(limits, dialect)),
        sysctls: Some(settings()),
        tmpfs: Some(tmpfs(limits, dialect)),
        readonly_rootfs: Some(true),
        network_mode: Some("none".into()),
        // Process 1 is ours, whatever the engine puts there by default.
        init: Some(false),
        // As in every other sandbox. Docker writes the rest of that list itself.
        extra_hosts: matches!(dialect, Dialect::Docker).then(|| vec!["sandbox:127.0.0.1".into()]),
        binds: dialect.binds(),
        // Docker would copy the machine's own. Podman writes none.
        dns: matches!(dialect, Dialect::Docker).then(|| vec!["127.0.0.1".into()]),
        dns_search: matches!(dialect, Dialect::Docker).then(|| vec![".".into()]),
        ipc_mode: Some("private".into()),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        // What process 1 writes is for nobody, and must fill nobody's disk.
        log_config: Some(HostConfigLogConfig { typ: Some("none".into()), config: None }),
        cap_drop: text(&["ALL"]),
        cap_add: Some(config::RUNS.iter().map(|name| name.trim_start_matches("CAP_").to_owned()).collect()),
        security_opt: Some(security(dialect)),
        masked_paths: Some(masked()),
        readonly_paths: text(&config::READ_ONLY),
        ..HostConfig::default()
    }
}

/// What the sandbox's own network namespace is told, as everywhere.
fn settings() -> HashMap<String, String> {
    let settings = config::settings(Tier::Container);
    let pairs = settings.as_object().into_iter().flatten();
    pairs.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
}

/// Open files, waiting signals and message queues as everywhere, and no core files. Podman asks for more processes than some machines let it have, unless it is told a
/// number; the limit that counts is another.
fn ulimits(limits: &Limits, dialect: &Dialect) -> Vec<ResourcesUlimits> {
    let limit = |name: &str, value: u64| {
        let value = i64::try_from(value).ok();
        ResourcesUlimits { name: Some(name.into()), soft: value, hard: value }
    };
    let mut all = vec![
        limit("core", 0),
        limit("nofile", config::open_files(limits)),
        limit("sigpending", config::signals()),
        limit("msgqueue", config::queue_bytes()),
    ];
    if matches!(dialect, Dialect::Podman { .. }) {
        all.push(limit("nproc", PROCESSES_MAX));
    }
    all
}

/// What of the machine is hidden. Not the cgroups: process 1 reads its own count of memory kills there.
fn masked() -> Vec<String> {
    let others = config::MASKED.into_iter().filter(|path| *path != "/sys/fs");
    others.chain(FILE_SYSTEMS).chain(KERNEL_MEMORY).map(str::to_owned).collect()
}

/// The filter, for engines that do not know what is to be answered by default and say `EPERM`: where that is not what programs fall
/// back on, above all those that start threads, it is said call by call.
fn docker_filter() -> serde_json::Value {
    let mut filter = seccomp::filter(Tier::Container);
    let unknown =
        serde_json::json!({ "names": UNKNOWN, "action": "SCMP_ACT_ERRNO", "errnoRet": libc::ENOSYS });
    if let Some(rules) = filter.get_mut("syscalls").and_then(serde_json::Value::as_array_mut) {
        rules.push(unknown);
    }
    filter
}

fn security(dialect: &Dialect) -> Vec<String> {
    let mut options = vec!["no-new-privileges".to_owned()];
    match dialect {
        Dialect::Docker => options.push(format!("seccomp={}", docker_filter())),
        Dialect::Podman { filter, .. } => {
            options.push(format!("seccomp={}", filter.display()));
            options.push(format!("mask={}", masked().join(":")));
        }
    }
    options
}

/// The disks in memory that every sandbox has: where, and how Linux is told how large they are and whose.
pub(crate) fn disks(limits: &Limits) -> [(&'static str, u64, String); 3] {
    let home = limits.disk_bytes / HOME_SHARE;
    let inodes = limits.disk_inodes;
    let user = format!("mode=0755,uid={0},gid={0}", api::limits::UID);
    let disk = |path, bytes: u64, inodes: u64, mode: &str| {
        (path, bytes, format!("size={bytes},nr_inodes={inodes},{mode}"))
    };
    [
        disk("/workspace", limits.disk_bytes - home, inodes - inodes / HOME_SHARE, &user),
        disk("/home/sandbox", home, inodes / HOME_SHARE, &user),
        match limits.tmp_bytes {
            // All disks are memory here, within its one limit: this one is as large as the other.
            0 => disk("/tmp", limits.disk_bytes, inodes, "mode=1777"),
            bytes => disk("/tmp", bytes, config::tmp_inodes(limits), "mode=1777"),
        },
    ]
}

/// The same for what is kept of output.
pub(crate) fn spool(limits: &Limits) -> String {
    format!("size={},mode=0700", (limits.memory_bytes / SPOOL_SHARE).min(SPOOL_BYTES_MAX))
}

fn tmpfs(limits: &Limits, dialect: &Dialect) -> HashMap<String, String> {
    let told = |(path, bytes, options): (&str, u64, String)| match dialect {
        Dialect::Docker => (path.to_owned(), format!("rw,exec,nosuid,nodev,{options}")),
        Dialect::Podman { .. } => {
            (path.to_owned(), format!("rw,exec,nosuid,nodev,notmpcopyup,size={bytes},mode=1777"))
        }
    };
    let mut mounts: HashMap<String, String> = disks(limits).map(told).into();
    mounts.insert("/.bellglass/spool".into(), format!("rw,noexec,nosuid,nodev,{}", spool(limits)));
    if let Dialect::Podman { .. } = dialect {
        // Podman makes these writable, and without a limit, where the root is read-only.
        for path in ["/run", "/var/tmp"] {
            mounts.insert(path.into(), "ro,noexec,nosuid,nodev,notmpcopyup,size=4096".into());
        }
    }
    mounts
}

/// What a container uses, in our words.
pub(super) fn usage(stats: &ContainerStatsResponse, state: &ContainerState) -> Usage {
    let memory = stats.memory_stats.as_ref();
    let memory_bytes = memory.and_then(|memory| memory.usage).unwrap_or(0);
    let peak = memory.and_then(|memory| memory.max_usage).unwrap_or(0);
    let cpu = stats.cpu_stats.as_ref().and_then(|cpu| cpu.cpu_usage.as_ref()?.total_usage).unwrap_or(0);
    Usage {
        memory_bytes,
        memory_peak_bytes: peak.max(memory_bytes),
        sandbox_memory_bytes: memory_bytes,
        pids: stats.pids_stats.as_ref().and_then(|pids| pids.current).unwrap_or(0),
        oom_kills: u64::from(state.oom_killed == Some(true)),
        pids_refused: 0,
        cpu_us: cpu / 1000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_docker_would_not_know_by_default_is_not_allowed_anywhere() {
        let text = seccomp::filter(Tier::Container).to_string();
        for name in UNKNOWN {
            assert!(!text.contains(&format!("\"{name}\"")), "{name} has a rule already");
        }
        assert!(docker_filter().to_string().contains("clone3"));
    }

    #[test]
    fn files_are_memory_and_leave_half_of_it() {
        let limits = Limits::default();
        assert!(check(&limits).is_err(), "a disk larger than memory is refused, by its name");
        assert!(check(&Limits { disk_bytes: limits.memory_bytes / 2, ..limits }).is_ok());
        assert!(check(&Limits { memory_bytes: 16 << 20, tmp_bytes: 1 << 20, ..Limits::MIN }).is_ok());
        assert!(check(&Limits { disk_inodes: 1 << 30, ..Limits::MIN }).is_err());
        let mounts = tmpfs(&Limits { disk_bytes: 64 << 20, disk_inodes: 1024, ..limits }, &Dialect::Docker);
        assert!(mounts["/workspace"].contains("size=50331648,nr_inodes=768,mode=0755,uid=1000"));
        assert!(mounts["/home/sandbox"].contains("size=16777216,nr_inodes=256"));
        for (path, options) in mounts {
            assert!(options.contains("nosuid") && options.contains("nodev"), "{path}: {options}");
        }
    }
}
