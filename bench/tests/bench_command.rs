//! Tests of the bench's command line without targets: errors are reported before anything starts.

use std::process::{Command, Output};

fn bench(arguments: &[&str]) -> std::io::Result<Output> {
    Command::new(env!("CARGO_BIN_EXE_bench")).args(arguments).output()
}

#[test]
fn wrong_words_end_it_before_anything_is_started() {
    for (arguments, said) in [
        (&["--only", "exce"][..], "no scenario `exce`"),
        (&["--targets", "vm"], "invalid value 'vm'"),
        (&["--quick", "--scenarios", "a.toml"], "cannot be used with"),
        (&["--scenarios", "/nonexistent/a.toml"], "cannot read /nonexistent/a.toml"),
    ] {
        let output = bench(arguments).unwrap();
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {words}");
        assert!(words.contains(said), "{arguments:?}: {words}");
    }
}

#[test]
fn a_target_that_is_not_there_is_named_with_its_reason() {
    let out = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_bench"));
    command.args(["--quick", "--only", "exec", "--targets", "e2b", "--out"]).arg(out.path());
    let output = command.env_remove("E2B_API_KEY").env("BELLGLASS_TEMPLATES", out.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let report = std::fs::read_to_string(out.path().join("report.md")).unwrap();
    assert!(report.contains("| e2b | left out: not_configured: no E2B_API_KEY |"), "{report}");
}
