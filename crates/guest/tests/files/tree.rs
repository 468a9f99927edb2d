//! Tests of creating, moving, copying, removing and listing.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use super::*;

fn count(answer: Result<FileAnswer, Error>) -> u64 {
    let answer = answer.unwrap();
    let FileAnswer::Done { count } = answer else { panic!("{answer:?}") };
    count
}

fn remove(place: &Path, all: bool) -> Result<FileAnswer, Error> {
    ask(&FileAsk::Remove { path: path(place), all })
}

/// Creates a directory with a tree in it, and files outside the tree that must not change.
fn ground() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let (tree, outside) = (directory.path().join("tree"), directory.path().join("outside"));
    fs::create_dir_all(tree.join("a/b")).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "untouched").unwrap();
    fs::write(tree.join("a/b/file"), "content").unwrap();
    symlink(&outside, tree.join("a/out")).unwrap();
    (directory, tree, outside)
}

#[test]
fn a_tree_is_copied_and_removed_and_no_link_is_followed() {
    // Attack P-04: symlinks in a tree.
    let (directory, tree, outside) = ground();
    fs::set_permissions(tree.join("a/b/file"), fs::Permissions::from_mode(0o751)).unwrap();
    let copy =
        |from: &Path, to: &Path, replace| ask(&FileAsk::Copy { from: path(from), to: path(to), replace });
    let second = directory.path().join("second");
    assert_eq!(count(copy(&tree, &second, false)), 5);
    assert_eq!(fs::read(second.join("a/b/file")).unwrap(), b"content");
    assert_eq!(fs::metadata(second.join("a/b/file")).unwrap().permissions().mode() & 0o777, 0o751);
    assert_eq!(fs::read_link(second.join("a/out")).unwrap(), outside);
    assert_eq!(code(copy(&tree, &second, false)), ErrorCode::Conflict, "it is there already");
    assert_eq!(
        code(copy(&tree, &tree.join("a/b/c"), false)),
        ErrorCode::Conflict,
        "a tree into itself has no end"
    );
    assert_eq!(code(remove(&second, false)), ErrorCode::Conflict, "it is not empty");
    assert_eq!(count(remove(&second, true)), 5);
    assert_eq!(count(remove(&second, true)), 0, "what is not there is fine");
    assert_eq!(fs::read(outside.join("file")).unwrap(), b"untouched");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "nothing is left beside them");
}

#[test]
fn a_thing_is_moved_and_replaces_another_only_when_asked() {
    let (directory, tree, _) = ground();
    let rename = |from: &str, to: &str, replace| {
        let (from, to) = (path(directory.path().join(from)), path(directory.path().join(to)));
        ask(&FileAsk::Move { from, to, replace })
    };
    fs::write(directory.path().join("one"), "1").unwrap();
    fs::write(directory.path().join("two"), "2").unwrap();
    assert_eq!(code(rename("one", "two", false)), ErrorCode::Conflict);
    assert_eq!(count(rename("one", "two", true)), 1);
    assert_eq!(fs::read(directory.path().join("two")).unwrap(), b"1");
    assert_eq!(count(rename("tree", "new/place", false)), 1, "the directories above are made");
    assert!(!tree.exists() && directory.path().join("new/place/a/b/file").exists());
    assert_eq!(code(rename("nothing", "x", false)), ErrorCode::NotFound);
    // Move to a different file system.
    let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
    let ask_move = FileAsk::Move {
        from: path(directory.path().join("new/place")),
        to: path(elsewhere.path().join("place")),
        replace: false,
    };
    assert_eq!(count(ask(&ask_move)), 5);
    assert!(elsewhere.path().join("place/a/b/file").exists() && !directory.path().join("new/place").exists());
}

#[test]
fn a_tree_that_is_too_deep_is_refused_and_a_wide_one_is_removed_in_pieces() {
    // Attack P-11: large and deep directories.
    let directory = tempfile::tempdir().unwrap();
    let deep = directory.path().join("deep");
    fs::create_dir(&deep).unwrap();
    let names = "d/".repeat(300);
    assert!(Command::new("mkdir").arg("-p").arg(&names).current_dir(&deep).status().unwrap().success());
    assert_eq!(code(remove(&deep, true)), ErrorCode::LimitExceeded);
    let list = FileAsk::List { path: path(&deep), depth: 256, after: None, limit: 1000 };
    let FileAnswer::Page { items, more } = ask(&list).unwrap() else { panic!() };
    assert_eq!((items.len(), more), (256, false));
    let wide = directory.path().join("wide");
    fs::create_dir(&wide).unwrap();
    for number in 0..10_000 {
        fs::File::create(wide.join(number.to_string())).unwrap();
    }
    assert_eq!(count(remove(&wide, true)), 10_001);
}

#[test]
fn directories_are_made_with_those_above_them() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("a/b/c");
    let make = || ask(&FileAsk::Make { path: path(&place) });
    assert_eq!(count(make()), 3);
    assert_eq!(count(make()), 0, "one that is there is fine");
    fs::write(directory.path().join("file"), "").unwrap();
    assert_eq!(code(ask(&FileAsk::Make { path: path(directory.path().join("file")) })), ErrorCode::Conflict);
    assert_eq!(code(ask(&FileAsk::Stat { path: path(directory.path().join("none")) })), ErrorCode::NotFound);
    assert_eq!(
        code(ask(&FileAsk::List {
            path: path(directory.path().join("file")),
            depth: 1,
            after: None,
            limit: 1
        })),
        ErrorCode::Conflict
    );
}
