//! Rules for `docs/requirements.md`, the table of acceptance criteria.

use std::collections::HashSet;

use crate::tree::File;

/// States of a requirement in `docs/requirements.md`. Only the first two require a test.
const STATES: [&str; 5] = ["shown", "shown on a stand-in", "untested", "partial", "missing"];

/// Checks that each requirement has one row with a known state, that the tests named in a row exist, and that
/// each row whose state begins with "shown" names a test. `has_test` returns true if the file contains the
/// test.
pub(crate) fn tests(file: &File, has_test: impl Fn(&str, &str) -> bool) -> Vec<String> {
    let (mut broken, mut ids) = (Vec::new(), HashSet::new());
    for (id, cells) in rows(&file.text) {
        let [_, _, _, state, shown_by] = cells.as_slice() else {
            broken.push(format!("{id} has {} cells, not 5", cells.len()));
            continue;
        };
        if !ids.insert(id) {
            broken.push(format!("{id} has two rows"));
        }
        if !STATES.contains(state) {
            broken.push(format!("{id} has the unknown state `{state}`"));
        }
        let tests: Vec<(&str, &str)> =
            shown_by.split('`').skip(1).step_by(2).filter_map(|word| word.split_once("::")).collect();
        if tests.is_empty() && STATES[..2].contains(state) {
            broken.push(format!("{id} is {state} by no test"));
        }
        let missing = tests.iter().filter(|(path, name)| !has_test(path, name));
        broken
            .extend(missing.map(|(path, name)| format!("{id} names `{path}::{name}`, which does not exist")));
    }
    if ids.is_empty() {
        broken.push("no requirement has a row".into());
    }
    broken
}

/// Checks the table at the top of the page, which counts the rows in each state.
pub(crate) fn counts(file: &File) -> Vec<String> {
    let every: Vec<(&str, Option<&str>)> =
        rows(&file.text).into_iter().map(|(id, cells)| (id, cells.get(3).copied())).collect();
    let expected = STATES.iter().map(|state| {
        let number = |part: &str| {
            every.iter().filter(|(id, found)| id.starts_with(part) && *found == Some(*state)).count()
        };
        format!("| `{state}` | {} | {} | {} |", number("A"), number("B"), number(""))
    });
    expected
        .filter(|line| !file.text.lines().any(|found| found == line))
        .map(|line| format!("the table at the top lacks the line {line}"))
        .collect()
}

/// Checks that every requirement that a file mentions has a row in `docs/requirements.md`.
pub(crate) fn pointers(file: &File, page: &str) -> Vec<String> {
    let known: HashSet<&str> = rows(page).into_iter().map(|(id, _)| id).collect();
    let words = file.text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '.');
    let ids = words.map(|word| word.trim_matches('.')).filter(|word| is_id(word));
    ids.filter(|id| !known.contains(id)).map(|id| format!("requirement {id} has no row")).collect()
}

/// Returns the ID and the cells of each requirement's row.
fn rows(page: &str) -> Vec<(&str, Vec<&str>)> {
    let lines = page.lines().filter(|line| line.starts_with("| "));
    lines
        .filter_map(|line| {
            let cells: Vec<&str> = line.trim_matches(['|', ' ']).split(" | ").map(str::trim).collect();
            let id = *cells.first().filter(|cell| is_id(cell))?;
            Some((id, cells))
        })
        .collect()
}

/// Returns true if a word has the form `A6.18`.
fn is_id(word: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let numbers = word.strip_prefix(['A', 'B']).and_then(|rest| rest.split_once('.'));
    numbers.is_some_and(|(part, number)| is_number(part) && is_number(number) && number.len() == 2)
}

#[test]
fn a_requirement_without_a_test_or_with_one_that_is_gone_is_caught() {
    let text = "| A1.01 | must | One. | shown | `a.rs::here` |\n| A1.02 | must | Two. | shown | by reading |\n\
                | A1.03 | must | Three. | shown | `a.rs::gone` |\n| A1.04 | later | Four. | missing | all of it |\n\
                | A1.05 | must | Five. | done | `a.rs::here` |\n| A1.01 | must | Again. | missing | all |\n\
                | A1.06 | must | Six | or seven. | missing | all |\n";
    let broken =
        tests(&File::example("docs/requirements.md", text), |path, name| (path, name) == ("a.rs", "here"));
    assert_eq!(broken.len(), 5, "{broken:?}");
}

#[test]
fn wrong_counts_and_unknown_ids_are_caught() {
    let page = "| `shown` | 1 | 0 | 1 |\n| A1.01 | must | One. | shown | `a.rs::here` |\n";
    let zeros = STATES[1..].iter().map(|state| format!("| `{state}` | 0 | 0 | 0 |\n")).collect::<String>();
    let page = format!("{page}{zeros}");
    assert_eq!(counts(&File::example("docs/requirements.md", &page)), Vec::<String>::new());
    let wrong = page.replace("| 1 | 0 | 1 |", "| 2 | 0 | 2 |");
    assert_eq!(counts(&File::example("docs/requirements.md", &wrong)).len(), 1);
    let text = "requirement A1.01; requirements A9.99, A1.01. P1.00 A1.1";
    assert_eq!(pointers(&File::example("a.rs", text), &page), ["requirement A9.99 has no row"]);
}
