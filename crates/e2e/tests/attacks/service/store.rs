//! Attack L-04: a store that is locked, damaged or missing. Running sandboxes keep running in every case.
//!
//! The tests of the crate `control` cover the store alone. These tests cover the store together with a server
//! and running sandboxes. `real::troubles` covers disks that are full or read-only.

use std::io::{Seek, SeekFrom, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use api::sandbox::SandboxState;
use e2e::lab::script;
use e2e::service::{Service, binary, served, until};
use serde_json::Value;

use super::ground::{held, keyed, recovers, small};

/// Maximum time until a create request is refused if the store does not respond.
const REFUSED_WITHIN: Duration = Duration::from_secs(3);

/// Verifies that attack L-04 fails: if the store does not respond, the server reports this, and running
/// sandboxes keep running.
#[test]
#[ignore = "starts real sandboxes"]
fn a_store_that_does_not_answer_is_told_and_what_runs_goes_on() {
    served(async || {
        let service = Service::start();
        let client = service.client();
        let sandbox = client.create(&e2e::service::small()).await.unwrap().id;
        let path = format!("/v1/sandboxes/{sandbox}");
        let create = || keyed(&service, &service.key, "POST", "/v1/sandboxes", &small());
        // Control: as long as the store responds, requests succeed.
        assert_eq!(create().status, 201);
        e2e::attack::count_control();
        let lock = "import sqlite3, sys, time\n\
                    store = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=30)\n\
                    store.execute('BEGIN EXCLUSIVE')\n\
                    print('locked', flush=True)\n\
                    sys.stdin.read()\n";
        let mut holder = Command::new("timeout")
            .args(["60", "python3", "-c", lock])
            .arg(service.data().join("bellglass.db"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let mut stdout = std::io::BufReader::new(holder.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut stdout, &mut said).unwrap();
        assert_eq!(said, "locked\n");
        let began = Instant::now();
        let refused = create();
        refused.assert("a locked store", 503, "store_unavailable");
        let took = began.elapsed();
        assert!(took < REFUSED_WITHIN && refused.header("retry-after").is_some(), "{took:?}: {refused:?}");
        // Meanwhile, running sandboxes can be used, inspected and stopped.
        let done = client.exec(&sandbox, &script("echo alive")).await.unwrap().collect().await.unwrap();
        assert_eq!(done.stdout, b"alive\n");
        assert_eq!(keyed(&service, &service.key, "GET", &path, &Value::Null).status, 200);
        let health = keyed(&service, "", "GET", "/healthz", &Value::Null);
        assert_eq!((health.status, &health.json()["store"]), (503, &Value::Bool(false)));
        let ended = keyed(&service, &service.key, "DELETE", &path, &Value::Null);
        assert_eq!(ended.json()["state"], "ended", "{ended:?}");
        drop(holder.stdin.take());
        holder.wait().unwrap();
        // Once the store responds again, the end of the sandbox is recorded.
        recovers(&service).await;
        let kept = keyed(&service, &service.key, "GET", &path, &Value::Null).json();
        assert_eq!((kept["state"].as_str(), kept["reason"].as_str()), (Some("ended"), Some("stopped")));
        held("L-04", &format!("locked: refused in {took:?}"));
    });
}

/// Verifies that attack L-04 fails: a damaged store affects only the server. If the store is moved away, the
/// server starts with a new store and adopts all running sandboxes.
#[test]
#[ignore = "starts real sandboxes"]
fn a_store_that_is_damaged_or_gone_never_ends_a_sandbox() {
    served(async || {
        let mut service = Service::start();
        let client = service.client();
        let sandbox = client.create(&e2e::service::small()).await.unwrap().id;
        let counting = script("for i in $(seq 600); do echo $i > /workspace/count; sleep 0.1; done");
        keyed(
            &service,
            &service.key,
            "POST",
            &format!("/v1/sandboxes/{sandbox}/execs"),
            &serde_json::json!(counting),
        );
        service.kill();
        let (store, good) = (service.data().join("bellglass.db"), service.data().join("good.db"));
        let data = service.data().to_owned();
        let beside = |suffix: &str| data.join(format!("bellglass.db{suffix}"));
        // Merge the log into the store's file, so that this file contains everything.
        let fold =
            "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('PRAGMA wal_checkpoint(TRUNCATE)')";
        assert!(Command::new("python3").args(["-c", fold]).arg(&store).status().unwrap().success());
        for suffix in ["-wal", "-shm"] {
            let _ = std::fs::remove_file(beside(suffix));
        }
        std::fs::copy(&store, &good).unwrap();
        let mut refusals = Vec::new();
        for (what, damage) in damages() {
            std::fs::copy(&good, &store).unwrap();
            damage(&store);
            let said = refused(&service);
            assert!(said.contains("the store is damaged"), "{what}: {said}");
            assert!(alive(&service, sandbox.as_str()), "{what}: the sandbox was removed");
            refusals.push(what);
        }
        // Control: with the undamaged store, the server starts and knows all sandboxes.
        std::fs::copy(&good, &store).unwrap();
        service.begin();
        let counted = async || {
            let exec = client.exec(&sandbox, &script("cat /workspace/count")).await.unwrap();
            String::from_utf8_lossy(&exec.collect().await.unwrap().stdout).trim().parse::<u32>().unwrap()
        };
        let before = counted().await;
        e2e::attack::count_control();
        service.kill();
        for suffix in ["", "-wal", "-shm"] {
            let _ = std::fs::rename(beside(suffix), service.data().join(format!("moved{suffix}")));
        }
        service.begin();
        let old = keyed(&service, &service.key, "GET", "/v1/sandboxes", &Value::Null);
        old.assert("a key of the store that is gone", 401, "unauthorized");
        service.key = std::fs::read_to_string(service.data().join("first.key")).unwrap().trim().to_owned();
        let adopted = service.client().sandbox(&sandbox).await.unwrap();
        assert_eq!(adopted.state, SandboxState::Running);
        let client = service.client();
        let exec = client.exec(&sandbox, &script("sleep 0.3; cat /workspace/count")).await.unwrap();
        let after = exec.collect().await.unwrap().stdout;
        let after: u32 = String::from_utf8_lossy(&after).trim().parse().unwrap();
        assert!(after > before, "the exec stood still at {after}");
        client.stop(&sandbox).await.unwrap();
        // The machine's process 1 reaps orphaned processes, which can take a moment.
        until(Duration::from_secs(10), "a look that sees what is gone", async || {
            !alive(&service, sandbox.as_str())
        })
        .await;
        held("L-04", &format!("refused: {}; an empty store adopted what lives", refusals.join(", ")));
    });
}

type Damage = (&'static str, fn(&std::path::Path));

fn damages() -> [Damage; 5] {
    [
        ("a page of noise", |path| {
            let mut file = std::fs::File::options().write(true).open(path).unwrap();
            file.seek(SeekFrom::Start(4096)).unwrap();
            file.write_all(&[0xA5; 4096]).unwrap();
        }),
        ("a header of noise", |path| {
            let mut file = std::fs::File::options().write(true).open(path).unwrap();
            file.write_all(&[0xA5; 100]).unwrap();
        }),
        ("cut in half", |path| {
            let file = std::fs::File::options().write(true).open(path).unwrap();
            file.set_len(file.metadata().unwrap().len() / 2).unwrap();
        }),
        ("empty", |path| std::fs::File::options().write(true).open(path).unwrap().set_len(0).unwrap()),
        ("a directory", |path| {
            std::fs::remove_file(path).unwrap();
            std::fs::create_dir(path).unwrap();
        }),
    ]
}

/// Starts a server that must fail to start, and returns its error messages.
pub(crate) fn refused(service: &Service) -> String {
    let output = Command::new("timeout")
        .arg("15")
        .arg(binary())
        .arg("--data")
        .arg(service.data())
        .args(["serve", "--listen", "127.0.0.1:0", "--first-key"])
        .arg(service.data().join("other.key"))
        .env_remove("BELLGLASS_SERVER")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(![Some(0), Some(124)].contains(&output.status.code()), "it served: {said}");
    let store = service.data().join("bellglass.db");
    if store.is_dir() {
        std::fs::remove_dir(&store).unwrap();
    }
    said
}

/// Returns true if a sandbox's process 1 exists.
pub(crate) fn alive(service: &Service, id: &str) -> bool {
    service
        .traces(&[id.to_owned()])
        .left()
        .iter()
        .any(|trace| trace.starts_with("process") && trace.contains(id))
}
