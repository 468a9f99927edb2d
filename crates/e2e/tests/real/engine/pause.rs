//! Pausing in engines. Docker and Podman pause a sandbox through their own API; Daytona refuses to pause.

use std::time::Duration;

use api::ErrorCode;
use api::sandbox::{CreateSandbox, OnTimeout, SandboxState};
use e2e::daytona::Server;
use e2e::service::{Service, served, small};

use super::{daytona, engines};
use crate::pause::{read_count, start_counter, state, until_paused, used};

#[test]
#[ignore = "starts real sandboxes"]
fn engines_pause_and_daytona_refuses() {
    let engines = engines();
    served(async || {
        for kind in &engines {
            let mut service = Service::on_engine(*kind);
            let client = service.client();
            let request = CreateSandbox { idle_ms: 3_600_000, on_timeout: OnTimeout::Pause, ..small() };
            let id = client.create(&request).await.unwrap().id;
            start_counter(&client, &id).await;
            let count = read_count(&client, &id).await;
            client.pause(&id).await.unwrap();
            client.pause(&id).await.unwrap();
            service.kill();
            service.begin();
            let client = service.client();
            assert_eq!(state(&client, &id).await, SandboxState::Paused);
            let before = used(&client, &id).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(used(&client, &id).await - before < 50_000, "{} ran while paused", kind.name());
            client.resume(&id).await.unwrap();
            assert!(read_count(&client, &id).await >= count);
            client.renew(&id, api::sandbox::Lease { idle_ms: 1_000 }).await.unwrap();
            // The counter is a running exec, and the sandbox becomes idle only when that exec ends.
            let exec = client.execs(&id).await.unwrap().remove(0);
            client.cancel(&id, &exec.id).await.unwrap();
            until_paused(&client, &id).await;
            assert!(read_count(&client, &id).await >= count);
            client.pause(&id).await.unwrap();
            client.stop(&id).await.unwrap();
            service.assert_nothing_left().await;
        }
        if daytona() {
            let service = Service::on_daytona(Server::shared());
            let client = service.client();
            let request = CreateSandbox { on_timeout: OnTimeout::Pause, ..small() };
            let refused = client.create(&request).await.unwrap_err();
            assert_eq!(refused.code(), Some(ErrorCode::Unsupported), "{refused}");
            assert!(refused.to_string().contains("paus"), "{refused}");
            let id = client.create(&small()).await.unwrap().id;
            let refused = client.pause(&id).await.unwrap_err();
            assert_eq!(refused.code(), Some(ErrorCode::Unsupported), "{refused}");
            assert_eq!(state(&client, &id).await, SandboxState::Running);
            client.stop(&id).await.unwrap();
        }
    });
}
