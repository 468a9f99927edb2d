//! Rules about Markdown documents.

use crate::tree::File;

/// Maximum number of lines in a decision. A longer document contains more than one decision.
const DECISION_LINES_MAX: usize = 60;
/// Nouns that must have a row in the glossary, which assigns one word to each concept.
const NOUNS: &str = "artifact, channel, context, control, dataset, exec, exec group, group, guest, key, layer, lease, \
                     node, outcome, policy, posture, project, runtime, sandbox, session, snapshot, spool, template, \
                     tier, tool, tool set";

/// Recipes that measure and do not fail if a goal is missed.
const MEASURING: [&str; 2] = ["just figures", "just bench"];
/// Beginning of the list of promises that are only measured.
const MEASURED: &str = "**Measured, not enforced**:";

/// Checks that every relative link leads to a file. `exists` receives paths relative to the root of the
/// repository.
pub(crate) fn links(file: &File, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let directory = file.path.rsplit_once('/').map_or("", |(directory, _)| directory);
    let mut broken = Vec::new();
    let mut in_fence = false;
    for (index, line) in file.text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_fence = !in_fence;
        }
        if in_fence {
            continue;
        }
        for target in targets(line) {
            let path = target.split('#').next().unwrap_or_default();
            if !path.is_empty() && !path.contains(':') && !exists(&resolve(directory, path)) {
                broken.push(format!("line {}: `{target}` leads nowhere", index + 1));
            }
        }
    }
    broken
}

/// Checks that a decision is at most one page long, and has sections for the decision, the reasons and the
/// rejected alternatives.
pub(crate) fn decision(file: &File) -> Vec<String> {
    let mut broken = Vec::new();
    let lines = file.text.lines().count();
    if lines > DECISION_LINES_MAX {
        broken.push(format!("{lines} lines, the most is {DECISION_LINES_MAX}"));
    }
    for heading in ["## Decision", "## Why", "## Rejected"] {
        if !file.text.lines().any(|line| line == heading) {
            broken.push(format!("no heading `{heading}`"));
        }
    }
    broken
}

/// Checks that decisions are numbered from 0001 without gaps, with names such as `0001-the-decision.md`.
pub(crate) fn decision_numbers(paths: &[&str]) -> Vec<String> {
    let mut sorted = paths.to_vec();
    sorted.sort_unstable();
    let wanted = (1..).map(|number| format!("docs/decisions/{number:04}-"));
    sorted
        .iter()
        .zip(wanted)
        .filter(|(path, wanted)| !path.starts_with(wanted.as_str()))
        .map(|(path, wanted)| format!("{path} should begin with {wanted}"))
        .collect()
}

/// Checks that each noun has a row in the glossary, and that each row ends with an existing path or with
/// `later`.
pub(crate) fn glossary(file: &File, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let rows: Vec<Vec<&str>> = file
        .text
        .lines()
        .map(|line| line.split('|').map(str::trim).collect::<Vec<_>>())
        .filter(|cells| cells.get(1).is_some_and(|cell| cell.starts_with("**")))
        .collect();
    let named: Vec<&str> =
        rows.iter().filter_map(|cells| cells.get(1)).map(|cell| cell.trim_matches('*')).collect();
    let missing = NOUNS.split(", ").filter(|noun| !named.contains(noun));
    let mut broken: Vec<String> = missing.map(|noun| format!("`{noun}` has no row")).collect();
    for cells in &rows {
        let [.., place, ""] = cells.as_slice() else { continue };
        let path = place.trim_matches('`');
        if path != "later" && !exists(path) {
            broken.push(format!("`{path}` is neither a file nor `later`"));
        }
    }
    broken
}

/// Checks that each promise has a unique number, and that each recipe and test named next to it exists.
pub(crate) fn promises(file: &File, recipes: &[&str], functions: &[&str]) -> Vec<String> {
    let (mut broken, mut numbers) = (Vec::new(), std::collections::HashSet::new());
    for line in file.text.lines().filter(|line| line.starts_with("| P")) {
        let cells: Vec<&str> = line.split(" | ").collect();
        let (Some(number), Some(holders)) = (cells.first(), cells.last()) else { continue };
        let number = number.trim_start_matches("| ");
        if !numbers.insert(number) {
            broken.push(format!("{number} is promised twice"));
        }
        let holders: Vec<&str> = holders.split('`').skip(1).step_by(2).collect();
        if holders.is_empty() {
            broken.push(format!("nothing holds {number}"));
        }
        for holder in holders {
            let known = match holder.strip_prefix("just ") {
                Some(recipe) => recipes.contains(&recipe),
                None => functions.contains(&holder),
            };
            if !known {
                broken.push(format!("{number} is held by `{holder}`, which does not exist"));
            }
        }
    }
    broken
}

/// Checks that the list of promises that are only measured contains exactly the promises whose recipes only measure.
/// All other recipes fail if a promise does not hold.
pub(crate) fn measured_promises(file: &File) -> Vec<String> {
    let mut measured: Vec<&str> = Vec::new();
    for line in file.text.lines().filter(|line| line.starts_with("| P")) {
        let cells: Vec<&str> = line.split(" | ").collect();
        let (Some(number), Some(holders)) = (cells.first(), cells.last()) else { continue };
        let holders: Vec<&str> = holders.split('`').skip(1).step_by(2).collect();
        if !holders.is_empty() && holders.iter().all(|holder| MEASURING.contains(holder)) {
            measured.push(number.trim_start_matches("| "));
        }
    }
    let lists = file.text.split("\n\n").filter_map(|part| part.strip_prefix(MEASURED));
    let mut listed: Vec<&str> = lists
        .flat_map(|list| list.split('.').next().unwrap_or_default().split([',', ' ', '\n']))
        .filter(|word| !word.is_empty())
        .collect();
    measured.sort_unstable();
    listed.sort_unstable();
    let apart = |left: &[&str], right: &[&str], what: &str| {
        let only = left.iter().filter(|number| !right.contains(number));
        only.map(|number| format!("{number} {what}")).collect::<Vec<_>>()
    };
    let mut broken = apart(&measured, &listed, "is only measured, but is not in that list");
    broken.extend(apart(&listed, &measured, "is in the list of measured promises, but is enforced"));
    broken
}

/// Returns the targets of the inline links in a line.
fn targets(line: &str) -> Vec<&str> {
    line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next()).collect()
}

/// Converts a path relative to a directory into a path relative to the root.
fn resolve(directory: &str, path: &str) -> String {
    let mut parts: Vec<&str> = directory.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." | "" => {}
            name => parts.push(name),
        }
    }
    parts.join("/")
}

#[test]
fn a_link_that_leads_nowhere_is_caught() {
    let text = "[a](style.md) [b](../README.md#x) [c](https://example.org/x) [d](#here) [e](gone.md)\n\
                ```\n[f](in-code.md)\n```\n";
    let broken =
        links(&File::example("docs/a.md", text), |path| ["docs/style.md", "README.md"].contains(&path));
    assert_eq!(broken, ["line 1: `gone.md` leads nowhere"]);
}

#[test]
fn a_decision_without_what_was_rejected_is_caught() {
    let text = "# Title\n\n## Decision\n\n## Why\n\n## Rejected\n";
    assert_eq!(decision(&File::example("docs/decisions/0001-a.md", text)), Vec::<String>::new());
    assert_eq!(
        decision(&File::example("docs/decisions/0001-a.md", "# Title\n\n## Decision\n\n## Why\n")).len(),
        1
    );
    let long = format!("{text}{}", "x\n".repeat(60));
    assert_eq!(decision(&File::example("docs/decisions/0001-a.md", &long)).len(), 1);
}

#[test]
fn a_hole_in_the_numbers_of_decisions_is_caught() {
    assert_eq!(
        decision_numbers(&["docs/decisions/0002-b.md", "docs/decisions/0001-a.md"]),
        Vec::<String>::new()
    );
    assert_eq!(decision_numbers(&["docs/decisions/0001-a.md", "docs/decisions/0003-b.md"]).len(), 1);
}

#[test]
fn a_noun_without_a_row_or_a_place_is_caught() {
    let rows: String =
        NOUNS.split(", ").map(|noun| format!("| **{noun}** | a thing | `crates/api` |\n")).collect();
    let exists = |path: &str| path == "crates/api";
    assert_eq!(glossary(&File::example("docs/glossary.md", &rows), exists), Vec::<String>::new());
    let fewer = rows.replacen("| **artifact** |", "| **thing** |", 1);
    assert_eq!(glossary(&File::example("docs/glossary.md", &fewer), exists), ["`artifact` has no row"]);
    let astray = rows.replacen("`crates/api`", "`crates/nowhere`", 1);
    assert_eq!(glossary(&File::example("docs/glossary.md", &astray), exists).len(), 1);
}

#[test]
fn a_promise_that_nothing_holds_is_caught() {
    let text = "| P1 | a | 1 s | a clock | `just real`: `stop_is_idempotent` |\n| P2 | b | 2 s | a clock | |\n\
                | P3 | c | 3 s | a clock | `just gone` |\n| P4 | d | 4 s | a clock | `just real`: `never_written` |\n\
                | P1 | e | 5 s | a clock | `just real` |\n";
    let broken = promises(&File::example("docs/specification.md", text), &["real"], &["stop_is_idempotent"]);
    assert_eq!(broken.len(), 4, "{broken:?}");
}

#[test]
fn a_promise_that_nobody_enforces_is_listed_as_such() {
    let rows =
        "| P1 | a | 1 s | a clock | `just figures` |\n| P2 | b | 2 s | a clock | `just real`: `stops` |\n";
    let check = |list: &str| {
        let text = format!("{rows}\n{list}\n\nOther text.\n");
        measured_promises(&File::example("docs/specification.md", &text)).len()
    };
    assert_eq!(check("**Measured, not enforced**: P1. A person judges them."), 0);
    assert_eq!(check("**Measured, not enforced**: P1, P2. A person judges them."), 1);
    assert_eq!(check("No list."), 1);
}
