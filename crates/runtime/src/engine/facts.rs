//! What an engine says that it can enforce.

use bollard::Docker;
use bollard::models::{SystemInfo, SystemInfoCgroupVersionEnum};
use serde::Deserialize;

use super::place::Place;
use crate::{Error, Spec};

/// What is said of an engine that was given nothing to share out.
const DELEGATE: &str = "the engine says that it cannot; where it is rootless, delegate the controllers to it on cgroup version 2";

/// What an engine says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its version.
    pub version: String,
    /// Whether it runs without root: then root inside a sandbox is nobody outside.
    pub rootless: bool,
    /// Whether root inside a sandbox is another user outside.
    pub remapped: bool,
    /// Whether it is Podman, whatever it is called here.
    pub is_podman: bool,
    /// Whether its machine could swap what a sandbox has in memory.
    pub swaps: bool,
    /// Whether a sandbox has its own view of the cgroups. Podman gives it on version 2 only.
    pub(super) separates_cgroups: bool,
    memory_bytes: u64,
}

/// What Podman says of itself in its own words. In Docker's it says that it can limit what it cannot.
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
    async fn ask(place: &Place) -> Result<Self, Error> {
        let PodmanInfo { host } = place.ask("/v4.0.0/libpod/info").await?;
        host.check()?;
        Ok(host)
    }

    /// Refuses a service that cannot limit.
    fn check(&self) -> Result<(), Error> {
        let limited = [("memory", "memory_bytes"), ("pids", "pids"), ("cpu", "cpu_millis")];
        let missing = limited.iter().find(|(name, _)| !self.cgroup_controllers.iter().any(|one| one == name));
        let Some((_, what)) = missing.filter(|_| self.security.rootless) else { return Ok(()) };
        let why = match self.cgroup_version.as_str() {
            "v1" => "without root Podman limits nothing on cgroup version 1; boot with version 2 (`systemd.unified_cgroup_hierarchy=1`), or use the service of root".into(),
            _ => format!("{DELEGATE}: `systemctl edit user@.service`, `Delegate=cpu cpuset io memory pids`"),
        };
        Err(Error::Unsupported { what, why })
    }
}

impl Facts {
    pub(super) async fn ask(docker: &Docker, place: &Place) -> Result<Self, Error> {
        let info = docker.info().await.map_err(|error| place.failed("say what it can do", error))?;
        let version = docker.version().await.map_err(|error| place.failed("say what it is", error))?;
        let parts = version.components.unwrap_or_default();
        let is_podman = parts.iter().any(|part| part.name.starts_with("Podman"));
        Self::check_info(&info)?;
        let podman = if is_podman { Some(Podman::ask(place).await?) } else { None };
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

    /// Refuses an engine that cannot enforce what every sandbox has.
    fn check_info(info: &SystemInfo) -> Result<(), Error> {
        let unsupported =
            |what: &'static str, why: &str| Err(Error::Unsupported { what, why: why.to_owned() });
        let seccomp = info.security_options.iter().flatten().any(|one| one.contains("seccomp"));
        match info {
            _ if info.os_type.as_deref().is_some_and(|os| os != "linux") => {
                unsupported("isolation", "the engine runs no Linux containers; switch it to them")
            }
            _ if !is_same(info.architecture.as_deref().unwrap_or_default()) => unsupported(
                "isolation",
                "the engine's machine has another processor than this one, and the guest is for this one; use an engine of the same kind",
            ),
            _ if info.memory_limit == Some(false) => unsupported("memory_bytes", DELEGATE),
            _ if info.pids_limit == Some(false) => unsupported("pids", DELEGATE),
            _ if info.cpu_cfs_quota == Some(false) => unsupported("cpu_millis", DELEGATE),
            _ if !seccomp => {
                unsupported("the filter of system calls", "the engine has no seccomp; use one that has")
            }
            _ => Ok(()),
        }
    }

    /// Refuses what this engine's machine does not have.
    pub(super) fn check(&self, spec: &Spec) -> Result<(), Error> {
        if spec.limits.memory_bytes > self.memory_bytes {
            return Err(Error::Capacity {
                what: "memory",
                why: format!(
                    "{} bytes were asked for, the engine's machine has {}",
                    spec.limits.memory_bytes, self.memory_bytes
                ),
            });
        }
        Ok(())
    }

    /// What the default posture of a container has and this has not.
    pub(super) fn lacks(&self) -> Vec<String> {
        let mut lacks = Vec::new();
        if !self.remapped {
            lacks.push(
                "a user namespace: root inside, which no user code is, is root of the engine's machine; use a rootless engine, or Docker's `userns-remap`"
                    .to_owned(),
            );
        }
        lacks.push("a range of user ids for each sandbox: all of an engine share one".to_owned());
        lacks.push("limits of user code alone: process 1 shares them, and at the limit of processes no new command begins".to_owned());
        lacks.push("a disk: /workspace and the home directory are memory, and count as such".to_owned());
        lacks.push(
            "a limit on terminals: those of all sandboxes of a machine are counted together".to_owned(),
        );
        if self.is_podman {
            lacks.push("disk_inodes: Podman limits the size of files, not their number".to_owned());
        }
        if !self.separates_cgroups {
            lacks.push(
                "a cgroup namespace: on cgroup version 1 Podman shows a sandbox the names of its cgroups outside".to_owned(),
            );
        }
        if self.swaps {
            lacks.push(
                "memory without swap: the engine's kernel cannot forbid it; switch swap off there".to_owned(),
            );
        }
        lacks
    }
}

/// Whether an engine's name for its processor is that of this one.
fn is_same(architecture: &str) -> bool {
    let ours: &[&str] = match std::env::consts::ARCH {
        "x86_64" => &["x86_64", "amd64"],
        "aarch64" => &["aarch64", "arm64"],
        other => return architecture == other,
    };
    ours.contains(&architecture)
}
