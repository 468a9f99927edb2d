//! Engines: Docker and Podman, as they are where people have them; and Daytona, as a server of the test tree.
//!
//! These start engines, so they need root, and `BELLGLASS_RUNTIMES` has to name `docker`, `podman` or `daytona`: `just engines` does all of
//! it.

mod daytona;
mod parity;
mod pause;
mod people;
mod restart;
mod words;

use std::process::{Command, Output};

use e2e::lab::wanted;
use runtime::engine::Kind;

/// The engines that are to be tried.
fn engines() -> Vec<Kind> {
    if std::env::var_os("BELLGLASS_REAL").is_none() {
        eprintln!("skipped: needs root and engines; run it with `just engines`");
        return Vec::new();
    }
    Kind::ALL.into_iter().filter(|kind| wanted(kind.name())).collect()
}

/// Whether Docker is.
fn docker() -> bool {
    engines().contains(&Kind::Docker)
}

/// Whether workspaces of the server that stands for Daytona are.
fn daytona() -> bool {
    docker() && wanted("daytona")
}

/// What a command said to both, and its code.
fn said(command: &mut Command) -> (i32, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (status.code().unwrap_or(-1), text)
}

/// `bellglass` with a data directory, without anything of the environment but what finds programs.
fn bellglass(data: &std::path::Path) -> Command {
    let mut command = Command::new(e2e::service::binary());
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").arg("--data").arg(data);
    command
}
