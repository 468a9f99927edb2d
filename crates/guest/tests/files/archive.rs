//! Tests of packing and unpacking, including untrusted archives.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};

use api::files::ArchiveReport;
use api::layer::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, EntryType, Header};

use super::*;

fn unpack(place: &Path, bytes: &[u8], compression: Compression) -> Result<ArchiveReport, Error> {
    let answer = send(&FileAsk::Unpack { path: path(place), compression }, bytes)?;
    let FileAnswer::Unpacked { report } = answer else { panic!("{answer:?}") };
    Ok(report)
}

fn pack(place: &Path, compression: Compression) -> (Vec<u8>, ArchiveReport) {
    let (_, bytes, end) = fetch(&FileAsk::Pack { path: path(place), compression }).unwrap();
    let FileEnd::Packed { report } = end else { panic!("{end:?}") };
    (bytes, report)
}

/// Returns an archive with one entry, whose name is not checked.
fn entry(name: &[u8], kind: EntryType, target: &[u8], content: &[u8]) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.as_old_mut().linkname[..target.len()].copy_from_slice(target);
    header.set_entry_type(kind);
    header.set_mode(0o6755);
    header.set_uid(4_000_000_000);
    header.set_gid(4_000_000_000);
    header.set_size(content.len() as u64);
    header.set_cksum();
    let mut builder = Builder::new(Vec::new());
    builder.append(&header, content).unwrap();
    builder.into_inner().unwrap()
}

/// Combines the entries of several archives into one.
fn joined(archives: &[Vec<u8>]) -> Vec<u8> {
    let mut all: Vec<u8> = archives.iter().flat_map(|one| one[..one.len() - 1024].to_vec()).collect();
    all.extend([0; 1024]);
    all
}

#[test]
fn a_tree_comes_back_from_an_archive_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let (from, to) = (directory.path().join("from"), directory.path().join("to"));
    let deep = from.join("d".repeat(200)).join("e".repeat(200));
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join(std::ffi::OsStr::from_bytes(b"\xff\x80")), [0, 255, 10]).unwrap();
    fs::write(from.join("empty"), "").unwrap();
    fs::write(from.join("run.sh"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(from.join("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("/etc/passwd", from.join("link")).unwrap();
    assert!(Command::new("mkfifo").arg(from.join("fifo")).status().unwrap().success());
    for compression in [Compression::None, Compression::Gzip] {
        let (bytes, packed) = pack(&from, compression);
        assert_eq!((packed.entries, packed.skipped, packed.changed), (6, 1, 0), "{compression:?}");
        let unpacked = unpack(&to, &bytes, compression).unwrap();
        assert_eq!((unpacked.entries, unpacked.bytes), (6, packed.bytes), "{compression:?}");
        let same =
            Command::new("diff").args(["-r", "--no-dereference", "-x", "fifo"]).args([&from, &to]).output();
        assert!(same.unwrap().stdout.is_empty(), "{compression:?}");
        assert_eq!(fs::metadata(to.join("run.sh")).unwrap().permissions().mode() & 0o7777, 0o755);
    }
    let listed = Command::new("tar").arg("-tf").arg("-").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut listed = listed.unwrap();
    listed.stdin.take().unwrap().write_all(&pack(&from, Compression::None).0).unwrap();
    let names = String::from_utf8(listed.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(names.lines().count(), 6, "GNU tar reads it: {names}");
}

#[test]
fn nothing_of_a_strangers_archive_lands_outside_and_no_mode_is_changed_there() {
    // Attacks U-02 and U-05: archives with entries that lead outside the target directory.
    let directory = tempfile::tempdir().unwrap();
    let (to, outside) = (directory.path().join("to"), directory.path().join("outside"));
    fs::create_dir(&outside).unwrap();
    fs::set_permissions(&outside, fs::Permissions::from_mode(0o751)).unwrap();
    fs::write(outside.join("file"), "untouched").unwrap();
    let target = outside.to_str().unwrap().as_bytes();
    let refused: [Vec<u8>; 6] = [
        entry(b"../x", EntryType::Regular, b"", b"x"),
        entry(b"a/../../x", EntryType::Regular, b"", b"x"),
        joined(&[entry(b"l", EntryType::Symlink, target, b""), entry(b"l/x", EntryType::Regular, b"", b"x")]),
        joined(&[entry(b"l", EntryType::Symlink, target, b""), entry(b"l/", EntryType::Directory, b"", b"")]),
        entry(b"h", EntryType::Link, b"../outside/file", b""),
        joined(&[entry(b"m", EntryType::Symlink, target, b""), entry(b"h", EntryType::Link, b"m/file", b"")]),
    ];
    for (number, bytes) in refused.iter().enumerate() {
        assert!(unpack(&to.join(number.to_string()), bytes, Compression::None).is_err(), "{number}");
    }
    let fine = joined(&[
        entry(b"/absolute", EntryType::Regular, b"", b"x"),
        entry(b"device", EntryType::Char, b"", b""),
        entry(b"fifo", EntryType::Fifo, b"", b""),
    ]);
    let report = unpack(&to.join("fine"), &fine, Compression::None).unwrap();
    assert_eq!((report.entries, report.skipped), (1, 2), "devices and FIFOs are left out and counted");
    let absolute = fs::metadata(to.join("fine/absolute")).unwrap();
    assert_eq!(absolute.permissions().mode() & 0o7777, 0o755, "no set-user-id bit");
    assert_eq!(fs::read(outside.join("file")).unwrap(), b"untouched");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    assert_eq!(fs::metadata(&outside).unwrap().permissions().mode() & 0o7777, 0o751);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
}

#[test]
fn an_archive_that_breaks_off_or_bursts_is_refused() {
    // Attacks U-01 and U-03: truncated and malformed archives.
    let directory = tempfile::tempdir().unwrap();
    let whole = entry(b"file", EntryType::Regular, b"", &[b'x'; 5000]);
    for cut in [100, 600, 3000] {
        assert!(unpack(directory.path(), &whole[..cut], Compression::None).is_err(), "{cut}");
    }
    let mut served =
        Served::new(&FileAsk::Unpack { path: path(directory.path()), compression: Compression::None });
    served.data(&whole);
    served.cut();
    assert!(served.head().is_err(), "without the word that this was all");
    assert!(
        unpack(directory.path(), b"no archive at all, and long enough to be one\n", Compression::Gzip)
            .is_err()
    );
    let mut garbage = whole;
    garbage.extend(b"trailing");
    assert!(unpack(directory.path(), &garbage, Compression::None).is_err());
    // A decompression bomb is stopped early, although the compressed bytes arrive all at once.
    let bomb = entry(b"zeros", EntryType::Regular, b"", &vec![0; 100 << 20]);
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(&bomb).unwrap();
    let error = unpack(directory.path(), &encoder.finish().unwrap(), Compression::Gzip).unwrap_err();
    assert!(error.message.contains("compression ratio"), "{error:?}");
    let written = fs::metadata(directory.path().join("zeros")).unwrap().len();
    assert!(written < 32 << 20, "{written} bytes were written");
}

#[test]
fn what_failed_half_way_says_that_something_was_done() {
    let directory = tempfile::tempdir().unwrap();
    let half = joined(&[
        entry(b"first", EntryType::Regular, b"", b"here"),
        entry(b"../outside", EntryType::Regular, b"", b"refused"),
    ]);
    let error = unpack(directory.path(), &half, Compression::None).unwrap_err();
    assert_eq!(error.ran, api::Ran::Yes, "{error:?}");
    assert_eq!(fs::read(directory.path().join("first")).unwrap(), b"here");
    let none = entry(b"../outside", EntryType::Regular, b"", b"refused");
    let error = unpack(directory.path(), &none, Compression::None).unwrap_err();
    assert_eq!(error.ran, api::Ran::No, "{error:?}");
}
