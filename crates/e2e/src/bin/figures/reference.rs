//! Plain `runc run` with Bellglass's configuration, as the reference for the time to start a sandbox.
//!
//! Bellglass's own code prepares the environment: it starts a sandbox with this program in place of the OCI
//! runtime. Bellglass calls the program once the cgroups, the disk, the bundle and the private mount
//! namespace with the idmapped root are ready. The program leaves a process in that namespace, the keeper,
//! and reports the keeper's pid as process 1. On request, the keeper runs `runc run` on the bundle, with the
//! command replaced by `/bin/true`, and reports the duration. The reference therefore covers runc with the
//! same namespaces, mounts, seccomp filter and cgroup, from fork to removal, and none of Bellglass's own
//! code.
//!
//! ```text
//! figures ──start──▶ stand-in (mounts are ready) ──spawns──▶ keeper ──dials──▶ figures
//! figures ──"run"──▶ keeper ──fork, exec, wait──▶ runc run ; "12345678" ──▶ figures
//! ```

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::SandboxId;
use e2e::Lab;
use runtime::Runtime;
use runtime::oci::{Dirs, Flavor, Oci};

/// Name of the socket in the data directory on which this program accepts the keeper's connection.
const SOCKET: &str = "reference.sock";
/// Command of the container; it exits immediately.
const COMMAND: &str = "/bin/true";

/// A prepared environment in which `runc run` can be measured.
pub(crate) struct Reference {
    runtime: Arc<dyn Runtime>,
    id: SandboxId,
    keeper: BufReader<UnixStream>,
}

impl Reference {
    /// Prepares the environment in the data directory of this lab.
    pub(crate) async fn prepare(lab: &Lab) -> Self {
        let listener = UnixListener::bind(lab.data().join(SOCKET)).expect("a socket for the keeper");
        let flavor = Flavor { binary: std::env::current_exe().unwrap(), ..Flavor::runc() };
        let dirs = Dirs::below(lab.data());
        let runtime: Arc<dyn Runtime> =
            Arc::new(Oci::new(flavor, dirs).expect("the runtime of the reference"));
        let id = lab.id();
        runtime
            .start(&id, &lab.spec(e2e::service::small_limits()))
            .await
            .expect("the mounts of the reference");
        let (stream, _) = listener.accept().expect("the keeper's call");
        // Remove the socket, because the next reference listens for its own keeper on the same path.
        std::fs::remove_file(lab.data().join(SOCKET)).expect("our own socket");
        Self { runtime, id, keeper: BufReader::new(stream) }
    }

    /// Runs the container once and returns the duration.
    pub(crate) fn run(&mut self) -> Duration {
        self.keeper.get_mut().write_all(b"run\n").expect("the keeper to listen");
        let mut answer = String::new();
        self.keeper.read_line(&mut answer).expect("the keeper to answer");
        let nanos = answer.trim().parse().unwrap_or_else(|_| panic!("runc run: {}", answer.trim()));
        Duration::from_nanos(nanos)
    }

    /// Removes the environment.
    pub(crate) async fn end(self) {
        self.runtime.stop(&self.id, Duration::ZERO).await.expect("the end of the reference");
    }
}

/// Acts as the OCI runtime: starts a keeper and reports it as process 1.
#[expect(
    clippy::zombie_processes,
    reason = "this process ends first; the program that asked inherits the keeper and collects it"
)]
pub(crate) fn stand_in(words: &[&str]) -> ExitCode {
    let value = |flag: &str| {
        let at = words.iter().position(|word| *word == flag);
        at.and_then(|at| words.get(at + 1)).unwrap_or_else(|| panic!("{flag} is missing in {words:?}"))
    };
    let (state, bundle) = (value("--root"), value("--bundle"));
    let own = std::env::current_exe().unwrap();
    let keeper = Command::new(own).args(["keep", bundle, state]).spawn().expect("the keeper");
    std::fs::write(value("--pid-file"), keeper.id().to_string()).unwrap();
    ExitCode::SUCCESS
}

/// Acts as the keeper: runs the container once per request, until the connection is closed.
pub(crate) fn keep(bundle: &Path, state: &Path) -> ExitCode {
    replace_command(&bundle.join("config.json"));
    // The bundle is <data>/sandboxes/<id>/bundle.
    let data: PathBuf = bundle.ancestors().nth(3).unwrap().to_owned();
    let mut asked = BufReader::new(UnixStream::connect(data.join(SOCKET)).expect("somebody to listen"));
    let mut line = String::new();
    while asked.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
        let answer = match once(bundle, state) {
            Ok(took) => took.as_nanos().to_string(),
            Err(why) => why,
        };
        asked.get_mut().write_all(format!("{answer}\n").as_bytes()).unwrap();
        line.clear();
    }
    ExitCode::SUCCESS
}

fn once(bundle: &Path, state: &Path) -> Result<Duration, String> {
    let mut command = Command::new("runc");
    command.arg("--root").arg(state).args(["run", "--bundle"]).arg(bundle).arg("reference");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let began = Instant::now();
    let output = command.output().map_err(|error| error.to_string())?;
    let took = began.elapsed();
    if output.status.success() {
        Ok(took)
    } else {
        Err(String::from_utf8_lossy(&output.stderr).replace('\n', " "))
    }
}

fn replace_command(path: &Path) {
    let text = std::fs::read_to_string(path).expect("our own configuration");
    let mut config: serde_json::Value = serde_json::from_str(&text).expect("our own configuration as JSON");
    *config.pointer_mut("/process/args").expect("the arguments of process 1") = serde_json::json!([COMMAND]);
    std::fs::write(path, config.to_string()).expect("the changed configuration");
}
