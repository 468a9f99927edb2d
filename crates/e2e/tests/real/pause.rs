//! Sandboxes that stand still: with their memory, through restarts of the server, and gone when somebody wants them gone.

use std::time::Duration;

use api::sandbox::{CreateSandbox, SandboxState};
use api::{ErrorCode, SandboxId};
use client::Client;
use e2e::lab::script;
use e2e::service::{Service, served, small, tiers, until};
use serde_json::{Value, json};

const WAIT: Duration = Duration::from_secs(20);
/// Counts as fast as it can look at the clock, so that a second in which it stood still is seen.
const COUNTER: &str = "i=0; while :; do i=$((i+1)); echo $i > /workspace/count.new; mv /workspace/count.new /workspace/count; sleep 0.01; done";

async fn asked(service: &Service, id: &SandboxId, what: &str, body: Value) -> u16 {
    let path = match what {
        "connect" => format!("/v2/sandboxes/{id}/connect"),
        what => format!("/sandboxes/{id}/{what}"),
    };
    service.wire().ask("POST", &path, Some(&body)).await.status
}

async fn counted(client: &Client, id: &SandboxId) -> u64 {
    let done = client.exec(id, &script("cat /workspace/count")).await.unwrap().collect().await.unwrap();
    String::from_utf8_lossy(&done.stdout).trim().parse().unwrap()
}

/// Processor time of all processes of a sandbox, as the machine counts it.
async fn used(client: &Client, id: &SandboxId) -> u64 {
    client.usage(id).await.unwrap().cpu_us
}

/// Concurrent and repeated pauses and resumes, during an exec and across a server restart, lose no progress.
#[test]
fn what_stands_still_goes_on_where_it_was() {
    served(async || {
        let mut service = Service::start();
        for tier in tiers() {
            let client = service.client();
            let id = client.create(&CreateSandbox { tier, ..small() }).await.unwrap().id;
            let exec = client.start(&id, &script(COUNTER)).await.unwrap();
            until(WAIT, "it counts", async || {
                client
                    .exec(&id, &script("test -s /workspace/count"))
                    .await
                    .unwrap()
                    .collect()
                    .await
                    .unwrap()
                    .end
                    .outcome
                    == api::exec::Outcome::Exited { code: 0 }
            })
            .await;
            let both = tokio::join!(
                asked(&service, &id, "pause", json!({})),
                asked(&service, &id, "pause", json!({}))
            );
            assert!(both == (204, 409) || both == (409, 204), "{both:?}");
            assert!(client.sandbox(&id).await.unwrap().paused);
            let refused = client.exec(&id, &script("true")).await.err().unwrap();
            assert_eq!(refused.code(), Some(ErrorCode::Conflict), "{refused}");
            // The next server finds it as it was, and it still stands.
            service.kill();
            service.begin();
            let client = service.client();
            let shown = client.sandbox(&id).await.unwrap();
            assert_eq!((shown.state, shown.paused), (SandboxState::Running, true));
            let before = used(&client, &id).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            let after = used(&client, &id).await;
            assert!(after - before < 50_000, "{} µs of processor time while it stands", after - before);
            let both = tokio::join!(
                asked(&service, &id, "connect", json!({ "timeout": 60 })),
                asked(&service, &id, "connect", json!({ "timeout": 60 }))
            );
            assert!(both == (201, 200) || both == (200, 201), "{both:?}");
            let first = counted(&client, &id).await;
            until(WAIT, "it counts on", async || counted(&client, &id).await > first).await;
            assert!(
                client.execs(&id).await.unwrap().iter().any(|one| one.id == exec.id && one.outcome.is_none())
            );
            for _ in 0..20 {
                assert_eq!(asked(&service, &id, "pause", json!({})).await, 204);
                assert_eq!(asked(&service, &id, "connect", json!({ "timeout": 60 })).await, 201);
            }
            let last = counted(&client, &id).await;
            assert!(last > first, "{last} after {first}");
            // It is ended as it stands.
            assert_eq!(asked(&service, &id, "pause", json!({})).await, 204);
            client.stop(&id).await.unwrap();
            println!("{tier:?}: stood still 22 times, counted to {last}");
        }
        service.assert_nothing_left().await;
    });
}

/// Its time goes on only when it does.
#[test]
fn one_that_stands_still_outlives_its_time_and_has_the_one_it_is_given() {
    served(async || {
        let service = Service::start();
        let client = service.client();
        let id = client.create(&small()).await.unwrap().id;
        assert_eq!(asked(&service, &id, "timeout", json!({ "timeout": 3 })).await, 204);
        assert_eq!(asked(&service, &id, "pause", json!({})).await, 204);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(client.sandbox(&id).await.unwrap().paused);
        assert_eq!(asked(&service, &id, "connect", json!({ "timeout": 3 })).await, 201);
        assert_eq!(client.sandbox(&id).await.unwrap().state, SandboxState::Running);
        until(WAIT, "its time is over", async || {
            client.sandbox(&id).await.unwrap().reason == Some(api::sandbox::EndReason::Expired)
        })
        .await;
        service.assert_nothing_left().await;
    });
}
