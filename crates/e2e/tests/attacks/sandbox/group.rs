//! Attacks of group G: leaving the group ID that identifies the processes of an exec. A payload keeps
//! appending to a file, so that the tests can see whether it is still alive.

use std::time::Duration;

use api::exec::{Background, ExecSpec, Outcome};
use e2e::lab::{collect, sh, start, text};
use node::Sandbox;

use super::field::{BOTH, Field, OCI_BOTH, withstand};
use super::room::Room;

/// A group ID in the range of exec groups.
const GROUP: u32 = 20_001;
/// Time between two checks of a payload's file. The payload appends to it fifty times a second.
const LISTENING: Duration = Duration::from_millis(400);
/// Ways in which a process can hide without leaving the group.
const WAYS: [&str; 5] = ["session", "chain", "replace", "renamed", "heir"];

/// Verifies that attack G-01 fails: no process can leave the group of its exec.
#[test]
#[ignore = "starts real sandboxes"]
fn no_process_can_lose_the_group_of_its_exec() {
    withstand("G-01", BOTH, async |field| {
        let room = Room { groups: vec![GROUP], ..Room::default() };
        let control = room.attack("G-01", &["shed"]);
        control.assert("control", &[("setgroups", "ok"), ("setgroups raw", "ok"), ("setpriv", "ok")]);
        let sandbox = field.sandbox().await;
        let said = field.attack(&sandbox, &["shed"]).await;
        said.assert_held("sandbox");
        for thing in ["setgroups", "setgroups raw", "initgroups", "setgid", "unshare", "trace", "process 1"] {
            said.assert("sandbox", &[(thing, "EPERM")]);
        }
        for thing in ["newgrp", "sg", "su", "setpriv", "unshare -Ur"] {
            said.assert("sandbox", &[(thing, "EEXIST")]);
        }
        field.recovers(&sandbox).await;
    });
}

/// Verifies that attack G-01 fails: a process that changes its session, its parent and its name is killed
/// with its exec.
#[test]
#[ignore = "starts real sandboxes"]
fn whoever_flees_is_found_and_ended_with_its_exec() {
    withstand("G-01", BOTH, async |field| {
        let witness = field.sandbox().await;
        for way in WAYS {
            flees(field, &witness, way).await;
        }
    });
}

/// Verifies that attack G-01 fails: a process whose first thread has exited looks dead, but is killed with
/// its exec too.
#[test]
#[ignore = "starts real sandboxes"]
fn whoever_hides_behind_a_dead_thread_is_found_and_ended_with_its_exec() {
    withstand("G-01", OCI_BOTH, async |field| {
        let witness = field.sandbox().await;
        flees(field, &witness, "lead").await;
    });
}

/// Verifies that attack G-01 fails: the first process of an exec cannot hide behind a dead thread either.
#[test]
#[ignore = "starts real sandboxes"]
fn an_exec_that_hides_behind_a_dead_thread_meets_its_deadline() {
    withstand("G-01", OCI_BOTH, async |field| {
        let sandbox = field.sandbox().await;
        let exec = start(&sandbox, &field.payload(&["lead"])).await.unwrap();
        until_beating(&sandbox, "lead").await;
        assert!(beats(&sandbox, "lead").await, "control: it goes on without its first thread");
        exec.cancel().await.unwrap();
        let spec = ExecSpec { deadline_ms: Some(1000), ..field.payload(&["lead"]) };
        assert_eq!(exec.collect().await.unwrap().end.outcome, Outcome::Cancelled);
        let done = collect(&sandbox, &spec).await;
        assert_eq!(done.end.outcome, Outcome::Timeout);
        assert!(!beats(&sandbox, "lead").await, "it goes on after its deadline");
        field.recovers(&sandbox).await;
        field.is_empty(&sandbox).await;
    });
}

/// Asserts that a process that hides in this way is killed with its exec. Also runs the control.
async fn flees(field: &Field<'_>, witness: &Sandbox, way: &str) {
    // Control: if background processes are not killed, the hiding process survives its exec.
    let sandbox = field.sandbox().await;
    let done = collect(&sandbox, &field.payload(&["flee", way])).await;
    assert_eq!(text(&done), format!("fled {way}\n"), "{}", String::from_utf8_lossy(&done.stderr));
    until_beating(&sandbox, way).await;
    sandbox.stop(Duration::ZERO).await.unwrap();
    let sandbox = field.sandbox().await;
    let spec = ExecSpec { background: Background::Kill, ..field.payload(&["flee", way]) };
    let done = field.with_witness(witness, collect(&sandbox, &spec)).await;
    assert_eq!((text(&done), done.end.left_running), (format!("fled {way}\n"), 0));
    assert!(!beats(&sandbox, way).await, "{way} survived the end of its exec");
    let exec = start(&sandbox, &field.payload(&["stay", way])).await.unwrap();
    until_beating(&sandbox, way).await;
    exec.cancel().await.unwrap();
    assert_eq!(exec.collect().await.unwrap().end.outcome, Outcome::Cancelled);
    assert!(!beats(&sandbox, way).await, "{way} survived the cancellation of its exec");
    field.recovers(&sandbox).await;
    field.is_empty(&sandbox).await;
    sandbox.stop(Duration::ZERO).await.unwrap();
}

pub(crate) async fn until_beating(sandbox: &Sandbox, way: &str) {
    let wait = format!(
        "a=$(stat -c %s /workspace/beat-{way} 2>/dev/null || echo 0); for i in $(seq 200); do sleep 0.02; \
                        b=$(stat -c %s /workspace/beat-{way} 2>/dev/null || echo 0); [ $b -gt $a ] && echo yes && exit; done"
    );
    assert_eq!(text(&sh(sandbox, &wait).await), "yes\n", "control: {way} does not live");
    e2e::attack::count_control();
}

/// Returns true if the payload still appends to its file.
pub(crate) async fn beats(sandbox: &Sandbox, way: &str) -> bool {
    let look = format!("stat -c %s /workspace/beat-{way}");
    let before = text(&sh(sandbox, &look).await);
    tokio::time::sleep(LISTENING).await;
    let after = text(&sh(sandbox, &look).await);
    assert!(!before.is_empty() && !after.is_empty(), "nobody ever fled by {way}");
    before != after
}
