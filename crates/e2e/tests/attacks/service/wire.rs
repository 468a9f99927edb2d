//! Attacks H-01, H-02 and H-05: connections that are slow, silent, too many, or never read.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use e2e::lab::script;
use e2e::service::{PLENTY, Service, served};
use serde_json::{Value, json};

use super::ground::{
    Bystander, Undefended, address, head, held, keyed, number, payload, port, recovers, rss_bytes, send,
};

/// Maximum time until a slow connection is closed, in seconds. It consists of the limit for headers and for a
/// body, and a tolerance for a busy machine.
const LET_GO_WITHIN: f64 = 36.0;
/// Number of connections that send nothing. It is half of the limit per address.
const IDLE: &str = "1000";
/// Maximum time until an incomplete handshake is closed. It consists of the limit and a tolerance for a busy
/// machine.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(8);
/// Maximum memory growth because of a thousand connections or a hundred streams.
const MEMORY_BYTES: u64 = 192 << 20;
/// Number of streams that are never read.
const NEVER_READ: usize = 100;
/// Maximum number of streams of one project.
const STREAMS_MAX: usize = 512;

/// Verifies that attack H-01 fails: slow and silent connections are closed, and they delay no other client.
#[test]
#[ignore = "starts real sandboxes"]
fn whoever_is_slow_or_silent_is_let_go_and_keeps_nobody_waiting() {
    served(async || {
        let control = Undefended::start("H-01");
        assert_eq!(payload("H-01", &["one", &control.port])["other"], "waits", "the control does not bite");
        let service = Service::start();
        assert_eq!(payload("H-01", &["one", &port(&service)])["other"], "answered");
        let before = rss_bytes(service.pid());
        let bystander = Bystander::of(&service);
        let half_open = std::thread::spawn(half_open_handshakes);
        let limit = (LET_GO_WITHIN + 4.0).to_string();
        let said = payload("H-01", &[&port(&service), &limit, &service.key, IDLE]);
        let slowest = bystander.was_served();
        for kind in ["silent", "head", "letters", "preface", "settings", "body", "idle"] {
            assert_eq!(number(&said, &format!("left {kind}")), 0.0, "{kind} is still there: {said:?}");
            let longest = number(&said, &format!("longest {kind}"));
            assert!(longest < LET_GO_WITHIN, "{kind} stayed {longest} s");
            // Control: the connections reached this state, and they were closed because of the limit and for
            // no other reason.
            assert!(longest > 20.0, "{kind} was never held: {longest} s");
        }
        let grown = rss_bytes(service.pid()).saturating_sub(before);
        assert!(grown < MEMORY_BYTES, "{grown} bytes");
        half_open.join().expect("half-open handshakes");
        recovers(&service).await;
        held("H-01", &format!("{} connections let go, a bystander waited {slowest:?}", said["opened"]));
    });
}

/// Creates a certificate, its key, and a configuration file that names both. Returns the path of the
/// configuration file.
pub(crate) fn certified(directory: &std::path::Path) -> std::path::PathBuf {
    let (certificate, key) = (directory.join("certificate.pem"), directory.join("key.pem"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
        .args(["-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let settings = directory.join("bellglass.toml");
    std::fs::write(&settings, format!("tls_certificate = {certificate:?}\ntls_key = {key:?}\n")).unwrap();
    settings
}

/// Verifies that attack H-01 fails: incomplete TLS handshakes are closed after a limit.
fn half_open_handshakes() {
    let keys = tempfile::tempdir().unwrap();
    let settings = certified(keys.path());
    let certificate = keys.path().join("certificate.pem");
    let data = tempfile::Builder::new().prefix("bellglass-tls").tempdir().unwrap();
    let mut server = Encrypted::start(data.path(), &settings);
    let hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    let mut half: Vec<TcpStream> = (0..50)
        .map(|number| {
            let mut stream = TcpStream::connect(&server.address).unwrap();
            stream.write_all(&hello[..number % (hello.len() + 1)]).unwrap();
            stream.set_read_timeout(Some(HANDSHAKE_WITHIN)).unwrap();
            stream
        })
        .collect();
    let began = Instant::now();
    // Control: meanwhile, a client that completes its handshake is served.
    let curl = Command::new("curl")
        .args(["-sS", "--max-time", "5", "--cacert"])
        .arg(&certificate)
        .arg(format!("https://{}/openapi.json", server.address))
        .output()
        .unwrap();
    assert!(curl.status.success() && began.elapsed() < Duration::from_secs(2), "{curl:?}");
    for stream in &mut half {
        let mut rest = [0; 64];
        // The server may send an alert first.
        while stream.read(&mut rest).expect("a half-open handshake is still there") > 0 {}
    }
    assert!(began.elapsed() < HANDSHAKE_WITHIN, "{:?}", began.elapsed());
    let plain = send(&server.address, (head("GET", "/openapi.json", &[]) + "\r\n").as_bytes());
    assert_eq!(plain.status, 0, "plain HTTP was answered on the port of HTTPS: {plain:?}");
    server.child.kill().unwrap();
    server.child.wait().unwrap();
}

struct Encrypted {
    child: std::process::Child,
    address: String,
}

impl Encrypted {
    fn start(data: &std::path::Path, settings: &std::path::Path) -> Self {
        use std::io::BufRead as _;
        let mut command = Command::new(e2e::service::binary());
        command.arg("--data").arg(data).args(["serve", "--listen", "127.0.0.1:0", "--config"]).arg(settings);
        command.arg("--first-key").arg(data.join("first.key")).env_remove("BELLGLASS_SERVER");
        let mut child =
            command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null()).spawn().unwrap();
        let mut lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.next().expect("it starts").unwrap();
        let address = line.split_once("https://").expect("HTTPS").1.trim().to_owned();
        Self { child, address }
    }
}

/// Verifies that attack H-02 fails: HTTP/2 frames cannot make the server work endlessly.
#[test]
#[ignore = "starts real sandboxes"]
fn frames_of_http_2_cannot_make_the_server_work_without_end() {
    served(async || {
        let service = Service::start();
        let before = rss_bytes(service.pid());
        let attack = |way: &str, count: &str| payload("H-02", &[&port(&service), way, count]);
        // Control: the frames are valid, and a request sent among them gets a response.
        let honest = attack("honest", "1");
        assert_eq!((number(&honest, "answers"), number(&honest, "closed")), (1.0, 0.0), "{honest:?}");
        e2e::attack::count_control();
        let few = attack("streams", "100");
        assert_eq!((number(&few, "sent"), number(&few, "closed")), (100.0, 0.0), "{few:?}");
        let bystander = Bystander::of(&service);
        let mut figures = Vec::new();
        for (way, count) in [
            ("reset", "10000"),
            ("continuation", "10000"),
            ("streams", "10000"),
            ("ping", "50000"),
            ("settings", "50000"),
            ("window", "3"),
        ] {
            let said = attack(way, count);
            let refused = number(&said, "closed") + number(&said, "went away") + number(&said, "resets");
            if !["ping", "settings"].contains(&way) {
                assert!(refused > 0.0, "{way}: {said:?}");
            }
            assert!(number(&said, "seconds") < 20.0, "{way}: {said:?}");
            figures.push(format!("{way} after {}", said["sent"]));
        }
        let slowest = bystander.was_served();
        let grown = rss_bytes(service.pid()).saturating_sub(before);
        assert!(grown < MEMORY_BYTES, "{grown} bytes");
        recovers(&service).await;
        held("H-02", &format!("{}; a bystander waited {slowest:?}", figures.join(", ")));
    });
}

/// Verifies that attack H-05 fails: readers that never read cost little, and they are counted.
#[test]
#[ignore = "starts real sandboxes"]
fn readers_that_never_read_cost_little_and_are_counted() {
    served(async || {
        let service = Service::start();
        let client = service.client();
        let sandbox = client.create(&e2e::service::small()).await.unwrap().id;
        let spec = api::exec::ExecSpec {
            output: api::exec::OutputMode::Block,
            output_bytes: Some(4 << 20),
            ..script("yes 0123456789abcdef | head -c 64000000")
        };
        let path = format!("/v1/sandboxes/{sandbox}/execs");
        let exec = keyed(&service, &service.key, "POST", &path, &json!(spec)).json()["id"].clone();
        let exec = exec.as_str().unwrap().to_owned();
        let before = rss_bytes(service.pid());
        let output = format!("{path}/{exec}/output");
        let bystander = Bystander::of(&service);
        let mut deaf: Vec<TcpStream> =
            (0..NEVER_READ).map(|_| open(&service, &service.key, &output)).collect();
        tokio::time::sleep(Duration::from_secs(3)).await;
        let grown = rss_bytes(service.pid()).saturating_sub(before);
        assert!(grown < 2 * MEMORY_BYTES, "{NEVER_READ} deaf readers cost {grown} bytes");
        // The open streams of this project do not affect another project.
        let other = service.key_of("other", api::account::Role::Write, PLENTY).await;
        deaf.extend((NEVER_READ..STREAMS_MAX).map(|_| open(&service, &service.key, "/v1/events")));
        tokio::time::sleep(Duration::from_millis(500)).await;
        let over = keyed(&service, &service.key, "GET", &output, &Value::Null);
        over.assert("one stream more", 429, "rate_limited");
        assert!(over.header("retry-after").is_some());
        let mut theirs = open(&service, &other, "/v1/events");
        let mut status = [0; 12];
        theirs.read_exact(&mut status).unwrap();
        assert_eq!(&status, b"HTTP/1.1 200");
        let slowest = bystander.was_served();
        drop(deaf);
        // Control: a normal reader gets all of the output, and the slots of closed streams become free again.
        let again =
            async || keyed(&service, &service.key, "GET", &format!("{output}?follow=false"), &Value::Null);
        let began = Instant::now();
        while again().await.status != 200 {
            assert!(began.elapsed() < Duration::from_secs(10), "places of those who left are not free");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        e2e::attack::count_control();
        let all = client.exec(&sandbox, &spec).await.unwrap().collect().await.unwrap();
        assert_eq!(all.end.stdout_bytes, 64_000_000);
        held(
            "H-05",
            &format!("{NEVER_READ} deaf readers cost {} MiB; a bystander waited {slowest:?}", grown >> 20),
        );
    });
}

/// Opens a stream and does not read from it.
pub(crate) fn open(service: &Service, key: &str, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address(service)).unwrap();
    let bearer = format!("Bearer {key}");
    let request = head("GET", path, &[("authorization", &bearer)]) + "\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    stream
}
