//! Running code, beside what it could be run by otherwise: in one sandbox of the template `interpreter` for each runtime, through the
//! public API on loopback.
//!
//! | subject | is |
//! |---|---|
//! | bare | `python3 -c` with the imports and the cell, as an ordinary exec |
//! | fork | `os.fork()` of an interpreter with the same imports, timed by itself: that and the end, or the cell between them |
//! | kernel | a Jupyter kernel in a second sandbox, timed by itself: until it is ready, its first cell, another cell |
//! | run | our run without state, until its end is read: of `pass`, and of the cell |
//! | cell | our cell of a context, likewise; the cell says itself how long it took |
//! | first | our first run in a new sandbox, and in another a bare `python3` with the imports of the template |
//!
//! All are taken in turns, as in [`rounds`](crate::rounds). What takes seconds is taken in some rounds only.

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

/// What all of them import.
const IMPORTS: &str = "import numpy, pandas, matplotlib.pyplot";
/// A sum by group of 10,000 rows: about a millisecond.
const CELL: &str = "import numpy, pandas; total = pandas.DataFrame({'key': numpy.arange(10_000) % 100, 'value': numpy.arange(10_000.0)}).groupby('key')['value'].sum()";
/// Prints what it takes, in nanoseconds.
const TIMED: [&str; 2] =
    ["import time; began = time.perf_counter_ns()", "print(time.perf_counter_ns() - began)"];
/// A cell that does nothing.
const NOTHING: &str = "pass";
const FORK: &str = include_str!("code/fork.py");
const KERNEL: &str = include_str!("code/kernel.py");
/// What a kernel needs that the template does not have.
const INSTALL: &str = "TMPDIR=/workspace pip install -q --user --break-system-packages ipykernel";
/// Nothing is written but kept output.
const DISK_BYTES: u64 = 256 << 20;
/// Its packages, and what pip unpacks before.
const KERNEL_DISK_BYTES: u64 = 768 << 20;
/// An installation over a slow line, in a user-space kernel.
const WITHIN_MS: u64 = 300_000;

/// How often.
#[derive(Clone, Copy)]
pub(crate) struct Often {
    /// Rounds of what takes milliseconds.
    pub rounds: usize,
    /// How many of those also have what takes seconds, on runc and on others; with none there is no kernel.
    pub slow: [usize; 2],
}

/// The times of one runtime.
#[derive(Default)]
pub(crate) struct Taken {
    /// Its name.
    pub name: String,
    /// `python3 -c` with imports and cell.
    pub bare: Samples,
    /// A Jupyter kernel until it is ready.
    pub kernel_ready: Samples,
    /// And until its first cell, with the imports, is done.
    pub kernel_first: Samples,
    /// Its next cell.
    pub kernel_cell: Samples,
    /// A fork that ends at once.
    pub fork: Samples,
    /// A fork that runs the cell.
    pub fork_cell: Samples,
    /// Our run of nothing.
    pub run: Samples,
    /// Our run of the cell.
    pub run_cell: Samples,
    /// What the cell itself took there.
    pub run_own: Samples,
    /// Our cell of nothing.
    pub cell: Samples,
    /// Our cell.
    pub cell_cell: Samples,
    /// What it took itself.
    pub cell_own: Samples,
    /// What it took besides.
    pub cell_over: Samples,
    /// Our first run in a new sandbox, of nothing.
    pub first: Samples,
    /// `python3 -c` as the first exec of another, with what the template imports ahead.
    pub bare_ahead: Samples,
}

/// Where it is measured.
struct Place {
    tier: Tier,
    id: SandboxId,
    context: ContextId,
    forker: Forker,
    /// The sandbox with Jupyter in it, where that is measured.
    kernel: Option<SandboxId>,
    /// Rounds of what takes seconds.
    slow: BTreeSet<usize>,
}

/// The interpreter that forks when it is told to.
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

/// Measures all of it on these runtimes.
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
    // One round that does not count fills the caches.
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

    /// The cell, in a context or in none: how long it took from outside, and by itself.
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

    /// Each in a sandbox of its own: what the first reads, the second would find read.
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

    /// The next line it writes.
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

/// The modules that the template imports ahead, as they stand in its recipe.
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

/// From the request until the end is read.
async fn timed(client: &Client, id: &SandboxId, spec: &ExecSpec) -> (Duration, Collected) {
    let began = Instant::now();
    let collected = client.exec(id, spec).await.unwrap().collect().await.unwrap();
    let took = began.elapsed();
    let said = String::from_utf8_lossy(&collected.stderr);
    assert_eq!(collected.end.outcome, Outcome::Exited { code: 0 }, "{said}");
    (took, collected)
}

/// Numbers that a program has printed.
fn nanoseconds(said: &[u8]) -> Vec<Duration> {
    let text = String::from_utf8_lossy(said);
    let number = |word: &str| Duration::from_nanos(word.parse().unwrap_or_else(|_| panic!("{text}")));
    text.split_whitespace().map(number).collect()
}
