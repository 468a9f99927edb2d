//! Attacks L-13 and L-15: a damaged journal record, and a data directory without free inodes.

use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use api::SandboxId;
use api::sandbox::{EndReason, SandboxState};
use e2e::lab::script;
use e2e::service::{Service, served};

use super::disk::Disk;
use super::ground::{held, keyed, recovers, small};
use super::store::alive;

fn record(service: &Service, id: &SandboxId, suffix: &str) -> PathBuf {
    service.data().join("node").join(format!("{id}.{suffix}"))
}

fn damage(service: &Service, id: &SandboxId, suffix: &str) {
    let file = std::fs::File::options().write(true).open(record(service, id, suffix)).unwrap();
    file.write_all_at(&[0xA5; 1000], 0).unwrap();
}

/// Verifies that attack L-13 fails: a damaged record does not end a running sandbox.
#[test]
#[ignore = "starts real sandboxes"]
fn a_damaged_record_ends_no_living_sandbox() {
    served(async || {
        let mut service = Service::start();
        let client = service.client();
        let mut ids = Vec::new();
        for number in 0..3 {
            let id = client.create(&e2e::service::small()).await.unwrap().id;
            let write = script(&format!("echo {number} > /workspace/work"));
            client.exec(&id, &write).await.unwrap().collect().await.unwrap();
            ids.push(id);
        }
        service.kill();
        // Damage the record of the first sandbox, and both the record and its copy of the second sandbox.
        damage(&service, &ids[0], "json");
        damage(&service, &ids[1], "json");
        damage(&service, &ids[1], "copy");
        service.begin();
        let work = async |id: &SandboxId| {
            let done =
                client.exec(id, &script("cat /workspace/work")).await.unwrap().collect().await.unwrap();
            String::from_utf8_lossy(&done.stdout).trim().to_owned()
        };
        assert_eq!(client.sandbox(&ids[0]).await.unwrap().state, SandboxState::Running);
        assert_eq!((work(&ids[0]).await.as_str(), work(&ids[2]).await.as_str()), ("0", "2"));
        assert!(record(&service, &ids[0], "damaged").exists(), "the record is kept");
        let lost = client.sandbox(&ids[1]).await.unwrap();
        assert_eq!((lost.state, lost.reason), (SandboxState::Lost, Some(EndReason::RecordDamaged)));
        assert!(record(&service, &ids[1], "damaged").exists(), "the record is kept");
        assert!(alive(&service, ids[1].as_str()), "what nobody can reach is not ended either");
        // After a restart, the server also keeps this sandbox alive, although only the damaged record is
        // left, which was set aside.
        service.kill();
        service.begin();
        assert!(alive(&service, ids[1].as_str()) && alive(&service, ids[0].as_str()));
        recovers(&service).await;

        // Control: without the defence, a damaged record ends its sandbox, and the real reason is not
        // reported.
        service.kill();
        damage(&service, &ids[2], "json");
        service.undefend("L-13");
        let lost = client.sandbox(&ids[2]).await.unwrap();
        assert_eq!((lost.state, lost.reason), (SandboxState::Lost, Some(EndReason::Died)), "control");
        e2e::service::until(std::time::Duration::from_secs(10), "the end of it", async || {
            !alive(&service, ids[2].as_str())
        })
        .await;
        held("L-13", "taken over from the copy; without one, left alive and told as record_damaged");
    });
}

/// Verifies that attack L-15 fails: without free inodes, a create request is refused with an error that names
/// the reason.
#[test]
#[ignore = "starts real sandboxes"]
fn without_free_inodes_a_create_is_refused_by_name() {
    served(async || {
        let disk = Disk::new();
        let mut service = Service::on(disk.data(), &[], &[]);
        let create = |service: &Service| keyed(service, &service.key, "POST", "/v1/sandboxes", &small());
        assert_eq!(create(&service).status, 201);
        let filling = disk.use_up_inodes();
        let refused = create(&service);
        refused.assert("no inodes", 503, "capacity");
        assert!(refused.body.contains("inodes are free"), "{refused:?}");
        drop(filling);
        assert_eq!(create(&service).status, 201);

        // Control: without the defence, the start fails halfway, and the response is an internal error.
        service.undefend("L-15");
        let _filling = disk.use_up_inodes();
        create(&service).assert("control", 500, "platform");
        held("L-15", "503 capacity, with the inodes that are free");
        drop(service);
    });
}
