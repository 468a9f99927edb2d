//! Tests that send a client's messages to a fake host, without a network.

mod http;
mod pipe;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use super::{Artifact, CallProgress, Content, Host, Tool, ToolAnswer};

/// Log of the calls that fake hosts receive.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

/// Fake host that logs its calls.
struct Fake {
    name: &'static str,
    log: Log,
}

/// Guard that logs when it is dropped.
struct Watched(String, Log);

impl Log {
    fn host(&self, name: &'static str) -> Arc<dyn Host> {
        Arc::new(Fake { name, log: self.clone() })
    }

    fn add(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }

    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    fn count(&self, line: &str) -> usize {
        self.lines().iter().filter(|said| *said == line).count()
    }

    /// Waits until the log contains this line. Time is paused in these tests, so the wait takes no real time.
    async fn until(&self, line: &str) {
        for _ in 0..10_000 {
            if self.count(line) > 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("`{line}` never came; there were {:?}", self.lines());
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.1.add(std::mem::take(&mut self.0));
    }
}

#[async_trait]
impl Host for Fake {
    fn tools(&self) -> Vec<Tool> {
        let schema = Map::from_iter([("type".to_owned(), json!("object"))]);
        ["say", "wait", "make"]
            .map(|name| Tool { name: name.into(), description: String::new(), schema: schema.clone() })
            .into()
    }

    fn instructions(&self) -> String {
        format!("I am {}.", self.name)
    }

    async fn call(
        &self,
        tool: &str,
        arguments: Map<String, Value>,
        progress: mpsc::Sender<CallProgress>,
    ) -> Result<ToolAnswer, api::Error> {
        self.log.add(format!("{} {tool}", self.name));
        let mut answer = ToolAnswer { result: arguments, ..ToolAnswer::default() };
        match tool {
            "wait" => {
                let _watched = Watched(format!("{} dropped", self.name), self.log.clone());
                let _ = progress.send(CallProgress::Output { stderr: false, text: "waiting".into() }).await;
                let seconds =
                    answer.result.get("seconds").and_then(Value::as_u64).unwrap_or(u64::from(u32::MAX));
                tokio::time::sleep(Duration::from_secs(seconds)).await;
            }
            "make" => {
                answer.artifacts.push(Artifact {
                    name: "a".into(),
                    mime: "text/plain".into(),
                    size_bytes: 1,
                });
            }
            _ => {}
        }
        Ok(answer)
    }

    async fn artifacts(&self) -> Result<Vec<Artifact>, api::Error> {
        Ok(Vec::new())
    }

    async fn artifact(&self, name: &str) -> Result<Content, api::Error> {
        let bytes = if name == "large" { vec![0; 10_000_001] } else { vec![0] };
        Ok(Content { mime: "text/plain".into(), bytes: bytes.into() })
    }

    async fn end(&self) {
        self.log.add(format!("{} end", self.name));
    }
}

/// Returns a JSON-RPC request.
fn asked(id: u64, method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

/// Returns the `initialize` request, which every client sends first.
fn hello(version: &str) -> Value {
    let client = json!({ "name": "test", "version": "1" });
    asked(0, "initialize", json!({ "protocolVersion": version, "capabilities": {}, "clientInfo": client }))
}

/// Returns a JSON-RPC notification.
fn noted(method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "method": method, "params": params })
}
