//! Setup shared by all egress attacks: payloads, their controls, and their output.

use std::cell::RefCell;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use api::SandboxId;
use api::exec::{ExecSpec, Outcome};
use api::limits::Limits;
use api::policy::Policy;
use api::sandbox::{CreateSandbox, Tier};
use client::{Client, Event, Exec};
use e2e::attack;
use e2e::service::{Service, small};
use e2e::world::World;

/// Exit code of a payload if any of its attempts has succeeded.
const THROUGH: i32 = 42;
/// Maximum duration of a payload.
const PAYLOAD_WITHIN_MS: u64 = 240_000;
/// Timeout for a line of the audit log to be written to the disk.
const TOLD_WITHIN: Duration = Duration::from_secs(5);

/// Python program that fetches a page repeatedly until a stop file exists. It then prints the median and the
/// maximum duration.
const NEIGHBOUR: &str = "
import os, time, urllib.request
took = []
while not os.path.exists('/workspace/stop'):
    began = time.monotonic()
    assert urllib.request.urlopen('http://good.example/quick').read() == b'quick'
    took.append(time.monotonic() - began)
    if len(took) == 1:
        print('fetching', flush=True)
    time.sleep(0.02)
os.remove('/workspace/stop')
took.sort()
print(took[len(took) // 2], took[-1])
";

/// A server in a simulated internet, with the tier under attack.
pub(crate) struct Siege<'a> {
    pub(crate) world: &'a World,
    pub(crate) tier: Tier,
    service: RefCell<Service>,
}

/// The proxy of a control, which is killed when this value is dropped.
struct Control(Child);

/// A program that is still running, and its output so far.
pub(crate) struct Running {
    exec: Exec,
    said: String,
}

/// Runs a test once per tier whose runtime is under test, each time with a new server.
pub(crate) async fn on_each_tier(world: &World, test: impl AsyncFn(&Siege<'_>)) {
    for tier in e2e::service::tiers() {
        attack::begin();
        let siege = Siege { world, tier, service: RefCell::new(world.service()) };
        test(&siege).await;
    }
}

impl Siege<'_> {
    pub(crate) fn client(&self) -> Client {
        self.service.borrow().client()
    }

    /// Returns the pid of the server.
    pub(crate) fn pid(&self) -> u32 {
        self.service.borrow().pid()
    }

    /// Restarts the server with its defence against an attack disabled, for the attack's control.
    pub(crate) fn undefend(&self, id: &str) {
        self.world.undefend(&mut self.service.borrow_mut(), id);
    }

    /// Runs `bellglass secret set` with these environment variables, and returns its messages.
    pub(crate) fn set_secret(&self, variables: &[(&str, &str)], name: &str, value: &str) -> String {
        let mut command = self.service.borrow().command(&["secret", "set", name]);
        command.envs(variables.iter().copied()).stdin(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(value.as_bytes()).unwrap();
        let done = child.wait_with_output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stderr).into_owned()
    }

    /// Returns the details of all egress decisions about this sandbox in the audit log.
    pub(crate) fn decided(&self, sandbox: &SandboxId) -> Vec<String> {
        let log = self.service.borrow().data().join("audit.log");
        let text = std::fs::read_to_string(log).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        lines
            .filter(|line| {
                line["sandbox"] == sandbox.as_str() && line["act"].as_str().unwrap().starts_with("egress")
            })
            .map(|line| line["detail"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Starts a payload without waiting for its end.
    pub(crate) async fn begin_payload(&self, id: &str, sandbox: &SandboxId, arguments: &[&str]) -> Running {
        let spec = ExecSpec {
            argv: words(id, arguments),
            deadline_ms: Some(PAYLOAD_WITHIN_MS),
            ..ExecSpec::default()
        };
        Running { exec: self.client().exec(sandbox, &spec).await.unwrap(), said: String::new() }
    }

    pub(crate) fn runtime(&self) -> &'static str {
        match self.tier {
            Tier::Container => "runc",
            Tier::UserKernel => "runsc",
        }
    }

    pub(crate) fn api_port(&self) -> u16 {
        self.service.borrow().url().rsplit(':').next().unwrap().parse().unwrap()
    }

    /// Creates a sandbox with this policy.
    pub(crate) async fn sandbox(&self, policy: Policy) -> SandboxId {
        let limits = Limits { memory_bytes: 256 << 20, pids: 256, ..e2e::service::small_limits() };
        let request =
            CreateSandbox { tier: self.tier, limits: limits.into(), policy: Some(policy), ..small() };
        self.client().create(&request).await.unwrap().id
    }

    /// Asserts that the control reaches at least the given number of targets, and that the same payload
    /// reaches none from the sandbox.
    pub(crate) async fn withstand(
        &self,
        id: &str,
        sandbox: &SandboxId,
        inside: &[&str],
        outside: &[&str],
        least: usize,
    ) {
        let control = self.control(id, outside);
        let ok = control.lines().filter(|line| line.ends_with(" ok")).count();
        assert!(ok >= least, "{id}: the control reached {ok} things, {least} at least:\n{control}");
        let said = self.run(id, sandbox, inside).await;
        let through: Vec<&str> = said.lines().filter(|line| line.ends_with(" ok")).collect();
        assert!(through.is_empty(), "{id}: went through: {through:#?}\n{said}");
        assert!(said.lines().count() >= ok, "{id}: {said}");
    }

    /// Runs a payload in a sandbox and returns its output.
    pub(crate) async fn run(&self, id: &str, sandbox: &SandboxId, arguments: &[&str]) -> String {
        let spec = ExecSpec {
            argv: words(id, arguments),
            deadline_ms: Some(PAYLOAD_WITHIN_MS),
            ..ExecSpec::default()
        };
        let done = self.client().exec(sandbox, &spec).await.unwrap().collect().await.unwrap();
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        let ended = matches!(done.end.outcome, Outcome::Exited { code: 0 | THROUGH });
        assert!(ended, "{id}: {:?}: {said} {}", done.end.outcome, String::from_utf8_lossy(&done.stderr));
        said
    }

    /// Runs a Python program in a sandbox and returns its output.
    pub(crate) async fn python(&self, sandbox: &SandboxId, program: &str) -> String {
        let done = self.client().exec(sandbox, &python(program)).await.unwrap().collect().await.unwrap();
        assert_eq!(
            done.end.outcome,
            Outcome::Exited { code: 0 },
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    /// Starts a Python program without waiting for its end.
    pub(crate) async fn begin(&self, sandbox: &SandboxId, program: &str) -> Running {
        Running { exec: self.client().exec(sandbox, &python(program)).await.unwrap(), said: String::new() }
    }

    /// Asserts that the sandbox can still reach an allowed host.
    pub(crate) async fn recovers(&self, sandbox: &SandboxId) {
        let program =
            "import urllib.request; print(urllib.request.urlopen('http://good.example/').read().decode())";
        let said = self.python(sandbox, program).await;
        assert!(said.contains(r#""reached": "93.184.216.34""#), "{said}");
    }

    /// Waits until the audit log has a line about this sandbox that contains these words, and panics after a
    /// timeout.
    pub(crate) async fn told(&self, sandbox: &SandboxId, words: &str) {
        let log = self.service.borrow().data().join("audit.log");
        let since = Instant::now();
        loop {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            if text.lines().any(|line| line.contains(sandbox.as_str()) && line.contains(words)) {
                return;
            }
            assert!(since.elapsed() < TOLD_WITHIN, "{words:?} is not in {}: {text}", log.display());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Asserts that a create request with this body is refused as invalid.
    pub(crate) async fn refused(&self, body: &str) {
        let wire = self.service.borrow().wire();
        let answer = wire.ask("POST", "/v1/sandboxes", Some(&serde_json::from_str(body).unwrap())).await;
        assert_eq!(answer.status, 400, "{body}: {}", answer.body);
    }

    /// Kills the server and restarts it.
    pub(crate) async fn restart(&self) {
        let mut service = self.service.borrow_mut();
        service.kill();
        service.begin();
    }

    /// Runs an attack while a neighbouring sandbox fetches a page repeatedly. Returns the attack's result,
    /// and the neighbour's median and maximum response times.
    pub(crate) async fn watched<T>(
        &self,
        witness: &SandboxId,
        attack: impl Future<Output = T>,
    ) -> (T, Duration, Duration) {
        let mut neighbour = self.begin(witness, NEIGHBOUR).await;
        neighbour.until("fetching").await;
        let done = attack.await;
        self.python(witness, "open('/workspace/stop', 'w')").await;
        let said = neighbour.rest().await;
        let figures: Vec<f64> =
            said.lines().last().unwrap().split(' ').map(|one| one.parse().unwrap()).collect();
        (done, Duration::from_secs_f64(figures[0]), Duration::from_secs_f64(figures[1]))
    }

    /// Runs the same payload without a sandbox, through an unrestricted proxy, and returns its output.
    fn control(&self, id: &str, arguments: &[&str]) -> String {
        let mut proxy =
            self.world.command(&["python3".into(), "-c".into(), read(attack::shared("open_proxy.py"))]);
        let mut proxy = Control(proxy.stdout(Stdio::piped()).spawn().unwrap());
        let mut line = String::new();
        BufReader::new(proxy.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "serving\n");
        let done = self.world.command(&words(id, arguments)).output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        assert_eq!(
            done.status.code(),
            Some(THROUGH),
            "{id}: {said} {}",
            String::from_utf8_lossy(&done.stderr)
        );
        attack::count_control();
        said
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// Waits until the output contains a word.
    pub(crate) async fn until(&mut self, word: &str) {
        while !self.said.contains(word) {
            match self.exec.next().await.unwrap() {
                Some(Event::Data { bytes, .. }) => self.said.push_str(&String::from_utf8_lossy(&bytes)),
                other => panic!("{other:?} after {}", self.said),
            }
        }
    }

    /// Waits until the program has ended, and returns its complete output.
    pub(crate) async fn rest(mut self) -> String {
        while let Some(event) = self.exec.next().await.unwrap() {
            if let Event::Data { bytes, .. } = event {
                self.said.push_str(&String::from_utf8_lossy(&bytes));
            }
        }
        self.said
    }
}

fn python(program: &str) -> ExecSpec {
    ExecSpec {
        argv: ["python3", "-u", "-c", program].map(str::to_owned).to_vec(),
        deadline_ms: Some(PAYLOAD_WITHIN_MS),
        ..ExecSpec::default()
    }
}

/// Returns the number of successful attempts in a payload's output.
pub(crate) fn through(said: &str) -> usize {
    said.lines().filter(|line| line.ends_with(" ok")).count()
}

/// Returns the resident memory of a process in bytes.
pub(crate) fn rss_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Returns the number of open descriptors of a process.
pub(crate) fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Returns the command line that runs a payload, including the functions that all payloads share.
pub(crate) fn words(id: &str, arguments: &[&str]) -> Vec<String> {
    let text = [attack::shared("probe.py"), attack::shared("leave.py"), attack::file(id, "attack.py")]
        .map(read)
        .concat();
    let mut words = vec!["python3".to_owned(), "-u".into(), "-c".into(), text];
    words.extend(arguments.iter().map(|word| (*word).to_owned()));
    words
}

fn read(path: PathBuf) -> String {
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
