//! Bellglass server that the bench accesses through its public API: either the configured server
//! (`BELLGLASS_SERVER`, `BELLGLASS_API_KEY`) or a server that the bench starts for the run.
//!
//! Create requests are sent as plain HTTP. Their responses state the kind of start, and the server may report
//! kinds that the typed client does not know yet. No request is retried, because refusals are results too.

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
    CodeRuns, Contexts, Execs, FileTransfers, Image, MEMORY_BYTES, MEMORY_BYTES_DATA, Made, NOTHING, PIDS,
    Target, TargetFailure, TargetResources,
};
use crate::{machine, random, rootfs};

/// Label that marks the sandboxes of a run with the run's name.
const LABEL: &str = "bench";
/// Idle timeout, after which the server stops a sandbox that a killed run left behind.
const IDLE_MS: u64 = 1_800_000;
/// Disk size in bytes: twice the largest file of the scenarios, plus some space.
const DISK_BYTES_DATA: u64 = 512 << 20;
/// Directory for transferred files in a sandbox.
const FILES: &str = "/workspace";
/// Maximum size of a file that is sent in one request, as typical programs do. Larger files are streamed, as
/// the `bellglass` command does.
const WHOLE_BYTES_MAX: usize = 1 << 20;
/// Maximum size of a file that is read. The files of the scenarios are not larger.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// Maximum number of attempts to find and stop the remaining sandboxes.
const ROUNDS_MAX: usize = 10;
/// Timeout for filling the pool. Memory and disk space limit how many sandboxes the pool can hold.
const RESTED_WITHIN: Duration = Duration::from_secs(30);
/// Interval between checks of the pool.
const CALM: Duration = Duration::from_millis(200);
/// Number of sandboxes that are stopped concurrently at the end of the run.
const STOPS_AT_ONCE: usize = 16;

/// Bellglass server to measure.
pub struct Bellglass {
    client: Client,
    http: reqwest::Client,
    key: String,
    run: String,
    contexts: Mutex<BTreeMap<String, ContextId>>,
    facts: BTreeMap<String, String>,
    deadline: Duration,
    /// Server that was started for this run, if any. It is stopped last.
    server: Mutex<Option<Server>>,
}

/// Fields that the bench reads from a create response.
#[derive(Deserialize)]
struct Created {
    id: String,
    #[serde(default)]
    start: Option<String>,
}

impl Bellglass {
    /// Connects to the configured server, or starts a server for the run.
    pub async fn open(place: &TargetResources<'_>) -> Result<Self, TargetFailure> {
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

    async fn finish(&self, handle: &str, spec: ExecSpec) -> Result<(), TargetFailure> {
        let exec = self.client.exec(&id(handle)?, &spec).await.map_err(|error| failure(&error))?;
        let done = exec.collect().await.map_err(|error| failure(&error))?;
        if done.end.outcome == (Outcome::Exited { code: 0 }) {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        Err(TargetFailure::new("outcome", format!("{:?}: {said}", done.end.outcome)))
    }

    async fn run_code(
        &self,
        handle: &str,
        source: &str,
        context: Option<ContextId>,
    ) -> Result<(), TargetFailure> {
        let code = code::Code { source: source.into(), context, ..code::Code::default() };
        self.finish(handle, ExecSpec { code: Some(code), ..ExecSpec::default() }).await
    }

    async fn context(&self, handle: &str) -> Result<ContextId, TargetFailure> {
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

    async fn create(&self, image: Image) -> Result<Made, TargetFailure> {
        let body = serde_json::to_vec(&wanted(image, &self.run))
            .map_err(|error| TargetFailure::new("request", error.to_string()))?;
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
                Err(_) => TargetFailure::new(
                    format!("http_{}", status.as_u16()),
                    "the response is not from Bellglass",
                ),
            });
        }
        let made: Created = serde_json::from_slice(&body)
            .map_err(|error| TargetFailure::new("protocol", format!("malformed sandbox: {error}")))?;
        Ok(Made { handle: made.id, start: made.start })
    }

    async fn stop(&self, handle: &str) -> Result<(), TargetFailure> {
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
                // Wait until the cleanup after the most recent create request is complete.
                tokio::time::sleep(CALM).await;
                return;
            }
            tokio::time::sleep(CALM).await;
        }
    }

    async fn close(&self) {
        let server = self.server.lock().ok().and_then(|mut server| server.take());
        if server.is_some() {
            // The server completes a create request even if its client has disconnected. Draining ensures
            // that no further sandbox is created.
            let _ = self.client.drain(true).await;
        }
        // Sandboxes outlive their server, so they are stopped before the server. On a shared server, only the
        // sandboxes of this run are stopped.
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

    fn code(&self) -> Option<&dyn CodeRuns> {
        Some(self)
    }

    fn contexts(&self) -> Option<&dyn Contexts> {
        Some(self)
    }

    fn files(&self) -> Option<&dyn FileTransfers> {
        Some(self)
    }

    fn charged_bytes(&self, handles: &[String]) -> Option<u64> {
        handles.iter().map(|handle| machine::charged_bytes(&format!("bellglass/{handle}"))).sum()
    }
}

#[async_trait]
impl Execs for Bellglass {
    async fn exec(&self, handle: &str) -> Result<(), TargetFailure> {
        self.finish(handle, ExecSpec { argv: vec![NOTHING.into()], ..ExecSpec::default() }).await
    }
}

#[async_trait]
impl CodeRuns for Bellglass {
    async fn run(&self, handle: &str, source: &str) -> Result<(), TargetFailure> {
        self.run_code(handle, source, None).await
    }
}

#[async_trait]
impl Contexts for Bellglass {
    async fn cell(&self, handle: &str, source: &str) -> Result<(), TargetFailure> {
        let context = self.context(handle).await?;
        self.run_code(handle, source, Some(context)).await
    }
}

#[async_trait]
impl FileTransfers for Bellglass {
    async fn upload(&self, handle: &str, name: &str, bytes: Bytes) -> Result<(), TargetFailure> {
        let (files, path) = (self.client.files(&id(handle)?), file(name)?);
        let sent = if bytes.len() <= WHOLE_BYTES_MAX {
            files.write(&path, bytes, None).await
        } else {
            files.write_from(&path, &mut bytes.as_ref(), None).await
        };
        sent.map(drop).map_err(|error| failure(&error))
    }

    async fn download(&self, handle: &str, name: &str) -> Result<u64, TargetFailure> {
        let (files, path) = (self.client.files(&id(handle)?), file(name)?);
        let bytes = files.read(&path, FILE_BYTES_MAX).await.map_err(|error| failure(&error))?;
        Ok(bytes.len() as u64)
    }
}

/// Returns the URL and the key of the configured server, or `None` if no server is configured.
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

fn id(handle: &str) -> Result<SandboxId, TargetFailure> {
    handle.parse().map_err(|_| TargetFailure::new("protocol", format!("{handle:?} is not an id")))
}

fn file(name: &str) -> Result<FilePath, TargetFailure> {
    FilePath::new(format!("{FILES}/{name}")).map_err(|error| said_no(&error))
}

fn failure(error: &client::Error) -> TargetFailure {
    match error {
        client::Error::Refused(error) => said_no(error),
        client::Error::Unreachable { .. } => TargetFailure::new("unreachable", error.to_string()),
        client::Error::Distrusted { .. }
        | client::Error::Protocol { .. }
        | client::Error::Local { .. }
        | client::Error::Configuration { .. } => TargetFailure::new("client", error.to_string()),
    }
}

/// Converts an error from the server. Only the codes in `busy` mean that the server refused the request for
/// lack of capacity.
fn said_no(error: &api::Error) -> TargetFailure {
    let busy = [ErrorCode::Capacity, ErrorCode::RateLimited, ErrorCode::QuotaExceeded];
    let failure = if busy.contains(&error.code) { TargetFailure::refused } else { TargetFailure::new };
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
