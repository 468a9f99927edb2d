//! Setup shared by all attacks on sandboxes: payloads, a comparison of the host before and after the attack,
//! and a second sandbox as a witness.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::exec::{ExecSpec, Outcome};
use api::limits::Limits;
use e2e::lab::{Lab, collect, exec, on, promised, sh, text};
use e2e::{Body, attack};
use node::Sandbox;
use runtime::Runtime;
use tempfile::TempDir;

use super::host::Host;
pub(crate) use super::said::{Said, said};

/// Runtimes whose sandboxes use the host's kernel. `BOTH` contains all runtimes.
pub(crate) const RUNC: &[&str] = &["runc", "docker", "podman", "daytona"];
pub(crate) const BOTH: &[&str] = e2e::lab::EVERYWHERE;
/// The same lists without engines, for attacks on parts that exist only if Bellglass itself creates the
/// sandbox.
pub(crate) const OCI: &[&str] = &["runc"];
pub(crate) const OCI_BOTH: &[&str] = &["runc", "runsc"];
/// Exit code of a payload if any of its attempts has succeeded.
pub(crate) const THROUGH: i32 = 42;
/// Maximum duration of a harmless command that runs after an attack.
const RECOVERY: Duration = Duration::from_secs(2);
const MIB: u64 = 1 << 20;

/// Returns limits that are large enough for the attacks and small enough for a shared machine.
pub(crate) fn small() -> Limits {
    Limits {
        memory_bytes: 128 * MIB,
        disk_bytes: 64 * MIB,
        disk_inodes: 4096,
        tmp_bytes: 16 * MIB,
        ttl_ms: u64::try_from(promised(300).as_millis()).unwrap(),
        ..Limits::default()
    }
}

/// The setup of one attack on one runtime.
pub(crate) struct Field<'a> {
    pub(crate) lab: &'a Lab,
    pub(crate) id: &'static str,
    sentinel: TempDir,
    before: Host,
    /// Why the test has no control on this runtime, if it has none.
    uncontrolled: Cell<Option<&'static str>>,
}

/// Guard that stops every sandbox of a runtime when dropped. Sandboxes that a failed test leaves running
/// would affect the next test.
struct Cleared(Arc<dyn Runtime>);

impl Drop for Cleared {
    fn drop(&mut self) {
        let runtime = Arc::clone(&self.0);
        let clear = move || {
            let executor = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            executor.block_on(async {
                for listed in runtime.list().await.unwrap_or_default() {
                    let _ = runtime.stop(&listed.id, Duration::ZERO).await;
                }
            });
        };
        let _ = std::thread::spawn(clear).join();
    }
}

/// Runs an attack on each of these runtimes, and checks afterwards that the host has not changed.
pub(crate) fn withstand(id: &'static str, runtimes: &[&str], test: impl AsyncFn(&Field<'_>)) {
    withstand_all(id, runtimes, &test);
}

fn withstand_all(id: &'static str, runtimes: &[&str], test: &dyn for<'f> Body<Field<'f>>) {
    on(runtimes, async |lab| {
        attack::begin();
        let sentinel = sentinel();
        let before = Host::look(sentinel.path(), lab.runtime.name());
        let field = Field { lab, id, sentinel, before, uncontrolled: Cell::new(None) };
        // Use a separate runtime instance, because the executor that drives the connections of the current
        // one is blocked while the guard is dropped.
        let cleared = Cleared(lab.again());
        test.run(&field).await;
        drop(cleared);
        Host::look(field.sentinel.path(), lab.runtime.name()).assert_same_as(&field.before, id);
        let runtime = lab.runtime.name();
        match field.uncontrolled.get() {
            Some(why) => attack::held_without_control(id, runtime, why),
            None => attack::held(id, runtime, "the host has not changed"),
        }
    });
}

/// Turns off the defence against an attack until the result is dropped, which makes the sandboxes that are
/// started meanwhile a control.
pub(crate) fn turn_off(attack: &str) -> api::defence::Off {
    attack::count_control();
    api::defence::turn_off(attack)
}

impl Field<'_> {
    /// Declares that the test has no control on this runtime.
    pub(crate) fn has_no_control(&self, why: &'static str) {
        self.uncontrolled.set(Some(why));
    }

    /// Returns the payload with these arguments, as an exec.
    pub(crate) fn payload(&self, arguments: &[&str]) -> ExecSpec {
        let words = payload(self.id, arguments);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        ExecSpec { deadline_ms: Some(30_000), ..exec(&words) }
    }

    /// Starts a sandbox to attack.
    pub(crate) async fn sandbox(&self) -> Sandbox {
        self.lab.sandbox_with(small()).await
    }

    /// Returns a directory on the host that nothing inside the sandbox may change.
    pub(crate) fn sentinel(&self) -> &Path {
        self.sentinel.path()
    }

    /// Returns true if the sandbox uses the host's kernel.
    pub(crate) fn is_container(&self) -> bool {
        self.lab.runtime.name() != "runsc"
    }

    /// Runs the payload with these arguments to completion.
    pub(crate) async fn attack(&self, sandbox: &Sandbox, arguments: &[&str]) -> Said {
        said(&collect(sandbox, &self.payload(arguments)).await)
    }

    /// Asserts that a harmless command works within `RECOVERY`.
    pub(crate) async fn recovers(&self, sandbox: &Sandbox) {
        let began = Instant::now();
        let done = sh(sandbox, "echo alive | cat").await;
        assert_eq!(
            (text(&done).as_str(), &done.end.outcome),
            ("alive\n", &Outcome::Exited { code: 0 }),
            "{}: no recovery: {}",
            self.id,
            String::from_utf8_lossy(&done.stderr)
        );
        assert!(began.elapsed() < RECOVERY, "{}: recovery took {:?}", self.id, began.elapsed());
    }

    /// Waits until no process of user code is left in the sandbox, as counted by the host.
    pub(crate) async fn is_empty(&self, sandbox: &Sandbox) {
        if !self.is_container() {
            return;
        }
        let began = Instant::now();
        // In an engine, process 1 and the process that connects it to the node are counted too.
        let own = if self.lab.runtime.properties().takes_images { 5 } else { 0 };
        // A zombie counts until it is reaped.
        while sandbox.usage().await.unwrap().pids > own {
            assert!(began.elapsed() < RECOVERY, "{}: {:?} are left", self.id, sandbox.usage().await.unwrap());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Runs `attack` while a second sandbox executes commands, each of which must succeed within `RECOVERY`.
    pub(crate) async fn with_witness<T>(&self, witness: &Sandbox, attack: impl Future<Output = T>) -> T {
        tokio::pin!(attack);
        let mut pause = tokio::time::interval(Duration::from_millis(200));
        loop {
            tokio::select! {
                done = &mut attack => return done,
                _ = pause.tick() => {}
            }
            let asked = async {
                let began = Instant::now();
                assert_eq!(text(&sh(witness, "echo here").await), "here\n");
                assert!(began.elapsed() < RECOVERY, "{}: the witness took {:?}", self.id, began.elapsed());
            };
            tokio::pin!(asked);
            tokio::select! {
                done = &mut attack => { asked.await; return done }
                () = &mut asked => {}
            }
        }
    }
}

/// Returns the command line that runs an attack's payload.
pub(crate) fn payload(id: &str, arguments: &[&str]) -> Vec<String> {
    let read = |path: PathBuf| std::fs::read_to_string(path);
    let mut words = if let Ok(text) = read(attack::file(id, "attack.py")) {
        let probe = read(attack::shared("probe.py")).unwrap();
        vec!["/usr/bin/python3".into(), "-c".into(), format!("{probe}\n{text}")]
    } else {
        let text = read(attack::file(id, "attack.sh"))
            .unwrap_or_else(|error| panic!("{id} has no payload: {error}"));
        vec!["/bin/bash".into(), "-c".into(), text, id.to_owned()]
    };
    words.extend(arguments.iter().map(|word| (*word).to_owned()));
    words
}

/// Compiles the C program of an attack as a static executable at this path.
pub(crate) fn compile(id: &str, target: &Path) {
    let source = attack::file(id, "attack.c");
    let status =
        std::process::Command::new("gcc").args(["-O1", "-static", "-o"]).arg(target).arg(source).status();
    assert!(status.unwrap().success(), "{id} does not compile");
}

fn sentinel() -> TempDir {
    let home = tempfile::Builder::new().prefix("bellglass-sentinel").tempdir().unwrap();
    std::fs::create_dir_all(home.path().join("inner/deep")).unwrap();
    for name in ["secret", "null", "inner/file", "inner/deep/file"] {
        std::fs::write(home.path().join(name), format!("the host's own {name}")).unwrap();
    }
    home
}
