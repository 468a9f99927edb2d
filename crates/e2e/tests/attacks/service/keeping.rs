//! Attack H-40: disk use outside the quota, by datasets of sessions and by uploads that never end.

use std::io::Write as _;
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use api::account::{Quota, Role};
use e2e::service::{PLENTY, Service, served, until};
use serde_json::{Value, json};

use super::disk::bytes_below;
use super::ground::{Answer, address, ask, head, held, keyed, read, recovers};

/// Disk quota of the project.
const QUOTA: u64 = 64 << 20;
/// Number of bytes that each upload sends before it waits for more or ends.
const PIECE: usize = 40 << 20;
/// Number of concurrent uploads. Together, they send more than seven times the quota.
const UPLOADS: usize = 12;
/// Timeout for a refusal. The server sends it once the client has sent all of its data, or after 5 s.
const REFUSED_WITHIN: Duration = Duration::from_secs(8);
/// Tolerance for data that will be refused, but may be on the disk for a moment.
const SLACK: u64 = 4 << 20;

fn session(service: &Service, key: &str) -> String {
    let made = keyed(service, key, "POST", "/v1/sessions", &json!({ "set": "analysis" }));
    assert_eq!(made.status, 201, "{made:?}");
    made.json()["id"].as_str().unwrap().to_owned()
}

fn put(service: &Service, key: &str, path: &str, bytes: usize) -> Answer {
    let bearer = format!("Bearer {key}");
    ask(service, "PUT", path, &[("authorization", &bearer)], &vec![7; bytes])
}

/// Starts an upload without an announced length, sends a part of it, and never completes it.
fn begin(service: &Service, key: &str, name: &str) -> TcpStream {
    let bearer = format!("Bearer {key}");
    let headers = [("authorization", bearer.as_str()), ("transfer-encoding", "chunked")];
    let mut stream = TcpStream::connect(address(service)).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let text = head("PUT", &format!("/v1/datasets/{name}"), &headers) + "\r\n";
    stream.write_all(text.as_bytes()).unwrap();
    let chunk = [format!("{:x}\r\n", 1 << 20).into_bytes(), vec![7; 1 << 20], b"\r\n".to_vec()].concat();
    for _ in 0..PIECE >> 20 {
        // The server stops reading soon after it has refused the upload.
        if stream.write_all(&chunk).is_err() {
            break;
        }
    }
    stream
}

/// Opens many uploads. Returns their total disk use and the number of uploads that were refused.
async fn many_at_once(service: &Service, key: &str, datasets: &Path) -> (u64, usize) {
    let mut open: Vec<TcpStream> =
        (0..UPLOADS).map(|number| begin(service, key, &format!("d{number}"))).collect();
    let taken = bytes_below(datasets);
    // A refused upload gets its response once it has sent no data for a while. The other uploads wait for the
    // rest of their data.
    let mut refused = 0;
    for stream in open.iter_mut().rev() {
        stream.set_read_timeout(Some(REFUSED_WITHIN)).unwrap();
        if read(stream).refusal() != (429, "quota_exceeded".to_owned()) {
            break;
        }
        refused += 1;
    }
    drop(open);
    until(Duration::from_secs(20), "what broke off to be gone", async || bytes_below(datasets) == 0).await;
    (taken, refused)
}

/// Verifies that attack H-40 fails: all data that a project stores counts towards its quota.
#[test]
#[ignore = "starts real sandboxes"]
fn everything_that_a_project_keeps_is_inside_its_quota() {
    served(async || {
        let mut service = Service::start();
        let quota = Quota { disk_bytes: QUOTA, ..PLENTY };
        let key = service.key_of("pb", Role::Write, quota).await;
        let (sessions, datasets) = (service.data().join("sessions/pb"), service.data().join("datasets/pb"));
        let (first, second) = (session(&service, &key), session(&service, &key));
        let path = |session: &str| format!("/v1/sessions/{session}/datasets/x");
        assert_eq!(put(&service, &key, &path(&first), PIECE).status, 200);
        let refused = put(&service, &key, &path(&second), PIECE);
        refused.assert("a second session", 429, "quota_exceeded");
        for word in ["disk_bytes", &QUOTA.to_string(), "bellglass project set pb --disk"] {
            assert!(refused.body.contains(word), "{word}: {refused:?}");
        }
        // A dataset that belongs to the project itself counts too.
        put(&service, &key, "/v1/datasets/y", PIECE).assert("a dataset", 429, "quota_exceeded");
        assert!(bytes_below(&sessions) < QUOTA, "{}", bytes_below(&sessions));
        // Ending a session releases the space of its datasets.
        let ended = keyed(&service, &key, "DELETE", &format!("/v1/sessions/{first}"), &Value::Null);
        assert_eq!(ended.status, 200, "{ended:?}");
        assert_eq!(put(&service, &key, &path(&second), PIECE).status, 200);
        // After a restart, stored data still counts.
        service.kill();
        service.begin();
        put(&service, &key, "/v1/datasets/y", PIECE).assert("after a restart", 429, "quota_exceeded");
        let ended = keyed(&service, &key, "DELETE", &format!("/v1/sessions/{second}"), &Value::Null);
        assert_eq!(ended.status, 200, "{ended:?}");
        let (taken, refused) = many_at_once(&service, &key, &datasets).await;
        assert!(taken <= QUOTA + SLACK, "{UPLOADS} uploads took {taken} bytes");
        assert_eq!(refused, UPLOADS - 1);
        recovers(&service).await;

        // Control: without the defence, the same uploads store everything that they send.
        service.undefend("H-40");
        let (open, _) = many_at_once(&service, &key, &datasets).await;
        assert!(open > 4 * QUOTA, "control: {open}");
        let more = session(&service, &key);
        for name in ["a", "b"] {
            let path = format!("/v1/sessions/{more}/datasets/{name}");
            assert_eq!(put(&service, &key, &path, PIECE).status, 200, "control");
        }
        let figures = format!("{taken} bytes of {QUOTA}; control: {open}");
        held("H-40", &figures);
    });
}
