//! Targets that are Python libraries. Each has a small program in `drivers/` that executes operations, which
//! it receives as lines of JSON.
//!
//! ```text
//! driver: {"facts": {"version": "…"}, "powers": ["exec", "code", "contexts", "files"]}        once, when it is ready
//! bench:  {"id": 7, "op": "create", "image": "data"}
//! driver: {"id": 7, "handle": "k1"}   or   {"id": 7, "error": {"code": "…", "message": "…"}}
//! ```
//!
//! Requests overlap, and responses arrive in any order. The operations are `create`, `stop`, `exec`, `run`,
//! `cell`, `upload` and `download`.

mod place;

use std::collections::{BTreeMap, HashMap};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex as Lock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{Mutex, oneshot};

use super::{CodeRuns, Contexts, Execs, FileTransfers, Image, Made, Target, TargetFailure};
use crate::process;

pub use place::{jupyter, llm_sandbox};

/// Timeout for starting a driver. During this time, its interpreter imports the library and connects to its
/// engine.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Timeout for the shutdown of a driver. The driver stops its sandboxes when its standard input is closed.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

/// Running driver.
pub struct Driver {
    name: &'static str,
    hello: Hello,
    requests: AtomicU64,
    stdin: Mutex<Option<ChildStdin>>,
    waiting: Arc<Lock<HashMap<u64, oneshot::Sender<DriverReply>>>>,
    child: Mutex<Child>,
    deadline: Duration,
    /// Command that removes the driver's container, if it has one.
    after: Lock<Option<Command>>,
}

/// First message from a driver.
#[derive(Deserialize)]
struct Hello {
    facts: BTreeMap<String, String>,
    powers: Vec<String>,
}

#[derive(Deserialize)]
struct DriverReply {
    id: u64,
    #[serde(default)]
    handle: Option<String>,
    #[serde(default)]
    bytes: Option<u64>,
    #[serde(default)]
    error: Option<Wrong>,
}

#[derive(Deserialize)]
struct Wrong {
    code: String,
    message: String,
}

impl Driver {
    /// Starts a driver, and waits until it is ready.
    async fn start(
        name: &'static str,
        mut command: Command,
        after: Option<Command>,
        deadline: Duration,
    ) -> Result<Self, TargetFailure> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let started = command.spawn();
        let mut child = started.map_err(|error| TargetFailure::new("not_started", error.to_string()))?;
        let silent =
            || TargetFailure::new("not_started", format!("the driver of {name} exited without a message"));
        let (stdin, stdout) = child.stdin.take().zip(child.stdout.take()).ok_or_else(silent)?;
        let mut lines = BufReader::new(stdout).lines();
        let first = tokio::time::timeout(READY_WITHIN, lines.next_line()).await;
        let first = first.ok().and_then(Result::ok).flatten().ok_or_else(silent)?;
        let hello: Hello = match serde_json::from_str::<Value>(&first) {
            Ok(Value::Object(said)) if said.contains_key("error") => {
                let said = said.get("error").and_then(Value::as_str).unwrap_or_default();
                return Err(TargetFailure::new("not_started", said));
            }
            Ok(said) => serde_json::from_value(said).map_err(|error| nonsense(&error))?,
            Err(error) => return Err(nonsense(&error)),
        };
        let waiting = Arc::new(Lock::new(HashMap::new()));
        tokio::spawn(listen(lines, Arc::clone(&waiting)));
        Ok(Self {
            name,
            hello,
            requests: AtomicU64::new(0),
            stdin: Mutex::new(Some(stdin)),
            waiting,
            child: Mutex::new(child),
            deadline,
            after: Lock::new(after),
        })
    }

    async fn ask(&self, mut request: Value) -> Result<DriverReply, TargetFailure> {
        let id = self.requests.fetch_add(1, Ordering::Relaxed);
        if let Value::Object(fields) = &mut request {
            fields.insert("id".into(), json!(id));
        }
        let (send, receive) = oneshot::channel();
        let gone = || TargetFailure::new("driver_gone", format!("the driver of {} has exited", self.name));
        self.waiting.lock().map_err(|_| gone())?.insert(id, send);
        let line = format!("{request}\n");
        match self.stdin.lock().await.as_mut() {
            Some(stdin) => stdin.write_all(line.as_bytes()).await.map_err(|_| gone())?,
            None => return Err(gone()),
        }
        let answer = match tokio::time::timeout(self.deadline, receive).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => return Err(gone()),
            Err(_) => return Err(TargetFailure::new("deadline", "no answer")),
        };
        match answer.error {
            Some(wrong) => Err(TargetFailure::new(wrong.code, wrong.message)),
            None => Ok(answer),
        }
    }

    fn has(&self, power: &str) -> bool {
        self.hello.powers.iter().any(|one| one == power)
    }
}

/// Delivers each response to the request that waits for it. When the driver exits, all waiting requests fail.
async fn listen(
    mut lines: Lines<BufReader<ChildStdout>>,
    waiting: Arc<Lock<HashMap<u64, oneshot::Sender<DriverReply>>>>,
) {
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(answer) = serde_json::from_str::<DriverReply>(&line) else { continue };
        let asked = waiting.lock().ok().and_then(|mut waiting| waiting.remove(&answer.id));
        if let Some(asked) = asked {
            let _ = asked.send(answer);
        }
    }
    if let Ok(mut waiting) = waiting.lock() {
        waiting.clear();
    }
}

fn nonsense(error: &serde_json::Error) -> TargetFailure {
    TargetFailure::new("protocol", format!("the driver's first line is not a valid hello: {error}"))
}

#[async_trait]
impl Target for Driver {
    fn name(&self) -> &'static str {
        self.name
    }

    fn facts(&self) -> BTreeMap<String, String> {
        self.hello.facts.clone()
    }

    async fn create(&self, image: Image) -> Result<Made, TargetFailure> {
        let image = match image {
            Image::Plain => "plain",
            Image::Data => "data",
        };
        let answer = self.ask(json!({ "op": "create", "image": image })).await?;
        let handle =
            answer.handle.ok_or_else(|| TargetFailure::new("protocol", "a sandbox without a handle"))?;
        Ok(Made { handle, start: None })
    }

    async fn stop(&self, handle: &str) -> Result<(), TargetFailure> {
        self.ask(json!({ "op": "stop", "handle": handle })).await.map(drop)
    }

    async fn close(&self) {
        drop(self.stdin.lock().await.take());
        let mut child = self.child.lock().await;
        if tokio::time::timeout(ENDS_WITHIN, child.wait()).await.is_err() {
            let _ = child.start_kill();
        }
        let after = self.after.lock().ok().and_then(|mut after| after.take());
        if let Some(mut after) = after {
            let _ = process::run(&mut after, ENDS_WITHIN).await;
        }
    }

    fn execs(&self) -> Option<&dyn Execs> {
        self.has("exec").then_some(self)
    }

    fn code(&self) -> Option<&dyn CodeRuns> {
        self.has("code").then_some(self)
    }

    fn contexts(&self) -> Option<&dyn Contexts> {
        self.has("contexts").then_some(self)
    }

    fn files(&self) -> Option<&dyn FileTransfers> {
        self.has("files").then_some(self)
    }
}

#[async_trait]
impl Execs for Driver {
    async fn exec(&self, handle: &str) -> Result<(), TargetFailure> {
        self.ask(json!({ "op": "exec", "handle": handle, "argv": [super::NOTHING] })).await.map(drop)
    }
}

#[async_trait]
impl CodeRuns for Driver {
    async fn run(&self, handle: &str, source: &str) -> Result<(), TargetFailure> {
        self.ask(json!({ "op": "run", "handle": handle, "source": source })).await.map(drop)
    }
}

#[async_trait]
impl Contexts for Driver {
    async fn cell(&self, handle: &str, source: &str) -> Result<(), TargetFailure> {
        self.ask(json!({ "op": "cell", "handle": handle, "source": source })).await.map(drop)
    }
}

#[async_trait]
impl FileTransfers for Driver {
    async fn upload(&self, handle: &str, name: &str, bytes: Bytes) -> Result<(), TargetFailure> {
        // The driver generates the bytes itself, so that the transfer over its standard input is not part of
        // the measurement.
        self.ask(json!({ "op": "upload", "handle": handle, "name": name, "bytes": bytes.len() }))
            .await
            .map(drop)
    }

    async fn download(&self, handle: &str, name: &str) -> Result<u64, TargetFailure> {
        let answer = self.ask(json!({ "op": "download", "handle": handle, "name": name })).await?;
        answer.bytes.ok_or_else(|| TargetFailure::new("protocol", "a file without a size"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shell script that acts as a driver. It sends its first message, and answers every request with the
    /// same handle.
    const ECHO: &str = r#"echo '{"facts":{"version":"1"},"powers":["exec"]}'
while read -r line; do id=${line#*\"id\":}; echo "{\"id\":${id%%[,\}]*},\"handle\":\"h\"}"; done"#;

    #[tokio::test]
    async fn answers_find_their_questions_and_powers_are_those_that_were_said() {
        let mut shell = process::command("sh");
        shell.args(["-c", ECHO]);
        let driver = Driver::start("jupyter", shell, None, Duration::from_secs(10)).await.unwrap();
        assert!(driver.execs().is_some() && driver.code().is_none());
        for _ in 0..3 {
            assert_eq!(driver.create(Image::Plain).await.unwrap().handle, "h");
        }
        driver.close().await;
        assert_eq!(driver.create(Image::Plain).await.unwrap_err().code, "driver_gone");
    }

    #[tokio::test]
    async fn a_driver_that_cannot_work_says_why() {
        let mut shell = process::command("sh");
        shell.args(["-c", r#"echo '{"error":"no module named x"}'"#]);
        let failed = Driver::start("jupyter", shell, None, Duration::from_secs(10)).await.err().unwrap();
        assert_eq!(failed.message, "no module named x");
    }
}
