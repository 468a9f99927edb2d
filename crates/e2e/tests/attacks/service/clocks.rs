//! Attack A-18: clocks that jump, both on the server and inside the sandbox.

use std::path::Path;
use std::time::{Duration, Instant};

use api::exec::{ExecSpec, Outcome};
use api::limits::Limits;
use api::sandbox::{CreateSandbox, EndReason, SandboxState};
use e2e::lab::{script, sized};
use e2e::service::{Service, served, small, until};
use serde_json::{Value, json};

use super::ground::{held, keyed};

/// Path of the library from Debian's package `faketime`, which shows a different time to a process.
pub(crate) const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";
/// Maximum delay of a sandbox's end on a busy machine.
const LATE: Duration = Duration::from_secs(3);
/// Idle time and time to live, long enough to detect an early end and short enough to wait for it.
const IDLE_MS: u64 = 3500;
const TTL_MS: u64 = 5000;

/// Verifies that attack A-18 fails: a server whose clock jumps enforces every time limit correctly.
#[test]
#[ignore = "starts real sandboxes"]
fn a_server_whose_clock_jumps_keeps_every_time_limit() {
    served(async || {
        assert!(Path::new(LIBRARY).exists(), "faketime is not installed: scripts/setup.sh");
        let settings = tempfile::tempdir().unwrap();
        let offset = settings.path().join("offset");
        let jump = |to: &str| std::fs::write(&offset, to).unwrap();
        jump("+0");
        let preload = format!("LD_PRELOAD={LIBRARY}");
        let file = format!("FAKETIME_TIMESTAMP_FILE={}", offset.display());
        // As with a real jump, the wall clock changes and the monotonic clocks do not.
        let before = ["env", &preload, &file, "FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1"];
        let service = Service::with(&before, &[]);
        let client = service.client();
        let stays = client.create(&CreateSandbox { idle_ms: 600_000, ..small() }).await.unwrap().id;
        let jumps: &[&str] = &["+31536000", "-31536000", "+3600", "-3600"];
        for to in jumps.iter().copied().take(sized(4, 2)) {
            jump("+0");
            // Use a new key each time, because a key that has expired once remains expired (L-12).
            let ask = json!({ "project": "default", "role": "read", "valid_ms": 1_800_000 });
            let key = keyed(&service, &service.key, "POST", "/v1/keys", &ask);
            let key = key.json()["secret"].as_str().unwrap().to_owned();
            let look = || keyed(&service, &key, "GET", "/v1/sandboxes", &Value::Null).status;
            let began = Instant::now();
            let expiring = CreateSandbox {
                limits: Limits { ttl_ms: TTL_MS, ..e2e::service::small_limits() }.into(),
                ..small()
            };
            let expiring = client.create(&expiring).await.unwrap().id;
            let idle = client.create(&CreateSandbox { idle_ms: IDLE_MS, ..small() }).await.unwrap().id;
            let spec = ExecSpec { deadline_ms: Some(1000), ..script("sleep 30") };
            let exec = client.exec(&stays, &spec).await.unwrap();
            assert_eq!(look(), 200);
            jump(to);
            // Control: the server's clock has jumped, and limits that depend on the wall clock have changed
            // with it.
            assert_eq!(look(), if to.starts_with('+') { 401 } else { 200 }, "the clock did not jump to {to}");
            e2e::attack::count_control();
            let done = exec.collect().await.unwrap();
            assert_eq!(done.end.outcome, Outcome::Timeout, "{to}");
            assert!((900_000..4_000_000).contains(&done.end.duration_us), "{to}: {}", done.end.duration_us);
            for (id, ms, reason) in
                [(&idle, IDLE_MS, EndReason::Idle), (&expiring, TTL_MS, EndReason::Expired)]
            {
                let looked = client.sandbox(id).await.unwrap();
                // On a machine so busy that the time has already passed, an early end cannot be detected.
                if began.elapsed() < Duration::from_millis(ms) {
                    assert_eq!(looked.state, SandboxState::Running, "{to}: {reason:?} too early");
                }
                until(Duration::from_millis(ms) + LATE, "an end", async || {
                    client.sandbox(id).await.unwrap().state.is_terminal()
                })
                .await;
                assert_eq!(client.sandbox(id).await.unwrap().reason, Some(reason), "{to}");
            }
            assert!(began.elapsed() < Duration::from_millis(TTL_MS) + 2 * LATE, "{to}: too late");
            assert_eq!(client.sandbox(&stays).await.unwrap().state, SandboxState::Running, "{to}");
        }
        // The library that changes the server's time must not be loaded in a sandbox.
        let seen = client.exec(&stays, &script("env; cat /proc/self/maps")).await.unwrap();
        assert!(!String::from_utf8_lossy(&seen.collect().await.unwrap().stdout).contains("faketime"));
        held("A-18", "jumps of the clock: deadline, idle time and time to live as asked");
    });
}

/// Verifies that attack A-18 fails: code that sets clocks, floods itself with timer signals or stops itself
/// cannot escape its deadline.
#[test]
#[ignore = "starts real sandboxes"]
fn code_that_plays_with_time_meets_its_deadline() {
    served(async || {
        let service = Service::start();
        let client = service.client();
        let sandbox = client.create(&small()).await.unwrap().id;
        let run = async |text: &str, deadline_ms| {
            let spec = ExecSpec { deadline_ms: Some(deadline_ms), grace_ms: Some(100), ..script(text) };
            let began = Instant::now();
            (client.exec(&sandbox, &spec).await.unwrap().collect().await.unwrap(), began.elapsed())
        };
        // Control: with a later deadline, the same code runs to completion.
        let (done, _) = run("trap '' TERM ALRM; sleep 1.5; echo over", 20_000).await;
        assert_eq!(
            (done.end.outcome, done.stdout.as_slice()),
            (Outcome::Exited { code: 0 }, b"over\n".as_slice())
        );
        e2e::attack::count_control();
        let set = "python3 -c 'import time; time.clock_settime(time.CLOCK_REALTIME, 0)'; date -s 1990-01-01; date +%Y";
        let (done, _) = run(set, 20_000).await;
        let (said, refused) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        // `date` prints the time that it was asked to set, followed by the actual time.
        assert!(!said.ends_with("1990\n") && !said.ends_with("1970\n"), "{said}");
        assert_eq!(refused.matches("not permitted").count(), 2, "{refused}");
        for text in [
            "kill -STOP $$; sleep 60",
            "trap '' TERM INT HUP ALRM USR1; while :; do sleep 60; done",
            "python3 -c 'import signal,time\nsignal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)\n\
             signal.signal(signal.SIGALRM, lambda *a: None)\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: time.sleep(60)'",
            "(setsid sh -c 'kill -STOP $$; sleep 60' &); sleep 60",
        ] {
            let (done, took) = run(text, 1000).await;
            assert_eq!(done.end.outcome, Outcome::Timeout, "{text}");
            assert!(took < Duration::from_secs(1) + LATE, "{text}: {took:?}");
            assert_eq!(client.sandbox(&sandbox).await.unwrap().state, SandboxState::Running, "{text}");
        }
        held("A-18", "stopped, deaf and timed code met its deadline");
    });
}
