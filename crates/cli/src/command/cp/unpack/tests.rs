//! Tests of unpacking, with archives as a hostile sandbox would send them.

use std::os::unix::fs::PermissionsExt as _;

use tar::{Builder, EntryType, Header};

use super::*;

fn entry(builder: &mut Builder<Vec<u8>>, kind: u8, name: &[u8], target: &[u8], content: &[u8]) {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::new(kind));
    header.set_mode(0o4777);
    header.set_size(content.len() as u64);
    // The fields are set as raw bytes, because the library's setters reject the names that an attacker
    // would use.
    header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name);
    header.as_gnu_mut().unwrap().linkname[..target.len()].copy_from_slice(target);
    header.set_cksum();
    builder.append(&header, content).unwrap();
}

pub(super) type Lines<'a> = &'a [(u8, &'a [u8], &'a [u8], &'a [u8])];

pub(super) fn archive(entries: Lines<'_>) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (kind, name, target, content) in entries {
        entry(&mut builder, *kind, name, target, content);
    }
    builder.into_inner().unwrap()
}

/// Creates a directory to unpack into, and a sibling directory that must not change.
pub(super) fn ground() -> tempfile::TempDir {
    let ground = tempfile::tempdir().unwrap();
    std::fs::create_dir(ground.path().join("outside")).unwrap();
    std::fs::write(ground.path().join("outside/kept"), "kept").unwrap();
    std::fs::set_permissions(ground.path().join("outside"), std::fs::Permissions::from_mode(0o711)).unwrap();
    ground
}

pub(super) fn unpack(ground: &Path, bytes: &[u8]) -> Result<Unpacked, Error> {
    let done = DirectoryUnpacker::new(&ground.join("inside"), None)?.unpack(bytes);
    let mut names: Vec<_> =
        std::fs::read_dir(ground).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["inside", "outside"]);
    let outside = ground.join("outside");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
    assert_eq!(std::fs::read(outside.join("kept")).unwrap(), b"kept");
    assert_eq!(std::fs::metadata(&outside).unwrap().permissions().mode() & 0o777, 0o711);
    done
}

#[test]
fn what_our_packer_writes_is_unpacked_as_it_was() {
    let ground = ground();
    let source = ground.path().join("outside").join("..").join("inside-source");
    std::fs::create_dir_all(source.join("a/b")).unwrap();
    let long = "n".repeat(200);
    std::fs::write(source.join("a/b").join(&long), "deep").unwrap();
    std::fs::write(source.join("run.sh"), "#!").unwrap();
    std::fs::set_permissions(source.join("run.sh"), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink("a/b", source.join("link")).unwrap();
    let mut bytes = Vec::new();
    super::super::pack::pack(&source, &mut bytes).unwrap();
    std::fs::remove_dir_all(&source).unwrap();
    let unpacked = unpack(ground.path(), &bytes).unwrap();
    assert_eq!((unpacked.bytes, unpacked.left_out), (6, 0));
    let inside = ground.path().join("inside");
    assert_eq!(std::fs::read(inside.join("link").join(long)).unwrap(), b"deep");
    assert_eq!(std::fs::metadata(inside.join("run.sh")).unwrap().permissions().mode() & 0o111, 0o111);
    assert!(unpack(ground.path(), &bytes).is_ok(), "a second time over the first");
}

/// Verifies that attacks U-02 and U-05 fail: nothing outside the target directory is changed or followed.
#[test]
fn a_hostile_archive_touches_nothing_outside_its_directory() {
    let plans: &[Lines<'_>] = &[
        &[(b'0', b"../x", b"", b"x")],
        &[(b'0', b"a/../../x", b"", b"x")],
        &[(b'0', b"/tmp/bellglass-x", b"", b"x")],
        &[(b'5', b"../x", b"", b"")],
        &[(b'1', b"x", b"../outside/kept", b"")],
        &[(b'1', b"x", b"/etc/passwd", b"")],
        &[(b'3', b"x", b"", b"")],
        &[(b'4', b"x", b"", b"")],
        &[(b'6', b"x", b"", b"")],
        &[(b'S', b"x", b"", b"")],
        &[(b'x', b"x", b"", b"18 path=../outside\n")],
        &[(b'g', b"x", b"", b"18 path=../outside\n")],
        &[(b'L', b"././@LongLink", b"", b"../outside/kept\0"), (b'0', b"x", b"", b"x")],
    ];
    for plan in plans {
        let ground = ground();
        assert!(unpack(ground.path(), &archive(plan)).is_err(), "{plan:?}");
    }
    // Symlinks that lead out of the directory are skipped. Entries below such a symlink are created
    // inside the directory, or fail the copy.
    for target in [&b"../outside"[..], b"/tmp", b"a/../../outside", b"../../x"] {
        let ground = ground();
        let plan: Lines<'_> = &[(b'2', b"x", target, b""), (b'0', b"x/kept", b"", b"changed")];
        let unpacked = unpack(ground.path(), &archive(plan)).unwrap();
        assert_eq!(unpacked.left_out, 1);
        assert_eq!(std::fs::read(ground.path().join("inside/x/kept")).unwrap(), b"changed");
    }
}

#[test]
fn no_symlink_is_followed_whoever_has_put_it_there() {
    // No symlink is followed: neither a symlink to a path inside, which the archive created, nor an
    // existing symlink to a path outside.
    let ground = ground();
    let two: Lines<'_> = &[(b'5', b"a", b"", b""), (b'2', b"b", b"a", b""), (b'0', b"b/x", b"", b"x")];
    assert!(unpack(ground.path(), &archive(two)).is_err());
    let inside = ground.path().join("inside");
    std::os::unix::fs::symlink("../outside", inside.join("c")).unwrap();
    assert!(unpack(ground.path(), &archive(&[(b'0', b"c/kept", b"", b"x")])).is_err());
    assert!(unpack(ground.path(), &archive(&[(b'5', b"c", b"", b"")])).is_err());
    std::os::unix::fs::symlink("../outside/kept", inside.join("d")).unwrap();
    assert!(unpack(ground.path(), &archive(&[(b'0', b"d", b"", b"x")])).is_ok());
    assert!(inside.join("d").symlink_metadata().unwrap().is_file(), "the symlink was replaced");
}

#[test]
fn a_sandbox_is_not_blamed_for_what_was_here_before() {
    let ground = ground();
    std::fs::write(ground.path().join("mine"), "x").unwrap();
    std::os::unix::fs::symlink("outside", ground.path().join("link")).unwrap();
    for name in ["mine", "link"] {
        let error = DirectoryUnpacker::new(ground.path(), Some(name.as_bytes())).err().unwrap();
        assert!(error.message.contains("on this machine") && !error.fix.contains("trust"), "{error:?}");
    }
}

#[test]
fn what_follows_the_end_of_an_archive_is_read_and_bounded() {
    let mut bytes = archive(&[(b'0', b"x", b"", b"x")]);
    bytes.extend(vec![0; 10 << 10]);
    let mut rest = bytes.as_slice();
    let ground = ground();
    DirectoryUnpacker::new(&ground.path().join("inside"), None).unwrap().unpack(&mut rest).unwrap();
    assert!(rest.is_empty());
    bytes.extend(vec![0; 2 << 20]);
    assert!(unpack(ground.path(), &bytes).is_err());
}

#[test]
fn a_symlink_stays_inside_whatever_the_others_do() {
    for (target, depth, wanted) in [
        ("a", 0, true),
        ("../a", 1, true),
        ("../a", 0, false),
        ("a/../b", 1, false),
        ("./../a", 1, true),
        ("../../a", 1, false),
        ("/a", 3, false),
        ("", 0, false),
    ] {
        assert_eq!(stays_inside(target.as_bytes(), depth), wanted, "{target}");
    }
}

#[test]
fn an_archive_that_breaks_off_leaves_no_half_file() {
    let whole = archive(&[(b'0', b"x", b"", &[7; 2000])]);
    for at in (0..2500).step_by(100) {
        let ground = ground();
        let _ = unpack(ground.path(), &whole[..at]);
        let inside = ground.path().join("inside");
        assert_eq!(std::fs::read_dir(inside).unwrap().count(), 0, "{at}");
    }
}
