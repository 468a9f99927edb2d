//! Tests over streamable HTTP.

use std::time::Duration;

use api::ErrorCode;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::{Log, asked, hello, noted};
use crate::mcp::service::Answered;
use crate::mcp::{Service, Settings};

const IDLE: Duration = Duration::from_secs(600);

struct World {
    service: Service,
    log: Log,
}

/// Builder for a request.
struct Said<'a> {
    world: &'a World,
    owner: &'static str,
    session: Option<&'a str>,
    origin: Option<&'static str>,
}

impl World {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Settings {
            sessions_max: 3,
            sessions_of_owner_max: 2,
            idle: IDLE,
            body_bytes_max: 1 << 20,
            hosts: Vec::new(),
            origins: Vec::new(),
        };
        change(&mut settings);
        Self { service: Service::new(settings), log: Log::default() }
    }

    fn of(&self, owner: &'static str) -> Said<'_> {
        Said { world: self, owner, session: None, origin: None }
    }

    /// Opens a session and returns its ID.
    async fn open(&self, owner: &'static str) -> String {
        let response = self.of(owner).post(&hello("2025-11-25")).await.unwrap();
        let id = response.headers()["mcp-session-id"].to_str().unwrap().to_owned();
        assert_eq!(last(response).await["result"]["serverInfo"]["name"], "bellglass");
        let said = self.of(owner).within(&id).post(&noted("notifications/initialized", json!({}))).await;
        assert_eq!(said.unwrap().status(), StatusCode::ACCEPTED);
        id
    }
}

impl<'a> Said<'a> {
    fn within(mut self, session: &'a str) -> Self {
        self.session = Some(session);
        self
    }

    fn from(mut self, origin: &'static str) -> Self {
        self.origin = Some(origin);
        self
    }

    async fn post(self, message: &Value) -> Result<Answered, api::Error> {
        self.send("POST", message.to_string()).await
    }

    async fn call(self, id: u64, tool: &str, arguments: Value) -> Result<Answered, api::Error> {
        self.post(&asked(id, "tools/call", json!({ "name": tool, "arguments": arguments }))).await
    }

    async fn send(self, method: &str, body: String) -> Result<Answered, api::Error> {
        let mut request = Request::builder()
            .method(method)
            .uri("/mcp")
            .header("host", "bellglass.example")
            .header("accept", "application/json, text/event-stream")
            .header("content-type", "application/json");
        if let Some(session) = self.session {
            request = request.header("mcp-session-id", session);
        }
        if let Some(origin) = self.origin {
            request = request.header("origin", origin);
        }
        let request = request.body(Full::new(Bytes::from(body))).unwrap();
        self.world.service.handle(self.owner, || Ok(self.world.log.host(self.owner)), request).await
    }
}

/// Returns the last message in an event stream.
async fn last(response: Response<impl http_body::Body<Data = Bytes, Error: std::fmt::Debug>>) -> Value {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8(body.to_vec()).unwrap();
    let data = text
        .lines()
        .filter_map(|line| line.strip_prefix("data:"))
        .map(str::trim)
        .rfind(|data| !data.is_empty());
    serde_json::from_str(data.unwrap_or("null")).unwrap()
}

fn code<T>(result: Result<T, api::Error>) -> ErrorCode {
    result.map(drop).unwrap_err().code
}

#[tokio::test(start_paused = true)]
async fn a_session_stays_with_its_host() {
    let world = World::new();
    let id = world.open("ann").await;
    let answer = last(world.of("ann").within(&id).call(1, "say", json!({ "x": 1 })).await.unwrap()).await;
    assert_eq!(answer["result"]["structuredContent"], json!({ "x": 1 }));
    assert_eq!(world.log.count("ann say"), 1);
}

#[tokio::test(start_paused = true)]
async fn to_another_owner_there_is_no_such_session() {
    let world = World::new();
    let id = world.open("ann").await;
    for method in ["POST", "GET", "DELETE"] {
        let body = hello("2025-11-25").to_string();
        assert_eq!(
            code(world.of("eve").within(&id).send(method, body).await),
            ErrorCode::NotFound,
            "{method}"
        );
    }
    assert_eq!(code(world.of("ann").within("none").call(1, "say", json!({})).await), ErrorCode::NotFound);
    assert!(world.of("ann").within(&id).call(1, "say", json!({})).await.is_ok());
    assert_eq!(world.log.count("ann end"), 0);
}

#[tokio::test(start_paused = true)]
async fn delete_cuts_off_calls_and_ends_the_session_of_the_host() {
    let world = World::new();
    let id = world.open("ann").await;
    let waiting = world.of("ann").within(&id).call(1, "wait", json!({})).await.unwrap();
    world.log.until("ann wait").await;
    let gone = world.of("ann").within(&id).send("DELETE", String::new()).await.unwrap();
    assert_eq!(gone.status(), StatusCode::NO_CONTENT);
    world.log.until("ann dropped").await;
    world.log.until("ann end").await;
    last(waiting).await;
    assert_eq!(code(world.of("ann").within(&id).call(2, "say", json!({})).await), ErrorCode::NotFound);
    assert_eq!(world.log.count("ann end"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_is_dropped() {
    let world = World::new();
    let id = world.open("ann").await;
    let waiting = world.of("ann").within(&id).call(1, "wait", json!({})).await.unwrap();
    world.log.until("ann wait").await;
    let cancel = noted("notifications/cancelled", json!({ "requestId": 1 }));
    world.of("ann").within(&id).post(&cancel).await.unwrap();
    world.log.until("ann dropped").await;
    assert_eq!(last(waiting).await, Value::Null);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_not_used_is_ended() {
    let world = World::new();
    let id = world.open("ann").await;
    sleep(IDLE / 2).await;
    world.of("ann").within(&id).call(1, "say", json!({})).await.map(drop).unwrap();
    sleep(IDLE * 3 / 4).await;
    assert_eq!(world.log.count("ann end"), 0);
    sleep(IDLE / 2).await;
    assert_eq!(world.log.count("ann end"), 1);
    assert_eq!(code(world.of("ann").within(&id).call(2, "say", json!({})).await), ErrorCode::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_call_keeps_its_session_though_its_client_was_cut_off() {
    let world = World::new();
    let id = world.open("ann").await;
    let seconds = IDLE.as_secs() * 3;
    drop(world.of("ann").within(&id).call(1, "wait", json!({ "seconds": seconds })).await.unwrap());
    sleep(Duration::from_secs(seconds - 1)).await;
    assert_eq!((world.log.count("ann dropped"), world.log.count("ann end")), (0, 0));
    sleep(IDLE * 3).await;
    assert_eq!((world.log.count("ann dropped"), world.log.count("ann end")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_listens_keeps_its_session() {
    let world = World::new();
    let id = world.open("ann").await;
    let stream = world.of("ann").within(&id).send("GET", String::new()).await.unwrap();
    assert_eq!(stream.status(), StatusCode::OK);
    sleep(IDLE * 5).await;
    assert_eq!(world.log.count("ann end"), 0);
    drop(stream);
    sleep(IDLE * 3).await;
    assert_eq!(world.log.count("ann end"), 1);
}

#[tokio::test(start_paused = true)]
async fn the_session_that_its_owner_used_least_recently_gives_way() {
    let world = World::new();
    let first = world.open("ann").await;
    sleep(Duration::from_secs(1)).await;
    let second = world.open("ann").await;
    sleep(Duration::from_secs(1)).await;
    world.of("ann").within(&first).call(1, "say", json!({})).await.map(drop).unwrap();
    sleep(Duration::from_secs(1)).await;
    world.open("ann").await;
    world.log.until("ann end").await;
    assert!(world.of("ann").within(&first).call(2, "say", json!({})).await.is_ok());
    assert_eq!(code(world.of("ann").within(&second).call(1, "say", json!({})).await), ErrorCode::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_session_in_use_gives_way_to_none() {
    let world = World::new();
    let mut held = Vec::new();
    for _ in 0..2 {
        let id = world.open("ann").await;
        held.push(world.of("ann").within(&id).call(1, "wait", json!({})).await.unwrap());
    }
    assert_eq!(code(world.of("ann").post(&hello("2025-11-25")).await), ErrorCode::QuotaExceeded);
    assert_eq!(world.log.count("ann end"), 0);
}

#[tokio::test(start_paused = true)]
async fn nobody_makes_room_for_somebody_else() {
    let world = World::new();
    for owner in ["ann", "ann", "bob"] {
        world.open(owner).await;
    }
    assert_eq!(code(world.of("eve").post(&hello("2025-11-25")).await), ErrorCode::Capacity);
}

#[tokio::test(start_paused = true)]
async fn a_session_whose_client_went_before_it_was_opened_is_ended() {
    let world = World::new();
    let opening = world.of("ann");
    let message = hello("2025-11-25");
    assert!(timeout(Duration::ZERO, opening.post(&message)).await.is_err());
    sleep(IDLE * 2).await;
    assert_eq!(world.log.count("ann end"), 1);
}

#[tokio::test(start_paused = true)]
async fn what_begins_no_session_keeps_no_room() {
    let world = World::new();
    for _ in 0..5 {
        let refused = world.of("ann").call(1, "say", json!({})).await.unwrap();
        assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    }
    world.open("ann").await;
    assert_eq!((world.log.count("ann say"), world.log.count("ann end")), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_session_reaches_no_host() {
    let world = World::new();
    for version in ["2026-07-28", "2025-11-25"] {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": version,
            "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let params = json!({ "name": "say", "arguments": {}, "_meta": meta });
        let _ = world.of("ann").post(&asked(1, "tools/call", params)).await.unwrap();
    }
    sleep(Duration::from_secs(1)).await;
    assert_eq!(world.log.count("ann say"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_browser_is_answered_only_for_origins_that_are_known() {
    let message = hello("2025-11-25");
    let none = World::new();
    let other = none.of("ann").from("https://chat.example").post(&message).await.unwrap();
    assert_eq!(other.status(), StatusCode::FORBIDDEN);
    let world = World::with(|settings| settings.origins = vec!["https://chat.example:443".into()]);
    let other = world.of("ann").from("https://evil.example").post(&message).await.unwrap();
    assert_eq!(other.status(), StatusCode::FORBIDDEN);
    let known = world.of("ann").from("https://chat.example").post(&message).await.unwrap();
    assert_eq!(known.status(), StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_knows_its_names_answers_to_no_other() {
    let world = World::with(|settings| settings.hosts = vec!["localhost".into()]);
    let response = world.of("ann").post(&hello("2025-11-25")).await.unwrap();
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
}

#[tokio::test(start_paused = true)]
async fn stopping_ends_every_session() {
    let world = World::new();
    world.open("ann").await;
    let id = world.open("bob").await;
    world.of("bob").within(&id).call(1, "wait", json!({})).await.map(drop).unwrap();
    world.log.until("bob wait").await;
    world.service.stop().await;
    assert_eq!(
        (world.log.count("ann end"), world.log.count("bob end"), world.log.count("bob dropped")),
        (1, 1, 1)
    );
}
