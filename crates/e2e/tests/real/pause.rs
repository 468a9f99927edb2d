//! Paused sandboxes: nothing is lost, no time limit elapses, requests resume them, and they can be stopped.
//!
//! | module | holds |
//! |---|---|
//! | [`e2b`] | pausing and resuming through the E2B API |
//! | [`network`] | policies, secrets and ports after a pause |

mod e2b;
mod network;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use api::account::{Quota, Role};
use api::exec::{ExecSpec, Outcome};
use api::files::FilePath;
use api::limits::Limits;
use api::policy::Policy;
use api::sandbox::{CreateSandbox, EndReason, Lease, OnTimeout, Sandbox, SandboxState};
use api::{ErrorCode, SandboxId};
use client::{Client, Event};
use e2e::lab::{promised, script};
use e2e::service::{Service, served, small, tiers, until};

use crate::ports::ground::{Application, asked, exchange, on_each_tier};

const WAIT: Duration = Duration::from_secs(20);
/// Shell loop that keeps a count in memory and writes it to a file.
const COUNTER: &str = "i=0; while :; do i=$((i+1)); echo $i > /workspace/count.new; mv /workspace/count.new /workspace/count; sleep 0.01; done";

pub(crate) async fn read_count(client: &Client, id: &SandboxId) -> u64 {
    let done = client.exec(id, &script("cat /workspace/count")).await.unwrap().collect().await.unwrap();
    String::from_utf8_lossy(&done.stdout).trim().parse().unwrap_or(0)
}

pub(crate) async fn start_counter(client: &Client, id: &SandboxId) -> api::exec::ExecInfo {
    let exec = client.start(id, &script(COUNTER)).await.unwrap();
    until(WAIT, "the first count", async || read_count(client, id).await > 0).await;
    exec
}

pub(crate) async fn state(client: &Client, id: &SandboxId) -> SandboxState {
    client.sandbox(id).await.unwrap().state
}

pub(crate) async fn until_paused(client: &Client, id: &SandboxId) {
    until(WAIT, "the pause", async || state(client, id).await == SandboxState::Paused).await;
}

/// Returns the CPU time that all processes of a sandbox have used, as counted by the host.
pub(crate) async fn used(client: &Client, id: &SandboxId) -> u64 {
    client.usage(id).await.unwrap().cpu_us
}

/// Starts a server with this configuration file.
fn configured(text: &str) -> (tempfile::TempDir, PathBuf, Service) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("bellglass.toml");
    std::fs::write(&path, text).unwrap();
    let service = Service::with(&[], &["--config", path.to_str().unwrap()]);
    (place, path, service)
}

/// Concurrent and repeated pauses and resumes, during an exec and across kills of the server, lose no
/// progress.
#[test]
#[ignore = "starts real sandboxes"]
fn a_paused_sandbox_continues_where_it_was() {
    served(async || {
        let mut service = Service::start();
        for tier in tiers() {
            let client = service.client();
            let id = client.create(&CreateSandbox { tier, ..small() }).await.unwrap().id;
            let exec = start_counter(&client, &id).await;
            let (one, other) = tokio::join!(client.pause(&id), client.pause(&id));
            assert_eq!(
                (one.unwrap().state, other.unwrap().state),
                (SandboxState::Paused, SandboxState::Paused)
            );
            service.kill();
            service.begin();
            let client = service.client();
            assert_eq!(state(&client, &id).await, SandboxState::Paused);
            let before = used(&client, &id).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            let after = used(&client, &id).await;
            assert!(after - before < 50_000, "{} µs of processor time while paused", after - before);
            let (one, other) = tokio::join!(client.resume(&id), client.resume(&id));
            assert_eq!(
                (one.unwrap().state, other.unwrap().state),
                (SandboxState::Running, SandboxState::Running)
            );
            let first = read_count(&client, &id).await;
            until(WAIT, "a higher count", async || read_count(&client, &id).await > first).await;
            let execs = client.execs(&id).await.unwrap();
            assert!(execs.iter().any(|one| one.id == exec.id && one.outcome.is_none()));
            let mut last = read_count(&client, &id).await;
            for round in 0..20 {
                client.pause(&id).await.unwrap();
                // In every other round, the request that reads the count resumes the sandbox implicitly.
                if round % 2 == 0 {
                    client.resume(&id).await.unwrap();
                }
                let now = read_count(&client, &id).await;
                assert!(now >= last, "{now} after {last}");
                last = now;
            }
            client.pause(&id).await.unwrap();
            let since = Instant::now();
            client.stop(&id).await.unwrap();
            assert!(
                since.elapsed() < promised(5),
                "a paused sandbox was stopped after {:?}",
                since.elapsed()
            );
            println!("{tier:?}: paused 22 times, counted to {last}");
        }
        service.assert_nothing_left().await;
    });
}

/// If a server is killed at any moment of a pause or a resume, the restarted server finds the sandbox paused
/// or running, and the sandbox continues.
#[test]
#[ignore = "starts real sandboxes"]
fn a_server_killed_during_a_pause_or_a_resume_loses_nothing() {
    served(async || {
        let mut service = Service::start();
        let id = service.client().create(&small()).await.unwrap().id;
        start_counter(&service.client(), &id).await;
        let (mut last, mut states) = (0, [0, 0]);
        for round in 0..e2e::lab::sized(60_u64, 12) {
            let client = service.client();
            let count = read_count(&client, &id).await;
            assert!(count >= last, "round {round}: {count} after {last}");
            last = count;
            if round % 2 == 1 {
                client.pause(&id).await.unwrap();
            }
            let (asking, of) = (client.clone(), id.clone());
            let asked = tokio::spawn(async move {
                match round % 2 {
                    0 => asking.pause(&of).await.map(drop),
                    _ => asking.resume(&of).await.map(drop),
                }
            });
            tokio::time::sleep(Duration::from_micros(round * 700 % 9_000)).await;
            service.kill();
            asked.abort();
            service.begin();
            match state(&service.client(), &id).await {
                SandboxState::Running => states[0] += 1,
                SandboxState::Paused => states[1] += 1,
                other => panic!("round {round}: {other:?}"),
            }
        }
        println!("found running {} times and paused {} times, counted to {last}", states[0], states[1]);
        service.client().stop(&id).await.unwrap();
        service.assert_nothing_left().await;
    });
}

/// The idle time, the time to live and exec deadlines do not elapse during a pause. A resume restarts the
/// first two.
#[test]
#[ignore = "starts real sandboxes"]
fn no_time_elapses_while_paused() {
    served(async || {
        let service = Service::start();
        let client = service.client();
        for tier in tiers() {
            let limits = Limits { ttl_ms: 4_000, ..Limits::default() };
            let request = CreateSandbox { tier, idle_ms: 4_000, limits: limits.into(), ..small() };
            let id = client.create(&request).await.unwrap().id;
            let spec = ExecSpec { deadline_ms: Some(3_000), ..script("sleep 60") };
            let exec = client.start(&id, &spec).await.unwrap();
            client.pause(&id).await.unwrap();
            tokio::time::sleep(Duration::from_secs(6)).await;
            assert_eq!(state(&client, &id).await, SandboxState::Paused);
            client.resume(&id).await.unwrap();
            let resumed = Instant::now();
            tokio::time::sleep(Duration::from_secs(1)).await;
            let seen = client.execs(&id).await.unwrap().into_iter().find(|one| one.id == exec.id).unwrap();
            assert!(seen.outcome.is_none(), "the deadline elapsed during the pause: {seen:?}");
            assert!(seen.duration_ms < 3_000, "the pause counts as time of the exec: {seen:?}");
            let end = client.reader(&id, &exec.id).collect().await.unwrap().end;
            assert_eq!(end.outcome, Outcome::Timeout);
            until(WAIT, "the end", async || state(&client, &id).await.is_terminal()).await;
            assert_eq!(client.sandbox(&id).await.unwrap().reason, Some(EndReason::Expired));
            let lived = resumed.elapsed();
            assert!(lived > Duration::from_millis(3_800), "{tier:?} lived {lived:?} after the resume");
        }
        service.assert_nothing_left().await;
    });
}

/// With `on_timeout = pause`, both timeouts pause the sandbox, and a request resumes it with its memory
/// intact.
#[test]
#[ignore = "starts real sandboxes"]
fn a_timeout_pauses_a_sandbox_that_wants_that() {
    served(async || {
        let service = Service::start();
        let client = service.client();
        for tier in tiers() {
            let short = Limits { ttl_ms: 3_000, ..Limits::default() };
            let (long, idle) = (Limits::default(), 2_000);
            for (what, idle_ms, limits) in [("time to live", 60_000, short), ("idle timeout", idle, long)] {
                let request = CreateSandbox {
                    tier,
                    idle_ms,
                    limits: limits.into(),
                    on_timeout: OnTimeout::Pause,
                    ..small()
                };
                let id = client.create(&request).await.unwrap().id;
                let counting = match what {
                    "time to live" => client.start(&id, &script(COUNTER)).await.map(drop),
                    // A running exec keeps a sandbox from being idle. A background process of an exec that
                    // has ended does not.
                    _ => client
                        .exec(&id, &script(&format!("({COUNTER}) > /dev/null 2>&1 &")))
                        .await
                        .unwrap()
                        .collect()
                        .await
                        .map(drop),
                };
                counting.unwrap();
                until_paused(&client, &id).await;
                let shown = client.sandbox(&id).await.unwrap();
                assert_eq!((shown.on_timeout, shown.reason), (OnTimeout::Pause, None), "{what}");
                let count = read_count(&client, &id).await;
                assert!(count > 0, "{what}: nothing was counted");
                assert_eq!(state(&client, &id).await, SandboxState::Running);
                until_paused(&client, &id).await;
                assert!(read_count(&client, &id).await > count, "{what}");
                client.stop(&id).await.unwrap();
            }
        }
        // Control: without the option, the sandbox ends when its time to live is over.
        let limits = Limits { ttl_ms: 2_000, ..Limits::default() };
        let id = client.create(&CreateSandbox { limits: limits.into(), ..small() }).await.unwrap().id;
        until(WAIT, "the end", async || state(&client, &id).await == SandboxState::Ended).await;
        service.assert_nothing_left().await;
    });
}

/// A reader that stays connected receives nothing during a pause. Afterwards it receives the rest of the
/// output, without a gap.
#[test]
#[ignore = "starts real sandboxes"]
fn a_reader_waits_through_a_pause() {
    served(async || {
        let service = Service::start();
        let client = service.client();
        let id = client.create(&small()).await.unwrap().id;
        let lines = "i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo $i; sleep 0.01; done";
        let mut exec = client.exec(&id, &script(lines)).await.unwrap();
        assert!(matches!(exec.next().await.unwrap(), Some(Event::Data { .. })));
        client.pause(&id).await.unwrap();
        // This is longer than the time after which a connection to an unresponsive guest is closed.
        let reading = tokio::spawn(exec.collect());
        tokio::time::sleep(Duration::from_secs(35)).await;
        assert!(!reading.is_finished(), "the reader ended during the pause");
        client.resume(&id).await.unwrap();
        let collected = tokio::time::timeout(WAIT, reading).await.unwrap().unwrap().unwrap();
        let text = String::from_utf8(collected.stdout).unwrap();
        let numbers: Vec<u64> = text.lines().map(|line| line.parse().unwrap()).collect();
        assert!(
            numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]) && numbers.last() == Some(&300),
            "{text}"
        );
        assert_eq!(collected.end.outcome, Outcome::Exited { code: 0 });
    });
}

/// Requests for files, ports, leases and policies, and new execs, resume a paused sandbox. Requests that only
/// inspect the sandbox do not.
#[test]
#[ignore = "starts real sandboxes"]
fn requests_resume_a_paused_sandbox() {
    on_each_tier(async |service, tier| {
        let application = Application::start(service, tier).await;
        let (client, id) = (&application.client, &application.sandbox.id);
        let paused = async || client.pause(id).await.unwrap();
        paused().await;
        client.usage(id).await.unwrap();
        client.sandboxes(false).await.unwrap();
        assert_eq!(asked(&application.port.url, &[]).0, 401);
        assert_eq!(state(client, id).await, SandboxState::Paused, "a request without the token resumed it");
        application.held();
        assert_eq!(state(client, id).await, SandboxState::Running);
        paused().await;
        client.renew(id, Lease { idle_ms: 300_000 }).await.unwrap();
        assert_eq!(state(client, id).await, SandboxState::Running);
        paused().await;
        client.set_policy(id, &Policy::default()).await.unwrap();
        assert_eq!(state(client, id).await, SandboxState::Running);
        paused().await;
        let workspace = FilePath::new(b"/workspace").unwrap();
        assert!(client.files(id).list(&workspace, 1).await.is_ok());
        assert_eq!(state(client, id).await, SandboxState::Running);
        // An open connection transfers nothing during a pause, and continues afterwards.
        let mut socket = application.websocket();
        assert_eq!(exchange(&mut socket, "before"), "before");
        paused().await;
        client.resume(id).await.unwrap();
        assert_eq!(exchange(&mut socket, "after"), "after");
        paused().await;
        client.stop(id).await.unwrap();
        service.assert_nothing_left().await;
    });
}

/// A paused sandbox ends after `paused_max_ms`, even across a restart of the server. Until then, it counts
/// towards the quota.
#[test]
#[ignore = "starts real sandboxes"]
fn a_paused_sandbox_ends_after_the_longest_pause_and_counts_until_then() {
    served(async || {
        let (_place, _path, mut service) = configured("paused_max_ms = 6000\npool_ready = 0\n");
        let quota = Quota { sandboxes: 2, ..Quota::default() };
        let key = service.key_of("small", Role::Write, quota).await;
        let client = Client::new(&service.url(), &key).unwrap();
        let mut paused = Vec::new();
        for _ in 0..2 {
            let id = client.create(&small()).await.unwrap().id;
            client.pause(&id).await.unwrap();
            paused.push(id);
        }
        let refused = client.create(&small()).await.unwrap_err();
        assert_eq!(refused.code(), Some(ErrorCode::QuotaExceeded), "{refused}");
        service.kill();
        service.begin();
        let client = Client::new(&service.url(), &key).unwrap();
        for id in &paused {
            let ended = async || -> Sandbox { client.sandbox(id).await.unwrap() };
            until(WAIT, "the end", async || ended().await.state.is_terminal()).await;
            assert_eq!(ended().await.reason, Some(EndReason::Expired));
            let refused = client.resume(id).await.unwrap_err();
            assert_eq!(refused.code(), Some(ErrorCode::SandboxLost), "{refused}");
        }
        client.create(&small()).await.unwrap();
    });
}

/// `bellglass pause`, `resume` and `create --on-timeout` work from the command line.
#[test]
#[ignore = "starts real sandboxes"]
fn the_command_line_pauses_and_resumes() {
    served(async || {
        let service = Service::start();
        let said = |arguments: &[&str]| {
            let output = service.command(arguments).output().unwrap();
            let (out, err) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            (output.status.success(), out.trim().to_owned(), err.trim().to_owned())
        };
        let (ok, id, err) = said(&["create", "--name", "build", "--on-timeout", "pause", "--idle", "2s"]);
        assert!(ok, "{err}");
        assert_eq!(said(&["pause", "build"]), (true, String::new(), format!("bellglass: {id} is paused")));
        assert!(said(&["list"]).1.contains("paused"), "{:?}", said(&["list"]));
        assert_eq!(said(&["resume", "build"]), (true, String::new(), format!("bellglass: {id} is running")));
        until_paused(&service.client(), &id.parse().unwrap()).await;
        assert_eq!(said(&["exec", "build", "--", "echo", "again"]).1, "again");
        assert!(said(&["stop", "build"]).0);
        let (ok, _, err) = said(&["pause", "build"]);
        assert!(!ok && err.contains("build"), "{err}");
    });
}
