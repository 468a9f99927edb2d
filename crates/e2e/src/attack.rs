//! Paths of the files in `attacks/`, and the verdicts of attack tests. A test names an attack by its id. The
//! rest of the folder's name is for readers, so this module finds the folder.
//!
//! An attack that fails proves nothing unless the same attack succeeds without the defence. Each control that
//! runs is therefore counted, and a verdict fails if there was none. A test that cannot have a control says
//! why instead.

use std::cell::Cell;
use std::path::{Path, PathBuf};

thread_local! {
    /// Number of controls that have run on this thread since [`begin`].
    static CONTROLS: Cell<u32> = const { Cell::new(0) };
}

/// Starts a new test, or the same test on another runtime.
pub fn begin() {
    CONTROLS.set(0);
}

/// Counts a control: the attack without the defence, or with a second limit. Fixtures that run controls call
/// this function. A test calls it after the assertions of a control that it runs itself.
pub fn count_control() {
    CONTROLS.set(CONTROLS.get() + 1);
}

/// Prints that the product withstood an attack.
///
/// # Panics
/// Panics if no control has run.
pub fn held(attack: &str, place: &str, figures: &str) {
    let controls = CONTROLS.get();
    assert!(controls > 0, "attack {attack} {place}: no control has run");
    println!("attack {attack} {place} held ({controls} controls reached): {figures}");
}

/// Prints that the product withstood an attack that has no control, and why it has none.
pub fn held_without_control(attack: &str, place: &str, why: &str) {
    println!("attack {attack} {place} held (no control: {why})");
}

/// Returns the value of [`api::defence::VARIABLE`] that turns off the defence against this attack in a program,
/// in addition to the defences that `just mutants` has turned off for this test.
pub fn off(attack: &str) -> String {
    [attack, &std::env::var(api::defence::VARIABLE).unwrap_or_default()].join(",")
}

/// Returns the path of a file in the folder of an attack.
pub fn file(id: &str, name: &str) -> PathBuf {
    let (folders, prefix) = (shared(""), format!("{id}-"));
    let entries = folders.read_dir().unwrap_or_else(|error| panic!("{}: {error}", folders.display()));
    let paths = entries.map(|entry| entry.unwrap().path());
    let is_named =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix));
    let found: Vec<PathBuf> = paths.filter(is_named).collect();
    let [folder] = found.as_slice() else {
        panic!("attack {id} has {} folders in attacks/, not one: {found:?}", found.len())
    };
    folder.join(name)
}

/// Returns the path of a file that attacks share.
pub fn shared(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../attacks").join(name)
}
