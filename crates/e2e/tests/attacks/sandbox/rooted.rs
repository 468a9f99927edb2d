//! Controls of the attacks by root of a sandbox, A-21 and U-12. Root of a room has all capabilities and no
//! filter, so there the same payload succeeds.

use std::path::Path;
use std::process::Command;

use super::field::{Said, payload};
use super::room::{BASE, Room, as_maker};

/// Attempts that only root of the whole machine can make, in one directory of a separate mount namespace.
const OF_MACHINE_ROOT: [&str; 4] = ["disk", "device", "trusted", "attribute"];
/// Attempt that needs the network in which the test runs.
const OVER_NETWORK: &str = "outside";

/// Asserts that without the defences each of these attempts of a payload succeeds.
pub(crate) fn assert_reached(id: &str, acts: &[&str]) {
    let copy = tempfile::Builder::new().prefix("bellglass-copy").tempdir().unwrap();
    let [place, kernel] = ["bellglass", "kernel"].map(|name| copy.path().join(name));
    std::fs::create_dir_all(place.join("channel")).unwrap();
    std::fs::create_dir_all(kernel.join("sys/kernel")).unwrap();
    std::fs::write(place.join("guest"), "guest").unwrap();
    std::fs::write(kernel.join("sys/kernel/panic"), "0\n").unwrap();
    let owner = BASE.to_string();
    assert!(Command::new("chown").args(["-R", &owner]).arg(copy.path()).status().unwrap().success());
    let (machine, rest): (Vec<&str>, Vec<&str>) =
        acts.iter().copied().partition(|act| OF_MACHINE_ROOT.contains(act));
    let (network, room): (Vec<&str>, Vec<&str>) = rest.into_iter().partition(|act| *act == OVER_NETWORK);
    assert_ok(id, &room, &in_room(id, copy.path(), &room, false));
    if !network.is_empty() {
        assert_ok(id, &network, &in_room(id, copy.path(), &network, true));
    }
    // A device that does no harm stands for the disk.
    let settings = ["DEVICES=/mnt", "DISK=c 1 5", "NODES=/tmp", "PROGRAM=/mnt/true"];
    let maker = tempfile::tempdir().unwrap();
    std::fs::copy("/bin/true", maker.path().join("true")).unwrap();
    assert_ok(id, &machine, &as_maker(maker.path(), &with(id, &settings, &machine)));
}

fn in_room(id: &str, copy: &Path, acts: &[&str], host_network: bool) -> Said {
    let binds = vec![(copy.to_owned(), "/media")];
    let room = Room { binds, host_network, ..Room::default() };
    let settings =
        ["PLACE=/media/bellglass", "KERNEL=/media/kernel", "NODES=/tmp", "FILE=/tmp/all", "MEBIBYTES=1"];
    room.run(&with(id, &settings, acts))
}

/// Returns the command line that makes only these attempts, with these settings.
fn with(id: &str, settings: &[&str], acts: &[&str]) -> Vec<String> {
    let mut argv = vec!["/usr/bin/env".to_owned(), format!("ONLY={}", acts.join(" "))];
    argv.extend(settings.iter().map(|setting| (*setting).to_owned()));
    argv.extend(payload(id, &[]));
    argv
}

fn assert_ok(id: &str, acts: &[&str], said: &Said) {
    let wanted: Vec<(&str, &str)> = acts.iter().map(|act| (*act, "ok")).collect();
    said.assert(&format!("control of {id}"), &wanted);
}

/// Asserts that a payload made each of these attempts, and that nothing succeeded.
pub(crate) fn assert_held(said: &Said, acts: &[&str]) {
    let wanted: Vec<(&str, &str)> = acts.iter().map(|act| (*act, "held")).collect();
    said.assert("root", &wanted);
    for (thing, result) in said.all(acts.len()) {
        assert!(result != "ok" && result != "missing", "{thing} {result}: {}", said.raw);
    }
}
