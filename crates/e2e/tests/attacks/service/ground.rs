//! Setup shared by all attacks on the service: raw requests, payloads, the server's memory and a bystander.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use api::exec::ExecSpec;
use api::sandbox::Tier;
use e2e::attack;
use e2e::service::Service;
use serde_json::{Value, json};

/// Timeout for a response. The slowest response is to a create request that waits behind many others.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// Maximum response time for a client that takes no part in the attack.
const OTHERS_WITHIN: Duration = Duration::from_secs(1);
/// Maximum duration of a payload.
const PAYLOAD_SECONDS: &str = "120";

/// A response to a request. Status 0 means that the connection ended without a response.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// True if reading timed out while the connection was still open.
    pub(crate) waits: bool,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    /// Returns the value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(is, _)| is.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Returns the body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns the status and the code of an error.
    pub(crate) fn refusal(&self) -> (u16, String) {
        let body: Value = serde_json::from_str(&self.body).unwrap_or_default();
        (self.status, body["code"].as_str().unwrap_or_default().to_owned())
    }

    /// Asserts a refusal with this status and this error code.
    pub(crate) fn assert(&self, what: &str, status: u16, code: &str) {
        assert_eq!(self.refusal(), (status, code.to_owned()), "{what}: {self:?}");
    }
}

/// Returns the address of a server without the URL scheme.
pub(crate) fn address(service: &Service) -> String {
    service.url().split_once("://").unwrap().1.to_owned()
}

/// Returns the port of a server as text.
pub(crate) fn port(service: &Service) -> String {
    address(service).rsplit_once(':').unwrap().1.to_owned()
}

/// Sends these bytes and reads until the server closes the connection.
pub(crate) fn send(address: &str, bytes: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(ANSWER_WITHIN)).unwrap();
    stream.set_write_timeout(Some(ANSWER_WITHIN)).unwrap();
    // If the server refuses the request early, it does not read the rest.
    let _ = stream.write_all(bytes);
    let answer = read(&mut stream);
    assert!(!answer.waits, "no answer within {ANSWER_WITHIN:?}: {answer:?}");
    answer
}

/// Reads a response until the server closes the connection or the read times out.
pub(crate) fn read(stream: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    let mut piece = [0; 16384];
    let waits = loop {
        match stream.read(&mut piece) {
            Ok(0) => break false,
            Ok(count) => bytes.extend_from_slice(&piece[..count]),
            // If the server does not read the rest of a request, it resets the connection after its response.
            Err(error) => break matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        }
    };
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or_default();
    Answer { status, waits, head: head.to_owned(), body: body.to_owned() }
}

/// Returns the request line and the headers of a request, without the final empty line.
pub(crate) fn head(method: &str, path: &str, headers: &[(&str, &str)]) -> String {
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: bellglass\r\nconnection: close\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text
}

/// Sends a request with these headers and this body, and returns the response.
pub(crate) fn ask(
    service: &Service,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Answer {
    let mut bytes = head(method, path, headers).into_bytes();
    if !body.is_empty() {
        bytes.extend(format!("content-length: {}\r\n", body.len()).bytes());
    }
    bytes.extend(b"\r\n");
    bytes.extend(body);
    send(&address(service), &bytes)
}

/// Sends a request with a key and a JSON body. If the body is null, the request has no body.
pub(crate) fn keyed(service: &Service, key: &str, method: &str, path: &str, body: &Value) -> Answer {
    let bearer = format!("Bearer {key}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let body = if body.is_null() { String::new() } else { body.to_string() };
    ask(service, method, path, &headers, body.as_bytes())
}

/// Returns the body of a create request for a small sandbox.
pub(crate) fn small() -> Value {
    json!(e2e::service::small())
}

/// Returns the body of a request for an exec that ends immediately.
pub(crate) fn quick() -> Value {
    json!({ "argv": ["/bin/true"] })
}

/// Returns the resident memory of a process in bytes.
pub(crate) fn rss_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Returns the processor time that a process has used.
pub(crate) fn cpu_of(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The fields after the name in parentheses begin with the state, which is field 3. User and system time
    // are fields 14 and 15, in hundredths of a second.
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_millis(10 * ticks)
}

/// Returns the number of threads of a process.
pub(crate) fn threads_of(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().count()
}

/// Returns the tiers that are under test.
pub(crate) fn tiers() -> Vec<Tier> {
    e2e::service::tiers().collect()
}

/// Returns the spec of an exec that runs an attack's payload.
pub(crate) fn inside(id: &str, arguments: &[&str]) -> ExecSpec {
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap();
    let text = format!("{}\n{}", read(attack::shared("probe.py")), read(attack::file(id, "attack.py")));
    let words = [&["/usr/bin/python3", "-c", &text], arguments].concat();
    e2e::lab::exec(&words)
}

/// A second client, which sends requests throughout an attack. It records the slowest response time and the
/// number of responses.
pub(crate) struct Bystander {
    stop: std::sync::mpsc::Sender<()>,
    thread: std::thread::JoinHandle<(Duration, u32)>,
}

impl Bystander {
    pub(crate) fn of(service: &Service) -> Self {
        let (address, key) = (address(service), service.key.clone());
        let (stop, stopped) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let bearer = format!("Bearer {key}");
            let request = head("GET", "/v1/sandboxes?limit=1", &[("authorization", &bearer)]) + "\r\n";
            let (mut slowest, mut count) = (Duration::ZERO, 0);
            loop {
                let (began, before) = (Instant::now(), stolen());
                let answer = send(&address, request.as_bytes());
                assert_eq!(answer.status, 200, "a bystander: {answer:?}");
                slowest = slowest.max(began.elapsed().saturating_sub(stolen_since(before)));
                count += 1;
                if stopped.recv_timeout(Duration::from_millis(50))
                    != Err(std::sync::mpsc::RecvTimeoutError::Timeout)
                {
                    return (slowest, count);
                }
            }
        });
        Self { stop, thread }
    }

    /// Stops the bystander, asserts that every response was in time, and returns the slowest response time.
    pub(crate) fn was_served(self) -> Duration {
        drop(self.stop);
        let (slowest, count) = self.thread.join().expect("a bystander was not served");
        assert!(slowest < OTHERS_WITHIN, "a bystander waited {slowest:?} once in {count}");
        slowest
    }
}

/// Returns the time by which other virtual machines on the same host delayed one response. The kernel reports
/// the time that was stolen from all processors together, and a response waits for one processor at a time.
/// At most [`OTHERS_WITHIN`] counts as stolen, so that a slow response fails on every machine.
fn stolen_since(before: Duration) -> Duration {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let each = (stolen() - before) / u32::try_from(processors).unwrap();
    each.min(OTHERS_WITHIN)
}

/// Returns the processor time that other virtual machines on the same host have taken from all processors of
/// this machine since it booted.
fn stolen() -> Duration {
    const TICK_MS: u64 = 10;
    let stat = std::fs::read_to_string("/proc/stat").unwrap();
    let all = stat.lines().next().unwrap();
    // The line contains `cpu`, followed by user, nice, system, idle, iowait, irq, softirq and steal.
    let steal: u64 = all.split_whitespace().nth(8).map_or(0, |word| word.parse().unwrap());
    Duration::from_millis(steal * TICK_MS)
}

/// Runs an attack's program and parses its output, which consists of `thing: result` lines.
pub(crate) fn payload(id: &str, arguments: &[&str]) -> BTreeMap<String, String> {
    let mut command = Command::new("timeout");
    command.args([PAYLOAD_SECONDS, "python3"]).arg(attack::file(id, "attack.py")).args(arguments);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{id} {arguments:?}: {text}{said}");
    let pairs = text.lines().filter_map(|line| line.split_once(": "));
    pairs.map(|(thing, result)| (thing.to_owned(), result.to_owned())).collect()
}

/// Returns one result of a payload as a number.
pub(crate) fn number(said: &BTreeMap<String, String>, thing: &str) -> f64 {
    said.get(thing).and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{thing}: {said:?}"))
}

/// A server without the defence, which serves as a control. It is stopped when this value is dropped.
pub(crate) struct Undefended {
    child: Child,
    pub(crate) port: String,
}

impl Undefended {
    pub(crate) fn start(id: &str) -> Self {
        let mut command = Command::new("timeout");
        command.args([PAYLOAD_SECONDS, "python3"]).arg(attack::file(id, "control.py"));
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut port = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut port).unwrap();
        attack::count_control();
        Self { child, port: port.trim().to_owned() }
    }
}

impl Drop for Undefended {
    fn drop(&mut self) {
        // `timeout` forwards the signal to the server.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

/// Asserts that the server still works, by running an exec in a new sandbox.
pub(crate) async fn recovers(service: &Service) {
    let client = service.client();
    let sandbox = client.create(&e2e::service::small()).await.unwrap();
    let exec = client.exec(&sandbox.id, &e2e::lab::script("echo alive")).await.unwrap();
    assert_eq!(exec.collect().await.unwrap().stdout, b"alive\n");
    client.stop(&sandbox.id).await.unwrap();
}

/// Prints that the service withstood an attack. Panics if no control has run.
pub(crate) fn held(id: &str, figures: &str) {
    attack::held(id, "service", figures);
}

/// Address of clients on this machine, as the server logs it.
pub(crate) const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
