//! Output of a payload: one line `attempt result` for each attempt. A payload that printed nothing, or that
//! did not end as payloads end, has not tried what its test asks about, so all questions about it fail.

use std::collections::BTreeMap;

use api::exec::Outcome;
use e2e::lab::text;
use node::Collected;

use super::field::THROUGH;

/// The results of a payload's attempts, and the payload's exit code.
#[derive(Debug)]
pub(crate) struct Said {
    things: BTreeMap<String, String>,
    pub(crate) code: Option<i32>,
    pub(crate) raw: String,
    /// True if only a part of the payload's output is expected.
    is_part: bool,
}

/// Parses the output of a payload that has exited.
pub(crate) fn said(done: &Collected) -> Said {
    let code = if let Outcome::Exited { code } = done.end.outcome { Some(code) } else { None };
    Said::read(&text(done), &format!("{}{:?}", String::from_utf8_lossy(&done.stderr), done.end.outcome), code)
}

/// Parses the output of a payload that was expected to be killed.
pub(crate) fn said_before_its_end(done: &Collected) -> Said {
    Said { is_part: true, ..said(done) }
}

impl Said {
    /// Parses a payload's output, split at the last space of each line. `more` is shown in messages.
    pub(crate) fn read(text: &str, more: &str, code: Option<i32>) -> Self {
        let things = text.lines().filter_map(|line| line.rsplit_once(' '));
        let things = things.map(|(thing, result)| (thing.to_owned(), result.to_owned())).collect();
        Self { things, code, raw: format!("{text}{more}"), is_part: false }
    }

    /// Parses the output of a payload that is still running.
    pub(crate) fn so_far(text: &str) -> Self {
        Self { is_part: true, ..Self::read(text, "", None) }
    }

    /// Returns all results, of which there must be at least this many.
    pub(crate) fn all(&self, least: usize) -> impl Iterator<Item = (&str, &str)> {
        let things = self.things();
        assert!(things.len() >= least, "{} results, {least} at least:\n{}", things.len(), self.raw);
        things.iter().map(|(thing, result)| (thing.as_str(), result.as_str()))
    }

    /// Returns the result of an attempt.
    pub(crate) fn get(&self, thing: &str) -> Option<&str> {
        self.things().get(thing).map(String::as_str)
    }

    /// Returns the result of an attempt as a number.
    pub(crate) fn number(&self, thing: &str) -> u64 {
        let number = self.get(thing).and_then(|text| text.parse().ok());
        number.unwrap_or_else(|| panic!("{thing}: {}", self.raw))
    }

    /// Asserts the results of attempts. An expected result may list several accepted values, separated by
    /// `|`.
    pub(crate) fn assert(&self, place: &str, wanted: &[(&str, &str)]) {
        for (thing, answers) in wanted {
            let seen = self.get(thing).unwrap_or("nothing");
            assert!(
                answers.split('|').any(|answer| answer == seen),
                "{place}: {thing} gave {seen}, not {answers}:\n{}",
                self.raw
            );
        }
    }

    /// Asserts that no attempt succeeded.
    pub(crate) fn assert_held(&self, place: &str) {
        self.things();
        assert_eq!(self.code, Some(0), "{place}: something went through:\n{}", self.raw);
    }

    fn things(&self) -> &BTreeMap<String, String> {
        let has_ended = matches!(self.code, Some(0 | THROUGH));
        assert!(has_ended || self.is_part, "the payload ended with {:?}:\n{}", self.code, self.raw);
        assert!(!self.things.is_empty(), "the payload printed no result:\n{}", self.raw);
        &self.things
    }
}

#[test]
#[should_panic(expected = "printed no result")]
fn a_payload_that_printed_nothing_is_not_asked() {
    Said::read("", "", Some(0)).assert_held("nowhere");
}

#[test]
#[should_panic(expected = "the payload ended with Some(1)")]
fn a_payload_that_failed_is_not_asked() {
    let said = Said::read("mount EPERM\n", "", Some(1));
    said.assert("nowhere", &[("mount", "EPERM")]);
}

#[test]
#[should_panic(expected = "1 results, 2 at least")]
fn a_payload_that_stopped_early_is_not_asked() {
    assert_eq!(Said::read("mount EPERM\n", "", Some(0)).all(2).count(), 2);
}
