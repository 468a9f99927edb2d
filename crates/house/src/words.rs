//! Rules about words and phrases, which apply to all files.

use crate::tree::File;

/// Names of packages that we own. Documents must not suggest a different name to users who install Bellglass,
/// because a third party may own it.
const OWNED_PACKAGES: [&str; 1] = ["bellglass"];
/// Prefixes of commands that install packages by name.
const INSTALLERS: [&str; 8] = [
    "pip install",
    "pipx install",
    "uv add",
    "uv tool install",
    "npm install",
    "npm i",
    "npx",
    "cargo install",
];
/// Colloquial phrases that `docs/style.md` replaces with standard terms. A final `*` matches any ending of
/// the last word.
const HABITS: [&str; 24] = [
    "whoever",
    "nobody",
    "somebody",
    "is told",
    "are told",
    "go on",
    "goes on",
    "written down",
    "stand still",
    "stands still",
    "one that",
    "those that",
    "made ahead",
    "by itself",
    "what is",
    "what was",
    "what may",
    "what it",
    "what they",
    "what a",
    "what the",
    "a stranger*",
    "given up",
    "the like",
];

/// Markers of unfinished work, which belongs in the issue tracker. Each is split in two, so that this file
/// complies with the rule.
const UNFINISHED: [&str; 2] = [concat!("TO", "DO"), concat!("FIX", "ME")];
/// Prefixes of paths that exist only on a developer's machine.
const MACHINE_PATHS: [&str; 5] = [
    concat!("/wo", "rk/"),
    concat!("/Us", "ers/"),
    concat!("/home/", "runner/"),
    concat!("/root/", ".cargo"),
    concat!("/root/", ".rustup"),
];

/// Checks that a file contains no markers of unfinished work.
pub(crate) fn unfinished(file: &File) -> Vec<String> {
    found(file, |line| {
        let mut words = line.split(|c: char| !c.is_alphanumeric());
        words.find(|word| UNFINISHED.contains(word)).map(str::to_owned)
    })
}

/// Checks that a file contains no paths that exist only on a developer's machine.
pub(crate) fn machine_paths(file: &File) -> Vec<String> {
    found(file, |line| MACHINE_PATHS.iter().find(|path| line.contains(**path)).map(|path| (*path).to_owned()))
}

/// Checks that install commands name no package whose name begins with "bell", except for our own packages.
pub(crate) fn installs(file: &File) -> Vec<String> {
    found(file, |line| {
        let (_, after) = INSTALLERS.iter().find_map(|command| line.split_once(&format!("{command} ")))?;
        let mut names = after.split_whitespace().map(|word| word.trim_matches(['`', '\'', '"', '.', ',']));
        let name = names.find(|name| name.starts_with("bell") && !OWNED_PACKAGES.contains(name))?;
        Some(name.to_owned())
    })
}

/// Returns the number of words and the number of colloquial phrases in a text.
pub(crate) fn habits(text: &str) -> (usize, usize) {
    let words: Vec<String> = text
        .split(|c: char| !c.is_alphanumeric() && c != '\'' && c != '_')
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    let phrases: Vec<Vec<&str>> = HABITS.iter().map(|phrase| phrase.split(' ').collect()).collect();
    let is_same = |word: &String, wanted: &&str| match wanted.strip_suffix('*') {
        Some(beginning) => word.starts_with(beginning),
        None => word == wanted,
    };
    let begins = |phrase: &[&str], at: &[String]| {
        at.len() >= phrase.len() && at.iter().zip(phrase).all(|(word, wanted)| is_same(word, wanted))
    };
    let count = (0..words.len())
        .map(|index| {
            phrases.iter().filter(|phrase| begins(phrase, words.get(index..).unwrap_or_default())).count()
        })
        .sum();
    (text.split_whitespace().count(), count)
}

/// Returns the docstrings and comments of a Python file.
pub(crate) fn python_prose(text: &str) -> String {
    let docstrings = text.split("\"\"\"").skip(1).step_by(2);
    let code = text.split("\"\"\"").step_by(2);
    let comments =
        code.flat_map(str::lines).filter_map(|line| line.split_once('#')).map(|(_, comment)| comment);
    docstrings.chain(comments).collect::<Vec<_>>().join("\n")
}

/// Returns the comments of a Rust file. Code is not parsed, so text after `//` in a string counts as a
/// comment too.
pub(crate) fn rust_prose(text: &str) -> String {
    let comments = text.lines().filter_map(|line| line.split_once("//").map(|(_, comment)| comment));
    comments.map(|comment| comment.trim_start_matches(['/', '!'])).collect::<Vec<_>>().join("\n")
}

fn found(file: &File, what: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let lines = file.text.lines().enumerate();
    lines.filter_map(|(index, line)| what(line).map(|word| format!("line {}: `{word}`", index + 1))).collect()
}

#[test]
fn a_note_to_oneself_is_caught() {
    let text = format!("fine\n// {}: later\n", UNFINISHED[0]);
    assert_eq!(unfinished(&File::example("a.rs", &text)).len(), 1);
    assert_eq!(unfinished(&File::example("a.rs", "// do it\n")), Vec::<String>::new());
}

#[test]
fn a_path_of_a_build_machine_is_caught() {
    let text = format!("cd {}main\n", MACHINE_PATHS[0]);
    assert_eq!(machine_paths(&File::example("a.sh", &text)).len(), 1);
    assert_eq!(machine_paths(&File::example("a.sh", "cd /workspace\n")), Vec::<String>::new());
}

#[test]
fn a_package_that_is_not_ours_is_caught() {
    let text = concat!("pip install bell", "jar\npip install bellglass requests\npip install ./sdk/python\n");
    assert_eq!(installs(&File::example("a.md", text)).len(), 1);
    let text = concat!("Run `npm install -g bell", "glass-cli`.\n");
    assert_eq!(installs(&File::example("a.md", text)).len(), 1);
}

#[test]
fn phrases_of_the_dialect_are_counted_as_words() {
    let (words, count) =
        habits("Whoever asks is\ntold what is kept; a stranger's file. Somebodyish, tell me.");
    assert_eq!((words, count), (13, 4));
    let prose = python_prose("\"\"\"One that stays.\"\"\"\nx = 'nobody'  # somebody\n");
    assert_eq!(habits(&prose).1, 2);
}

#[test]
fn comments_of_rust_files_are_found() {
    let text = concat!("//! A file.\n\nfn f() {} // Calls no", "body.\nlet x = 1;\n    /// Returns.\n");
    assert_eq!(rust_prose(text), concat!(" A file.\n Calls no", "body.\n Returns."));
    assert_eq!(habits(&rust_prose(text)).1, 1);
}
