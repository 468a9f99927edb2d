//! A server in continuous use: kills and upgrades lose nothing.

use std::io::Write as _;
use std::time::{Duration, Instant};

use api::exec::{ExecSpec, Outcome, OutputMode};
use api::sandbox::SandboxState;
use e2e::lab::{exec, script};
use e2e::random::Random;
use e2e::service::{Service, binary, served, small};

/// Python program that counts until `/workspace/stop` exists. It does not start a process for each number,
/// because those processes would overload the machine.
const COUNTER: &str = "import os, time\ni = 0\nwhile not os.path.exists('/workspace/stop'):\n    print(i)\n    i += 1\n    time.sleep(0.02)\nprint('last', i)";

/// Returns the number of kills of the server: `BELLGLASS_KILLS`, or a small number for CI.
fn kills() -> u32 {
    std::env::var("BELLGLASS_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(20)
}

/// After each of many kills, the server comes back with all sandboxes running, and all output is complete.
#[test]
#[ignore = "starts real sandboxes"]
fn a_server_that_is_killed_at_any_moment_loses_no_sandbox_and_no_byte() {
    under_load(Service::start, kills(), |_, _| {});
}

/// Two upgrades and two rollbacks under load lose no sandbox and no output.
#[test]
#[ignore = "starts real sandboxes"]
fn another_release_takes_over_under_load_and_hands_back() {
    let place = tempfile::tempdir().unwrap();
    let other = place.path().join("bellglass");
    under_load(Service::start, 4, |service, time| {
        if !other.exists() {
            // Create a different executable with the same behaviour, as a rebuild would.
            std::fs::copy(binary(), &other).unwrap();
            std::fs::File::options().append(true).open(&other).unwrap().write_all(b"another build").unwrap();
        }
        service.replace(&if time % 2 == 0 { other.clone() } else { binary() });
    });
}

/// Runs 50 sandboxes, each with an exec that prints a counter in mode `block`. The server is killed `times`
/// times, and `change` modifies it before each restart.
pub(super) fn under_load(start: impl Fn() -> Service, times: u32, change: impl Fn(&mut Service, u32)) {
    const SANDBOXES: usize = 50;
    served(async || {
        let mut random = Random::new();
        let mut service = start();
        let client = service.client();
        let mut ids = Vec::new();
        for _ in 0..SANDBOXES {
            ids.push(client.create(&small()).await.unwrap().id);
        }
        let spec = ExecSpec {
            output: OutputMode::Block,
            output_bytes: Some(4096),
            deadline_ms: None,
            ..exec(&["python3", "-u", "-c", COUNTER])
        };
        let readers: Vec<_> = ids
            .iter()
            .map(|id| {
                let (client, id, spec) = (client.clone(), id.clone(), spec.clone());
                tokio::spawn(async move {
                    let exec = client.exec(&id, &spec).await.unwrap();
                    exec.collect().await.unwrap()
                })
            })
            .collect();
        let mut slowest = Duration::ZERO;
        for time in 0..times {
            tokio::time::sleep(Duration::from_millis(100 + random.below(900))).await;
            service.kill();
            change(&mut service, time);
            let down = Instant::now();
            service.begin();
            // The server counts as back once it responds and lists all sandboxes.
            let live = client.sandboxes(false).await.unwrap();
            slowest = slowest.max(down.elapsed());
            assert_eq!(live.iter().filter(|one| one.state == SandboxState::Running).count(), SANDBOXES);
        }
        eprintln!("{times} kills, the API was away for at most {slowest:?}");
        for id in &ids {
            let done =
                client.exec(id, &script("touch /workspace/stop")).await.unwrap().collect().await.unwrap();
            assert_eq!(done.end.outcome, Outcome::Exited { code: 0 });
        }
        let mut lines = 0;
        for reader in readers {
            let done = tokio::time::timeout(Duration::from_secs(60), reader).await.unwrap().unwrap();
            assert_eq!(done.end.outcome, Outcome::Exited { code: 0 });
            let text = String::from_utf8(done.stdout).unwrap();
            let (numbers, last) = text.trim_end().rsplit_once("\nlast ").unwrap();
            let count: usize = last.parse().unwrap();
            let expected: Vec<String> = (0..count).map(|number| number.to_string()).collect();
            assert!(numbers.lines().eq(expected.iter()), "a stream is not complete");
            lines += count;
        }
        eprintln!("{lines} lines, each once");
        for id in &ids {
            client.stop(id).await.unwrap();
        }
        let names: Vec<String> = ids.iter().map(ToString::to_string).collect();
        service.traces(&names).assert_nothing_left_but_the_server(service.pid());
        assert!(slowest < e2e::lab::promised(2), "the API was away for {slowest:?}");
    });
}
