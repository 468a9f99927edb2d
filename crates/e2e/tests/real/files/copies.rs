//! `bellglass cp`, `ls`, `cat` and `edit` from the command line.

use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use api::limits::Limits;
use api::sandbox::CreateSandbox;
use e2e::service::{Service, served, small};

use super::{on_each, said, tiers};

/// Number of files in the copied tree, unless `BELLGLASS_ARCHIVE_FILES` sets a different number.
const FILES: usize = 5000;

/// Runs `bellglass`, which must exit with 0, and returns its standard output.
fn bellglass(service: &Service, at: &Path, arguments: &[&str]) -> String {
    let done = service.command(arguments).current_dir(at).output().unwrap();
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

#[test]
#[ignore = "starts real sandboxes"]
fn files_and_directories_are_copied_there_and_back() {
    on_each(async |service, client, id| {
        let here = tempfile::tempdir().unwrap();
        let at = here.path();
        std::fs::create_dir_all(at.join("tree/deep/er")).unwrap();
        std::fs::write(at.join("tree/deep/er/x"), "deep").unwrap();
        std::fs::write(at.join("tree/run.sh"), "#!/bin/sh\necho ran\n").unwrap();
        std::os::unix::fs::symlink("deep/er", at.join("tree/link")).unwrap();
        for name in ["a.txt", "b.txt", "c.csv"] {
            std::fs::write(at.join(name), name).unwrap();
        }
        let there = |path: &str| format!("{id}:{path}");
        bellglass(service, at, &["cp", "a.txt", "b.txt", "c.csv", &there("")]);
        bellglass(service, at, &["cp", "tree", &there("")]);
        bellglass(service, at, &["cp", "a.txt", &there("new/name.txt")]);
        let listed = said(client, id, "find . -mindepth 1 | sort").await;
        let wanted = "./a.txt\n./b.txt\n./c.csv\n./new\n./new/name.txt\n./tree\n./tree/deep\n./tree/deep/er\n./tree/deep/er/x\n./tree/link\n./tree/run.sh";
        assert_eq!(listed, wanted);
        std::fs::create_dir(at.join("back")).unwrap();
        bellglass(service, at, &["cp", &there("*.txt"), &there("tree"), "back"]);
        bellglass(service, at, &["cp", &there("tree"), "renamed"]);
        assert_eq!(std::fs::read(at.join("back/a.txt")).unwrap(), b"a.txt");
        assert!(!at.join("back/c.csv").exists());
        for root in ["back/tree", "renamed"] {
            assert_eq!(std::fs::read(at.join(root).join("link/x")).unwrap(), b"deep");
        }
        let mut child = service.command(&["cp", "-", &there("piped")]).stdin(Stdio::piped()).spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"through a pipe").unwrap();
        assert!(child.wait().unwrap().success());
        assert_eq!(bellglass(service, at, &["cp", &there("piped"), "-"]), "through a pipe");
        assert_eq!(bellglass(service, at, &["cat", id.as_str(), "piped", "a.txt"]), "through a pipea.txt");
        bellglass(service, at, &["edit", id.as_str(), "piped", "--old", "pipe", "--new", "hole"]);
        assert_eq!(bellglass(service, at, &["cat", id.as_str(), "piped"]), "through a hole");
        said(client, id, "touch \"$(printf 'evil\\033[2J\\nname')\"").await;
        let listed = bellglass(service, at, &["ls", id.as_str()]);
        assert!(listed.contains("evil\\u{1b}[2J\\nname") && !listed.contains('\u{1b}'), "{listed}");
    });
}

/// A copy writes nothing outside its target, whatever links and special files code in the sandbox creates.
#[test]
#[ignore = "starts real sandboxes"]
fn a_copy_of_a_hostile_directory_stays_below_its_target() {
    on_each(async |service, client, id| {
        let here = tempfile::tempdir().unwrap();
        let at = here.path();
        std::fs::create_dir(at.join("outside")).unwrap();
        said(
            client,
            id,
            "mkdir -p evil/d; ln -s / evil/root; ln -s ../../outside evil/d/up; ln -s ../outside evil/out; mkfifo evil/fifo; echo x > evil/d/x; ln evil/d/x evil/hard",
        )
        .await;
        let done =
            service.command(&["cp", &format!("{id}:evil"), "inside"]).current_dir(at).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.code() == Some(1) && said.contains("skipped"), "it is not all there: {said}");
        let inside = at.join("inside");
        assert_eq!(std::fs::read(inside.join("d/x")).unwrap(), b"x\n");
        assert_eq!(std::fs::read(inside.join("hard")).unwrap(), b"x\n");
        for name in ["root", "out", "d/up", "fifo"] {
            assert!(inside.join(name).symlink_metadata().is_err(), "{name}");
        }
        assert_eq!(std::fs::read_dir(at.join("outside")).unwrap().count(), 0);
    });
}

/// A tree of many small files is transferred as one archive in each direction, and every file arrives
/// unchanged.
#[test]
#[ignore = "starts real sandboxes"]
fn a_tree_of_many_small_files_is_copied_there_and_back() {
    let wanted = std::env::var("BELLGLASS_ARCHIVE_FILES").ok().and_then(|text| text.parse().ok());
    let files: usize = wanted.unwrap_or(FILES);
    served(async || {
        let service = Service::start();
        let client = service.client();
        let here = tempfile::tempdir().unwrap();
        for number in 0..files {
            let directory = here.path().join(format!("tree/{}", number / 1000));
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join(number.to_string()), format!("file {number}")).unwrap();
        }
        for tier in tiers() {
            let limits = Limits {
                disk_bytes: 1 << 30,
                disk_inodes: 2 * files as u64 + 10_000,
                ..e2e::service::small_limits()
            };
            let id =
                client.create(&CreateSandbox { tier, limits: limits.into(), ..small() }).await.unwrap().id;
            let began = Instant::now();
            bellglass(&service, here.path(), &["cp", "tree", &format!("{id}:")]);
            let up = began.elapsed();
            let sum = "find tree -type f | LC_ALL=C sort | xargs cat | sha256sum";
            let there = said(&client, &id, sum).await;
            let began = Instant::now();
            bellglass(&service, here.path(), &["cp", &format!("{id}:tree"), "back"]);
            let down = began.elapsed();
            let local = |root: &str| {
                let script = format!("{}; find {root} -type f | wc -l", sum.replace("tree", root));
                let done =
                    std::process::Command::new("sh").args(["-c", &script]).current_dir(here.path()).output();
                String::from_utf8(done.unwrap().stdout).unwrap().trim().to_owned()
            };
            assert_eq!(local("back"), local("tree"));
            assert_eq!(local("back"), format!("{there}\n{files}"));
            eprintln!("{tier:?}: {files} files up in {up:?}, down in {down:?}");
            std::fs::remove_dir_all(here.path().join("back")).unwrap();
            client.stop(&id).await.unwrap();
        }
    });
}
