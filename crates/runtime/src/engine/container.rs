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
const OWNER: &str = "dev.belljar.owner";
const SANDBOX: &str = "dev.belljar.sandbox";
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
const UNKNOWN: [&str; 6] =
    ["cachestat", "clone3", "listmount", "memfd_secret", "set_mempolicy_home_node", "statmount"];
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
    },
}

/// The name of a sandbox's container.
pub(super) fn name(id: &SandboxId) -> String {
    format!("belljar-{id}")
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
                "files of a sandbox are memory on this backend, and {} were asked for; ask for {most_files} or fewer",
                limits.disk_inodes
            ),
        });
    }
    if limits.disk_bytes > most {
        return Err(Error::Unsupported {
            what: "disk_bytes",
            why: format!(
                "files of a sandbox are memory on this backend, and {} bytes were asked for; ask for {most} or less, or for more memory",
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
    let words = ["/.belljar/guest", "init", "--ttl-ms", &spec.limits.ttl_ms.to_string(), "--listen"];
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
        ulimits: Some(ulimits(dialect)),
        tmpfs: Some(tmpfs(limits, dialect)),
        readonly_rootfs: Some(true),
        network_mode: Some("none".into()),
        // Process 1 is ours, whatever the engine puts there by default.
        init: Some(false),
        // As in every other sandbox; engines write the rest of that list themselves.
        extra_hosts: Some(vec!["sandbox:127.0.0.1".into()]),
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

/// Open files as everywhere, and no core files. Podman asks for more processes than some machines let it have, unless it is told a
/// number; the limit that counts is another.
fn ulimits(dialect: &Dialect) -> Vec<ResourcesUlimits> {
    let limit = |name: &str, value: u64| {
        let value = i64::try_from(value).ok();
        ResourcesUlimits { name: Some(name.into()), soft: value, hard: value }
    };
    let mut limits = vec![limit("core", 0), limit("nofile", config::open_files())];
    if matches!(dialect, Dialect::Podman { .. }) {
        limits.push(limit("nproc", PROCESSES_MAX));
    }
    limits
}

/// What of the machine is hidden. Not the cgroups: process 1 reads its own count of memory kills there.
fn masked() -> Vec<String> {
    let others = config::MASKED.into_iter().filter(|path| *path != "/sys/fs");
    others.chain(FILE_SYSTEMS).map(str::to_owned).collect()
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
        Dialect::Podman { filter } => {
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
    mounts.insert("/.belljar/spool".into(), format!("rw,noexec,nosuid,nodev,{}", spool(limits)));
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
