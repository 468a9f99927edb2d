//! Rules about `docs/evidence.json`, which records when each recipe last ran at full size.

use std::path::Path;
use std::process::Command;

use crate::tree::File;

/// Number of commits after which a result is reported as old. `scripts/nightly` fails at 150.
const COMMITS_MAX: u32 = 50;

/// Returns the recipes that the specification names and `.ci/run` does not call: their promises depend on the recorded evidence.
pub(crate) fn recipes(specification: &str, ci: &str) -> Vec<String> {
    let mut found: Vec<String> = specification
        .lines()
        .filter(|line| line.starts_with("| P"))
        .flat_map(|line| line.split("`just ").skip(1))
        .filter_map(|rest| rest.split(['`', ' ']).next())
        .filter(|recipe| !ci.contains(&format!("just {recipe}")))
        .map(str::to_owned)
        .collect();
    found.sort();
    found.dedup();
    found
}

/// Returns a warning for each recipe without a recent successful result. `age` returns the number of commits
/// since a commit, or nothing if the clone does not contain it.
pub(crate) fn warnings(
    recipes: &[String],
    evidence: Option<&File>,
    age: impl Fn(&str) -> Option<u32>,
) -> Vec<String> {
    let text = evidence.map_or("", |file| file.text.as_str());
    recipes
        .iter()
        .filter_map(|recipe| {
            let Some((_, entry)) = text.split_once(&format!("\n  \"{recipe}\": {{")) else {
                return Some(format!("`just {recipe}` has no recorded result"));
            };
            let field = |name: &str| {
                let (_, rest) = entry.split_once(&format!("\"{name}\": \""))?;
                rest.split('"').next()
            };
            if field("result") != Some("passed") {
                return Some(format!("the recorded result of `just {recipe}` is a failure"));
            }
            match field("commit").and_then(&age) {
                Some(commits) if commits <= COMMITS_MAX => None,
                Some(commits) => Some(format!("the result of `just {recipe}` is {commits} commits old")),
                None => Some(format!("the result of `just {recipe}` is of a commit that this clone lacks")),
            }
        })
        .collect()
}

/// Returns the number of commits since a commit in the repository at this path.
pub(crate) fn commits_since(root: &Path, commit: &str) -> Option<u32> {
    let range = format!("{commit}..HEAD");
    let output = Command::new("git").args(["rev-list", "--count", &range]).current_dir(root).output().ok()?;
    if output.status.success() { String::from_utf8(output.stdout).ok()?.trim().parse().ok() } else { None }
}

#[test]
fn a_promise_whose_recipe_has_no_recent_result_is_caught() {
    let specification =
        "| P1 | a | `just soak`: `x` |\n| P2 | b | `just real`: `y` |\n| P3 | c | `just bench --quick` |\n";
    let recipes = recipes(specification, "real 'just real --quick'");
    assert_eq!(recipes, ["bench", "soak"]);
    let entry = |result: &str| {
        format!("{{\n  \"soak\": {{\n    \"commit\": \"abc\",\n    \"result\": \"{result}\"\n  }}\n}}\n")
    };
    let file = |result: &str| File::example("docs/evidence.json", &entry(result));
    let count = |result: &str, age: Option<u32>| warnings(&recipes, Some(&file(result)), |_| age).len();
    assert_eq!(count("passed", Some(50)), 1, "`bench` has no result");
    assert_eq!(count("passed", Some(51)), 2);
    assert_eq!(count("passed", None), 2);
    assert_eq!(count("failed", Some(0)), 2);
}
