//! Rules about the folders of `attacks/`. The name of a folder is the id of its attack and a few words, for
//! example `H-02-http2-frames`.

use std::collections::{BTreeSet, HashSet};
use std::ops::RangeInclusive;

use crate::tree::File;

/// Folders in `attacks/` that do not describe a single attack.
const OTHER_FOLDERS: [&str; 1] = ["reviews"];
/// Number of words after the id in the name of a folder. One word is often shared by several attacks, and more
/// than four are a sentence, which belongs in the title.
const WORDS: RangeInclusive<usize> = 2..=4;
/// Number of bytes in an id.
const ID_BYTES: usize = 4;

/// An attack as described by the first line of its README, `# P-07, P-08: FIFOs, sockets`.
struct Attack<'a> {
    folder: &'a str,
    /// Ids before the colon. The first is the id in the name of the folder.
    ids: &'a str,
    description: &'a str,
}

impl Attack<'_> {
    /// Returns the attack's row in the index.
    fn row(&self) -> String {
        let words = self.folder.get(ID_BYTES + 1..).unwrap_or_default();
        format!("| {} | [{words}]({}/README.md) | {} |", self.ids, self.folder, self.description)
    }
}

/// Checks that the name of each folder consists of an id and words, that the title of its README begins with
/// this id, and that no two titles begin with the same id.
pub(crate) fn folders(files: &[File]) -> Vec<String> {
    let (mut broken, mut ids) = (Vec::new(), HashSet::new());
    for folder in names(files) {
        if !is_name(folder) {
            broken.push(format!("attacks/{folder}: the name is not an id and two to four lower-case words"));
        }
        let Some(attack) = attack(files, folder) else {
            broken.push(format!("attacks/{folder}: no README.md that begins with `# ID: description`"));
            continue;
        };
        if folder.get(..ID_BYTES) != attack.ids.get(..ID_BYTES) {
            broken.push(format!("attacks/{folder}: the title begins with {}", attack.ids));
        }
        for id in attack.ids.split(", ").filter(|id| !ids.insert(*id)) {
            broken.push(format!("attacks/{folder}: another folder describes {id} too"));
        }
    }
    broken
}

/// Checks that the index in `attacks/README.md` has exactly one row for each folder, in the order of the
/// folders. The message contains the missing row.
pub(crate) fn index(file: &File, files: &[File]) -> Vec<String> {
    let expected: Vec<String> = names(files)
        .into_iter()
        .filter_map(|folder| attack(files, folder))
        .map(|attack| attack.row())
        .collect();
    let rows: Vec<&str> = file
        .text
        .lines()
        .filter(|line| line.strip_prefix("| ").and_then(|rest| rest.get(..ID_BYTES)).is_some_and(is_id))
        .collect();
    let missing = expected.iter().filter(|row| !rows.contains(&row.as_str()));
    let mut broken: Vec<String> = missing.map(|row| format!("the index lacks the row {row}")).collect();
    let stale = rows.iter().filter(|row| !expected.iter().any(|expected| expected == *row));
    broken.extend(stale.map(|row| format!("the index has the stale row {row}")));
    if broken.is_empty() && rows != expected {
        broken.push("the rows of the index are repeated or not in the order of the folders".to_owned());
    }
    broken
}

/// Checks that each path of an attack's folder in a file names an existing folder.
pub(crate) fn paths(file: &File, files: &[File]) -> Vec<String> {
    let known = names(files);
    let after = file.text.split("attacks/").skip(1);
    let named = after.filter(|rest| rest.get(..ID_BYTES).is_some_and(is_id)).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-').unwrap_or(rest.len());
        rest.get(..end).unwrap_or_default()
    });
    named
        .filter(|folder| !known.contains(folder))
        .map(|folder| format!("`attacks/{folder}` does not exist"))
        .collect()
}

/// Returns the names of the folders that describe an attack, in order.
fn names(files: &[File]) -> BTreeSet<&str> {
    let inside = files.iter().filter_map(|file| file.path.strip_prefix("attacks/")?.split_once('/'));
    inside.map(|(folder, _)| folder).filter(|folder| !OTHER_FOLDERS.contains(folder)).collect()
}

/// Returns the attack that a folder describes, or `None` if the folder's README does not begin with ids and a
/// description.
fn attack<'a>(files: &'a [File], folder: &'a str) -> Option<Attack<'a>> {
    let path = format!("attacks/{folder}/README.md");
    let readme = files.iter().find(|file| file.path == path)?;
    let (ids, description) = readme.text.lines().next()?.strip_prefix("# ")?.split_once(": ")?;
    ids.split(", ").all(is_id).then_some(Attack { folder, ids, description })
}

fn is_name(folder: &str) -> bool {
    let is_word = |word: &str| {
        !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    folder.split_at_checked(ID_BYTES).is_some_and(|(id, rest)| {
        let words = rest.strip_prefix('-').unwrap_or_default();
        is_id(id) && WORDS.contains(&words.split('-').count()) && words.split('-').all(is_word)
    })
}

/// Returns true if a word has the form `H-02`.
fn is_id(word: &str) -> bool {
    matches!(word.as_bytes(), [b'A'..=b'Z', b'-', b'0'..=b'9', b'0'..=b'9'])
}

#[cfg(test)]
fn readme(folder: &str, title: &str) -> File {
    File::example(&format!("attacks/{folder}/README.md"), &format!("# {title}\n\n**What.** Text.\n"))
}

#[test]
fn a_folder_without_words_or_a_title_with_its_id_is_caught() {
    let sound = readme("H-02-http2-frames", "H-02: HTTP/2 frames");
    let several = readme("P-07-fifos-sockets-devices", "P-07, P-08: FIFOs, sockets, devices");
    let review = File::example("attacks/reviews/README.md", "# Independent reviews\n");
    assert_eq!(folders(&[sound.clone(), several.clone(), review]), Vec::<String>::new());
    for broken in [
        readme("H-03", "H-03: Malformed JSON"),
        readme("H-03-json", "H-03: Malformed JSON"),
        readme("H-03-Malformed-JSON", "H-03: Malformed JSON"),
        readme("H-03-malformed--json", "H-03: Malformed JSON"),
        readme("H-03-json-bodies-with-many-errors", "H-03: Malformed JSON"),
        readme("malformed-json", "H-03: Malformed JSON"),
    ] {
        let broken = folders(&[sound.clone(), broken]);
        assert!(broken.first().is_some_and(|line| line.contains("the name is not an id")), "{broken:?}");
    }
    for broken in [
        readme("H-03-malformed-json", "Malformed JSON"),
        readme("H-03-malformed-json", "H-04: Malformed JSON"),
        readme("H-02-malformed-json", "H-02: Malformed JSON"),
        readme("P-08-sockets-devices", "P-08: Sockets and devices"),
        File::example("attacks/H-03-malformed-json/attack.py", ""),
    ] {
        assert_eq!(folders(&[sound.clone(), several.clone(), broken.clone()]).len(), 1, "{broken:?}");
    }
}

#[test]
fn a_stale_index_is_caught() {
    let files = [
        readme("H-02-http2-frames", "H-02: HTTP/2 frames"),
        readme("P-07-fifos-sockets-devices", "P-07, P-08: FIFOs, sockets, devices"),
    ];
    let table = "| id | folder | attack |\n|---|---|---|\n";
    let first = "| H-02 | [http2-frames](H-02-http2-frames/README.md) | HTTP/2 frames |\n";
    let second = "| P-07, P-08 | [fifos-sockets-devices](P-07-fifos-sockets-devices/README.md) | FIFOs, sockets, devices |\n";
    let broken =
        |rows: &[&str]| index(&File::example("attacks/README.md", &[table, &rows.concat()].concat()), &files);
    assert_eq!(broken(&[first, second]), Vec::<String>::new());
    assert_eq!(broken(&[first]).len(), 1);
    assert_eq!(broken(&[first, second, "| P-09 | [gone](P-09-gone/README.md) | Gone |\n"]).len(), 1);
    assert_eq!(broken(&[second, first]).len(), 1);
    assert_eq!(broken(&[first, second, second]).len(), 1);
    assert_eq!(broken(&[&first.replace("HTTP/2 frames", "Frames"), second]).len(), 2);
}

#[test]
fn a_path_without_the_words_of_its_folder_is_caught() {
    let files = [readme("H-02-http2-frames", "H-02: HTTP/2 frames")];
    let text = "attacks/H-02-http2-frames/attack.py, `attacks/H-02`, (attacks/H-02-frames/README.md), attacks/probe.py, H-02";
    let broken = paths(&File::example("docs/a.md", text), &files);
    assert_eq!(broken, ["`attacks/H-02` does not exist", "`attacks/H-02-frames` does not exist"]);
}
