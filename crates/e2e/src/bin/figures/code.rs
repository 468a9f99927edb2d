//! Durations of running code in Bellglass, compared with the alternatives. Each runtime has one sandbox of
//! the template `interpreter`, which is used through the public API on loopback.
//!
//! | subject | is |
//! |---|---|
//! | bare | `python3 -c` with the imports and the cell, as an ordinary exec |
//! | fork | `os.fork()` in an interpreter with the same imports, until the child exits; with and without the cell; self-timed |
//! | kernel | a Jupyter kernel in a second sandbox: until it is ready, its first cell, another cell; self-timed |
//! | run | our run without a context, of `pass` and of the cell, until the end of the run is read |
//! | cell | our run in a context, of `pass` and of the cell; the cell also measures its own duration |
//! | first | our first run in a new sandbox; in another new sandbox, a bare `python3` with the imports of the template |
//!
//! The subjects alternate as in [`rounds`](crate::rounds). Subjects that take seconds are measured only in
//! some of the rounds.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use api::code::{Code, ContextSpec};
use api::exec::{ExecSpec, Outcome, Stream};
use api::limits::Limits;
use api::policy::Policy;
use api::sandbox::{CreateSandbox, Tier};
use api::{ContextId, SandboxId};
use client::{Client, Collected, Event, Exec, Stdin};
use e2e::service::Service;

use crate::samples::Samples;

/// Imports that all subjects use.
const IMPORTS: &str = "import numpy, pandas, matplotlib.pyplot";
/// A cell that sums 10,000 rows by group, which takes about a millisecond.
const CELL: &str = "import numpy, pandas; total = pandas.DataFrame({'key': numpy.arange(10_000) % 100, 'value': numpy.arange(10_000.0)}).groupby('key')['value'].sum()";
/// Code to run before and after the cell, which prints the cell's duration in nanoseconds.
const TIMED: [&str; 2] =
    ["import time; began = time.perf_counter_ns()", "print(time.perf_counter_ns() - began)"];
/// A cell that does nothing.
const NOTHING: &str = "pass";
const FORK: &str = include_str!("code/fork.py");
const KERNEL: &str = include_str!("code/kernel.py");
/// Command that installs the packages which a Jupyter kernel needs and the template lacks.
const INSTALL: &str = "TMPDIR=/workspace pip install -q --user --break-system-packages ipykernel";
/// Disk size of most sandboxes. Only retained output is written to the disk.
const DISK_BYTES: u64 = 256 << 20;
/// Disk size of a sandbox with a Jupyter kernel: space for the packages, and for the files that pip unpacks
/// before it installs them.
const KERNEL_DISK_BYTES: u64 = 768 << 20;
/// Timeout for installing packages over a slow connection, under a user-space kernel.
const WITHIN_MS: u64 = 300_000;

/// Numbers of rounds to measure.
#[derive(Clone, Copy)]
pub(crate) struct Often {
    /// Number of rounds for subjects that take milliseconds.
    pub rounds: usize,
    /// Numbers of rounds that include the subjects that take seconds: the first for runc, the second for
    /// every other runtime. With 0, no Jupyter kernel is installed.
    pub slow: [usize; 2],
}

/// Durations on one runtime.
#[derive(Default)]
pub(crate) struct Taken {
    /// Name of the runtime.
    pub name: String,
    /// `python3 -c` with the imports and the cell.
    pub bare: Samples,
    /// Startup of a Jupyter kernel, until it is ready.
    pub kernel_ready: Samples,
    /// First cell of a Jupyter kernel, which also runs the imports.
    pub kernel_first: Samples,
    /// A further cell in the same Jupyter kernel.
    pub kernel_cell: Samples,
    /// A fork whose child exits immediately.
    pub fork: Samples,
    /// A fork whose child runs the cell.
    pub fork_cell: Samples,
    /// Run of `pass` in Bellglass without a context.
    pub run: Samples,
    /// Run of the cell in Bellglass without a context.
    pub run_cell: Samples,
    /// Duration of the cell in `run_cell`, as measured by the cell itself.
    pub run_own: Samples,
    /// Run of `pass` in a Bellglass context.
    pub cell: Samples,
    /// Run of the cell in a Bellglass context.
    pub cell_cell: Samples,
    /// Duration of the cell in `cell_cell`, as measured by the cell itself.
    pub cell_own: Samples,
    /// Overhead of a cell in a context: `cell_cell` minus `cell_own`.
    pub cell_over: Samples,
    /// First run in a new sandbox, which runs `pass`.
    pub first: Samples,
    /// `python3 -c` with the imports of the template, as the first exec in a different new sandbox.
    pub bare_ahead: Samples,
}

/// The sandboxes of one runtime.
struct Place {
    tier: Tier,
    id: SandboxId,
    context: ContextId,
    forker: Forker,
    /// Sandbox with a Jupyter kernel, if one is measured.
    kernel: Option<SandboxId>,
    /// Indexes of the rounds that include the subjects that take seconds.
    slow: BTreeSet<usize>,
}

/// An interpreter that forks on request.
struct Forker {
    stdin: Stdin,
    exec: Exec,
    unread: Vec<u8>,
}

#[derive(Clone, Copy)]
enum Subject {
    Bare,
    Kernel,
    First,
    Fork,
    ForkCell,
    Run,
    RunCell,
    Cell,
    CellCell,
}

const SUBJECTS: [Subject; 9] = [
    Subject::Fork,
    Subject::Run,
    Subject::Cell,
    Subject::ForkCell,
    Subject::RunCell,
    Subject::CellCell,
    Subject::Bare,
    Subject::Kernel,
    Subject::First,
];

/// Measures all subjects on the runtimes with these names.
pub(crate) async fn run(often: Often, runtimes: &[&str]) -> Vec<Taken> {
    let service = Service::start();
    tokio::task::block_in_place(|| e2e::layer::lend(service.data(), "interpreter"));
    let client = service.client();
    let mut places = Vec::new();
    for name in runtimes {
        let tier = if *name == "runsc" { Tier::UserKernel } else { Tier::Container };
        let taken = Taken { name: (*name).into(), ..Taken::default() };
        places.push((Place::prepare(&client, tier, often).await, taken));
    }
    // The first round is discarded: it only warms up the caches.
    for round in 0..=often.rounds {
        for step in 0..SUBJECTS.len() {
            let subject = SUBJECTS[(round + step) % SUBJECTS.len()];
            for (place, taken) in &mut places {
                let mut discarded = Taken::default();
                let taken = if round == 0 { &mut discarded } else { taken };
                place.measure(&client, subject, round, taken).await;
            }
        }
    }
    let mut all = Vec::new();
    for (place, taken) in places {
        for id in [Some(place.id), place.kernel].into_iter().flatten() {
            client.stop(&id).await.unwrap();
        }
        all.push(taken);
    }
    all
}

impl Place {
    async fn prepare(client: &Client, tier: Tier, often: Often) -> Self {
        let [container, others] = often.slow;
        let count = if tier == Tier::Container { container } else { others };
        let id = sandbox(client, tier, DISK_BYTES).await;
        let context = client.create_context(&id, &ContextSpec::default()).await.unwrap().id;
        let forker = Forker::start(client, &id).await;
        let mut kernel = None;
        if count > 0 {
            let id = sandbox(client, tier, KERNEL_DISK_BYTES).await;
            let install = ExecSpec { deadline_ms: Some(WITHIN_MS), ..e2e::lab::script(INSTALL) };
            timed(client, &id, &install).await;
            kernel = Some(id);
        }
        let slow = (1..=count).map(|number| number * often.rounds / count).collect();
        Self { tier, id, context, forker, kernel, slow }
    }

    async fn measure(&mut self, client: &Client, subject: Subject, round: usize, taken: &mut Taken) {
        let slow = self.slow.contains(&round);
        match subject {
            Subject::Fork => taken.fork.add(self.forker.fork("nothing\n").await),
            Subject::ForkCell => taken.fork_cell.add(self.forker.fork("cell\n").await),
            Subject::Run => taken.run.add(timed(client, &self.id, &code(NOTHING, None)).await.0),
            Subject::RunCell => {
                let (took, own) = self.cell(client, None).await;
                taken.run_cell.add(took);
                taken.run_own.add(own);
            }
            Subject::Cell => {
                let spec = code(NOTHING, Some(&self.context));
                taken.cell.add(timed(client, &self.id, &spec).await.0);
            }
            Subject::CellCell => {
                let (took, own) = self.cell(client, Some(&self.context)).await;
                taken.cell_cell.add(took);
                taken.cell_own.add(own);
                taken.cell_over.add(took.saturating_sub(own));
            }
            Subject::Bare if slow => {
                taken.bare.add(timed(client, &self.id, &python(&[&format!("{IMPORTS}; {CELL}")])).await.0);
            }
            Subject::Kernel if slow => self.kernel(client, taken).await,
            Subject::First if slow => self.first(client, taken).await,
            Subject::Bare | Subject::Kernel | Subject::First => {}
        }
    }

    /// Runs the cell with or without a context. Returns the total duration, and the cell's duration as
    /// measured by the cell.
    async fn cell(&self, client: &Client, context: Option<&ContextId>) -> (Duration, Duration) {
        let [before, after] = TIMED;
        let spec = code(&format!("{before}\n{CELL}\n{after}"), context);
        let (took, collected) = timed(client, &self.id, &spec).await;
        (took, nanoseconds(&collected.stdout)[0])
    }

    async fn kernel(&self, client: &Client, taken: &mut Taken) {
        let Some(id) = &self.kernel else { return };
        let (_, collected) = timed(client, id, &python(&[KERNEL, IMPORTS, CELL])).await;
        let said = nanoseconds(&collected.stdout);
        taken.kernel_ready.add(said[0]);
        taken.kernel_first.add(said[1]);
        taken.kernel_cell.add(said[2]);
    }

    /// Measures the first exec of new sandboxes. Each measurement uses a separate sandbox; in a shared one,
    /// the second measurement would find files in the cache that the first had already read.
    async fn first(&self, client: &Client, taken: &mut Taken) {
        let bare = python(&[&format!("import {}", ahead())]);
        for (spec, samples) in [(bare, &mut taken.bare_ahead), (code(NOTHING, None), &mut taken.first)] {
            let id = sandbox(client, self.tier, DISK_BYTES).await;
            samples.add(timed(client, &id, &spec).await.0);
            client.stop(&id).await.unwrap();
        }
    }
}

impl Forker {
    async fn start(client: &Client, id: &SandboxId) -> Self {
        let spec = ExecSpec { stdin: true, deadline_ms: None, ..python(&[FORK, CELL]) };
        let exec = client.exec(id, &spec).await.unwrap();
        let stdin = client.stdin(id, exec.id());
        let mut forker = Self { stdin, exec, unread: Vec::new() };
        assert_eq!(forker.line().await, "ready");
        forker
    }

    async fn fork(&mut self, word: &'static str) -> Duration {
        self.stdin.write(word.into()).await.unwrap();
        let said = self.line().await;
        nanoseconds(said.as_bytes())[0]
    }

    /// Returns the next line that the interpreter prints.
    async fn line(&mut self) -> String {
        loop {
            if let Some(at) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=at).collect();
                return String::from_utf8_lossy(&line).trim().to_owned();
            }
            let next = tokio::time::timeout(Duration::from_millis(WITHIN_MS), self.exec.next()).await;
            match next.expect("a word of the interpreter that forks").unwrap() {
                Some(Event::Data { stream: Stream::Stdout, bytes, .. }) => self.unread.extend(&bytes),
                other => panic!("{other:?}"),
            }
        }
    }
}

async fn sandbox(client: &Client, tier: Tier, disk_bytes: u64) -> SandboxId {
    let limits = Limits {
        memory_bytes: 1 << 30,
        cpu_millis: 2000,
        pids: 256,
        disk_bytes,
        disk_inodes: 16_384,
        ..Limits::default()
    };
    let policy = Some(Policy::of_words(&["python-packages"]).unwrap());
    let (template, limits) = ("interpreter".to_owned(), limits.into());
    client
        .create(&CreateSandbox { template, tier, limits, policy, ..CreateSandbox::default() })
        .await
        .unwrap()
        .id
}

/// Returns the modules that the template `interpreter` preloads, as listed in its recipe.
fn ahead() -> String {
    let recipe = include_str!("../../../../../images/interpreter.toml");
    let recipe = node::template::recipe::Recipe::parse(recipe).unwrap();
    recipe.imports.join(", ")
}

fn code(source: &str, context: Option<&ContextId>) -> ExecSpec {
    let code = Code { source: source.into(), context: context.cloned(), ..Code::default() };
    ExecSpec { code: Some(code), deadline_ms: Some(WITHIN_MS), ..ExecSpec::default() }
}

fn python(words: &[&str]) -> ExecSpec {
    let argv = ["python3", "-c"].iter().chain(words).map(|word| (*word).to_owned()).collect();
    ExecSpec { argv, deadline_ms: Some(WITHIN_MS), ..ExecSpec::default() }
}

/// Runs an exec and returns the time from the request until the exec's end is received.
async fn timed(client: &Client, id: &SandboxId, spec: &ExecSpec) -> (Duration, Collected) {
    let began = Instant::now();
    let collected = client.exec(id, spec).await.unwrap().collect().await.unwrap();
    let took = began.elapsed();
    let said = String::from_utf8_lossy(&collected.stderr);
    assert_eq!(collected.end.outcome, Outcome::Exited { code: 0 }, "{said}");
    (took, collected)
}

/// Parses the numbers that a program printed.
fn nanoseconds(said: &[u8]) -> Vec<Duration> {
    let text = String::from_utf8_lossy(said);
    let number = |word: &str| Duration::from_nanos(word.parse().unwrap_or_else(|_| panic!("{text}")));
    text.split_whitespace().map(number).collect()
}
