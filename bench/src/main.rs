//! `bench`: compares Bellglass with other ways to run untrusted code, in scenarios that are defined as data.
//!
//! | module | holds |
//! |---|---|
//! | [`scenario`] | definitions of scenarios, and their validation |
//! | [`target`] | the systems to measure: a trait and its implementations |
//! | [`measure`] | the measurements, one module for each kind of work |
//! | [`bound`] | bounds that figures must keep |
//! | [`samples`] | percentiles of durations, and tallies of attempts |
//! | [`figure`] | figures of the report |
//! | [`report`] | the report as JSON, Markdown and charts |
//! | [`machine`] | properties of the machine |
//! | [`rootfs`] | the root file systems that targets share |
//! | [`process`], [`http`], [`random`] | commands with deadlines, plain HTTP, random numbers |
//!
//! The program fails if nothing could be measured, or if a figure breaks a bound of its scenario. On exit, it
//! stops everything that it started.

#![forbid(unsafe_code)]
// A command-line program prints to the terminal.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod bound;
mod figure;
mod http;
mod machine;
mod measure;
mod process;
mod random;
mod report;
mod rootfs;
mod samples;
mod scenario;
mod target;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use tempfile::TempDir;

use crate::bound::Verdict;
use crate::machine::Machine;
use crate::measure::SharedTarget;
use crate::report::{LeftOut, Measured, Report};
use crate::rootfs::Rootfs;
use crate::scenario::ScenarioFile;
use crate::target::{NAMES, TargetResources};

const FULL: &str = include_str!("../scenarios/full.toml");
const QUICK: &str = include_str!("../scenarios/quick.toml");
/// Timeout for stopping a target. If stopping takes longer, the remaining sandboxes end at their own
/// deadlines.
const CLOSES_WITHIN: Duration = Duration::from_secs(180);
/// Length of a run's name, which is enough to distinguish the runs on one machine.
const NAME_LENGTH: usize = 12;

/// Measures Bellglass beside other ways to run untrusted code
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// A short look: the same scenarios in a few minutes
    #[arg(long, conflicts_with = "scenarios")]
    quick: bool,
    /// A file of scenarios of your own
    #[arg(long, value_name = "FILE")]
    scenarios: Option<PathBuf>,
    /// Only the scenarios of these names
    #[arg(long, value_name = "NAME", num_args = 1.., value_delimiter = ',')]
    only: Vec<String>,
    /// Only these targets, with commas between; all that are there without it
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = NAMES)]
    targets: Vec<String>,
    /// Where the report is written
    #[arg(long, value_name = "DIRECTORY", default_value = "target/bench")]
    out: PathBuf,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let plan = match plan(&arguments) {
        Ok(plan) => plan,
        Err(why) => {
            eprintln!("bench: {why}");
            return ExitCode::from(2);
        }
    };
    let executor = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(executor) => executor,
        Err(error) => {
            eprintln!("bench: cannot start threads: {error}");
            return ExitCode::FAILURE;
        }
    };
    match executor.block_on(bench(&arguments, &plan)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("bench: {why}");
            ExitCode::FAILURE
        }
    }
}

fn plan(arguments: &Arguments) -> Result<ScenarioFile, String> {
    let text = match &arguments.scenarios {
        Some(path) => std::fs::read_to_string(path)
            .map_err(|error| format!("cannot read {}: {error}", path.display()))?,
        None if arguments.quick => QUICK.to_owned(),
        None => FULL.to_owned(),
    };
    ScenarioFile::parse(&text)?.only(&arguments.only)
}

/// State of a run. The order of the fields ensures that the root file systems are unmounted before the
/// scratch directory is removed.
struct BenchRun {
    name: String,
    report: Report,
    targets: Vec<SharedTarget>,
    rootfs: Result<Rootfs, String>,
    scratch: TempDir,
}

async fn bench(arguments: &Arguments, plan: &ScenarioFile) -> Result<(), String> {
    std::fs::create_dir_all(&arguments.out)
        .map_err(|error| format!("cannot create {}: {error}", arguments.out.display()))?;
    let mut run = BenchRun::new()?;
    let interrupted = tokio::select! {
        () = run.measure(arguments, plan) => false,
        () = told_to_end() => true,
    };
    eprintln!("bench: stopping the targets");
    run.close().await;
    run.report.write(&arguments.out)?;
    println!("{}", arguments.out.join("report.md").display());
    if interrupted {
        return Err("interrupted; the report contains the measurements completed before".into());
    }
    if run.report.targets.is_empty() {
        return Err("no target is available".into());
    }
    judge(plan, &run.report)
}

/// Prints the result of every bound.
///
/// # Errors
/// Returns an error if a bound is broken.
fn judge(plan: &ScenarioFile, report: &Report) -> Result<(), String> {
    let available: Vec<&str> = report.targets.iter().map(|target| target.name).collect();
    let mut broken = 0;
    for (scenario, outcome) in plan.scenario.iter().zip(&report.scenarios) {
        for bound in &scenario.bound {
            match bound.judge(outcome, &available) {
                Verdict::Kept(text) => println!("kept      {text}"),
                Verdict::NotMeasured(text) => println!("skipped   {text}"),
                Verdict::Broken(text) => {
                    println!("BROKEN    {text}");
                    broken += 1;
                }
            }
        }
    }
    if broken == 0 { Ok(()) } else { Err(format!("{broken} bounds are broken")) }
}

/// Waits for Ctrl-C or SIGTERM.
async fn told_to_end() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminated) => tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminated.recv() => {}
        },
        Err(_) => drop(tokio::signal::ctrl_c().await),
    }
}

impl BenchRun {
    fn new() -> Result<Self, String> {
        let name = random::name().map_err(|failure| failure.to_string())?;
        let scratch = tempfile::Builder::new().prefix("bellglass-bench").tempdir();
        let scratch = scratch.map_err(|error| format!("cannot create a scratch directory: {error}"))?;
        Ok(Self {
            name: name.chars().take(NAME_LENGTH).collect(),
            report: Report::new(Machine::look()),
            targets: Vec::new(),
            rootfs: Err("templates were not searched for".into()),
            scratch,
        })
    }

    /// Starts the targets and runs the scenarios. Writes the report after each scenario, so that an
    /// interrupted run keeps its results.
    async fn measure(&mut self, arguments: &Arguments, plan: &ScenarioFile) {
        let is_wanted =
            |name: &&str| arguments.targets.is_empty() || arguments.targets.iter().any(|one| one == name);
        let wanted: Vec<&'static str> = NAMES.into_iter().filter(is_wanted).collect();
        if wanted.iter().any(|name| target::needs_templates(name)) {
            eprintln!("bench: looking for templates");
            let found = Rootfs::find(&target::bellglass::binary(), self.scratch.path()).await;
            self.rootfs = found.map_err(|failure| failure.to_string());
        }
        for name in wanted {
            eprintln!("bench: preparing {name}");
            self.open(name, Duration::from_secs(plan.deadline_s)).await;
        }
        for scenario in &plan.scenario {
            eprintln!("bench: {}", scenario.name);
            let outcome = measure::run(scenario, &self.targets).await;
            self.report.scenarios.push(outcome);
            // Write the report after each scenario, so that a later failure does not lose these results.
            if let Err(why) = self.report.write(&arguments.out) {
                eprintln!("bench: {why}");
            }
        }
    }

    async fn open(&mut self, name: &'static str, deadline: Duration) {
        let rootfs = self.rootfs.as_ref().map_err(Clone::clone);
        let place = TargetResources { rootfs, scratch: self.scratch.path(), run: &self.name, deadline };
        match target::open(name, &place).await {
            Ok(target) => self.targets.push(Arc::from(target)),
            Err(failure) => {
                eprintln!("bench: skipping {name}: {failure}");
                self.report.left_out.push(LeftOut { name, why: failure.to_string() });
            }
        }
        let facts = |target: &SharedTarget| Measured { name: target.name(), facts: target.facts() };
        self.report.targets = self.targets.iter().map(facts).collect();
    }

    async fn close(&mut self) {
        for target in &self.targets {
            if tokio::time::timeout(CLOSES_WITHIN, target.close()).await.is_err() {
                eprintln!("bench: could not stop {}", target.name());
            }
        }
        self.report.machine.load_after = machine::load();
    }
}
