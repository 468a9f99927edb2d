//! Attacks P-15, U-01, U-02, U-03, U-05 and U-09: untrusted archives.

use std::io::Write as _;

use api::ErrorCode;
use api::layer::Compression;
use api::limits::Limits;
use api::sandbox::CreateSandbox;
use client::Error;
use e2e::attack;
use e2e::service::{small, small_limits};
use flate2::write::GzEncoder;
use tar::{Builder, EntryType, Header};

use super::ground::{Ground, code, each, each_with, path};

/// Maximum memory growth of the server while it processes a decompression bomb.
const MEMORY_BYTES: u64 = 64 << 20;

/// Returns an archive entry whose header fields are not checked.
fn entry(name: &[u8], kind: EntryType, target: &[u8], content: &[u8]) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.as_old_mut().linkname[..target.len()].copy_from_slice(target);
    header.set_entry_type(kind);
    header.set_mode(0o6777);
    header.set_size(content.len() as u64);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn archive(entries: &[Vec<u8>]) -> Vec<u8> {
    [entries.concat(), vec![0; 1024]].concat()
}

fn gzipped(bytes: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::best());
    bytes.for_each(|piece| encoder.write_all(&piece).unwrap());
    encoder.finish().unwrap()
}

async fn unpack(ground: &Ground, to: &str, bytes: &[u8], compression: Compression) -> Result<u64, Error> {
    let report = ground.files.unpack(&path(to), compression, &mut &bytes[..]).await?;
    Ok(report.entries)
}

/// Uncompressed size of the decompression bomb.
const BOMB_BYTES: u64 = 300 << 20;
/// Maximum number of bytes that a bomb writes before it is stopped: the guest checks the ratio after 16 MiB.
const BOMB_WRITTEN_MAX: u64 = 32 << 20;

/// Verifies that attack U-01 fails: a decompression bomb is stopped because of its compression ratio, on a
/// disk that is larger than the bomb.
#[test]
#[ignore = "starts real sandboxes"]
fn a_bomb_is_stopped_by_its_ratio_before_it_fills_the_disk() {
    let limits = Limits { disk_bytes: 512 << 20, memory_bytes: 256 << 20, ..small_limits() };
    each_with(&CreateSandbox { limits: limits.into(), ..small() }, async |ground| {
        let before = ground.memory_bytes();
        let mut header = Header::new_gnu();
        header.set_path("bomb").unwrap();
        header.set_size(BOMB_BYTES);
        header.set_mode(0o644);
        header.set_cksum();
        let zeros = std::iter::repeat_with(|| vec![0; 1 << 20]).take((BOMB_BYTES >> 20) as usize);
        let parts = std::iter::once(header.as_bytes().to_vec()).chain(zeros);
        let bomb = gzipped(parts.chain(std::iter::once(vec![0; 1024])));
        let written =
            async |ground: &Ground| -> u64 { ground.run("stat -c %s into/bomb").await.parse().unwrap() };
        // Control: without the defence, the same archive fills the disk with its whole content.
        let control = ground.without_defence("U-01").await;
        assert_eq!(unpack(&control, "into", &bomb, Compression::Gzip).await.unwrap(), 1, "control");
        assert_eq!(written(&control).await, BOMB_BYTES, "control");
        control.end().await;
        let Err(Error::Refused(refused)) = unpack(ground, "into", &bomb, Compression::Gzip).await else {
            panic!("a bomb was unpacked")
        };
        assert!(refused.message.contains("compression ratio"), "{refused:?}");
        let stopped_after = written(ground).await;
        assert!((1..BOMB_WRITTEN_MAX).contains(&stopped_after), "{stopped_after} bytes were written");
        let nested = gzipped(std::iter::once(gzipped(std::iter::repeat_with(|| vec![0; 1 << 20]).take(64))));
        let done = unpack(ground, "nested", &nested, Compression::Gzip).await;
        assert_eq!(code(done), ErrorCode::InvalidRequest, "what is packed twice is no archive");
        // This Zstandard frame requires a window of 2 GiB.
        let window = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa8, 0x01, 0, 0];
        let done = unpack(ground, "window", &window, Compression::Zstd).await;
        assert_eq!(code(done), ErrorCode::LimitExceeded);
        let grown = ground.memory_bytes().saturating_sub(before);
        assert!(grown < MEMORY_BYTES, "{grown}");
        ground.run("rm -rf into nested window").await;
        let figures = format!("stopped after {stopped_after} bytes, {} MiB more in the server", grown >> 20);
        ground.held("U-01", &figures);
    });
}

/// Verifies that attacks U-02 and U-05 fail: unpacking an archive neither creates nor changes anything
/// outside its target directory.
#[test]
#[ignore = "starts real sandboxes"]
fn nothing_of_an_archive_lands_outside_its_directory() {
    each(async |ground| {
        ground.run("mkdir outside && chmod 751 outside && echo untouched > outside/file").await;
        let there = b"/workspace/outside";
        let attacks: Vec<(&str, Vec<u8>)> = vec![
            ("dots", archive(&[entry(b"../outside/x", EntryType::Regular, b"", b"x")])),
            ("inner dots", archive(&[entry(b"a/../../outside/x", EntryType::Regular, b"", b"x")])),
            (
                "through a link",
                archive(&[
                    entry(b"l", EntryType::Symlink, there, b""),
                    entry(b"l/x", EntryType::Regular, b"", b"x"),
                ]),
            ),
            (
                "mode through a link",
                archive(&[
                    entry(b"l", EntryType::Symlink, there, b""),
                    entry(b"l/", EntryType::Directory, b"", b""),
                ]),
            ),
            ("hard link out", archive(&[entry(b"h", EntryType::Link, b"../outside/file", b"")])),
            (
                "hard link by a link",
                archive(&[
                    entry(b"m", EntryType::Symlink, there, b""),
                    entry(b"h", EntryType::Link, b"m/file", b""),
                ]),
            ),
        ];
        for (what, bytes) in &attacks {
            let done = unpack(ground, "into", bytes, Compression::None).await;
            let there = if done.is_ok() { ground.run("ls -laiR into outside").await } else { String::new() };
            assert!(done.is_err(), "{what}: {done:?}\n{there}");
        }
        let harmless = archive(&[
            entry(b"/absolute", EntryType::Regular, b"", b"x"),
            entry(b"device", EntryType::Char, b"", b""),
            entry(b"fifo", EntryType::Fifo, b"", b""),
        ]);
        assert_eq!(unpack(ground, "fine", &harmless, Compression::None).await.unwrap(), 1);
        assert_eq!(
            ground.run("ls fine; stat -c %a fine/absolute").await,
            "absolute\n777",
            "no set-user-id bit"
        );
        assert_eq!(
            ground.run("ls outside; cat outside/file; stat -c %a outside").await,
            "file\nuntouched\n751"
        );
        // Control: Python's `tarfile`, configured to trust the archive, writes through the link.
        let trusted = attacks.iter().find(|(what, _)| *what == "through a link").unwrap();
        ground.files.write(&path("evil.tar"), trusted.1.clone().into(), None).await.unwrap();
        ground
            .run("mkdir naive && cd naive && python3 -c \"import tarfile; t = tarfile.open('../evil.tar'); k = {'filter': 'fully_trusted'} if hasattr(tarfile, 'fully_trusted_filter') else {}; t.extractall(**k)\" || true")
            .await;
        assert_eq!(ground.run("ls outside | wc -l").await, "2");
        attack::count_control();
        ground.held("U-02", "six ways out refused, two things left out (U-05 too)");
    });
}

/// Verifies that attack U-03 fails: an archive that different programs interpret differently is refused.
#[test]
#[ignore = "starts real sandboxes"]
fn an_archive_on_which_readers_disagree_is_refused() {
    each(async |ground| {
        let pax = |records: &[u8]| entry(b"pax", EntryType::XHeader, b"", records);
        let inner = entry(b"hidden", EntryType::Regular, b"", b"smuggled");
        let attacks: Vec<(&str, Vec<u8>)> = vec![
            ("two sizes", archive(&[pax(b"12 size=1024\n"), entry(b"a", EntryType::Regular, b"", &inner)])),
            (
                "said twice",
                archive(&[
                    pax(b"10 path=b\n"),
                    pax(b"10 path=c\n"),
                    entry(b"a", EntryType::Regular, b"", b"x"),
                ]),
            ),
            (
                "two names",
                archive(&[
                    entry(b"long", EntryType::GNULongName, b"", b"b\0"),
                    pax(b"10 path=c\n"),
                    entry(b"a", EntryType::Regular, b"", b"x"),
                ]),
            ),
            ("sparse", archive(&[entry(b"s", EntryType::GNUSparse, b"", b"x")])),
            ("broken off", entry(b"a", EntryType::Regular, b"", &[7; 5000])[..3000].to_vec()),
            (
                "garbage",
                [archive(&[entry(b"a", EntryType::Regular, b"", b"x")]), b"garbage".repeat(200)].concat(),
            ),
            ("for nothing", archive(&[pax(b"10 path=b\n")])),
        ];
        for (what, bytes) in &attacks {
            let done = unpack(ground, "into", bytes, Compression::None).await;
            let there = if done.is_ok() { ground.run("ls -laiR into outside").await } else { String::new() };
            assert!(done.is_err(), "{what}: {done:?}\n{there}");
        }
        // Control: GNU tar accepts the first of these archives.
        let two = &attacks[0].1;
        let listed = std::process::Command::new("tar")
            .arg("-tf")
            .arg("-")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn();
        let mut listed = listed.unwrap();
        let _ = listed.stdin.take().unwrap().write_all(two);
        assert!(!listed.wait_with_output().unwrap().stdout.is_empty());
        attack::count_control();
        ground.held("U-03", &format!("{} archives", attacks.len()));
    });
}

/// Verifies that attack P-15 fails: overlay markers and attributes that only the kernel may set have no
/// effect.
#[test]
#[ignore = "starts real sandboxes"]
fn marks_of_other_file_systems_are_only_names() {
    each(async |ground| {
        let pax = b"46 SCHILY.xattr.trusted.overlay.redirect=/etc\n";
        assert_eq!(pax.len(), 46);
        let bytes = archive(&[
            entry(b"pax", EntryType::XHeader, b"", pax),
            entry(b"d/", EntryType::Directory, b"", b""),
            entry(b"d/.wh.file", EntryType::Regular, b"", b""),
            entry(b"d/.wh..wh..opq", EntryType::Regular, b"", b""),
        ]);
        ground.run("mkdir -p into/d && echo here > into/d/file").await;
        assert_eq!(unpack(ground, "into", &bytes, Compression::None).await.unwrap(), 3);
        assert_eq!(ground.run("cat into/d/file; ls -A into/d | wc -l").await, "here\n3");
        let attributes = ground
            .run("python3 -c \"import os; print(sorted(a for a in os.listxattr('into/d') if 'overlay' in a))\" 2>/dev/null || echo '[]'")
            .await;
        assert_eq!(attributes, "[]");
        let why = "`real::template` shows that the same markers hide files in a layer of an image";
        attack::held_without_control("P-15", ground.tier, why);
    });
}

/// Verifies that attack U-09 fails: the server never runs a program that code in a sandbox has planted.
#[test]
#[ignore = "starts real sandboxes"]
fn no_program_of_the_sandbox_ever_runs_outside() {
    each(async |ground| {
        let canary = tempfile::tempdir().unwrap();
        let mark = canary.path().join("ran");
        let script = format!("#!/bin/sh\ntouch {} /workspace/ran-inside\nexit 1\n", mark.display());
        for name in ["xz", "unpigz", "tar", "gzip", "zstd", "sh", "cp"] {
            for directory in ["/workspace/bin", "/home/sandbox/bin", "/workspace"] {
                ground
                    .files
                    .write(&path(format!("{directory}/{name}")), script.clone().into(), Some(0o755))
                    .await
                    .unwrap();
            }
        }
        for name in ["libnss_files.so.2", "nsswitch.conf", "ld.so.preload"] {
            ground
                .files
                .write(&path(format!("/workspace/{name}")), script.clone().into(), Some(0o755))
                .await
                .unwrap();
        }
        // Control: a program that searches this directory first runs the planted file.
        let planted = canary.path().join("bin");
        std::fs::create_dir(&planted).unwrap();
        std::fs::write(planted.join("xz"), &script).unwrap();
        std::fs::set_permissions(planted.join("xz"), std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        let _ = std::process::Command::new(planted.join("xz")).stderr(std::process::Stdio::null()).status();
        assert!(mark.exists());
        attack::count_control();
        std::fs::remove_file(&mark).unwrap();
        let bytes = archive(&[entry(b"file", EntryType::Regular, b"", b"content")]);
        let packed = gzipped(std::iter::once(bytes.clone()));
        assert_eq!(unpack(ground, "up", &bytes, Compression::None).await.unwrap(), 1);
        assert_eq!(unpack(ground, "up", &packed, Compression::Gzip).await.unwrap(), 1);
        assert_eq!(code(unpack(ground, "up", &bytes, Compression::Gzip).await), ErrorCode::InvalidRequest);
        let mut down = ground.files.pack(&path("/workspace"), Compression::Gzip).await.unwrap();
        while down.next().await.unwrap().is_some() {}
        assert!(!mark.exists() && ground.run("ls /workspace/ran-inside 2>/dev/null | wc -l").await == "0");
        ground.held("U-09", "24 planted programs and libraries, 4 archives");
    });
}

/// Archives that were made by standard tools are accepted.
#[test]
#[ignore = "starts real sandboxes"]
fn archives_of_ordinary_tools_are_unpacked() {
    each(async |ground| {
        let mut builder = Builder::new(Vec::new());
        let mut header = Header::new_ustar();
        header.set_path("plain/file").unwrap();
        header.set_size(2);
        header.set_mode(0o640);
        header.set_uid(1_234_567);
        header.set_cksum();
        builder.append(&header, &b"hi"[..]).unwrap();
        let bytes = builder.into_inner().unwrap();
        assert_eq!(unpack(ground, "tools", &bytes, Compression::None).await.unwrap(), 1);
        assert_eq!(
            ground.run("stat -c '%a %U' tools/plain/file; cat tools/plain/file").await,
            "640 sandbox\nhi"
        );
    });
}
