//! Attacks N-16 and N-17: ports without their token, the API through a port, and a hostile page on a port's
//! URL.

use std::io::Write;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use api::exec::ExecSpec;
use api::ports::{Port, PutPort};
use api::sandbox::Sandbox;
use client::{Client, Event};
use e2e::service::{Service, served, small};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::ground::{Answer, address, held, read, recovers};

/// Timeout for every wait in this module. A browser needs most of it on a busy machine.
const WITHIN: Duration = Duration::from_secs(90);
/// Ways in which the hostile page tries to send requests to the other host.
const BLOWS: [&str; 7] = ["read", "blind", "image", "script", "frame", "form", "socket"];

/// An application in a sandbox, with its port and host name.
pub(crate) struct Inside {
    pub(crate) sandbox: Sandbox,
    pub(crate) port: Port,
    pub(crate) host: String,
}

pub(crate) async fn inside(client: &Client, id: &str) -> Inside {
    let sandbox = client.create(&small()).await.unwrap();
    let program = std::fs::read_to_string(e2e::attack::file(id, "attack.py")).unwrap();
    let argv = vec!["python3".into(), "-u".into(), "-c".into(), program];
    let spec = ExecSpec { argv, deadline_ms: None, ..ExecSpec::default() };
    let mut exec = client.exec(&sandbox.id, &spec).await.unwrap();
    let first = tokio::time::timeout(WITHIN, exec.next()).await.unwrap().unwrap();
    assert!(matches!(&first, Some(Event::Data { bytes, .. }) if bytes.starts_with(b"serving")), "{first:?}");
    let port = client.port(&sandbox.id, 8000).await.unwrap();
    let host = port.url.split_once("://").unwrap().1.to_owned();
    Inside { sandbox, port, host }
}

/// Sends these lines as the request line and headers, followed by this body, and returns the response.
fn raw(service: &Service, lines: &[&str], body: &str) -> Answer {
    let mut stream = TcpStream::connect(address(service)).unwrap();
    stream.set_read_timeout(Some(WITHIN)).unwrap();
    let _ = stream.write_all(format!("{}\r\nconnection: close\r\n\r\n{body}", lines.join("\r\n")).as_bytes());
    read(&mut stream)
}

/// Verifies that attack N-16 fails: a private port is not accessible without its own token.
#[test]
#[ignore = "starts real sandboxes"]
fn no_port_is_reached_without_its_own_token() {
    served(async || {
        let service = Service::start();
        let client = service.client();
        let (one, other) = (inside(&client, "N-16").await, inside(&client, "N-16").await);
        let ask = |host: &str, path: &str, headers: &[String]| {
            let mut lines = vec![format!("GET {path} HTTP/1.1"), format!("host: {host}")];
            lines.extend_from_slice(headers);
            raw(&service, &lines.iter().map(String::as_str).collect::<Vec<_>>(), "")
        };
        let right = &one.port.token;
        // Control: the port's own token gives access, in each of the accepted forms.
        assert!(
            ask(&one.host, "/", &[format!("bellglass-token: {right}")]).body.starts_with("inside GET / ")
        );
        e2e::attack::count_control();
        let told = ask(&one.host, &format!("/?bellglass_token={right}"), &[]);
        assert_eq!((told.status, told.header("location")), (303, Some("/")));
        assert!(ask(&one.host, "/", &[format!("cookie: bellglass={right}")]).body.starts_with("inside"));
        let mut refused = Vec::new();
        let wrong = [
            String::new(),
            "0".repeat(64),
            other.port.token.clone(),
            right[..63].to_owned(),
            format!("{right}0"),
            right.to_uppercase(),
            service.key.clone(),
            format!("{right},{right}"),
        ];
        for token in &wrong {
            refused.push(ask(&one.host, "/", &[format!("bellglass-token: {token}")]));
            refused.push(ask(&one.host, &format!("/?bellglass_token={token}"), &[]));
            refused.push(ask(
                &one.host,
                "/",
                &[format!("cookie: bellglass={token}; __Host-bellglass={token}")],
            ));
        }
        for header in [
            format!("authorization: Bearer {right}"),
            format!("authorization: Bearer {}", service.key),
            format!("x-api-key: {}", service.key),
            format!("x-bellglass-token: {right}"),
            format!("cookie: token={right}"),
            format!("bellglass-token: {right}\r\nbellglass-token: {right}"),
            format!("bellglass-sandbox: {}\r\nbellglass-port: 8000", one.sandbox.id),
        ] {
            refused.push(ask(&one.host, "/", &[header]));
        }
        // A sandbox that never existed returns the same response.
        let nobody = one.host.replace(one.sandbox.id.as_str(), "s0123456789abcdefghijklmno");
        refused.push(ask(&nobody, "/", &[format!("bellglass-token: {right}")]));
        for answer in &refused {
            assert_eq!((answer.status, &answer.body), (401, &refused[0].body), "{answer:?}");
        }
        for host in hosts(&one) {
            let answer = ask(&host, "/", &[]);
            assert!([0, 400, 401, 404].contains(&answer.status), "{host:?}: {answer:?}");
            assert!(!answer.body.contains("inside"), "{host:?}: {answer:?}");
        }
        let routes = routes_are_not_there(&service, &one);
        lengths_have_one_meaning(&service, &client, &one).await;
        recovers(&service).await;
        held(
            "N-16",
            &format!("{} ways without the token, {routes} routes of the API on a port", refused.len()),
        );
    });
}

/// Returns unusual spellings of an application's host name.
fn hosts(one: &Inside) -> Vec<String> {
    let (host, id) = (&one.host, &one.sandbox.id);
    let bare = host.rsplit_once(':').unwrap().0;
    vec![
        format!("{bare}."),
        host.to_uppercase(),
        format!("{bare}:1"),
        format!("{bare}:99999"),
        format!("{bare}:"),
        format!("x@{host}"),
        format!("127.0.0.1@{host}"),
        format!("{host}\r\nhost: bellglass"),
        format!("bellglass\r\nhost: {host}"),
        format!("{host} bellglass"),
        format!("{host}\t"),
        format!("{host}\0"),
        format!("{host}/"),
        format!("{host}#"),
        format!("%38000-{id}.sandbox.localhost"),
        format!("08000-{id}.sandbox.localhost"),
        format!("8000-{id}..sandbox.localhost"),
        format!("8000-{id}.x.sandbox.localhost"),
        format!("x.8000-{id}.sandbox.localhost"),
        format!("8000_{id}.sandbox.localhost"),
        format!("8000-{id}.sandbox.localhost.example.com"),
        format!("8000\u{2010}{id}.sandbox.localhost"),
    ]
}

/// Asserts that no route of the API is available under the port domain, with an administrator key and several
/// methods. Returns the number of requests.
fn routes_are_not_there(service: &Service, one: &Inside) -> usize {
    let text =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json")).unwrap();
    let description: Value = serde_json::from_str(&text).unwrap();
    let key = format!("authorization: Bearer {}", service.key);
    let mut tried = 0;
    for path in description["paths"].as_object().unwrap().keys() {
        let path = path.replace("{sandbox}", one.sandbox.id.as_str()).replace(['{', '}'], "");
        for method in ["GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "HEAD"] {
            let line = format!("{method} {path} HTTP/1.1");
            let nothing = raw(service, &[&line, "host: x.sandbox.localhost", &key], "");
            assert_eq!(nothing.status, 404, "{line}: {nothing:?}");
            let private = raw(service, &[&line, &format!("host: {}", one.host), &key], "");
            assert_eq!(private.status, 401, "{line}: {private:?}");
            tried += 2;
        }
        // Control: with the port's token, a request for the same path reaches the application.
        let token = format!("bellglass-token: {}", one.port.token);
        let asked =
            raw(service, &[&format!("GET {path} HTTP/1.1"), &format!("host: {}", one.host), &token], "");
        assert!(asked.body.starts_with("inside GET "), "{path}: {asked:?}");
    }
    let look = raw(service, &["GET /v1/sandboxes HTTP/1.1", "host: bellglass", &key], "");
    assert_eq!(look.status, 200, "{look:?}");
    tried
}

/// Asserts that a request with two lengths reaches the application with only one of them, or does not reach
/// it.
async fn lengths_have_one_meaning(service: &Service, client: &Client, one: &Inside) {
    let token = format!("bellglass-token: {}", one.port.token);
    let host = format!("host: {}", one.host);
    let smuggled = "0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n";
    let long = format!("content-length: {}", smuggled.len());
    for lines in [
        vec![long.as_str(), "transfer-encoding: chunked"],
        vec!["transfer-encoding: chunked", "content-length: 4"],
        vec!["transfer-encoding: chunked", "transfer-encoding: identity"],
        vec!["transfer-encoding: xchunked", &long],
        vec!["transfer-encoding:\tchunked", &long],
        vec!["transfer-encoding : chunked", &long],
        vec!["content-length: 4", &long],
        vec!["content-length: +4"],
        vec!["content-length: 4, 4"],
        vec!["x: y\r\n transfer-encoding: chunked", &long],
        vec!["connection: content-length", &long],
    ] {
        let all = [vec!["POST /first HTTP/1.1", host.as_str(), token.as_str()], lines.clone()].concat();
        let answer = raw(service, &all, smuggled);
        if answer.status == 200 {
            let (head, _) = answer.body.split_once("\r\n\r\n").expect("a head");
            let head = head.to_lowercase();
            let said = head.matches("content-length:").count() + head.matches("transfer-encoding:").count();
            assert!(said <= 1, "{lines:?}: {head}");
            assert_eq!(head.matches(" http/1.1").count(), 1, "{lines:?}: {head}");
        } else {
            assert!([0, 400, 501].contains(&answer.status), "{lines:?}: {answer:?}");
        }
    }
    // Control: through a tunnel, which forwards bytes unchanged, both lengths reach the application.
    let mut tunnel = client.tunnel(&one.sandbox.id, 8000).await.unwrap();
    let text =
        format!("POST / HTTP/1.1\r\nhost: x\r\n{long}\r\ntransfer-encoding: chunked\r\n\r\n{smuggled}");
    tunnel.write_all(text.as_bytes()).await.unwrap();
    let mut seen = String::new();
    tokio::time::timeout(WITHIN, tunnel.read_to_string(&mut seen)).await.unwrap().unwrap();
    assert!(
        seen.contains(&long) && seen.contains("transfer-encoding: chunked") && seen.contains("/smuggled"),
        "{seen}"
    );
}

/// A headless browser, which is terminated when this value is dropped.
struct Browser(Child);

impl Browser {
    fn open(address: &str, profile: &std::path::Path) -> Self {
        let mut command = Command::new("chromium");
        command
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
            ])
            .args(["--disable-background-networking", "--remote-debugging-port=0"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg(address);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().expect("chromium, which scripts/setup.sh installs"))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the requests that an application has received, and the reports that its pages have sent to it.
fn told(service: &Service, of: &Inside) -> (Vec<String>, Vec<Value>) {
    let token = format!("bellglass-token: {}", of.port.token);
    let answer = raw(service, &["GET /told HTTP/1.1", &format!("host: {}", of.host), &token], "");
    let told = answer.json();
    let seen = told["seen"].as_array().unwrap().iter().map(|one| one.as_str().unwrap().to_owned()).collect();
    (seen, told["reports"].as_array().unwrap().clone())
}

/// Opens the victim's page in a browser. The page leads to the hostile page, which leads back. Returns the
/// requests that the victim received, and the last report of each page.
fn visit(service: &Service, victim: &Inside, hostile: &Inside) -> (Vec<String>, Value, Value) {
    let escape =
        |text: &str| text.replace('%', "%25").replace('&', "%26").replace('?', "%3F").replace('=', "%3D");
    let go = format!(
        "{}/hostile?bellglass_token={}&victim={}&api={}",
        hostile.port.url,
        hostile.port.token,
        victim.port.url,
        service.url()
    );
    let start =
        format!("{}/victim?bellglass_token={}&go={}", victim.port.url, victim.port.token, escape(&go));
    let profile = tempfile::tempdir().unwrap();
    let before = told(service, victim).0.len();
    let browser = Browser::open(&start, profile.path());
    let since = Instant::now();
    let seen = loop {
        let seen = told(service, victim).0.split_off(before);
        if seen.iter().any(|by| by == "visit") {
            break seen;
        }
        assert!(since.elapsed() < WITHIN, "{seen:?} {:?}", told(service, hostile));
        std::thread::sleep(Duration::from_millis(200));
    };
    drop(browser);
    let last = |of: &Inside| told(service, of).1.pop().expect("a report");
    (seen, last(victim), last(hostile))
}

/// Verifies that attack N-17 fails: a hostile page cannot read content from another port or from the API.
#[test]
#[ignore = "starts real sandboxes"]
fn a_hostile_page_gets_nothing_of_another_port_nor_of_the_api() {
    served(async || {
        let service = Service::start();
        let client = service.client();
        let (victim, hostile) = (inside(&client, "N-17").await, inside(&client, "N-17").await);
        let (seen, own, report) = visit(&service, &victim, &hostile);
        // Control: the victim's own page gets all of its content, and a user can navigate to it from any
        // page.
        assert_eq!((own["secret"].as_str(), own["opened"].as_bool()), (Some("secret"), Some(true)));
        assert_eq!(seen, ["own", "own-ws", "visit"], "what the hostile page sent arrived: {report}");
        for attempt in ["read", "image", "script", "frame", "socket", "api", "health", "headers", "worker"] {
            assert_eq!(report[attempt], "refused", "{attempt}: {report}");
        }
        assert!(!report["cookie"].as_str().unwrap().contains(&victim.port.token), "{report}");
        // Control: if the port requires no token, requests from the same hostile page arrive. Even then, the
        // browser does not let the page read the responses.
        client.put_port(&victim.sandbox.id, 8000, &PutPort { public: true }).await.unwrap();
        let (seen, _, report) = visit(&service, &victim, &hostile);
        for blow in BLOWS {
            assert!(seen.iter().any(|by| by == blow), "the control does not bite: {blow} in {seen:?}");
        }
        assert_eq!(report["socket"], "open", "{report}");
        assert_eq!(report["read"], "refused", "{report}");
        e2e::attack::count_control();
        recovers(&service).await;
        held("N-17", &format!("{} attempts of a page, none arrived", BLOWS.len() + 4));
    });
}
