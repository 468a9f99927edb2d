//! A Bellglass server for this run: `bellglass serve` with its own port and data directory.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use api::account::{PutProject, Quota};
use client::Client;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;

use super::TargetResources;
use crate::process;
use crate::rootfs::cannot;
use crate::target::TargetFailure;

/// Timeout for the server to start on a machine under load.
const STARTS_WITHIN: Duration = Duration::from_secs(30);
/// Timeout for the shutdown. During this time, the server removes several dozen pre-warmed sandboxes.
const ENDS_WITHIN: Duration = Duration::from_secs(10);
/// Sandbox quota: the maximum number of live sandboxes in a scenario, plus the additional starts that the
/// scenario measures.
const SANDBOXES_MAX: u32 = 2100;
/// Quota that no scenario reaches, so that requests are refused only for lack of capacity.
const PLENTY: Quota = Quota {
    sandboxes: SANDBOXES_MAX,
    memory_bytes: 1 << 50,
    disk_bytes: 1 << 50,
    creates_per_second: 100_000,
    execs_per_second: 100_000,
    open: false,
    root: false,
};

/// Running server.
pub(super) struct Server {
    /// URL of the server.
    pub url: String,
    /// First API key.
    pub key: String,
    /// Version that the server reports.
    pub version: String,
    child: Child,
    /// Data directory. It is removed last.
    data: TempDir,
}

impl Server {
    pub async fn start(place: &TargetResources<'_>) -> Result<Self, TargetFailure> {
        let binary = binary();
        let version = process::print(process::command(&binary).arg("--version"), STARTS_WITHIN).await?;
        let made = tempfile::Builder::new().prefix("bellglass-bench-data").tempdir();
        let data = made.map_err(|error| cannot("create", Path::new("a data directory"), &error))?;
        place
            .rootfs()?
            .lend(data.path())
            .map_err(|error| cannot("lend templates to", data.path(), &error))?;
        let (config, log, key) =
            (data.path().join("bench.toml"), data.path().join("serve.log"), data.path().join("first.key"));
        let more = match std::env::var_os("BELLGLASS_CONFIG").map(PathBuf::from) {
            Some(path) => std::fs::read_to_string(&path).map_err(|error| cannot("read", &path, &error))?,
            None => String::new(),
        };
        let text = format!("listen = \"127.0.0.1:0\"\nsandboxes_max = {SANDBOXES_MAX}\n{more}");
        std::fs::write(&config, text).map_err(|error| cannot("write", &config, &error))?;
        let log = std::fs::File::create(&log).map_err(|error| cannot("create", &log, &error))?;
        let mut serve = process::command(&binary);
        serve.arg("--data").arg(data.path()).args(["serve", "--config"]).arg(&config);
        serve.arg("--first-key").arg(&key).env_remove("BELLGLASS_SERVER").stdout(Stdio::piped()).stderr(log);
        let started = serve.spawn();
        let mut child = started.map_err(|error| TargetFailure::new("not_started", error.to_string()))?;
        let url = match address(&mut child).await {
            Some(url) => url,
            None => return Err(TargetFailure::new("not_started", last_words(data.path()))),
        };
        let key = std::fs::read_to_string(&key).map_err(|error| cannot("read", &key, &error))?;
        let server = Self { url, key: key.trim().to_owned(), version, child, data };
        server.open_up().await?;
        Ok(server)
    }

    /// Stops the server process. The sandboxes must already have been stopped.
    pub async fn end(mut self) {
        // On SIGTERM, the server removes its pre-warmed sandboxes.
        let pid = self.child.id().and_then(|pid| rustix::process::Pid::from_raw(i32::try_from(pid).ok()?));
        if let Some(pid) = pid {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        if tokio::time::timeout(ENDS_WITHIN, self.child.wait()).await.is_err() {
            let _ = self.child.start_kill();
            let _ = tokio::time::timeout(ENDS_WITHIN, self.child.wait()).await;
        }
        let _ = self.data.close();
    }

    async fn open_up(&self) -> Result<(), TargetFailure> {
        let opened = async {
            let client = Client::new(&self.url, &self.key)?;
            client.put_project("default", &PutProject { quota: PLENTY }).await
        };
        opened.await.map(drop).map_err(|error| super::failure(&error))
    }
}

/// Returns the path of the Bellglass executable: `BELLGLASS_BINARY`, or `bellglass` in the `PATH`.
pub fn binary() -> PathBuf {
    std::env::var_os("BELLGLASS_BINARY").map_or_else(|| "bellglass".into(), PathBuf::from)
}

/// Returns the URL that the server prints when it is ready, or `None` if the server fails to start.
async fn address(child: &mut Child) -> Option<String> {
    let mut lines = BufReader::new(child.stdout.take()?).lines();
    let found = async {
        while let Ok(Some(line)) = lines.next_line().await {
            if let Some(url) = line.strip_prefix("bellglass serves ") {
                return Some(url.trim().to_owned());
            }
        }
        None
    };
    let found = tokio::time::timeout(STARTS_WITHIN, found).await.ok().flatten();
    // Further output is read and discarded, so that the server does not block on a full pipe.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    found
}

fn last_words(data: &Path) -> String {
    let log = std::fs::read_to_string(data.join("serve.log")).unwrap_or_default();
    format!("the server did not start: {}", log.lines().last().unwrap_or("its log is empty"))
}
