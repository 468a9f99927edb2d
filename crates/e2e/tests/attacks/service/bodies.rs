//! Attacks H-03, H-04 and H-06: bodies that are large, malformed, compressed or deceptive, or that precede
//! authentication.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use api::account::Role;
use e2e::service::{PLENTY, Service, served};
use serde_json::{Value, json};

use super::ground::{
    Answer, Bystander, address, ask, head, held, keyed, read, recovers, rss_bytes, send, small,
};

/// Maximum memory growth of the server, which covers a few bodies of the maximum size at the same time.
const MEMORY_BYTES: u64 = 384 << 20;
/// Maximum memory growth of the server by malformed bodies, which are sent one after the other. The largest has
/// 13 MB and a million keys. A run takes 124 MiB.
const MALFORMED_BYTES: u64 = 192 << 20;
const MIB: usize = 1 << 20;

/// Sends a create request with this body.
fn create(service: &Service, body: &[u8]) -> Answer {
    let bearer = format!("Bearer {}", service.key);
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    ask(service, "POST", "/v1/sandboxes", &headers, body)
}

/// Verifies that attack H-03 fails: malformed JSON is refused at little cost.
#[test]
#[ignore = "starts real sandboxes"]
fn json_that_is_not_ours_is_refused_at_little_cost() {
    served(async || {
        let service = Service::start();
        let before = rss_bytes(service.pid());
        let bystander = Bystander::of(&service);
        let deep = |open: &str, close: &str| format!("{}{}", open.repeat(100_000), close.repeat(100_000));
        let keys: Vec<String> = (0..1_000_000).map(|number| format!("\"k{number}\":1")).collect();
        let labels = format!("{{\"labels\":{{{}}}}}", keys.join(",").replace(":1", ":\"\""));
        let many = format!("{{{}}}", keys.join(","));
        let bodies: Vec<(&str, Vec<u8>)> = vec![
            ("deep lists", deep("[", "]").into()),
            ("deep objects", format!("{{\"labels\":{}}}", deep("{\"a\":", "}")).into()),
            ("deep and open", "[".repeat(100_000).into()),
            ("many keys", many.into()),
            ("many labels", labels.into()),
            ("twice", br#"{"idle_ms":60000,"idle_ms":1000}"#.to_vec()),
            ("nan", br#"{"idle_ms":NaN}"#.to_vec()),
            ("infinite", br#"{"idle_ms":1e999999}"#.to_vec()),
            ("long number", format!("{{\"idle_ms\":{}}}", "9".repeat(MIB)).into()),
            ("negative", br#"{"idle_ms":-1}"#.to_vec()),
            ("fraction", br#"{"idle_ms":60000.5}"#.to_vec()),
            ("not utf-8", b"{\"template\":\"\xff\xfe\"}".to_vec()),
            ("byte order mark", b"\xef\xbb\xbf{}".to_vec()),
            ("utf-16", b"\xff\xfe{\0}\0".to_vec()),
            ("lone surrogate", br#"{"template":"\ud800"}"#.to_vec()),
            ("nothing", b" ".to_vec()),
            ("two", b"{}{}".to_vec()),
            ("null", b"null".to_vec()),
            ("NUL in a name", br#"{"template":"a\u0000b"}"#.to_vec()),
            ("path in a name", br#"{"template":"../../etc"}"#.to_vec()),
        ];
        for (what, body) in &bodies {
            let answer = create(&service, body);
            assert!([400, 404].contains(&answer.status), "{what}: {answer:?}");
            assert!(answer.json()["fix"].is_string() && answer.body.len() < 4096, "{what}: {answer:?}");
        }
        let large = create(&service, &vec![b' '; 100 * MIB]);
        assert!([413, 0].contains(&large.status), "{large:?}");
        let grown = rss_bytes(service.pid()).saturating_sub(before);
        assert!(grown < MALFORMED_BYTES, "{grown} bytes");
        let slowest = bystander.was_served();
        // Control: a well-formed body creates a sandbox.
        assert_eq!(create(&service, small().to_string().as_bytes()).status, 201);
        e2e::attack::count_control();
        held(
            "H-03",
            &format!("{} bodies, {} MiB more; a bystander waited {slowest:?}", bodies.len(), grown >> 20),
        );
    });
}

/// Verifies that attack H-03 fails: incomplete bodies of almost the maximum size share a total limit. Their
/// key has the role `write`, because a request with a lower role would be refused before its body is read.
#[test]
#[ignore = "starts real sandboxes"]
fn bodies_that_are_begun_and_never_end_have_a_bound_together() {
    const AT_ONCE: usize = 60;
    const EACH: usize = 15 * MIB;
    served(async || {
        let service = Service::start();
        let key = service.key_of("writer", Role::Write, PLENTY).await;
        let before = rss_bytes(service.pid());
        let bystander = Bystander::of(&service);
        let bearer = format!("Bearer {key}");
        let piece = vec![b' '; EACH - 1];
        let begin = || {
            let mut stream = TcpStream::connect(address(&service)).unwrap();
            let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
            let request =
                head("POST", "/v1/sandboxes", &headers) + &format!("content-length: {EACH}\r\n\r\n");
            stream.write_all(request.as_bytes()).unwrap();
            stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
            // The server stops reading after it has refused a request.
            let taken = stream.write_all(&piece).is_ok();
            (stream, taken)
        };
        let begun: Vec<(TcpStream, bool)> = (0..AT_ONCE).map(|_| begin()).collect();
        tokio::time::sleep(Duration::from_millis(500)).await;
        let grown = rss_bytes(service.pid()).saturating_sub(before);
        let slowest = bystander.was_served();
        assert!(grown < MEMORY_BYTES, "{AT_ONCE} bodies of {EACH} bytes cost {} MiB", grown >> 20);
        // Control: as many bodies as the limit allows were accepted and are held in memory.
        let taken = begun.iter().filter(|(_, taken)| *taken).count();
        assert!((4..=9).contains(&taken), "{taken} bodies were taken");
        e2e::attack::count_control();
        assert!(grown > (taken * EACH / 2) as u64, "{taken} bodies were taken, and {grown} bytes held");
        let probe = |length: usize| {
            let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
            let request = head("POST", "/v1/sandboxes", &headers);
            let mut stream = TcpStream::connect(address(&service)).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
            stream.write_all(format!("{request}content-length: {length}\r\n\r\n").as_bytes()).unwrap();
            read(&mut stream)
        };
        let refused = probe(EACH);
        refused.assert("one more", 429, "rate_limited");
        assert!(refused.header("retry-after").is_some());
        let other = keyed(&service, &service.key, "POST", "/v1/sandboxes", &small());
        assert_eq!(other.status, 201, "another project has no room: {other:?}");
        // Once these clients have disconnected, the server accepts the same request headers again and waits
        // for the body.
        drop(begun);
        let began = Instant::now();
        while !probe(EACH).waits {
            assert!(began.elapsed() < Duration::from_secs(10), "room of those who left is not free");
        }
        held(
            "H-03",
            &format!(
                "{taken} of {AT_ONCE} bodies taken, they cost {} MiB; a bystander waited {slowest:?}",
                grown >> 20
            ),
        );
    });
}

/// Verifies that attack H-04 fails: bodies whose headers misdescribe them are refused.
#[test]
#[ignore = "starts real sandboxes"]
fn bodies_that_lie_about_themselves_are_refused() {
    served(async || {
        let service = Service::start();
        let bearer = format!("Bearer {}", service.key);
        let before = rss_bytes(service.pid());
        let with = |headers: &[(&str, &str)], body: &[u8]| {
            let mut all = vec![("authorization", bearer.as_str())];
            all.extend(headers);
            ask(&service, "POST", "/v1/sandboxes", &all, body)
        };
        let json = ("content-type", "application/json");
        let bomb = bomb();
        for packing in ["gzip", "deflate", "br", "zstd", "identity, gzip"] {
            let answer = with(&[json, ("content-encoding", packing)], &bomb);
            answer.assert(packing, 400, "invalid_request");
        }
        for kind in
            ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/xml"]
        {
            with(&[("content-type", kind)], b"{}").assert(kind, 400, "invalid_request");
        }
        with(&[], b"{}").assert("no type", 400, "invalid_request");
        let raw = |headers: &str, body: &str| {
            let head = head("POST", "/v1/sandboxes", &[("authorization", bearer.as_str()), json]);
            send(&address(&service), format!("{head}{headers}\r\n\r\n{body}").as_bytes())
        };
        let chunked = "transfer-encoding: chunked";
        let lies = [
            ("a length that is no number", raw("content-length: 2x", "{}")),
            ("two lengths", raw("content-length: 2\r\ncontent-length: 3", "{} ")),
            ("a negative length", raw("content-length: -1", "{}")),
            ("a chunk that is no number", raw(chunked, "zz\r\n{}\r\n0\r\n\r\n")),
            ("a chunk larger than all memory", raw(chunked, "ffffffffffffffffff\r\n{}\r\n0\r\n\r\n")),
            ("a chunk without its end", raw(chunked, "2\r\n{}X0\r\n\r\n")),
            ("another coding", raw("transfer-encoding: gzip", "{}")),
            ("chunked twice", raw("transfer-encoding: chunked, gzip", "2\r\n{}\r\n0\r\n\r\n")),
        ];
        for (what, answer) in &lies {
            assert!([400, 0].contains(&answer.status), "{what}: {answer:?}");
        }
        // Data after the body is treated neither as a second request nor as a header.
        let smuggled = raw(
            &format!("{chunked}\r\ncontent-length: 4"),
            "2\r\n{}\r\n0\r\n\r\nGET /v1/keys HTTP/1.1\r\nhost: x\r\n\r\n",
        );
        assert_eq!(smuggled.body.matches("HTTP/1.1").count(), 0, "{smuggled:?}");
        let trailers: String = (0..1000).map(|number| format!("x-{number}: y\r\n")).collect();
        let trailed = raw(chunked, &format!("2\r\n{{}}\r\n0\r\n{trailers}\r\n"));
        assert!([400, 0].contains(&trailed.status), "a thousand trailers: {trailed:?}");
        assert!(rss_bytes(service.pid()).saturating_sub(before) < MEMORY_BYTES);
        // Control: the same requests succeed without deception.
        let body = small().to_string();
        let honest = raw(chunked, &format!("{:x}\r\n{body}\r\n0\r\nx-trailer: y\r\n\r\n", body.len()));
        assert_eq!(honest.status, 201, "{honest:?}");
        e2e::attack::count_control();
        assert_eq!(with(&[("content-type", "application/json; charset=utf-8")], body.as_bytes()).status, 201);
        held("H-04", &format!("{} lies, a bomb of {} bytes", lies.len(), bomb.len()));
    });
}

/// Returns a compressed body that expands to a hundred megabytes.
fn bomb() -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    for _ in 0..100 {
        packed.write_all(&vec![b' '; MIB]).unwrap();
    }
    packed.finish().unwrap()
}

/// Verifies that attack H-06 fails: a request is authenticated before any byte of its body is read.
#[test]
#[ignore = "starts real sandboxes"]
fn who_asks_is_decided_before_a_byte_of_the_body() {
    const LENGTH: &str = "content-length: 104857600\r\n";
    served(async || {
        let service = Service::start();
        let bearer = format!("Bearer {}", service.key);
        let begin = |path: &str, headers: &[(&str, &str)]| {
            let mut stream = TcpStream::connect(address(&service)).unwrap();
            let request =
                head("POST", path, headers) + "content-type: application/json\r\n" + LENGTH + "\r\n";
            stream.write_all(request.as_bytes()).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            let began = Instant::now();
            (read(&mut stream), began.elapsed())
        };
        for path in ["/v1/sandboxes", "/v1/sandboxes/some/execs", "/v1/keys"] {
            let (answer, took) = begin(path, &[]);
            answer.assert(path, 401, "unauthorized");
            assert!(took < Duration::from_secs(2), "{path}: it waited {took:?} for a body");
        }
        // Control: with a valid key, the same headers are refused because of the announced length.
        let (answer, _) = begin("/v1/sandboxes", &[("authorization", &bearer)]);
        answer.assert("too long", 413, "too_large");
        let get = |path: &str, headers: &[(&str, &str)]| ask(&service, "GET", path, headers, b"").status;
        let key = service.key.as_str();
        let upper = key.to_uppercase();
        for (what, path, headers) in [
            ("twice", "/v1/node", vec![("authorization", bearer.as_str()), ("authorization", &bearer)]),
            ("wrong and right", "/v1/node", vec![("authorization", "Bearer x"), ("authorization", &bearer)]),
            ("in both headers", "/v1/node", vec![("authorization", bearer.as_str()), ("x-api-key", key)]),
            ("in capitals", "/v1/node", vec![("x-api-key", upper.as_str())]),
            ("as a cookie", "/v1/node", vec![("cookie", bearer.as_str())]),
            ("with another scheme", "/v1/node", vec![("authorization", key)]),
        ] {
            assert_eq!(get(path, &headers), 401, "{what}");
        }
        for query in ["key", "api_key", "access_token", "authorization"] {
            assert_eq!(get(&format!("/v1/node?{query}={key}"), &[]), 401, "{query}");
        }
        // Control: the right key is accepted in each of the permitted forms.
        for (name, value) in
            [("authorization", bearer.as_str()), ("AUTHORIZATION", &bearer), ("X-Api-Key", key)]
        {
            assert_eq!(get("/v1/node", &[(name, value)]), 200, "{name}");
        }
        e2e::attack::count_control();
        assert_eq!(get("/v1/node", &[("authorization", &format!("bEARER {key}"))]), 200);
        // A request with an incomplete body has no effect.
        let live =
            || keyed(&service, key, "GET", "/v1/sandboxes?all=true", &Value::Null).json()["items"].clone();
        let mut stream = TcpStream::connect(address(&service)).unwrap();
        let request = head("POST", "/v1/sandboxes", &[("authorization", &bearer)]);
        let cut = format!("{request}content-type: application/json\r\ncontent-length: 3\r\n\r\n{{}}");
        stream.write_all(cut.as_bytes()).unwrap();
        drop(stream);
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(live(), json!([]));
        recovers(&service).await;
        held("H-06", "401 before the body, in every way to show a key twice");
    });
}
