//! Sandboxes in engines: Docker and Podman as users run them, and a stand-in for Daytona.
//!
//! These tests start engines. They need root, and `BELLGLASS_RUNTIMES` must name `docker`, `podman` or
//! `daytona`; `just engines` sets this up.

mod daytona;
mod parity;
mod pause;
mod people;
mod restart;
mod words;

use std::process::{Command, Output};

use e2e::lab::wanted;
use runtime::engine::EngineKind;

/// Returns the engines under test.
fn engines() -> Vec<EngineKind> {
    EngineKind::ALL.into_iter().filter(|kind| wanted(kind.name())).collect()
}

/// Returns true if Docker is under test.
fn docker() -> bool {
    engines().contains(&EngineKind::Docker)
}

/// Returns true if workspaces on the stand-in for Daytona are under test.
fn daytona() -> bool {
    docker() && wanted("daytona")
}

/// Runs a command. Returns its exit code, and its standard output followed by its standard error.
fn said(command: &mut Command) -> (i32, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (status.code().unwrap_or(-1), text)
}

/// Returns a `bellglass` command with this data directory and an environment that contains only `PATH`.
fn bellglass(data: &std::path::Path) -> Command {
    let mut command = Command::new(e2e::service::binary());
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").arg("--data").arg(data);
    command
}
