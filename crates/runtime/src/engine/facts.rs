//! The capabilities that an engine reports.

use bollard::Docker;
use bollard::models::{SystemInfo, SystemInfoCgroupVersionEnum};
use serde::Deserialize;

use super::place::EngineEndpoint;
use crate::{Error, Spec};

/// Error text for an engine that has no delegated cgroup controllers.
const DELEGATE: &str = "the engine reports that it cannot enforce this limit; if it is rootless, delegate the controllers to it on cgroup version 2";

/// Properties and capabilities that an engine reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The engine's version.
    pub version: String,
    /// True if the engine runs without root. Root in a sandbox is then an unprivileged user on the engine's
    /// machine.
    pub rootless: bool,
    /// True if root in a sandbox maps to a different user on the engine's machine.
    pub remapped: bool,
    /// True if the engine is Podman, even if the user configured it as Docker.
    pub is_podman: bool,
    /// True if the engine cannot prevent a sandbox's memory from being swapped out.
    pub swaps: bool,
    /// True if a sandbox has its own cgroup namespace. Podman provides one only on machines with cgroup
    /// version 2.
    pub(super) separates_cgroups: bool,
    memory_bytes: u64,
}

/// The capabilities that Podman reports in its own API. In its Docker-compatible API, Podman also reports
/// limits that it cannot enforce.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Podman {
    #[serde(default)]
    cgroup_controllers: Vec<String>,
    #[serde(default)]
    cgroup_version: String,
    security: PodmanSecurity,
}

#[derive(Deserialize)]
struct PodmanSecurity {
    #[serde(default)]
    rootless: bool,
}

#[derive(Deserialize)]
struct PodmanInfo {
    host: Podman,
}

impl Podman {
    async fn ask(place: &EngineEndpoint) -> Result<Self, Error> {
        let PodmanInfo { host } = place.ask("/v4.0.0/libpod/info").await?;
        host.check()?;
        Ok(host)
    }

    /// Checks that the service can enforce limits.
    fn check(&self) -> Result<(), Error> {
        let limited = [("memory", "memory_bytes"), ("pids", "pids"), ("cpu", "cpu_millis")];
        let missing = limited.iter().find(|(name, _)| !self.cgroup_controllers.iter().any(|one| one == name));
        // With cgroup version 1, a service that runs as root may report no controllers even though it
        // enforces limits.
        let told = self.security.rootless || self.cgroup_version == "v2";
        let Some((_, what)) = missing.filter(|_| told) else { return Ok(()) };
        let why = match self.cgroup_version.as_str() {
            "v1" => "rootless Podman enforces no limits on cgroup version 1; boot with cgroup version 2 (`systemd.unified_cgroup_hierarchy=1`), or use the Podman service of root".into(),
            _ => format!("{DELEGATE}: run `systemctl edit user@.service` and add `Delegate=cpu cpuset io memory pids`"),
        };
        Err(Error::Unsupported { what, why })
    }
}

impl Facts {
    pub(super) async fn ask(docker: &Docker, place: &EngineEndpoint) -> Result<Self, Error> {
        let info = docker.info().await.map_err(|error| place.failed("report its capabilities", error))?;
        let version = docker.version().await.map_err(|error| place.failed("report its version", error))?;
        let parts = version.components.unwrap_or_default();
        let is_podman = parts.iter().any(|part| part.name.starts_with("Podman"));
        let podman = if is_podman { Some(Podman::ask(place).await?) } else { None };
        Self::check_info(&info, is_podman)?;
        let has = |option: &str| {
            let name = format!("name={option}");
            info.security_options.iter().flatten().any(|one| one.split(',').any(|part| part == name))
        };
        let rootless = has("rootless") || podman.is_some_and(|podman| podman.security.rootless);
        Ok(Self {
            version: version.version.unwrap_or_else(|| "unknown".into()),
            rootless,
            remapped: rootless || has("userns"),
            is_podman,
            separates_cgroups: !is_podman || info.cgroup_version != Some(SystemInfoCgroupVersionEnum::_1),
            swaps: info.swap_limit == Some(false),
            memory_bytes: info.mem_total.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0),
        })
    }

    /// Checks that the engine can enforce every sandbox's limits and system call filter.
    fn check_info(info: &SystemInfo, is_podman: bool) -> Result<(), Error> {
        let unsupported =
            |what: &'static str, why: &str| Err(Error::Unsupported { what, why: why.to_owned() });
        let seccomp = info.security_options.iter().flatten().any(|one| one.contains("seccomp"));
        match info {
            _ if info.os_type.as_deref().is_some_and(|os| os != "linux") => unsupported(
                "isolation",
                "the engine does not run Linux containers; switch it to Linux containers",
            ),
            _ if !is_same(info.architecture.as_deref().unwrap_or_default()) => unsupported(
                "isolation",
                "the engine's machine has another processor architecture than this machine, for which the guest is built; use an engine of the same architecture",
            ),
            _ if info.memory_limit == Some(false) => unsupported("memory_bytes", DELEGATE),
            _ if info.pids_limit == Some(false) => unsupported("pids", DELEGATE),
            // Podman looks for a file that exists only with cgroup version 1, so it reports false with
            // version 2. Its own API has been checked instead.
            _ if info.cpu_cfs_quota == Some(false) && !is_podman => unsupported("cpu_millis", DELEGATE),
            _ if !seccomp => {
                unsupported("the system call filter", "the engine has no seccomp; use an engine with seccomp")
            }
            _ => Ok(()),
        }
    }

    /// Checks that a spec does not exceed the capacity of the engine's machine.
    pub(super) fn check(&self, spec: &Spec) -> Result<(), Error> {
        if spec.limits.memory_bytes > self.memory_bytes {
            return Err(Error::Capacity {
                what: "memory",
                why: format!(
                    "{} bytes were requested, the engine's machine has {}",
                    spec.limits.memory_bytes, self.memory_bytes
                ),
            });
        }
        Ok(())
    }

    /// Returns the parts of the container tier's full isolation that this engine does not provide.
    pub(super) fn lacks(&self) -> Vec<String> {
        let mut lacks = Vec::new();
        if !self.remapped {
            lacks.push(
                "a user namespace: root in the sandbox is root on the engine's machine, although user code never runs as root; use a rootless engine, or Docker's `userns-remap`"
                    .to_owned(),
            );
        }
        lacks.push("a range of user ids per sandbox: all sandboxes of an engine share one range".to_owned());
        lacks.push("separate limits for user code: process 1 counts toward the same limits, so no new command can start when the process limit is reached".to_owned());
        let shared = match self.remapped {
            true => {
                "all sandboxes of an engine share the counts of the user that the engine runs as, which is root unless the engine is rootless"
            }
            false => {
                "all sandboxes of an engine share the counts of one user with each other and with that user's processes on the engine's machine"
            }
        };
        lacks.push(format!(
            "separate counts of inotify instances, pipes and queued signals per sandbox: {shared}"
        ));
        if self.remapped {
            lacks.push(
                "separate device nodes: with a user namespace, engines expose the machine's `/dev/null` and similar nodes, so watches and locks on them affect other sandboxes and the machine"
                    .to_owned(),
            );
        }
        lacks.push("a limit on file locks: file locks are not monitored".to_owned());
        lacks.push("a limit on socket buffers if the machine has cgroup version 1".to_owned());
        lacks.push(
            "hidden host paths: the mount table in the sandbox shows directories of the engine, and the cgroup files are those of the host".to_owned(),
        );
        lacks.push(
            "a disk: /workspace and the home directory are in memory and count toward the memory limit"
                .to_owned(),
        );
        lacks.push(
            "a limit on terminals: terminals of all sandboxes on a machine are counted together".to_owned(),
        );
        if self.is_podman {
            lacks.push("disk_inodes: Podman limits the size of files, not their number".to_owned());
        }
        if !self.separates_cgroups {
            lacks.push(
                "a cgroup namespace: on cgroup version 1, Podman shows a sandbox the names of its cgroups on the host".to_owned(),
            );
        }
        if self.swaps {
            lacks.push(
                "memory without swap: the engine's kernel cannot forbid swap; turn swap off on the engine's machine".to_owned(),
            );
        }
        lacks
    }
}

/// Returns true if this architecture, as named by an engine, is the architecture of this program.
fn is_same(architecture: &str) -> bool {
    let ours: &[&str] = match std::env::consts::ARCH {
        "x86_64" => &["x86_64", "amd64"],
        "aarch64" => &["aarch64", "arm64"],
        other => return architecture == other,
    };
    ours.contains(&architecture)
}
