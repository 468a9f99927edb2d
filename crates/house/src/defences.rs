//! Rules about `docs/defences.md`, the table of the defences that test builds can turn off, and about the
//! builds that have these switches.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::tree::File;

/// The calls that ask whether a defence is off. The first string after them is the name of the switch.
const CALLS: [&str; 2] = ["defence::is_off(", "defence::limit("];
/// The result of a switch whose attack failed as expected, in the fourth column of the table.
const NOTICED: &str = "noticed";
/// The feature of a crate that has switches.
const FEATURE: &str = "undefended";

/// Returns the names of all switches in these files.
pub(crate) fn switches(files: &[File]) -> BTreeSet<String> {
    let calls = files.iter().flat_map(|file| CALLS.iter().flat_map(|call| file.text.split(call).skip(1)));
    calls.filter_map(|rest| rest.split('"').nth(1)).map(str::to_owned).collect()
}

/// Checks that the table has one row for each switch, and that an attack noticed each of them.
pub(crate) fn table(page: &File, switches: &BTreeSet<String>) -> Vec<String> {
    let rows: Vec<Vec<&str>> = page
        .text
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| line.trim_matches('|').split(" | ").map(|cell| cell.trim().trim_matches('`')).collect())
        .collect();
    let known: BTreeSet<&str> = rows.iter().filter_map(|row| row.first().copied()).collect();
    let missing = switches.iter().filter(|switch| !known.contains(switch.as_str()));
    let mut broken: Vec<String> = missing
        .map(|switch| format!("no row for the switch {switch}; run `just mutants {switch}`"))
        .collect();
    for row in &rows {
        match row.as_slice() {
            [switch, ..] if !switches.contains(*switch) => {
                broken.push(format!("the switch {switch} does not exist"));
            }
            [_, _, _, NOTICED, ..] => {}
            [switch, _, _, result, ..] => broken.push(format!("the result of {switch} is `{result}`")),
            _ => broken.push(format!("a row with {} cells", row.len())),
        }
    }
    broken
}

/// Returns true if a build of a package has any switch. `edges` are the kinds of dependencies that the build uses.
pub(crate) fn has_switch(root: &Path, package: &str, edges: &str) -> Option<bool> {
    let mut cargo = Command::new("cargo");
    cargo.args(["tree", "--locked", "--offline", "--prefix", "none", "--package", package]);
    let output = cargo.args(["--edges", edges]).current_dir(root).output().ok()?;
    let tree = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && tree.contains("api v"))
        .then(|| tree.lines().any(|line| line.contains(&format!("feature \"{FEATURE}\""))))
}

#[test]
fn a_switch_without_a_row_or_a_result_is_caught() {
    let source = "if api::defence::is_off(\"H-30\") {}\nlet a = crate::defence::is_off(\n    \"K-05\",\n);\nlet b = defence::limit(limits.pids, \"C-01\");";
    let switches = switches(&[File::example("crates/a/src/lib.rs", source)]);
    assert_eq!(switches.iter().map(String::as_str).collect::<Vec<_>>(), ["C-01", "H-30", "K-05"]);
    let row =
        |switch: &str, result: &str| format!("| `{switch}` | `a/src/lib.rs` | `x::y` | {result} | z |\n");
    let broken = |rows: &[String]| table(&File::example("docs/defences.md", &rows.concat()), &switches).len();
    let sound = [row("C-01", "noticed"), row("H-30", "noticed"), row("K-05", "noticed")];
    let [first, second, third] = sound.clone();
    assert_eq!(broken(&sound), 0);
    assert_eq!(broken(&[first.clone(), second.clone()]), 1);
    assert_eq!(broken(&[first.clone(), row("H-30", "survived"), third.clone()]), 1);
    assert_eq!(broken(&[first, row("H-30", "not run"), third, row("H-31", "noticed")]), 2);
}
