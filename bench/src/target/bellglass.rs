//! A Bellglass server, asked through its public API: the one that `BELLGLASS_SERVER` and `BELLGLASS_API_KEY` name, or one that is started here.
//!
//! A create is sent as plain HTTP, because how a sandbox was started is in its answer and may be newer than the typed client. Nothing
//! is asked again: a refusal is a result.

mod server;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use api::code::{self, ContextSpec};
use api::exec::{ExecSpec, Outcome};
use api::files::FilePath;
use api::limits::{Limits, WantedLimits};
use api::sandbox::CreateSandbox;
use api::server::{API_VERSION, IDEMPOTENCY_HEADER, VERSION_HEADER};
use api::{ContextId, ErrorCode, SandboxId};
use async_trait::async_trait;
use bytes::Bytes;
use client::{Client, Options, Patience};
use futures_util::StreamExt as _;
use serde::Deserialize;

use self::server::Server;
pub use self::server::binary;
use super::{
    Code, Contexts, Execs, Failure, Files, Image, MEMORY_BYTES, MEMORY_BYTES_DATA, Made, NOTHING, PIDS,
    Place, Target,
};
use crate::{machine, random, rootfs};

/// By which a run finds what it made.
const LABEL: &str = "bench";
/// A sandbox that a run leaves behind, because it was killed, ends by itself.
const IDLE_MS: u64 = 1_800_000;
/// The largest file of the scenarios, twice, with room.
const DISK_BYTES_DATA: u64 = 512 << 20;
/// Where files are put.
const FILES: &str = "/workspace";
/// Up to this size a file is sent as one piece, as programs do; what is larger as a stream, as the command line does.
const WHOLE_BYTES_MAX: usize = 1 << 20;
/// No file of the scenarios is larger.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// How often it is looked for sandboxes that are left.
const ROUNDS_MAX: usize = 10;
/// To have as many ready as are wanted, or as there is memory and disk for.
const RESTED_WITHIN: Duration = Duration::from_secs(30);
/// Between two looks at that.
const CALM: Duration = Duration::from_millis(200);
/// Sandboxes that are ended at once when all are.
const STOPS_AT_ONCE: usize = 16;

/// A server.
pub struct Bellglass {
    client: Client,
    http: reqwest::Client,
    key: String,
    run: String,
    contexts: Mutex<BTreeMap<String, ContextId>>,
    facts: BTreeMap<String, String>,
    deadline: Duration,
    /// The server, if it is ours. Ended last.
    server: Mutex<Option<Server>>,
}

/// What is read of a sandbox that was made.
#[derive(Deserialize)]
struct Created {
    id: String,
    #[serde(default)]
    start: Option<String>,
}

impl Bellglass {
    /// Finds the server, or starts one.
    pub async fn open(place: &Place<'_>) -> Result<Self, Failure> {
        let mut facts = BTreeMap::new();
        let (url, key, server) = match named() {
            Some((url, key)) => {
                facts.insert("server".into(), "an existing server".into());
                (url, key, None)
            }
            None => {
                let server = Server::start(place).await?;
                facts.insert("server".into(), "started for this run".into());
                facts.insert("version".into(), server.version.clone());
                (server.url.clone(), server.key.clone(), Some(server))
            }
        };
        let patience = Patience { connection: Duration::ZERO, busy: Duration::ZERO };
        let options = Options { patience, answer_within: place.deadline, ..Options::default() };
        let client = Client::with(&url, &key, options).map_err(|error| failure(&error))?;
        let bellglass = Self {
            client,
            http: crate::http::client()?,
            key,
            run: place.run.into(),
            contexts: Mutex::default(),
            facts,
            deadline: place.deadline,
            server: Mutex::new(server),
        };
        bellglass.client.sandboxes(false).await.map_err(|error| failure(&error))?;
        Ok(bellglass)
    }

    async fn finish(&self, handle: &str, spec: ExecSpec) -> Result<(), Failure> {
        let exec = self.client.exec(&id(handle)?, &spec).await.map_err(|error| failure(&error))?;
        let done = exec.collect().await.map_err(|error| failure(&error))?;
        if done.end.outcome == (Outcome::Exited { code: 0 }) {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        Err(Failure::new("outcome", format!("{:?}: {said}", done.end.outcome)))
    }

    async fn run_code(&self, handle: &str, source: &str, context: Option<ContextId>) -> Result<(), Failure> {
        let code = code::Code { source: source.into(), context, ..code::Code::default() };
        self.finish(handle, ExecSpec { code: Some(code), ..ExecSpec::default() }).await
    }

    async fn context(&self, handle: &str) -> Result<ContextId, Failure> {
        let known = self.contexts.lock().ok().and_then(|contexts| contexts.get(handle).cloned());
        if let Some(known) = known {
            return Ok(known);
        }
        let made = self.client.create_context(&id(handle)?, &ContextSpec::default()).await;
        let made = made.map_err(|error| failure(&error))?.id;
        if let Ok(mut contexts) = self.contexts.lock() {
            contexts.insert(handle.into(), made.clone());
        }
        Ok(made)
    }
}

#[async_trait]
impl Target for Bellglass {
    fn name(&self) -> &'static str {
        "bellglass"
    }

    fn facts(&self) -> BTreeMap<String, String> {
        self.facts.clone()
    }

    async fn create(&self, image: Image) -> Result<Made, Failure> {
        let body = serde_json::to_vec(&wanted(image, &self.run))
            .map_err(|error| Failure::new("request", error.to_string()))?;
        let request = self
            .http
            .post(format!("{}/v1/sandboxes", self.client.url()))
            .bearer_auth(&self.key)
            .header(VERSION_HEADER, API_VERSION)
            .header(IDEMPOTENCY_HEADER, random::name()?)
            .header("content-type", "application/json")
            .timeout(self.deadline)
            .body(body);
        let response = request.send().await.map_err(|error| crate::http::lost(&error))?;
        let status = response.status();
        let body = response.bytes().await.map_err(|error| crate::http::lost(&error))?;
        if !status.is_success() {
            return Err(match serde_json::from_slice::<api::Error>(&body) {
                Ok(error) => said_no(&error),
                Err(_) => {
                    Failure::new(format!("http_{}", status.as_u16()), "the response is not from Bellglass")
                }
            });
        }
        let made: Created = serde_json::from_slice(&body)
            .map_err(|error| Failure::new("protocol", format!("malformed sandbox: {error}")))?;
        Ok(Made { handle: made.id, start: made.start })
    }

    async fn stop(&self, handle: &str) -> Result<(), Failure> {
        if let Ok(mut contexts) = self.contexts.lock() {
            contexts.remove(handle);
        }
        self.client.stop(&id(handle)?).await.map(drop).map_err(|error| failure(&error))
    }

    async fn rested(&self) {
        let until = tokio::time::Instant::now() + RESTED_WITHIN;
        while tokio::time::Instant::now() < until {
            let pool = self.client.node().await.map(|node| node.pool).unwrap_or_default();
            if pool.iter().all(|one| one.making == 0 && one.ready >= one.wanted) {
                // What was made last has still to be tidied up after.
                tokio::time::sleep(CALM).await;
                return;
            }
            tokio::time::sleep(CALM).await;
        }
    }

    async fn close(&self) {
        let server = self.server.lock().ok().and_then(|mut server| server.take());
        if server.is_some() {
            // A create that nobody waits for any more goes on: no other begins after this.
            let _ = self.client.drain(true).await;
        }
        // Sandboxes outlive their server, so they are ended first; on a server of others only our own are.
        for _ in 0..ROUNDS_MAX {
            let live = self.client.sandboxes(false).await.unwrap_or_default();
            let ours: Vec<SandboxId> = live
                .into_iter()
                .filter(|one| one.labels.get(LABEL) == Some(&self.run))
                .map(|one| one.id)
                .collect();
            if ours.is_empty() {
                break;
            }
            let stops = ours.into_iter().map(|id| async move { self.client.stop(&id).await.is_ok() });
            futures_util::stream::iter(stops).buffer_unordered(STOPS_AT_ONCE).collect::<Vec<bool>>().await;
        }
        if let Some(server) = server {
            server.end().await;
        }
    }

    fn execs(&self) -> Option<&dyn Execs> {
        Some(self)
    }

    fn code(&self) -> Option<&dyn Code> {
        Some(self)
    }

    fn contexts(&self) -> Option<&dyn Contexts> {
        Some(self)
    }

    fn files(&self) -> Option<&dyn Files> {
        Some(self)
    }

    fn charged_bytes(&self, handles: &[String]) -> Option<u64> {
        handles.iter().map(|handle| machine::charged_bytes(&format!("bellglass/{handle}"))).sum()
    }
}

#[async_trait]
impl Execs for Bellglass {
    async fn exec(&self, handle: &str) -> Result<(), Failure> {
        self.finish(handle, ExecSpec { argv: vec![NOTHING.into()], ..ExecSpec::default() }).await
    }
}

#[async_trait]
impl Code for Bellglass {
    async fn run(&self, handle: &str, source: &str) -> Result<(), Failure> {
        self.run_code(handle, source, None).await
    }
}

#[async_trait]
impl Contexts for Bellglass {
    async fn cell(&self, handle: &str, source: &str) -> Result<(), Failure> {
        let context = self.context(handle).await?;
        self.run_code(handle, source, Some(context)).await
    }
}

#[async_trait]
impl Files for Bellglass {
    async fn upload(&self, handle: &str, name: &str, bytes: Bytes) -> Result<(), Failure> {
        let (files, path) = (self.client.files(&id(handle)?), file(name)?);
        let sent = if bytes.len() <= WHOLE_BYTES_MAX {
            files.write(&path, bytes, None).await
        } else {
            files.write_from(&path, &mut bytes.as_ref(), None).await
        };
        sent.map(drop).map_err(|error| failure(&error))
    }

    async fn download(&self, handle: &str, name: &str) -> Result<u64, Failure> {
        let (files, path) = (self.client.files(&id(handle)?), file(name)?);
        let bytes = files.read(&path, FILE_BYTES_MAX).await.map_err(|error| failure(&error))?;
        Ok(bytes.len() as u64)
    }
}

/// The server that was named, and its key.
pub fn named() -> Option<(String, String)> {
    let said = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    said("BELLGLASS_SERVER").zip(said("BELLGLASS_API_KEY"))
}

fn wanted(image: Image, run: &str) -> CreateSandbox {
    let (memory_bytes, disk_bytes) = match image {
        Image::Plain => (MEMORY_BYTES, Limits::MIN.disk_bytes),
        Image::Data => (MEMORY_BYTES_DATA, DISK_BYTES_DATA),
    };
    CreateSandbox {
        template: rootfs::template(image).into(),
        limits: WantedLimits {
            memory_bytes: Some(memory_bytes),
            disk_bytes: Some(disk_bytes),
            disk_inodes: Some(1024),
            tmp_bytes: Some(16 << 20),
            pids: Some(PIDS),
            ..WantedLimits::default()
        },
        idle_ms: IDLE_MS,
        labels: BTreeMap::from([(LABEL.into(), run.into())]),
        ..CreateSandbox::default()
    }
}

fn id(handle: &str) -> Result<SandboxId, Failure> {
    handle.parse().map_err(|_| Failure::new("protocol", format!("{handle:?} is not an id")))
}

fn file(name: &str) -> Result<FilePath, Failure> {
    FilePath::new(format!("{FILES}/{name}")).map_err(|error| said_no(&error))
}

fn failure(error: &client::Error) -> Failure {
    match error {
        client::Error::Refused(error) => said_no(error),
        client::Error::Unreachable { .. } => Failure::new("unreachable", error.to_string()),
        client::Error::Distrusted { .. }
        | client::Error::Protocol { .. }
        | client::Error::Local { .. }
        | client::Error::Configuration { .. } => Failure::new("client", error.to_string()),
    }
}

/// What a server answered. Only these codes mean that it had enough to do.
fn said_no(error: &api::Error) -> Failure {
    let busy = [ErrorCode::Capacity, ErrorCode::RateLimited, ErrorCode::QuotaExceeded];
    let failure = if busy.contains(&error.code) { Failure::refused } else { Failure::new };
    failure(error.code.name(), error.message.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_within_the_limits() {
        for image in [Image::Plain, Image::Data] {
            let wanted = wanted(image, "b1");
            assert_eq!(wanted.check(), Ok(()));
            assert_eq!(wanted.limits.over(Limits::default()).check(), Ok(()));
        }
    }

    #[test]
    fn how_a_sandbox_was_started_is_read_where_it_is_said() {
        let made: Created = serde_json::from_str(r#"{"id":"a","start":"warm","more":1}"#).unwrap();
        assert_eq!(made.start.as_deref(), Some("warm"));
        let made: Created = serde_json::from_str(r#"{"id":"a"}"#).unwrap();
        assert_eq!(made.start, None);
    }
}
