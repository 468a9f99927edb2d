//! Rules about the shape of code. Most of them count a property that must not get worse.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::code;
use crate::tree::File;

/// Type names that describe a role. Each crate or module may declare its own type with such a name.
const ROLES: [&str; 11] = [
    "Error",
    "Args",
    "Arguments",
    "Config",
    "Result",
    "Output",
    "Item",
    "Rejection",
    "Err",
    "Value",
    "Target",
];

/// Returns the name and the number of required methods of each public trait in a file.
pub(crate) fn required_methods(file: &File) -> Vec<(String, usize)> {
    let code = code(&file.text);
    let mut traits = Vec::new();
    for (start, _) in code.match_indices("trait ") {
        let Some(body) = code.get(start..).and_then(block) else { continue };
        let name: String =
            code.get(start + 6..).unwrap_or_default().chars().take_while(|c| c.is_alphanumeric()).collect();
        let required = body.split("fn ").skip(1).filter(|method| {
            let end = method.find([';', '{']).unwrap_or(method.len());
            method.get(end..).is_some_and(|rest| rest.starts_with(';'))
        });
        traits.push((name, required.count()));
    }
    traits
}

/// Returns the lines that create an unbounded channel.
pub(crate) fn unbounded_channels(file: &File) -> Vec<String> {
    let code = code(&file.text);
    let lines = code.lines().enumerate();
    lines
        .filter(|(_, line)| line.contains("unbounded_channel") || line.contains("::unbounded("))
        .map(|(index, _)| format!("line {}: a channel without a bound", index + 1))
        .collect()
}

/// Returns the number of function parameters that destructure a tuple, such as `(a, b): (A, B)`.
pub(crate) fn tuple_parameters(file: &File) -> usize {
    let code = code(&file.text);
    let signatures = code.split("fn ").skip(1).map(|rest| rest.split(['{', ';']).next().unwrap_or_default());
    signatures.map(|signature| signature.matches("): (").count()).sum()
}

/// Returns true if the file is production code, which excludes tests in `src`.
pub(crate) fn is_production(file: &File) -> bool {
    file.path.contains("/src/")
        && !file.path.contains("/tests")
        && !["crates/e2e/", "crates/house/"].iter().any(|tests| file.path.starts_with(tests))
}

/// Returns the number of type declarations, and the names declared in three or more files, each with the
/// number of files.
pub(crate) fn reused_names(files: &[File]) -> (usize, BTreeMap<String, usize>) {
    let mut places: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for file in files.iter().filter(|file| is_production(file)) {
        for line in code(&file.text).lines() {
            let words: Vec<&str> = line.split(|c: char| !(c.is_alphanumeric() || c == '_')).collect();
            let kind = words.iter().position(|word| ["struct", "enum", "trait", "type"].contains(word));
            let name =
                kind.and_then(|at| words.get(at + 1)).filter(|name| name.starts_with(char::is_uppercase));
            // Ignore associated types, whose lines are indented.
            if let Some(name) = name.filter(|_| !line.starts_with("    type ")) {
                places.entry((*name).to_owned()).or_default().insert(&file.path);
            }
        }
    }
    places.retain(|name, _| !ROLES.contains(&name.as_str()));
    let all = places.values().map(BTreeSet::len).sum();
    let reused = places.into_iter().map(|(name, files)| (name, files.len())).filter(|(_, files)| *files >= 3);
    (all, reused.collect())
}

/// Returns the text between the first opening brace and its closing brace.
fn block(text: &str) -> Option<&str> {
    let open = text.find('{')?;
    let mut depth = 0_usize;
    for (index, c) in text.char_indices().skip_while(|(index, _)| *index < open) {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return text.get(open + 1..index),
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

#[test]
fn a_trait_has_the_methods_that_it_does_not_implement() {
    let text =
        "pub trait A: B {\n    fn one(&self);\n    async fn two(&self) -> u8 { 2 }\n    fn three();\n}\n";
    assert_eq!(required_methods(&File::example("a.rs", text)), [("A".to_owned(), 2)]);
}

#[test]
fn a_channel_without_a_bound_is_caught() {
    let text =
        "let (a, b) = mpsc::unbounded_channel();\nlet (c, d) = mpsc::channel(8); // not unbounded_channel\n";
    assert_eq!(unbounded_channels(&File::example("a.rs", text)).len(), 1);
}

#[test]
fn parameters_that_are_tuples_are_counted() {
    let text =
        "fn a(x: (u8, u8), (b, c): (u8, u8)) { let (d, e): (u8, u8) = x; }\nfn f(&self) -> (u8, u8);\n";
    assert_eq!(tuple_parameters(&File::example("a.rs", text)), 1);
}

#[test]
fn names_of_types_in_three_files_are_found() {
    let of = |name: &str, text: &str| File::example(&format!("crates/a/src/{name}.rs"), text);
    let files = [
        of("a", "pub struct Place;\nenum Error {}\n"),
        of("b", "struct Place(u8);\nenum Error {}\n"),
        of("c", "pub(crate) enum Place {}\nenum Error {}\nimpl X for Y {\n    type Kind = u8;\n}\n"),
        of("tests", "struct Place;\n"),
    ];
    assert_eq!(reused_names(&files), (3, BTreeMap::from([("Place".to_owned(), 3)])));
}
