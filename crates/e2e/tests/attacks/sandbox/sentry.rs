//! Attacks I-12, A-23 and C-38, which are specific to a user-space kernel: impersonating process 1, process
//! names that forge a status, and descriptor exhaustion.

use std::time::Duration;

use api::exec::{Background, ExecSpec, Outcome};
use api::{ErrorCode, Retry};
use e2e::lab::{collect, sh, start, text};
use node::Sandbox;

use super::field::{BOTH, Field, small, withstand};
use super::group::{beats, until_beating};
use super::identity::{as_python, spec_with, words_of_parent};

const GVISOR: &[&str] = &["runsc"];
/// Time that a dropped node instance needs to release its sandbox, as if its process had died.
const LET_GO: Duration = Duration::from_millis(100);
/// Timeout for a response from process 1, which normally takes milliseconds.
const SILENCE: Duration = Duration::from_secs(1);

/// Verifies that attack I-12 (finding IM1 in gVisor) fails: the node exchanges data with no process other
/// than process 1.
#[test]
#[ignore = "starts real sandboxes"]
fn nobody_but_process_1_is_answered_by_the_node() {
    withstand("I-12", GVISOR, async |field| {
        let without_both = attacked(field, &["I-11", "I-12"]).await;
        assert!(bytes_in(&without_both, "heard").await > 0, "control: the node answered only process 1");
        without_both.stop(Duration::ZERO).await.unwrap();
        let as_root = attacked(field, &["I-11"]).await;
        assert!(bytes_in(&as_root, "tried").await > 0, "control: it did not reach the node's socket");
        assert_eq!(bytes_in(&as_root, "heard").await, 0, "the node answered a peer without the token");
        as_root.stop(Duration::ZERO).await.unwrap();
        // The payload cannot open the socket, because it is root only in its own user namespace (I-11).
        let sandbox = attacked(field, &[]).await;
        assert_eq!(bytes_in(&sandbox, "tried").await, 0, "it reached the node's socket");
        assert_eq!(bytes_in(&sandbox, "heard").await, 0, "the node answered a peer other than process 1");
        let token = field.lab.data().join("sandboxes").join(sandbox.id().as_str()).join("token");
        assert!(token.exists());
    });
}

/// Starts a sandbox with these defences disabled. Its payload keeps connecting to the node's socket while
/// five node instances take over the sandbox one after the other.
async fn attacked(field: &Field<'_>, off: &[&str]) -> Sandbox {
    let undefended: Vec<_> = off.iter().map(|attack| super::field::turn_off(attack)).collect();
    let layer = as_python(field.id);
    let spec = spec_with(field, &layer);
    let mut sandbox = Sandbox::start(field.lab.again(), field.lab.id(), &spec).await.unwrap();
    words_of_parent(&sandbox).await;
    for _ in 0..5 {
        sandbox = taken_over(field, sandbox).await;
        if off.contains(&"I-12") {
            // The node may be connected to the payload, which does not respond.
            let _ = tokio::time::timeout(SILENCE, sandbox.execs()).await;
        } else {
            field.recovers(&sandbox).await;
        }
    }
    drop(undefended);
    taken_over(field, sandbox).await
}

/// Returns the size of a file in `/tmp` to which the payload writes.
async fn bytes_in(sandbox: &Sandbox, name: &str) -> u64 {
    let said = text(&sh(sandbox, &format!("stat -c %s /tmp/{name}")).await);
    said.trim().parse().unwrap()
}

/// Makes a new node instance take over the sandbox.
async fn taken_over(field: &Field<'_>, sandbox: Sandbox) -> Sandbox {
    let id = sandbox.id().clone();
    drop(sandbox);
    tokio::time::sleep(LET_GO).await;
    Sandbox::attach(field.lab.again(), id, small().memory_bytes)
}

/// Verifies that attack A-23 (finding IM2) fails: a process cannot hide from the guest by choosing a
/// misleading name.
#[test]
#[ignore = "starts real sandboxes"]
fn a_process_does_not_hide_behind_its_name() {
    withstand("A-23", BOTH, async |field| {
        if !field.is_container() {
            // Control: without the defence, a process whose name imitates status lines remains hidden. Linux
            // is not affected, because it escapes names.
            let undefended = {
                let _undefended = super::field::turn_off("A-23");
                field.sandbox().await
            };
            let spec = ExecSpec { deadline_ms: Some(1500), grace_ms: Some(0), ..field.payload(&["stay"]) };
            let done = collect(&undefended, &spec).await;
            assert_eq!(
                (&done.end.outcome, done.end.left_running),
                (&Outcome::Timeout, 0),
                "control: {done:?}"
            );
            assert!(beats(&undefended, "stay").await, "control: it survives the deadline of its exec");
            undefended.stop(Duration::ZERO).await.unwrap();
        }
        if field.is_container() {
            field.has_no_control("Linux escapes the names of processes");
        }
        let sandbox = field.sandbox().await;
        // If the exec exits normally, the process survives.
        let done = collect(&sandbox, &field.payload(&["leave"])).await;
        assert_eq!(done.end.left_running, 1, "it is counted: {done:?}");
        until_beating(&sandbox, "leave").await;
        let spec = ExecSpec { deadline_ms: Some(1500), grace_ms: Some(0), ..field.payload(&["stay"]) };
        let done = collect(&sandbox, &spec).await;
        assert_eq!((&done.end.outcome, done.end.left_running), (&Outcome::Timeout, 0), "{done:?}");
        assert!(!beats(&sandbox, "stay").await, "it survived the deadline of its exec");
        let exec = start(&sandbox, &field.payload(&["stay"])).await.unwrap();
        until_beating(&sandbox, "stay").await;
        exec.cancel().await.unwrap();
        assert_eq!(exec.collect().await.unwrap().end.outcome, Outcome::Cancelled);
        assert!(!beats(&sandbox, "stay").await, "it survived the cancellation of its exec");
        let fresh = field.sandbox().await;
        let spec = ExecSpec { background: Background::Kill, ..field.payload(&["leave"]) };
        assert_eq!(collect(&fresh, &spec).await.end.left_running, 0);
        field.recovers(&fresh).await;
    });
}

/// Verifies that attack C-38 (finding IL5) fails: if no descriptor is free, an exec fails with an error that
/// permits a retry.
#[test]
#[ignore = "starts real sandboxes"]
fn an_exec_that_finds_no_descriptor_is_told_to_come_again() {
    withstand("C-38", GVISOR, async |field| {
        let mut limits = small();
        limits.disk_inodes = 65_536;
        limits.disk_bytes = 512 << 20;
        let undefended = {
            let _undefended = super::field::turn_off("C-38");
            field.lab.sandbox_with(limits).await
        };
        let error = without_descriptors(field, &undefended).await;
        assert_eq!((error.code, error.retry), (ErrorCode::SpawnFailed, Retry::Useless), "control: {error:?}");
        undefended.stop(Duration::ZERO).await.unwrap();
        let sandbox = field.lab.sandbox_with(limits).await;
        let error = without_descriptors(field, &sandbox).await;
        assert_eq!((error.code, error.retry), (ErrorCode::Capacity, Retry::Safe), "{error:?}");
        field.recovers(&sandbox).await;
    });
}

/// Starts an exec while another exec holds every descriptor of the sandbox's kernel, and returns the error.
async fn without_descriptors(field: &Field<'_>, sandbox: &Sandbox) -> api::Error {
    let spec = ExecSpec { deadline_ms: Some(120_000), ..field.payload(&[]) };
    let mut holder = start(sandbox, &spec).await.unwrap();
    let mut said = String::new();
    while !said.contains("stopped") {
        if let Some(node::Event::Data { bytes, .. }) = holder.next().await.unwrap() {
            said.push_str(&String::from_utf8_lossy(&bytes));
        }
    }
    println!("C-38: {}", said.trim().replace('\n', ", "));
    let error = start(sandbox, &e2e::lab::exec(&["true"])).await.err();
    let error = error.expect("control: there is a descriptor left").to_api();
    holder.cancel().await.unwrap();
    holder.collect().await.unwrap();
    error
}
