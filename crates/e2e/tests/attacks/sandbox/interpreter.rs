//! Attacks of group I: the interpreter from which runs of code are forked, and the channel on which runs
//! report results.

use api::code::{Code, RunResult};
use api::exec::{ExecSpec, Outcome};
use e2e::lab::{collect, sh, start, text};
use node::{Collected, Sandbox};

use super::field::{BOTH, Field, Said, THROUGH, payload, said, withstand};
use super::room::Room;

/// Returns the spec of an exec that runs the payload with these arguments as code, in the interpreter itself.
fn code(id: &str, arguments: &[&str]) -> ExecSpec {
    let words = payload(id, &[]);
    let source = format!("import sys\nsys.argv = ['', *{arguments:?}]\n{}", words[2]);
    let code = Code { source, ..Code::default() };
    ExecSpec { code: Some(code), deadline_ms: Some(30_000), ..ExecSpec::default() }
}

async fn attack(field: &Field<'_>, sandbox: &Sandbox, arguments: &[&str]) -> Said {
    said(&collect(sandbox, &code(field.id, arguments)).await)
}

/// Asserts that a run of code works, either in the existing interpreter or in a new one.
async fn runs(sandbox: &Sandbox) {
    let done = collect(sandbox, &snippet("print(6 * 7)")).await;
    assert_eq!((text(&done).as_str(), &done.end.outcome), ("42\n", &Outcome::Exited { code: 0 }), "{done:?}");
}

fn snippet(source: &str) -> ExecSpec {
    let code = Code { source: source.into(), ..Code::default() };
    ExecSpec { code: Some(code), deadline_ms: Some(30_000), ..ExecSpec::default() }
}

/// Verifies that attack I-01 fails: code in the sandbox cannot act on the interpreter's parent.
#[test]
#[ignore = "starts real sandboxes"]
fn nobody_inside_can_reach_the_interpreters_parent() {
    withstand("I-01", BOTH, async |field| {
        let sandbox = field.sandbox().await;
        let control = attack(field, &sandbox, &["own"]).await;
        assert_eq!(control.code, Some(THROUGH), "{}", control.raw);
        control.assert("control", &[("signal 15", "ok"), ("descriptors", "ok")]);
        e2e::attack::count_control();
        let held = attack(field, &sandbox, &["parent"]).await;
        assert!(held.number("pid") > 1, "{}", held.raw);
        held.assert_held("sandbox");
        // Several errors are possible, because a socket cannot be opened by path, and a sealed file cannot be
        // written to.
        for thing in ["signal 15", "signal 9", "signal 19", "trace", "memory", "descriptors"] {
            held.assert("sandbox", &[(thing, "EPERM|EACCES|ENXIO")]);
        }
        // In gVisor, the parent's user has no ID in the user namespace in which code runs.
        let user = if field.lab.runtime.name() == "runsc" { "EINVAL" } else { "EPERM" };
        held.assert("sandbox", &[("user", user), ("group", "EPERM")]);
        // An exec cannot be started as the parent's user either.
        let spec = ExecSpec { uid: Some(api::limits::INTERPRETER_UID), ..snippet("pass") };
        assert!(start(&sandbox, &spec).await.is_err());
        runs(&sandbox).await;
        field.recovers(&sandbox).await;
    });
}

/// Verifies that attack I-02 fails: a forked process keeps none of its parent's privileges.
#[test]
#[ignore = "starts real sandboxes"]
fn a_fork_keeps_nothing_of_its_parent() {
    withstand("I-02", BOTH, async |field| {
        let control = Room::default().attack(field.id, &["own"]);
        assert_eq!(control.code, Some(THROUGH), "{}", control.raw);
        control.assert(
            "control",
            &[("capabilities", "ok"), ("setuid 0", "ok"), ("setgroups", "ok"), ("text", "ok")],
        );
        let sandbox = field.sandbox().await;
        let held = attack(field, &sandbox, &[]).await;
        held.assert_held("sandbox");
        held.assert(
            "sandbox",
            &[("capabilities", "EPERM"), ("setuid 0", "EPERM"), ("setgroups", "EPERM"), ("sockets", "1")],
        );
        runs(&sandbox).await;
        field.recovers(&sandbox).await;
    });
}

/// Verifies that attack I-03 fails: the interpreter's parent does not run files that code has planted.
#[test]
#[ignore = "starts real sandboxes"]
fn nothing_that_code_plants_is_run_by_the_parent() {
    withstand("I-03", BOTH, async |field| {
        let sandbox = field.sandbox().await;
        assert_eq!(text(&collect(&sandbox, &field.payload(&[])).await), "planted\n");
        // Control: an ordinary interpreter that runs as the same user executes the planted files.
        sh(&sandbox, "cd /workspace; PATH=$HOME/.local/bin:$PATH python3 -c 'import json'").await;
        let planted = async || text(&sh(&sandbox, "ls /tmp/planted").await);
        let control = planted().await;
        assert!(control.contains("1000-code") && control.contains("1000-program"), "{control}");
        e2e::attack::count_control();
        sh(&sandbox, "rm -f /tmp/planted/*").await;
        let spec = snippet("print(6 * 7)");
        let path = ("PATH".to_owned(), "/home/sandbox/.local/bin:/workspace:/usr/bin:/bin".to_owned());
        let spec = ExecSpec { env: [path].into(), ..spec };
        for _ in 0..2 {
            let done = collect(&sandbox, &spec).await;
            assert!(text(&done).contains("42"), "{done:?}");
        }
        let who = planted().await;
        let strangers: Vec<&str> = who.lines().filter(|line| !line.starts_with("1000-code")).collect();
        assert!(strangers.is_empty(), "run by another than the code: {strangers:?}");
        field.recovers(&sandbox).await;
    });
}

/// Verifies that attack I-04 fails: false data on the results channel does not change the outcome of an exec.
#[test]
#[ignore = "starts real sandboxes"]
fn lies_on_the_channel_of_results_change_nothing() {
    withstand("I-04", BOTH, async |field| {
        let (sandbox, witness) = (field.sandbox().await, field.sandbox().await);
        let done = collect(&sandbox, &code(field.id, &["honest"])).await;
        assert!(values(&done).contains(&"forged".to_owned()), "control: {done:?}");
        e2e::attack::count_control();
        for kind in ["endless", "garbage", "deep", "wide", "ended", "many"] {
            let spec = code(field.id, &[kind]);
            let attack = async { start(&sandbox, &spec).await.unwrap().collect().await };
            let done = field.with_witness(&witness, attack).await.unwrap();
            assert_eq!(done.end.outcome, Outcome::Exited { code: 7 }, "{kind}: {done:?}");
            assert!(done.end.results_bytes <= api::limits::RESULTS_BYTES_MAX, "{kind}");
            println!("I-04 {kind}: {} results, {} bytes", done.results.len(), done.end.results_bytes);
            runs(&sandbox).await;
        }
        for kind in ["again", "empty"] {
            let spec = ExecSpec { deadline_ms: Some(1000), ..code(field.id, &[kind]) };
            let done = collect(&sandbox, &spec).await;
            assert_eq!(done.end.outcome, Outcome::Timeout, "{kind}");
            assert!(done.end.duration_us < 4_000_000, "{kind}: {done:?}");
            runs(&sandbox).await;
        }
        field.recovers(&sandbox).await;
    });
}

fn values(done: &Collected) -> Vec<String> {
    let value = |line: &api::code::ResultLine| {
        let RunResult::Value(bundle) = &line.result else { return None };
        bundle.data.get("text/plain").and_then(|text| text.as_str().map(str::to_owned))
    };
    done.results.iter().filter_map(value).collect()
}
