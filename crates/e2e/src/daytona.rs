//! A stand-in for Daytona: a server that implements the part of Daytona's API that Bellglass uses.
//!
//! Each workspace is a container in the Docker engine that `DOCKER_HOST` names. The published Daytona SDK is
//! installed as well, and a test uses it to check that the server behaves as the SDK expects.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use api::SandboxId;
use runtime::daytona::Account;

use crate::layer;

/// The Daytona SDK on PyPI. Its dependencies include everything that the server needs.
const SDK: &str = "daytona==0.226.1";
/// API key that every stand-in server accepts.
pub const KEY: &str = "dtn_of_a_test";
/// The server that all tests in this process share.
static SERVER: OnceLock<Server> = OnceLock::new();

/// A running stand-in for Daytona. When this process exits, the server's standard input is closed; the server
/// then removes its containers and exits.
pub struct Server {
    child: Child,
    address: String,
}

impl Server {
    /// Returns the server that all tests in this process share. Its workspaces run as root, like those of a
    /// snapshot with `USER root`.
    pub fn shared() -> &'static Self {
        SERVER.get_or_init(|| Self::start(&["--user", "0"]))
    }

    /// Starts a server with additional command-line options.
    pub fn start(options: &[&str]) -> Self {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/daytona.py");
        let engine = std::env::var("DOCKER_HOST").expect("an engine: `just engines`");
        let mut child = Command::new(python())
            .arg(program)
            .args(["--docker", &engine, "--key", KEY])
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening ").unwrap_or_else(|| panic!("{line}")).to_owned();
        Self { child, address }
    }

    /// Returns the URL of the server's API.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the address and API key of this server as an account.
    pub fn account(&self) -> Account {
        Account::new(&self.address, KEY, None).unwrap()
    }

    /// Returns the ID of the container that is a sandbox's workspace.
    pub fn container_of(&self, id: &SandboxId) -> String {
        let named = format!("label=daytona.test.name=bellglass-{id}");
        let found =
            Command::new("docker").args(["ps", "-q", "--no-trunc", "--filter", &named]).output().unwrap();
        String::from_utf8(found.stdout).unwrap().trim().to_owned()
    }

    /// Returns the host pid of a sandbox's process 1: the process whose pid is 1 in the PID namespace two
    /// levels down.
    pub fn process_of(&self, id: &SandboxId) -> i32 {
        let container = self.container_of(id);
        let of =
            |pid: i32, name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let is_first = |pid: &i32| {
            let status = of(*pid, "status");
            let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
            let numbers: Vec<&str> = numbers.split_whitespace().collect();
            numbers.len() > 2 && numbers.last() == Some(&"1") && of(*pid, "cgroup").contains(&container)
        };
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(is_first).expect("process 1")
    }

    /// Returns the environment variables that configure a program for this server.
    pub fn variables(&self) -> [(&'static str, String); 2] {
        [("DAYTONA_API_URL", self.address.clone()), ("DAYTONA_API_KEY", KEY.to_owned())]
    }

    /// Returns the `env` command with the same variables, for use as a prefix of a different command.
    pub fn before(&self) -> Vec<String> {
        let named = self.variables().map(|(name, value)| format!("{name}={value}"));
        std::iter::once("env".to_owned()).chain(named).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Returns the path of a Python interpreter with the SDK, which is installed on first use.
pub fn python() -> PathBuf {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON
        .get_or_init(|| {
            let place = layer::kept().join(SDK.replace("==", "-"));
            if !place.join("whole").exists() {
                let must = |command: &mut Command| {
                    let output = command.output().unwrap();
                    let said = String::from_utf8_lossy(&output.stderr).into_owned();
                    assert!(output.status.success(), "{command:?}: {said}");
                };
                must(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&place));
                must(Command::new(place.join("bin/pip")).args(["install", "-q", SDK]));
                std::fs::write(place.join("whole"), "").unwrap();
            }
            place.join("bin/python")
        })
        .clone()
}
