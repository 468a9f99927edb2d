//! The container configuration of one sandbox: the same isolation and limits as with an OCI runtime, in the
//! engine's format.

use std::collections::HashMap;
use std::path::PathBuf;

use api::SandboxId;
use api::limits::Limits;
use bollard::models::{
    ContainerCreateBody, ContainerInspectResponse, ContainerState, ContainerStatsResponse,
    ContainerSummaryStateEnum, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig,
    ResourcesUlimits,
};

use crate::memory_disks::{disks, spool};
use crate::{Spec, Tier, Usage, confinement, seccomp};

/// Labels that hold the owner of a container and the ID of its sandbox.
const OWNER: &str = "dev.bellglass.owner";
const SANDBOX: &str = "dev.bellglass.sandbox";
/// Number of processes added to the process limit. They leave room for process 1, and for both an old and a
/// new exec of `guest connect`.
const OWN_PIDS: u64 = 5;
/// Maximum number of processes per user on the whole machine. This is the usual default on Linux.
const PROCESSES_MAX: u64 = 32_768;
/// System calls that are not allowed, but that C libraries and language runtimes try before they fall back to
/// older calls.
const UNKNOWN: [&str; 7] =
    ["cachestat", "clone3", "io_setup", "listmount", "memfd_secret", "set_mempolicy_home_node", "statmount"];
/// Directories in `/sys/fs` other than the cgroups. Some of them list the machine's disks by file system
/// type.
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
/// Files that show the memory usage of the machine's kernel. Only root may read them, but if an engine does
/// not use a user namespace, root in the sandbox is root on the machine.
const KERNEL_MEMORY: [&str; 6] = [
    "/proc/kpagecgroup",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/pagetypeinfo",
    "/proc/slabinfo",
    "/proc/vmallocinfo",
];
/// Path of the hosts file inside a sandbox.
pub(super) const HOSTS_AT: &str = "/etc/hosts";
/// The complete hosts file of a sandbox on Podman. It contains the same names that Docker writes.
pub(super) const HOSTS: &str =
    "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.0.1\tsandbox\n";
/// The container states during which process 1 is alive.
pub(super) const LIVES: [ContainerSummaryStateEnum; 2] =
    [ContainerSummaryStateEnum::RUNNING, ContainerSummaryStateEnum::PAUSED];

/// The engine that a container's configuration is written for, with engine-specific settings.
pub(super) enum Dialect {
    /// Docker's API.
    Docker,
    /// Podman's service, which reads the system call filter from a file on its machine, has a different
    /// option for masked paths, and does not support an inode limit or an owner for a tmpfs.
    Podman {
        /// Path of the file that contains the filter.
        filter: PathBuf,
        /// Path of a file that contains [`HOSTS`]. Without it, Podman would copy the machine's own hosts file
        /// and add the machine's address.
        hosts: PathBuf,
    },
}

impl Dialect {
    /// Returns the bind mounts from the machine. With Podman, the only one is Bellglass's hosts file. Without
    /// the `z` option, SELinux would deny access to this file.
    fn binds(&self) -> Option<Vec<String>> {
        match self {
            Self::Podman { hosts, .. } if !api::defence::is_off("I-14") => {
                Some(vec![format!("{}:{HOSTS_AT}:ro,z", hosts.display())])
            }
            Self::Docker | Self::Podman { .. } => None,
        }
    }
}

/// Returns the name of a sandbox's container.
pub(super) fn name(id: &SandboxId) -> String {
    format!("bellglass-{id}")
}

/// Returns the labels of a sandbox's container.
pub(super) fn labels(id: &SandboxId, owner: &str) -> HashMap<String, String> {
    HashMap::from([(OWNER.to_owned(), owner.to_owned()), (SANDBOX.to_owned(), id.to_string())])
}

/// Returns the label shared by all of an owner's containers, in the engines' filter format.
pub(super) fn owned(owner: &str) -> String {
    format!("{OWNER}={owner}")
}

/// Returns true if a container belongs to this owner.
pub(super) fn is_of(found: &ContainerInspectResponse, owner: &str) -> bool {
    let labels = found.config.as_ref().and_then(|config| config.labels.as_ref());
    labels.and_then(|labels| labels.get(OWNER)).is_some_and(|named| named == owner)
}

/// Returns the sandbox ID in a container's labels.
pub(super) fn id_in(labels: HashMap<String, String>) -> Option<SandboxId> {
    labels.get(SANDBOX)?.parse().ok()
}

/// Returns the complete container configuration.
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
        // If both values are equal, the sandbox cannot use swap.
        memory: number(limits.memory_bytes),
        memory_swap: number(limits.memory_bytes),
        nano_cpus: number(limits.cpu_millis.saturating_mul(1_000_000)),
        pids_limit: number(limits.pids + OWN_PIDS),
        shm_size: number(confinement::shared_bytes(limits)),
        ulimits: Some(ulimits(limits, dialect)),
        sysctls: Some(settings()),
        tmpfs: Some(tmpfs(limits, dialect)),
        readonly_rootfs: Some(true),
        network_mode: Some("none".into()),
        // Process 1 must be the guest, so the engine must not add its own init process, even if that is its
        // default.
        init: Some(false),
        // The sandbox's hostname resolves to this address, as on every other backend. Docker writes the rest
        // of the hosts file itself.
        extra_hosts: matches!(dialect, Dialect::Docker).then(|| vec!["sandbox:127.0.0.1".into()]),
        binds: dialect.binds(),
        // Without this, Docker would copy the machine's resolver configuration. Podman writes no resolver
        // configuration.
        dns: matches!(dialect, Dialect::Docker).then(|| vec!["127.0.0.1".into()]),
        dns_search: matches!(dialect, Dialect::Docker).then(|| vec![".".into()]),
        ipc_mode: Some("private".into()),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        // The output of process 1 is not needed, and must not fill the engine's disk.
        log_config: Some(HostConfigLogConfig { typ: Some("none".into()), config: None }),
        cap_drop: text(&["ALL"]),
        cap_add: Some(
            confinement::RUNS.iter().map(|name| name.trim_start_matches("CAP_").to_owned()).collect(),
        ),
        security_opt: Some(security(dialect)),
        masked_paths: Some(masked()),
        readonly_paths: text(&confinement::READ_ONLY),
        ..HostConfig::default()
    }
}

/// Returns the kernel settings for the sandbox's own network namespace, which are the same as for OCI
/// runtimes.
fn settings() -> HashMap<String, String> {
    let settings = confinement::settings(Tier::Container);
    let pairs = settings.as_object().into_iter().flatten();
    pairs.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
}

/// Returns the resource limits. Core files are disabled, and the limits on open files, queued signals and
/// message queues are the same as for OCI runtimes. Podman also needs an explicit process limit, because its
/// default exceeds the maximum on some machines. The effective process limit is the cgroup's limit.
fn ulimits(limits: &Limits, dialect: &Dialect) -> Vec<ResourcesUlimits> {
    let limit = |name: &str, value: u64| {
        let value = i64::try_from(value).ok();
        ResourcesUlimits { name: Some(name.into()), soft: value, hard: value }
    };
    let mut all = vec![
        limit("core", 0),
        limit("nofile", confinement::open_files(limits)),
        limit("sigpending", confinement::signals()),
        limit("msgqueue", confinement::queue_bytes()),
    ];
    if matches!(dialect, Dialect::Podman { .. }) {
        all.push(limit("nproc", PROCESSES_MAX));
    }
    all
}

/// Returns the hidden paths. The cgroups are not hidden, because process 1 reads its count of OOM kills
/// there.
fn masked() -> Vec<String> {
    let others = confinement::MASKED.into_iter().filter(|path| *path != "/sys/fs");
    others.chain(FILE_SYSTEMS).chain(KERNEL_MEMORY).map(str::to_owned).collect()
}

/// Returns the filter for engines that do not support a configurable default error and always use `EPERM`.
/// When a call returns `EPERM`, programs do not fall back to an older call. Starting a thread, for example,
/// would fail. Therefore the calls in [`UNKNOWN`] get explicit rules with `ENOSYS`.
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
        // If the root file system is read-only, Podman mounts these directories writable and without a size
        // limit, unless they are configured explicitly.
        for path in ["/run", "/var/tmp"] {
            mounts.insert(path.into(), "ro,noexec,nosuid,nodev,notmpcopyup,size=4096".into());
        }
    }
    mounts
}

/// Converts the engine's statistics of a container.
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
    fn disks_have_a_size_and_an_owner() {
        let limits = Limits::default();
        let mounts = tmpfs(&Limits { disk_bytes: 64 << 20, disk_inodes: 1024, ..limits }, &Dialect::Docker);
        assert!(mounts["/workspace"].contains("size=50331648,nr_inodes=768,mode=0755,uid=1000"));
        assert!(mounts["/home/sandbox"].contains("size=16777216,nr_inodes=256"));
        for (path, options) in mounts {
            assert!(options.contains("nosuid") && options.contains("nodev"), "{path}: {options}");
        }
    }
}
