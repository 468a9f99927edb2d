//! Bounds: how much slower or larger a figure of one target may be than the same figure of another target in
//! the same run. A run that breaks a bound fails.
//!
//! ```toml
//! bound = [{ what = "exec of `true`", at = 1, target = "bellglass", than = "runc", most = 0.25 }]
//! ```

use serde::Deserialize;

use crate::figure::{Figure, Outcome};
use crate::target::NAMES;

/// Maximum ratio of two figures. Durations are compared by their medians.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    /// Name of the measurement.
    pub what: String,
    /// Value of the parameter that the scenario varies.
    pub at: Option<u64>,
    /// Target that must keep the bound. None of its attempts may fail.
    pub target: String,
    /// Target to compare with.
    pub than: String,
    /// Maximum ratio.
    pub most: f64,
}

/// Result of a bound.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The ratio is within the bound.
    Kept(String),
    /// The ratio exceeds the bound, an attempt failed, or the target was measured without a result.
    Broken(String),
    /// One of the targets is not available.
    NotMeasured(String),
}

impl Bound {
    /// Validates the bound.
    ///
    /// # Errors
    /// Returns an error if a target is unknown or the ratio is not positive.
    pub fn check(&self) -> Result<(), String> {
        match [&self.target, &self.than].iter().find(|name| !NAMES.contains(&name.as_str())) {
            Some(name) => Err(format!("no target `{name}`; known targets: {}", NAMES.join(", "))),
            None if self.most > 0.0 => Ok(()),
            None => Err(format!("most is {}: use a positive ratio", self.most)),
        }
    }

    /// Compares the figures of a scenario.
    pub fn judge(&self, outcome: &Outcome, available: &[&str]) -> Verdict {
        let figure = |target: &str| {
            let is_it = |figure: &&Figure| {
                figure.what == self.what && figure.at == self.at && figure.target == target
            };
            outcome.figures.iter().find(is_it)
        };
        let Self { what, target, than, most, .. } = self;
        let name = format!("{}: {what}: {target} compared with {than}", outcome.name);
        if let Some(missing) = [target, than].iter().find(|name| !available.contains(&name.as_str())) {
            return Verdict::NotMeasured(format!("{name}: {missing} is not available"));
        }
        let (Some(own), Some(other)) = (figure(target), figure(than)) else {
            return Verdict::Broken(format!("{name}: there is no such figure"));
        };
        if !own.failures.is_empty() {
            return Verdict::Broken(format!("{name}: attempts failed: {:?}", own.failures));
        }
        match (own.got.number(), other.got.number()) {
            (Some(own), Some(other)) if own <= other * most => {
                Verdict::Kept(format!("{name}: {:.3} times, at most {most}", own / other))
            }
            (Some(own), Some(other)) => {
                Verdict::Broken(format!("{name}: {:.3} times, more than {most}", own / other))
            }
            (None, _) => Verdict::Broken(format!("{name}: {target} has no result")),
            (_, None) => Verdict::Broken(format!("{name}: {than} has no result")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(at: u64, most: f64) -> Bound {
        let (target, than) = ("bellglass".into(), "runc".into());
        Bound { what: "create alone".into(), at: Some(at), target, than, most }
    }

    #[test]
    fn a_bound_compares_medians_and_tolerates_no_failure() {
        let report = crate::report::example();
        let outcome = &report.scenarios[0];
        // The medians are 24 and 14 ms.
        let judge = |bound: Bound| bound.judge(outcome, &["bellglass", "runc"]);
        assert!(matches!(judge(bound(1, 2.0)), Verdict::Kept(_)));
        assert!(matches!(judge(bound(1, 1.5)), Verdict::Broken(_)));
        assert!(matches!(judge(bound(10, 9.0)), Verdict::Broken(text) if text.contains("capacity")));
        assert!(matches!(judge(bound(50, 1.0)), Verdict::Broken(text) if text.contains("no such figure")));
        assert!(matches!(bound(1, 2.0).judge(outcome, &["bellglass"]), Verdict::NotMeasured(_)));
    }

    #[test]
    fn a_wrong_bound_is_refused() {
        assert!(bound(1, 0.0).check().unwrap_err().contains("most"));
        assert!(Bound { than: "vm".into(), ..bound(1, 1.0) }.check().unwrap_err().contains("no target `vm`"));
    }
}
