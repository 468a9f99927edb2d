//! Attacks L-01, L-02 and X-08: servers killed at chosen moments, concurrent use of one name, and quotas
//! under concurrent requests.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use api::account::{Quota, Role};
use api::sandbox::SandboxState;
use e2e::service::{PLENTY, Service, served};
use serde_json::{Value, json};

use super::ground::{Answer, address, head, held, keyed, recovers, send, small};

/// A step of starting a sandbox, and a function that returns true if a sandbox has reached this step.
type Step = (&'static str, fn(&Path, &str) -> bool);
type Counts = BTreeMap<(u16, String), usize>;

fn count(answers: &[Answer]) -> Counts {
    let mut counts = Counts::new();
    for answer in answers {
        *counts.entry(answer.refusal()).or_default() += 1;
    }
    counts
}

/// Verifies that attack L-01 fails: a server that is killed at any recorded step of starting or stopping a
/// sandbox leaves nothing half-finished. Kills at random moments under load are covered by
/// `a_server_that_is_killed_at_any_moment_loses_no_sandbox_and_no_byte`.
#[test]
#[ignore = "starts real sandboxes"]
fn a_server_killed_at_each_step_of_a_start_and_a_stop_leaves_nothing_half_done() {
    served(async || {
        let mut service = Service::start();
        let witness = service.client().create(&e2e::service::small()).await.unwrap().id;
        let (mut ids, mut met) = (Vec::new(), 0);
        let steps: [Step; 5] = [
            ("written down", |data, id| data.join(format!("node/{id}.json")).exists()),
            ("its directory", |data, id| data.join(format!("sandboxes/{id}")).exists()),
            ("its cgroup", |_, id| cgroup(id)),
            ("running", |data, id| says(data, id, "\"running\"")),
            ("answered", |_, _| false),
        ];
        for (step, reached) in steps {
            let key = format!("step-{}", step.replace(' ', "-"));
            let known: Vec<String> = records(service.data());
            let creating = begin_create(&service, &key);
            let arrived = reach(service.data(), &known, reached, &creating);
            service.kill();
            drop(creating);
            service.begin();
            let left = settled(&service, step);
            // Control: the server was killed at this step, and not after it had responded.
            assert_eq!(arrived, step != "answered", "{step}: it was not met there");
            e2e::attack::count_control();
            // Repeating the request results in one sandbox, whatever the result of the first request was.
            let again = create(&service, &key);
            assert!([200, 201].contains(&again.status), "{step}: {again:?}");
            let id = again.json()["id"].as_str().unwrap().to_owned();
            // Kill the server again while it stops this sandbox.
            let path = format!("/v1/sandboxes/{id}");
            let request = head("DELETE", &path, &[("authorization", &format!("Bearer {}", service.key))]);
            let to = address(&service);
            let stopping = std::thread::spawn(move || send(&to, (request + "\r\n").as_bytes()));
            wait(Duration::from_millis(500), || {
                says(service.data(), &id, "\"stopping\"") || stopping.is_finished()
            });
            met += usize::from(says(service.data(), &id, "\"stopping\""));
            service.kill();
            let _ = stopping.join();
            service.begin();
            let ended = keyed(&service, &service.key, "DELETE", &path, &Value::Null).json();
            assert_eq!((&ended["state"], &ended["reason"]), (&json!("ended"), &json!("stopped")), "{step}");
            ids.extend(left.iter().map(|one| one["id"].as_str().unwrap().to_owned()));
            ids.push(id);
        }
        let client = service.client();
        assert_eq!(client.sandbox(&witness).await.unwrap().state, SandboxState::Running);
        for one in client.sandboxes(false).await.unwrap() {
            client.stop(&one.id).await.unwrap();
        }
        service.traces(&ids).assert_nothing_left_but_the_server(service.pid());
        assert!(met > 0, "no stop was met half-way");
        held("L-01", &format!("killed at 5 steps of a start, and {met} times half-way through a stop"));
    });
}

/// Waits until no sandbox is in transition, and returns all sandboxes. The wait is needed because the server
/// starts to respond before it has removed half-finished sandboxes.
fn settled(service: &Service, step: &str) -> Vec<Value> {
    let mut all = Vec::new();
    wait(Duration::from_secs(10), || {
        let page = keyed(service, &service.key, "GET", "/v1/sandboxes?all=true", &Value::Null).json();
        all = page["items"].as_array().unwrap().clone();
        all.iter().all(|one| ["running", "ended", "lost"].contains(&one["state"].as_str().unwrap()))
    });
    for one in &all {
        assert!(["running", "ended", "lost"].contains(&one["state"].as_str().unwrap()), "{step}: {one}");
    }
    all
}

fn create(service: &Service, key: &str) -> Answer {
    send(&address(service), request(&service.key, key).as_bytes())
}

fn request(bearer: &str, key: &str) -> String {
    let bearer = format!("Bearer {bearer}");
    let body = small().to_string();
    let headers =
        [("authorization", bearer.as_str()), ("content-type", "application/json"), ("idempotency-key", key)];
    head("POST", "/v1/sandboxes", &headers) + &format!("content-length: {}\r\n\r\n{body}", body.len())
}

fn begin_create(service: &Service, key: &str) -> std::thread::JoinHandle<Answer> {
    let (address, request) = (address(service), request(&service.key, key));
    std::thread::spawn(move || send(&address, request.as_bytes()))
}

/// Waits until a new sandbox has reached this step, or until its request has been answered. Returns true if
/// the sandbox has reached the step.
fn reach(
    data: &Path,
    known: &[String],
    reached: fn(&Path, &str) -> bool,
    creating: &std::thread::JoinHandle<Answer>,
) -> bool {
    let mut arrived = false;
    wait(Duration::from_secs(20), || {
        let fresh = records(data).into_iter().find(|id| !known.contains(id));
        arrived = fresh.is_some_and(|id| reached(data, &id));
        arrived || creating.is_finished()
    });
    arrived
}

fn wait(within: Duration, mut so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !so() && began.elapsed() < within {
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Returns the IDs of the sandboxes that have a record in the journal.
fn records(data: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(data.join("node")).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| name.strip_suffix(".json").map(str::to_owned)).collect()
}

fn says(data: &Path, id: &str, word: &str) -> bool {
    std::fs::read_to_string(data.join(format!("node/{id}.json"))).is_ok_and(|text| text.contains(word))
}

fn cgroup(id: &str) -> bool {
    ["", "memory/", "unified/", "pids/"]
        .iter()
        .any(|root| Path::new(&format!("/sys/fs/cgroup/{root}bellglass/{id}")).exists())
}

/// Verifies that attack L-02 fails: a name belongs to at most one live sandbox, even if many clients create
/// and delete the sandbox.
#[test]
#[ignore = "starts real sandboxes"]
fn one_name_made_and_deleted_by_many_is_one_sandbox_at_a_time() {
    const THREADS: usize = 10;
    const ROUNDS: u64 = 20;
    served(async || {
        let service = Service::start();
        let mut named = small();
        named["name"] = json!("contested");
        let answers: Vec<(bool, Answer)> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..THREADS)
                .map(|number| {
                    let (service, named) = (&service, &named);
                    scope.spawn(move || {
                        let act = |round: u64| {
                            let makes = number % 5 != 0;
                            let answer = if makes {
                                std::thread::sleep(Duration::from_millis(round * 17 % 100));
                                keyed(service, &service.key, "POST", "/v1/sandboxes", named)
                            } else {
                                // In some rounds, this pause is long enough for a sandbox to start running.
                                std::thread::sleep(Duration::from_millis(round * 29 % 200));
                                let path = "/v1/sandboxes/contested";
                                keyed(service, &service.key, "DELETE", path, &Value::Null)
                            };
                            (makes, answer)
                        };
                        (0..ROUNDS).map(act).collect::<Vec<_>>()
                    })
                })
                .collect();
            all.into_iter().flat_map(|one| one.join().unwrap()).collect()
        });
        let (made, deleted): (Vec<_>, Vec<_>) = answers.into_iter().partition(|(makes, _)| *makes);
        let of = |all: Vec<(bool, Answer)>| all.into_iter().map(|(_, answer)| answer).collect::<Vec<_>>();
        let (made, deleted) = (count(&of(made)), count(&of(deleted)));
        // The status 410 means that another client stopped the sandbox while it was being created.
        let known = [(201, ""), (409, "conflict"), (410, "sandbox_lost")];
        assert!(made.keys().all(|(s, c)| known.contains(&(*s, c.as_str()))), "{made:?}");
        let known = [(200, ""), (404, "not_found")];
        assert!(deleted.keys().all(|(s, c)| known.contains(&(*s, c.as_str()))), "{deleted:?}");
        // Control: the sandbox was created and deleted more than once. Without a race, creating it succeeds.
        let done = |counts: &Counts, status: u16| {
            counts.iter().filter(|((is, _), _)| *is == status).map(|(_, count)| count).sum::<usize>()
        };
        assert!(done(&made, 201) + done(&made, 410) > 1, "{made:?}");
        e2e::attack::count_control();
        assert!(done(&deleted, 200) > 1, "{deleted:?}");
        let page = keyed(&service, &service.key, "GET", "/v1/sandboxes", &Value::Null).json();
        let live = page["items"].as_array().unwrap();
        assert!(live.len() <= 1, "two live sandboxes have one name: {live:?}");
        let _ = keyed(&service, &service.key, "DELETE", "/v1/sandboxes/contested", &Value::Null);
        assert_eq!(keyed(&service, &service.key, "POST", "/v1/sandboxes", &named).status, 201);
        assert_eq!(
            keyed(&service, &service.key, "DELETE", "/v1/sandboxes/contested", &Value::Null).status,
            200
        );
        let all =
            keyed(&service, &service.key, "GET", "/v1/sandboxes?all=true&limit=1000", &Value::Null).json();
        let ids: Vec<String> = all["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| {
                assert!(["ended", "lost"].contains(&one["state"].as_str().unwrap()), "{one}");
                one["id"].as_str().unwrap().to_owned()
            })
            .collect();
        // Delete a sandbox twice after its end.
        let path = format!("/v1/sandboxes/{}", ids[0]);
        for _ in 0..2 {
            assert_eq!(keyed(&service, &service.key, "DELETE", &path, &Value::Null).status, 200);
        }
        service.traces(&ids).assert_nothing_left_but_the_server(service.pid());
        recovers(&service).await;
        held("L-02", &format!("made {made:?}, deleted {deleted:?}"));
    });
}

/// Verifies that attack X-08 fails: concurrent create and delete requests never exceed a quota.
#[test]
#[ignore = "starts real sandboxes"]
fn no_race_of_creates_and_deletes_exceeds_a_quota() {
    const MOST: u32 = 5;
    const THREADS: usize = 16;
    const EACH: usize = 20;
    served(async || {
        let service = Service::start();
        let memory_bytes = u64::from(MOST) * (128 << 20);
        let quota = Quota { sandboxes: MOST, memory_bytes, ..PLENTY };
        let key = service.key_of("tight", Role::Write, quota).await;
        let stop = std::sync::atomic::AtomicBool::new(false);
        let (counts, most) = std::thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let (mut most, mut looks) = (0, 0);
                while !stop.load(std::sync::atomic::Ordering::Acquire) {
                    most = most.max(live(&service, &key).len());
                    looks += 1;
                }
                assert!(looks > 10, "nobody looked");
                most
            });
            let all: Vec<_> = (0..THREADS)
                .map(|_| {
                    scope.spawn(|| {
                        let mut answers = Vec::new();
                        for _ in 0..EACH {
                            let made = keyed(&service, &key, "POST", "/v1/sandboxes", &small());
                            if made.status == 201 {
                                let path = format!("/v1/sandboxes/{}", made.json()["id"].as_str().unwrap());
                                let gone = keyed(&service, &key, "DELETE", &path, &Value::Null);
                                assert_eq!(gone.status, 200, "{gone:?}");
                            }
                            answers.push(made);
                        }
                        answers
                    })
                })
                .collect();
            let answers: Vec<Answer> = all.into_iter().flat_map(|one| one.join().unwrap()).collect();
            stop.store(true, std::sync::atomic::Ordering::Release);
            (count(&answers), watch.join().unwrap())
        });
        assert!(most <= MOST as usize, "{most} live sandboxes, {MOST} are allowed");
        let known = [(201, ""), (429, "quota_exceeded")];
        assert!(counts.keys().all(|(s, c)| known.contains(&(*s, c.as_str()))), "{counts:?}");
        assert!(counts.len() == 2, "the quota was never reached: {counts:?}");
        // Sandboxes that have ended do not count: the quota can be used up, but not exceeded.
        let fill = |key: &str| keyed(&service, key, "POST", "/v1/sandboxes", &small());
        for _ in 0..MOST {
            assert_eq!(fill(&key).status, 201, "something is counted that is gone");
        }
        fill(&key).assert("one more", 429, "quota_exceeded");
        // Control: if the quota is increased by one, exactly one more sandbox can be created.
        let key = service.key_of("tight", Role::Write, Quota { sandboxes: MOST + 1, ..PLENTY }).await;
        assert_eq!(fill(&key).status, 201);
        e2e::attack::count_control();
        fill(&key).assert("one more again", 429, "quota_exceeded");
        held("X-08", &format!("at most {most} of {MOST} live; {counts:?}"));
    });
}

fn live(service: &Service, key: &str) -> Vec<Value> {
    let page = keyed(service, key, "GET", "/v1/sandboxes", &Value::Null).json();
    page["items"].as_array().unwrap().clone()
}
