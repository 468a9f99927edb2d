//! Attack H-43: requests without a credential for a paused sandbox.

use api::account::Role;
use e2e::service::{PLENTY, Service, served};
use serde_json::{Value, json};

use super::e2b::{AgentRequest, inside, opened, signature};
use super::ground::{address, ask, held, keyed, send};

fn state(service: &Service, id: &str) -> Value {
    keyed(service, &service.key, "GET", &format!("/v1/sandboxes/{id}"), &Value::Null).json()["state"].clone()
}

/// Sends a request to a port by the port's host name, with additional headers, and returns the status.
fn by_host(service: &Service, id: &str, headers: &[(&str, &str)]) -> u16 {
    let host = format!("8000-{id}.sandbox.localhost");
    let mut text = format!("GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n");
    headers.iter().for_each(|(name, value)| text.push_str(&format!("{name}: {value}\r\n")));
    send(&address(service), (text + "\r\n").as_bytes()).status
}

/// Verifies that attack H-43 fails: only a request with a valid credential resumes a paused sandbox.
#[test]
#[ignore = "starts real sandboxes"]
fn a_paused_sandbox_is_resumed_only_by_those_who_may_use_it() {
    served(async || {
        let mut service = Service::start();
        let (mine, other) = (opened(&service, &service.key), opened(&service, &service.key));
        let (id, wrong) = (mine.id.as_str(), "0".repeat(64));
        let pause = |service: &Service| {
            let path = format!("/v1/sandboxes/{id}/pause");
            assert_eq!(keyed(service, &service.key, "POST", &path, &json!({})).status, 200);
        };
        pause(&service);
        by_host(&service, id, &[]);
        by_host(&service, id, &[("bellglass-token", &wrong)]);
        by_host(&service, id, &[("e2b-traffic-access-token", &other.traffic)]);
        for headers in
            [vec![], vec![("bellglass-token", wrong.as_str())], vec![("bellglass-token", &other.token)]]
        {
            let named = [("bellglass-sandbox", id), ("bellglass-port", "8000")];
            ask(&service, "GET", "/", &[&named[..], &headers[..]].concat(), b"");
        }
        for token in ["", &wrong, &other.token, &mine.traffic] {
            let route = AgentRequest::get("/files?path=/etc/hostname&username=user");
            inside(&service, id, &[("x-access-token", token)], route);
            ask(&service, "GET", "/health", &[("e2b-sandbox-id", id), ("x-access-token", token)], b"");
        }
        let signed = signature("/etc/hostname", "write", &mine.token, None);
        let path = format!("/files?path=/etc/hostname&signature={signed}");
        inside(&service, id, &[], AgentRequest::get(&path));
        // A health request does not resume a sandbox, even if it carries the sandbox's token.
        ask(&service, "GET", "/health", &[("e2b-sandbox-id", id), ("x-access-token", &mine.token)], b"");
        let stranger = service.key_of("stranger", Role::Write, PLENTY).await;
        for (method, rest) in [("POST", "/resume"), ("POST", "/execs"), ("GET", "/execs"), ("PUT", "/lease")]
        {
            let body = match rest {
                "/lease" => json!({ "idle_ms": 1000 }),
                _ => json!({ "argv": ["true"] }),
            };
            let path = format!("/v1/sandboxes/{id}{rest}");
            assert_eq!(keyed(&service, &stranger, method, &path, &body).status, 404, "{path}");
        }
        let connect = format!("/v2/sandboxes/{id}/connect");
        assert_eq!(keyed(&service, &stranger, "POST", &connect, &json!({ "timeout": 60 })).status, 404);
        assert_eq!(state(&service, id), "paused", "a request without a credential resumed it");
        // A request with the port's token resumes the sandbox, although no server listens on the port.
        by_host(&service, id, &[("bellglass-token", &port_token(&service, id))]);
        assert_eq!(state(&service, id), "running");

        service.undefend("H-43");
        pause(&service);
        by_host(&service, id, &[]);
        assert_eq!(state(&service, id), "running", "control: it was not resumed without the defence");
        held("H-43", "no request without a credential resumed it");
    });
}

fn port_token(service: &Service, id: &str) -> String {
    let path = format!("/v1/sandboxes/{id}/ports/8000");
    keyed(service, &service.key, "GET", &path, &Value::Null).json()["token"].as_str().unwrap().to_owned()
}
