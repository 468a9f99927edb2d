//! Tests of retries: which requests are retried, which are not, and for how long.

use std::time::{Duration, Instant};

use api::sandbox::{CreateSandbox, Sandbox, SandboxEvent};
use api::server::{Health, Page};
use api::{ErrorCode, Ran, Retry};
use client::Error;
use tokio::net::TcpListener;

use crate::server::{Answer, Server};
use crate::{client, client_of, error, info, spec};

fn sandbox(id: &str) -> Sandbox {
    let request = CreateSandbox::default();
    serde_json::from_value(serde_json::json!({
        "id": id, "project": "p", "template": "base", "tier": "container", "limits": request.limits,
        "idle_ms": request.idle_ms, "labels": {}, "state": "running", "created_at_ms": 1,
    }))
    .unwrap()
}

fn keys(server: &Server) -> Vec<String> {
    server.seen().iter().map(|request| request.headers["idempotency-key"].clone()).collect()
}

/// If a response is lost, the client retries the request with the same idempotency key.
#[tokio::test]
async fn a_create_whose_answer_is_lost_is_asked_again_under_the_same_key() {
    let server = Server::start(|number, _| match number {
        0 => Answer::nothing(),
        1 => Answer::cut("{", 1),
        _ => Answer::json("200 OK", &sandbox("s1")),
    })
    .await;
    let client = client(&server);
    assert_eq!(client.create(&CreateSandbox::default()).await.unwrap().id.as_str(), "s1");
    let first = keys(&server);
    assert_eq!(first.len(), 3);
    assert!(first.iter().all(|key| key == &first[0]), "{first:?}");
    client.create(&CreateSandbox::default()).await.unwrap();
    assert_ne!(keys(&server)[3], first[0], "another create is another key");
}

/// An exec request is retried in the same way, even if the connection breaks between the response headers and
/// the first line.
#[tokio::test]
async fn an_exec_whose_start_is_not_said_is_asked_again_under_the_same_key() {
    let line = serde_json::json!({"type": "started", "exec": info()}).to_string() + "\n";
    let server = Server::start(move |number, _| match number {
        0 => Answer::nothing(),
        1 => Answer::cut(&line, 0),
        2 => Answer::cut(&line, 20),
        3 => Answer::text("").then_silence(),
        _ => Answer::text(&line),
    })
    .await;
    let exec = client(&server).exec(&"s1".parse().unwrap(), &spec()).await.unwrap();
    assert_eq!(exec.id().as_str(), "e1");
    let keys = keys(&server);
    assert_eq!(keys.len(), 5);
    assert!(keys.iter().all(|key| key == &keys[0] && key.len() == 32), "{keys:?}");
}

#[tokio::test]
async fn every_request_names_the_key_and_the_version() {
    let server = Server::start(|_, _| Answer::json("200 OK", &sandbox("s1"))).await;
    client(&server).sandbox(&"s1".parse().unwrap()).await.unwrap();
    let request = &server.seen()[0];
    assert_eq!(request.line, "GET /v1/sandboxes/s1");
    assert_eq!(request.headers["authorization"], "Bearer secret");
    assert_eq!(request.headers["bellglass-version"], "1");
}

/// If the server does not support the client's version, the client reports this immediately, without a retry.
#[tokio::test]
async fn a_server_of_another_version_is_a_clear_error_at_once() {
    let server = Server::start(|_, _| {
        Answer::json("400 Bad Request", &error(ErrorCode::VersionUnsupported, Retry::Useless))
    })
    .await;
    let refused = client(&server).create(&CreateSandbox::default()).await.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::VersionUnsupported));
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn a_server_that_is_not_ready_is_asked_again() {
    let server = Server::start(|number, _| match number {
        0 => Answer::json("503 Service Unavailable", &error(ErrorCode::StoreUnavailable, Retry::Safe)),
        1 => Answer::json("429 Too Many Requests", &error(ErrorCode::RateLimited, Retry::Safe)),
        2 => Answer::json("503 Service Unavailable", &error(ErrorCode::Capacity, Retry::Safe)),
        3 => Answer::empty("502 Bad Gateway"),
        _ => Answer::json("201 Created", &sandbox("s1")),
    })
    .await;
    client(&server).create(&CreateSandbox::default()).await.unwrap();
    assert_eq!(server.seen().len(), 5);
}

#[tokio::test]
async fn what_the_server_says_is_useless_to_repeat_is_not_repeated() {
    for code in [ErrorCode::Capacity, ErrorCode::QuotaExceeded, ErrorCode::Forbidden, ErrorCode::Platform] {
        let retry = if code == ErrorCode::QuotaExceeded { Retry::Safe } else { Retry::Useless };
        let server =
            Server::start(move |_, _| Answer::json("503 Service Unavailable", &error(code, retry))).await;
        let refused = client(&server).create(&CreateSandbox::default()).await.unwrap_err();
        assert_eq!((refused.code(), server.seen().len()), (Some(code), 1));
    }
}

#[tokio::test]
async fn a_pause_that_the_server_asks_for_is_kept_or_given_up_on() {
    let busy = |seconds: u32| {
        move |number: usize, _: &_| match number {
            0 => {
                let header = format!("retry-after: {seconds}\r\n");
                Answer::json_after("503 Busy", &error(ErrorCode::Capacity, Retry::Safe), &header)
            }
            _ => Answer::json("201 Created", &sandbox("s1")),
        }
    };
    let began = Instant::now();
    client(&Server::start(busy(1)).await).create(&CreateSandbox::default()).await.unwrap();
    assert!(began.elapsed() >= Duration::from_secs(1));
    let began = Instant::now();
    client(&Server::start(busy(3600)).await).create(&CreateSandbox::default()).await.unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(1));
}

#[tokio::test]
async fn a_server_that_restarts_is_waited_for_and_one_that_is_down_is_not_for_ever() {
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let client = client_of(&format!("http://{address}"));
    let began = Instant::now();
    let error = client.sandbox(&"s1".parse().unwrap()).await.unwrap_err();
    assert!(
        matches!(&error, Error::Unreachable { ran: Ran::No, why, .. } if why.contains("refused")),
        "{error}"
    );
    assert!(began.elapsed() < Duration::from_secs(9));
    let request = CreateSandbox::default();
    let (asking, server) = tokio::join!(client.create(&request), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let listener = TcpListener::bind(address).await.unwrap();
        Server::on(listener, |_, _| Answer::json("201 Created", &sandbox("s1")))
    });
    asking.unwrap();
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn a_signal_is_never_sent_twice() {
    let server = Server::start(|_, _| Answer::nothing()).await;
    let lost = client(&server).signal(&"s1".parse().unwrap(), &"e1".parse().unwrap(), 15).await.unwrap_err();
    assert!(matches!(lost, Error::Unreachable { ran: Ran::Unknown, .. }), "{lost}");
    assert_eq!(lost.to_api().retry, Retry::Unknown);
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn a_stdin_write_whose_answer_is_lost_is_repeated_at_its_offset() {
    let server = Server::start(|number, request| match number {
        1 => Answer::nothing(),
        _ => {
            let last = request.line.contains("last=true");
            let received = if last || number > 0 { 5 } else { 3 };
            Answer::json("200 OK", &serde_json::json!({ "received": received }))
        }
    })
    .await;
    let mut stdin = client(&server).stdin(&"s1".parse().unwrap(), &"e1".parse().unwrap());
    stdin.write("abc".into()).await.unwrap();
    stdin.write("de".into()).await.unwrap();
    stdin.close().await.unwrap();
    let seen: Vec<_> = server
        .seen()
        .iter()
        .map(|r| (r.line.split_once('?').unwrap().1.to_owned(), r.body.clone()))
        .collect();
    let expected: Vec<(String, Vec<u8>)> = vec![
        ("offset=0&last=false".into(), b"abc".to_vec()),
        ("offset=3&last=false".into(), b"de".to_vec()),
        ("offset=3&last=false".into(), b"de".to_vec()),
        ("offset=5&last=true".into(), Vec::new()),
    ];
    assert_eq!(seen, expected);
}

/// The server waits only a limited time for the process to read a chunk; the process may take longer.
#[tokio::test]
async fn a_process_that_does_not_read_is_waited_for_piece_by_piece() {
    let server = Server::start(|number, request| match number {
        0 | 2 => Answer::json("504 Gateway Timeout", &error(ErrorCode::Deadline, Retry::Unknown)),
        _ => {
            let offset = request.line.split(['=', '&']).nth(1).unwrap().parse::<usize>().unwrap();
            Answer::json("200 OK", &serde_json::json!({ "received": offset + request.body.len() }))
        }
    })
    .await;
    let mut stdin = client(&server).stdin(&"s1".parse().unwrap(), &"e1".parse().unwrap());
    stdin.write(vec![b'x'; (1 << 20) + 5].into()).await.unwrap();
    let sizes: Vec<_> = server.seen().iter().map(|request| request.body.len()).collect();
    assert_eq!(sizes, [1 << 20, 1 << 20, 5, 5]);
}

#[tokio::test]
async fn a_list_is_all_of_its_pages() {
    let server = Server::start(|number, _| {
        let next = (number == 0).then(|| "a/b".to_owned());
        Answer::json("200 OK", &Page { items: vec![sandbox(&format!("s{number}"))], next })
    })
    .await;
    let ids: Vec<_> = client(&server).sandboxes(true).await.unwrap().into_iter().map(|s| s.id).collect();
    assert_eq!(ids, ["s0".parse().unwrap(), "s1".parse().unwrap()]);
    let lines: Vec<_> = server.seen().iter().map(|request| request.line.clone()).collect();
    assert_eq!(lines[1], "GET /v1/sandboxes?all=true&limit=1000&cursor=a%2Fb");
}

#[tokio::test]
async fn health_is_what_it_is_now() {
    let sick = Health { ok: false, store: false, sandbox: true, tried_ms_ago: 1, took_ms: 2 };
    let body = sick.clone();
    let server = Server::start(move |_, _| Answer::json("503 Service Unavailable", &body)).await;
    assert_eq!(client(&server).health().await.unwrap(), sick);
    assert_eq!(server.seen().len(), 1);
}

/// A response must neither make the client send its key to a different server nor fill the client's memory.
#[tokio::test]
async fn a_foreign_answer_is_neither_followed_nor_believed() {
    let elsewhere = Server::start(|_, _| Answer::json("200 OK", &sandbox("s1"))).await;
    let location = format!("location: {}/\r\n", elsewhere.url());
    let server = Server::start(move |_, _| Answer::json_after("302 Found", &"elsewhere", &location)).await;
    let error = client(&server).sandbox(&"s1".parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Protocol { .. }), "{error}");
    assert_eq!(elsewhere.seen().len(), 0);
    let huge = " ".repeat(api::limits::BODY_BYTES_MAX + 1);
    let server = Server::start(move |_, _| Answer::text(&huge)).await;
    let error = client(&server).sandbox(&"s1".parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Protocol { .. }), "{error}");
}

#[tokio::test]
async fn events_that_may_have_been_missed_are_said_to_be() {
    let server = Server::start(|number, _| {
        let event = serde_json::json!({"type": "changed", "sandbox": sandbox(&format!("s{number}"))});
        let line = format!("{event}\n{{\"type\":\"heartbeat\"}}\n");
        if number == 0 { Answer::cut(&line, line.len()) } else { Answer::text(&line).then_silence() }
    })
    .await;
    let mut events = client(&server).events();
    assert!(matches!(events.next().await.unwrap(), SandboxEvent::Changed { .. }));
    assert_eq!(events.next().await.unwrap(), SandboxEvent::Missed { count: 0 });
    assert!(matches!(events.next().await.unwrap(), SandboxEvent::Changed { .. }));
}
