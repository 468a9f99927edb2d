//! Pausing and resuming through the E2B API.

use std::time::Duration;

use api::SandboxId;
use api::sandbox::{CreateSandbox, OnTimeout, SandboxState};
use e2e::service::{Service, served, small};
use e2e::wire::Answer;
use serde_json::{Value, json};

use super::{WAIT, state, until, until_paused};

struct Opened {
    id: SandboxId,
    token: String,
}

async fn ask(service: &Service, method: &str, path: &str, body: Value) -> Answer {
    service.wire().ask(method, path, Some(&body)).await
}

async fn create(service: &Service, options: Value) -> Opened {
    let mut body = json!({ "templateID": "one", "timeout": 6 });
    for (name, value) in options.as_object().unwrap() {
        body[name] = value.clone();
    }
    let answer = ask(service, "POST", "/v2/sandboxes", body).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    let text = |name: &str| answer.json()[name].as_str().unwrap().to_owned();
    Opened { id: text("sandboxID").parse().unwrap(), token: text("envdAccessToken") }
}

impl Opened {
    /// Reads a file in the same way as E2B's SDKs, and returns the HTTP status.
    async fn read(&self, service: &Service) -> u16 {
        let headers = [("e2b-sandbox-id", self.id.as_str()), ("x-access-token", self.token.as_str())];
        let wire = service.wire().with_key(None);
        wire.ask_with("GET", "/files?path=/etc/hostname&username=user", None, &headers).await.status
    }

    async fn connect(&self, service: &Service, seconds: u64) -> u16 {
        ask(service, "POST", &format!("/v2/sandboxes/{}/connect", self.id), json!({ "timeout": seconds }))
            .await
            .status
    }

    async fn detail(&self, service: &Service) -> Value {
        service.wire().ask("GET", &format!("/sandboxes/{}", self.id), None).await.json()
    }
}

/// With `autoPause`, the timeout pauses the sandbox. Without `autoResume`, only `connect` resumes it; all
/// other requests get the same response as for a sandbox that does not exist.
#[test]
#[ignore = "starts real sandboxes"]
fn only_connect_resumes_a_sandbox_without_auto_resume() {
    served(async || {
        let service = Service::start();
        service.add_template("one", 'a');
        let client = service.client();
        let sandbox = create(&service, json!({ "autoPause": true })).await;
        assert_eq!(
            sandbox.detail(&service).await["lifecycle"],
            json!({ "autoResume": false, "onTimeout": "pause" })
        );
        assert_eq!(sandbox.read(&service).await, 200);
        until_paused(&client, &sandbox.id).await;
        assert_eq!(sandbox.detail(&service).await["state"], "paused");
        assert_eq!(sandbox.read(&service).await, 502, "the answer for a sandbox that is not there");
        let path = format!("/sandboxes/{}/timeout", sandbox.id);
        assert_eq!(ask(&service, "POST", &path, json!({ "timeout": 60 })).await.status, 404);
        assert_eq!(state(&client, &sandbox.id).await, SandboxState::Paused);
        let other = Opened { id: "nothere".parse().unwrap(), token: sandbox.token.clone() };
        assert_eq!(other.read(&service).await, 502, "control");
        assert_eq!(sandbox.connect(&service, 6).await, 201);
        assert_eq!(sandbox.read(&service).await, 200);
        until_paused(&client, &sandbox.id).await;
        // A resume request of the native API works regardless of `autoResume`.
        client.resume(&sandbox.id).await.unwrap();
        assert_eq!(sandbox.connect(&service, 60).await, 200);
        client.stop(&sandbox.id).await.unwrap();
        service.assert_nothing_left().await;
    });
}

/// With `autoResume`, every request resumes the sandbox, which then lives for at least five minutes.
#[test]
#[ignore = "starts real sandboxes"]
fn every_request_resumes_a_sandbox_with_auto_resume() {
    served(async || {
        let mut service = Service::start();
        service.add_template("one", 'a');
        let client = service.client();
        let sandbox = create(&service, json!({ "autoPause": true, "autoResume": { "enabled": true } })).await;
        assert_eq!(
            sandbox.detail(&service).await["lifecycle"],
            json!({ "autoResume": true, "onTimeout": "pause" })
        );
        until_paused(&client, &sandbox.id).await;
        // A request with a wrong token does not resume the sandbox.
        let wrong = Opened { id: sandbox.id.clone(), token: "wrong".into() };
        assert_eq!(wrong.read(&service).await, 401);
        assert_eq!(state(&client, &sandbox.id).await, SandboxState::Paused);
        service.kill();
        service.begin();
        let client = service.client();
        assert_eq!(sandbox.read(&service).await, 200);
        assert_eq!(state(&client, &sandbox.id).await, SandboxState::Running);
        tokio::time::sleep(Duration::from_secs(8)).await;
        assert_eq!(
            state(&client, &sandbox.id).await,
            SandboxState::Running,
            "the timeout was 6 s, the minimum is 300 s"
        );
        client.stop(&sandbox.id).await.unwrap();
    });
}

/// Without `autoPause`, a sandbox is killed at its timeout. An unsupported option is refused with an error
/// that names it.
#[test]
#[ignore = "starts real sandboxes"]
fn a_sandbox_without_auto_pause_is_killed_at_its_timeout() {
    served(async || {
        let service = Service::start();
        service.add_template("one", 'a');
        let client = service.client();
        let sandbox = create(&service, json!({})).await;
        until(WAIT, "the end", async || state(&client, &sandbox.id).await == SandboxState::Ended).await;
        let body = json!({ "templateID": "one", "autoPause": true, "autoPauseMemory": false });
        let refused = ask(&service, "POST", "/v2/sandboxes", body).await;
        assert!(refused.status == 501 && refused.body.contains("autoPauseMemory"), "{refused:?}");
        // Every request resumes a sandbox that was created through the native API.
        let id = client.create(&CreateSandbox { on_timeout: OnTimeout::Pause, ..small() }).await.unwrap().id;
        let told =
            ask(&service, "POST", &format!("/v2/sandboxes/{id}/connect"), json!({ "timeout": 60 })).await;
        let token = told.json()["envdAccessToken"].as_str().unwrap().to_owned();
        client.pause(&id).await.unwrap();
        assert_eq!(Opened { id: id.clone(), token }.read(&service).await, 200);
        client.stop(&id).await.unwrap();
    });
}
