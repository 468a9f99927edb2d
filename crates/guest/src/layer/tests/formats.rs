//! Tests with archives that have contradictory headers, are truncated, or expand without limit.

use std::io::Write;
use std::process::{Command, Stdio};

use super::archive::Head;
use super::*;

/// Size of a decompression bomb: larger than the size above which the compression ratio is checked.
const BOMB_BYTES: usize = 24 << 20;

/// Returns GNU tar's listing, if GNU tar is installed and accepts the archive.
fn gnu_listing(archive: &Archive) -> Option<Vec<String>> {
    let mut child = Command::new("tar")
        .args(["-tf", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut stdin = child.stdin.take()?;
    let bytes = archive.bytes.clone();
    let writer = std::thread::spawn(move || drop(stdin.write_all(&bytes)));
    let output = child.wait_with_output().ok()?;
    writer.join().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    output.status.success().then(|| text.lines().map(|line| line.trim_matches('/').to_owned()).collect())
}

/// Returns the paths of the unpacked files.
fn our_listing(top: &Path) -> Vec<String> {
    let mut names = Vec::new();
    let mut open = vec![top.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            names.push(entry.path().strip_prefix(top).unwrap().to_str().unwrap().to_owned());
            if entry.file_type().unwrap().is_dir() {
                open.push(entry.path());
            }
        }
    }
    names.sort();
    names
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn no_archive_shows_another_content_than_gnu_tar_does() {
    let inner = Archive::new().file("smuggled", "x");
    let hidden = String::from_utf8(inner.bytes.clone()).unwrap();
    let long = format!("{}/name", "d".repeat(100));
    let archives = [
        ("plain", Archive::new().file("a", "x").directory("d").file("d/b", "")),
        ("PAX size larger", Archive::new().pax(&[("size", "1024")]).file("a", "").file("b", "x")),
        ("PAX size smaller", Archive::new().pax(&[("size", "0")]).file("a", &hidden)),
        ("PAX size the same", Archive::new().pax(&[("size", "5")]).file("a", "12345").file("b", "")),
        ("PAX path", Archive::new().pax(&[("path", "other")]).file("a", "x")),
        ("PAX path twice", Archive::new().pax(&[("path", "one"), ("path", "two")]).file("a", "x")),
        ("two names", Archive::new().described(b'L', b"gnu\0").pax(&[("path", "pax")]).file("a", "x")),
        (
            "PAX on a long name",
            Archive::new().pax(&[("size", "1024")]).described(b'L', b"long\0").file("a", "x"),
        ),
        (
            "long name twice",
            Archive::new().described(b'L', b"one\0").described(b'L', b"two\0").file("a", "x"),
        ),
        ("global path", Archive::new().described(b'g', b"10 path=g\n").file("a", "x")),
        ("global comment", Archive::new().described(b'g', b"13 comment=g\n").file("a", "x")),
        ("long name", Archive::new().described(b'L', long.as_bytes()).file("short", "x")),
        (
            "directory with content",
            Archive::new().entry(&Head { kind: b'5', name: b"d", ..Head::default() }, inner.bytes.as_slice()),
        ),
        (
            "link with content",
            Archive::new().file("f", "").entry(
                &Head { kind: b'1', name: b"l", target: b"f", ..Head::default() },
                inner.bytes.as_slice(),
            ),
        ),
        ("old directory", Archive::new().file("d/", "").file("d/x", "")),
        ("unknown type", Archive::new().kind(b'Z', "z").file("a", "")),
        ("bytes after the end", Archive::new().file("a", "").end().file("b", "x")),
        ("one empty block", Archive::new().file("a", "").blocks(&[0; 512]).file("b", "x")),
        ("no end at all", Archive::new().file("a", "x")),
    ];
    let mut compared = 0;
    for (label, archive) in archives {
        let archive = if label.contains("end") || label.contains("block") { archive } else { archive.end() };
        let mut bench = Bench::new();
        if bench.layer_with(&archive).is_err() {
            continue;
        }
        let Some(listed) = gnu_listing(&archive) else { panic!("{label}: only we accept it") };
        let mut listed: Vec<String> = listed;
        // GNU tar does not list directories that no entry describes, but our unpacker creates them.
        let ours: Vec<String> = our_listing(bench.top());
        listed.extend(
            ours.iter()
                .filter(|name| ours.iter().any(|other| other.starts_with(&format!("{name}/"))))
                .cloned(),
        );
        listed.sort();
        listed.dedup();
        assert_eq!(ours, listed, "{label}");
        compared += 1;
    }
    assert!(compared >= 6, "{compared}");
}

#[test]
fn two_sizes_of_one_entry_are_refused() {
    for said in ["0", "1024", "18446744073709551615"] {
        let archive = Archive::new().pax(&[("size", said)]).file("a", "12345").end();
        assert!(refusal(&archive).message.contains("two sizes"), "{said}");
    }
    let sparse = Archive::new().pax(&[("GNU.sparse.major", "1")]).file("a", "x").end();
    assert_eq!(refusal(&sparse).code, ErrorCode::InvalidRequest);
    assert_eq!(refusal(&Archive::new().kind(b'S', "s").end()).code, ErrorCode::InvalidRequest);
}

#[test]
fn an_archive_that_breaks_off_is_refused() {
    let whole = Archive::new().file("a", &"x".repeat(2000)).end();
    for length in [100, 512, 700, 2000, 2500] {
        let cut = Archive { bytes: whole.bytes[..length].to_vec() };
        assert_eq!(refusal(&cut).code, ErrorCode::InvalidRequest, "{length}");
    }
    let dangling = Archive::new().pax(&[("path", "x")]).end();
    assert_eq!(refusal(&dangling).code, ErrorCode::InvalidRequest);
    let packed = gzip(&whole.bytes);
    let error = Bench::new().packed(&packed[..packed.len() - 10], Compression::Gzip, false).unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidRequest);
    assert!(Bench::new().packed(b"no gzip", Compression::Gzip, false).is_err());
    assert!(Bench::new().packed(b"no zstd", Compression::Zstd, false).is_err());
}

#[test]
fn zeros_of_a_file_stay_a_hole_and_its_content_is_the_same() {
    // Verifies that attack U-20 fails: runs of zeros become holes, which take no disk space.
    let zeros = "\0".repeat(8 << 20);
    for content in
        [zeros.clone(), format!("{zeros}end"), format!("begin{zeros}"), format!("a{zeros}b{zeros}c")]
    {
        let (bench, _) = unpacked(&Archive::new().file("a", &content).end());
        let file = bench.top().join("a");
        assert!(std::fs::read(&file).unwrap() == content.as_bytes());
        let taken = std::fs::metadata(&file).unwrap().blocks() * 512;
        assert!(taken < 1 << 20, "{taken} bytes of the disk");
    }
}

#[test]
fn a_wrong_checksum_is_refused() {
    let mut archive = Archive::new().file("a", "x").end();
    archive.bytes[0] = b'b';
    assert_eq!(refusal(&archive).code, ErrorCode::InvalidRequest);
}

#[test]
fn long_names_work_and_endless_ones_are_refused() {
    let long = format!("{}/{}", "d".repeat(200), "f".repeat(100));
    for archive in [
        Archive::new().described(b'L', format!("{long}\0").as_bytes()).file("short", "x"),
        Archive::new().pax(&[("path", &long)]).file("short", "x"),
    ] {
        let (bench, _) = unpacked(&archive.end());
        assert!(bench.top().join(&long).is_file());
    }
    let endless = "a/".repeat((1 << 20) / 2 - 8);
    for archive in [
        Archive::new().described(b'L', endless.as_bytes()).file("short", "x"),
        Archive::new().pax(&[("path", &endless)]).file("short", "x"),
        Archive::new().head(&Head { kind: b'x', size: 8 << 30, ..Head::default() }),
        Archive::new().head(&Head { kind: b'L', size: (1 << 20) + 1, ..Head::default() }),
    ] {
        assert_eq!(refusal(&archive.end()).code, ErrorCode::LimitExceeded);
    }
}

#[test]
fn owners_and_times_outside_their_range_are_refused_or_held() {
    let owner = |uid: u64| Archive::new().head(&Head { name: b"a", uid, ..Head::default() }).end();
    for uid in [65_536, u64::from(u32::MAX), u64::MAX >> 8] {
        assert_eq!(refusal(&owner(uid)).code, ErrorCode::LimitExceeded, "{uid}");
    }
    let archive = Archive::new().pax(&[("uid", "4294967295")]).file("a", "x").end();
    assert_eq!(refusal(&archive).code, ErrorCode::LimitExceeded);
    let archive = Archive::new().head(&Head { name: b"a", mtime: 1 << 34, ..Head::default() }).end();
    let (bench, _) = unpacked(&archive);
    assert_eq!(fs::metadata(bench.top().join("a")).unwrap().mtime(), i64::from(u32::MAX));
}

#[test]
fn extended_attributes_are_left_out_and_counted() {
    let records =
        [("SCHILY.xattr.user.overlay.opaque", "y"), ("SCHILY.xattr.security.capability", "\u{1}\n")];
    let archive = Archive::new().pax(&records).directory("d").end();
    let (bench, report) = unpacked(&archive);
    assert_eq!(report.skipped.attributes, 2);
    let mut value = [0; 8];
    assert!(rustix::fs::getxattr(bench.top().join("d"), "user.overlay.opaque", &mut value).is_err());
}

#[test]
fn packed_layers_have_the_digest_of_what_is_inside() {
    let archive = Archive::new().file("a", &"x".repeat(100_000)).end();
    let plain = unpacked(&archive).1;
    let (first, second) = archive.bytes.split_at(1000);
    // Two consecutive gzip members form one layer.
    let packed = [gzip(first), gzip(second)].concat();
    let report = Bench::new().packed(&packed, Compression::Gzip, false).unwrap();
    assert_eq!(report, plain);
    let frames = (zstd(first), zstd(second));
    let skipped = [&[0x50, 0x2a, 0x4d, 0x18, 4, 0, 0, 0][..], b"note"].concat();
    let packed = [frames.0, skipped, frames.1].concat();
    assert_eq!(Bench::new().packed(&packed, Compression::Zstd, false).unwrap(), plain);
}

#[test]
fn what_grows_without_end_is_stopped_early() {
    let zeros = "\0".repeat(BOMB_BYTES);
    let bomb = Archive::new().file("zeros", &zeros).end();
    let error = Bench::new().packed(&gzip(&bomb.bytes), Compression::Gzip, false).unwrap_err();
    assert_eq!(error.code, ErrorCode::LimitExceeded, "{error}");
    assert!(error.message.contains("ratio"), "{error}");
    // The uncompressed archive is accepted.
    assert!(Bench::new().layer_with(&bomb).is_ok());
    let packed = zstd(&bomb.bytes);
    let error = Bench::new().packed(&packed, Compression::Zstd, false).unwrap_err();
    assert_eq!(error.code, ErrorCode::LimitExceeded, "{error}");
}

#[test]
fn a_zstandard_window_of_two_gibibytes_is_refused() {
    // Magic number, a header without a content size, and a window of 2^31 bytes.
    let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa8, 0x01, 0x00, 0x00];
    let error = Bench::new().packed(&frame, Compression::Zstd, false).unwrap_err();
    assert_eq!(error.code, ErrorCode::LimitExceeded, "{error}");
}

/// Compresses with the machine's own tool, because the guest only decompresses.
fn zstd(bytes: &[u8]) -> Vec<u8> {
    let mut command = Command::new("zstd");
    let mut child = command
        .args(["-q", "-c"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("zstd, which `just setup` installs");
    let mut stdin = child.stdin.take().unwrap();
    let bytes = bytes.to_vec();
    let writer = std::thread::spawn(move || drop(stdin.write_all(&bytes)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}
