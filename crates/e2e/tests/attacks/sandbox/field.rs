//! Setup shared by all attacks on sandboxes: payloads, a comparison of the host before and after the attack,
//! and a second sandbox as a witness.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::exec::{ExecSpec, Outcome};
use api::limits::Limits;
use e2e::lab::{Lab, collect, exec, on, sh, text};
use node::{Collected, Machine, Sandbox};
use runtime::Runtime;
use tempfile::TempDir;

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
        ttl_ms: 300_000,
        ..Limits::default()
    }
}

/// The setup of one attack on one runtime.
pub(crate) struct Field<'a> {
    pub(crate) lab: &'a Lab,
    pub(crate) id: &'static str,
    sentinel: TempDir,
    before: Host,
}

/// The results of a payload's attempts, and the payload's exit code.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) things: BTreeMap<String, String>,
    pub(crate) code: Option<i32>,
    pub(crate) raw: String,
}

/// The state of the host that no attack may change.
#[derive(PartialEq, Eq)]
struct Host {
    files: BTreeMap<PathBuf, (u32, Vec<u8>)>,
    runtime: Vec<u8>,
    settings: Vec<String>,
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
    on(runtimes, async |lab| {
        let sentinel = sentinel();
        let before = Host::look(sentinel.path(), lab.runtime.name());
        let field = Field { lab, id, sentinel, before };
        // Use a separate runtime instance, because the executor that drives the connections of the current
        // one is blocked while the guard is dropped.
        let cleared = Cleared(lab.again());
        test(&field).await;
        drop(cleared);
        assert!(
            Host::look(field.sentinel.path(), lab.runtime.name()) == field.before,
            "{id}: the host has changed"
        );
        println!("attack {id} {} held (control reached)", lab.runtime.name());
    });
}

impl Field<'_> {
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

impl Said {
    /// Asserts the results of attempts. An expected result may list several accepted values, separated by
    /// `|`.
    pub(crate) fn assert(&self, place: &str, wanted: &[(&str, &str)]) {
        for (thing, answers) in wanted {
            let seen = self.things.get(*thing).map_or("nothing", String::as_str);
            assert!(
                answers.split('|').any(|answer| answer == seen),
                "{place}: {thing} gave {seen}, not {answers}:\n{}",
                self.raw
            );
        }
    }

    /// Returns the result of an attempt as a number.
    pub(crate) fn number(&self, thing: &str) -> u64 {
        self.things
            .get(thing)
            .and_then(|text| text.parse().ok())
            .unwrap_or_else(|| panic!("{thing}: {}", self.raw))
    }

    /// Asserts that no attempt succeeded.
    pub(crate) fn assert_held(&self, place: &str) {
        assert_eq!(self.code, Some(0), "{place}: something went through:\n{}", self.raw);
    }
}

/// Parses the output of a payload.
pub(crate) fn said(done: &Collected) -> Said {
    let code = if let Outcome::Exited { code } = done.end.outcome { Some(code) } else { None };
    let said = Said::read(&text(done), code);
    Said {
        raw: format!("{}{}{:?}", said.raw, String::from_utf8_lossy(&done.stderr), done.end.outcome),
        ..said
    }
}

impl Said {
    /// Parses lines of the form `attempt result`, split at the last space.
    pub(crate) fn read(text: &str, code: Option<i32>) -> Self {
        let things = text.lines().filter_map(|line| line.rsplit_once(' '));
        let things = things.map(|(thing, result)| (thing.to_owned(), result.to_owned())).collect();
        Self { things, code, raw: text.to_owned() }
    }
}

/// Returns the command line that runs an attack's payload.
pub(crate) fn payload(id: &str, arguments: &[&str]) -> Vec<String> {
    let home = home().join(id);
    let read = |path: PathBuf| std::fs::read_to_string(path);
    let mut words = if let Ok(text) = read(home.join("attack.py")) {
        let probe = read(self::home().join("probe.py")).unwrap();
        vec!["/usr/bin/python3".into(), "-c".into(), format!("{probe}\n{text}")]
    } else {
        let text =
            read(home.join("attack.sh")).unwrap_or_else(|error| panic!("{id} has no payload: {error}"));
        vec!["/bin/bash".into(), "-c".into(), text, id.to_owned()]
    };
    words.extend(arguments.iter().map(|word| (*word).to_owned()));
    words
}

/// Returns the directory that contains the attacks.
pub(crate) fn home() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../attacks")
}

/// Compiles the C program of an attack as a static executable at this path.
pub(crate) fn compile(id: &str, target: &Path) {
    let source = home().join(id).join("attack.c");
    let status =
        std::process::Command::new("gcc").args(["-O1", "-static", "-o"]).arg(target).arg(source).status();
    assert!(status.unwrap().success(), "{id} does not compile");
}

impl Host {
    fn look(sentinel: &Path, runtime: &str) -> Self {
        // Engines use runc as their runtime.
        let known = |name: &str| Machine::flavors().into_iter().find(|flavor| flavor.name == name);
        let flavor = known(runtime).or_else(|| known("runc")).unwrap();
        let settings =
            ["core_pattern", "modprobe", "hostname", "panic", "tainted", "unprivileged_bpf_disabled"];
        let mut files = BTreeMap::new();
        tree(sentinel, &mut files);
        Self {
            files,
            runtime: std::fs::read(flavor.find().unwrap().binary).unwrap(),
            settings: settings
                .map(|name| std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default())
                .into(),
        }
    }
}

fn sentinel() -> TempDir {
    let home = tempfile::Builder::new().prefix("bellglass-sentinel").tempdir().unwrap();
    std::fs::create_dir_all(home.path().join("inner/deep")).unwrap();
    for name in ["secret", "null", "inner/file", "inner/deep/file"] {
        std::fs::write(home.path().join(name), format!("the host's own {name}")).unwrap();
    }
    home
}

fn tree(path: &Path, seen: &mut BTreeMap<PathBuf, (u32, Vec<u8>)>) {
    let about = std::fs::symlink_metadata(path).unwrap();
    let mode = std::os::unix::fs::MetadataExt::mode(&about);
    let content = if about.is_file() { std::fs::read(path).unwrap() } else { Vec::new() };
    seen.insert(path.to_owned(), (mode, content));
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten().filter(|_| about.is_dir()) {
        tree(&entry.path(), seen);
    }
}
