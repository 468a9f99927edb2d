//! Attacks L-10, L-11 and L-12: a key that was revoked or has expired could work again, because the store's
//! write-ahead log is damaged, the disk is full, or the clock is set back.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use e2e::service::{Service, served, until};
use serde_json::{Value, json};

use super::clocks::LIBRARY;
use super::disk::Disk;
use super::ground::{Answer, held, keyed, recovers, small};
use super::store::refused;

/// Timeout for the server's periodic work: it checks the store every 5 s and its own health every second.
const SETTLES_WITHIN: Duration = Duration::from_secs(20);

/// Creates a key of the project `default` and returns its ID and its secret.
fn key(service: &Service, valid_ms: Option<u64>) -> (String, String) {
    let ask = json!({ "project": "default", "role": "read", "valid_ms": valid_ms });
    let made = keyed(service, &service.key, "POST", "/v1/keys", &ask);
    assert_eq!(made.status, 201, "{made:?}");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    (text(&made.json()["key"]["id"]), text(&made.json()["secret"]))
}

fn revoke(service: &Service, id: &str) -> Answer {
    keyed(service, &service.key, "DELETE", &format!("/v1/keys/{id}"), &Value::Null)
}

fn look(service: &Service, secret: &str) -> u16 {
    keyed(service, secret, "GET", "/v1/sandboxes", &Value::Null).status
}

/// Runs an SQL statement on the store in a separate process, and returns the first row of the result.
fn ask_store(service: &Service, statement: &str) -> String {
    let text = "import sqlite3, sys\nc = sqlite3.connect(sys.argv[1], timeout=10)\n\
                print(c.execute(sys.argv[2]).fetchone())";
    let mut python = Command::new("python3");
    let output =
        python.args(["-c", text]).arg(service.data().join("bellglass.db")).arg(statement).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn log(service: &Service) -> PathBuf {
    service.data().join("bellglass.db-wal")
}

fn damage(path: &Path, at: u64, length: usize) {
    let file = std::fs::File::options().write(true).open(path).unwrap();
    assert!(file.metadata().unwrap().len() > at + length as u64, "{path:?} has no content");
    file.write_all_at(&vec![0xA5; length], at).unwrap();
}

/// Creates a sandbox, so that the store's write-ahead log has content.
fn fill_log(service: &Service) {
    assert_eq!(keyed(service, &service.key, "POST", "/v1/sandboxes", &small()).status, 201);
}

/// Verifies that attack L-10 fails: a damaged log of the store does not make a revoked key valid again.
#[test]
#[ignore = "starts real sandboxes"]
fn a_damaged_log_of_the_store_revives_no_revoked_key() {
    served(async || {
        let mut service = Service::start();
        let (id, secret) = key(&service, None);
        ask_store(&service, "PRAGMA wal_checkpoint(TRUNCATE)");
        assert_eq!((look(&service, &secret), revoke(&service, &id).status), (200, 204));
        assert_eq!(look(&service, &secret), 401);
        // If the log's header is damaged, the server does not start, and its message explains what to do.
        fill_log(&service);
        service.kill();
        let log = log(&service);
        damage(&log, 0, 32);
        let said = refused(&service);
        assert!(said.contains("no valid header") && said.contains("move the log away"), "{said}");
        std::fs::rename(&log, service.data().join("damaged-wal")).unwrap();
        service.begin();
        assert_eq!((look(&service, &secret), look(&service, &service.key)), (401, 200));
        // If the middle of the log is damaged, the part before the damage is read, but it must not replace
        // newer content of the store.
        let (id, secret) = key(&service, None);
        fill_log(&service);
        assert_eq!((look(&service, &secret), revoke(&service, &id).status), (200, 204));
        fill_log(&service);
        service.kill();
        damage(&log, 5000, 1000);
        service.begin();
        assert_eq!((look(&service, &secret), look(&service, &service.key)), (401, 200));
        recovers(&service).await;

        // Control: without the defence, the server starts without any message, and the revoked key works
        // again.
        service.undefend("L-10");
        let (id, secret) = key(&service, None);
        ask_store(&service, "PRAGMA wal_checkpoint(TRUNCATE)");
        assert_eq!((revoke(&service, &id).status, look(&service, &secret)), (204, 401));
        service.kill();
        damage(&log, 0, 32);
        service.begin();
        assert_eq!(look(&service, &secret), 200, "control");
        held("L-10", "a log without a header is refused; its middle revives no key");
    });
}

/// Verifies that attack L-11 fails: keys can be revoked on a full disk, and they stay revoked.
#[test]
#[ignore = "starts real sandboxes"]
fn on_a_full_disk_keys_are_revoked_and_stay_so() {
    served(async || {
        let disk = Disk::new();
        let mut service = Service::on(disk.data(), &[], &[]);
        let keys = [key(&service, None), key(&service, None), key(&service, None)];
        assert!(keys.iter().all(|(_, secret)| look(&service, secret) == 200));
        let health =
            |service: &Service| keyed(service, "", "GET", "/healthz", &Value::Null).json()["store"].clone();
        assert_eq!(health(&service), Value::Bool(true));
        let mut filling = Vec::new();
        let began = Instant::now();
        // Fill the disk repeatedly, because the server's own test sandbox frees disk space when it ends.
        while health(&service) != Value::Bool(false) {
            assert!(
                began.elapsed() < SETTLES_WITHIN,
                "the health never says that the store cannot be written"
            );
            filling.push(disk.fill(&format!("filling{}", filling.len())));
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        // The first revocation is written to the store, because the server deletes its ballast (a file that
        // reserves space) for it. The second is written only to the slate (a preallocated file for
        // revocations), which needs no free block.
        for (number, (id, secret)) in keys.iter().take(2).enumerate() {
            let answer = revoke(&service, id);
            assert_eq!((answer.status, look(&service, secret)), (204, 401), "{number}: {answer:?}");
            filling.push(disk.fill(&format!("after{number}")));
        }
        assert_eq!(look(&service, &keys[2].1), 200, "nobody else's");
        service.kill();
        service.begin();
        let seen: Vec<u16> = keys.iter().map(|(_, secret)| look(&service, secret)).collect();
        assert_eq!(seen, [401, 401, 200], "after a restart on the full disk");
        let slate = service.data().join("bellglass.db.revoked");
        let is_empty = || std::fs::read(&slate).unwrap().iter().all(|byte| *byte == 0);
        assert!(!is_empty(), "the second is on the slate");
        filling.clear();
        until(SETTLES_WITHIN, "the slate to be in the store", async || is_empty()).await;
        let left = ask_store(&service, "SELECT count(*) FROM keys WHERE revoked_at_ms IS NULL");
        assert_eq!(left, "(2,)", "the administrator's and the third");
        until(SETTLES_WITHIN, "the ballast to be back", async || {
            service.data().join("bellglass.db.ballast").exists()
        })
        .await;
        recovers(&service).await;

        // Control: without the defence, the key cannot be revoked, and the health check reports no problem.
        let _filling = disk.fill("again");
        service.undefend("L-11");
        let _more = disk.fill("more");
        let answer = revoke(&service, &keys[2].0);
        answer.assert("control", 503, "store_unavailable");
        assert_eq!((look(&service, &keys[2].1), health(&service)), (200, Value::Bool(true)), "control");
        held("L-11", "2 keys revoked on a full disk, one by the ballast and one on the slate");
        drop(service);
    });
}

/// Verifies that attack L-12 fails: an expired key stays expired when the clock is set back.
#[test]
#[ignore = "starts real sandboxes"]
fn an_expired_key_stays_expired_when_the_clock_goes_back() {
    const DAYS: &str = "172800";
    served(async || {
        assert!(Path::new(LIBRARY).exists(), "faketime is not installed: scripts/setup.sh");
        let settings = tempfile::tempdir().unwrap();
        let offset = settings.path().join("offset");
        let jump = |to: &str| std::fs::write(&offset, to).unwrap();
        jump("+0");
        let preload = format!("LD_PRELOAD={LIBRARY}");
        let file = format!("FAKETIME_TIMESTAMP_FILE={}", offset.display());
        let before = ["env", &preload, &file, "FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1"];
        let mut service = Service::with(&before, &[]);
        let (_, secret) = key(&service, Some(3_600_000));
        let (_, lasting) = key(&service, None);
        assert_eq!(look(&service, &secret), 200);
        jump(&format!("+{DAYS}"));
        assert_eq!(look(&service, &secret), 401, "the clock did not jump");
        jump(&format!("-{DAYS}"));
        assert_eq!((look(&service, &secret), look(&service, &lasting)), (401, 200));
        // The key stays expired after a restart too, once the latest time has been saved in the store.
        let now_ms = u64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap();
        until(SETTLES_WITHIN, "the time to be in the store", async || {
            let seen = ask_store(&service, "SELECT coalesce(max(latest_ms), 0) FROM clock");
            seen.trim_matches(['(', ')', ',']).parse::<u64>().unwrap() > now_ms + 86_400_000
        })
        .await;
        service.kill();
        service.begin();
        assert_eq!((look(&service, &secret), look(&service, &lasting)), (401, 200));
        assert!(service.words().contains("behind the latest recorded time"), "{}", service.words());
        let (_, fresh) = key(&service, Some(3_600_000));
        assert_eq!(look(&service, &fresh), 200, "one that is made now works for its time");

        // Control: without the defence, the key is valid again after the clock has been set back.
        service.kill();
        let off = format!("{}=L-12", api::defence::VARIABLE);
        service.run_under(&[&before[..], &[&off]].concat());
        jump("+0");
        service.begin();
        let (_, secret) = key(&service, Some(3_600_000));
        jump(&format!("+{DAYS}"));
        assert_eq!(look(&service, &secret), 401);
        jump(&format!("-{DAYS}"));
        assert_eq!(look(&service, &secret), 200, "control");
        e2e::attack::count_control();
        held("L-12", "expired at +2 days, refused at -2 days and after a restart");
    });
}
