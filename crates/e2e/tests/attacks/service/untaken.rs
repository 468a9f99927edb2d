//! Attacks H-36, H-37 and H-39: responses that are not read, and requests that cost more than they should.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use api::account::Role;
use e2e::service::{PLENTY, Service, served};
use serde_json::{Value, json};

use super::e2b::opened;
use super::flow::{Deaf, MIB, Peak};
use super::ground::{Bystander, address, ask, held, keyed, recovers};

/// Maximum time until an unread response is aborted. It consists of the limit and a tolerance for a busy
/// machine.
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(38);
/// Numbers of concurrent requests without a key on one connection. `REQUESTS` is more than a browser or an
/// SDK would send, and the server closes such a connection. `HELD` is below that limit.
const REQUESTS: u32 = 256;
const HELD: u32 = 64;
const CONNECTIONS: usize = 12;

/// Verifies that attack H-36 fails: a response that is not read is aborted.
#[test]
#[ignore = "starts real sandboxes"]
fn an_answer_that_nobody_takes_is_given_up() {
    served(async || {
        let mut service = Service::start();
        let key = service.key_of("pa", Role::Write, PLENTY).await;
        let bearer = format!("Bearer {key}");
        let bystander = Bystander::of(&service);
        let peak = Peak::of(&service);
        let deaf: Vec<Deaf> =
            (0..CONNECTIONS).map(|_| Deaf::open(&service, HELD, "/openapi.json", &[])).collect();
        let greedy = Deaf::open(&service, REQUESTS, "/openapi.json", &[]);
        let known = Deaf::open(&service, 100, "/v1/sandboxes", &[("authorization", &bearer)]);
        let began = Instant::now();
        while deaf.iter().any(|one| one.closed().is_none()) || known.resets() < 100 {
            let left = deaf.iter().filter(|one| one.closed().is_none()).count();
            assert!(
                began.elapsed() < GIVEN_UP_WITHIN,
                "{left} connections are there, {} streams were reset",
                known.resets()
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        // The connections were held until the limit, and were not closed for a different reason.
        assert!(deaf.iter().all(|one| one.closed().unwrap() > Duration::from_secs(25)));
        assert!(
            greedy.closed().unwrap() < Duration::from_secs(10),
            "who asks for too much is let go at once"
        );
        assert!(known.closed().is_none(), "with a key the stream ends, not the connection");
        assert!(known.heads() >= 100, "{}", known.heads());
        let grown = peak.grown();
        drop(peak);
        let slowest = bystander.was_served();
        assert!(grown < 64 * MIB, "{} MiB", grown / MIB);

        // Control: without the defence, the connections stay open, and their responses use memory.
        service.undefend("H-36");
        let peak = Peak::of(&service);
        let deaf: Vec<Deaf> =
            (0..CONNECTIONS).map(|_| Deaf::open(&service, REQUESTS, "/openapi.json", &[])).collect();
        let first = deaf.first().unwrap();
        while peak.grown() < 128 * MIB || first.age() < GIVEN_UP_WITHIN {
            assert!(first.age() < 2 * GIVEN_UP_WITHIN, "control: {} MiB", peak.grown() / MIB);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        assert!(deaf.iter().all(|one| one.closed().is_none()), "control: they were let go");
        let without = peak.grown();
        drop((peak, deaf));
        recovers(&service).await;
        let (with, without) = (grown / MIB, without / MIB);
        held("H-36", &format!("{with} MiB, without the defence {without}; a bystander waited {slowest:?}"));
    });
}

/// Verifies that attack H-36 fails: connections without a key use no slots that are reserved for clients with
/// keys.
#[test]
#[ignore = "starts real sandboxes"]
fn strangers_take_no_place_of_clients_with_keys() {
    served(async || {
        let service = Service::start();
        let bystander = Bystander::of(&service);
        // Open more connections than one address may have, either without a key or in total.
        let all: Vec<TcpStream> =
            (0..2600).filter_map(|_| TcpStream::connect(address(&service)).ok()).collect();
        assert!(all.len() > 2500, "{} connections", all.len());
        tokio::time::sleep(Duration::from_secs(2)).await;
        let slowest = bystander.was_served();
        println!("H-36: {} silent connections; a bystander waited {slowest:?}", all.len());
        let why =
            "the reserve of slots cannot be turned off; more connections are opened than there are slots";
        e2e::attack::held_without_control("H-36", "service", why);
    });
}

/// Verifies that attack H-37 fails: a wrong signature costs little, and wrong signatures are counted.
#[test]
#[ignore = "starts real sandboxes"]
fn a_wrong_signature_costs_little_and_counts() {
    served(async || {
        let mut service = Service::start();
        for _ in 0..5 {
            opened(&service, &service.key);
        }
        let wrong = |service: &Service, length: usize| {
            let path = format!("/files?path=/{}&signature=v1_a", "a".repeat(length));
            ask(service, "GET", &path, &[], b"").status
        };
        assert_eq!(
            wrong(&service, 60_000),
            400,
            "a path of 60,000 bytes is refused before anything is hashed"
        );
        let told: Vec<u16> = (0..60).map(|_| wrong(&service, 1000)).collect();
        assert!(told.contains(&401) && told.contains(&429), "{told:?}");
        // Control: without the defence, wrong signatures are not counted, and long paths are hashed once for
        // every sandbox.
        service.undefend("H-37");
        let told: Vec<u16> = (0..60).map(|_| wrong(&service, 60_000)).collect();
        assert!(told.iter().all(|status| *status == 401), "control: {told:?}");
        recovers(&service).await;
        held("H-37", "a long path is refused, and wrong signatures of an address are slowed down");
    });
}

/// Verifies that attack H-39 fails: the health of a sandbox is reported only to clients that have its token.
#[test]
#[ignore = "starts real sandboxes"]
fn the_health_of_a_sandbox_is_told_to_those_who_may_know_it() {
    served(async || {
        let mut service = Service::start();
        let asked = |service: &Service, id: &str, token: &str| {
            let answer =
                ask(service, "GET", "/health", &[("e2b-sandbox-id", id), ("x-access-token", token)], b"");
            (answer.status, answer.body.replace(id, "ID"))
        };
        let sandbox = opened(&service, &service.key);
        let nobody = asked(&service, "s0123456789abcdef0123456789abcdef", "");
        assert_eq!(asked(&service, &sandbox.id, ""), nobody, "a running one and one that is not there");
        assert_eq!(asked(&service, &sandbox.id, &"0".repeat(64)), nobody);
        assert_eq!(asked(&service, &sandbox.id, &sandbox.token).0, 204, "whoever may know");
        // Repeated requests without the token must not keep a sandbox alive.
        let lives = async |service: &Service| {
            let mut wanted = super::ground::small();
            wanted["idle_ms"] = json!(4000);
            let made = keyed(service, &service.key, "POST", "/v1/sandboxes", &wanted).json();
            let (id, began) = (made["id"].as_str().unwrap().to_owned(), Instant::now());
            while began.elapsed() < Duration::from_secs(9) {
                asked(service, &id, "");
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            let now =
                keyed(service, &service.key, "GET", &format!("/v1/sandboxes/{id}"), &Value::Null).json();
            now["state"] == "running"
        };
        assert!(!lives(&service).await, "asking kept a sandbox alive");
        service.undefend("H-39");
        assert!(lives(&service).await, "control: it ended though a stranger asked");
        held("H-39", "one answer for every sandbox, and no idle time renewed");
    });
}
