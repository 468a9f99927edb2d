//! Tests over a pair of pipes in place of standard input and output.

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{Log, asked, hello, noted};
use crate::mcp::{StdioError, serve};

struct Client {
    lines: Lines<BufReader<ReadHalf<DuplexStream>>>,
    writer: WriteHalf<DuplexStream>,
    served: JoinHandle<Result<(), StdioError>>,
    stop: CancellationToken,
}

impl Client {
    fn connect(log: &Log) -> Self {
        let (near, far) = tokio::io::duplex(1 << 16);
        let stop = CancellationToken::new();
        let served = tokio::spawn(serve(log.host("pipe"), tokio::io::split(far), stop.clone()));
        let (reader, writer) = tokio::io::split(near);
        Self { lines: BufReader::new(reader).lines(), writer, served, stop }
    }

    async fn greet(log: &Log, version: &str) -> Self {
        let mut client = Self::connect(log);
        client.say(&hello(version)).await;
        assert_eq!(client.hear().await["result"]["protocolVersion"], version);
        client.say(&noted("notifications/initialized", json!({}))).await;
        client
    }

    async fn say(&mut self, message: &Value) {
        self.writer.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    async fn hear(&mut self) -> Value {
        serde_json::from_str(&self.lines.next_line().await.unwrap().unwrap()).unwrap()
    }

    async fn gone(self) -> Result<(), StdioError> {
        drop((self.lines, self.writer));
        self.served.await.unwrap()
    }
}

fn call(id: u64, tool: &str) -> Value {
    asked(id, "tools/call", json!({ "name": tool, "arguments": {}, "_meta": { "progressToken": id } }))
}

#[tokio::test(start_paused = true)]
async fn the_server_says_who_it_is_and_what_its_host_says() {
    let log = Log::default();
    let mut client = Client::connect(&log);
    client.say(&hello("2025-06-18")).await;
    let said = client.hear().await["result"].clone();
    assert_eq!(said["serverInfo"], json!({ "name": "bellglass", "version": env!("CARGO_PKG_VERSION") }));
    assert_eq!(said["instructions"], "I am pipe.");
    assert_eq!(said["capabilities"], json!({ "tools": {}, "resources": { "listChanged": true } }));
}

#[tokio::test(start_paused = true)]
async fn a_client_of_a_later_version_is_told_the_last_with_sessions() {
    let log = Log::default();
    let mut client = Client::connect(&log);
    client.say(&hello("2026-07-28")).await;
    assert_eq!(client.hear().await["result"]["protocolVersion"], "2025-11-25");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_is_dropped_and_never_answered() {
    let log = Log::default();
    let mut client = Client::greet(&log, "2025-11-25").await;
    client.say(&call(1, "wait")).await;
    let told = client.hear().await;
    assert_eq!(told["params"], json!({ "progressToken": 1, "progress": 1.0, "message": "waiting" }));
    client.say(&noted("notifications/cancelled", json!({ "requestId": 1 }))).await;
    log.until("pipe dropped").await;
    client.say(&call(2, "say")).await;
    assert_eq!(client.hear().await["id"], 2);
}

#[tokio::test(start_paused = true)]
async fn a_silent_call_is_said_to_be_alive() {
    let log = Log::default();
    let mut client = Client::greet(&log, "2025-11-25").await;
    client.say(&call(1, "wait")).await;
    for progress in [1.0, 2.0, 3.0] {
        assert_eq!(client.hear().await["params"]["progress"], progress);
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_made_is_announced_before_the_answer() {
    let log = Log::default();
    let mut client = Client::greet(&log, "2025-11-25").await;
    client.say(&call(1, "make")).await;
    assert_eq!(client.hear().await["method"], "notifications/resources/list_changed");
    assert_eq!(client.hear().await["result"]["content"][1]["type"], "resource_link");
}

#[tokio::test(start_paused = true)]
async fn a_client_from_before_links_is_given_none() {
    let log = Log::default();
    let mut client = Client::greet(&log, "2025-03-26").await;
    client.say(&call(1, "make")).await;
    client.hear().await;
    assert_eq!(client.hear().await["result"]["content"].as_array().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn calls_beyond_the_bound_are_refused_with_words() {
    let log = Log::default();
    let mut client = Client::greet(&log, "2025-11-25").await;
    for id in 1..=17 {
        client.say(&asked(id, "tools/call", json!({ "name": "wait" }))).await;
    }
    let refused = client.hear().await;
    assert_eq!(refused["result"]["isError"], true);
    assert_eq!(refused["result"]["structuredContent"]["error"]["code"], "limit_exceeded");
}

#[tokio::test(start_paused = true)]
async fn an_artifact_too_large_for_a_message_is_refused() {
    let log = Log::default();
    let mut client = Client::greet(&log, "2025-11-25").await;
    client.say(&asked(1, "resources/read", json!({ "uri": "bellglass://artifacts/large" }))).await;
    assert_eq!(client.hear().await["error"]["code"], -32602);
    client.say(&asked(2, "resources/read", json!({ "uri": "bellglass://artifacts/small" }))).await;
    assert_eq!(client.hear().await["result"]["contents"][0]["text"], "\0");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_takes_its_session_and_its_calls_along() {
    let log = Log::default();
    let mut client = Client::greet(&log, "2025-11-25").await;
    client.say(&call(1, "wait")).await;
    log.until("pipe wait").await;
    client.gone().await.unwrap();
    assert_eq!(log.lines(), ["pipe wait", "pipe dropped", "pipe end"]);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_speaks_is_no_error() {
    let log = Log::default();
    Client::connect(&log).gone().await.unwrap();
    assert_eq!(log.count("pipe end"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_stopped_ends_the_session() {
    let log = Log::default();
    let mut client = Client::greet(&log, "2025-11-25").await;
    client.say(&call(1, "wait")).await;
    log.until("pipe wait").await;
    client.stop.cancel();
    client.served.await.unwrap().unwrap();
    assert_eq!((log.count("pipe dropped"), log.count("pipe end")), (1, 1));
}
