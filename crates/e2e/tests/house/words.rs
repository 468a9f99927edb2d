//! Rules about words, in every file.

use crate::tree::File;

/// Notes to oneself: do it, or write it into the tracker. Cut in two, so that this file may be read as well.
const UNFINISHED: [&str; 2] = [concat!("TO", "DO"), concat!("FIX", "ME")];
/// Beginnings of paths that exist on somebody's machine only.
const MACHINE_PATHS: [&str; 5] = [
    concat!("/wo", "rk/"),
    concat!("/Us", "ers/"),
    concat!("/home/", "runner/"),
    concat!("/root/", ".cargo"),
    concat!("/root/", ".rustup"),
];

/// Nothing is left as a note.
pub(crate) fn unfinished(file: &File) -> Vec<String> {
    found(file, |line| {
        let mut words = line.split(|c: char| !c.is_alphanumeric());
        words.find(|word| UNFINISHED.contains(word)).map(str::to_owned)
    })
}

/// Nothing depends on where it was written.
pub(crate) fn machine_paths(file: &File) -> Vec<String> {
    found(file, |line| MACHINE_PATHS.iter().find(|path| line.contains(**path)).map(|path| (*path).to_owned()))
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
