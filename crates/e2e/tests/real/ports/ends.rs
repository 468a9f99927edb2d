//! Disconnects and deaths of clients, applications and servers, and the limit on connections.

use std::io::Read;
use std::time::{Duration, Instant};

use api::sandbox::{CreateSandbox, EndReason};
use e2e::service::{small, until};

use super::ground::{Application, WITHIN, asked, head, on_each_tier};

/// Maximum number of connections into one sandbox.
const CONNECTIONS_MAX: usize = 256;

#[test]
#[ignore = "starts real sandboxes"]
fn a_client_that_vanishes_takes_its_connection_along_within_a_second() {
    on_each_tier(async |service, tier| {
        let application = Application::start(service, tier).await;
        let open = |kind: &str| match kind {
            "answer" => {
                let mut held = application.open("GET /hold", "");
                assert!(head(&mut held).starts_with("HTTP/1.1 200 "));
                held
            }
            "events" => {
                let mut held = application.open("GET /events?count=0", "");
                assert!(head(&mut held).contains("text/event-stream"));
                held
            }
            _ => application.websocket(),
        };
        for kind in ["answer", "events", "websocket"] {
            let all: Vec<_> = (0..3).map(|_| open(kind)).collect();
            application.until_held(3).await;
            drop(all);
            let took = application.until_held(0).await;
            eprintln!("{tier:?}: {kind}: gone inside after {took:?}");
            assert!(took < e2e::lab::promised(1), "{kind}: {took:?}");
        }
    });
}

#[test]
#[ignore = "starts real sandboxes"]
fn an_application_that_dies_in_the_middle_of_an_answer_has_not_answered() {
    on_each_tier(async |service, tier| {
        let application = Application::start(service, tier).await;
        let cut = application.curl("/die", &[]);
        assert!(!cut.status.success(), "half an answer was taken for one: {cut:?}");
        assert_eq!(cut.stdout, b"only this");
        let token = format!("bellglass-token: {}", application.port.token);
        let (status, body) = asked(&application.port.url, &["-H", &token]);
        assert_eq!(status, 502, "{body}");
        application.serve().await;
        assert_eq!(asked(&application.port.url, &["-H", &token]).0, 200);
        // Once the node has forgotten the stopped sandbox, its token is rejected in the same way as a wrong
        // token.
        application.client.stop(&application.sandbox.id).await.unwrap();
        until(WITHIN, "the node to forget it", async || {
            asked(&application.port.url, &["-H", &token]).0 != 410
        })
        .await;
        assert_eq!(asked(&application.port.url, &["-H", &token]).0, 401);
    });
}

#[test]
#[ignore = "starts real sandboxes"]
fn a_server_that_is_killed_cuts_what_is_open_and_the_token_stays() {
    on_each_tier(async |service, tier| {
        let application = Application::start(service, tier).await;
        let mut held = application.open("GET /hold", "");
        head(&mut held);
        let mut socket = application.websocket();
        application.until_held(2).await;
        service.kill();
        // An interrupted response must not look complete.
        let mut rest = Vec::new();
        let _ = held.read_to_end(&mut rest);
        assert!(!rest.ends_with(b"0\r\n\r\n"), "{rest:?}");
        assert!(socket.read(&mut [0; 16]).map_or(true, |count| count == 0));
        service.begin();
        // The guest closed its connections to the application when the server died.
        let took = application.until_held(0).await;
        assert!(took < e2e::lab::promised(5), "{took:?}");
        let after = application.client.port(&application.sandbox.id, 8000).await.unwrap();
        assert_eq!(after, application.port);
    });
}

#[test]
#[ignore = "starts real sandboxes"]
fn a_connection_keeps_its_sandbox_and_there_are_so_many_and_no_more() {
    on_each_tier(async |service, tier| {
        let application = Application::start(service, tier).await;
        let mut all = Vec::new();
        // Leave one connection free for `until_held`, which asks the application how many connections it
        // holds.
        for _ in 0..CONNECTIONS_MAX - 1 {
            let mut held = application.open("GET /hold", "");
            head(&mut held);
            all.push(held);
        }
        application.until_held(CONNECTIONS_MAX - 1).await;
        let mut last = application.open("GET /hold", "");
        assert!(head(&mut last).starts_with("HTTP/1.1 200 "));
        let token = format!("bellglass-token: {}", application.port.token);
        let (status, body) = asked(&application.port.url, &["-H", &token]);
        assert_eq!(status, 503, "{body}");
        assert!(body.contains("\"capacity\""), "{body}");
        drop(last);
        let begun = Instant::now();
        until(WITHIN, "a place", async || asked(&application.port.url, &["-H", &token]).0 == 200).await;
        eprintln!("{tier:?}: {CONNECTIONS_MAX} at once, a place was free after {:?}", begun.elapsed());
        drop(all);
    });
}

#[test]
#[ignore = "starts real sandboxes"]
fn an_open_connection_is_a_use_of_its_sandbox() {
    const IDLE: Duration = Duration::from_secs(4);
    on_each_tier(async |service, tier| {
        let idle_ms = u64::try_from(IDLE.as_millis()).unwrap();
        let application = Application::left_behind(service, CreateSandbox { tier, idle_ms, ..small() }).await;
        let (client, id) = (&application.client, &application.sandbox.id);
        let mut socket = application.websocket();
        tokio::time::sleep(2 * IDLE).await;
        assert_eq!(super::ground::exchange(&mut socket, "still there"), "still there");
        drop(socket);
        until(WITHIN, "its end", async || client.sandbox(id).await.unwrap().state.is_terminal()).await;
        assert_eq!(client.sandbox(id).await.unwrap().reason, Some(EndReason::Idle));
    });
}
