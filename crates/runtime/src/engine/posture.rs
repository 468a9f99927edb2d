//! What process 1 says of itself, what the engine says of its container, and what should be.

use api::posture::Posture;
use bollard::models::{ContainerInspectResponse, HostConfig};

use super::facts::Facts;
use crate::oci::config;

/// The namespaces that Linux itself starts in, by the numbers that every kernel gives them.
pub(crate) const INITIAL: [(&str, &str); 4] = [
    ("pid", "pid:[4026531836]"),
    ("uts", "uts:[4026531838]"),
    ("ipc", "ipc:[4026531839]"),
    ("cgroup", "cgroup:[4026531835]"),
];
const INITIAL_USERS: &str = "user:[4026531837]";

/// What is not as it should be, one line each.
pub(super) fn differences(said: &Posture, found: &ContainerInspectResponse, facts: &Facts) -> Vec<String> {
    let initial = INITIAL.into_iter().filter(|(kind, _)| *kind != "cgroup" || facts.separates_cgroups);
    let mut differences = of_first(said, initial);
    let users = said.namespaces.get("user").is_some_and(|seen| seen != INITIAL_USERS);
    // One more than the engine knows of does no harm: it may be in one itself.
    if facts.remapped && !users {
        differences.push("a user namespace is false, not true".into());
    }
    differences.extend(told(found.host_config.as_ref()));
    differences
}

/// What of process 1 is not as it should be wherever files are memory, if it must not be in these namespaces.
pub(crate) fn of_first<'a>(said: &Posture, initial: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<String> {
    let mut differences = Vec::new();
    let mut expect = |what: &str, seen: String, wanted: &str| {
        if seen != wanted {
            differences.push(format!("{what} is {seen}, not {wanted}"));
        }
    };
    expect("uids", format!("{:?}", said.uids), "[0, 0, 0, 0]");
    expect("gids", format!("{:?}", said.gids), "[0, 0, 0, 0]");
    let others: Vec<u32> = said.groups.iter().copied().filter(|group| *group != 0).collect();
    expect("groups", format!("{others:?}"), "[]");
    expect("no_new_privileges", said.no_new_privileges.to_string(), "true");
    expect("seccomp", said.seccomp.to_string(), "2");
    expect("the core limit", said.core_bytes.to_string(), "0");
    let held = config::capability_bits(false);
    for (set, wanted) in [("CapPrm", held), ("CapEff", held), ("CapBnd", held), ("CapInh", 0), ("CapAmb", 0)]
    {
        let seen = said.capabilities.get(set).map_or("missing".into(), |bits| format!("{bits:#x}"));
        expect(set, seen, &format!("{wanted:#x}"));
    }
    for (kind, initial) in initial {
        let seen = said.namespaces.get(kind).map_or("missing", String::as_str);
        expect(&format!("the {kind} namespace"), (seen == initial || seen == "missing").to_string(), "false");
    }
    differences
}

/// What the engine has made of what it was told: one that does not know an option may leave it out.
fn told(host: Option<&HostConfig>) -> Vec<String> {
    let Some(host) = host else {
        return vec!["the engine does not say how it has confined the sandbox".into()];
    };
    let limited = |value: Option<i64>| value.is_some_and(|value| value > 0);
    let checks = [
        ("its root is read-only", host.readonly_rootfs == Some(true)),
        ("it has no network", host.network_mode.as_deref() == Some("none")),
        ("it is not privileged", host.privileged != Some(true)),
        ("its memory is limited", limited(host.memory)),
        ("its processes are limited", limited(host.pids_limit)),
        ("nothing of the machine is mounted", host.binds.as_ref().is_none_or(Vec::is_empty)),
        ("it has no device", host.devices.as_ref().is_none_or(Vec::is_empty)),
    ];
    checks
        .iter()
        .filter(|(_, holds)| !holds)
        .map(|(what, _)| format!("the engine does not say that {what}"))
        .collect()
}
