//! The report: complete results as JSON, tables as Markdown, and a chart for each scenario.

mod markdown;
mod plot;

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use crate::figure::Outcome;
use crate::machine::Machine;

/// Results of a whole run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Machine on which the scenarios ran.
    pub machine: Machine,
    /// Targets that were measured.
    pub targets: Vec<Measured>,
    /// Targets that were left out, with the reasons.
    pub left_out: Vec<LeftOut>,
    /// Results of the scenarios.
    pub scenarios: Vec<Outcome>,
}

/// Target that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Name of the target.
    pub name: &'static str,
    /// Versions and other facts that readers need to interpret the comparison.
    pub facts: BTreeMap<String, String>,
}

/// Target that was left out.
#[derive(Clone, Debug, Serialize)]
pub struct LeftOut {
    /// Name of the target.
    pub name: &'static str,
    /// Reason why the target was left out.
    pub why: String,
}

impl Report {
    /// Creates a report without results.
    pub fn new(machine: Machine) -> Self {
        Self { machine, targets: Vec::new(), left_out: Vec::new(), scenarios: Vec::new() }
    }

    /// Writes `report.json`, `report.md` and a chart for each scenario to a directory.
    ///
    /// # Errors
    /// Returns an error if a file cannot be written. The error names the file.
    pub fn write(&self, to: &Path) -> Result<(), String> {
        let json = serde_json::to_string_pretty(self).map_err(|error| error.to_string())?;
        write(&to.join("report.json"), &json)?;
        write(&to.join("report.md"), &markdown::report(self))?;
        for outcome in &self.scenarios {
            for (name, picture) in plot::pictures(outcome) {
                write(&to.join(name), &picture)?;
            }
        }
        Ok(())
    }
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// Returns a report for tests, with two targets and two levels of concurrency.
#[cfg(test)]
pub(crate) fn example() -> Report {
    use std::time::Duration;

    use crate::figure::{Figure, Unit};
    use crate::samples::AttemptTally;

    let tally = |millis: u64| {
        let mut tally = AttemptTally::default();
        (0..10).for_each(|step| tally.note(Ok(Duration::from_millis(millis + step))));
        tally
    };
    let mut failing = tally(40);
    let refused = crate::target::TargetFailure::refused("capacity", "no room | now");
    failing.note(Err((refused, Duration::ZERO)));
    failing.starts.insert("warm".into(), 3);
    let figures = vec![
        Figure::times("create alone", Some(1), "bellglass", &tally(20)),
        Figure::times("create alone", Some(1), "runc", &tally(10)),
        Figure::times("create alone", Some(10), "bellglass", &failing),
        Figure::unsupported("create alone", Some(10), "runc"),
        Figure::value("memory for each", Some(10), "bellglass", 2.5 * 1024.0 * 1024.0, Unit::Bytes),
        Figure::value("lifecycles per second", None, "runc", 12.34, Unit::PerSecond),
    ];
    let outcome = Outcome {
        name: "create".into(),
        about: "Sandboxes <made>".into(),
        scale: Some("at once"),
        load_before: "0.1 0.2 0.3".into(),
        load_after: "1 1 1".into(),
        took_s: 12.0,
        figures,
    };
    let facts = BTreeMap::from([("version".to_owned(), "1.2".to_owned())]);
    Report {
        targets: vec![Measured { name: "bellglass", facts }],
        left_out: vec![LeftOut { name: "e2b", why: "no E2B_API_KEY".into() }],
        scenarios: vec![outcome],
        ..Report::new(Machine::look())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_written_whole() {
        let directory = tempfile::tempdir().unwrap();
        example().write(directory.path()).unwrap();
        let text = std::fs::read(directory.path().join("report.json")).unwrap();
        let read: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(read["scenarios"][0]["figures"][0]["got"]["times"]["p50_ms"], 24.0);
        assert_eq!(read["scenarios"][0]["figures"][3]["got"], "unsupported");
        assert_eq!(read["scenarios"][0]["figures"][2]["failures"]["capacity"], 1);
        for name in ["report.md", "create.svg"] {
            assert!(directory.path().join(name).exists(), "{name}");
        }
    }
}
