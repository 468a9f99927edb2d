//! Stock runc with a hand-written configuration: no uid range, no seccomp filter, no limits, no posture.
//! Stock runc must keep the laws too; otherwise, they would describe Bellglass's own runtime instead of
//! runtimes in general.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use api::SandboxId;
use api::hello::{HELLO_BYTES, Hello};
use api::posture::Posture;
use runtime::laws::Fixture;
use runtime::{Error, Exit, Inspect, Listed, Properties, Runtime, Spec, Tier, Usage};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use super::ground::{Ground, PATIENCE};

/// Interval for polling a process. Polling is necessary, because stock runc provides no descriptor to wait
/// on.
const LOOK: Duration = Duration::from_millis(5);

struct PlainRunc {
    home: PathBuf,
    listeners: Mutex<HashMap<SandboxId, Arc<UnixListener>>>,
}

pub fn fixture(ground: &Ground) -> Fixture {
    let home = ground.path("plain");
    fs::create_dir_all(home.join("state")).unwrap();
    let instance = move || -> Box<dyn Runtime> {
        Box::new(PlainRunc { home: home.clone(), listeners: Mutex::default() })
    };
    Fixture {
        spec: ground.spec(),
        prefix: ground.prefix.clone(),
        instance: Box::new(instance),
        patience: PATIENCE,
        used: AtomicU32::new(0),
    }
}

impl PlainRunc {
    fn bundle(&self, id: &SandboxId) -> PathBuf {
        self.home.join(id.as_str())
    }

    fn runc(&self, words: &[&str]) -> Result<String, Error> {
        let output = Command::new("runc")
            .arg("--root")
            .arg(self.home.join("state"))
            .args(words)
            .stdin(std::process::Stdio::null())
            .output()
            .map_err(|source| Error::System { act: "run runc".into(), source })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(Error::Command {
            argv: words.join(" "),
            status: output.status.to_string(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    fn status(&self, id: &SandboxId) -> Option<String> {
        let state: serde_json::Value =
            serde_json::from_str(&self.runc(&["state", id.as_str()]).ok()?).ok()?;
        Some(state["status"].as_str()?.to_owned())
    }

    fn listener(&self, id: &SandboxId) -> Result<Arc<UnixListener>, Error> {
        let mut listeners = self.listeners.lock().unwrap();
        if let Some(listener) = listeners.get(id) {
            return Ok(Arc::clone(listener));
        }
        let path = self.bundle(id).join("channel/node.sock");
        let _ = fs::remove_file(&path);
        let listener =
            UnixListener::bind(&path).map_err(|source| Error::System { act: "listen".into(), source })?;
        let listener = Arc::new(listener);
        listeners.insert(id.clone(), Arc::clone(&listener));
        Ok(listener)
    }

    async fn greeted(&self, id: &SandboxId) -> Result<UnixStream, Error> {
        let wrong = |source| Error::System { act: "greet".into(), source };
        let (mut stream, _) = self.listener(id)?.accept().await.map_err(wrong)?;
        let mut bytes = [0; HELLO_BYTES];
        stream.read_exact(&mut bytes).await.map_err(wrong)?;
        let hello = Hello::decode(&bytes).map_err(|error| wrong(std::io::Error::other(error)))?;
        stream.write_all(&hello.encode()).await.map_err(wrong)?;
        Ok(stream)
    }

    async fn ended(&self, id: &SandboxId) {
        while self.status(id).is_some_and(|status| status == "running") {
            tokio::time::sleep(LOOK).await;
        }
    }
}

#[async_trait::async_trait]
impl Runtime for PlainRunc {
    fn properties(&self) -> Properties {
        Properties::new("plain-runc", Tier::Container)
    }

    async fn start(&self, id: &SandboxId, spec: &Spec) -> Result<(), Error> {
        if self.status(id).is_some() {
            return Err(Error::Exists(id.clone()));
        }
        let bundle = self.bundle(id);
        fs::create_dir_all(bundle.join("channel")).unwrap();
        let bind = |target: &str, source: PathBuf| json!({ "destination": target, "type": "bind", "source": source, "options": ["bind", "ro"] });
        let namespaces = ["pid", "mount", "ipc", "uts", "network"].map(|kind| json!({ "type": kind }));
        let config = json!({
            "ociVersion": "1.0.2",
            "process": {
                "user": { "uid": 0, "gid": 0 },
                "args": ["/.bellglass/guest", "init", "--ttl-ms", spec.limits.ttl_ms.to_string()],
                "cwd": "/",
            },
            "root": { "path": spec.layers[0], "readonly": true },
            "mounts": [
                { "destination": "/proc", "type": "proc", "source": "proc" },
                { "destination": "/dev", "type": "tmpfs", "source": "tmpfs" },
                { "destination": "/tmp", "type": "tmpfs", "source": "tmpfs" },
                { "destination": "/.bellglass/spool", "type": "tmpfs", "source": "tmpfs" },
                bind("/.bellglass/guest", spec.guest.clone()),
                bind("/.bellglass/channel", bundle.join("channel")),
            ],
            "linux": {
                "namespaces": namespaces,
                "cgroupsPath": format!("/plain-{id}"),
            },
        });
        fs::write(bundle.join("config.json"), config.to_string()).unwrap();
        let mut command = Command::new("runc");
        let started = command
            .arg("--root")
            .arg(self.home.join("state"))
            .args(["run", "--detach", "--bundle"])
            .arg(&bundle)
            .arg(id.as_str())
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .status();
        if started.is_ok_and(|status| status.success()) {
            return Ok(());
        }
        self.stop(id, Duration::ZERO).await?;
        Err(Error::Command { argv: "runc run".into(), status: "failure".into(), stderr: String::new() })
    }

    async fn connect(&self, id: &SandboxId, within: Duration) -> Result<UnixStream, Error> {
        if self.status(id).is_none() {
            return Err(Error::NotFound(id.clone()));
        }
        tokio::select! {
            stream = self.greeted(id) => stream,
            () = self.ended(id) => Err(Error::Ended(id.clone())),
            () = tokio::time::sleep(within) => Err(Error::Deadline { what: "the guest's call", after: within }),
        }
    }

    async fn wait(&self, id: &SandboxId) -> Result<Exit, Error> {
        if self.status(id).is_none() {
            return Err(Error::NotFound(id.clone()));
        }
        self.ended(id).await;
        Ok(Exit::Unknown)
    }

    async fn stop(&self, id: &SandboxId, _grace: Duration) -> Result<(), Error> {
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.status(id).is_some() && Instant::now() < deadline {
            let _ = self.runc(&["delete", "--force", id.as_str()]);
            tokio::time::sleep(LOOK).await;
        }
        self.listeners.lock().unwrap().remove(id);
        let _ = fs::remove_dir_all(self.bundle(id));
        Ok(())
    }

    async fn list(&self) -> Result<Vec<Listed>, Error> {
        let text = self.runc(&["list", "--format", "json"])?;
        let all: Option<Vec<serde_json::Value>> = serde_json::from_str(&text).unwrap_or_default();
        let listed = all.unwrap_or_default().into_iter().map(|one| {
            let id: SandboxId = one["id"].as_str().unwrap().parse().unwrap();
            // Stock runc has no locks, so ownership is derived from the channel. This instance owns the
            // sandboxes on whose channel it listens, and sandboxes on whose channel no instance listens yet.
            let taken = self.bundle(&id).join("channel/node.sock").exists();
            let owned = self.listeners.lock().unwrap().contains_key(&id) || !taken;
            Listed { owned, alive: one["status"] == "running", id }
        });
        Ok(listed.collect())
    }
}

#[async_trait::async_trait]
impl Inspect for PlainRunc {
    async fn usage(&self, id: &SandboxId) -> Result<Usage, Error> {
        Err(Error::NotFound(id.clone()))
    }

    async fn posture(&self, id: &SandboxId) -> Result<(Posture, Vec<String>), Error> {
        Err(Error::NotFound(id.clone()))
    }
}
