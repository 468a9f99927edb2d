//! Attacks N-30, N-33, N-35 and N-36: data from viewers that reaches an application, and effects of an
//! application's responses on the server and on the API's URL.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::Duration;

use api::ports::PutPort;
use e2e::service::{Service, served};

use super::ground::{Answer, address, held, read, recovers};
use super::ports::{Inside, inside};

/// Timeout for a response from an application that responds.
const WITHIN: Duration = Duration::from_secs(20);
/// Time to wait for an application that does not respond.
const WAIT: Duration = Duration::from_secs(4);

/// Sends a request whose header lines are raw bytes, and returns the response.
fn raw(service: &Service, lines: &[&[u8]], within: Duration) -> Answer {
    let mut stream = TcpStream::connect(address(service)).unwrap();
    stream.set_read_timeout(Some(within)).unwrap();
    stream.write_all(&[&lines.join(&b"\r\n"[..])[..], b"\r\nconnection: close\r\n\r\n"].concat()).unwrap();
    read(&mut stream)
}

/// Sends a request to a port at the port's own address.
fn ask(service: &Service, of: &Inside, request: &str, headers: &[Vec<u8>]) -> Answer {
    let (first, host) = (format!("{request} HTTP/1.1"), format!("host: {}", of.host));
    let mut lines = vec![first.as_bytes(), host.as_bytes()];
    lines.extend(headers.iter().map(Vec::as_slice));
    raw(service, &lines, WITHIN)
}

/// Sends a request to a port at the API's address, where headers name the sandbox and the port.
fn by_headers(service: &Service, of: &Inside, path: &str, headers: &[&str], within: Duration) -> Answer {
    let (first, sandbox) = (format!("GET {path} HTTP/1.1"), format!("bellglass-sandbox: {}", of.sandbox.id));
    let mut lines = vec![first.as_str(), "host: bellglass", &sandbox, "bellglass-port: 8000"];
    lines.extend_from_slice(headers);
    raw(service, &lines.iter().map(|line| line.as_bytes()).collect::<Vec<_>>(), within)
}

/// Returns the ways in which a viewer can send the token together with a non-ASCII cookie. Each consists of a
/// method and path, and of headers.
fn shown(token: &str) -> Vec<(String, Vec<Vec<u8>>)> {
    let line = |text: &str, end: &[u8]| [text.as_bytes(), end].concat();
    let own = format!("cookie: bellglass={token}; theme=");
    let strange = line("cookie: theme=", b"\xc3\xa9");
    let by_header = line(&format!("bellglass-token: {token}"), b"");
    vec![
        ("GET /".into(), vec![line(&own, b"\xc3\xa9")]),
        ("GET /".into(), vec![line(&own, b"\xff\xfe")]),
        ("GET /".into(), vec![line(&format!("cookie: theme=\u{e9}; bellglass={token}"), b"")]),
        ("GET /".into(), vec![line(&format!("cookie: __Host-bellglass={token};\u{e9}"), b"")]),
        ("GET /".into(), vec![strange.clone(), line(&format!("cookie: bellglass={token}"), b"")]),
        ("GET /".into(), vec![by_header, line(&own, b"\xc3\xa9")]),
        (
            format!("POST /?bellglass_token={token}"),
            vec![line(&own, b"\xc3\xa9"), line("content-length: 0", b"")],
        ),
    ]
}

/// Verifies that attack N-33 fails: in a request with a non-ASCII cookie, the token does not reach the
/// application, and no viewer is locked out.
#[test]
#[ignore = "starts real sandboxes"]
fn a_cookie_that_is_not_ascii_brings_no_token_in_and_locks_nobody_out() {
    served(async || {
        let mut service = Service::start();
        let one = inside(&service.client(), "N-16").await;
        let token = one.port.token.clone();
        for public in [false, true] {
            service.client().put_port(&one.sandbox.id, 8000, &PutPort { public }).await.unwrap();
            for (request, headers) in shown(&token) {
                let answer = ask(&service, &one, &request, &headers);
                assert_eq!(answer.status, 200, "public {public}: {headers:?}: {answer:?}");
                assert!(!answer.body.contains(&token), "public {public}: {headers:?}: {answer:?}");
                assert!(answer.body.contains("theme=") || headers.len() == 1, "its own cookies: {answer:?}");
            }
        }
        // Control: without the defence, the token reaches the application, and a viewer of a private port is
        // locked out.
        service.undefend("N-33");
        let one = inside(&service.client(), "N-16").await;
        let (request, headers) = &shown(&one.port.token)[0];
        assert_eq!(ask(&service, &one, request, headers).status, 401, "control");
        service.client().put_port(&one.sandbox.id, 8000, &PutPort { public: true }).await.unwrap();
        let told = ask(&service, &one, request, headers);
        assert!(told.body.contains(&one.port.token), "control: {told:?}");
        recovers(&service).await;
        held("N-33", &format!("{} ways, private and public", shown(&token).len()));
    });
}

/// Verifies that attack N-35 at a port's own address fails: neither a key nor a token in a referrer reaches
/// the application.
#[test]
#[ignore = "starts real sandboxes"]
fn neither_a_key_nor_a_token_in_a_referer_goes_in_at_a_ports_own_address() {
    served(async || {
        let mut service = Service::start();
        let one = inside(&service.client(), "N-16").await;
        let secret = service.key.clone();
        let with = |of: &Inside, header: String| {
            [format!("cookie: bellglass={}", of.port.token), header].map(String::into_bytes)
        };
        let key = |of: &Inside| with(of, format!("authorization: Bearer {secret}"));
        let referer = |of: &Inside, path: &str| with(of, format!("referer: http://{}/{path}", of.host));
        let posted = |of: &Inside| format!("posted?bellglass_token={}", of.port.token);
        ask(&service, &one, "GET /", &key(&one)).assert("a key", 400, "invalid_request");
        let answer = ask(&service, &one, "GET /", &referer(&one, &posted(&one)));
        assert!(answer.status == 200 && !answer.body.contains(&one.port.token), "{answer:?}");
        let own = ask(&service, &one, "GET /", &referer(&one, "page"));
        assert!(own.body.contains("/page"), "the application's own referer: {own:?}");
        // Control: without the defence, both the key and the token reach the application.
        service.undefend("N-35");
        let one = inside(&service.client(), "N-16").await;
        let told = ask(&service, &one, "GET /", &key(&one));
        assert!(told.body.contains(&secret), "control: {told:?}");
        let told = ask(&service, &one, "GET /", &referer(&one, &posted(&one)));
        assert!(told.body.contains(&one.port.token), "control: {told:?}");
        held("N-35", "a key and a token in a referer, at the port's own address");
    });
}

/// Verifies that attack N-35 fails: a key that is sent together with a token does not reach the application.
#[test]
#[ignore = "starts real sandboxes"]
fn a_key_that_is_shown_beside_a_token_does_not_go_in() {
    served(async || {
        let mut service = Service::start();
        let one = inside(&service.client(), "N-16").await;
        let token = format!("bellglass-token: {}", one.port.token);
        let key = service.key.clone();
        let keys = [
            format!("x-api-key: {key}"),
            format!("authorization: Bearer {key}"),
            format!("authorization: {key}"),
            format!("authorization: Bearer   {key}"),
            format!("x-api-key: e2b_{key}"),
            format!("x-api-key: {}", key.to_uppercase()),
            format!("authorization: Bearer x\r\nauthorization: Bearer {key}"),
            format!("x-api-key: \u{e9} {key}"),
        ];
        for header in &keys {
            let answer = by_headers(&service, &one, "/", &[&token, header], WITHIN);
            answer.assert(header, 400, "invalid_request");
            assert!(!answer.body.contains(&key), "{answer:?}");
        }
        // A key without a token gives access to the port. Together with a token, the application's own
        // credentials are forwarded.
        let alone = by_headers(&service, &one, "/", &[&keys[0]], WITHIN);
        assert!(alone.body.starts_with("inside ") && !alone.body.contains(&key), "{alone:?}");
        let own =
            by_headers(&service, &one, "/", &[&token, "authorization: Bearer of-the-application"], WITHIN);
        assert!(own.body.contains("Bearer of-the-application"), "{own:?}");
        // Control: without the defence, the application receives the key.
        service.undefend("N-35");
        let one = inside(&service.client(), "N-16").await;
        let token = format!("bellglass-token: {}", one.port.token);
        let told = by_headers(&service, &one, "/", &[&token, &keys[0]], WITHIN);
        assert!(told.body.contains(&key), "control: {told:?}");
        recovers(&service).await;
        held("N-35", &format!("{} ways to show a key beside a token", keys.len()));
    });
}

/// Verifies that attack N-36 fails: an application's response is not cached under the API's URL, and its
/// headers do not affect the API.
#[test]
#[ignore = "starts real sandboxes"]
fn an_answer_of_an_application_is_not_kept_under_the_address_of_the_api() {
    served(async || {
        let mut service = Service::start();
        let one = inside(&service.client(), "N-36").await;
        let key = format!("authorization: Bearer {}", service.key);
        let kept =
            ["set-cookie", "strict-transport-security", "clear-site-data", "alt-svc", "expires", "age"];
        let ask_it =
            |service: &Service, of: &Inside| by_headers(service, of, "/v1/sandboxes", &[&key], WITHIN);
        let answer = ask_it(&service, &one);
        assert_eq!((answer.status, answer.body.as_str()), (200, "of an application"), "{answer:?}");
        assert_eq!(answer.header("cache-control"), Some("no-store"), "{answer:?}");
        assert!(answer.head.to_lowercase().contains("bellglass-sandbox, bellglass-port"), "{answer:?}");
        assert_eq!(answer.head.to_lowercase().matches("cache-control").count(), 1, "{answer:?}");
        for name in kept {
            assert_eq!(answer.header(name), None, "{answer:?}");
        }
        // At the port's own address, the application's headers are forwarded.
        let token = format!("bellglass-token: {}", one.port.token).into_bytes();
        let own = ask(&service, &one, "GET /", &[token]);
        assert_eq!(own.header("cache-control"), Some("public, s-maxage=3600"), "{own:?}");
        assert!(kept.iter().all(|name| own.header(name).is_some()), "{own:?}");
        // With these headers, a browser uses its cached responses from a private port only for pages of the
        // same port. Without them, all ports in the domain would share the cache.
        assert!(own.head.to_lowercase().contains("vary: sec-fetch-site, origin, cookie"), "{own:?}");
        assert_eq!(own.header("cross-origin-resource-policy"), Some("same-origin"), "{own:?}");
        // Control: without the defence, the client receives all of these headers.
        service.undefend("N-36");
        let one = inside(&service.client(), "N-36").await;
        let told = ask_it(&service, &one);
        assert_eq!(told.header("cache-control"), Some("public, s-maxage=3600"), "control: {told:?}");
        assert!(kept.iter().all(|name| told.header(name).is_some()), "control: {told:?}");
        recovers(&service).await;
        held("N-36", &format!("{} headers", kept.len() + 1));
    });
}

/// Verifies that attack N-30 against an application's response fails: an endless header block is rejected.
#[test]
#[ignore = "starts real sandboxes"]
fn a_head_of_an_application_has_an_end_or_is_refused() {
    served(async || {
        let mut service = Service::start();
        let key = format!("authorization: Bearer {}", service.key);
        let ask_it = |service: &Service, of: &Inside| by_headers(service, of, "/hang", &[&key], WAIT);
        let one = inside(&service.client(), "N-36").await;
        let answer = ask_it(&service, &one);
        answer.assert("an endless head", 502, "protocol");
        assert!(answer.body.contains("too large"), "{answer:?}");
        service.undefend("N-30");
        let one = inside(&service.client(), "N-36").await;
        let waits = ask_it(&service, &one);
        assert!(waits.waits, "control: 392 kB of a head are held: {waits:?}");
        recovers(&service).await;
        held("N-30", "a head of an application");
    });
}
