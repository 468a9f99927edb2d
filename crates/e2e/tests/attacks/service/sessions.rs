//! Attack X-24: another project's sandbox appears in a session's events.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use api::account::Role;
use e2e::service::{PLENTY, Service, served};
use serde_json::{Value, json};

use super::ground::{Answer, address, head, held, keyed, recovers, small};

/// Timeout for an event to arrive. Events are sent immediately.
const WITHIN: Duration = Duration::from_secs(4);

/// Creates a session and opens a stream of its events.
fn followed(service: &Service, key: &str) -> (String, BufReader<TcpStream>) {
    let body = json!({ "set": "python", "template": "base" });
    let made = keyed(service, key, "POST", "/v1/sessions", &body);
    assert!(made.status < 300, "{made:?}");
    let id = made.json()["id"].as_str().unwrap().to_owned();
    let mut stream = TcpStream::connect(address(service)).unwrap();
    stream.set_read_timeout(Some(WITHIN)).unwrap();
    let bearer = format!("Bearer {key}");
    let request = head("GET", &format!("/v1/sessions/{id}/events"), &[("authorization", &bearer)]);
    stream.write_all(format!("{request}\r\n").as_bytes()).unwrap();
    let mut events = BufReader::new(stream);
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        events.read_line(&mut line).unwrap();
    }
    (id, events)
}

/// Reads events until no more arrive, and returns the projects of the sandboxes in these events.
fn told(mut events: BufReader<TcpStream>) -> Vec<String> {
    let (mut seen, mut line) = (Vec::new(), String::new());
    while events.read_line(&mut line).is_ok_and(|count| count > 0) {
        if let Ok(event) = serde_json::from_str::<Value>(line.trim())
            && event["type"] == "sandbox"
        {
            seen.push(event["sandbox"]["project"].as_str().unwrap().to_owned());
        }
        line.clear();
    }
    seen
}

fn create(service: &Service, key: &str, label: &str, session: &str) -> Answer {
    let mut body = small();
    body["labels"] = json!({ (label): session });
    keyed(service, key, "POST", "/v1/sandboxes", &body)
}

/// Verifies that attack X-24 fails: a label that another project sets adds no sandbox to a session's events.
#[test]
#[ignore = "starts real sandboxes"]
fn a_label_of_another_project_puts_nothing_into_a_sessions_events() {
    served(async || {
        let mut service = Service::start();
        let pa = service.key_of("pa", Role::Write, PLENTY).await;
        let pb = service.key_of("pb", Role::Write, PLENTY).await;
        let (session, events) = followed(&service, &pa);
        // A label that clients may set adds no sandbox to the events, neither from another project nor from
        // the same project.
        assert_eq!(create(&service, &pb, "session", &session).status, 201);
        assert_eq!(create(&service, &pa, "session", &session).status, 201);
        for key in [&pa, &pb] {
            create(&service, key, "bellglass.session", &session).assert("reserved", 400, "invalid_request");
        }
        // The session's own sandbox does appear in the events.
        let call = format!("/v1/sessions/{session}/tools/execute_python");
        let ran = keyed(&service, &pa, "POST", &call, &json!({ "script": "print(1)" }));
        let seen = told(events);
        assert!(!seen.is_empty() && seen.iter().all(|project| project == "pa"), "{seen:?}; {ran:?}");
        let lists = keyed(&service, &pa, "GET", "/v1/sandboxes", &Value::Null).json();
        let own = lists["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|one| one["labels"]["bellglass.session"] == session.as_str());
        assert_eq!(own.count(), 1, "{lists}");
        // Control: without the defence, the other project's sandbox appears in the events.
        service.undefend("X-24");
        let (session, events) = followed(&service, &pa);
        assert_eq!(create(&service, &pb, "session", &session).status, 201);
        assert!(told(events).contains(&"pb".to_owned()), "control");
        recovers(&service).await;
        held("X-24", &format!("{} events, all of its own project", seen.len()));
    });
}
