//! The text files of the repository.

use std::io;
use std::path::{Path, PathBuf};

/// Names of entries without source text: directories, and `.git`, which is a file in a linked work tree.
const SKIPPED: [&str; 4] = [".git", "target", "node_modules", "__pycache__"];

/// A text file.
#[derive(Clone, Debug)]
pub(crate) struct File {
    /// Path relative to the root of the repository, with `/` as the separator.
    pub(crate) path: String,
    /// Content of the file.
    pub(crate) text: String,
}

impl File {
    /// Creates a file for testing a rule.
    #[cfg(test)]
    pub(crate) fn example(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }
}

/// Returns the root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns all files whose content is valid UTF-8, sorted by path.
pub(crate) fn files() -> io::Result<Vec<File>> {
    let root = root();
    let mut files = Vec::new();
    let mut open = vec![root.clone()];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(&directory)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if SKIPPED.iter().any(|name| entry.file_name() == *name) {
                continue;
            }
            if kind.is_dir() {
                open.push(entry.path());
            }
            if !kind.is_file() {
                continue;
            }
            // Skip files that are not text, for example an archive that a test extracts.
            if let Ok(text) = std::fs::read_to_string(entry.path()) {
                let path = entry.path().strip_prefix(&root).map(|path| path.to_string_lossy().into_owned());
                files.push(File { path: path.unwrap_or_default(), text });
            }
        }
    }
    files.sort_by(|left, right| left.path.cmp(&right.path));
    Ok(files)
}

/// Returns the file with this path.
pub(crate) fn named<'a>(files: &'a [File], path: &str) -> Option<&'a File> {
    files.iter().find(|file| file.path == path)
}

#[test]
fn the_tree_holds_this_file_and_nothing_that_was_built() {
    let files = files().unwrap();
    assert!(named(&files, "crates/house/src/tree.rs").is_some());
    assert!(!files.iter().any(|file| file.path.starts_with("target/")));
}
