//! Attacks H-22, H-23 and H-24: credentials of one kind used as another kind. Attack H-26: streams of a
//! revoked key.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use api::account::Role;
use e2e::service::{PLENTY, Service, served};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::e2b::{AgentRequest, inside, opened};
use super::ground::{Answer, ask, head, held, keyed, read, recovers};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Sends a string as an API key in each of the two headers that can carry a key.
fn shown(service: &Service, text: &str) -> [Answer; 2] {
    let list = |header: (&str, &str)| ask(service, "GET", "/v1/sandboxes", &[header], b"");
    [list(("authorization", &format!("Bearer {text}"))), list(("x-api-key", text))]
}

/// Verifies that attack H-22 fails: no string that the server hashes for other purposes is accepted as a key.
#[test]
#[ignore = "starts real sandboxes"]
fn no_text_that_the_server_hashes_is_a_key() {
    served(async || {
        let mut service = Service::start();
        let key = service.key_of("pa", Role::Write, PLENTY).await;
        let start = AgentRequest::post("/process.Process/List", "{}");
        let open = |service: &Service| {
            let sandbox = opened(service, &key);
            // A request to an agent route loads the project's account into the server's memory.
            let token = [("x-access-token", sandbox.token.as_str())];
            assert_eq!(inside(service, &sandbox.id, &token, start).status, 200);
            sandbox
        };
        let sandbox = open(&service);
        let ids = keyed(&service, &service.key, "GET", "/v1/keys", &Value::Null).json();
        let id = ids["items"][0]["id"].as_str().unwrap_or_default().to_owned();
        let texts = [
            "of project pa".to_owned(),
            "e2b_of project pa".into(),
            "of project default".into(),
            "pa".into(),
            "sandbox".into(),
            format!("e2b agent {}", sandbox.traffic),
            hex(&Sha256::digest("of project pa")),
            hex(&Sha256::digest(&key)),
            sandbox.token.clone(),
            sandbox.traffic.clone(),
            sandbox.id.clone(),
            id,
        ];
        for text in &texts {
            for answer in shown(&service, text) {
                assert!([401, 429].contains(&answer.status), "{text:?}: {answer:?}");
            }
        }
        let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
        let mcp = keyed(&service, "of project pa", "POST", "/mcp", &call);
        assert!([401, 429].contains(&mcp.status), "{mcp:?}");

        // Control: with the defence disabled, the name of a project is enough to run commands in its
        // sandboxes.
        service.undefend("H-22");
        let sandbox = open(&service);
        assert!(shown(&service, "of project pa").iter().all(|answer| answer.status == 200));
        let path = format!("/v1/sandboxes/{}/execs", sandbox.id);
        let ran = keyed(&service, "of project pa", "POST", &path, &json!({ "argv": ["/bin/true"] }));
        assert!(ran.status < 300, "control: {ran:?}");
        recovers(&service).await;
        held("H-22", &format!("{} texts, none a key", texts.len()));
    });
}

/// Verifies that attack H-23 fails: a read key is not shown tokens that allow running commands.
#[test]
#[ignore = "starts real sandboxes"]
fn a_read_key_is_not_shown_what_runs_commands() {
    served(async || {
        let mut service = Service::start();
        let read = service.key_of("default", Role::Read, PLENTY).await;
        let sandbox = opened(&service, &service.key);
        let look = |service: &Service, key: &str| {
            let path = format!("/sandboxes/{}", sandbox.id);
            keyed(service, key, "GET", &path, &Value::Null)
        };
        let seen = look(&service, &read);
        assert_eq!(seen.status, 200, "{seen:?}");
        assert!(seen.json()["envdAccessToken"].is_null(), "{seen:?}");
        for token in [&sandbox.token, &sandbox.traffic] {
            assert!(!seen.body.contains(token.as_str()), "{seen:?}");
        }
        let own = look(&service, &service.key).json();
        assert_eq!(own["envdAccessToken"].as_str(), Some(sandbox.token.as_str()), "a writer is shown it");
        for path in [
            format!("/v1/sandboxes/{}/ports/8000", sandbox.id),
            format!("/v2/sandboxes/{}/connect", sandbox.id),
        ] {
            let method = if path.ends_with("connect") { "POST" } else { "GET" };
            assert_eq!(keyed(&service, &read, method, &path, &json!({})).status, 403, "{path}");
        }

        // Control: with the defence disabled, the read key gets the token and can run a command with it.
        service.undefend("H-23");
        let token = look(&service, &read).json()["envdAccessToken"].as_str().unwrap().to_owned();
        let list = AgentRequest::post("/process.Process/List", "{}");
        assert_eq!(inside(&service, &sandbox.id, &[("x-access-token", &token)], list).status, 200);
        held("H-23", "a read key sees no token");
    });
}

/// Verifies that attack H-24 fails: a port's token gives access only to ports.
#[test]
#[ignore = "starts real sandboxes"]
fn the_token_of_a_port_opens_nothing_but_ports() {
    served(async || {
        let mut service = Service::start();
        let sandbox = opened(&service, &service.key);
        let path = format!("/v1/sandboxes/{}/ports/8000", sandbox.id);
        let port = keyed(&service, &service.key, "GET", &path, &Value::Null).json();
        let port = port["token"].as_str().unwrap().to_owned();
        let derived = hex(&Sha256::digest(format!("e2b agent {port}")));
        let list = AgentRequest::post("/process.Process/List", "{}");
        let code = AgentRequest::post("/execute", r#"{"code":"1"}"#);
        let contexts = AgentRequest::get("/contexts");
        let mut refused = 0;
        for (name, value) in [
            ("x-access-token", derived.as_str()),
            ("x-access-token", &port),
            ("e2b-traffic-access-token", &port),
            ("bellglass-token", &port),
        ] {
            for route in [list, code, contexts] {
                let answer = inside(&service, &sandbox.id, &[(name, value)], route);
                assert!([401, 429].contains(&answer.status), "{name} {route:?}: {answer:?}");
                refused += 1;
            }
        }
        let tokens = [&port, &sandbox.token, &sandbox.traffic];
        assert!(tokens.iter().all(|one| tokens.iter().filter(|other| other == &one).count() == 1));
        let traffic = [("e2b-traffic-access-token", sandbox.traffic.as_str())];
        assert_ne!(
            inside(&service, &sandbox.id, &traffic, contexts).status,
            401,
            "E2B's SDKs send it for contexts"
        );
        assert!(
            [401, 429].contains(&inside(&service, &sandbox.id, &traffic, code).status),
            "it runs no code"
        );

        // Control: with the defence disabled, the token derived from the port's token can run commands.
        service.undefend("H-24");
        assert_eq!(inside(&service, &sandbox.id, &[("x-access-token", &derived)], list).status, 200);
        held("H-24", &format!("{refused} requests with a port's token refused"));
    });
}

/// Opens an event stream with a key.
fn followed(service: &Service, key: &str) -> TcpStream {
    let mut stream = TcpStream::connect(super::ground::address(service)).unwrap();
    let request = head("GET", "/v1/events", &[("authorization", &format!("Bearer {key}"))]) + "\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
    let mut first = [0; 12];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    stream
}

/// Returns true if a key's stream ends within 2 s of the key's revocation.
fn is_cut_by_revocation(service: &Service) -> bool {
    let body = json!({ "project": "default", "role": "write" });
    let made = keyed(service, &service.key, "POST", "/v1/keys", &body).json();
    let mut stream = followed(service, made["secret"].as_str().unwrap());
    let began = Instant::now();
    let path = format!("/v1/keys/{}", made["key"]["id"].as_str().unwrap());
    assert_eq!(keyed(service, &service.key, "DELETE", &path, &Value::Null).status, 204);
    !read(&mut stream).waits && began.elapsed() < Duration::from_secs(2)
}

/// Verifies that attack H-26 fails: revoking a key ends its streams, and a rotated key is valid until its
/// overlap ends.
#[test]
#[ignore = "starts real sandboxes"]
fn revoking_a_key_cuts_its_streams_and_a_rotated_key_overlaps() {
    served(async || {
        let mut service = Service::start();
        service.undefend("H-26");
        assert!(!is_cut_by_revocation(&service), "control: the stream of a revoked key ended");
        service.kill();
        service.run_under(&[]);
        service.begin();
        let admin =
            |method: &str, path: &str, body: &Value| keyed(&service, &service.key, method, path, body);
        let make = || {
            let made = admin("POST", "/v1/keys", &json!({ "project": "default", "role": "write" })).json();
            (made["secret"].as_str().unwrap().to_owned(), made["key"]["id"].as_str().unwrap().to_owned())
        };
        let mut kept = followed(&service, &make().0);
        assert!(is_cut_by_revocation(&service), "the stream of a revoked key stays open");
        // Control: a different key's stream continues.
        assert!(read(&mut kept).waits, "a stream of another key was cut too");

        // Both the old and the new key work during the overlap of a rotation. Then the old key expires.
        let (old, id) = make();
        let lists = |key: &str| keyed(&service, key, "GET", "/v1/sandboxes", &Value::Null).status;
        let rotated = admin("POST", &format!("/v1/keys/{id}/rotate"), &json!({ "overlap_ms": 1500 }));
        assert_eq!(rotated.status, 201, "{rotated:?}");
        let new = rotated.json()["secret"].as_str().unwrap().to_owned();
        assert_eq!((lists(&old), lists(&new)), (200, 200));
        tokio::time::sleep(Duration::from_millis(1700)).await;
        assert_eq!((lists(&old), lists(&new)), (401, 200));
        let listed = admin("GET", "/v1/keys", &Value::Null).json();
        let used = listed["items"].as_array().unwrap().iter().filter(|key| key["last_used_at_ms"].is_u64());
        assert!(used.count() >= 3, "{listed}");
        held("H-26", "a revoked key's stream ended; a rotated key overlapped");
    });
}
