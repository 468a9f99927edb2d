//! Attacks of group X: two sandboxes share no inode with each other or with the host. There is therefore no
//! inode to watch, to lock, to slow down, or from which to read a host name.

use std::collections::BTreeSet;
use std::time::Instant;

use api::exec::{ExecSpec, Outcome};
use e2e::lab::{collect, sh, start};
use node::{Event, Exec, Sandbox};

use super::field::{BOTH, Field, OCI, OCI_BOTH, Said, THROUGH, payload, withstand};
use super::room::Room;

/// Number of locks in attack X-22. On a shared inode, this many locks make each `open` a hundred times
/// slower. The payload can take them within seconds.
const LOCKS: &str = "5000";
/// Commands that the victim runs while the attacker watches it.
const HARMLESS: &str =
    "cat /etc/debian_version >/dev/null; sha256sum /usr/bin/cat </dev/null; head -c1 /dev/zero | cat";

/// Verifies that attack X-20 fails: a sandbox cannot see which files a neighbouring sandbox opens.
#[test]
#[ignore = "starts real sandboxes"]
fn nobody_sees_what_a_neighbour_opens() {
    withstand("X-20", BOTH, async |field| {
        let (spy, victim) = (field.sandbox().await, field.sandbox().await);
        let own = watch(field, &spy, &spy).await;
        assert!(own.number("events") > 0 && own.number("watched") > 5, "control: {}", own.raw);
        e2e::attack::count_control();
        let said = watch(field, &spy, &victim).await;
        said.assert("sandbox", &[("events", "0")]);
        said.assert_held("sandbox");
        let on_host = {
            let spying = ready(&spy, &field.payload(&[])).await;
            for name in ["null", "zero", "urandom"] {
                std::fs::File::open(format!("/dev/{name}")).unwrap();
            }
            ended(spying).await
        };
        on_host.assert("host", &[("events", "0")]);
        field.recovers(&spy).await;
        field.recovers(&victim).await;
    });
}

/// Verifies that attack X-20 fails on runtimes where the control can disable the defence: every file system
/// of a sandbox has its own device number.
#[test]
#[ignore = "starts real sandboxes"]
fn every_file_system_of_a_sandbox_is_its_own() {
    withstand("X-20", OCI, async |field| {
        let undefended = ["X-20", "X-21"].map(super::field::turn_off);
        let (spy, victim) = (field.sandbox().await, field.sandbox().await);
        let control = watch(field, &spy, &victim).await;
        assert_eq!(control.code, Some(THROUGH), "control: {}", control.raw);
        assert!(control.raw.contains("debian_version"), "control: {}", control.raw);
        assert!(devices(&spy).await.intersection(&devices(&victim).await).next().is_some(), "control");
        drop(undefended);
        let (one, other) = (devices(&field.sandbox().await).await, devices(&field.sandbox().await).await);
        let host = numbers(&std::fs::read_to_string("/proc/self/mountinfo").unwrap());
        assert!(one.len() >= 8, "{one:?}");
        assert_eq!(one.intersection(&other).next(), None, "{one:?} {other:?}");
        assert_eq!(one.intersection(&host).next(), None, "{one:?} {host:?}");
    });
}

/// Verifies that attack X-21 fails: a neighbour's locks cannot be detected.
#[test]
#[ignore = "starts real sandboxes"]
fn no_lock_of_a_neighbour_is_felt() {
    withstand("X-21", BOTH, async |field| {
        let (sender, listener) = (field.sandbox().await, field.sandbox().await);
        let sending = ready(&sender, &field.payload(&["send", "SECRET"])).await;
        let own = field.attack(&sender, &["hear"]).await;
        own.assert("control", &[("word", "SECRET")]);
        assert!(own.number("blocked") > 0, "control: {}", own.raw);
        e2e::attack::count_control();
        let said = field.attack(&listener, &["hear"]).await;
        said.assert("sandbox", &[("word", "-"), ("blocked", "0"), ("heard", "0")]);
        said.assert_held("sandbox");
        assert!(said.number("tried") > 5, "{}", said.raw);
        ended(sending).await;
        field.recovers(&listener).await;
    });
}

/// Runs the control for attack X-21: with the defence disabled, a neighbour can detect locks on shared
/// inodes.
#[test]
#[ignore = "starts real sandboxes"]
fn locks_on_shared_inodes_would_be_felt() {
    withstand("X-21", OCI, async |field| {
        let _undefended = ["X-20", "X-21"].map(super::field::turn_off);
        let (sender, listener) = (field.sandbox().await, field.sandbox().await);
        let sending = ready(&sender, &field.payload(&["send", "SECRET"])).await;
        let control = field.attack(&listener, &["hear"]).await;
        control.assert("control", &[("word", "SECRET")]);
        assert!(control.raw.contains("heard-at /dev/zero"), "{}", control.raw);
        assert!(control.number("blocked") > 0, "{}", control.raw);
        ended(sending).await;
    });
}

/// Verifies that attack X-22 fails: locks slow down only the sandbox that holds them.
#[test]
#[ignore = "starts real sandboxes"]
fn locks_slow_down_only_who_holds_them() {
    withstand("X-22", BOTH, async |field| {
        field.has_no_control("it is `locks_on_shared_inodes_would_slow_down_everybody`");
        let (holder, victim) = (field.sandbox().await, field.sandbox().await);
        let before = field.attack(&victim, &["measure"]).await;
        let holding = ready(&holder, &field.payload(&["hold", LOCKS])).await;
        let during = field.attack(&victim, &["measure"]).await;
        ended(holding).await;
        println!("X-22 {}: {} then {} ns", field.lab.runtime.name(), before.raw, during.raw);
        for thing in ["zero", "libc.so.6"] {
            let (quiet, slowed) = (before.number(thing), during.number(thing));
            assert!(slowed < quiet * 3 + 20_000, "{thing}: {quiet} ns became {slowed} ns");
        }
        field.recovers(&victim).await;
    });
}

/// Runs the control for attack X-22: with the defence disabled, locks on shared inodes slow down the other
/// sandbox and the host.
#[test]
#[ignore = "starts real sandboxes"]
fn locks_on_shared_inodes_would_slow_down_everybody() {
    withstand("X-22", OCI, async |field| {
        let _undefended = ["X-20", "X-21"].map(super::field::turn_off);
        let (holder, victim) = (field.sandbox().await, field.sandbox().await);
        let before = (field.attack(&victim, &["measure"]).await, opens_on_host());
        let holding = ready(&holder, &field.payload(&["hold", LOCKS])).await;
        let during = (field.attack(&victim, &["measure"]).await, opens_on_host());
        ended(holding).await;
        println!("X-22 undefended: {} {} then {} {}", before.0.raw, before.1, during.0.raw, during.1);
        assert!(during.0.number("zero") > 10 * before.0.number("zero"), "control: {}", during.0.raw);
        assert!(during.1 > 10 * before.1, "control: the host's opens took {} then {} ns", before.1, during.1);
    });
}

/// Verifies that attack X-23 fails: no name of the host is visible in a sandbox.
#[test]
#[ignore = "starts real sandboxes"]
fn no_name_of_the_host_is_shown() {
    withstand("X-23", OCI_BOTH, async |field| {
        // The layer's key is the name of the directory that contains the layer's files.
        let layer = e2e::layer::base();
        let layer = layer.parent().unwrap().file_name().unwrap().to_string_lossy().into_owned();
        let control = Room::default().attack("X-23", &[]);
        assert!(control.raw.contains(&layer), "control: {}", control.raw);
        let sandbox = field.sandbox().await;
        let words = payload("X-23", &[]);
        let on_host = std::process::Command::new("python3").args(&words[1..]).output().unwrap();
        assert!(String::from_utf8_lossy(&on_host.stdout).contains("listed /sys/block/loop"), "control");
        let said = field.attack(&sandbox, &[]).await;
        let data = field.lab.data().to_string_lossy().into_owned();
        let guest =
            field.lab.machine.guest().parent().unwrap().file_name().unwrap().to_string_lossy().into_owned();
        for name in
            [data.as_str(), &layer, &guest, sandbox.id().as_str(), "sandboxes", "/dev/loop", "listed "]
        {
            assert!(!said.raw.contains(name), "{name} is shown:\n{}", said.raw);
        }
        assert!(said.raw.contains("/workspace"), "nothing was read: {}", said.raw);
        field.recovers(&sandbox).await;
    });
}

/// Runs the payload in one sandbox while another sandbox runs harmless commands. Returns the payload's
/// results.
async fn watch(field: &Field<'_>, spy: &Sandbox, victim: &Sandbox) -> Said {
    let spying = ready(spy, &field.payload(&[])).await;
    let done = sh(victim, HARMLESS).await;
    assert_eq!(done.end.outcome, Outcome::Exited { code: 0 });
    ended(spying).await
}

/// Starts a payload and waits until it reports that it is ready.
pub(crate) async fn ready(sandbox: &Sandbox, spec: &ExecSpec) -> Exec {
    let mut exec = start(sandbox, spec).await.unwrap();
    let mut seen = String::new();
    while !seen.contains("ready\n") {
        match exec.next().await.unwrap() {
            Some(Event::Data { bytes, .. }) => seen.push_str(&String::from_utf8_lossy(&bytes)),
            other => panic!("it ended before it was ready: {seen} {other:?}"),
        }
    }
    exec
}

/// Terminates a payload and returns the results that it has printed since it was ready.
pub(crate) async fn ended(exec: Exec) -> Said {
    exec.signal(15).await.unwrap();
    super::field::said(&exec.collect().await.unwrap())
}

/// Returns the device numbers of all file systems that are visible in a sandbox.
async fn devices(sandbox: &Sandbox) -> BTreeSet<String> {
    let done = collect(sandbox, &e2e::lab::exec(&["cat", "/proc/self/mountinfo"])).await;
    numbers(&e2e::lab::text(&done))
}

fn numbers(mountinfo: &str) -> BTreeSet<String> {
    mountinfo.lines().filter_map(|line| line.split(' ').nth(2)).map(str::to_owned).collect()
}

/// Returns the median time to open and close `/dev/zero` on the host, in nanoseconds.
fn opens_on_host() -> u64 {
    let mut taken: Vec<u128> = (0..200)
        .map(|_| {
            let began = Instant::now();
            drop(std::fs::File::open("/dev/zero").unwrap());
            began.elapsed().as_nanos()
        })
        .collect();
    taken.sort_unstable();
    u64::try_from(taken[100]).unwrap()
}
