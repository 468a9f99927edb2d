//! Concurrent callers: capacity and quotas are never exceeded, a repeated request takes effect once, and
//! projects are isolated from each other.
//!
//! | module | holds |
//! |---|---|
//! | [`routes`] | every route of the API description, with another project's key and without a valid key |

mod routes;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use api::account::{Quota, Role};
use api::exec::{LostCause, Outcome};
use api::sandbox::{CreateSandbox, EndReason, SandboxState};
use api::{ErrorCode, SandboxId};
use client::Client;
use e2e::lab::{promised, script};
use e2e::service::{PLENTY, Service, served, small, until};
use e2e::wire::{Answer, Wire, command, sandbox};
use tokio::task::JoinSet;

/// Returns the number of concurrent callers that compete for a few sandboxes. `BELLGLASS_CROWD` sets the
/// number; the default is suitable for CI.
fn crowd() -> usize {
    std::env::var("BELLGLASS_CROWD").ok().and_then(|text| text.parse().ok()).unwrap_or(200)
}

/// Sends the given number of create requests concurrently.
async fn create_all(wire: &Wire, request: &CreateSandbox, count: usize, key: Option<&str>) -> Vec<Answer> {
    let mut asked = JoinSet::new();
    for _ in 0..count {
        let (wire, request, key) = (wire.clone(), sandbox(request), key.map(str::to_owned));
        asked.spawn(async move {
            let headers: Vec<_> = key.iter().map(|key| ("idempotency-key", key.as_str())).collect();
            wire.ask_with("POST", "/v1/sandboxes", Some(&request), &headers).await
        });
    }
    asked.join_all().await
}

async fn stop_all(client: &Client) {
    for sandbox in client.sandboxes(false).await.unwrap() {
        client.stop(&sandbox.id).await.unwrap();
    }
}

fn count(answers: &[Answer], status: u16) -> usize {
    answers.iter().filter(|answer| answer.status == status).count()
}

fn id_in(answer: &Answer) -> SandboxId {
    answer.json()["id"].as_str().unwrap().parse().unwrap()
}

/// 200 concurrent create requests succeed. A request that is refused because of the queue succeeds when it is
/// repeated after the time in `retry-after`.
#[test]
#[ignore = "starts real sandboxes"]
fn two_hundred_creates_at_once_all_succeed_where_there_is_room() {
    const ALL: usize = 200;
    const AT_FIRST: usize = 50;
    served(async || {
        let service = Service::start();
        let begun = Instant::now();
        let mut made = BTreeSet::new();
        let mut answers = create_all(&service.wire(), &small(), ALL, None).await;
        let accepted = count(&answers, 201);
        loop {
            let mut wait = 0_u64;
            for answer in &answers {
                if answer.status == 201 {
                    made.insert(id_in(answer));
                    continue;
                }
                assert!(is_capacity(answer) && answer.json()["ran"] == "no", "{answer:?}");
                wait = wait.max(answer.header("retry-after").unwrap().parse().unwrap());
            }
            if made.len() == ALL {
                break;
            }
            assert!(begun.elapsed() < promised(60), "{} of {ALL} after {:?}", made.len(), begun.elapsed());
            tokio::time::sleep(Duration::from_secs(wait)).await;
            answers = create_all(&service.wire(), &small(), ALL - made.len(), None).await;
        }
        eprintln!("{ALL} creates in {:.1?}, {accepted} of them at the first attempt", begun.elapsed());
        assert!(accepted >= AT_FIRST, "{accepted} of {ALL} succeeded at the first attempt");
        let live: BTreeSet<_> =
            service.client().sandboxes(false).await.unwrap().into_iter().map(|one| one.id).collect();
        assert_eq!(live, made);
        stop_all(&service.client()).await;
        service.assert_nothing_left().await;
    });
}

fn is_capacity(answer: &Answer) -> bool {
    answer.status == 503 && answer.code() == "capacity" && answer.header("retry-after").is_some()
}

/// Create requests beyond the machine's capacity are refused before any resource or row is created.
#[test]
#[ignore = "starts real sandboxes"]
fn creates_beyond_the_room_of_the_machine_are_refused_before_anything_is_made() {
    const ROOM: usize = 12;
    served(async || {
        let place = tempfile::tempdir().unwrap();
        let config = place.path().join("bellglass.toml");
        std::fs::write(&config, format!("sandboxes_max = {ROOM}\npool_ready = 0\n")).unwrap();
        let service = Service::with(&[], &["--config", config.to_str().unwrap()]);
        let answers = create_all(&service.wire(), &small(), crowd(), None).await;
        assert_eq!(count(&answers, 201), ROOM);
        assert_eq!(answers.iter().filter(|answer| is_capacity(answer)).count(), crowd() - ROOM);
        let client = service.client();
        // The refused requests have created no rows either.
        let rows = client.sandboxes(true).await.unwrap();
        assert_eq!(rows.len(), ROOM);
        client.stop(&rows[0].id).await.unwrap();
        client.create(&small()).await.expect("one has gone, so there is room for one");
        stop_all(&client).await;
        service.assert_nothing_left().await;
    });
}

/// Verifies that attack X-08 fails: concurrent create requests never exceed the project's quota.
#[test]
#[ignore = "starts real sandboxes"]
fn a_quota_is_never_overrun_however_many_ask_at_once() {
    const MOST: u32 = 5;
    served(async || {
        let service = Service::start();
        let key = service.key_of("small", Role::Write, Quota { sandboxes: MOST, ..PLENTY }).await;
        let (wire, url) = (service.wire().with_key(Some(&key)), service.url());
        let client = Client::new(&url, &key).unwrap();
        let crowd = tokio::spawn(async move {
            let mut asked = JoinSet::new();
            for _ in 0..crowd() {
                let wire = wire.clone();
                asked.spawn(async move {
                    let mut made = 0;
                    // Each caller stops its sandbox, so that the quota becomes available again.
                    for _ in 0..3 {
                        let answer = wire.ask("POST", "/v1/sandboxes", Some(&sandbox(&small()))).await;
                        if answer.status == 201 {
                            let path = format!("/v1/sandboxes/{}", id_in(&answer));
                            assert_eq!(wire.ask("DELETE", &path, None).await.status, 200);
                            made += 1;
                        } else {
                            assert_eq!((answer.status, answer.code().as_str()), (429, "quota_exceeded"));
                            assert!(answer.header("retry-after").is_some());
                        }
                    }
                    made
                });
            }
            asked.join_all().await.into_iter().sum::<u32>()
        });
        let (mut looks, mut most) = (0, 0);
        while !crowd.is_finished() {
            let rows = client.sandboxes(false).await.unwrap().len();
            let directories = std::fs::read_dir(service.data().join("sandboxes")).unwrap().count();
            (looks, most) = (looks + 1, most.max(rows));
            assert!(rows <= MOST as usize, "{rows} live at once");
            // One additional directory may belong to the server's own probe, which starts a sandbox from time
            // to time.
            assert!(directories <= MOST as usize + 1, "{directories} on the machine at once");
        }
        let made = crowd.await.unwrap();
        eprintln!("{made} were made in turn, at most {most} lived at once, in {looks} looks");
        assert!(made >= MOST, "{made} were made");
        service.assert_nothing_left().await;
    });
}

/// 100 concurrent requests with the same idempotency key create one sandbox or one exec. The same key with a
/// different body is a conflict.
#[test]
#[ignore = "starts real sandboxes"]
fn a_request_with_the_same_key_is_done_once_and_another_with_it_is_a_conflict() {
    served(async || {
        let service = Service::start();
        let (wire, client) = (service.wire(), service.client());
        let answers = create_all(&wire, &small(), 100, Some("the same")).await;
        assert_eq!((count(&answers, 201), count(&answers, 200)), (1, 99));
        let id = id_in(&answers[0]);
        assert!(answers.iter().all(|answer| id_in(answer) == id));
        assert_eq!(client.sandboxes(true).await.unwrap().len(), 1);
        let other = CreateSandbox { idle_ms: 60_000, ..small() };
        let other = create_all(&wire, &other, 1, Some("the same")).await;
        assert_eq!((other[0].status, other[0].code().as_str()), (409, "conflict"));

        let path = format!("/v1/sandboxes/{id}/execs");
        let key = [("idempotency-key", "the same")];
        let mut asked = JoinSet::new();
        for _ in 0..100 {
            let (wire, path, spec) =
                (wire.clone(), path.clone(), command(&script("echo ran >> /workspace/runs")));
            asked.spawn(async move { wire.ask_with("POST", &path, Some(&spec), &key).await });
        }
        let answers = asked.join_all().await;
        assert_eq!(count(&answers, 201), 100, "{:?}", answers.iter().find(|answer| answer.status != 201));
        assert_eq!(client.execs(&id).await.unwrap().len(), 1);
        let other = wire.ask_with("POST", &path, Some(&command(&script("echo other"))), &key).await;
        assert_eq!((other.status, other.code().as_str()), (409, "conflict"));
        let runs = client.exec(&id, &script("cat /workspace/runs")).await.unwrap().collect().await.unwrap();
        assert_eq!(runs.stdout, b"ran\n");
        // The key still refers to the sandbox after the sandbox has ended.
        client.stop(&id).await.unwrap();
        let again = create_all(&wire, &small(), 1, Some("the same")).await;
        assert_eq!((again[0].status, id_in(&again[0])), (200, id));
    });
}

/// The time that a create request waits in the queue does not count towards the idle time of its sandbox.
#[test]
#[ignore = "starts real sandboxes"]
fn every_sandbox_of_many_asked_for_at_once_takes_an_exec_at_once() {
    served(async || {
        let service = Service::start();
        let mut asked = JoinSet::new();
        for _ in 0..40 {
            let client = service.client();
            asked.spawn(async move {
                let id = client.create(&CreateSandbox { idle_ms: 1000, ..small() }).await.unwrap().id;
                let done = client.exec(&id, &script("echo ready")).await.unwrap().collect().await.unwrap();
                assert_eq!(done.stdout, b"ready\n");
            });
        }
        asked.join_all().await;
        service.assert_nothing_left().await;
    });
}

/// A sandbox accepts an exec as soon as the create request returns. Its name is free as soon as the stop
/// request returns.
#[test]
#[ignore = "starts real sandboxes"]
fn a_sandbox_is_ready_when_it_is_answered_and_its_name_is_free_when_it_is_gone() {
    served(async || {
        let service = Service::start();
        let client = service.client();
        let request = CreateSandbox { name: Some("again".parse().unwrap()), ..small() };
        let name: SandboxId = "again".parse().unwrap();
        for round in 0..10 {
            client.create(&request).await.unwrap();
            let word = round.to_string();
            let done =
                client.exec(&name, &script(&format!("ls /workspace; echo {word} | tee /workspace/f"))).await;
            let done = done.unwrap().collect().await.unwrap();
            assert_eq!(String::from_utf8_lossy(&done.stdout), format!("{word}\n"), "its own, and empty");
            let taken = client.create(&request).await.unwrap_err();
            assert_eq!(taken.code(), Some(ErrorCode::Conflict));
            client.stop(&name).await.unwrap();
        }
    });
}

/// A sandbox can be stopped while it is being created, during an exec, and repeatedly.
#[test]
#[ignore = "starts real sandboxes"]
fn a_delete_works_while_creating_while_executing_twice_and_says_what_is_unknown() {
    served(async || {
        let service = Service::start();
        let (wire, client) = (service.wire(), service.client());
        // Stop during creation: earlier create requests keep this one in the queue.
        let before = tokio::spawn({
            let wire = wire.clone();
            async move { create_all(&wire, &small(), 16, None).await }
        });
        let named = CreateSandbox { name: Some("early".parse().unwrap()), ..small() };
        let creating = tokio::spawn({
            let (wire, named) = (wire.clone(), named.clone());
            async move { create_all(&wire, &named, 1, None).await.remove(0) }
        });
        until(promised(10), "the sandbox to be there", async || {
            wire.ask("GET", "/v1/sandboxes/early", None).await.status == 200
        })
        .await;
        let ended = client.stop(&"early".parse().unwrap()).await.unwrap();
        assert_eq!((ended.state, ended.reason), (SandboxState::Ended, Some(EndReason::Stopped)));
        let answer = creating.await.unwrap();
        assert!(answer.status == 201 || answer.code() == "sandbox_lost", "{answer:?}");
        before.await.unwrap();
        let busy = client.create(&small()).await.unwrap().id;
        let exec = client.exec(&busy, &script("echo in; exec sleep 60")).await.unwrap();
        let begun = Instant::now();
        let (first, second) = tokio::join!(client.stop(&busy), client.stop(&busy));
        assert_eq!(first.unwrap().state, SandboxState::Ended);
        assert_eq!(second.unwrap().reason, Some(EndReason::Stopped));
        let outcome = exec.collect().await.map(|done| done.end.outcome);
        let lost = Outcome::SandboxLost { cause: LostCause::Stopped };
        assert!(
            outcome.as_ref() == Ok(&lost)
                || outcome.as_ref().is_err_and(|error| error.code() == Some(ErrorCode::SandboxLost)),
            "{outcome:?}"
        );
        assert!(begun.elapsed() < promised(5), "{:?}", begun.elapsed());
        assert_eq!(client.stop(&busy).await.unwrap().state, SandboxState::Ended);
        let unknown = client.stop(&"nobody".parse().unwrap()).await.unwrap_err();
        assert_eq!(unknown.code(), Some(ErrorCode::NotFound));
        stop_all(&client).await;
        service.assert_nothing_left().await;
    });
}
