//! Bare runc. It shows the cost of containers without any software around them.
//!
//! Each container has its own bundle: the output of `runc spec` with the limits that all targets have, the
//! shared read-only root file system, and a separate directory on disk that is mounted at `/workspace`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::process::Command;

use super::{
    CodeRuns, Execs, FileTransfers, Image, Lives, MEMORY_BYTES, MEMORY_BYTES_DATA, Made, NOTHING, PIDS,
    Target, TargetFailure, TargetResources,
};
use crate::rootfs::{Root, cannot};
use crate::{process, random};

/// Command that keeps a container running.
const IDLE: [&str; 2] = ["sleep", "infinity"];
/// Directory for transferred files in a container.
const FILES: &str = "/workspace";
/// Timeout for short runc commands, which normally take milliseconds.
const SOON: Duration = Duration::from_secs(10);

/// Target that uses runc directly.
pub struct Runc {
    bundles: Bundles,
    version: String,
    live: Mutex<Vec<String>>,
    deadline: Duration,
}

/// Properties of a container to create.
pub struct Shape<'a> {
    /// Image of the container.
    pub image: Image,
    /// Command of the container.
    pub argv: &'a [&'a str],
    /// Additional mounts.
    pub mounts: Vec<Value>,
    /// True if the container has the limits of one sandbox. A container that hosts many sandboxes has no
    /// limits.
    pub limited: bool,
}

/// Factory for bundles.
#[derive(Clone)]
pub struct Bundles {
    home: PathBuf,
    spec: Value,
    roots: [(PathBuf, Vec<String>); 2],
}

impl Runc {
    /// Checks that runc works by running one lifecycle.
    pub async fn open(place: &TargetResources<'_>) -> Result<Self, TargetFailure> {
        let version = process::print(process::command("runc").arg("--version"), SOON).await?;
        let version = version.lines().next().unwrap_or_default().to_owned();
        let bundles = Bundles::new(place).await?;
        let runc = Self { bundles, version, live: Mutex::default(), deadline: place.deadline };
        runc.live().await?;
        Ok(runc)
    }

    fn forget(&self, name: &str) {
        self.bundles.remove(name);
        if let Ok(mut live) = self.live.lock() {
            live.retain(|one| one != name);
        }
    }

    fn exec_command(&self, handle: &str, argv: &[&str]) -> Command {
        let mut command = self.bundles.runc();
        command.arg("exec").arg(handle).args(argv);
        command
    }
}

impl Bundles {
    /// Creates a factory whose bundles are below the scratch directory of a run.
    pub async fn new(place: &TargetResources<'_>) -> Result<Self, TargetFailure> {
        let rootfs = place.rootfs()?;
        let home = place.scratch.join("runc");
        std::fs::create_dir_all(&home).map_err(|error| cannot("create", &home, &error))?;
        let config = home.join("config.json");
        if !config.exists() {
            process::run(process::command("runc").arg("spec").current_dir(&home), SOON).await?;
        }
        let text = std::fs::read(&config).map_err(|error| cannot("read", &config, &error))?;
        let spec = serde_json::from_slice(&text)
            .map_err(|error| TargetFailure::new("runc_spec", error.to_string()))?;
        let root = |root: &Root| {
            let env = root.env.iter().map(|(name, value)| format!("{name}={value}"));
            (root.directory.clone(), env.collect())
        };
        let roots = [root(rootfs.of(Image::Plain)), root(rootfs.of(Image::Data))];
        Ok(Self { home, spec, roots })
    }

    /// Returns a `runc` command whose state is below the scratch directory.
    pub fn runc(&self) -> Command {
        let mut command = process::command("runc");
        command.arg("--root").arg(self.home.join("state"));
        command
    }

    /// Creates a bundle for a container with this name.
    pub fn make(&self, name: &str, shape: &Shape<'_>) -> Result<PathBuf, TargetFailure> {
        let bundle = self.home.join(name);
        let workspace = bundle.join("workspace");
        std::fs::create_dir_all(&workspace).map_err(|error| cannot("create", &workspace, &error))?;
        let [plain, data] = &self.roots;
        let ((root, env), memory_bytes) = match shape.image {
            Image::Plain => (plain, MEMORY_BYTES),
            Image::Data => (data, MEMORY_BYTES_DATA),
        };
        let mut spec = self.spec.clone();
        let mut set = |pointer: &str, value: Value| {
            if let Some(place) = spec.pointer_mut(pointer) {
                *place = value;
            }
        };
        set("/process/terminal", json!(false));
        set("/process/args", json!(shape.argv));
        set("/root", json!({ "path": root, "readonly": true }));
        if let Some(Value::Array(known)) = spec.pointer_mut("/process/env") {
            known.extend(env.iter().chain(&["HOME=/workspace".to_owned()]).map(|pair| json!(pair)));
        }
        if let Some(Value::Array(known)) = spec.pointer_mut("/mounts") {
            known.push(bind(&workspace, "/workspace", true));
            known.push(json!({ "destination": "/tmp", "type": "tmpfs", "source": "tmpfs" }));
            known.extend(shape.mounts.iter().cloned());
        }
        if let Some(Value::Object(resources)) = spec.pointer_mut("/linux/resources")
            && shape.limited
        {
            resources.insert("memory".into(), json!({ "limit": memory_bytes }));
            resources.insert("pids".into(), json!({ "limit": PIDS }));
            resources.insert("cpu".into(), json!({ "quota": 100_000, "period": 100_000 }));
        }
        if let Some(Value::Object(linux)) = spec.pointer_mut("/linux") {
            // The cgroup path is fixed, so that the cgroup can be found and measured regardless of the cgroup
            // that this program runs in.
            linux.insert("cgroupsPath".into(), json!(format!("/{name}")));
        }
        let config = bundle.join("config.json");
        std::fs::write(&config, spec.to_string()).map_err(|error| cannot("write", &config, &error))?;
        Ok(bundle)
    }

    /// Removes the bundle of the container with this name.
    pub fn remove(&self, name: &str) {
        let _ = std::fs::remove_dir_all(self.home.join(name));
    }
}

fn sandbox<'a>(image: Image, argv: &'a [&'a str]) -> Shape<'a> {
    Shape { image, argv, mounts: Vec::new(), limited: true }
}

/// Returns a bind mount of a local directory at a path in a container.
pub fn bind(from: &Path, to: &str, writable: bool) -> Value {
    let options = if writable { json!(["rbind", "rw"]) } else { json!(["rbind", "ro"]) };
    json!({ "destination": to, "type": "bind", "source": from, "options": options })
}

#[async_trait]
impl Target for Runc {
    fn name(&self) -> &'static str {
        "runc"
    }

    fn facts(&self) -> BTreeMap<String, String> {
        BTreeMap::from([("version".into(), self.version.clone())])
    }

    async fn create(&self, image: Image) -> Result<Made, TargetFailure> {
        let handle = format!("bench-{}", random::name()?);
        let bundle = self.bundles.make(&handle, &sandbox(image, &IDLE))?;
        if let Ok(mut live) = self.live.lock() {
            live.push(handle.clone());
        }
        let mut run = self.bundles.runc();
        // The container inherits these streams and keeps them open, so the command must not wait until they
        // are closed.
        run.args(["run", "--detach", "--bundle"]).arg(bundle).arg(&handle).stderr(Stdio::null());
        process::run(&mut run, self.deadline).await?;
        Ok(Made { handle, start: None })
    }

    async fn stop(&self, handle: &str) -> Result<(), TargetFailure> {
        let mut delete = self.bundles.runc();
        delete.args(["delete", "--force"]).arg(handle);
        let deleted = process::run(&mut delete, self.deadline).await;
        self.forget(handle);
        deleted
    }

    async fn close(&self) {
        let left = self.live.lock().map(|live| live.clone()).unwrap_or_default();
        for handle in left {
            let _ = self.stop(&handle).await;
        }
    }

    fn execs(&self) -> Option<&dyn Execs> {
        Some(self)
    }

    fn code(&self) -> Option<&dyn CodeRuns> {
        Some(self)
    }

    fn files(&self) -> Option<&dyn FileTransfers> {
        Some(self)
    }

    fn lives(&self) -> Option<&dyn Lives> {
        Some(self)
    }

    fn charged_bytes(&self, handles: &[String]) -> Option<u64> {
        handles.iter().map(|handle| crate::machine::charged_bytes(handle)).sum()
    }
}

#[async_trait]
impl Execs for Runc {
    async fn exec(&self, handle: &str) -> Result<(), TargetFailure> {
        process::run(&mut self.exec_command(handle, &[NOTHING]), self.deadline).await
    }
}

#[async_trait]
impl CodeRuns for Runc {
    async fn run(&self, handle: &str, source: &str) -> Result<(), TargetFailure> {
        process::run(&mut self.exec_command(handle, &["python3", "-c", source]), self.deadline).await
    }
}

#[async_trait]
impl FileTransfers for Runc {
    async fn upload(&self, handle: &str, name: &str, bytes: Bytes) -> Result<(), TargetFailure> {
        let mut command = self.exec_command(handle, &["sh", "-c", &format!("cat > {FILES}/{name}")]);
        process::output(&mut command, self.deadline, Some(&bytes)).await.map(drop)
    }

    async fn download(&self, handle: &str, name: &str) -> Result<u64, TargetFailure> {
        let mut command = self.exec_command(handle, &["cat", &format!("{FILES}/{name}")]);
        let bytes = process::output(command.stdout(Stdio::piped()), self.deadline, None).await?;
        Ok(bytes.len() as u64)
    }
}

#[async_trait]
impl Lives for Runc {
    async fn live(&self) -> Result<(), TargetFailure> {
        let name = format!("bench-{}", random::name()?);
        let bundle = self.bundles.make(&name, &sandbox(Image::Plain, &[NOTHING]))?;
        if let Ok(mut live) = self.live.lock() {
            live.push(name.clone());
        }
        let mut run = self.bundles.runc();
        run.args(["run", "--bundle"]).arg(bundle).arg(&name);
        let ran = process::run(&mut run, self.deadline).await;
        self.forget(&name);
        ran
    }
}
