//! A separate Docker engine for a test, which can be stopped and restarted.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use tempfile::TempDir;

/// Timeout for the engine to start on a busy machine, including the recovery of its containers.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

/// A Docker engine that belongs to one test.
pub struct Dockerd {
    child: Option<Child>,
    options: Vec<String>,
    /// The engine's directory. It is declared last, so that it is removed last.
    home: TempDir,
}

impl Dockerd {
    /// Starts an engine with additional command-line options.
    pub fn start(options: &[&str]) -> Self {
        let home = tempfile::Builder::new().prefix("bellglass-dockerd").tempdir_in("/var/tmp").unwrap();
        std::fs::set_permissions(home.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let options = options.iter().map(|word| (*word).to_owned()).collect();
        let mut engine = Self { child: None, options, home };
        engine.begin();
        engine
    }

    /// Starts the stopped engine, and waits until it responds.
    pub fn begin(&mut self) {
        let path = |name: &str| self.home.path().join(name);
        let log = std::fs::File::options().create(true).append(true).open(path("log")).unwrap();
        let mut command = Command::new("dockerd");
        command
            .arg("--data-root")
            .arg(path("data"))
            .arg("--exec-root")
            .arg(path("run"))
            .arg("--pidfile")
            .arg(path("pid"))
            .args(["--host", &self.address()])
            .args(["--bridge=none", "--iptables=false", "--ip-forward=false", "--ip-masq=false"])
            .args(&self.options)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        self.child = Some(command.spawn().expect("dockerd is installed"));
        let since = Instant::now();
        while !self.answers() {
            assert!(since.elapsed() < STARTS_WITHIN, "{}", self.words());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Stops the engine with SIGTERM, as a restart by an administrator does.
    pub fn end(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).unwrap();
        rustix::process::kill_process(pid, Signal::TERM).unwrap();
        child.wait().unwrap();
    }

    /// Returns the last lines of the engine's log.
    pub fn words(&self) -> String {
        let text = std::fs::read_to_string(self.home.path().join("log")).unwrap_or_default();
        text.lines().rev().take(20).collect::<Vec<_>>().join("\n")
    }

    /// Returns the path of the engine's socket.
    pub fn socket(&self) -> PathBuf {
        self.home.path().join("docker.sock")
    }

    /// Returns the address on which the engine listens.
    pub fn address(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    fn answers(&self) -> bool {
        use std::io::{Read as _, Write as _};
        let Ok(mut stream) = UnixStream::connect(self.socket()) else { return false };
        let asked = stream.write_all(b"GET /_ping HTTP/1.0\r\nHost: engine\r\n\r\n");
        let mut said = String::new();
        asked.and_then(|()| stream.read_to_string(&mut said)).is_ok() && said.contains(" 200 ")
    }
}

impl Drop for Dockerd {
    fn drop(&mut self) {
        self.end();
    }
}
