//! Compares the posture (privileges and isolation) that process 1 reports, and the configuration that the
//! engine reports, with the expected values.

use api::posture::Posture;
use bollard::models::{ContainerInspectResponse, HostConfig};

use super::facts::Facts;
use crate::posture::{INITIAL, of_first};

const INITIAL_USERS: &str = "user:[4026531837]";

/// Returns the differences from the expected posture, one line each.
pub(super) fn differences(said: &Posture, found: &ContainerInspectResponse, facts: &Facts) -> Vec<String> {
    let initial = INITIAL.into_iter().filter(|(kind, _)| *kind != "cgroup" || facts.separates_cgroups);
    let mut differences = of_first(said, initial);
    let users = said.namespaces.get("user").is_some_and(|seen| seen != INITIAL_USERS);
    // An unexpected additional user namespace is harmless: the engine itself may run in one.
    if facts.remapped && !users {
        differences.push("the sandbox does not have a separate user namespace".into());
    }
    differences.extend(told(found.host_config.as_ref()));
    differences.extend(found.host_config.iter().flat_map(|host| limits(said, host)));
    differences
}

/// Returns the differences between the limits that the engine reports and the limits that the kernel
/// enforces. Podman reports limits even if its runtime could not set them.
fn limits(said: &Posture, host: &HostConfig) -> Vec<String> {
    let positive =
        |value: Option<i64>| value.and_then(|value| u64::try_from(value).ok()).filter(|value| *value > 0);
    let quota = || Some(positive(host.cpu_quota)?.saturating_mul(1000) / positive(host.cpu_period)?);
    let told = [
        ("memory", positive(host.memory)),
        ("pids", positive(host.pids_limit)),
        ("cpu", positive(host.nano_cpus).map(|nanos| nanos / 1_000_000).or_else(quota)),
    ];
    let holds = |(name, told): &(&str, Option<u64>)| {
        let held = said.cgroup.get(*name);
        held.zip(*told).is_some_and(|(held, told)| *held <= told)
    };
    let text = |limit: Option<&u64>| limit.map_or("none".into(), u64::to_string);
    let wrong = told.iter().filter(|one| !holds(one));
    wrong
        .map(|(name, told)| {
            format!(
                "the cgroup's {name} limit is {}, not {}",
                text(said.cgroup.get(*name)),
                text(told.as_ref())
            )
        })
        .collect()
}

/// Returns the expected settings that are missing from the configuration that the engine reports. A setting
/// can be missing because an engine may ignore options that it does not know.
fn told(host: Option<&HostConfig>) -> Vec<String> {
    let Some(host) = host else {
        return vec!["the engine does not report the host configuration of the sandbox".into()];
    };
    let limited = |value: Option<i64>| value.is_some_and(|value| value > 0);
    let checks = [
        ("the root of the sandbox is read-only", host.readonly_rootfs == Some(true)),
        ("the sandbox has no network", host.network_mode.as_deref() == Some("none")),
        ("the sandbox is not privileged", host.privileged != Some(true)),
        ("the memory of the sandbox is limited", limited(host.memory)),
        ("the processes of the sandbox are limited", limited(host.pids_limit)),
        (
            "the sandbox mounts nothing from the machine",
            host.binds.iter().flatten().all(|bind| is_hosts(bind)),
        ),
        ("the sandbox has no devices", host.devices.as_ref().is_none_or(Vec::is_empty)),
    ];
    checks
        .iter()
        .filter(|(_, holds)| !holds)
        .map(|(what, _)| format!("the engine does not report that {what}"))
        .collect()
}

/// Returns true if a bind mount is for Bellglass's hosts file.
fn is_hosts(bind: &str) -> bool {
    bind.split(':').nth(1) == Some(super::container::HOSTS_AT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_only_the_engine_tells_of_are_differences() {
        let host = HostConfig {
            memory: Some(128 << 20),
            pids_limit: Some(36),
            nano_cpus: Some(500_000_000),
            ..HostConfig::default()
        };
        let held = |all: &[(&str, u64)]| Posture {
            cgroup: all.iter().map(|(name, limit)| ((*name).to_owned(), *limit)).collect(),
            ..Posture::default()
        };
        let right = [("memory", 128 << 20), ("pids", 36), ("cpu", 500)];
        assert_eq!(limits(&held(&right), &host), Vec::<String>::new());
        // In the first case, crun runs without its own cgroup. The second case uses the value that cgroup
        // version 1 reports for unlimited memory.
        assert_eq!(limits(&held(&[]), &host).len(), 3);
        let wide = limits(&held(&[("memory", 9_223_372_036_854_771_712), ("pids", 36), ("cpu", 500)]), &host);
        assert_eq!(wide, ["the cgroup's memory limit is 9223372036854771712, not 134217728"]);
        let quota = HostConfig {
            nano_cpus: None,
            cpu_quota: Some(50_000),
            cpu_period: Some(100_000),
            ..host.clone()
        };
        assert_eq!(limits(&held(&right), &quota), Vec::<String>::new());
        let silent = HostConfig { nano_cpus: None, ..host };
        assert_eq!(limits(&held(&right), &silent), ["the cgroup's cpu limit is 500, not none"]);
    }
}
