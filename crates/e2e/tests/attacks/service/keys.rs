//! Attacks H-07, H-08 and X-01: guessed keys, repeated requests, and other projects' IDs.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use api::account::Role;
use e2e::lab::script;
use e2e::service::{PLENTY, Service, served};
use serde_json::{Value, json};

use super::ground::{Answer, address, ask, head, held, keyed, quick, read, small};

/// Verifies that attack H-07 fails: all invalid keys get the same response, and after many of them the client
/// is slowed down.
#[test]
#[ignore = "starts real sandboxes"]
fn wrong_keys_of_every_kind_are_told_the_same_and_then_slowed_down() {
    served(async || {
        let service = Service::start();
        let admin =
            |method: &str, path: &str, body: &Value| keyed(&service, &service.key, method, path, body);
        let fresh = |valid_ms: Value| {
            let body = json!({ "project": "default", "role": "write", "valid_ms": valid_ms });
            let made = admin("POST", "/v1/keys", &body).json();
            (made["secret"].as_str().unwrap().to_owned(), made["key"]["id"].as_str().unwrap().to_owned())
        };
        let look = |key: &str| keyed(&service, key, "GET", "/v1/sandboxes", &Value::Null);
        let (revoked, id) = fresh(Value::Null);
        let (expired, _) = fresh(json!(1500));
        // Control: both keys were valid. The first is in the server's memory at the time of its revocation.
        assert_eq!((look(&revoked).status, look(&expired).status), (200, 200));
        e2e::attack::count_control();
        assert_eq!(admin("DELETE", &format!("/v1/keys/{id}"), &Value::Null).status, 204);
        let mut wrong = vec![look(&revoked)];
        tokio::time::sleep(Duration::from_millis(1600)).await;
        wrong.push(look(&expired));
        let mut near = service.key.clone();
        let last = if near.pop() == Some('0') { '1' } else { '0' };
        near.push(last);
        for key in [near.as_str(), &"0".repeat(64), "short", "", "e2b_", &"x".repeat(8000), "' OR 1=1 --"] {
            wrong.push(look(key));
        }
        wrong.push(ask(&service, "GET", "/v1/sandboxes", &[], b""));
        let told = |answer: &Answer| (answer.status, answer.body.clone());
        assert_eq!(wrong[0].status, 401);
        assert!(wrong.iter().all(|answer| told(answer) == told(&wrong[0])), "{wrong:#?}");
        let guesses: Vec<Answer> = (0..100).map(|number| look(&format!("{number:064x}"))).collect();
        let slowed = guesses.iter().filter(|answer| answer.status == 429).count();
        assert!(slowed >= 70, "{slowed} of 100 guesses were slowed down");
        guesses.last().unwrap().assert("slowed", 429, "rate_limited");
        assert!(guesses.last().unwrap().header("retry-after").is_some());
        // A valid key still works from the same address. All slowed-down requests get the same response.
        assert_eq!(look(&service.key).status, 200);
        assert_eq!(told(&look(&revoked)), told(guesses.last().unwrap()));
        let log = std::fs::read_to_string(service.data().join("audit.log")).unwrap();
        let failures = log.matches("authenticate_failed").count();
        assert!((1..=60).contains(&failures), "{failures} lines in the audit log");
        held("H-07", &format!("{} kinds told the same, {slowed} of 100 guesses slowed", wrong.len()));
    });
}

/// Verifies that attack H-07 fails: a key that is revoked while it is in use stops working for good.
#[test]
#[ignore = "starts real sandboxes"]
fn a_key_that_is_revoked_while_it_is_used_is_gone_for_good() {
    const ROUNDS: usize = 20;
    served(async || {
        let service = Service::start();
        let mut before = 0;
        for round in 0..ROUNDS {
            let body = json!({ "project": "default", "role": "read" });
            let made = keyed(&service, &service.key, "POST", "/v1/keys", &body).json();
            let (secret, id) = (made["secret"].as_str().unwrap(), made["key"]["id"].as_str().unwrap());
            let mut seen = Vec::new();
            std::thread::scope(|scope| {
                let users: Vec<_> = (0..4)
                    .map(|_| {
                        scope.spawn(|| {
                            let look =
                                || keyed(&service, secret, "GET", "/v1/sandboxes", &Value::Null).status;
                            (0..4).map(|_| look()).collect::<Vec<u16>>()
                        })
                    })
                    .collect();
                std::thread::sleep(Duration::from_micros(300 * round as u64));
                let path = format!("/v1/keys/{id}");
                assert_eq!(keyed(&service, &service.key, "DELETE", &path, &Value::Null).status, 204);
                seen.extend(users.into_iter().flat_map(|user| user.join().unwrap()));
            });
            before += seen.iter().filter(|status| **status == 200).count();
            let after = keyed(&service, secret, "GET", "/v1/sandboxes", &Value::Null);
            assert!([401, 429].contains(&after.status), "a revoked key works: {after:?}");
        }
        // Control: some requests succeeded before the key was revoked.
        assert!(before > ROUNDS, "{before} uses of {ROUNDS} keys");
        e2e::attack::count_control();
        held("H-07", &format!("{ROUNDS} keys revoked in use, after {before} uses"));
    });
}

/// Verifies that attack H-08 fails: a repeated request takes effect only once.
#[test]
#[ignore = "starts real sandboxes"]
fn a_request_that_is_repeated_is_one_request() {
    const TIMES: usize = 100;
    served(async || {
        let service = Service::start();
        let bearer = format!("Bearer {}", service.key);
        let create = |idempotency: &str, body: &Value| {
            let headers = [
                ("authorization", bearer.as_str()),
                ("content-type", "application/json"),
                ("idempotency-key", idempotency),
            ];
            ask(&service, "POST", "/v1/sandboxes", &headers, body.to_string().as_bytes())
        };
        let answers: Vec<Answer> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..10)
                .map(|_| {
                    scope.spawn(|| (0..TIMES / 10).map(|_| create("once", &small())).collect::<Vec<_>>())
                })
                .collect();
            all.into_iter().flat_map(|one| one.join().unwrap()).collect()
        });
        assert!(answers.iter().all(|answer| [200, 201].contains(&answer.status)), "{answers:#?}");
        assert_eq!(answers.iter().filter(|answer| answer.status == 201).count(), 1);
        let first = answers[0].json()["id"].clone();
        assert!(answers.iter().all(|answer| answer.json()["id"] == first));
        let live = || {
            let page = keyed(&service, &service.key, "GET", "/v1/sandboxes", &Value::Null).json();
            page["items"].as_array().unwrap().len()
        };
        assert_eq!(live(), 1);
        let mut other = small();
        other["idle_ms"] = json!(61_000);
        create("once", &other).assert("another body", 409, "conflict");
        for bad in ["", &"x".repeat(256)] {
            create(bad, &small()).assert("a bad key", 400, "invalid_request");
        }
        // The same idempotency key is independent in a different project.
        let theirs = service.key_of("other", Role::Write, PLENTY).await;
        let headers = [
            ("authorization", format!("Bearer {theirs}")),
            ("content-type", "application/json".into()),
            ("idempotency-key", "once".into()),
        ];
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let made = ask(&service, "POST", "/v1/sandboxes", &headers, small().to_string().as_bytes());
        assert_eq!(made.status, 201);
        assert_ne!(made.json()["id"], first);
        // Control: without an idempotency key, or with a different one, each request creates a sandbox.
        assert_eq!(create("twice", &small()).status, 201);
        e2e::attack::count_control();
        assert_eq!(keyed(&service, &service.key, "POST", "/v1/sandboxes", &small()).status, 201);
        assert_eq!(live(), 3);
        held("H-08", &format!("{TIMES} requests, 1 sandbox"));
    });
}

/// Verifies that attack X-01 fails: resources of another project appear not to exist.
#[test]
#[ignore = "starts real sandboxes"]
fn what_belongs_to_another_project_is_not_there() {
    served(async || {
        let service = Service::start();
        let (owner, thief) = (
            service.key_of("owner", Role::Write, PLENTY).await,
            service.key_of("thief", Role::Admin, PLENTY).await,
        );
        let mut named = small();
        named["name"] = json!("treasure");
        let id = keyed(&service, &owner, "POST", "/v1/sandboxes", &named).json()["id"].clone();
        let id = id.as_str().unwrap();
        let other = keyed(&service, &owner, "POST", "/v1/sandboxes", &small()).json()["id"].clone();
        let body = json!(script("echo secret; sleep 60"));
        let exec = keyed(&service, &owner, "POST", &format!("/v1/sandboxes/{id}/execs"), &body).json();
        let exec = exec["id"].as_str().unwrap();
        let mut events = listening(&service, &thief);
        for place in [id, "treasure"] {
            for (method, rest, body) in [
                ("GET", String::new(), Value::Null),
                ("DELETE", String::new(), Value::Null),
                ("PUT", "/lease".into(), json!({ "idle_ms": 1000 })),
                ("GET", "/usage".into(), Value::Null),
                ("GET", "/execs".into(), Value::Null),
                ("POST", "/execs".into(), quick()),
                ("GET", format!("/execs/{exec}"), Value::Null),
                ("DELETE", format!("/execs/{exec}"), Value::Null),
                ("GET", format!("/execs/{exec}/output"), Value::Null),
                ("PUT", format!("/execs/{exec}/read?stdout=1&stderr=0"), Value::Null),
                ("PUT", format!("/execs/{exec}/stdin?offset=0"), Value::Null),
                ("POST", format!("/execs/{exec}/signal"), json!({ "signal": 9 })),
            ] {
                let path = format!("/v1/sandboxes/{place}{rest}");
                let answer = keyed(&service, &thief, method, &path, &body);
                answer.assert(&format!("{method} {path}"), 404, "not_found");
                assert!(!answer.body.contains("owner") && !answer.body.contains("secret"), "{answer:?}");
                // The response is identical, word for word, to the response for a resource that never
                // existed.
                let unknown = keyed(&service, &thief, method, &path.replace(place, "nothing"), &body);
                assert_eq!(answer.body.replace(place, "nothing"), unknown.body, "{method} {path}");
            }
        }
        // Try lists, with filters and with a cursor that another project received.
        let page = keyed(&service, &owner, "GET", "/v1/sandboxes?limit=1", &Value::Null).json();
        let cursor = page["next"].as_str().expect("a second page").to_owned();
        for query in ["", "?all=true", &format!("?cursor={cursor}"), "?cursor=ffffffffffffffff-zzz&all=true"]
        {
            let seen = keyed(&service, &thief, "GET", &format!("/v1/sandboxes{query}"), &Value::Null);
            assert!(
                !seen.body.contains(id) && !seen.body.contains(other.as_str().unwrap()),
                "{query}: {seen:?}"
            );
        }
        timing(&service, &thief, id);
        // A name that another project uses is available in this project.
        assert_eq!(keyed(&service, &thief, "POST", "/v1/sandboxes", &named).status, 201);
        // Control: the owner can see and do all of this.
        let path = format!("/v1/sandboxes/{id}/execs/{exec}/output?follow=false");
        assert!(keyed(&service, &owner, "GET", &path, &Value::Null).body.contains("secret"));
        e2e::attack::count_control();
        let second = keyed(&service, &owner, "GET", &format!("/v1/sandboxes?cursor={cursor}"), &Value::Null);
        assert_eq!(second.json()["items"].as_array().unwrap().len(), 1);
        assert_eq!(keyed(&service, &owner, "DELETE", "/v1/sandboxes/treasure", &Value::Null).status, 200);
        events.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let heard = read(&mut events);
        assert!(heard.body.contains("thief") && !heard.body.contains(id), "{heard:?}");
        held("X-01", "24 ways to another project's sandbox: not found");
    });
}

fn listening(service: &Service, key: &str) -> TcpStream {
    let mut events = TcpStream::connect(address(service)).unwrap();
    let bearer = format!("Bearer {key}");
    let request = head("GET", "/v1/events", &[("authorization", &bearer)]) + "\r\n";
    events.write_all(request.as_bytes()).unwrap();
    events
}

/// Asserts that a request for another project's sandbox takes as long as a request for a sandbox that never
/// existed. All requests use one connection, one after the other in turns, so that the medians differ only by
/// the server's own time.
fn timing(service: &Service, key: &str, id: &str) {
    const LOOKS: usize = 1000;
    // The id of no sandbox must have the form of an id, or it would be refused without a search.
    let unknown: String =
        id.chars().take(1).chain(id.chars().skip(1).collect::<Vec<_>>().into_iter().rev()).collect();
    let paths = [id, &unknown].map(|named| format!("/v1/sandboxes/{named}"));
    // A list is one more read of the store.
    let paths = [&paths[0], &paths[1], "/v1/sandboxes?all=true"];
    let mut stream = TcpStream::connect(address(service)).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut took: [Vec<Duration>; 3] = Default::default();
    // A request right after a list takes longer, so the first two paths take turns in that place.
    for round in 0..LOOKS {
        let order = if round % 2 == 0 { [0, 1, 2] } else { [1, 0, 2] };
        for index in order {
            took[index].push(round_trip(&mut stream, key, paths[index]));
        }
    }
    let [theirs, nobodys, listed] = took.map(|mut all| {
        all.sort_unstable();
        all[LOOKS / 2]
    });
    println!("X-01: {theirs:?} for another project's sandbox, {nobodys:?} for none, {listed:?} for a list");
    let tolerance = nobodys / 10;
    // Control: the measurement distinguishes a response that takes more work.
    assert!(listed > nobodys + tolerance, "control: {listed:?} and {nobodys:?}");
    assert!(theirs.abs_diff(nobodys) < tolerance, "{theirs:?} and {nobodys:?}");
}

/// Sends a request on a connection that stays open, and returns the time until its whole response has arrived.
fn round_trip(stream: &mut TcpStream, key: &str, path: &str) -> Duration {
    let bearer = format!("Bearer {key}");
    let request = head("GET", path, &[("authorization", &bearer)]).replace("connection: close\r\n", "");
    let began = Instant::now();
    stream.write_all(format!("{request}\r\n").as_bytes()).unwrap();
    let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let count = stream.read(&mut piece).unwrap();
        assert!(count > 0, "the connection ended: {}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&piece[..count]);
        let text = String::from_utf8_lossy(&answer);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head
            .to_lowercase()
            .lines()
            .find_map(|line| line.strip_prefix("content-length: ").map(str::to_owned));
        if body.len() >= length.expect("a response with a length").parse::<usize>().unwrap() {
            return began.elapsed();
        }
    }
}
