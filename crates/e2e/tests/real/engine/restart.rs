//! Restarts of the engine while sandboxes are running. A sandbox either continues or is reported as lost; no
//! dead sandbox is reported as running.

use std::time::Duration;

use api::exec::{ExecSpec, Outcome};
use api::sandbox::{CreateSandbox, EndReason, SandboxState};
use client::Client;
use e2e::dockerd::Dockerd;
use e2e::lab::script;
use e2e::layer;
use e2e::service::{Service, served, small_limits, until};
use runtime::engine::EngineKind;

use super::docker;

/// Timeout for the server to poll its containers after the engine is available again.
const NOTICED_WITHIN: Duration = Duration::from_secs(30);

/// Starts a server that uses this Docker engine.
fn service_on(engine: &Dockerd) -> Service {
    service_at(engine, &engine.address())
}

/// Starts a server that uses this Docker engine, which it reaches at the given address.
fn service_at(engine: &Dockerd, address: &str) -> Service {
    // The server must use the same engine into which `load_at` below loads the image.
    let before = ["env".to_owned(), format!("DOCKER_HOST={address}")];
    let service = Service::with(&before.each_ref().map(String::as_str), &["--backends", "docker"]);
    let name = node::template::Store::new(service.data()).load("base").unwrap().image();
    let image = layer::load_at(EngineKind::Docker, &engine.address(), "base", &name);
    layer::lend_image(service.data(), EngineKind::Docker, &image, &name);
    service
}

async fn create(client: &Client) -> api::SandboxId {
    let ask = CreateSandbox { limits: small_limits().into(), ..CreateSandbox::default() };
    client.create(&ask).await.unwrap_or_else(|error| panic!("{error:?}")).id
}

/// Checks that an exec in the sandbox works.
async fn speaks(client: &Client, id: &api::SandboxId) {
    let spec = ExecSpec { deadline_ms: Some(20_000), ..script("echo here") };
    assert_eq!(client.exec(id, &spec).await.unwrap().collect().await.unwrap().stdout, b"here\n");
}

/// Checks requirement A9.02: if the preferred backend cannot start a sandbox, the next backend starts it, and
/// the fallback is logged.
#[test]
#[ignore = "starts real sandboxes"]
fn what_one_engine_cannot_start_the_next_one_does() {
    if !docker() {
        return;
    }
    served(async || {
        let mut first = Dockerd::start(&[]);
        let first_at = format!("CONTAINER_HOST={}", first.address());
        let service = Service::with(&["env", &first_at], &["--backends", "podman,docker"]);
        let name = node::template::Store::new(service.data()).load("base").unwrap().image();
        layer::lend_image(service.data(), EngineKind::Docker, &layer::base_image("docker"), &name);
        let client = service.client();
        assert_eq!(client.node().await.unwrap().runtimes, ["podman", "docker"]);
        first.end();
        let id = create(&client).await;
        speaks(&client, &id).await;
        assert!(service.words().contains("trying the next backend"), "{}", service.words());
        client.stop(&id).await.unwrap();
    });
}

#[test]
#[ignore = "starts real sandboxes"]
fn an_engine_that_ends_its_containers_has_lost_them() {
    if !docker() {
        return;
    }
    served(async || {
        let mut engine = Dockerd::start(&[]);
        let service = service_on(&engine);
        let client = service.client();
        let id = create(&client).await;
        let exec = client.exec(&id, &script("echo begun; sleep 600")).await.unwrap();
        engine.end();
        engine.begin();
        let end = tokio::time::timeout(NOTICED_WITHIN, exec.collect()).await.expect("an end").unwrap().end;
        // During a graceful shutdown, an engine sends SIGTERM to process 1 of the sandbox, which then
        // terminates all other processes.
        let honest = matches!(end.outcome, Outcome::SandboxLost { .. } | Outcome::Signaled { signal: 15 });
        assert!(honest, "{end:?}");
        until(NOTICED_WITHIN, "it to be lost", async || {
            client.sandbox(&id).await.unwrap().state == SandboxState::Lost
        })
        .await;
        assert_eq!(client.sandbox(&id).await.unwrap().reason, Some(EndReason::Died));
        let next = create(&client).await;
        speaks(&client, &next).await;
        client.stop(&next).await.unwrap();
        drop(service);
    });
}

#[test]
#[ignore = "starts real sandboxes"]
fn an_engine_that_keeps_its_containers_goes_on_with_them() {
    if !docker() {
        return;
    }
    served(async || {
        let mut engine = Dockerd::start(&["--live-restore"]);
        let service = service_on(&engine);
        let client = service.client();
        let id = create(&client).await;
        let counting = "for i in $(seq 300); do echo $i; sleep 0.05; done";
        let exec = client.exec(&id, &script(counting)).await.unwrap();
        for _ in 0..2 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            engine.end();
            tokio::time::sleep(Duration::from_millis(500)).await;
            engine.begin();
        }
        let done =
            tokio::time::timeout(Duration::from_secs(60), exec.collect()).await.expect("an end").unwrap();
        assert_eq!(done.end.outcome, Outcome::Exited { code: 0 }, "{:?}", done.end);
        let expected: String = (1..=300).map(|number| format!("{number}\n")).collect();
        assert_eq!(String::from_utf8(done.stdout).unwrap(), expected, "each line once");
        assert_eq!(client.sandbox(&id).await.unwrap().state, SandboxState::Running);
        speaks(&client, &id).await;
        client.stop(&id).await.unwrap();
        drop(service);
    });
}

/// While the engine is down, requests fail with the cause. No request hangs, and no sandbox is reported as
/// ended.
#[test]
#[ignore = "starts real sandboxes"]
fn an_engine_that_is_away_is_said_to_be() {
    if !docker() {
        return;
    }
    served(async || {
        let mut engine = Dockerd::start(&["--live-restore"]);
        let service = service_on(&engine);
        let client = service.client();
        let id = create(&client).await;
        engine.end();
        let ask = CreateSandbox { limits: small_limits().into(), ..CreateSandbox::default() };
        let error = client.create(&ask).await.expect_err("nobody could make it").to_api();
        assert!(error.message.contains("docker is not running"), "{error:?}");
        assert!(error.fix.contains("systemctl start docker"), "{error:?}");
        assert_eq!(client.sandbox(&id).await.unwrap().state, SandboxState::Running, "nobody has seen it end");
        engine.begin();
        speaks(&client, &id).await;
        client.stop(&id).await.unwrap();
        drop(service);
    });
}

/// An engine that is reached over TCP counts as remote, so nothing from this machine is mounted into its
/// sandboxes.
#[test]
#[ignore = "starts real sandboxes"]
fn an_engine_is_reached_over_tcp() {
    if !docker() {
        return;
    }
    served(async || {
        let port = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        let address = format!("tcp://127.0.0.1:{port}");
        let engine = Dockerd::start(&["--host", &address, "--tls=false"]);
        let service = service_at(&engine, &address);
        let client = service.client();
        let id = create(&client).await;
        speaks(&client, &id).await;
        client.stop(&id).await.unwrap();
        drop(service);
    });
}
