//! Attack H-20: unauthorised access to the E2B API.

use api::account::Role;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use e2e::service::{PLENTY, Service, served};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::ground::{Answer, ask, held, keyed, recovers, small};

/// Requests for every route into a sandbox, each with a body that the route accepts.
const ROUTES: [AgentRequest<'static>; 19] = [
    AgentRequest::get("/files?path=/etc/hostname"),
    AgentRequest::post("/files?path=/workspace/x", "x"),
    AgentRequest::post("/process.Process/Start", r#"{"process":{"cmd":"/bin/true"}}"#),
    AgentRequest::post("/process.Process/Connect", r#"{"process":{"pid":1}}"#),
    AgentRequest::post("/process.Process/List", "{}"),
    AgentRequest::post("/process.Process/SendInput", r#"{"process":{"pid":1}}"#),
    AgentRequest::post("/process.Process/SendSignal", r#"{"process":{"pid":1},"signal":9}"#),
    AgentRequest::post("/process.Process/CloseStdin", r#"{"process":{"pid":1}}"#),
    AgentRequest::post("/process.Process/Update", r#"{"process":{"pid":1}}"#),
    AgentRequest::post("/filesystem.Filesystem/Stat", r#"{"path":"/"}"#),
    AgentRequest::post("/filesystem.Filesystem/ListDir", r#"{"path":"/"}"#),
    AgentRequest::post("/filesystem.Filesystem/MakeDir", r#"{"path":"/workspace/d"}"#),
    AgentRequest::post("/filesystem.Filesystem/Remove", r#"{"path":"/workspace/d"}"#),
    AgentRequest::post("/filesystem.Filesystem/Move", r#"{"source":"/a","destination":"/b"}"#),
    AgentRequest::post("/filesystem.Filesystem/CreateWatcher", r#"{"path":"/workspace"}"#),
    AgentRequest::post("/filesystem.Filesystem/GetWatcherEvents", r#"{"watcherId":"x"}"#),
    AgentRequest::post("/execute", r#"{"code":"1"}"#),
    AgentRequest::get("/contexts"),
    AgentRequest::post("/contexts", "{}"),
];

/// A request to a sandbox's agent, in the form that E2B's SDKs send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AgentRequest<'a> {
    method: &'a str,
    path: &'a str,
    body: &'a str,
}

/// A sandbox with its tokens.
pub(crate) struct Opened {
    pub(crate) id: String,
    pub(crate) token: String,
    pub(crate) traffic: String,
}

impl<'a> AgentRequest<'a> {
    pub(crate) const fn get(path: &'a str) -> Self {
        Self { method: "GET", path, body: "" }
    }

    pub(crate) const fn post(path: &'a str, body: &'a str) -> Self {
        Self { method: "POST", path, body }
    }
}

pub(crate) fn opened(service: &Service, key: &str) -> Opened {
    let made = keyed(service, key, "POST", "/v1/sandboxes", &small()).json();
    let id = made["id"].as_str().unwrap().to_owned();
    let path = format!("/v2/sandboxes/{id}/connect");
    let told = keyed(service, key, "POST", &path, &json!({ "timeout": 60 })).json();
    let text = |name: &str| told[name].as_str().unwrap().to_owned();
    Opened { id, token: text("envdAccessToken"), traffic: text("trafficAccessToken") }
}

pub(crate) fn inside(
    service: &Service,
    sandbox: &str,
    more: &[(&str, &str)],
    request: AgentRequest<'_>,
) -> Answer {
    let AgentRequest { method, path, body } = request;
    let kind = if body == "x" { "application/octet-stream" } else { "application/json" };
    let mut headers = vec![("e2b-sandbox-id", sandbox), ("content-type", kind)];
    headers.extend(more);
    ask(service, method, path, &headers, body.as_bytes())
}

/// Returns true if a response is a refusal. A stream reports a refusal in its only message instead of in the
/// status. After many wrong tokens from one address, the server responds with 429.
fn is_refused(answer: &Answer) -> bool {
    let streams = answer.header("content-type") == Some("application/connect+json");
    let told = |code: &str| answer.body.contains(&format!(r#"{{"error":{{"code":"{code}""#));
    [401, 429].contains(&answer.status)
        || (streams && (told("unauthenticated") || told("resource_exhausted")))
}

/// Verifies that attack H-20 fails: no route into a sandbox is accessible without this sandbox's token.
#[test]
#[ignore = "starts real sandboxes"]
fn nothing_inside_is_reached_without_the_token_of_that_sandbox() {
    served(async || {
        let service = Service::start();
        let (mine, other) = (opened(&service, &service.key), opened(&service, &service.key));
        let short = mine.token[1..].to_owned();
        let key = format!("Bearer {}", service.key);
        for route in ROUTES {
            let is_code = route.path.starts_with("/execute") || route.path.starts_with("/contexts");
            for (what, name, value) in [
                ("no token", "x-nothing", ""),
                ("another's", "x-access-token", other.token.as_str()),
                ("a short one", "x-access-token", &short),
                ("that of the ports", "x-access-token", &mine.traffic),
                ("an empty one", "x-access-token", ""),
                ("the key", "authorization", &key),
                ("another's ports'", "e2b-traffic-access-token", &other.traffic),
            ] {
                let answer = inside(&service, &mine.id, &[(name, value)], route);
                assert!(is_refused(&answer), "{route:?} with {what}: {answer:?}");
            }
            if !is_code {
                let traffic = [("e2b-traffic-access-token", mine.traffic.as_str())];
                assert!(is_refused(&inside(&service, &mine.id, &traffic, route)), "{route:?}");
            }
            // Control: with the sandbox's own token, no route refuses access.
            let answer = inside(&service, &mine.id, &[("x-access-token", &mine.token)], route);
            assert!(!is_refused(&answer), "{route:?}: {answer:?}");
            e2e::attack::count_control();
        }
        // The sandbox's host name gives no additional access, because it leads to the same routes.
        let host = format!("49983-{}.sandbox.localhost", mine.id);
        let by_host = |headers: &[(&str, &str)]| {
            let mut text =
                format!("GET /files?path=/etc/hostname HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n");
            headers.iter().for_each(|(name, value)| text.push_str(&format!("{name}: {value}\r\n")));
            super::ground::send(&super::ground::address(&service), (text + "\r\n").as_bytes()).status
        };
        assert_eq!(by_host(&[]), 429);
        assert_eq!(by_host(&[("e2b-sandbox-id", &other.id), ("x-access-token", &other.token)]), 429);
        assert_eq!(by_host(&[("x-access-token", &mine.token)]), 200, "control");
        recovers(&service).await;
        held("H-20", &format!("{} routes, none without its token", ROUTES.len()));
    });
}

pub(crate) fn signature(path: &str, act: &str, token: &str, until: Option<u64>) -> String {
    let mut text = format!("{path}:{act}::{token}");
    if let Some(until) = until {
        text = format!("{text}:{until}");
    }
    let sum = STANDARD_NO_PAD.encode(Sha256::digest(text));
    format!("v1_{}", sum.replace('+', "%2B").replace('/', "%2F"))
}

/// Verifies that attack H-20 fails: a signed URL is valid for only one file, and a key is valid for only one
/// project.
#[test]
#[ignore = "starts real sandboxes"]
fn a_signed_address_is_for_one_file_and_a_key_for_one_project() {
    served(async || {
        let service = Service::start();
        let (mine, other) = (opened(&service, &service.key), opened(&service, &service.key));
        let get = |path: &str, signature: &str, more: &str, headers: &[(&str, &str)]| {
            ask(&service, "GET", &format!("/files?path={path}&signature={signature}{more}"), headers, b"")
                .status
        };
        let (file, now_s) = ("/etc/hostname", std::time::UNIX_EPOCH.elapsed().unwrap().as_secs());
        let right = signature(file, "read", &mine.token, None);
        assert_eq!(get(file, &right, "", &[]), 200, "control");
        e2e::attack::count_control();
        let later = signature(file, "read", &mine.token, Some(now_s + 60));
        assert_eq!(get(file, &later, &format!("&signature_expiration={}", now_s + 60), &[]), 200, "control");
        for (what, status) in [
            ("another path", get("/etc/passwd", &right, "", &[])),
            ("to write", get(file, &signature(file, "write", &mine.token, None), "", &[])),
            ("another user", get(file, &right, "&username=user", &[])),
            ("another time", get(file, &later, &format!("&signature_expiration={}", now_s + 61), &[])),
            ("without its time", get(file, &later, "", &[])),
            (
                "too late",
                get(file, &signature(file, "read", &mine.token, Some(5)), "&signature_expiration=5", &[]),
            ),
            ("aimed at another", get(file, &right, "", &[("e2b-sandbox-id", &other.id)])),
            ("by the ports' token", get(file, &signature(file, "read", &mine.traffic, None), "", &[])),
            ("by none", get(file, &signature(file, "read", "", None), "", &[])),
        ] {
            assert_eq!(status, 401, "{what}");
        }
        // An ambiguous path is refused.
        let token = [("x-access-token", mine.token.as_str())];
        let up = inside(&service, &mine.id, &token, AgentRequest::post("/files?path=../../etc/x", "x"));
        assert_eq!(up.status, 400, "{up:?}");
        // Requests for another project's sandboxes return "not found".
        let theirs = service.key_of("other", Role::Write, PLENTY).await;
        for (method, path, body) in [
            ("GET", format!("/sandboxes/{}", mine.id), Value::Null),
            ("DELETE", format!("/sandboxes/{}", mine.id), Value::Null),
            ("POST", format!("/v2/sandboxes/{}/connect", mine.id), json!({})),
            ("POST", format!("/sandboxes/{}/timeout", mine.id), json!({ "timeout": 1 })),
            ("POST", format!("/sandboxes/{}/pause", mine.id), json!({})),
            ("PUT", format!("/sandboxes/{}/network", mine.id), json!({})),
            ("GET", format!("/sandboxes/{}/metrics", mine.id), Value::Null),
            ("GET", format!("/v2/sandboxes/{}/logs", mine.id), Value::Null),
        ] {
            let answer = keyed(&service, &theirs, method, &path, &body);
            assert_eq!(
                (answer.status, &answer.json()["code"]),
                (404, &json!(404)),
                "{method} {path}: {answer:?}"
            );
        }
        let listed = keyed(&service, &theirs, "GET", "/v2/sandboxes", &Value::Null).json();
        assert_eq!(listed, json!([]));
        let own = keyed(&service, &service.key, "GET", "/v2/sandboxes", &Value::Null).json();
        assert_eq!(own.as_array().unwrap().len(), 2, "control");
        assert!(!own.to_string().contains(&mine.token), "a list opens nothing");
        recovers(&service).await;
        held("H-20", "signatures for another file, act, user, time or sandbox; sandboxes of another project");
    });
}

/// Verifies that attack H-42 fails: a signature without a path, as created by E2B's JavaScript SDK, allows
/// writing only new files with plain names.
#[test]
#[ignore = "starts real sandboxes"]
fn a_signature_without_a_path_writes_plain_names_only() {
    served(async || {
        let mut service = Service::start();
        let written = |service: &Service, name: &str| {
            let mine = opened(service, &service.key);
            let path = format!("/files?signature={}", signature("", "write", &mine.token, None));
            let body = format!(
                "--zzz\r\ncontent-disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\nx\r\n--zzz--\r\n"
            );
            let headers =
                [("content-type", "multipart/form-data; boundary=zzz"), ("e2b-sandbox-id", mine.id.as_str())];
            ask(service, "POST", &path, &headers, body.as_bytes()).status
        };
        assert_eq!(written(&service, "plain.txt"), 200, "control");
        for name in [".bashrc", "/workspace/x", "below/x", "../x", "/etc/x"] {
            assert_eq!(written(&service, name), 403, "{name}");
        }
        service.undefend("H-42");
        assert_eq!(written(&service, ".bashrc"), 200, "control");
        held("H-42", "a signature without a path writes no hidden file and no other directory");
    });
}
