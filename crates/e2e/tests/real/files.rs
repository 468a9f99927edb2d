//! Files in real sandboxes, through the whole platform: arbitrary content, arbitrary names, atomic writes,
//! and interruptions of every kind.

mod copies;
mod relay;
mod transfers;
mod wire;

use api::SandboxId;
use api::exec::Outcome;
use api::files::{Change, EditRequest, FileKind, FilePath, Hash};
use api::limits::Limits;
use api::sandbox::{CreateSandbox, Tier};
use api::{ErrorCode, limits};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use client::{Client, Files};
use e2e::lab::script;
use e2e::service::{Service, served, small, tiers};

/// Size limit for reads, larger than every small file in these tests.
const MOST: u64 = 1 << 20;

/// Returns a request for a sandbox in this tier with a disk of this size.
fn roomy(tier: Tier, disk_bytes: u64) -> CreateSandbox {
    let limits = Limits { disk_bytes, disk_inodes: 16_384, ..e2e::service::small_limits() };
    CreateSandbox { tier, limits: limits.into(), ..small() }
}

/// Runs a test once per tier, each time in a new sandbox.
fn on_each(test: impl AsyncFn(&Service, &Client, &SandboxId)) {
    served(async || {
        let service = Service::start();
        let client = service.client();
        for tier in tiers() {
            let id = client.create(&roomy(tier, 256 << 20)).await.unwrap().id;
            test(&service, &client, &id).await;
            client.stop(&id).await.unwrap();
        }
    });
}

fn path(bytes: impl AsRef<[u8]>) -> FilePath {
    FilePath::new(bytes.as_ref()).unwrap()
}

async fn said(client: &Client, id: &SandboxId, text: &str) -> String {
    let done = client.exec(id, &script(text)).await.unwrap().collect().await.unwrap();
    assert_eq!(
        done.end.outcome,
        Outcome::Exited { code: 0 },
        "{text}: {}",
        String::from_utf8_lossy(&done.stderr)
    );
    String::from_utf8_lossy(&done.stdout).trim_end().to_owned()
}

async fn put(files: &Files, name: &FilePath, bytes: &[u8]) {
    let put = files.write(name, Bytes::copy_from_slice(bytes), None).await.unwrap();
    assert_eq!(put.file.size_bytes, bytes.len() as u64);
}

/// Any byte sequence is valid file content.
#[test]
#[ignore = "starts real sandboxes"]
fn every_byte_sequence_comes_back_as_it_was_sent() {
    on_each(async |_, client, id| {
        let files = client.files(id);
        let all: Vec<u8> = (0..=255).cycle().take(70_000).collect();
        let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR";
        for content in [&b""[..], b"a\0b", png, b"\xff\xfe\r\n", &all] {
            put(&files, &path("x.bin"), content).await;
            assert_eq!(files.read(&path("x.bin"), MOST).await.unwrap(), content);
            let count = said(client, id, "wc -c < /workspace/x.bin").await;
            assert_eq!(count, content.len().to_string());
        }
        let deep = path(format!("{}x", "d/".repeat(100)));
        put(&files, &deep, b"deep").await;
        assert_eq!(files.read(&deep, MOST).await.unwrap(), b"deep");
    });
}

/// Verifies that attack P-10 fails: any valid file name survives a round trip, and `..` is refused.
#[test]
#[ignore = "starts real sandboxes"]
fn every_valid_name_comes_back_byte_for_byte() {
    on_each(async |_, client, id| {
        let files = client.files(id);
        let long = [0xff; 255];
        let names: &[&[u8]] = &[
            b"a b",
            b" a ",
            b"'quoted' \"twice\"",
            b"new\nline",
            b"-rf",
            b"--",
            b"a.",
            b"...",
            b"$(id)",
            b"%2e%2e",
            b"a+b",
            b"a&b=c",
            b"#?",
            "é☕\u{202e}x".as_bytes(),
            b"\x1b]0;pwn\x07",
            b"\xff\xfe",
            b"\\",
            &long,
        ];
        files.make(&path("names")).await.unwrap();
        for name in names {
            let full = path([&b"/workspace/names/"[..], name].concat());
            put(&files, &full, name).await;
            assert_eq!(files.read(&full, MOST).await.unwrap(), *name);
            assert_eq!(files.stat(&full).await.unwrap().exact().unwrap(), full);
        }
        let listed = files.list(&path("names"), 1).await.unwrap();
        let mut seen: Vec<_> = listed.iter().map(|info| info.exact().unwrap()).collect();
        let mut wanted: Vec<_> =
            names.iter().map(|name| path([&b"/workspace/names/"[..], name].concat())).collect();
        seen.sort();
        wanted.sort();
        assert_eq!(seen, wanted);
        assert_eq!(said(client, id, "ls -A /workspace/names | wc -l").await, (names.len() + 1).to_string());
        assert!(FilePath::new("names/../x").is_err());
    });
}

/// A second write to the same name replaces the content completely.
#[test]
#[ignore = "starts real sandboxes"]
fn the_same_name_twice_has_the_second_content() {
    on_each(async |_, client, id| {
        let files = client.files(id);
        put(&files, &path("twice"), &[b'a'; 5000]).await;
        let first = files.stat(&path("twice")).await.unwrap();
        put(&files, &path("twice"), b"second").await;
        assert_eq!(files.read(&path("twice"), MOST).await.unwrap(), b"second");
        assert_ne!(files.stat(&path("twice")).await.unwrap().version, first.version);
        assert_eq!(said(client, id, "ls -A /workspace").await, "twice", "and no other file is left");
    });
}

/// Uploaded files belong to the user that runs code, and files that code writes can be downloaded.
#[test]
#[ignore = "starts real sandboxes"]
fn files_belong_to_the_user_that_code_runs_as_on_both_sides() {
    on_each(async |_, client, id| {
        let files = client.files(id);
        let script_file = Bytes::from_static(b"#!/bin/sh\necho ran\n");
        files.write(&path("bin/run.sh"), script_file, Some(0o755)).await.unwrap();
        assert_eq!(
            said(client, id, "/workspace/bin/run.sh; id -u; stat -c %u:%a bin/run.sh").await,
            "ran\n1000\n1000:755"
        );
        said(client, id, "echo more >> bin/run.sh; echo made > made; chmod 600 made").await;
        let made = files.stat(&path("made")).await.unwrap();
        assert_eq!(
            (made.kind, made.uid, made.mode, made.size_bytes),
            (FileKind::File, limits::UID, 0o600, 5)
        );
        assert_eq!(files.read(&path("made"), MOST).await.unwrap(), b"made\n");
    });
}

#[test]
#[ignore = "starts real sandboxes"]
fn files_are_made_moved_copied_edited_hashed_and_removed() {
    on_each(async |_, client, id| {
        let files = client.files(id);
        let code = |result: Result<u64, client::Error>| result.unwrap_err().code();
        assert!(files.make(&path("a/b/c")).await.is_ok() && files.make(&path("a/b/c")).await.is_ok());
        put(&files, &path("a/x"), b"one two two").await;
        let old = |old: &str, all| EditRequest { old: old.into(), new: "2".into(), all };
        assert_eq!(files.edit(&path("a/x"), &old("one", false)).await.unwrap(), 1);
        assert_eq!(code(files.edit(&path("a/x"), &old("two", false)).await), Some(ErrorCode::Conflict));
        assert_eq!(code(files.edit(&path("a/x"), &old("six", true)).await), Some(ErrorCode::Conflict));
        assert_eq!(files.edit(&path("a/x"), &old("two", true)).await.unwrap(), 2);
        assert_eq!(files.read(&path("a/x"), MOST).await.unwrap(), b"2 2 2");
        files.copy(&path("a"), &path("copy"), false).await.unwrap();
        files.rename(&path("copy/x"), &path("y"), false).await.unwrap();
        assert_eq!(code(files.rename(&path("a/x"), &path("y"), false).await), Some(ErrorCode::Conflict));
        files.rename(&path("a/x"), &path("y"), true).await.unwrap();
        let sum = said(client, id, "sha256sum y | cut -c 1-64").await;
        assert_eq!(files.hash(&path("y")).await.unwrap().hash, Hash::Sha256(sum));
        assert_eq!(code(files.remove(&path("a"), false).await), Some(ErrorCode::Conflict));
        assert!(files.remove(&path("a"), true).await.unwrap() >= 3);
        assert_eq!(files.remove(&path("a"), true).await.unwrap(), 0, "what is gone is gone");
        assert_eq!(said(client, id, "find . -mindepth 1 | sort").await, "./copy\n./copy/b\n./copy/b/c\n./y");
        assert_eq!(files.stat(&path("a")).await.unwrap_err().code(), Some(ErrorCode::NotFound));
        said(client, id, "ln -s /etc/passwd link; mkfifo fifo").await;
        for name in ["link", "fifo", "copy"] {
            let error = files.read(&path(name), MOST).await.unwrap_err();
            assert_eq!(error.code(), Some(ErrorCode::NotRegular), "{name}");
        }
    });
}

#[test]
#[ignore = "starts real sandboxes"]
fn what_happens_to_files_is_told_while_it_happens() {
    on_each(async |_, client, id| {
        let files = client.files(id);
        let mut watch = files.watch(&path("."), true);
        watch.begin().await.unwrap();
        put(&files, &path("seen"), b"x").await;
        said(client, id, "rm seen").await;
        let wanted = Some("/workspace/seen".to_owned());
        let mut told = Vec::new();
        while !told.contains(&Change::Removed) {
            let event = tokio::time::timeout(std::time::Duration::from_secs(20), watch.next()).await;
            let event = event.expect("an event").unwrap();
            if event.path == wanted {
                told.push(event.event);
            }
        }
        assert!(told.contains(&Change::Created) || told.contains(&Change::Modified), "{told:?}");
    });
}

/// A symlink in the directory part of a path is followed inside the sandbox, with the rights of user code. It leads to
/// no file that user code cannot read itself, and to no file of the host.
#[test]
#[ignore = "starts real sandboxes"]
fn a_symlinked_parent_leads_only_to_what_code_can_reach() {
    let host = tempfile::tempdir().unwrap();
    std::fs::write(host.path().join("secret"), "of the host").unwrap();
    std::fs::set_permissions(host.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let directory = host.path().to_str().unwrap();
    on_each(async |_, client, id| {
        let files = client.files(id);
        // Control: a parent that code can read is followed.
        said(client, id, "mkdir real; echo mine > real/file; ln -s real near; ln -s near far").await;
        for name in ["near/file", "far/file"] {
            assert_eq!(files.read(&path(name), MOST).await.unwrap(), b"mine\n", "{name}");
        }
        let (mut readable, mut hidden) = (0, 0);
        for (number, (target, name)) in [
            ("/etc", "passwd"),
            ("/etc", "shadow"),
            ("/root", ".profile"),
            ("/proc/1", "environ"),
            ("/proc/1", "mem"),
            ("/proc/1/root/etc", "shadow"),
            ("/proc/1/fd", "0"),
            ("/sys/kernel", "uevent_helper"),
            (directory, "secret"),
        ]
        .into_iter()
        .enumerate()
        {
            let link = format!("link{number}/{name}");
            let look = format!(
                "ln -sn {target} link{number}; test -f {link} && cat {link} 2>/dev/null | base64 -w0; true"
            );
            let inside = said(client, id, &look).await;
            let outside = files.read(&path(&link), MOST).await;
            match &outside {
                Ok(bytes) => {
                    // A file of `/proc` has no size, so less than its content may be sent, never more.
                    let inside = BASE64.decode(inside).unwrap();
                    assert!(inside.starts_with(bytes), "{target}/{name} is more than code can read");
                    readable += 1;
                }
                Err(error) => {
                    let known = [ErrorCode::NotFound, ErrorCode::Forbidden, ErrorCode::NotRegular];
                    assert!(
                        error.code().is_some_and(|code| known.contains(&code)),
                        "{target}/{name}: {error}"
                    );
                    hidden += 1;
                }
            }
            let written = files.write(&path(&link), Bytes::from_static(b"planted"), None).await;
            assert!(written.is_err(), "{target}/{name} was written through a symlinked parent");
        }
        eprintln!("{readable} files were read, and {hidden} were refused");
        assert!(readable >= 1 && hidden >= 6, "{readable} {hidden}");
        assert_eq!(std::fs::read(host.path().join("secret")).unwrap(), b"of the host");
    });
}
