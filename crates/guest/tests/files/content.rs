//! Tests of reading, writing, hashing and editing.

use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::{Duration, Instant};

use api::files::{FileInfo, FileKind, Hash, Hashing};

use super::*;

fn write(path: FilePath, offset: Option<u64>) -> FileAsk {
    FileAsk::Write { path, offset, mode: None, sha256: None, digest: Hashing::Sha256 }
}

fn read(path: FilePath) -> FileAsk {
    FileAsk::Read { path, from: 0, to: None, version: None, digest: Hashing::Sha256 }
}

fn hash(path: FilePath) -> FileAsk {
    FileAsk::Hash { path, digest: Hashing::Sha256 }
}

fn whole(answer: FileAnswer) -> (FileInfo, Hash) {
    let FileAnswer::Whole { info, hash } = answer else { panic!("{answer:?}") };
    (info, hash)
}

#[test]
fn any_bytes_under_any_name_come_back_as_they_were() {
    // Attack P-10: file names with special characters.
    let directory = tempfile::tempdir().unwrap();
    let names: [&[u8]; 12] = [
        b"plain",
        b"with space ",
        b"new\nline\ttab",
        b"\x1b]0;pwn\x07",
        b"--rf",
        b"$(id)",
        b"'; drop",
        b"\xff\xfe\x80",
        "\u{202e}bidi".as_bytes(),
        "e\u{301}".as_bytes(),
        b"...",
        &[0xff; 255],
    ];
    let contents: [&[u8]; 4] = [b"", b"a\0b", b"\x89PNG\r\n\x1a\n", &[0xff; 1_000_000]];
    for (number, name) in names.iter().enumerate() {
        let place = directory.path().join(std::ffi::OsString::from_vec(name.to_vec()));
        let bytes = contents[number % contents.len()];
        let (info, sum) = whole(send(&write(path(&place), None), bytes).unwrap());
        assert_eq!(info.exact().unwrap(), path(&place), "{name:?}");
        assert_eq!(fs::read(&place).unwrap(), bytes, "{name:?}");
        let (_, back, end) = fetch(&read(path(&place))).unwrap();
        assert_eq!(back, bytes, "{name:?}");
        assert_eq!(end, FileEnd::Read { hash: sum.clone(), changed: false });
        assert_eq!(whole(ask(&hash(path(&place))).unwrap()).1, sum);
    }
    let long = directory.path().join("x".repeat(256));
    assert_eq!(code(send(&write(path(long), None), b"x")), ErrorCode::InvalidRequest);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), names.len(), "nothing is left beside them");
}

#[test]
fn a_file_is_replaced_whole_or_not_at_all() {
    // Verifies that attack U-08 fails: only complete and correct content replaces a file.
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("deep/er/file");
    send(&write(path(&place), None), b"first").unwrap();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o750)).unwrap();
    let mut served = Served::new(&write(path(&place), None));
    served.data(b"half of the sec");
    served.cut();
    assert_eq!(served.head().unwrap_err().code, ErrorCode::InvalidRequest);
    assert_eq!(fs::read(&place).unwrap(), b"first", "what broke off is not shown");
    let mut wrong = write(path(&place), None);
    let FileAsk::Write { sha256, .. } = &mut wrong else { panic!() };
    *sha256 = Some("0".repeat(64));
    assert_eq!(code(send(&wrong, b"second")), ErrorCode::Conflict);
    assert_eq!(fs::read(&place).unwrap(), b"first", "neither is what has another digest");
    send(&write(path(&place), None), b"second").unwrap();
    assert_eq!(fs::read(&place).unwrap(), b"second");
    assert_eq!(fs::metadata(&place).unwrap().permissions().mode() & 0o777, 0o750, "it keeps its permissions");
    assert_eq!(fs::read_dir(place.parent().unwrap()).unwrap().count(), 1, "nothing is left beside it");
}

#[test]
fn a_write_goes_on_where_it_broke_off() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("file");
    let bytes: Vec<u8> = (0..3_000_000u32).map(|number| number.to_le_bytes()[0] ^ 0x5a).collect();
    let mut served = Served::new(&write(path(&place), Some(0)));
    served.data(&bytes[..1_500_000]);
    served.cut();
    assert!(served.head().is_err());
    let size = fs::metadata(&place).unwrap().len();
    assert_eq!(size, 1_500_000, "what arrived stays");
    assert_eq!(
        code(send(&write(path(&place), Some(size + 1)), b"x")),
        ErrorCode::Conflict,
        "not beyond its end"
    );
    let (info, sum) = whole(send(&write(path(&place), Some(size)), &bytes[1_500_000..]).unwrap());
    assert_eq!((info.size_bytes, fs::read(&place).unwrap() == bytes), (3_000_000, true));
    assert_eq!(whole(ask(&hash(path(&place))).unwrap()).1, sum, "the digest is of all of it");
}

#[test]
fn the_hash_that_is_asked_for_is_told_on_every_way_to_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("file");
    let bytes: Vec<u8> = (0..700_000u32).map(|number| number.to_le_bytes()[1]).collect();
    let of = |digest| {
        let path = path(&place);
        let write = |offset| FileAsk::Write { path: path.clone(), offset, mode: None, sha256: None, digest };
        let mut told = vec![
            whole(send(&write(None), &bytes).unwrap()).1,
            whole(send(&write(Some(0)), &bytes).unwrap()).1,
            whole(send(&write(Some(500_000)), &bytes[500_000..]).unwrap()).1,
            whole(ask(&FileAsk::Hash { path: path.clone(), digest }).unwrap()).1,
        ];
        let read = FileAsk::Read { path: path.clone(), from: 0, to: None, version: None, digest };
        let (_, _, end) = fetch(&read).unwrap();
        let FileEnd::Read { hash, changed: false } = end else { panic!("{end:?}") };
        assert!(told.iter().all(|one| *one == hash), "{told:?} {hash:?}");
        told.remove(0)
    };
    assert_eq!(of(Hashing::Blake3), Hash::Blake3(blake3::hash(&bytes).to_string()));
    let sum = Command::new("sha256sum").arg(&place).output().unwrap().stdout;
    assert_eq!(of(Hashing::Sha256), Hash::Sha256(String::from_utf8_lossy(&sum[..64]).into_owned()));
    let mut both = write(path(&place), None);
    let FileAsk::Write { sha256, digest, .. } = &mut both else { panic!() };
    (*sha256, *digest) = (Some("0".repeat(64)), Hashing::Blake3);
    assert_eq!(code(send(&both, b"x")), ErrorCode::InvalidRequest, "one hash is made and no second one");
}

#[test]
fn what_is_no_regular_file_is_neither_read_nor_replaced_and_nothing_blocks() {
    // Attacks P-02, P-03, P-07 and P-08: symlinks, FIFOs, sockets and devices where a regular file is
    // expected.
    let directory = tempfile::tempdir().unwrap();
    let secret = directory.path().join("secret");
    fs::write(&secret, "untouched").unwrap();
    let at = |name: &str| directory.path().join(name);
    symlink(&secret, at("link")).unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    symlink("itself", at("itself")).unwrap();
    assert!(Command::new("mkfifo").arg(at("fifo")).status().unwrap().success());
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    for name in ["link", "dangling", "itself", "fifo", "socket", "."] {
        let begun = Instant::now();
        let refused = fetch(&read(path(at(name)))).map(|(head, _, _)| head);
        assert_eq!(code(refused), ErrorCode::NotRegular, "{name}");
        assert_eq!(code(send(&write(path(at(name)), None), b"x")), ErrorCode::NotRegular, "{name}");
        assert_eq!(code(send(&write(path(at(name)), Some(0)), b"x")), ErrorCode::NotRegular, "{name}");
        assert!(begun.elapsed() < Duration::from_secs(2), "{name} blocked");
    }
    assert_eq!(code(fetch(&read(path("/dev/zero"))).map(|(head, _, _)| head)), ErrorCode::NotRegular);
    assert_eq!(fs::read(&secret).unwrap(), b"untouched");
    let FileAnswer::Info { info } = ask(&FileAsk::Stat { path: path(at("link")) }).unwrap() else { panic!() };
    assert_eq!((info.kind, info.target), (FileKind::Symlink, secret.to_str().map(str::to_owned)));
    assert!(!at("nowhere").exists(), "nothing was written through a link");
}

#[test]
fn ranges_and_versions_are_kept() {
    // Attack P-09: a file changes between two reads.
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("file");
    fs::write(&place, "0123456789").unwrap();
    let range = |from, to, version: Option<String>| FileAsk::Read {
        path: path(&place),
        from,
        to,
        version,
        digest: Hashing::Sha256,
    };
    let (head, bytes, _) = fetch(&range(2, Some(5), None)).unwrap();
    assert_eq!(bytes, b"234");
    let FileAnswer::Content { info, from, to } = head else { panic!() };
    assert_eq!((from, to, info.size_bytes), (2, 5, 10));
    assert_eq!(fetch(&range(8, Some(100), Some(info.version.clone()))).unwrap().1, b"89");
    assert_eq!(fetch(&range(50, None, None)).unwrap().1, b"");
    fs::write(&place, "another one").unwrap();
    let refused = fetch(&range(0, None, Some(info.version))).map(|(head, _, _)| head);
    assert_eq!(code(refused), ErrorCode::Conflict, "another version is not mixed in");
}

#[test]
fn a_file_that_becomes_shorter_is_not_taken_for_whole() {
    // Attack P-09: a file becomes shorter during a read.
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("file");
    fs::write(&place, vec![7; 30_000_000]).unwrap();
    let mut served = Served::new(&read(path(&place)));
    served.part(PartKind::End, b"{}");
    served.head().unwrap();
    fs::File::options().write(true).open(&place).unwrap().set_len(10).unwrap();
    let end = loop {
        if let Got::End(end) = served.next().unwrap() {
            break end;
        }
    };
    let FileEnd::Failed { error } = end else { panic!("{end:?}") };
    assert_eq!(error.code, ErrorCode::Conflict);
}

#[test]
fn an_edit_replaces_exactly_one_place_or_says_why_not() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("code.py");
    fs::write(&place, "a = 1\nb = 1\n").unwrap();
    let edit = |old: &str, new: &str, all| {
        let (old, new) = (old.to_owned(), new.to_owned());
        ask(&FileAsk::Edit { path: path(&place), old, new, all })
    };
    let error = edit("1", "2", false).unwrap_err();
    assert!(error.code == ErrorCode::Conflict && error.message.contains("2 times"), "{error:?}");
    assert!(edit("c", "d", false).unwrap_err().message.contains("does not contain the text"));
    assert_eq!(edit("a = 1", "a = 3", false), Ok(FileAnswer::Edited { count: 1 }));
    assert_eq!(edit(" = ", "=", true), Ok(FileAnswer::Edited { count: 2 }));
    assert_eq!(fs::read(&place).unwrap(), b"a=3\nb=1\n");
}
