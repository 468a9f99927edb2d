//! Attacks L-05 and L-06: a server without free descriptors, and two servers on one data directory.
//!
//! Full disks are tested in `real::troubles`. A lack of free loop devices is not tested, because the kernel
//! creates new devices on demand. Preventing that would need a separate kernel, or it would affect all other
//! programs on the machine.

use std::process::Command;
use std::time::{Duration, Instant};

use api::sandbox::SandboxState;
use e2e::lab::script;
use e2e::service::{Service, binary, served};
use serde_json::Value;

use super::ground::{Answer, held, keyed, recovers, small};

/// Verifies that attack L-05 fails: a server without free descriptors refuses requests, and its sandboxes
/// keep running.
#[test]
#[ignore = "starts real sandboxes"]
fn a_server_without_descriptors_refuses_and_its_sandboxes_live() {
    const FILES: u32 = 96;
    served(async || {
        let service = Service::with(&["prlimit", &format!("--nofile={FILES}:{FILES}")], &[]);
        let client = service.client();
        let first = client.create(&e2e::service::small()).await.unwrap().id;
        let create = || keyed(&service, &service.key, "POST", "/v1/sandboxes", &small());
        // Control: with enough descriptors, the server creates sandboxes.
        assert_eq!(create().status, 201);
        e2e::attack::count_control();
        let mut answers: Vec<Answer> = Vec::new();
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(30) && answers.len() < 60 {
            answers.push(create());
            if answers.iter().filter(|answer| answer.status != 201).count() >= 5 {
                break;
            }
        }
        let refused: Vec<&Answer> = answers.iter().filter(|answer| answer.status != 201).collect();
        assert!(!refused.is_empty(), "{FILES} descriptors were enough for {} sandboxes", answers.len());
        for answer in &refused {
            // A connection that the server could not accept gets no response. Every response has an error
            // code.
            assert!(answer.status == 0 || !answer.refusal().1.is_empty(), "{answer:?}");
        }
        let words: Vec<(u16, String)> = refused.iter().map(|answer| answer.refusal()).collect();
        // Running sandboxes survive, and can be used once descriptors are free again.
        let page = loop {
            let page = keyed(&service, &service.key, "GET", "/v1/sandboxes", &Value::Null);
            if page.status == 200 {
                break page.json();
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{page:?}");
            std::thread::sleep(Duration::from_millis(100));
        };
        let others = page["items"].as_array().unwrap().iter().filter_map(|one| one["id"].as_str());
        for id in others.filter(|id| *id != first.as_str()).collect::<Vec<_>>() {
            let path = format!("/v1/sandboxes/{id}");
            let ended = keyed(&service, &service.key, "DELETE", &path, &Value::Null);
            assert_eq!(ended.status, 200, "{ended:?}");
        }
        assert_eq!(client.sandbox(&first).await.unwrap().state, SandboxState::Running);
        let done = client.exec(&first, &script("echo alive")).await.unwrap().collect().await.unwrap();
        assert_eq!(done.stdout, b"alive\n");
        recovers(&service).await;
        held(
            "L-05",
            &format!("{} sandboxes with {FILES} descriptors, then {words:?}", answers.len() - refused.len()),
        );
    });
}

/// Verifies that attack L-06 fails: a second server on the same data directory exits with an error and has no
/// effect.
#[test]
#[ignore = "starts real sandboxes"]
fn a_second_server_on_the_same_data_refuses_and_harms_nothing() {
    served(async || {
        let mut service = Service::start();
        let client = service.client();
        let sandbox = client.create(&e2e::service::small()).await.unwrap().id;
        let second = || {
            Command::new("timeout")
                .arg("10")
                .arg(binary())
                .arg("--data")
                .arg(service.data())
                .args(["serve", "--listen", "127.0.0.1:0", "--first-key"])
                .arg(service.data().join("second.key"))
                .env_remove("BELLGLASS_SERVER")
                .output()
                .unwrap()
        };
        for _ in 0..5 {
            let said = second();
            let words = String::from_utf8_lossy(&said.stderr).into_owned();
            assert!(![Some(0), Some(124)].contains(&said.status.code()), "a second server: {said:?}");
            assert!(words.contains("another server is using") && words.contains("--data"), "{words}");
        }
        assert!(!service.data().join("second.key").exists());
        let done = client.exec(&sandbox, &script("echo alive")).await.unwrap().collect().await.unwrap();
        assert_eq!(done.stdout, b"alive\n");
        // Other commands that use the same data directory do not treat a running server's sandboxes as
        // leftovers.
        let tidy = Command::new(binary())
            .arg("--data")
            .arg(service.data())
            .args(["run", "--", "/bin/true"])
            .env_remove("BELLGLASS_SERVER")
            .output()
            .unwrap();
        assert!(tidy.status.success(), "{tidy:?}");
        recovers(&service).await;
        // Control: a lock that no process holds does not prevent a start. Neither does a lock file with the
        // pid of a different process.
        let lock = service.data().join("node/lock");
        service.kill();
        assert!(lock.exists());
        std::fs::write(&lock, "1\n").unwrap();
        let back = service.begin();
        assert_eq!(client.sandbox(&sandbox).await.unwrap().state, SandboxState::Running);
        e2e::attack::count_control();
        // Start several servers at the same time. Only one of them gets the lock.
        service.kill();
        let mut racing: Vec<_> = (0..4)
            .map(|_| {
                Command::new("timeout")
                    .arg("5")
                    .arg(binary())
                    .arg("--data")
                    .arg(service.data())
                    .args(["serve", "--listen", "127.0.0.1:0"])
                    .env_remove("BELLGLASS_SERVER")
                    .stdout(std::process::Stdio::null())
                    .stderr(std::process::Stdio::null())
                    .spawn()
                    .unwrap()
            })
            .collect();
        let codes: Vec<Option<i32>> = racing.iter_mut().map(|one| one.wait().unwrap().code()).collect();
        // The server that gets the lock runs until `timeout` terminates it.
        let served = codes.iter().filter(|code| [Some(124), Some(0)].contains(code)).count();
        assert_eq!(served, 1, "{codes:?}");
        service.begin();
        assert_eq!(client.sandbox(&sandbox).await.unwrap().state, SandboxState::Running);
        held(
            "L-06",
            &format!("refused 5 times; after a kill it was back in {back:?}; of 4 at once one served"),
        );
    });
}
