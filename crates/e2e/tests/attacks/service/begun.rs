//! Attack H-42: access that was in progress when its key was revoked or rotated, in the form of incomplete
//! requests, streams, tickets and connections to a port.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use api::ports::PutPort;
use e2e::service::{Service, served};
use serde_json::{Value, json};

use super::ground::{address, ask, head, held, keyed, read, recovers};
use super::ports::inside;

/// Timeout for access to end after its key has been revoked or rotated.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

/// Creates an administrator key and returns its secret and its ID.
fn make(service: &Service) -> (String, String) {
    let asked = json!({ "project": "default", "role": "admin" });
    let made = keyed(service, &service.key, "POST", "/v1/keys", &asked).json();
    (made["secret"].as_str().unwrap().to_owned(), made["key"]["id"].as_str().unwrap().to_owned())
}

fn revoke(service: &Service, id: &str) {
    let gone = keyed(service, &service.key, "DELETE", &format!("/v1/keys/{id}"), &Value::Null);
    assert_eq!(gone.status, 204, "{gone:?}");
}

/// Opens a connection, sends this data, and returns the connection.
fn sent(service: &Service, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address(service)).unwrap();
    stream.set_read_timeout(Some(ENDS_WITHIN)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

/// Returns true if a request creates a key although its own key was revoked before the last byte of the
/// request was sent.
fn acts_later(service: &Service) -> bool {
    let (secret, id) = make(service);
    let label = format!("after {id}");
    let body = json!({ "project": "default", "role": "admin", "label": label }).to_string();
    let (bearer, length) = (format!("Bearer {secret}"), body.len().to_string());
    let headers = [
        ("authorization", bearer.as_str()),
        ("content-type", "application/json"),
        ("content-length", &length),
    ];
    let (most, last) = body.split_at(body.len() - 1);
    let mut parked = sent(service, &format!("{}\r\n{most}", head("POST", "/v1/keys", &headers)));
    // After this pause, the server has read the request's headers and checked the key.
    std::thread::sleep(Duration::from_millis(500));
    revoke(service, &id);
    // The write fails if the server has closed the connection.
    let _ = parked.write_all(last.as_bytes());
    read(&mut parked);
    let keys = keyed(service, &service.key, "GET", "/v1/keys", &Value::Null).json();
    keys["items"].as_array().unwrap().iter().any(|key| key["label"] == label)
}

/// Returns true if a stream stays open after its key was rotated without an overlap.
fn outlives_rotation(service: &Service) -> bool {
    let (secret, id) = make(service);
    let bearer = format!("Bearer {secret}");
    let request = head("GET", "/v1/events", &[("authorization", &bearer)]) + "\r\n";
    let mut stream = sent(service, &request);
    stream.read_exact(&mut [0; 12]).unwrap();
    let path = format!("/v1/keys/{id}/rotate");
    let rotated = keyed(service, &service.key, "POST", &path, &json!({ "overlap_ms": 0 }));
    assert_eq!(rotated.status, 201, "{rotated:?}");
    let refused = keyed(service, &secret, "GET", "/v1/sandboxes", &Value::Null);
    assert_eq!(refused.status, 401, "{refused:?}");
    read(&mut stream).waits
}

/// Returns true if a ticket still works after the key that requested it was revoked.
fn ticket_works(service: &Service) -> bool {
    let (secret, id) = make(service);
    let path = format!("/templates/x/files/{}", "a".repeat(64));
    let url = keyed(service, &secret, "GET", &path, &Value::Null).json()["url"].as_str().unwrap().to_owned();
    revoke(service, &id);
    let ticket = url.split_once("ticket=").unwrap().1;
    ask(service, "PUT", &format!("{path}?ticket={ticket}"), &[], b"x").status != 401
}

/// Returns true if a viewer without a token stays connected after a public port has been made private.
async fn visit_stays(service: &Service) -> bool {
    let one = inside(&service.client(), "H-42").await;
    let publish = async |public| {
        service.client().put_port(&one.sandbox.id, 8000, &PutPort { public }).await.unwrap();
    };
    publish(true).await;
    let request = format!("GET / HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", one.host);
    let mut visit = sent(service, &request);
    visit.read_exact(&mut [0; 12]).unwrap();
    publish(false).await;
    read(&mut visit).waits
}

/// Verifies that attack H-42 fails: a request, a stream, a ticket and a connection end as soon as the access
/// on which they depend ends.
#[test]
#[ignore = "starts real sandboxes"]
fn nothing_that_was_begun_outlives_its_key() {
    served(async || {
        let mut service = Service::start();
        let none = [acts_later(&service), outlives_rotation(&service), ticket_works(&service)];
        assert_eq!(none, [false; 3], "request, stream, ticket");
        assert!(!visit_stays(&service).await, "a visit to a port that is private now");
        service.undefend("H-42");
        let all = [acts_later(&service), outlives_rotation(&service), ticket_works(&service)];
        assert_eq!(all, [true; 3], "control: request, stream, ticket");
        assert!(visit_stays(&service).await, "control: a visit");
        recovers(&service).await;
        held("H-42", "a request, a stream, a ticket and a visit ended");
    });
}
