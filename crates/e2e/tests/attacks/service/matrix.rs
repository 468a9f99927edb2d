//! Attack H-25: every route with every credential, compared with the tables of `docs/authority.md`.
//!
//! The routes come from the router itself. The page states which credential each route needs, and, for each
//! such need, the response to every credential. A new route or a changed need therefore fails this test until
//! the page documents it.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use api::account::Role;
use e2e::service::{PLENTY, Service, served};
use serde_json::{Value, json};
use server::authority::table::Row;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;

use super::e2b::{Opened, opened, signature};
use super::ground::{Answer, address, held, keyed};

/// Time to read a response. A stream that has started counts as accepted, and the test does not wait for its
/// end.
const STREAM_WITHIN: Duration = Duration::from_millis(400);
/// Number of requests with a wrong credential that one address may send without being slowed down.
const TRIES_OF_ADDRESS: u32 = 20;
/// Minimum number of routes. A lower number would mean that routes are missing from the router's table.
const ROUTES_MIN: usize = 100;

/// The credentials of a request: headers, and text to append to the query.
#[derive(Clone, Default)]
struct Shown {
    headers: Vec<(&'static str, String)>,
    query: String,
}

/// Returns a route's decision about a request: `in`, `401` or `403`.
fn outcome(answer: &Answer) -> &'static str {
    let refused = |code: &str| answer.body.contains(&format!(r#"{{"error":{{"code":"{code}""#));
    match answer.status {
        401 => "401",
        // Other 403 responses come from the sandbox's file system, after the route has accepted the
        // credential.
        403 if answer.body.contains("\"forbidden\"") => "403",
        // A stream reports a refusal in its only message instead of in the status.
        200 if refused("unauthenticated") => "401",
        200 if refused("permission_denied") => "403",
        _ => "in",
    }
}

fn bearer(text: &str) -> Shown {
    Shown { headers: vec![("authorization", format!("Bearer {text}"))], query: String::new() }
}

fn header(name: &'static str, value: &str) -> Shown {
    Shown { headers: vec![(name, value.to_owned())], query: String::new() }
}

fn sha256(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Path of the file for which the signed URLs in the matrix are valid.
const SIGNED_PATH: &str = "/workspace/signed";

/// The secrets that requests present.
struct Secrets {
    read: String,
    write: String,
    admin: String,
    expired: String,
    revoked: String,
    port: String,
    ticket: String,
}

impl Secrets {
    async fn of(service: &Service, sandbox: &Opened) -> Self {
        let admin = |method: &str, path: &str, body: &Value| keyed(service, &service.key, method, path, body);
        let make = |valid_ms: Value| {
            let body = json!({ "project": "default", "role": "admin", "valid_ms": valid_ms });
            admin("POST", "/v1/keys", &body).json()
        };
        let (expired, revoked) = (make(json!(1)), make(Value::Null));
        let id = revoked["key"]["id"].as_str().unwrap();
        assert_eq!(admin("DELETE", &format!("/v1/keys/{id}"), &Value::Null).status, 204);
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let port = admin("GET", &format!("/v1/sandboxes/{}/ports/8000", sandbox.id), &Value::Null).json();
        let upload = admin("GET", &format!("/templates/t/files/{}", "a".repeat(64)), &Value::Null).json();
        Self {
            read: service.key_of("default", Role::Read, PLENTY).await,
            write: service.key_of("default", Role::Write, PLENTY).await,
            admin: service.key.clone(),
            expired: text(&expired["secret"]),
            revoked: text(&revoked["secret"]),
            port: text(&port["token"]),
            ticket: text(&upload["url"]).split_once("ticket=").unwrap().1.to_owned(),
        }
    }

    /// Returns strings that the server hashes, or that earlier versions hashed.
    fn hashed(&self, sandbox: &Opened) -> Vec<String> {
        let (port, key) = (&self.port, self.admin.trim_start_matches("bgk_"));
        vec![
            "of project default".to_owned(),
            "e2b_of project default".into(),
            format!("e2b agent {port}"),
            sha256(&format!("e2b agent {port}")),
            sha256("of project default"),
            sha256(key),
            sha256(&sha256(key)),
            format!("{SIGNED_PATH}:read::{}", sandbox.token),
            sandbox.id.clone(),
            "sandbox".into(),
        ]
    }
}

fn signed(path: &str, by: &str) -> Shown {
    Shown { headers: Vec::new(), query: format!("path={path}&signature={by}") }
}

/// Returns the columns of the table with their credentials, in the order of the page.
fn credentials(secrets: &Secrets, sandbox: &Opened, other: &Opened) -> Vec<(&'static str, Vec<Shown>)> {
    let sign = |act: &str, token: &str| signature(SIGNED_PATH, act, token, None);
    let hashed = secrets.hashed(sandbox);
    let hashed = hashed.iter().flat_map(|text| [bearer(text), header("x-access-token", text)]);
    let as_keys = [&sandbox.token, &sandbox.traffic, &secrets.port, &secrets.ticket];
    vec![
        ("none", vec![Shown::default()]),
        ("garbage", vec![bearer("garbage"), bearer(""), header("x-access-token", "garbage")]),
        ("hashed text", hashed.collect()),
        ("token as key", as_keys.into_iter().map(|token| bearer(token)).collect()),
        ("key read", vec![bearer(&secrets.read)]),
        ("key write", vec![bearer(&secrets.write)]),
        ("key admin", vec![bearer(&secrets.admin)]),
        ("expired key", vec![bearer(&secrets.expired)]),
        ("revoked key", vec![bearer(&secrets.revoked)]),
        ("agent token", vec![header("x-access-token", &sandbox.token)]),
        (
            "another sandbox's tokens",
            vec![
                header("x-access-token", &other.token),
                header("e2b-traffic-access-token", &other.traffic),
                signed(SIGNED_PATH, &sign("read", &other.token)),
            ],
        ),
        ("traffic token", vec![header("e2b-traffic-access-token", &sandbox.traffic)]),
        (
            "port token",
            ["x-access-token", "e2b-traffic-access-token", "bellglass-token"]
                .map(|name| header(name, &secrets.port))
                .to_vec(),
        ),
        ("read signature", vec![signed(SIGNED_PATH, &sign("read", &sandbox.token))]),
        ("write signature", vec![signed(SIGNED_PATH, &sign("write", &sandbox.token))]),
        ("signature of another path", vec![signed("/etc/passwd", &sign("read", &sandbox.token))]),
    ]
}

/// Verifies that attack H-25 fails: every route responds to every credential as `docs/authority.md`
/// specifies.
#[test]
#[ignore = "starts real sandboxes"]
fn every_route_answers_every_credential_as_the_page_says() {
    served(async || {
        let service = Service::start();
        let (sandbox, other) = (opened(&service, &service.key), opened(&service, &service.key));
        let rows = [server::routes::rows(), e2b::rows()].concat();
        assert!(rows.len() >= ROUTES_MIN, "{} routes", rows.len());
        let page = Page::read();
        page.assert_routes(&rows);
        let columns = credentials(&Secrets::of(&service, &sandbox).await, &sandbox, &other);
        let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
        assert_eq!(page.columns, names, "the columns of docs/authority.md");
        let (mut wrong, mut asked, mut let_in) = (Vec::new(), 0_u32, 0);
        for row in &rows {
            let expected = page.needs.get(row.need.name()).unwrap_or_else(|| panic!("{row:?}"));
            for ((name, shown), expected) in columns.iter().zip(expected) {
                for one in shown {
                    let from = Ipv4Addr::from(0x7F01_0000 + asked / TRIES_OF_ADDRESS + 1);
                    let answer = ask(&service, from, row, &sandbox.id, one).await;
                    asked += 1;
                    let got = outcome(&answer);
                    let_in += usize::from(got == "in");
                    if got != expected {
                        wrong.push(format!(
                            "{} {} with {name}: {got}, not {expected}: {answer:?}",
                            row.method, row.path
                        ));
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{} wrong answers:\n{}", wrong.len(), wrong.join("\n"));
        // Control: every route accepts the right credential. No request is therefore refused for a different
        // reason.
        assert!(let_in >= rows.len(), "{let_in} of {asked} were let in");
        e2e::attack::count_control();
        held(
            "H-25",
            &format!("{} routes, {} credentials, {asked} requests, 0 wrong answers", rows.len(), names.len()),
        );
    });
}

async fn ask(service: &Service, from: Ipv4Addr, row: &Row, sandbox: &str, shown: &Shown) -> Answer {
    let method = if row.method == "ANY" { "POST" } else { row.method };
    // The names do not exist, so an accepted request has no effect.
    let mut path = row.path.clone();
    while let Some((before, rest)) = path.clone().split_once('{') {
        let (name, after) = rest.split_once('}').unwrap();
        let value = if name == "port" { "8000" } else { "nothing" };
        path = format!("{before}{value}{after}");
    }
    if !shown.query.is_empty() {
        path = format!("{path}?{}", shown.query);
    } else if path == "/files" {
        path = format!("/files?path={SIGNED_PATH}");
    }
    let mut text = format!(
        "{method} {path} HTTP/1.1\r\nhost: bellglass\r\nconnection: close\r\ncontent-type: application/json\r\n"
    );
    text.push_str(&format!("e2b-sandbox-id: {sandbox}\r\n"));
    for (name, value) in &shown.headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("content-length: 2\r\n\r\n{}");
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((from, 0))).unwrap();
    let mut stream = socket.connect(address(service).parse().unwrap()).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    let _ = tokio::time::timeout(STREAM_WITHIN, stream.read_to_end(&mut bytes)).await;
    // Only a request that starts something takes longer. Such a request was accepted, so wait for its
    // response headers.
    while !bytes.windows(4).any(|part| part == b"\r\n\r\n") {
        let mut piece = [0; 4096];
        let read = tokio::time::timeout(Duration::from_secs(20), stream.read(&mut piece)).await;
        let count = read.unwrap_or_else(|_| panic!("{method} {path} was not answered")).unwrap();
        assert!(count > 0, "{method} {path} ended without an answer");
        bytes.extend_from_slice(&piece[..count]);
    }
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or_default();
    Answer { status, waits: false, head: head.to_owned(), body: body.to_owned() }
}

/// The content of the two tables in `docs/authority.md`.
struct Page {
    columns: Vec<String>,
    /// By the credential that a route needs, the response to each credential, in the order of the columns.
    needs: BTreeMap<String, Vec<String>>,
    /// The credential that each route needs, by method and path.
    routes: BTreeMap<(String, String), String>,
}

impl Page {
    fn read() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/authority.md");
        let text = std::fs::read_to_string(path).unwrap();
        let mut needs = table(&text, "## Needs and credentials");
        let columns = needs.remove(0)[1..].to_vec();
        let needs = needs.into_iter().map(|row| (row[0].clone(), row[1..].to_vec())).collect();
        let mut routes = table(&text, "## Routes");
        routes.remove(0);
        let plain = |text: &str| text.trim_matches('`').to_owned();
        let routes =
            routes.into_iter().map(|row| ((plain(&row[0]), plain(&row[1])), row[2].clone())).collect();
        Self { columns, needs, routes }
    }

    /// Asserts that the page lists every route with its need, and lists no other routes.
    fn assert_routes(&self, rows: &[Row]) {
        let known =
            rows.iter().map(|row| ((row.method.to_owned(), row.path.clone()), row.need.name().to_owned()));
        let known: BTreeMap<_, _> = known.collect();
        if std::env::var_os("BELLGLASS_WRITE").is_some() {
            for ((method, path), need) in &known {
                println!("| `{method}` | `{path}` | {need} |");
            }
        }
        assert_eq!(self.routes, known, "the routes of docs/authority.md; BELLGLASS_WRITE=1 prints them");
    }
}

/// Returns the rows of the first table after a heading, excluding the separator line.
fn table(text: &str, heading: &str) -> Vec<Vec<String>> {
    let part = text.split_once(heading).unwrap_or_else(|| panic!("{heading} is missing")).1;
    let lines =
        part.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let rows =
        lines.map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect());
    rows.filter(|row: &Vec<String>| !row.iter().all(|cell| cell.starts_with("--"))).collect()
}
