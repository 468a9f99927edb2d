//! Selects the files to keep, one at a time, in the order of the listing.
//!
//! The selection is a pure function. Each file found is chosen, listed as left out, or, once that list is
//! full, only counted as left out.

use std::collections::HashSet;

use api::artifact::{Artifact, Keep, LEFT_OUT_MAX, LeftOut, Why, below};
use api::files::{FileInfo, FileKind, FilePath, shown};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Maximum size of the chosen names in JSON, so that a manifest fits into a response.
const NAMES_BYTES_MAX: usize = 4 << 20;

/// The files that were in the folders before the run, each as a hash of its path and version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marks(HashSet<String>);

/// A choice in progress.
pub struct Choice<'a> {
    keep: &'a Keep,
    before: &'a Marks,
    chosen: Vec<Chosen>,
    names_bytes: usize,
    bytes: u64,
    tally: ChoiceTally,
}

/// A file to keep.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// Metadata from the listing.
    pub info: FileInfo,
    /// The exact path, which is not necessarily valid UTF-8.
    pub path: FilePath,
    /// Path relative to the folder that was listed.
    pub name: String,
}

/// The number of files found, and the files left out.
#[derive(Clone, Debug, Default)]
pub struct ChoiceTally {
    /// Number of files found.
    pub found: u64,
    /// Files left out, at most [`LEFT_OUT_MAX`].
    pub left_out: Vec<LeftOut>,
    /// Number of files left out that `left_out` does not list.
    pub more: u64,
}

impl Marks {
    /// Adds a file.
    pub fn note(&mut self, path: &FilePath, info: &FileInfo) {
        self.0.insert(mark(path, info));
    }

    fn has(&self, path: &FilePath, info: &FileInfo) -> bool {
        self.0.contains(&mark(path, info))
    }
}

impl<'a> Choice<'a> {
    pub fn new(keep: &'a Keep, before: &'a Marks) -> Self {
        Self { keep, before, chosen: Vec::new(), names_bytes: 0, bytes: 0, tally: ChoiceTally::default() }
    }

    /// Decides whether to keep the next entry of a folder.
    pub fn see(&mut self, folder: &FilePath, path: FilePath, info: FileInfo) {
        let counts = info.kind == FileKind::File || info.error.is_some();
        if !counts || self.before.has(&path, &info) {
            return;
        }
        self.tally.found += 1;
        let (name, _) = shown(below(folder, &path).unwrap_or(path.as_bytes()));
        let names_bytes = self.names_bytes + escaped(&name) + escaped(&info.path) + escaped_exact(&info);
        let bytes = self.bytes.saturating_add(info.size_bytes);
        let why = if info.error.is_some() {
            Some(Why::Unreadable)
        } else if info.size_bytes > self.keep.file_bytes_max {
            Some(Why::TooLarge)
        } else if self.chosen.len() >= self.keep.count_max as usize || names_bytes > NAMES_BYTES_MAX {
            Some(Why::TooMany)
        } else if bytes > self.keep.bytes_max {
            Some(Why::TooMuch)
        } else {
            None
        };
        match why {
            Some(why) => self.tally.leave(&info, why),
            None => {
                (self.names_bytes, self.bytes) = (names_bytes, bytes);
                let info = FileInfo { target: None, ..info };
                self.chosen.push(Chosen { info, path, name });
            }
        }
    }

    /// Returns the chosen files, and the tally of the files found and left out.
    pub fn end(self) -> (Vec<Chosen>, ChoiceTally) {
        (self.chosen, self.tally)
    }
}

impl Chosen {
    /// Returns the file as a stored artifact.
    pub fn artifact(&self, number: u32, size_bytes: u64, sha256: String) -> Artifact {
        Artifact {
            number,
            name: self.name.clone(),
            path: self.info.path.clone(),
            path_encoded: self.info.path_encoded.clone(),
            mime: api::artifact::mime(&self.name).to_owned(),
            size_bytes,
            sha256,
        }
    }
}

impl ChoiceTally {
    /// Records a file that was found but is not kept.
    pub fn leave(&mut self, info: &FileInfo, why: Why) {
        if self.left_out.len() >= LEFT_OUT_MAX {
            self.more += 1;
            return;
        }
        self.left_out.push(LeftOut {
            path: info.path.clone(),
            path_encoded: info.path_encoded.clone(),
            size_bytes: info.size_bytes,
            why,
        });
    }
}

/// Returns the hash of a path and a version: 16 bytes in hexadecimal, so that its length does not depend on
/// the path.
fn mark(path: &FilePath, info: &FileInfo) -> String {
    let mut hasher = Sha256::new();
    hasher.update(path.as_bytes());
    // Separator: no path contains a zero byte.
    hasher.update([0]);
    hasher.update(info.version.as_bytes());
    hasher.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Returns an upper bound on the length of a string encoded as JSON.
fn escaped(text: &str) -> usize {
    text.chars().map(|character| if character.is_control() { 6 } else { character.len_utf8() + 1 }).sum()
}

fn escaped_exact(info: &FileInfo) -> usize {
    info.path_encoded.as_deref().map_or(0, str::len)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn path(text: &str) -> FilePath {
        FilePath::new(text).unwrap()
    }

    fn file(text: &str, size_bytes: u64, version: &str) -> FileInfo {
        FileInfo {
            path: text.into(),
            path_encoded: None,
            kind: FileKind::File,
            size_bytes,
            mode: 0o644,
            uid: 1000,
            gid: 1000,
            modified_at_ms: 0,
            version: version.into(),
            target: None,
            error: None,
        }
    }

    fn choose(keep: &Keep, before: &Marks, files: Vec<FileInfo>) -> (Vec<Chosen>, ChoiceTally) {
        let mut choice = Choice::new(keep, before);
        for info in files {
            choice.see(&path("/o"), path(&info.path), info);
        }
        choice.end()
    }

    #[test]
    fn what_is_new_or_another_version_counts_and_only_regular_files_do() {
        let mut before = Marks::default();
        before.note(&path("/o/old"), &file("/o/old", 1, "1"));
        before.note(&path("/o/changed"), &file("/o/changed", 1, "1"));
        let link = FileInfo { kind: FileKind::Symlink, ..file("/o/link", 1, "1") };
        let fifo = FileInfo { kind: FileKind::Fifo, ..file("/o/fifo", 0, "1") };
        let keep = Keep::folders(vec!["/o".into()]);
        let files = vec![
            file("/o/changed", 1, "2"),
            fifo,
            link,
            file("/o/new/x.png", 1, "1"),
            file("/o/old", 1, "1"),
        ];
        let (chosen, tally) = choose(&keep, &before, files);
        let names: Vec<_> = chosen.iter().map(|chosen| chosen.name.as_str()).collect();
        assert_eq!(names, ["changed", "new/x.png"]);
        assert_eq!((tally.found, tally.left_out.len(), tally.more), (2, 0, 0));
        assert_eq!(chosen[1].artifact(1, 1, String::new()).mime, "image/png");
    }

    #[test]
    fn each_limit_has_its_name() {
        let keep =
            Keep { count_max: 2, file_bytes_max: 10, bytes_max: 15, ..Keep::folders(vec!["/o".into()]) };
        let broken = FileInfo { error: Some(api::Error::invalid("x", "y")), ..file("/o/e", 0, "1") };
        let files = vec![
            file("/o/a", 10, "1"),
            file("/o/b", 11, "1"),
            file("/o/c", 6, "1"),
            file("/o/d", 5, "1"),
            broken,
            file("/o/f", 0, "1"),
        ];
        let (chosen, tally) = choose(&keep, &Marks::default(), files);
        assert_eq!(chosen.len(), 2);
        let why: Vec<_> = tally.left_out.iter().map(|left| left.why).collect();
        assert_eq!(why, [Why::TooLarge, Why::TooMuch, Why::Unreadable, Why::TooMany]);
    }

    #[test]
    fn names_that_would_not_fit_an_answer_are_left_out() {
        let keep = Keep { count_max: 1000, ..Keep::folders(vec!["/o".into()]) };
        let files =
            (0..1000).map(|number| file(&format!("/o/{number}{}", "\u{1}".repeat(4000)), 0, "1")).collect();
        let (chosen, tally) = choose(&keep, &Marks::default(), files);
        assert!(chosen.len() < 1000 && !chosen.is_empty());
        assert_eq!(tally.found, 1000);
        assert_eq!(tally.left_out.len() as u64 + tally.more + chosen.len() as u64, 1000);
        let text = serde_json::to_vec(
            &chosen.iter().map(|one| one.artifact(0, 0, String::new())).collect::<Vec<_>>(),
        );
        assert!(text.unwrap().len() < api::limits::BODY_BYTES_MAX / 2);
    }

    proptest! {
        #[test]
        fn nothing_is_passed_over_in_silence(
            sizes in proptest::collection::vec(0_u64..50, 0..300),
            count_max in 0_u32..50,
            file_bytes_max in 0_u64..50,
            bytes_max in 0_u64..500,
        ) {
            let keep = Keep { count_max, file_bytes_max, bytes_max, ..Keep::folders(vec!["/o".into()]) };
            let all = sizes.len() as u64;
            let files = sizes.iter().enumerate().map(|(at, size)| file(&format!("/o/{at:04}"), *size, "1"));
            let (chosen, tally) = choose(&keep, &Marks::default(), files.collect());
            prop_assert_eq!(tally.found, all);
            prop_assert_eq!(chosen.len() as u64 + tally.left_out.len() as u64 + tally.more, all);
            prop_assert!(chosen.len() <= count_max as usize);
            prop_assert!(tally.left_out.len() <= LEFT_OUT_MAX);
            prop_assert!(chosen.iter().map(|one| one.info.size_bytes).sum::<u64>() <= bytes_max);
            prop_assert!(chosen.iter().all(|one| one.info.size_bytes <= file_bytes_max));
            prop_assert!(chosen.windows(2).all(|pair| pair[0].path < pair[1].path));
        }
    }
}
