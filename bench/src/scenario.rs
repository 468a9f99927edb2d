//! Scenarios as data: the kind of work, the number of samples, and the concurrency.
//!
//! ```toml
//! deadline_s = 60
//!
//! [[scenario]]
//! name = "create"
//! about = "From the request until the first exec is answered"
//! targets = ["bellglass", "runc"]        # default: all available targets
//! work.create = { at_once = [1, 10], samples = 50 }
//! ```
//!
//! Errors in a scenario file are reported before anything starts.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::bound::Bound;
use crate::target::NAMES;

/// Maximum number of live sandboxes. More sandboxes would require a larger machine than the bench is designed
/// for.
const LIVE_MAX: usize = 2000;
/// Maximum concurrency. At a higher concurrency, the bench itself would be the bottleneck.
const AT_ONCE_MAX: usize = 500;
/// Maximum duration in seconds: one day.
const SECONDS_MAX: u64 = 86_400;
/// Maximum size of a file in bytes. The bench holds the whole file in memory during a transfer.
const BYTES_MAX: u64 = 1 << 30;

/// Contents of a scenario file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioFile {
    /// Timeout for one operation, in seconds.
    pub deadline_s: u64,
    /// Scenarios, in the order in which they run.
    pub scenario: Vec<Scenario>,
}

/// Definition of one scenario.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Name that selects the scenario on the command line.
    pub name: String,
    /// Description for the report, in one sentence.
    pub about: String,
    /// Targets that take part. If empty, all available targets take part.
    #[serde(default)]
    pub targets: Vec<String>,
    /// Bounds that the figures must keep.
    #[serde(default)]
    pub bound: Vec<Bound>,
    /// Work to measure.
    pub work: Workload,
}

/// Kind of work.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workload {
    /// Create sandboxes, use each once, and stop them.
    Create(CreateParameters),
    /// Run a command that does nothing in live sandboxes.
    Exec(ExecParameters),
    /// Run Python code with pandas and matplotlib.
    Code(CodeParameters),
    /// Transfer files into a sandbox and out of it.
    Files(FileParameters),
    /// Keep many idle sandboxes.
    Density(DensityParameters),
    /// Create a sandbox, run a command and stop the sandbox, in a loop at full speed.
    Sustained(SustainedParameters),
    /// Run a mix of all kinds of work, at a percentage of the capacity.
    Load(LoadParameters),
}

/// Parameters of [`Workload::Create`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateParameters {
    /// Levels of concurrency, which are measured one after another.
    pub at_once: Vec<usize>,
    /// Number of samples at each level. At least one batch is measured.
    pub samples: usize,
    /// True if each batch waits until the target's pool is full again. Otherwise, each batch follows
    /// immediately after the previous batch.
    #[serde(default)]
    pub rested: bool,
}

/// Parameters of [`Workload::Exec`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecParameters {
    /// Levels of concurrency. Concurrent execs run in separate sandboxes.
    pub at_once: Vec<usize>,
    /// Number of samples at each level.
    pub samples: usize,
}

/// Parameters of [`Workload::Code`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodeParameters {
    /// Number of runs of each kind of code.
    pub samples: usize,
    /// Number of new sandboxes whose first run is measured.
    pub first: usize,
}

/// Parameters of [`Workload::Files`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileParameters {
    /// File sizes in bytes.
    pub bytes: Vec<u64>,
    /// Number of samples for each size.
    pub samples: usize,
}

/// Parameters of [`Workload::Density`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DensityParameters {
    /// Numbers of live sandboxes to measure at, in ascending order.
    pub live: Vec<usize>,
    /// Number of starts to measure at each number of live sandboxes.
    pub starts: usize,
    /// Number of execs to measure at each number of live sandboxes. Each exec runs in a random sandbox.
    pub execs: usize,
}

/// Parameters of [`Workload::Sustained`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SustainedParameters {
    /// Duration for each target in seconds.
    pub seconds: u64,
    /// Number of turns into which each target's duration is divided. Targets alternate between turns.
    pub turns: u64,
    /// Number of concurrent workers.
    pub workers: usize,
}

/// Parameters of [`Workload::Load`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadParameters {
    /// Arrival rates, as percentages of the capacity that the calibration measures.
    pub percent: Vec<u64>,
    /// Duration at each rate, in seconds.
    pub seconds: u64,
    /// Duration of the calibration in seconds. The capacity is measured in the second half.
    pub calibrate_s: u64,
    /// Number of concurrent workers during the calibration.
    pub workers: usize,
    /// Number of long-lived sandboxes. All kinds of work except lifecycles use them.
    pub standing: usize,
    /// Share of each kind of work.
    pub mix: Mix,
}

/// Weight of each kind of work in a mix.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mix {
    /// Weight of lifecycles: a sandbox is created, used once and stopped.
    pub life: u32,
    /// Weight of commands in a long-lived sandbox.
    pub exec: u32,
    /// Weight of cells in a long-lived sandbox.
    pub code: u32,
    /// Weight of transfers of a small file into a long-lived sandbox and out again.
    pub file: u32,
}

impl ScenarioFile {
    /// Parses and validates a scenario file.
    ///
    /// # Errors
    /// Returns an error if the file is not valid. The error describes the first problem.
    pub fn parse(text: &str) -> Result<Self, String> {
        let plan: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        if !(1..=SECONDS_MAX).contains(&plan.deadline_s) {
            return Err("deadline_s is out of range".into());
        }
        let mut names = BTreeSet::new();
        for scenario in &plan.scenario {
            scenario.check().map_err(|why| format!("scenario `{}`: {why}", scenario.name))?;
            if !names.insert(&scenario.name) {
                return Err(format!("scenario `{}` is defined twice", scenario.name));
            }
        }
        if names.is_empty() { Err("no scenario".into()) } else { Ok(plan) }
    }

    /// Selects the scenarios with these names. An empty list selects all scenarios.
    ///
    /// # Errors
    /// Returns an error if no scenario has one of these names. The error contains this name.
    pub fn only(mut self, names: &[String]) -> Result<Self, String> {
        let known: Vec<&str> = self.scenario.iter().map(|one| one.name.as_str()).collect();
        if let Some(name) = names.iter().find(|name| !known.contains(&name.as_str())) {
            return Err(format!("no scenario `{name}`; known scenarios: {}", known.join(", ")));
        }
        if !names.is_empty() {
            self.scenario.retain(|scenario| names.contains(&scenario.name));
        }
        Ok(self)
    }
}

impl Scenario {
    /// Returns true if this target takes part in the scenario.
    pub fn wants(&self, target: &str) -> bool {
        self.targets.is_empty() || self.targets.iter().any(|name| name == target)
    }

    fn check(&self) -> Result<(), String> {
        if let Some(name) = self.targets.iter().find(|name| !NAMES.contains(&name.as_str())) {
            return Err(format!("no target `{name}`; known targets: {}", NAMES.join(", ")));
        }
        self.bound.iter().try_for_each(Bound::check)?;
        match &self.work {
            Workload::Create(CreateParameters { at_once, samples, .. })
            | Workload::Exec(ExecParameters { at_once, samples }) => {
                counts("at_once", at_once, AT_ONCE_MAX)?;
                count("samples", *samples)
            }
            Workload::Code(code) => count("samples", code.samples),
            Workload::Files(files) => {
                if files.bytes.is_empty() || files.bytes.iter().any(|bytes| *bytes > BYTES_MAX) {
                    return Err(format!("bytes: use sizes of at most {BYTES_MAX}"));
                }
                count("samples", files.samples)
            }
            Workload::Density(density) => {
                counts("live", &density.live, LIVE_MAX)?;
                if !density.live.is_sorted() {
                    return Err("live: the sizes must be in ascending order".into());
                }
                count("execs", density.execs)
            }
            Workload::Sustained(sustained) => {
                counts("workers", &[sustained.workers], AT_ONCE_MAX)?;
                seconds("seconds", sustained.seconds)?;
                seconds("turns", sustained.turns)
            }
            Workload::Load(load) => load.check(),
        }
    }
}

impl LoadParameters {
    fn check(&self) -> Result<(), String> {
        counts("workers", &[self.workers], AT_ONCE_MAX)?;
        counts("standing", &[self.standing], LIVE_MAX)?;
        seconds("seconds", self.seconds)?;
        seconds("calibrate_s", self.calibrate_s)?;
        if self.percent.is_empty() || self.percent.iter().any(|percent| !(1..=1000).contains(percent)) {
            return Err("percent: use values from 1 to 1000".into());
        }
        if self.mix.total() == 0 {
            return Err("mix: all weights are 0".into());
        }
        Ok(())
    }
}

impl Mix {
    /// Returns the sum of all weights.
    pub fn total(&self) -> u32 {
        [self.life, self.exec, self.code, self.file].iter().fold(0, |sum, one| sum.saturating_add(*one))
    }
}

fn count(name: &str, value: usize) -> Result<(), String> {
    if value == 0 { Err(format!("{name} is 0: nothing would be measured")) } else { Ok(()) }
}

fn counts(name: &str, values: &[usize], most: usize) -> Result<(), String> {
    if values.is_empty() || values.iter().any(|value| !(1..=most).contains(value)) {
        return Err(format!("{name}: use numbers from 1 to {most}"));
    }
    Ok(())
}

fn seconds(name: &str, value: u64) -> Result<(), String> {
    if (1..=SECONDS_MAX).contains(&value) { Ok(()) } else { Err(format!("{name} is out of range")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "deadline_s = 60\n[[scenario]]\nname = \"a\"\nabout = \"b\"\n";

    #[test]
    fn the_files_that_come_with_the_bench_can_be_read() {
        for text in [crate::FULL, crate::QUICK] {
            let plan = ScenarioFile::parse(text).unwrap();
            let names: Vec<&str> = plan.scenario.iter().map(|one| one.name.as_str()).collect();
            let wanted =
                ["create", "claim", "exec", "code", "files", "density", "sustained", "mixed", "overload"];
            assert_eq!(names, wanted);
        }
    }

    #[test]
    fn what_is_wrong_is_said_by_name() {
        for (work, said) in [
            ("work.create = { at_once = [], samples = 1 }", "at_once"),
            ("work.create = { at_once = [1], samples = 0 }", "samples"),
            ("work.create = { at_once = [1], sample = 1 }", "sample"),
            ("work.density = { live = [20, 10], starts = 1, execs = 1 }", "ascend"),
            ("work.files = { bytes = [2000000000], samples = 1 }", "bytes"),
            ("work.cook = { samples = 1 }", "cook"),
            ("targets = [\"vm\"]\nwork.code = { samples = 1, first = 1 }", "no target `vm`"),
        ] {
            let why = ScenarioFile::parse(&format!("{ONE}{work}\n")).unwrap_err();
            assert!(why.contains(said), "{work}: {why}");
        }
    }

    #[test]
    fn scenarios_are_chosen_by_name() {
        let plan = ScenarioFile::parse(crate::QUICK).unwrap();
        let chosen = plan.clone().only(&["exec".into()]).unwrap();
        assert_eq!(chosen.scenario.len(), 1);
        assert!(plan.only(&["exce".into()]).unwrap_err().contains("known scenarios: create"));
    }

    #[test]
    fn a_scenario_without_targets_is_for_all() {
        let plan =
            ScenarioFile::parse(&format!("{ONE}work.exec = {{ at_once = [1], samples = 2 }}\n")).unwrap();
        assert!(plan.scenario.iter().all(|scenario| scenario.wants("bellglass") && scenario.wants("e2b")));
    }
}
