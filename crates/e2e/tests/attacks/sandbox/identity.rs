//! Attacks I-11 and A-22: the image's Python as the parent of interpreters, and root processes in a
//! workstation that leave their exec.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use api::code::Code;
use api::exec::{ExecSpec, Outcome};
use e2e::lab::{collect, sh, start, text};
use node::Sandbox;
use runtime::{Profile, Spec};

use super::field::{Field, OCI, OCI_BOTH, Said, THROUGH, payload, small, withstand};
use super::group::{beats, until_beating};
use super::room::Room;

/// Capabilities that the parent of interpreters may keep: SETGID and SETUID, as a hexadecimal mask.
const KEPT: &str = "c0";
/// Attempts that the payload of I-11 makes to become root, or to access files and memory that only root may
/// access.
const ACTS: [&str; 10] = [
    "setresuid",
    "setreuid",
    "setuid",
    "setfsuid",
    "setresgid",
    "wide setuid",
    "list",
    "list as root's group",
    "write",
    "memory of process 1",
];
/// The attempts that reach beyond a user namespace.
const OUTSIDE: [&str; 4] = ["list", "list as root's group", "write", "memory of process 1"];

/// Creates a layer that replaces `python3` with an attack's payload.
pub(crate) fn as_python(id: &str) -> tempfile::TempDir {
    let layer = tempfile::tempdir().unwrap();
    std::fs::set_permissions(layer.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let directory = layer.path().join("usr/local/bin");
    std::fs::create_dir_all(&directory).unwrap();
    let python = directory.join("python3");
    std::fs::write(&python, script(id)).unwrap();
    for path in [layer.path().join("usr"), layer.path().join("usr/local"), directory, python] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    layer
}

fn script(id: &str) -> String {
    format!("#!/usr/bin/python3 -I\n{}", payload(id, &[])[2])
}

/// Returns the spec of a sandbox that has this additional layer.
pub(crate) fn spec_with(field: &Field<'_>, layer: &tempfile::TempDir) -> Spec {
    let mut spec = field.lab.spec(small());
    spec.layers.push(layer.path().to_owned());
    spec
}

/// Starts the parent of interpreters, which is the payload. It never reports that it is ready, so this
/// function takes the payload's output from the error.
pub(crate) async fn words_of_parent(sandbox: &Sandbox) -> Said {
    let code = Code { source: "1".into(), ..Code::default() };
    let spec = ExecSpec { code: Some(code), deadline_ms: Some(30_000), ..ExecSpec::default() };
    let error = start(sandbox, &spec).await.err().expect("it never says that it is ready").to_api();
    let said = Said::so_far(&error.message);
    assert!(said.raw.contains("begun yes"), "{}", said.raw);
    said
}

fn assert_unprivileged(place: &str, said: &Said) {
    said.assert(place, &[("user", "65533"), ("CapEff", KEPT), ("CapPrm", KEPT), ("CapBnd", "0")]);
    for act in ACTS {
        said.assert(place, &[(act, "EPERM|EACCES")]);
    }
}

/// Verifies that attack I-11 (findings IM1 and L2) fails: the image's Python never runs as root.
#[test]
#[ignore = "starts real sandboxes"]
fn the_python_of_an_image_is_never_root() {
    withstand("I-11", OCI_BOTH, async |field| {
        let outside = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(outside.path(), Some(super::room::BASE), Some(super::room::BASE)).unwrap();
        let room = Room { binds: vec![(outside.path().to_owned(), "/media")], ..Room::default() };
        let control = room.attack("I-11", &["/media"]);
        assert_eq!(control.code, Some(THROUGH), "{}", control.raw);
        control.assert("control", &[("user", "0")]);
        for act in ACTS {
            control.assert("control", &[(act, "ok")]);
        }
        let layer = as_python(field.id);
        let spec = spec_with(field, &layer);
        let undefended = {
            let _undefended = super::field::turn_off("I-11");
            Sandbox::start(Arc::clone(&field.lab.runtime), field.lab.id(), &spec).await.unwrap()
        };
        let said = words_of_parent(&undefended).await;
        said.assert("control", &[("user", "0"), ("list", "ok"), ("write", "ok")]);
        undefended.stop(Duration::ZERO).await.unwrap();
        let sandbox = Sandbox::start(Arc::clone(&field.lab.runtime), field.lab.id(), &spec).await.unwrap();
        let said = words_of_parent(&sandbox).await;
        if field.is_container() {
            assert_unprivileged("sandbox", &said);
        } else {
            // The payload is root of a separate user namespace, in which root is user 65533 of the sandbox.
            // It can therefore access nothing that belongs to root or to the guest.
            said.assert(
                "gVisor",
                &[("user", "0"), ("root is", "65533"), ("CapEff", "1c0"), ("CapBnd", "1c0")],
            );
            for act in OUTSIDE {
                said.assert("gVisor", &[(act, "EPERM|EACCES")]);
            }
        }
        field.recovers(&sandbox).await;
        if field.is_container() {
            of_a_workstation(field).await;
        }
        let honest = field.sandbox().await;
        let source =
            "import ctypes, os; print(ctypes.CDLL(None).unshare(0x10000000), os.getuid(), os.getgroups())";
        let code = Code { source: source.into(), ..Code::default() };
        let done = collect(&honest, &ExecSpec { code: Some(code), ..ExecSpec::default() }).await;
        assert!(text(&done).starts_with("-1 1000 [2"), "{done:?}");
        field.recovers(&honest).await;
    });
}

/// Checks finding L2: if root of a workstation replaces Python, the guest does not run the replacement as
/// root.
async fn of_a_workstation(field: &Field<'_>) {
    let spec = Spec { profile: Profile::Rooted, ..field.lab.spec(small()) };
    let sandbox = Sandbox::start(Arc::clone(&field.lab.runtime), field.lab.id(), &spec).await.unwrap();
    let argv = ["sh", "-c", "printf %s \"$0\" > /usr/local/bin/python3 && chmod 755 /usr/local/bin/python3"];
    let argv = argv.iter().map(|word| (*word).to_owned()).chain([script(field.id)]).collect();
    let done = collect(&sandbox, &ExecSpec { argv, uid: Some(0), ..ExecSpec::default() }).await;
    assert_eq!(done.end.outcome, Outcome::Exited { code: 0 }, "{done:?}");
    assert_unprivileged("workstation", &words_of_parent(&sandbox).await);
    field.recovers(&sandbox).await;
}

/// Verifies that attack A-22 (finding L3) fails: a root process that leaves its group is killed with its
/// exec.
#[test]
#[ignore = "starts real sandboxes"]
fn root_that_leaves_its_group_ends_with_its_exec() {
    withstand("A-22", OCI, async |field| {
        let spec = Spec { profile: Profile::Rooted, ..field.lab.spec(small()) };
        let sandbox = Sandbox::start(Arc::clone(&field.lab.runtime), field.lab.id(), &spec).await.unwrap();
        let as_root = |way: &str| ExecSpec { uid: Some(0), grace_ms: Some(0), ..field.payload(&[way]) };
        let undefended = {
            let _undefended = super::field::turn_off("A-22");
            Sandbox::start(Arc::clone(&field.lab.runtime), field.lab.id(), &spec).await.unwrap()
        };
        let done = collect(&undefended, &ExecSpec { deadline_ms: Some(1500), ..as_root("stay") }).await;
        assert_eq!(done.end.outcome, Outcome::Timeout, "control: {done:?}");
        assert!(beats(&undefended, "stay").await, "control: it survives the deadline of its exec");
        undefended.stop(Duration::ZERO).await.unwrap();
        // If the exec exits normally, the process survives without a group, and is counted as left running.
        let done = collect(&sandbox, &as_root("leave")).await;
        assert_eq!((&done.end.outcome, done.end.left_running), (&Outcome::Exited { code: 0 }, 1), "{done:?}");
        until_beating(&sandbox, "leave").await;
        let groups = "grep -L 'Groups:.*[0-9]' /proc/[0-9]*/status 2>/dev/null | grep -vc '^/proc/1/'";
        assert_eq!(text(&sh(&sandbox, groups).await), "1\n", "control: it has left its group");
        let other = start(&sandbox, &e2e::lab::exec(&["sleep", "60"])).await.unwrap();
        let done = collect(&sandbox, &ExecSpec { deadline_ms: Some(1500), ..as_root("stay") }).await;
        assert_eq!((&done.end.outcome, done.end.left_running), (&Outcome::Timeout, 0), "{done:?}");
        assert!(!beats(&sandbox, "stay").await, "it survived the deadline of its exec");
        let exec = start(&sandbox, &as_root("stay")).await.unwrap();
        until_beating(&sandbox, "stay").await;
        exec.cancel().await.unwrap();
        assert_eq!(exec.collect().await.unwrap().end.outcome, Outcome::Cancelled);
        assert!(!beats(&sandbox, "stay").await, "it survived the cancellation of its exec");
        // Processes that started earlier, and processes of other execs, keep running.
        assert!(beats(&sandbox, "leave").await, "what an earlier exec left behind was ended");
        assert_eq!(other.signal(15).await.unwrap(), 1, "another exec was ended");
        tokio::time::sleep(Duration::from_millis(10)).await;
        field.recovers(&sandbox).await;
    });
}
