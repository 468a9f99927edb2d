//! Tests of the `bellglass` executable on a real machine: its output, its exit codes, and the resources that
//! it leaves behind.

#![cfg(test)]

use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Once;
use std::time::{Duration, Instant};

/// Data directory. It keeps the template between test runs.
const DATA: &str = "/var/tmp/bellglass-test";

/// Builds the template if it does not exist yet.
fn prepare() {
    static TEMPLATE: Once = Once::new();
    TEMPLATE.call_once(|| {
        let listed = bellglass(&["template", "list", "--json"]);
        if !text(&listed.stdout).contains("\"base\"") {
            let built = bellglass(&["template", "build", "base"]);
            assert!(built.status.success(), "{}", text(&built.stderr));
        }
    });
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bellglass"));
    command.args(arguments).env("BELLGLASS_DATA", DATA).stdin(Stdio::null());
    command
}

fn bellglass(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs `bellglass run`. Returns its standard output, standard error and exit code.
fn run(arguments: &[&str]) -> (String, String, Option<i32>) {
    let output = bellglass(&[&["run"], arguments].concat());
    (text(&output.stdout), text(&output.stderr), output.status.code())
}

fn spawn(arguments: &[&str]) -> Child {
    command(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn sandboxes() -> usize {
    std::fs::read_dir(Path::new(DATA).join("sandboxes")).unwrap().count()
}

#[test]
#[ignore = "starts real sandboxes"]
fn run_streams_and_exits_with_the_commands_own_code() {
    prepare();
    assert_eq!(run(&["--", "python3", "-c", "print(1)"]), ("1\n".into(), String::new(), Some(0)));
    assert_eq!(run(&["--", "sh", "-c", "echo o; echo e >&2; exit 7"]), ("o\n".into(), "e\n".into(), Some(7)));
    assert_eq!(sandboxes(), 0);
}

#[test]
#[ignore = "starts real sandboxes"]
fn what_an_exit_code_cannot_say_is_said_on_standard_error() {
    prepare();
    let (_, stderr, code) = run(&["--", "sh", "-c", "kill -9 $$"]);
    assert_eq!((stderr.as_str(), code), ("bellglass: signal 9 killed the command\n", Some(137)));
    let (_, stderr, code) = run(&["--timeout", "300ms", "--", "sleep", "9"]);
    assert!(stderr.contains("timeout"), "{stderr}");
    assert_eq!(code, Some(124));
    // Requirement A2.05: exit code 137 and a line that names the limit.
    let (_, stderr, code) = run(&["--memory", "64M", "--", "python3", "-c", "b = bytearray(200 << 20)"]);
    assert!(stderr.contains("memory limit of 64 MiB") && stderr.contains("oom"), "{stderr}");
    assert_eq!(code, Some(137));
}

#[test]
#[ignore = "starts real sandboxes"]
fn json_is_one_object_with_the_outcome() {
    prepare();
    let (stdout, _, code) = run(&["--json", "--", "sh", "-c", "echo hi; exit 3"]);
    let report: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(report["outcome"], serde_json::json!({"kind": "exited", "code": 3}));
    assert_eq!((report["stdout"].as_str(), code), (Some("hi\n"), Some(3)));
}

#[test]
#[ignore = "starts real sandboxes"]
fn standard_input_is_passed_on_when_asked_for() {
    prepare();
    let mut child = spawn(&["run", "--stdin", "--", "tr", "a-z", "A-Z"]);
    child.stdin.take().unwrap().write_all(b"hello\n").unwrap();
    assert_eq!(text(&child.wait_with_output().unwrap().stdout), "HELLO\n");
    let began = Instant::now();
    assert_eq!(run(&["--", "cat"]), (String::new(), String::new(), Some(0)));
    assert!(began.elapsed() < Duration::from_secs(5));
}

/// Verifies that an invalid option or limit fails with an error that explains how to fix it.
#[test]
#[ignore = "starts real sandboxes"]
fn a_wrong_request_is_refused_with_its_fix_and_nothing_runs() {
    prepare();
    for arguments in [["--timeout", "0"], ["--timeout", "-5s"], ["--memory", "lots"], ["--tier", "none"]] {
        let (stdout, stderr, code) = run(&[&arguments[..], &["--", "true"]].concat());
        assert_eq!((stdout.as_str(), code), ("", Some(2)), "{stderr}");
    }
    for arguments in [
        &["--timeout", "99999h", "--", "true"][..],
        &["--memory", "999G", "--", "true"],
        &["--template", "nosuch", "--", "true"],
        &["--runtime", "nosuch", "--", "true"],
        &["--", "no-such-program"],
    ] {
        let (stdout, stderr, code) = run(arguments);
        assert_eq!((stdout.as_str(), code), ("", Some(125)), "{stderr}");
        assert!(stderr.contains("fix:") && stderr.contains("ran: no"), "{stderr}");
        assert!(!stderr.contains("internal error"), "{stderr}");
    }
    assert_eq!(sandboxes(), 0);
}

#[test]
#[ignore = "starts real sandboxes"]
fn an_interrupt_cancels_the_command_and_removes_the_sandbox() {
    prepare();
    let mut child = spawn(&["run", "--", "sh", "-c", "echo up; sleep 600"]);
    let mut line = [0; 3];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
    kill(&child, "-INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    assert_eq!(sandboxes(), 0);
}

/// Verifies that the next command removes the sandbox of a killed command.
#[test]
#[ignore = "starts real sandboxes"]
fn a_killed_command_is_removed_by_the_next() {
    prepare();
    let mut child = spawn(&["run", "--", "sh", "-c", "echo up; sleep 600"]);
    let mut line = [0; 3];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
    kill(&child, "-KILL");
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    assert_eq!(sandboxes(), 1);
    let (stdout, stderr, _) = run(&["--", "echo", "next"]);
    assert_eq!(stdout, "next\n");
    assert!(stderr.contains("removed sandboxes left behind by a killed command"), "{stderr}");
    assert_eq!(sandboxes(), 0);
}

fn kill(child: &Child, signal: &str) {
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
}

/// Runs `doctor --json` in a mount namespace that hides these programs. Returns its exit code and its report.
fn doctor_without(programs: &[&str]) -> (Option<i32>, serde_json::Value) {
    let hide = "for name in $HIDDEN; do for path in $(which -a $name); do mount --bind /dev/null \"$path\"; done; done; \
                exec \"$0\" doctor --json";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", hide, env!("CARGO_BIN_EXE_bellglass")])
        .env("BELLGLASS_DATA", DATA)
        .env("HIDDEN", programs.join(" "))
        .output()
        .unwrap();
    let said = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)));
    (output.status.code(), said)
}

/// Returns the verdict and the detail of a part or tier whose name contains this word.
fn finding<'a>(report: &'a serde_json::Value, list: &str, name: &str) -> (&'a str, &'a str) {
    let all = report[list].as_array().unwrap();
    let found = all.iter().find(|one| one["part"].as_str().unwrap().contains(name));
    let found = found.unwrap_or_else(|| panic!("{name} is not in {report}"));
    (found["verdict"].as_str().unwrap(), found["detail"].as_str().unwrap())
}

/// Verifies that `doctor` runs a real sandbox, exits with 0 if the sandbox works, and names each missing program with
/// the command that installs it.
#[test]
#[ignore = "starts real sandboxes"]
fn doctor_proves_what_works_and_names_what_is_missing() {
    prepare();
    let (code, report) = doctor_without(&[]);
    assert_eq!((code, &report["works"]), (Some(0), &serde_json::json!(true)));
    for (list, name) in [("tiers", "(runc)"), ("tiers", "(runsc)")] {
        let (verdict, detail) = finding(&report, list, name);
        assert!(
            ["ok", "degraded"].contains(&verdict) && detail.contains("a sandbox started"),
            "{name}: {detail}"
        );
    }
    for name in ["mke2fs", "mmdebstrap"] {
        assert_eq!(finding(&report, "host", name).0, "ok", "{name}");
    }
    let (code, report) = doctor_without(&["runsc", "mmdebstrap"]);
    assert_eq!((code, &report["works"]), (Some(0), &serde_json::json!(true)), "runc works without them");
    let (verdict, detail) = finding(&report, "tiers", "(runc)");
    assert!(["ok", "degraded"].contains(&verdict) && detail.contains("a sandbox started"), "{detail}");
    let (verdict, detail) = finding(&report, "tiers", "(runsc)");
    assert_eq!(
        (verdict, detail.contains("apt-get install -t bookworm-backports runsc")),
        ("absent", true),
        "{detail}"
    );
    let (verdict, detail) = finding(&report, "host", "mmdebstrap");
    assert_eq!((verdict, detail.contains("apt-get install mmdebstrap")), ("absent", true), "{detail}");
    // No disk of a sandbox can be created without `mke2fs`.
    let (_, report) = doctor_without(&["mke2fs"]);
    let (verdict, detail) = finding(&report, "host", "mke2fs");
    assert_eq!((verdict, detail.contains("apt-get install e2fsprogs")), ("refused", true), "{detail}");
}

/// Verifies that `doctor` fails and names the package to install if a mount namespace hides the runtimes.
#[test]
#[ignore = "starts real sandboxes"]
fn doctor_fails_where_nothing_works_and_says_what_to_install() {
    prepare();
    let hide = "for name in runc runsc youki; do path=$(command -v $name) && mount --bind /dev/null \"$path\"; done; \
                exec \"$0\" doctor";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", hide, env!("CARGO_BIN_EXE_bellglass")])
        .env("BELLGLASS_DATA", DATA)
        .output()
        .unwrap();
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{shown}");
    assert!(shown.contains("apt-get install runc") && shown.contains("cannot run sandboxes"), "{shown}");
}

#[test]
#[ignore = "starts real sandboxes"]
fn templates_are_listed_and_unknown_ones_are_not_removed() {
    prepare();
    let listed = bellglass(&["template", "list"]);
    assert!(text(&listed.stdout).lines().any(|line| line.starts_with("base")), "{}", text(&listed.stdout));
    let removed = bellglass(&["template", "remove", "nosuch"]);
    assert_eq!(removed.status.code(), Some(125));
}

#[test]
#[ignore = "starts real sandboxes"]
fn a_data_directory_nobody_can_walk_to_is_named_with_its_fix() {
    prepare();
    let closed = std::env::temp_dir().join(format!("bellglass-closed-{}", std::process::id()));
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let output = command(&["doctor"]).env("BELLGLASS_DATA", closed.join("data")).output().unwrap();
    std::fs::remove_dir_all(&closed).unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).contains("chmod o+x"), "{}", text(&output.stderr));
}
