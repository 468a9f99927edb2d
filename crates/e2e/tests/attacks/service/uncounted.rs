//! Attacks H-30 to H-35 and H-38: data that clients send, and data that is retained for clients, must be
//! counted before it uses memory.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use api::account::Role;
use e2e::service::{PLENTY, Service, served};
use serde_json::{Value, json};

use super::e2b::{AgentRequest, inside, opened};
use super::flow::{MIB, Peak, begin};
use super::ground::{Bystander, ask, head, held, keyed, read, recovers};

/// Maximum memory growth of a server with its defence: first for clients without a key, then for clients of
/// one project.
const STRANGERS_MAX: u64 = 64 * MIB;
const PROJECT_MAX: u64 = 128 * MIB;
/// Minimum amount by which a control must exceed this maximum.
const UNDEFENDED: u64 = 32 * MIB;

/// Waits until the server has received the data that was sent.
async fn arrived() {
    tokio::time::sleep(Duration::from_millis(700)).await;
}

/// Runs the same attack on a server with its defence and on a server without it. Returns the memory growth of
/// both servers.
async fn both(service: &mut Service, id: &str, most: u64, attack: impl AsyncFn(&Service)) -> (u64, u64) {
    let bystander = Bystander::of(service);
    let peak = Peak::of(service);
    attack(service).await;
    let with = peak.grown();
    drop(peak);
    let slowest = bystander.was_served();
    assert!(with <= most, "{id}: {} MiB", with / MIB);
    service.undefend(id);
    let peak = Peak::of(service);
    attack(service).await;
    let without = peak.grown();
    drop(peak);
    assert!(without > most + UNDEFENDED, "the control of {id} took {} MiB only", without / MIB);
    recovers(service).await;
    let (with_mib, without_mib) = (with / MIB, without / MIB);
    held(id, &format!("{with_mib} MiB, without the defence {without_mib}; a bystander waited {slowest:?}"));
    (with, without)
}

/// Verifies that attack H-30 fails: a form whose headers never end is refused.
#[test]
#[ignore = "starts real sandboxes"]
fn a_form_whose_headers_never_end_is_refused() {
    served(async || {
        let mut service = Service::start();
        let sandbox = opened(&service, &service.key);
        let head = head(
            "POST",
            "/files?path=/workspace/x",
            &[
                ("e2b-sandbox-id", &sandbox.id),
                ("x-access-token", &sandbox.token),
                ("content-type", "multipart/form-data; boundary=zzz"),
                ("content-length", "1073741824"),
            ],
        ) + "\r\n";
        let part = "--zzz\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\nX-A: ";
        let endless = vec![b'a'; 250 * MIB as usize];
        both(&mut service, "H-30", STRANGERS_MAX, async |service| {
            drop(begin(service, &[head.as_bytes(), part.as_bytes(), &endless]));
        })
        .await;
        // A valid form is accepted, and its file is written.
        let form = format!(
            "--zzz\r\nContent-Disposition: form-data; name=\"other\"\r\n\r\n{}\r\n\
             --zzz\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n{}\r\n--zzz--\r\n",
            "n".repeat(300_000),
            "y".repeat(3_000_000)
        );
        let headers = [
            ("e2b-sandbox-id", sandbox.id.as_str()),
            ("x-access-token", &sandbox.token),
            ("content-type", "multipart/form-data; boundary=zzz"),
        ];
        let written = ask(&service, "POST", "/files?path=/workspace/whole", &headers, form.as_bytes());
        assert_eq!(written.status, 200, "{written:?}");
        let token = [("x-access-token", sandbox.token.as_str())];
        let back = inside(&service, &sandbox.id, &token, AgentRequest::get("/files?path=/workspace/whole"));
        assert_eq!(back.body.len(), 3_000_000);
    });
}

/// Verifies that attack H-31 fails: the bodies of refused requests are not buffered.
#[test]
#[ignore = "starts real sandboxes"]
fn refused_bodies_are_not_kept() {
    served(async || {
        let mut service = Service::start();
        let head =
            head("POST", "/files?path=/x", &[("e2b-sandbox-id", "none"), ("content-length", "1048576")]);
        let (head, body) = (head + "\r\n", vec![b'x'; MIB as usize - 1]);
        both(&mut service, "H-31", STRANGERS_MAX, async |service| {
            let all: Vec<_> = (0..250).map(|_| begin(service, &[head.as_bytes(), &body])).collect();
            arrived().await;
            drop(all);
        })
        .await;
    });
}

/// Verifies that attack H-32 fails: requests whose headers never end use little memory.
#[test]
#[ignore = "starts real sandboxes"]
fn heads_that_never_end_are_small() {
    served(async || {
        let mut service = Service::start();
        let lines = format!("x-a: {}\r\n", "a".repeat(7990)).repeat(50);
        let head = head("GET", "/v1/sandboxes", &[]) + &lines[..395_000];
        both(&mut service, "H-32", STRANGERS_MAX, async |service| {
            let all: Vec<_> = (0..500).map(|_| begin(service, &[head.as_bytes()])).collect();
            arrived().await;
            drop(all);
        })
        .await;
    });
}

/// Verifies that attack H-33 fails: the size of messages on a session's event socket is limited.
#[test]
#[ignore = "starts real sandboxes"]
fn listeners_to_a_session_have_little_to_say() {
    served(async || {
        let mut service = Service::start();
        let key = service.key_of("pa", Role::Write, PLENTY).await;
        let reader = service.key_of("pa", Role::Read, PLENTY).await;
        let made =
            keyed(&service, &key, "POST", "/v1/sessions", &json!({ "set": "python", "template": "base" }))
                .json();
        let path = format!("/v1/sessions/{}/events", made["id"].as_str().unwrap());
        let upgrade = format!(
            "GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {reader}\r\nconnection: upgrade\r\n\
             upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        // A message without a final frame. Its frames have a length field of eight bytes and a mask of zeros.
        let frame = |code: u8| {
            let mut bytes = vec![code, 0xff];
            bytes.extend(MIB.to_be_bytes());
            bytes.extend([0; 4]);
            bytes.resize(bytes.len() + MIB as usize, b'x');
            bytes
        };
        let (first, more) = (frame(2), frame(0));
        both(&mut service, "H-33", STRANGERS_MAX, async |service| {
            let all: Vec<_> = (0..8)
                .map(|_| {
                    let (mut stream, _) = begin(service, &[upgrade.as_bytes()]);
                    let mut status = [0; 12];
                    stream.read_exact(&mut status).unwrap();
                    assert_eq!(&status, b"HTTP/1.1 101");
                    let _ = stream.write_all(&first);
                    (0..40).take_while(|_| stream.write_all(&more).is_ok()).count();
                    stream
                })
                .collect();
            arrived().await;
            drop(all);
        })
        .await;
    });
}

/// Sends a request without its last bytes.
fn unfinished(service: &Service, path: &str, headers: &[(&str, &str)], length: usize) -> (TcpStream, usize) {
    let head = head("POST", path, headers) + &format!("content-length: {length}\r\n\r\n");
    begin(service, &[head.as_bytes(), &vec![b' '; length - 10]])
}

/// Verifies that attack H-34 fails: the bodies of MCP requests are counted.
#[test]
#[ignore = "starts real sandboxes"]
fn messages_of_mcp_are_counted() {
    served(async || {
        let mut service = Service::start();
        let key = service.key_of("pa", Role::Write, PLENTY).await;
        let bearer = format!("Bearer {key}");
        let headers = [
            ("authorization", bearer.as_str()),
            ("content-type", "application/json"),
            ("accept", "application/json, text/event-stream"),
        ];
        both(&mut service, "H-34", PROJECT_MAX, async |service| {
            let mut all: Vec<_> =
                (0..60).map(|_| unfinished(service, "/mcp", &headers, 15 * MIB as usize / 2)).collect();
            arrived().await;
            if api_is_defended(service) {
                let refused = read(&mut all.last_mut().unwrap().0);
                refused.assert("one more", 429, "rate_limited");
            }
            drop(all);
        })
        .await;
        // A complete message gets a response.
        let hello = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "a", "version": "1" } } });
        let answer = ask(&service, "POST", "/mcp", &headers, hello.to_string().as_bytes());
        assert_eq!(answer.status, 200, "{answer:?}");
    });
}

/// Returns true if the server has its defence, which is the case until `undefend` is called.
fn api_is_defended(service: &Service) -> bool {
    let environment = std::fs::read(format!("/proc/{}/environ", service.pid())).unwrap();
    !String::from_utf8_lossy(&environment).contains(api::defence::VARIABLE)
}

/// Verifies that attack H-35 fails: input is counted until it is consumed.
#[test]
#[ignore = "starts real sandboxes"]
fn input_is_counted_until_it_is_used() {
    served(async || {
        let mut service = Service::start();
        let sandbox = opened(&service, &service.key);
        let (id, token) = (sandbox.id.as_str(), sandbox.token.as_str());
        let stream =
            [("e2b-sandbox-id", id), ("x-access-token", token), ("content-type", "application/connect+json")];
        let announced = u32::try_from(8 * MIB - 5).unwrap().to_be_bytes();
        let envelope = [&[0][..], &announced, &vec![b' '; 8 * MIB as usize - 100]].concat();
        let stopped =
            head("POST", "/process.Process/StreamInput", &stream) + "transfer-encoding: chunked\r\n\r\n";
        let size = format!("{:x}\r\n", envelope.len());
        both(&mut service, "H-35", PROJECT_MAX, async |service| {
            let all: Vec<_> = (0..60)
                .map(|_| begin(service, &[stopped.as_bytes(), size.as_bytes(), &envelope, b"\r\n"]))
                .collect();
            arrived().await;
            drop(all);
        })
        .await;
    });
}

/// Verifies that attack H-35 fails: input for a process that does not read it remains counted.
#[test]
#[ignore = "starts real sandboxes"]
fn input_that_nobody_reads_keeps_its_room() {
    served(async || {
        let mut service = Service::start();
        let sandbox = opened(&service, &service.key);
        let (id, token) = (sandbox.id.clone(), sandbox.token.clone());
        let piece =
            json!({ "process": { "tag": "deaf" }, "input": { "stdin": "A".repeat(8 * MIB as usize - 512) } });
        let body = piece.to_string();
        both(&mut service, "H-35", PROJECT_MAX, async |service| {
            // The process keeps running, although the client that started the exec does not read the
            // response.
            let start =
                json!({ "process": { "cmd": "/bin/sleep", "args": ["60"] }, "tag": "deaf" }).to_string();
            let envelope =
                [&[0][..], &u32::try_from(start.len()).unwrap().to_be_bytes(), start.as_bytes()].concat();
            let headers = [
                ("e2b-sandbox-id", id.as_str()),
                ("x-access-token", &token),
                ("content-type", "application/connect+json"),
            ];
            let request = head("POST", "/process.Process/Start", &headers)
                + &format!("content-length: {}\r\n\r\n", envelope.len());
            let (mut started, _) = begin(service, &[request.as_bytes(), &envelope]);
            let mut status = [0; 12];
            started.read_exact(&mut status).unwrap();
            assert_eq!(&status, b"HTTP/1.1 200");
            let headers = [
                ("e2b-sandbox-id", id.as_str()),
                ("x-access-token", &token),
                ("content-type", "application/json"),
            ];
            let request = head("POST", "/process.Process/SendInput", &headers)
                + &format!("content-length: {}\r\n\r\n", body.len());
            let all: Vec<_> =
                (0..60).map(|_| begin(service, &[request.as_bytes(), body.as_bytes()])).collect();
            arrived().await;
            drop(all);
        })
        .await;
    });
}

/// Verifies that attack H-38 fails: the number of event bytes that the server retains for a watcher is
/// limited.
#[test]
#[ignore = "starts real sandboxes"]
fn watchers_keep_as_many_bytes_as_they_may() {
    const FILES: &str = "import os\np='/workspace/w'\nos.makedirs(p,exist_ok=True)\nfor i in range(13):\n p+='/'+'d'*250\n os.mkdir(p)\n\
        import time\ntime.sleep(1)\nos.chdir(p)\nfor i in range(3000):\n n='f'*200+str(i)\n open(n,'w').close()\n os.unlink(n)\n";
    served(async || {
        let mut service = Service::start();
        let told = async |service: &Service| {
            let sandbox = opened(service, &service.key);
            let token = [("x-access-token", sandbox.token.as_str())];
            let call = |path: &str, body: Value| {
                inside(service, &sandbox.id, &token, AgentRequest::post(path, &body.to_string()))
            };
            assert_eq!(call("/filesystem.Filesystem/MakeDir", json!({ "path": "/workspace/w" })).status, 200);
            let watcher = json!({ "path": "/workspace/w", "recursive": true });
            let made = call("/filesystem.Filesystem/CreateWatcher", watcher).json();
            let client = service.client();
            let spec = e2e::lab::exec(&["/usr/bin/python3", "-c", FILES]);
            let ran =
                client.exec(&sandbox.id.parse().unwrap(), &spec).await.unwrap().collect().await.unwrap();
            assert!(ran.stderr.is_empty(), "{:?}", String::from_utf8_lossy(&ran.stderr));
            tokio::time::sleep(Duration::from_secs(2)).await;
            let kept = call("/filesystem.Filesystem/GetWatcherEvents", made).body;
            let events: Value = serde_json::from_str(&kept).unwrap();
            (kept.len() as u64, events["events"].as_array().unwrap().len())
        };
        let (bytes, events) = told(&service).await;
        assert!(bytes <= MIB && events > 0, "{events} events of {bytes} bytes");
        service.undefend("H-38");
        let (without, _) = told(&service).await;
        assert!(without > 4 * MIB, "control: {without} bytes");
        held(
            "H-38",
            &format!(
                "{events} events of {} KiB are kept, without the defence {} KiB",
                bytes >> 10,
                without >> 10
            ),
        );
    });
}
