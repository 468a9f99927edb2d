//! Tests the package gate with a fake upstream and with the requests of a simulated program in a sandbox.

#![cfg(test)]

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::policy::Policy;
use egress::gate::upstream::Upstreams;
use egress::{Broker, BrokerReport, Gate, Party};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::watch;

/// The SHA-256 of `good`.
const GOOD: &str = "770e607624d689265ca6c44884d0807d9b054d23c473c106c72be9de08b7376c";
/// Larger than all buffers between the upstream and the program.
const LARGE: usize = 4 << 20;

/// A broker with a gate in front of a fake index, and one sandbox.
struct Place {
    broker: Arc<Broker>,
    party: Arc<Party>,
    policy: watch::Sender<Policy>,
    told: Arc<Mutex<Vec<BrokerReport>>>,
    asked: Arc<AtomicU32>,
    directory: std::path::PathBuf,
}

impl Place {
    fn new(name: &str, words: &[&str]) -> Self {
        let asked = Arc::<AtomicU32>::default();
        let address = upstream(Arc::clone(&asked));
        let directory = std::env::temp_dir().join(format!("bellglass-gate-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        // The password is part of the machine's configuration and must not be revealed.
        let python = format!("http://user:hidden@{address}/simple");
        let gate = Gate::new(&directory, Upstreams { python, ..Upstreams::default() }, 0);
        let (policy, seen) = watch::channel(Policy::of_words(words).unwrap());
        let told = Arc::<Mutex<Vec<BrokerReport>>>::default();
        let heard = Arc::clone(&told);
        let party = Arc::new(Party::new(seen, Box::new(move |one| heard.lock().unwrap().push(one))));
        Self { broker: Arc::new(Broker::new(gate)), party, policy, told, asked, directory }
    }

    /// Sends a request as a program in the sandbox. Returns the status and the body.
    async fn get(&self, path: &str) -> (u16, Vec<u8>) {
        let (mut near, far) = tokio::io::duplex(64 << 10);
        tokio::spawn(Arc::clone(&self.broker).serve(far, Arc::clone(&self.party)));
        let request =
            format!("GET http://packages.bellglass{path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        near.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(Duration::from_secs(20), near.read_to_end(&mut answer)).await.unwrap();
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").map_or(answer.len(), |at| at + 4);
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        let status = head.get(9..12).and_then(|text| text.parse().ok()).unwrap_or(0);
        (status, answer.split_off(end))
    }

    /// Returns the packages that the sandbox received: the file name of each, and true if it came from the
    /// cache.
    fn installed(&self) -> Vec<(String, bool)> {
        let told = self.told.lock().unwrap();
        told.iter()
            .filter_map(|one| match one {
                BrokerReport::Installed(one) => Some((one.file.clone(), one.cached)),
                BrokerReport::Decided(_) => None,
            })
            .collect()
    }

    fn kept(&self) -> usize {
        std::fs::read_dir(self.directory.join("files")).map_or(0, Iterator::count)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Starts a fake index with one package. Its files are `good`, which matches its hash, `bad` and `large`,
/// which do not, and `new`, which was published too recently.
fn upstream(asked: Arc<AtomicU32>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let large = LARGE;
    let index = format!(
        "<a href=\"/files/good-1.tar.gz#sha256={GOOD}\" data-upload-time=\"2020-01-01T00:00:00Z\">good-1.tar.gz</a>\
         <a href=\"/files/bad-1.tar.gz#sha256={GOOD}\" data-upload-time=\"2020-01-01T00:00:00Z\">bad-1.tar.gz</a>\
         <a href=\"/files/large-1.tar.gz#sha256={GOOD}\" data-upload-time=\"2020-01-01T00:00:00Z\">large-1.tar.gz</a>\
         <a href=\"/files/new-1.tar.gz#sha256={GOOD}\" data-upload-time=\"2999-01-01T00:00:00Z\">new-1.tar.gz</a>"
    );
    std::thread::spawn(move || {
        let pages = HashMap::from([
            ("/simple/demo/".to_owned(), index.into_bytes()),
            ("/files/good-1.tar.gz".to_owned(), b"good".to_vec()),
            ("/files/bad-1.tar.gz".to_owned(), b"evil".to_vec()),
            ("/files/new-1.tar.gz".to_owned(), b"good".to_vec()),
            ("/files/large-1.tar.gz".to_owned(), vec![b'x'; large]),
        ]);
        for stream in listener.incoming() {
            let (mut stream, mut head) = (stream.unwrap(), Vec::new());
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) == 1 {
                head.push(byte[0]);
            }
            let head = String::from_utf8_lossy(&head).into_owned();
            let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
            asked.fetch_add(u32::from(path.starts_with("/files/")), Ordering::Relaxed);
            assert!(head.contains("authorization: Basic "), "{head}");
            let (status, body) =
                pages.get(&path).map_or(("404 Not Found", &b""[..]), |body| ("200 OK", body));
            let _ = write!(
                stream,
                "HTTP/1.1 {status}\r\ncontent-type: text/html\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all(body);
        }
    });
    address
}

#[tokio::test]
async fn what_was_fetched_for_one_is_given_to_the_next_and_both_are_told() {
    let place = Place::new("twice", &["python-packages"]);
    let (status, page) = place.get("/python/simple/demo/").await;
    let page = String::from_utf8(page).unwrap();
    assert_eq!(status, 200);
    assert!(page.contains("../../files/demo/good-1.tar.gz#sha256=") && !page.contains("hidden"), "{page}");
    for _ in 0..3 {
        assert_eq!(place.get("/python/files/demo/good-1.tar.gz").await, (200, b"good".to_vec()));
        // The file is stored only after its last byte has been sent.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(place.asked.load(Ordering::Relaxed), 1);
    let file = |cached| ("good-1.tar.gz".to_owned(), cached);
    assert_eq!(place.installed(), [file(false), file(true), file(true)]);
}

#[tokio::test]
async fn what_is_not_what_its_index_says_is_cut_off_and_not_kept() {
    let place = Place::new("hash", &["python-packages"]);
    let (_, came) = place.get("/python/files/demo/bad-1.tar.gz").await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!((place.kept(), place.installed()), (0, Vec::new()));
    assert_ne!(came, b"evil", "the last of it is held back");
    // A cached file that was modified is not served again.
    assert_eq!(place.get("/python/files/demo/good-1.tar.gz").await.0, 200);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let kept = std::fs::read_dir(place.directory.join("files")).unwrap().next().unwrap().unwrap().path();
    std::fs::write(kept, "evil").unwrap();
    place.get("/python/files/demo/good-1.tar.gz").await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(place.kept(), 0);
    assert_eq!(place.get("/python/files/demo/good-1.tar.gz").await.1, b"good");
}

#[tokio::test]
async fn only_what_the_policy_lets_in_is_shown_or_given() {
    let place = Place::new("policy", &["python-packages=other"]);
    assert_eq!(place.get("/python/simple/demo/").await.0, 403);
    assert_eq!(place.get("/npm/left-pad").await.0, 403);
    assert_eq!(place.get("/debian/dists/bookworm/InRelease").await.0, 403);
    let mut aged = Policy::of_words(&["python-packages=Demo"]).unwrap();
    aged.packages.minimum_age_ms = 86_400_000;
    place.policy.send_replace(aged);
    let page = String::from_utf8(place.get("/python/simple/demo/").await.1).unwrap();
    assert!(page.contains("good-1.tar.gz") && !page.contains("new-1.tar.gz"), "{page}");
    assert_eq!(place.get("/python/files/demo/new-1.tar.gz").await.0, 403);
    assert_eq!(place.get("/python/files/demo/missing-1.tar.gz").await.0, 404);
    assert_eq!(place.get("/python/simple/nobody/").await.0, 403);
    place.policy.send_replace(Policy::default());
    assert_eq!(place.get("/python/files/demo/good-1.tar.gz").await.0, 403);
    let told = place.told.lock().unwrap().len();
    assert_eq!(told, 8, "each is told once");
}

#[tokio::test]
async fn a_policy_that_is_withdrawn_cuts_what_is_on_its_way() {
    let slow = Policy { bytes_per_second: 1 << 20, ..Policy::of_words(&["python-packages"]).unwrap() };
    let place = Place::new("cut", &["python-packages"]);
    place.policy.send_replace(slow);
    let withdraw = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        place.policy.send_replace(Policy::default());
    };
    let ((_, came), ()) = tokio::join!(place.get("/python/files/demo/large-1.tar.gz"), withdraw);
    assert!(came.len() < LARGE, "{} bytes came", came.len());
}

#[tokio::test]
async fn whoever_has_carried_all_that_the_policy_allows_gets_nothing_by_asking_anew() {
    let place = Place::new("spent", &["python-packages"]);
    place.policy.send_replace(Policy { bytes_max: 10, ..Policy::of_words(&["python-packages"]).unwrap() });
    assert_eq!(
        place.get("/python/simple/demo/").await.0,
        200,
        "the first is begun before anything was carried"
    );
    let (status, why) = place.get("/python/simple/demo/").await;
    let why = String::from_utf8(why).unwrap();
    assert_eq!(status, 403);
    assert!(
        why.starts_with("bellglass: this sandbox has used all the bytes that its policy allows"),
        "{why}"
    );
}

/// One line per refusal would fill the audit log and hide the entries of other sandboxes in it.
#[tokio::test]
async fn a_flood_of_nonsense_is_told_as_a_number() {
    const REQUESTS: usize = 3000;
    let place = Place::new("flood", &[]);
    let (near, far) = tokio::io::duplex(64 << 10);
    tokio::spawn(Arc::clone(&place.broker).serve(far, Arc::clone(&place.party)));
    let (mut answers, mut requests) = tokio::io::split(near);
    let drained = tokio::spawn(async move { tokio::io::copy(&mut answers, &mut tokio::io::sink()).await });
    for _ in 0..REQUESTS {
        requests.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    }
    requests.shutdown().await.unwrap();
    drained.await.unwrap().unwrap();
    let told = place.told.lock().unwrap().len();
    assert!((1..300).contains(&told), "{REQUESTS} requests became {told} lines");
}
