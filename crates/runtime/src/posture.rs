//! Compares the posture (privileges and isolation) that process 1 reports about itself with the expected one.

use api::posture::Posture;

use crate::confinement;

/// The initial namespaces of Linux. Their numbers are the same on every kernel.
pub(crate) const INITIAL: [(&str, &str); 4] = [
    ("pid", "pid:[4026531836]"),
    ("uts", "uts:[4026531838]"),
    ("ipc", "ipc:[4026531839]"),
    ("cgroup", "cgroup:[4026531835]"),
];

/// Returns the differences between process 1's posture and the expected one, on backends that keep a
/// sandbox's files in memory. `initial` contains the namespaces that process 1 must not be in.
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
    let held = confinement::capability_bits(false);
    for (set, wanted) in [("CapPrm", held), ("CapEff", held), ("CapBnd", held), ("CapInh", 0), ("CapAmb", 0)]
    {
        let seen = said.capabilities.get(set).map_or("missing".into(), |bits| format!("{bits:#x}"));
        expect(set, seen, &format!("{wanted:#x}"));
    }
    for (kind, initial) in initial {
        let seen = said.namespaces.get(kind).map_or("missing", String::as_str);
        expect(
            &format!("use of the initial {kind} namespace"),
            (seen == initial || seen == "missing").to_string(),
            "false",
        );
    }
    differences
}
