//! Bash contexts in real sandboxes.

use std::time::{Duration, Instant};

use api::code::{Language, Loss};
use api::exec::Outcome;
use e2e::room::{cell, in_a_room};

/// A shell keeps its state between cells, except for the variables of one call. `exit` and `exec` lose the
/// state, and the loss is reported.
#[test]
#[ignore = "starts real sandboxes"]
fn a_shell_keeps_its_directory_variables_and_functions() {
    in_a_room(async |_, room| {
        let context = room.context(Language::Bash).await;
        let run = async |source: &str| room.cell(&context, source).await;
        run("cd /tmp; export A=1; shopt -s expand_aliases; alias hi='echo hello'").await.well();
        run("declare -A map=([k]=v); greet() { echo \"in $PWD with $A and ${map[k]}\"; }").await.well();
        assert_eq!(run("greet; hi").await.stdout, "in /tmp with 1 and v\nhello\n");
        assert_eq!(run("echo out; echo err >&2; false").await.code(), 1);
        let mut once = cell(&context, "echo \"$B, it's\"");
        once.env.insert("B".into(), "only 'now'".into());
        assert_eq!(room.exec(&once).await.stdout, "only 'now', it's\n");
        assert_eq!(run("echo \"[$B]\"").await.stdout, "[]\n");
        for source in ["sleep 100; echo after", "while :; do :; done; echo after"] {
            let exec = room.client.exec(&room.id, &cell(&context, source)).await.unwrap();
            tokio::time::sleep(Duration::from_millis(500)).await;
            let since = Instant::now();
            room.client.cancel(&room.id, exec.id()).await.unwrap();
            let done = exec.collect().await.unwrap();
            assert_eq!((done.end.outcome, done.end.state_lost), (Outcome::Cancelled, false), "{source}");
            assert!(done.stdout.is_empty() && since.elapsed() < Duration::from_secs(5), "{source}");
            assert_eq!(run("greet").await.stdout, "in /tmp with 1 and v\n", "{source}");
        }
        for (source, code) in [("exit 3", 3), ("exec bash -c 'exit 4'", 4)] {
            let ended = run(source).await;
            assert_eq!((ended.code(), ended.end.state_lost), (code, true), "{source}");
            let next = run("echo \"[$A]\"").await;
            assert_eq!((next.stdout.as_str(), next.restarted()), ("[]\n", Some(Loss::Ended)), "{source}");
        }
    });
}
