//! Attack C-33: a server stops a sandbox that takes too many file locks and reports the reason. Its
//! neighbours keep running.

use std::time::{Duration, Instant};

use api::exec::{LostCause, Outcome};
use api::sandbox::{EndReason, SandboxState};
use e2e::lab::script;
use e2e::service::{Service, served, small, until};

use super::ground::{held, inside, recovers};

/// Maximum time from the first lock to the end of the sandbox. The payload needs a second to take enough
/// locks to be noticed. The promised limit is two seconds from then on.
const ENDED_WITHIN: Duration = Duration::from_secs(10);

/// Verifies that attack C-33 fails: a sandbox that takes too many file locks is stopped, and the reported
/// reason names the locks.
#[test]
#[ignore = "starts real sandboxes"]
fn a_sandbox_that_takes_too_many_file_locks_is_lost_for_that_reason() {
    served(async || {
        let mut service = Service::start();
        let client = service.client();
        let (attacker, bystander) =
            (client.create(&small()).await.unwrap().id, client.create(&small()).await.unwrap().id);
        let began = Instant::now();
        let attack = client.exec(&attacker, &inside("C-33", &["exhaust", "300"])).await.unwrap();
        let done = attack.collect().await.unwrap();
        let took = began.elapsed();
        assert_eq!(done.end.outcome, Outcome::SandboxLost { cause: LostCause::KernelResource });
        assert!(took < ENDED_WITHIN, "it took {took:?}");
        until(Duration::from_secs(5), "the end of the attacker", async || {
            client.sandbox(&attacker).await.unwrap().state == SandboxState::Lost
        })
        .await;
        assert_eq!(client.sandbox(&attacker).await.unwrap().reason, Some(EndReason::KernelResource));
        let alive = client.exec(&bystander, &script("echo alive")).await.unwrap().collect().await.unwrap();
        assert_eq!(alive.stdout, b"alive\n");

        // Control: if the server does not count locks, the sandbox keeps running, and the payload reaches its
        // own safe limit.
        service.undefend("C-33");
        let client = service.client();
        let again = client.create(&small()).await.unwrap().id;
        let spec = api::exec::ExecSpec { deadline_ms: Some(8000), ..inside("C-33", &["exhaust", "300"]) };
        let done = client.exec(&again, &spec).await.unwrap().collect().await.unwrap();
        assert_eq!(done.end.outcome, Outcome::Timeout, "control");
        assert!(String::from_utf8_lossy(&done.stdout).contains("took 300"), "control");
        recovers(&service).await;
        held("C-33", &format!("ended {took:.1?} after its first lock"));
    });
}
