//! Attack H-41: floods on every path, by clients without a key and by clients of one project.
//!
//! Each flood consists of 200 connections and lasts 60 s, or 2 s in CI. During a flood, the server's memory
//! may grow by 64 MiB if the clients have no key, and by 128 MiB if they have keys of one project.
//! Afterwards, it must shrink to within 16 MiB of its size before the first flood. Every request of a
//! bystander is served within a second.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::account::Role;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use e2e::lab::sized;
use e2e::service::{PLENTY, Service, served};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::e2b::{Opened, opened};
use super::flow::{Deaf, MIB, Peak};
use super::ground::{Answer, Bystander, address, head, held, keyed, recovers, rss_bytes, small};

const CONNECTIONS: usize = 200;
const STRANGERS_MAX: u64 = 64 * MIB;
const PROJECT_MAX: u64 = 128 * MIB;
/// Maximum memory growth that may remain after a flood, and timeout for the memory to shrink to that size.
const LEFT_MAX: u64 = 16 * MIB;
const SETTLES_WITHIN: Duration = Duration::from_secs(60);

/// The behaviour of each connection in a flood.
#[derive(Clone)]
enum Way {
    /// Send these bytes, then keep the connection open without reading the response.
    Held(Vec<u8>),
    /// Send these bytes, read the response, and repeat this until the flood ends.
    Again(Vec<u8>),
    /// Request this path with these headers over HTTP/2, without a flow-control window.
    Deaf(String, Vec<(String, String)>),
}

fn lasts() -> Duration {
    Duration::from_secs(sized(60, 2))
}

/// Lowers the priority of this thread and of all threads that it starts. A real attacker has its own
/// processors, so the flood must not use processor time that the server needs.
fn on_own_processors() {
    rustix::process::setpriority_process(None, 15).unwrap();
}

/// Runs one connection of a flood until the flood ends.
fn drip(address: &str, way: &Way, until: Instant) {
    on_own_processors();
    let left = || until.saturating_duration_since(Instant::now());
    let (bytes, again) = match way {
        Way::Held(bytes) => (bytes, false),
        Way::Again(bytes) => (bytes, true),
        Way::Deaf(..) => return,
    };
    while !left().is_zero() {
        let Ok(mut stream) = TcpStream::connect(address) else { continue };
        let within = Some(left().clamp(Duration::from_millis(10), Duration::from_secs(2)));
        stream.set_write_timeout(within).unwrap();
        stream.set_read_timeout(within).unwrap();
        let mut taken =
            bytes.chunks(64 << 10).take_while(|part| !left().is_zero() && stream.write_all(part).is_ok());
        let whole = taken.by_ref().count() * (64 << 10) >= bytes.len();
        if again {
            let mut rest = [0; 4096];
            while !left().is_zero() && matches!(stream.read(&mut rest), Ok(count) if count > 0) {}
        } else if whole {
            // The connection stays open until the flood ends, but nothing is read from it.
            std::thread::sleep(left());
        } else {
            std::thread::sleep(left().min(Duration::from_millis(50)));
        }
    }
}

/// Opens connections, sends as many requests on each as HTTP/2 permits, and reads no responses.
fn deaf(service: &Service, path: &str, headers: &[(&str, &str)]) -> Vec<Deaf> {
    let open = || {
        on_own_processors();
        (0..CONNECTIONS).map(|_| Deaf::open(service, 256, path, headers)).collect()
    };
    std::thread::scope(|scope| scope.spawn(open).join().unwrap())
}

/// Floods a server and returns the maximum growth of its memory.
fn flood(service: &Service, way: &Way) -> u64 {
    let peak = Peak::of(service);
    let until = Instant::now() + lasts();
    if let Way::Deaf(path, headers) = way {
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let all = deaf(service, path, &headers);
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
        drop(all);
        return peak.grown();
    }
    let (address, way) = (Arc::new(address(service)), Arc::new(way.clone()));
    let all: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let (address, way) = (Arc::clone(&address), Arc::clone(&way));
            std::thread::spawn(move || drip(&address, &way, until))
        })
        .collect();
    all.into_iter().for_each(|one| one.join().unwrap());
    peak.grown()
}

/// Floods a server in each of these ways, one after the other, and checks its memory.
async fn floods(service: &Service, most: u64, ways: Vec<(&str, Way)>) {
    recovers(service).await;
    let before = rss_bytes(service.pid());
    let mut figures = Vec::new();
    for (what, way) in &ways {
        let bystander = Bystander::of(service);
        let grown = flood(service, way);
        let slowest = bystander.was_served();
        let (over, mut after) = (Instant::now(), u64::MAX);
        while over.elapsed() < SETTLES_WITHIN && after > LEFT_MAX {
            tokio::time::sleep(Duration::from_millis(500)).await;
            after = rss_bytes(service.pid()).saturating_sub(before);
        }
        let settled = over.elapsed();
        println!(
            "flood {what}: {} MiB, {} MiB {settled:.0?} later; a bystander waited {slowest:?}",
            grown / MIB,
            after / MIB
        );
        assert!(grown <= most, "{what}: {} MiB", grown / MIB);
        assert!(after <= LEFT_MAX, "{what}: {} MiB are still held {settled:?} later", after / MIB);
        figures.push(format!("{what} {} MiB", grown / MIB));
    }
    recovers(service).await;
    println!("H-41: {}", figures.join(", "));
    let why = "H-30 to H-38 attack the same paths one by one, each with a control; here, only their sum is measured";
    e2e::attack::held_without_control("H-41", "service", why);
}

fn body(path: &str, headers: &[(&str, &str)], length: usize, sent: usize) -> Vec<u8> {
    let mut bytes = (head("POST", path, headers) + &format!("content-length: {length}\r\n\r\n")).into_bytes();
    bytes.resize(bytes.len() + sent, b' ');
    bytes
}

fn form(headers: &[(&str, &str)], path: &str) -> Vec<u8> {
    let mut all = headers.to_vec();
    all.push(("content-type", "multipart/form-data; boundary=zzz"));
    let mut bytes =
        (head("POST", path, &all) + "content-length: 1073741824\r\n\r\n--zzz\r\nX-A: ").into_bytes();
    bytes.resize(bytes.len() + 4 * MIB as usize, b'a');
    bytes
}

fn get(path: &str, headers: &[(&str, &str)]) -> Vec<u8> {
    (head("GET", path, headers) + "\r\n").into_bytes()
}

/// Verifies that attack H-41 fails: a flood by clients without a key uses little memory, and the memory is
/// released.
#[test]
#[ignore = "starts real sandboxes"]
fn a_flood_without_a_key_takes_little_memory_and_gives_it_back() {
    served(async || {
        let service = Service::start();
        let sandbox = opened(&service, &service.key);
        let json = ("content-type", "application/json");
        let wrong = ("authorization", "Bearer 0");
        let named = ("e2b-sandbox-id", sandbox.id.as_str());
        let lines = format!("x-a: {}\r\n", "a".repeat(7000)).repeat(60);
        let pipelined = "GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n".repeat(200).into_bytes();
        let mib = MIB as usize;
        let ways = vec![
            ("heads without end", Way::Held((head("GET", "/", &[]) + &lines).into_bytes())),
            ("bodies for a create", Way::Again(body("/v1/sandboxes", &[json, wrong], 16 * mib, 4 * mib))),
            ("bodies for a file", Way::Held(body("/files?path=/x", &[named], mib, mib - 1))),
            ("forms", Way::Held(form(&[named], "/files?path=/x"))),
            ("bodies for MCP", Way::Held(body("/mcp", &[json, wrong], 8 * mib, 4 * mib))),
            ("streams of input", Way::Held(body("/process.Process/StreamInput", &[named], 8 * mib, 4 * mib))),
            ("descriptions that nobody reads", Way::Held(pipelined)),
            ("descriptions", Way::Again(get("/openapi.json", &[]))),
            ("health", Way::Again(get("/healthz", &[]))),
            ("health of a sandbox", Way::Again(get("/health", &[named]))),
            ("wrong keys", Way::Again(get("/v1/sandboxes", &[wrong]))),
            ("wrong signatures", Way::Again(get("/files?path=/etc/passwd&signature=v1_a", &[]))),
            ("HTTP/2 without a window", Way::Deaf("/openapi.json".into(), Vec::new())),
            ("refusals without a window", Way::Deaf("/v1/sandboxes".into(), Vec::new())),
            (
                "wrong keys without a window",
                Way::Deaf("/v1/sandboxes".into(), vec![("authorization".into(), "Bearer 0".into())]),
            ),
        ];
        floods(&service, STRANGERS_MAX, ways).await;
    });
}

fn signed(sandbox: &Opened, path: &str, act: &str) -> String {
    let sum = STANDARD_NO_PAD.encode(Sha256::digest(format!("{path}:{act}::{}", sandbox.token)));
    format!("/files?path={path}&signature=v1_{}", sum.replace('+', "%2B").replace('/', "%2F"))
}

/// Verifies that attack H-41 fails: a flood by clients of one project uses only the project's share of
/// memory, and the memory is released.
#[test]
#[ignore = "starts real sandboxes"]
fn a_flood_of_one_project_takes_its_share_of_memory_and_gives_it_back() {
    served(async || {
        let service = Service::start();
        let key = service.key_of("pa", Role::Write, PLENTY).await;
        let bearer = format!("Bearer {key}");
        let sandbox = opened(&service, &key);
        let (json, shown) = (("content-type", "application/json"), ("authorization", bearer.as_str()));
        let token = [("e2b-sandbox-id", sandbox.id.as_str()), ("x-access-token", sandbox.token.as_str())];
        let typed = [token[0], token[1], json];
        let client = service.client_of("pa", Role::Write, PLENTY).await;
        let spec = e2e::lab::script("head -c 20000000 /dev/zero > /workspace/large");
        client.exec(&sandbox.id.parse().unwrap(), &spec).await.unwrap().collect().await.unwrap();
        let spec = json!({ "argv": ["/bin/sleep", "600"], "stdin": true });
        let path = format!("/v1/sandboxes/{}/execs", sandbox.id);
        let exec = keyed(&service, &key, "POST", &path, &spec).json()["id"].as_str().unwrap().to_owned();
        let stdin = format!("{path}/{exec}/stdin?offset=0");
        let file = format!("/v1/sandboxes/{}/files/content?path=/workspace/large", sandbox.id);
        let mib = MIB as usize;
        let elements = format!("{{\"a\":[{}1]}}", "1,".repeat(mib));
        let mut wide = body("/v1/sandboxes", &[shown, json], elements.len(), 0);
        wide.extend(elements.bytes());
        let mut tiny = (head("POST", "/v1/sandboxes", &[shown, json]) + "transfer-encoding: chunked\r\n\r\n")
            .into_bytes();
        tiny.extend(b"1\r\n \r\n".repeat(mib));
        let mut input = body(&stdin, &[shown], mib, mib);
        input.splice(..4, *b"PUT");
        let announced = [&[0][..], &u32::try_from(8 * MIB - 5).unwrap().to_be_bytes()].concat();
        let mut stream = body("/process.Process/StreamInput", &token, 8 * mib, 0);
        stream.extend(&announced);
        stream.resize(stream.len() + 7 * mib, b' ');
        let ways = vec![
            ("bodies for a create", Way::Held(body("/v1/sandboxes", &[shown, json], 15 * mib, 14 * mib))),
            ("bodies of many elements", Way::Again(wide)),
            ("bodies in single bytes", Way::Held(tiny)),
            ("bodies for MCP", Way::Held(body("/mcp", &[shown, json], 15 * mib, 14 * mib))),
            ("input that nobody reads", Way::Held(input)),
            ("streams of input", Way::Held(stream)),
            (
                "messages for a sandbox",
                Way::Held(body("/process.Process/SendInput", &typed, 8 * mib, 7 * mib)),
            ),
            ("forms", Way::Held(form(&token, "/files?path=/workspace/x"))),
            ("forms at a signed address", Way::Held(form(&[], &signed(&sandbox, "/workspace/x", "write")))),
            ("files that nobody reads", Way::Held(get(&file, &[shown]))),
            (
                "a signed file that nobody reads",
                Way::Held(get(&signed(&sandbox, "/workspace/large", "read"), &[])),
            ),
            (
                "lists without a window",
                Way::Deaf("/v1/sandboxes".into(), vec![("authorization".into(), bearer.clone())]),
            ),
        ];
        floods(&service, PROJECT_MAX, ways).await;
    });
}

/// Number of ended sandboxes in a list. With this number, reading the list takes a while even on a fast
/// machine.
const LISTED: &str = "1000";

/// Number of floods of list requests, both with the defence and without it.
const LIST_FLOODS: usize = 3;

/// Adds copies of an ended sandbox to a project's history. Each has labels of 9 KiB.
fn lengthen_history(service: &mut Service, project: &str) {
    service.kill();
    let text = "import json, sqlite3, sys\nc = sqlite3.connect(sys.argv[1], timeout=10)\n\
        names = [row[1] for row in c.execute('PRAGMA table_info(sandboxes)')]\n\
        row = c.execute('SELECT * FROM sandboxes WHERE project = ?', (sys.argv[2],)).fetchone()\n\
        for n in range(int(sys.argv[3])):\n\
        \x20copy = dict(zip(names, row)); old = copy['id']; copy['id'] = f'{old}{n:04}'\n\
        \x20body = json.loads(copy['body'].replace(old, copy['id']))\n\
        \x20body['labels'] = {f'label{l}': 'x' * 490 for l in range(18)}\n\
        \x20copy['body'] = json.dumps(body)\n\
        \x20copy['idempotency_key'] = copy['request_hash'] = None\n\
        \x20c.execute(f'INSERT INTO sandboxes VALUES ({\",\".join(\"?\" * len(names))})', [copy[name] for name in names])\n\
        c.commit()";
    let store = service.data().join("bellglass.db");
    let ran = Command::new("python3").args(["-c", text]).arg(store).args([project, LISTED]).status().unwrap();
    assert!(ran.success());
    service.begin();
}

/// Floods the server with list requests from one project, which does not read the responses. Returns the
/// refused requests of another project, and the longest response time of that project.
fn beside_lists(service: &Service, bearer: &str) -> (Vec<Answer>, Duration) {
    let path = format!("/v1/sandboxes?all=true&limit={LISTED}");
    let (mut refused, mut longest) = (Vec::new(), Duration::ZERO);
    let begun = Instant::now();
    let all = std::thread::scope(|scope| {
        let opening = scope.spawn(|| deaf(service, &path, &[("authorization", bearer)]));
        while begun.elapsed() < lasts() {
            let asked = Instant::now();
            let answer = keyed(service, &service.key, "GET", "/v1/sandboxes", &json!(null));
            longest = longest.max(asked.elapsed());
            if answer.status != 200 {
                refused.push(answer);
            }
        }
        opening.join().unwrap()
    });
    drop(all);
    (refused, longest)
}

/// Verifies that attack H-41 fails: if one project reads a lot from the store, requests of other projects are
/// not delayed.
#[test]
#[ignore = "starts real sandboxes"]
fn lists_of_one_project_leave_the_store_to_the_others() {
    served(async || {
        let mut service = Service::start();
        let key = service.key_of("pa", Role::Write, PLENTY).await;
        let bearer = format!("Bearer {key}");
        let made = keyed(&service, &key, "POST", "/v1/sandboxes", &small()).json();
        keyed(
            &service,
            &key,
            "DELETE",
            &format!("/v1/sandboxes/{}", made["id"].as_str().unwrap()),
            &json!({}),
        );
        lengthen_history(&mut service, "pa");
        let peak = Peak::of(&service);
        let held_back: Vec<_> = (0..LIST_FLOODS).map(|_| beside_lists(&service, &bearer)).collect();
        let grown = peak.grown();
        drop(peak);
        assert!(grown <= PROJECT_MAX, "unread lists take {} MiB", grown / MIB);
        assert!(held_back.iter().all(|(refused, _)| refused.is_empty()), "{held_back:?}");
        service.undefend("H-41");
        let free: Vec<_> = (0..LIST_FLOODS).map(|_| beside_lists(&service, &bearer)).collect();
        // Without the defence, a slow machine refuses requests of other projects, and a fast machine delays
        // them. Other programs on the machine can only make a wait longer. The best flood with the defence is
        // therefore compared with the worst flood without it.
        let refused = free.iter().map(|(refused, _)| refused.len()).sum::<usize>();
        let waited = held_back.iter().map(|(_, longest)| *longest).min().unwrap();
        let longer = free.iter().map(|(_, longest)| *longest).max().unwrap();
        let reached = refused > 0 || longer > waited * 3;
        assert!(reached, "control: nobody was refused or waited: {longer:?}, with turns {waited:?}");
        recovers(&service).await;
        held(
            "H-41",
            &format!("waited {waited:?}; without turns {longer:?}, {refused} refused; {} MiB", grown / MIB),
        );
    });
}
