//! Scenarios: what is measured, how often and how much at once, as data.
//!
//! ```toml
//! deadline_s = 60
//!
//! [[scenario]]
//! name = "create"
//! about = "From the request until the first exec is answered"
//! targets = ["bellglass", "runc"]        # all that are there, if nothing is said
//! work.create = { at_once = [1, 10], samples = 50 }
//! ```
//!
//! What is wrong in a file is said before anything is started.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::target::NAMES;

/// More live sandboxes than that are another machine's business.
const LIVE_MAX: usize = 2000;
/// More at once, and it is the bench that is measured.
const AT_ONCE_MAX: usize = 500;
/// A day.
const SECONDS_MAX: u64 = 86_400;
/// Everything is kept in memory here while it is sent.
const BYTES_MAX: u64 = 1 << 30;

/// A file of scenarios.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// How long one operation may take.
    pub deadline_s: u64,
    /// What is measured, one after the other.
    pub scenario: Vec<Scenario>,
}

/// One thing to measure.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name, by which it is chosen on the command line.
    pub name: String,
    /// What is measured, in a sentence for the report.
    pub about: String,
    /// Which targets take part; all that are there, if nothing is said.
    #[serde(default)]
    pub targets: Vec<String>,
    /// What is done.
    pub work: Work,
}

/// What is done.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// Sandboxes are made, used once and stopped.
    Create(Create),
    /// A command that does nothing, in a live sandbox.
    Exec(Exec),
    /// Python with pandas and matplotlib.
    Code(Code),
    /// Files in and out.
    Files(Files),
    /// Many idle sandboxes.
    Density(Density),
    /// Create, exec, stop, as fast as it goes.
    Sustained(Sustained),
    /// Everything at once, at a share of what goes.
    Load(Load),
}

/// Sandboxes are made, used once and stopped.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Create {
    /// How many at the same time, one after the other.
    pub at_once: Vec<usize>,
    /// How many for each of those; at least one batch.
    pub samples: usize,
    /// Whether each batch waits until the target has ready again what it makes ahead. Without it, batches follow each other at once.
    #[serde(default)]
    pub rested: bool,
}

/// A command that does nothing, in a live sandbox.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exec {
    /// How many at the same time, each in a sandbox of its own.
    pub at_once: Vec<usize>,
    /// How many for each of those.
    pub samples: usize,
}

/// Python with pandas and matplotlib.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Code {
    /// Runs of each kind.
    pub samples: usize,
    /// Sandboxes that are made anew for their first run.
    pub first: usize,
}

/// Files in and out.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Files {
    /// How large.
    pub bytes: Vec<u64>,
    /// How many of each size.
    pub samples: usize,
}

/// Many idle sandboxes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Density {
    /// How many are live when it is measured, ascending.
    pub live: Vec<usize>,
    /// Starts at each of these sizes.
    pub starts: usize,
    /// Execs at each of these sizes, each in any of the sandboxes.
    pub execs: usize,
}

/// Create, exec, stop, as fast as it goes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sustained {
    /// For how long, by each target.
    pub seconds: u64,
    /// Into how many turns that is cut, so that targets alternate.
    pub turns: u64,
    /// How many at the same time.
    pub workers: usize,
}

/// Everything at once, at a share of what goes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// Arrivals, in percent of what was measured to be done by as many workers as the machine has room for.
    pub percent: Vec<u64>,
    /// For how long each.
    pub seconds: u64,
    /// For how long it is done before, to measure what goes in the second half of it.
    pub calibrate_s: u64,
    /// How many at the same time are needed to find out what goes.
    pub workers: usize,
    /// Sandboxes that stay, for everything but lives.
    pub standing: usize,
    /// How often each kind of work comes, as weights.
    pub mix: Mix,
}

/// How often each kind of work comes, as weights.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mix {
    /// A sandbox is made, used once and stopped.
    pub life: u32,
    /// A command in one that stays.
    pub exec: u32,
    /// A cell in one that stays.
    pub code: u32,
    /// A small file into one that stays, and out again.
    pub file: u32,
}

impl Plan {
    /// Reads a file of scenarios and checks it.
    ///
    /// # Errors
    /// What is wrong, in words.
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

    /// Leaves only the scenarios of these names; all, if there are none.
    ///
    /// # Errors
    /// A name that no scenario has.
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
    /// Whether this target takes part.
    pub fn wants(&self, target: &str) -> bool {
        self.targets.is_empty() || self.targets.iter().any(|name| name == target)
    }

    fn check(&self) -> Result<(), String> {
        if let Some(name) = self.targets.iter().find(|name| !NAMES.contains(&name.as_str())) {
            return Err(format!("no target `{name}`; known targets: {}", NAMES.join(", ")));
        }
        match &self.work {
            Work::Create(Create { at_once, samples, .. }) | Work::Exec(Exec { at_once, samples }) => {
                counts("at_once", at_once, AT_ONCE_MAX)?;
                count("samples", *samples)
            }
            Work::Code(code) => count("samples", code.samples),
            Work::Files(files) => {
                if files.bytes.is_empty() || files.bytes.iter().any(|bytes| *bytes > BYTES_MAX) {
                    return Err(format!("bytes: use sizes of at most {BYTES_MAX}"));
                }
                count("samples", files.samples)
            }
            Work::Density(density) => {
                counts("live", &density.live, LIVE_MAX)?;
                if !density.live.is_sorted() {
                    return Err("live: the sizes must be in ascending order".into());
                }
                count("execs", density.execs)
            }
            Work::Sustained(sustained) => {
                counts("workers", &[sustained.workers], AT_ONCE_MAX)?;
                seconds("seconds", sustained.seconds)?;
                seconds("turns", sustained.turns)
            }
            Work::Load(load) => load.check(),
        }
    }
}

impl Load {
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
    /// All weights together.
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
            let plan = Plan::parse(text).unwrap();
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
            let why = Plan::parse(&format!("{ONE}{work}\n")).unwrap_err();
            assert!(why.contains(said), "{work}: {why}");
        }
    }

    #[test]
    fn scenarios_are_chosen_by_name() {
        let plan = Plan::parse(crate::QUICK).unwrap();
        let chosen = plan.clone().only(&["exec".into()]).unwrap();
        assert_eq!(chosen.scenario.len(), 1);
        assert!(plan.only(&["exce".into()]).unwrap_err().contains("known scenarios: create"));
    }

    #[test]
    fn a_scenario_without_targets_is_for_all() {
        let plan = Plan::parse(&format!("{ONE}work.exec = {{ at_once = [1], samples = 2 }}\n")).unwrap();
        assert!(plan.scenario.iter().all(|scenario| scenario.wants("bellglass") && scenario.wants("e2b")));
    }
}
