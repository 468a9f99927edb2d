//! A test environment for sandboxes, with a separate data directory, a real runtime and a check for
//! leftovers.

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use api::exec::ExecSpec;
use api::limits::Limits;
use api::{ExecId, SandboxId};
use node::{Collected, Error, Exec, Machine, Sandbox};
use runtime::daytona::{self, Daytona};
use runtime::engine::{EngineEndpoint, EngineKind};
use runtime::{Profile, Runtime, Spec};
use tempfile::TempDir;

use crate::daytona::Server;
use crate::traces::Traces;
use crate::{Body, layer};

/// Timeout for a test on one runtime.
const TEST_SECONDS: u64 = 300;

/// A test environment for sandboxes.
pub struct Lab {
    /// The runtime under test.
    pub runtime: Arc<dyn Runtime>,
    /// The machine, opened in the same way as `bellglass` opens it.
    pub machine: Machine,
    layer: PathBuf,
    /// Data directory. It is declared last, so that it is removed after everything that uses it.
    data: TempDir,
}

impl Lab {
    /// Creates a lab on the runtime with this name.
    pub fn new(runtime: &str) -> Self {
        let data = tempfile::Builder::new().prefix("bellglass-lab").tempdir().expect("a temporary directory");
        // The processes of a sandbox need permission to traverse this directory.
        std::fs::set_permissions(data.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711)).unwrap();
        let machine = Machine::open(data.path()).expect("the data directory");
        Self { runtime: instance(&machine, runtime), machine, layer: layer::base(), data }
    }

    /// Returns a second instance of the runtime, as a different process would open it.
    pub fn again(&self) -> Arc<dyn Runtime> {
        instance(&self.machine, self.runtime.name())
    }

    /// Returns the data directory of this lab.
    pub fn data(&self) -> &std::path::Path {
        self.data.path()
    }

    /// Returns the spec that `bellglass run` would use with these limits.
    pub fn spec(&self, limits: Limits) -> Spec {
        Spec {
            layers: vec![self.layer.clone()],
            image: layer::base_image_in(self.data(), self.runtime.name()),
            // Pass invalid limits to the runtime unchanged, so that the runtime refuses them.
            limits: if limits.check().is_ok() { self.runtime.within(limits) } else { limits },
            profile: Profile::Run,
            guest: self.machine.guest().to_owned(),
        }
    }

    /// Returns the traces that this lab's sandboxes can leave behind.
    pub fn traces(&self) -> Traces {
        Traces::of(&[&format!("t{}n", std::process::id()), &self.data.path().to_string_lossy()])
    }

    /// Returns the host pid of a sandbox's process 1. With gVisor, that process is the user-space kernel.
    pub fn process_of(&self, id: &SandboxId) -> i32 {
        if !self.runtime.properties().takes_images {
            let record = std::fs::read(self.data().join("sandboxes").join(id.as_str()).join("record.json"));
            let record: serde_json::Value = serde_json::from_slice(&record.unwrap()).unwrap();
            return record["process"]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).unwrap();
        }
        if self.runtime.name() == daytona::NAME {
            return Server::shared().process_of(id);
        }
        let mut command = std::process::Command::new("curl");
        let kind = EngineKind::ALL.into_iter().find(|kind| kind.name() == self.runtime.name());
        let place = EngineEndpoint::find(kind.unwrap());
        let socket = place.unwrap().address.trim_start_matches("unix://").to_owned();
        let path = format!("http://engine/containers/bellglass-{id}/json");
        let said = command.args(["--silent", "--unix-socket", &socket, &path]).output().unwrap().stdout;
        let said: serde_json::Value = serde_json::from_slice(&said).unwrap();
        said["State"]["Pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).unwrap()
    }

    /// Returns a sandbox ID that no other sandbox uses.
    pub fn id(&self) -> SandboxId {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        format!("t{}n{number}", std::process::id()).parse().unwrap()
    }

    /// Starts a sandbox with the default limits.
    pub async fn sandbox(&self) -> Sandbox {
        self.sandbox_with(Limits::default()).await
    }

    /// Starts a sandbox with these limits.
    pub async fn sandbox_with(&self, limits: Limits) -> Sandbox {
        Sandbox::start(Arc::clone(&self.runtime), self.id(), &self.spec(limits))
            .await
            .unwrap_or_else(|error| panic!("{}", node::error::chain(&error)))
    }
}

/// Returns the runtime with this name on this machine. For Daytona, it uses the shared stand-in server.
fn instance(machine: &Machine, name: &str) -> Arc<dyn Runtime> {
    if name == daytona::NAME {
        return Arc::new(Daytona::new(Server::shared().account(), machine.data()).unwrap());
    }
    machine.runtime(name).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns a duration that the specification promises, scaled to this machine's speed. `BELLGLASS_SLOWDOWN`
/// is the factor by which this machine is slower, for example because its processor is emulated.
pub fn promised(seconds: u64) -> Duration {
    let slowdown = std::env::var("BELLGLASS_SLOWDOWN").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    Duration::from_secs(seconds * slowdown)
}

/// A continuous measurement of the longest time that this machine's disk takes to sync a few bytes. A server
/// that keeps its records on the same disk can be delayed by this time.
pub struct Disk {
    done: std::sync::mpsc::Sender<()>,
    thread: std::thread::JoinHandle<Duration>,
}

impl Disk {
    /// Starts the measurement with a file in this directory.
    pub fn beside(directory: &Path) -> Self {
        const EVERY: Duration = Duration::from_millis(100);
        let mut file = tempfile::NamedTempFile::new_in(directory).unwrap();
        let (done, until) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut longest = Duration::ZERO;
            while until.recv_timeout(EVERY) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                let began = Instant::now();
                file.write_all(b"kept").unwrap();
                file.as_file().sync_all().unwrap();
                longest = longest.max(began.elapsed());
            }
            longest
        });
        Self { done, thread }
    }

    /// Ends the measurement and returns the longest time.
    pub fn longest(self) -> Duration {
        drop(self.done);
        self.thread.join().unwrap()
    }
}

/// Selects the full size of a test or a smaller size that fits into the time of a CI run. `BELLGLASS_FULL`
/// selects the full size; `just real` and `just attacks` set it unless `--quick` is given.
pub fn sized<T>(full: T, quick: T) -> T {
    if std::env::var_os("BELLGLASS_FULL").is_some() { full } else { quick }
}

/// Names of all runtimes, whose sandboxes must behave alike.
pub const EVERYWHERE: &[&str] = &["runc", "runsc", "docker", "podman", "daytona"];

/// Returns true if the runtime with this name is selected for tests, and prints the answer. `scripts/test-report`
/// counts a test as skipped if none of the runtimes that it needs is selected.
pub fn wanted(name: &str) -> bool {
    let selected = is_selected(name);
    eprintln!("runtime {name}: {}", if selected { "selected" } else { "not selected" });
    selected
}

/// Returns true if the runtime with this name is selected for tests. `BELLGLASS_RUNTIMES` is a
/// comma-separated list of runtimes; the default is every runtime that needs no engine.
pub(crate) fn is_selected(name: &str) -> bool {
    match std::env::var("BELLGLASS_RUNTIMES") {
        Ok(list) => list.split(',').any(|one| one == name),
        Err(_) => name != daytona::NAME && EngineKind::ALL.into_iter().all(|kind| kind.name() != name),
    }
}

/// Runs a test on each of these runtimes and checks that it leaves nothing behind.
pub fn on(runtimes: &[&str], test: impl AsyncFn(&Lab)) {
    on_each(runtimes, &test);
}

fn on_each(runtimes: &[&str], test: &dyn Body<Lab>) {
    for name in runtimes.iter().filter(|name| wanted(name)) {
        crate::traces::begin_test();
        let executor = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let lab = Lab::new(name);
        let done = catch_unwind(AssertUnwindSafe(|| {
            executor.block_on(async {
                tokio::time::timeout(promised(TEST_SECONDS), test.run(&lab))
                    .await
                    .unwrap_or_else(|_| panic!("{name}: too slow"));
            });
        }));
        executor.block_on(async {
            for listed in lab.runtime.list().await.unwrap() {
                lab.runtime.stop(&listed.id, Duration::ZERO).await.unwrap();
            }
            assert_eq!(lab.runtime.list().await.unwrap(), [], "left on {name}");
        });
        if let Err(panic) = done {
            eprintln!("on {name}:");
            resume_unwind(panic);
        }
        let traces = lab.traces();
        drop(lab);
        executor.shutdown_background();
        traces.assert_nothing_left();
    }
}

/// Returns the spec of an exec that runs this command line, with the default deadline.
pub fn exec(argv: &[&str]) -> ExecSpec {
    ExecSpec {
        argv: argv.iter().map(|word| (*word).to_owned()).collect(),
        deadline_ms: Some(u64::try_from(promised(60).as_millis()).unwrap_or(u64::MAX)),
        ..ExecSpec::default()
    }
}

/// Returns the spec of an exec that runs a shell script.
pub fn script(text: &str) -> ExecSpec {
    exec(&["/bin/bash", "-c", text])
}

/// Runs an exec to completion.
pub async fn collect(sandbox: &Sandbox, spec: &ExecSpec) -> Collected {
    start(sandbox, spec).await.unwrap().collect().await.unwrap()
}

/// Starts an exec with a new ID.
pub async fn start(sandbox: &Sandbox, spec: &ExecSpec) -> Result<Exec, Error> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let id: ExecId = format!("t{}", COUNT.fetch_add(1, Ordering::Relaxed)).parse().unwrap();
    sandbox.exec(id, spec).await
}

/// Runs a shell script to completion.
pub async fn sh(sandbox: &Sandbox, text: &str) -> Collected {
    collect(sandbox, &script(text)).await
}

/// Waits until a file exists in a sandbox. Programs create it when they are ready.
pub async fn until_there(sandbox: &Sandbox, path: &str) {
    let done = sh(sandbox, &format!("until test -e {path}; do sleep 0.01; done")).await;
    assert_eq!(done.end.outcome, api::exec::Outcome::Exited { code: 0 }, "{path} is not there");
}

/// Returns the standard output of an exec as text.
pub fn text(collected: &Collected) -> String {
    String::from_utf8_lossy(&collected.stdout).into_owned()
}
