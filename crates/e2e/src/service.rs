//! A server for tests: a real `bellglass serve` process with its own data directory and port, which can be
//! killed and restarted.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use api::SandboxId;
use api::account::{CreateKey, PutProject, Quota, Role};
use api::limits::Limits;
use api::sandbox::{CreateSandbox, Tier};
use client::Client;
use runtime::engine::EngineKind;
use tempfile::TempDir;

use crate::daytona::Server;
use crate::traces::Traces;
use crate::wire::Wire;
use crate::{Local, apart, layer};

/// Timeout for the server to start, including recovery, on a machine under load.
const STARTS_WITHIN: Duration = Duration::from_secs(20);
/// Timeout until both the store and the machine show that a sandbox has ended. The server compares the store
/// with the machine every 5 s.
const SETTLES_WITHIN: Duration = Duration::from_secs(20);
/// Polling interval while waiting for a condition.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Quota that tests never reach, so that no request is refused because of the number of requests.
pub const PLENTY: Quota = Quota {
    sandboxes: 2000,
    memory_bytes: 1 << 50,
    disk_bytes: 1 << 50,
    creates_per_second: 100_000,
    execs_per_second: 100_000,
    open: true,
    root: false,
};

/// A running server.
pub struct Service {
    binary: PathBuf,
    child: Option<Child>,
    /// Command that precedes the server's program, for tests that run the server under a different program,
    /// such as `faketime`.
    before: Vec<String>,
    extra: Vec<String>,
    address: String,
    /// The first key: an administrator key of the project `default`, whose quota is [`PLENTY`].
    pub key: String,
    /// Data directory. It is declared last, so that it is removed last.
    data: TempDir,
}

/// Returns the `bellglass` executable under test.
///
/// # Panics
/// Panics if `BELLGLASS_BINARY` is not set.
pub fn binary() -> PathBuf {
    std::env::var_os("BELLGLASS_BINARY").expect("BELLGLASS_BINARY names it, as `just real` does").into()
}

/// Returns a request for a small sandbox, because tests create many of them.
pub fn small() -> CreateSandbox {
    CreateSandbox { limits: small_limits().into(), ..CreateSandbox::default() }
}

/// Returns the limits of a small sandbox.
pub fn small_limits() -> Limits {
    Limits {
        memory_bytes: 128 << 20,
        disk_bytes: Limits::MIN.disk_bytes,
        disk_inodes: 1024,
        tmp_bytes: 16 << 20,
        ..Limits::default()
    }
}

fn data_directory() -> TempDir {
    tempfile::Builder::new().prefix("bellglass-serve").tempdir().expect("a temporary directory")
}

impl Service {
    /// Starts the server under test with the template `base`.
    pub fn start() -> Self {
        Self::with(&[], &[])
    }

    /// Starts a server of another release, whose executable this is.
    pub fn of_release(executable: &Path) -> Self {
        Self::serving(executable.to_owned(), data_directory(), &[], &[])
    }

    /// Starts a server with a command before its program and options after `serve`.
    pub fn with(before: &[&str], extra: &[&str]) -> Self {
        Self::on(data_directory(), before, extra)
    }

    /// Starts a server whose sandboxes run in this engine, with the templates `base` and `interpreter`.
    pub fn on_engine(kind: EngineKind) -> Self {
        let service = Self::with(&[], &["--backends", kind.name()]);
        let base = node::template::Store::new(service.data()).load("base").unwrap().image();
        layer::lend_image(service.data(), kind, &layer::base_image(kind.name()), &base);
        layer::lend(service.data(), "interpreter");
        let interpreter = layer::load(kind, "interpreter");
        layer::lend_image(service.data(), kind, &interpreter, &interpreter);
        service
    }

    /// Starts a server whose sandboxes run in workspaces on this stand-in for Daytona.
    pub fn on_daytona(server: &Server) -> Self {
        let service = Self::with_words(&server.before(), &["--backends", "daytona"]);
        let base = node::template::Store::new(service.data()).load("base").unwrap().image();
        layer::also_named(EngineKind::Docker, &layer::base_image("docker"), &base);
        layer::lend(service.data(), "interpreter");
        layer::load(EngineKind::Docker, "interpreter");
        service
    }

    /// Does the same as [`Service::with`], but takes owned strings for the command before the program.
    pub fn with_words(before: &[String], extra: &[&str]) -> Self {
        Self::with(&before.iter().map(String::as_str).collect::<Vec<_>>(), extra)
    }

    /// Does the same as [`Service::with`], but uses an existing data directory.
    pub fn on(data: TempDir, before: &[&str], extra: &[&str]) -> Self {
        Self::serving(binary(), data, before, extra)
    }

    fn serving(binary: PathBuf, data: TempDir, before: &[&str], extra: &[&str]) -> Self {
        std::fs::set_permissions(data.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
        lend_template(data.path(), "base", 'b');
        let words = |list: &[&str]| list.iter().map(|word| (*word).to_owned()).collect();
        let mut extra: Vec<String> = words(extra);
        if !extra.iter().any(|word| word == "--config") {
            // Disable the pool, because tests count sandboxes, and pre-warmed ones would distort the count.
            let path = data.path().join("serve.toml");
            std::fs::write(&path, "pool_ready = 0\n").unwrap();
            extra.extend(["--config".to_owned(), path.to_string_lossy().into_owned()]);
        }
        let mut service = Self {
            binary,
            child: None,
            before: words(before),
            extra,
            address: "127.0.0.1:0".into(),
            key: String::new(),
            data,
        };
        service.begin();
        service.key = std::fs::read_to_string(service.first_key()).unwrap().trim().to_owned();
        let admin = service.client();
        apart(async || drop(admin.put_project("default", &PutProject { quota: PLENTY }).await.unwrap()));
        service
    }

    /// Starts the server on its previous address, and returns the time until it was ready.
    pub fn begin(&mut self) -> Duration {
        let begun = Instant::now();
        let log = File::options().create(true).append(true).open(self.log()).unwrap();
        let mut words = self.before.clone();
        words.push(self.binary.to_string_lossy().into_owned());
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .arg("--data")
            .arg(self.data.path())
            .args(["serve", "--listen", &self.address, "--first-key"])
            .arg(self.first_key())
            .args(&self.extra)
            .env_remove("BELLGLASS_SERVER")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log);
        let mut child = command.spawn().expect("bellglass serve");
        let (send, lines) = mpsc::channel();
        let stdout = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        self.child = Some(child);
        loop {
            match lines.recv_timeout(STARTS_WITHIN.saturating_sub(begun.elapsed())) {
                Ok(line) => {
                    if let Some((_, address)) =
                        line.strip_prefix("bellglass serves ").and_then(|url| url.split_once("://"))
                    {
                        self.address = address.trim_end().to_owned();
                        return begun.elapsed();
                    }
                }
                Err(_) => panic!("the server did not start: {}", self.words()),
            }
        }
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Replaces the `bellglass` executable that later starts use.
    pub fn replace(&mut self, binary: &Path) {
        self.binary = binary.to_owned();
    }

    /// Replaces the command that precedes the server's program at later starts.
    pub fn run_under(&mut self, before: &[&str]) {
        self.before = before.iter().map(|word| (*word).to_owned()).collect();
    }

    /// Restarts the server with its defence against an attack disabled. This is the attack's positive
    /// control.
    pub fn undefend(&mut self, attack: &str) {
        crate::attack::count_control();
        self.kill();
        self.run_under(&["env", &format!("{}={attack}", api::defence::VARIABLE)]);
        self.begin();
    }

    /// Returns the process id of the server.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("a running server").id()
    }

    /// Returns the URL of the server.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the data directory.
    pub fn data(&self) -> &Path {
        self.data.path()
    }

    /// Returns a client that uses the first key.
    pub fn client(&self) -> Client {
        Client::new(&self.url(), &self.key).unwrap()
    }

    /// Returns a connection whose requests are sent once, without retries.
    pub fn wire(&self) -> Wire {
        Wire::new(self.address.parse().unwrap(), Some(&self.key))
    }

    /// Returns a `bellglass` command configured for this server.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.arg("--data").arg(self.data.path()).args(arguments);
        command.env("BELLGLASS_SERVER", self.url()).env("BELLGLASS_API_KEY", &self.key).stdin(Stdio::null());
        command
    }

    /// Returns a client that uses a new key for this project and role. The project gets this quota, and is
    /// created if it does not exist.
    pub async fn client_of(&self, project: &str, role: Role, quota: Quota) -> Client {
        Client::new(&self.url(), &self.key_of(project, role, quota).await).unwrap()
    }

    /// Returns the secret of a new key for this project and role. Like [`Service::client_of`], it creates or
    /// updates the project.
    pub async fn key_of(&self, project: &str, role: Role, quota: Quota) -> String {
        let admin = self.client();
        admin.put_project(project, &PutProject { quota }).await.unwrap();
        let ask = CreateKey { project: project.into(), role, label: String::new(), valid_ms: None };
        admin.create_key(&ask).await.unwrap().secret
    }

    /// Returns the server's log.
    pub fn words(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// Returns a search for traces of this server's sandboxes: everything that names the data directory or
    /// one of these IDs.
    pub fn traces(&self, ids: &[String]) -> Traces {
        let mut marks: Vec<&str> = ids.iter().map(String::as_str).collect();
        let data = self.data.path().to_string_lossy();
        marks.push(&data);
        Traces::of(&marks)
    }

    /// Adds a template like `base` whose layer key is the given hexadecimal digit, repeated.
    pub fn add_template(&self, name: &str, letter: char) {
        lend_template(self.data(), name, letter);
    }

    /// Builds a template that ships with Bellglass.
    pub fn build(&self, recipe: &str) {
        let built = self.command(&["template", "build", recipe]).output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    }

    /// Returns the host pid of a sandbox's process 1.
    pub fn process_of(&self, sandbox: &SandboxId) -> i32 {
        let record = self.data().join("sandboxes").join(sandbox.as_str()).join("record.json");
        let record: serde_json::Value = serde_json::from_slice(&std::fs::read(record).unwrap()).unwrap();
        record["process"]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).expect("a process")
    }

    /// Asserts that, after some time for cleanup, nothing is left of any sandbox in the project `default`:
    /// neither on the machine nor in the data directory, nor as a live sandbox in the store.
    pub async fn assert_nothing_left(&self) {
        let client = self.client();
        until(SETTLES_WITHIN, "every sandbox to have ended", async || {
            client.sandboxes(false).await.unwrap().is_empty()
        })
        .await;
        let ids: Vec<String> =
            client.sandboxes(true).await.unwrap().iter().map(|one| one.id.to_string()).collect();
        self.traces(&ids).assert_nothing_left_but_the_server(self.pid());
        let mut left = Vec::new();
        let since = Instant::now();
        // The server's health check creates a sandbox from time to time, so files appear and disappear.
        while since.elapsed() < SETTLES_WITHIN {
            left = self.files();
            if left.is_empty() {
                return;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        panic!("left in the data directory: {left:#?}");
    }

    /// Returns the data directory's entries for sandboxes: directories, records, and the state of
    /// runtimes.
    fn files(&self) -> Vec<PathBuf> {
        let inside = |path: PathBuf| -> Vec<PathBuf> {
            std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
        };
        let mut left = inside(self.data().join("sandboxes"));
        left.extend(inside(self.data().join("node")).into_iter().filter(|path| !path.ends_with("lock")));
        left.extend(inside(self.data().join("runtime")).into_iter().flat_map(inside));
        left
    }

    fn log(&self) -> PathBuf {
        self.data.path().join("serve.log")
    }

    fn first_key(&self) -> PathBuf {
        self.data.path().join("first.key")
    }
}

impl Drop for Service {
    /// Stops the server and its sandboxes, even if the test failed.
    fn drop(&mut self) {
        self.kill();
        let Ok(machine) = node::Machine::open(self.data.path()) else { return };
        apart(async || {
            let engines = EngineKind::ALL
                .into_iter()
                .map(EngineKind::name)
                .filter(|name| crate::lab::is_selected(name));
            for name in node::Machine::flavors().map(|flavor| flavor.name).into_iter().chain(engines) {
                let Ok(runtime) = machine.runtime(name) else { continue };
                for listed in runtime.list().await.unwrap_or_default() {
                    let _ = runtime.stop(&listed.id, Duration::ZERO).await;
                }
            }
        });
        // Opening a runtime makes this process a subreaper, which adopts orphans. Undo this, so that this
        // process does not adopt the next server's orphans.
        let _ = rustix::process::set_child_subreaper(None);
    }
}

/// Waits until a condition holds, and panics if the timeout expires first.
pub async fn until(within: Duration, what: &str, so: impl AsyncFn() -> bool) {
    let since = Instant::now();
    while !so().await {
        assert!(since.elapsed() < within, "waited {within:?} for {what}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Returns the tiers whose runtimes are selected for tests.
pub fn tiers() -> impl Iterator<Item = Tier> {
    let all = [(Tier::Container, "runc"), (Tier::UserKernel, "runsc")];
    all.into_iter().filter(|(_, runtime)| crate::lab::wanted(runtime)).map(|(tier, _)| tier)
}

/// Runs a test that starts a server.
pub fn served(test: impl AsyncFn()) {
    served_by(Box::pin(test()));
}

fn served_by(test: Local<'_, ()>) {
    crate::traces::begin_test();
    crate::attack::begin();
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(test);
}

/// Adds a template like `base` without copying its layer. The new layer's key is this letter, repeated, and
/// the layer links to the shared files.
pub fn lend_template(data: &Path, name: &str, letter: char) {
    let tree = layer::base();
    let (layers, templates) = (data.join("layers"), data.join("templates"));
    for directory in [&layers, &templates] {
        std::fs::create_dir_all(directory).unwrap();
    }
    std::fs::set_permissions(&layers, std::fs::Permissions::from_mode(0o711)).unwrap();
    let key = letter.to_string().repeat(64);
    std::fs::create_dir_all(layers.join(&key)).unwrap();
    if !layers.join(&key).join("fs").exists() {
        symlink(tree, layers.join(&key).join("fs")).unwrap();
    }
    let digest = format!("sha256:{key}");
    let record = serde_json::json!({ "digest": digest, "bytes": 1, "entries": 1 });
    std::fs::write(layers.join(&key).join("layer.json"), record.to_string()).unwrap();
    let template = node::template::Template { layers: vec![key], ..node::template::Template::of(name) };
    node::template::Store::new(data).save(&template).unwrap();
}
