//! Docker, through its command line: `docker run --detach` and `docker exec`, and `docker run --rm` for a
//! whole lifecycle.
//!
//! `docker import` creates the images from the root file systems that the other targets use, once for each
//! version of a template and without a registry. Like Bellglass sandboxes, the containers have no network.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::process::Command;

use super::{
    CodeRuns, Execs, FileTransfers, Image, Lives, MEMORY_BYTES, MEMORY_BYTES_DATA, Made, NOTHING, PIDS,
    Target, TargetFailure, TargetResources,
};
use crate::process;
use crate::rootfs::Root;

/// Timeout for importing an image, which packs and unpacks about a gigabyte.
const IMPORTED_WITHIN: Duration = Duration::from_secs(600);
/// Timeout for requests that a working engine answers immediately.
const SOON: Duration = Duration::from_secs(10);
/// Pause in which the engine completes operations that are still in progress.
const LATER: Duration = Duration::from_secs(1);
/// Default command of an image, which some libraries rely on. It waits, and exits on SIGTERM. Without a
/// handler, process 1 would ignore SIGTERM, and Docker would kill it only after ten seconds.
const IDLE: &str = "CMD [\"sh\", \"-c\", \"trap exit TERM; sleep infinity & wait\"]";
/// Directory for transferred files in a container.
const FILES: &str = "/var/tmp";

/// Docker engine.
pub struct Docker {
    images: [String; 2],
    label: String,
    facts: BTreeMap<String, String>,
    deadline: Duration,
}

impl Docker {
    /// Checks that an engine responds, and imports the images.
    pub async fn open(place: &TargetResources<'_>) -> Result<Self, TargetFailure> {
        let mut version = docker(&["version", "--format", "{{.Server.Version}}"]);
        let version = process::print(&mut version, SOON).await?;
        let rootfs = place.rootfs()?;
        let plain = import(rootfs.of(Image::Plain)).await?;
        let data = import(rootfs.of(Image::Data)).await?;
        let facts = BTreeMap::from([("version".into(), version)]);
        let label = format!("bellglass-bench={}", place.run);
        Ok(Self { images: [plain, data], label, facts, deadline: place.deadline })
    }

    fn run_command(&self, image: Image) -> (Command, &str) {
        let [plain, data] = &self.images;
        let (name, memory_bytes) = match image {
            Image::Plain => (plain, MEMORY_BYTES),
            Image::Data => (data, MEMORY_BYTES_DATA),
        };
        let mut command = docker(&["run", "--network", "none", "--cpus", "1", "--label", &self.label]);
        command.args(["--memory", &memory_bytes.to_string(), "--pids-limit", &PIDS.to_string()]);
        (command, name)
    }
}

/// Creates an image from a root file system, unless the engine already has this image.
pub async fn import(root: &Root) -> Result<String, TargetFailure> {
    let name = format!("bellglass-bench:{}", root.key());
    let known = process::run(&mut docker(&["image", "inspect", &name]), SOON).await;
    if known.is_ok() {
        return Ok(name);
    }
    let mut arguments: Vec<String> = ["import", "--change", IDLE].map(str::to_owned).into();
    for (variable, value) in &root.env {
        arguments.extend(["--change".into(), format!("ENV {variable}=\"{value}\"")]);
    }
    arguments.extend(["-".into(), name.clone()]);
    let mut pack = process::command("sh");
    pack.args(["-c", "tar -C \"$0\" -c . | docker \"$@\""]).arg(&root.directory).args(arguments);
    process::run(&mut pack, IMPORTED_WITHIN).await?;
    Ok(name)
}

fn docker(arguments: &[&str]) -> Command {
    let mut command = process::command("docker");
    command.args(arguments);
    command
}

#[async_trait]
impl Target for Docker {
    fn name(&self) -> &'static str {
        "docker"
    }

    fn facts(&self) -> BTreeMap<String, String> {
        self.facts.clone()
    }

    async fn create(&self, image: Image) -> Result<Made, TargetFailure> {
        let (mut command, name) = self.run_command(image);
        command.args(["--detach", name, "sleep", "infinity"]);
        let handle = process::print(&mut command, self.deadline).await?;
        Ok(Made { handle, start: None })
    }

    async fn stop(&self, handle: &str) -> Result<(), TargetFailure> {
        process::run(&mut docker(&["rm", "--force", handle]), self.deadline).await
    }

    async fn close(&self) {
        let filter = format!("label={}", self.label);
        // The engine may still complete operations whose client was killed, so a second round follows after a
        // pause.
        for _ in 0..2 {
            let mut list = docker(&["ps", "--all", "--quiet", "--filter", &filter]);
            let listed = process::print(&mut list, SOON).await.unwrap_or_default();
            for handle in listed.lines() {
                let _ = self.stop(handle).await;
            }
            tokio::time::sleep(LATER).await;
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
        let charged = |handle: &String| {
            let places = [format!("docker/{handle}"), format!("system.slice/docker-{handle}.scope")];
            places.iter().find_map(|place| crate::machine::charged_bytes(place))
        };
        handles.iter().map(charged).sum()
    }
}

#[async_trait]
impl Execs for Docker {
    async fn exec(&self, handle: &str) -> Result<(), TargetFailure> {
        process::run(&mut docker(&["exec", handle, NOTHING]), self.deadline).await
    }
}

#[async_trait]
impl CodeRuns for Docker {
    async fn run(&self, handle: &str, source: &str) -> Result<(), TargetFailure> {
        process::run(&mut docker(&["exec", handle, "python3", "-c", source]), self.deadline).await
    }
}

#[async_trait]
impl FileTransfers for Docker {
    async fn upload(&self, handle: &str, name: &str, bytes: Bytes) -> Result<(), TargetFailure> {
        let to_file = format!("cat > {FILES}/{name}");
        let mut command = docker(&["exec", "--interactive", handle, "sh", "-c", &to_file]);
        process::output(&mut command, self.deadline, Some(&bytes)).await.map(drop)
    }

    async fn download(&self, handle: &str, name: &str) -> Result<u64, TargetFailure> {
        let mut command = docker(&["exec", handle, "cat", &format!("{FILES}/{name}")]);
        let bytes = process::output(command.stdout(Stdio::piped()), self.deadline, None).await?;
        Ok(bytes.len() as u64)
    }
}

#[async_trait]
impl Lives for Docker {
    async fn live(&self) -> Result<(), TargetFailure> {
        let (mut command, name) = self.run_command(Image::Plain);
        command.args(["--rm", name, NOTHING]);
        process::run(&mut command, self.deadline).await
    }
}
