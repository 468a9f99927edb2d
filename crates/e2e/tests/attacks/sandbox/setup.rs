//! Attacks of group R: malicious root file systems, links at the paths of new sandboxes, and abstract
//! sockets.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use e2e::lab::{sh, text};
use node::Sandbox;

use super::field::payload;
use super::field::{BOTH, Field, OCI_BOTH, small, withstand};
use super::room::Room;

/// Paths at which a runtime mounts something or reads files.
const PLACES: [&str; 13] = [
    "proc",
    "sys",
    "dev",
    "tmp",
    "etc",
    "run",
    "workspace",
    "home",
    "home/sandbox",
    ".bellglass",
    ".bellglass/guest",
    ".bellglass/channel",
    ".bellglass/spool",
];
/// Kinds of objects that replace the directory at such a path.
const LIES: [&str; 10] =
    ["absolute", "relative", "root", "dangling", "loop", "magic", "file", "pipe", "device", "full"];
/// Maximum time until a start succeeds or is refused.
const START: Duration = Duration::from_secs(15);

/// Verifies that attacks, modelled on CVE-2019-16884, CVE-2025-54867, CVE-2026-41579 and
/// CVE-2026-47766, fail: a malicious root file system is refused, or its mounts stay inside the sandbox.
#[test]
fn a_root_file_system_that_lies_is_refused_or_kept_inside() {
    withstand("R-08", OCI_BOTH, async |field| {
        let outside = field.sentinel().join("inner");
        naive_mount_reaches(field, &outside);
        let lies = if field.is_container() { &LIES[..] } else { &LIES[..3] };
        let (mut refused, mut inside) = (0, 0);
        for place in PLACES {
            for lie in lies {
                let root = lying_root(field, place, lie, &outside);
                let mut spec = field.lab.spec(small());
                spec.layers = vec![root.path().to_owned()];
                let began = Instant::now();
                let started = Sandbox::start(Arc::clone(&field.lab.runtime), field.lab.id(), &spec).await;
                assert!(began.elapsed() < START, "{place} as {lie}: {:?}", began.elapsed());
                match started {
                    Ok(sandbox) => {
                        assert_mounts_inside(field, &sandbox);
                        sandbox.stop(Duration::ZERO).await.unwrap();
                        inside += 1;
                    }
                    Err(_) => refused += 1,
                }
            }
        }
        println!("R-08: {refused} refused, {inside} kept inside");
        assert!(refused > 0 && inside > 0);
        field.recovers(&field.sandbox().await).await;
    });
}

/// Verifies that attack R-02, modelled on CVE-2019-16884 and CVE-2023-27561, fails: files in the image do not
/// hide the kernel's files at the same paths.
#[test]
fn false_files_of_an_image_do_not_hide_the_kernels() {
    withstand("R-02", BOTH, async |field| {
        let layer = tempfile::tempdir().unwrap();
        for name in ["self/status", "self/attr/exec", "self/uid_map", "sys/kernel/core_pattern", "mounts"] {
            let path = layer.path().join("proc").join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "Name:\tlie\n").unwrap();
        }
        std::fs::set_permissions(layer.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        // Control: where the kernel's files are not mounted over them, the false files can be read.
        let read = std::fs::read_to_string(layer.path().join("proc/self/status")).unwrap();
        assert!(read.contains("lie"));
        let mut spec = field.lab.spec(small());
        spec.layers.push(layer.path().to_owned());
        let started = Sandbox::start(Arc::clone(&field.lab.runtime), field.lab.id(), &spec).await;
        let sandbox = started.unwrap_or_else(|error| panic!("{}", node::error::chain(&error)));
        let seen =
            sh(&sandbox, "cat /proc/self/status /proc/self/uid_map /proc/mounts; stat -f -c %T /proc").await;
        assert!(!text(&seen).contains("lie"), "{}", text(&seen));
        assert!(text(&seen).contains("proc"));
        field.recovers(&sandbox).await;
    });
}

/// Verifies that attack R-03, modelled on CVE-2020-15257, fails: the host's abstract sockets are not
/// reachable.
#[test]
fn no_socket_without_a_file_is_in_reach() {
    withstand("R-03", BOTH, async |field| {
        let name = format!("bellglass-attack-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let _listener = UnixListener::bind_addr(&address).unwrap();
        let control = Room { host_network: true, ..Room::default() }.run(&payload("R-03", &[&name]));
        control.assert("control", &[("dial", "ok")]);
        let sandbox = field.sandbox().await;
        let said = field.attack(&sandbox, &[&name]).await;
        said.assert("sandbox", &[("dial", "ECONNREFUSED")]);
        said.assert_held("sandbox");
        // The node itself does not listen on an abstract socket either.
        let table = std::fs::read_to_string("/proc/self/net/unix").unwrap();
        let ours = table
            .lines()
            .filter_map(|line| line.split_whitespace().nth(7))
            .filter(|name| name.starts_with('@'));
        let strange: Vec<&str> =
            ours.filter(|seen| seen.contains("bellglass") && !seen.contains(&name)).collect();
        assert!(strange.is_empty(), "{strange:?}");
        field.recovers(&sandbox).await;
    });
}

/// Verifies that attack R-11, modelled on CVE-2026-1386, fails: a link at the path of a new sandbox is not
/// followed.
#[test]
fn a_link_where_a_sandbox_is_to_be_made_is_not_followed() {
    withstand("R-11", OCI_BOTH, async |field| {
        let outside = field.sentinel().join("inner");
        // Control: a file that is created by its path appears at the target of the link.
        let naive = tempfile::tempdir().unwrap();
        symlink(naive.path(), naive.path().join("link")).unwrap();
        std::fs::write(naive.path().join("link/record.json"), "{}").unwrap();
        assert!(naive.path().join("record.json").exists());
        let data = field.lab.data();
        for what in ["link", "dangling", "file", "hard link"] {
            let id = field.lab.id();
            let path = data.join("sandboxes").join(id.as_str());
            match what {
                "link" => symlink(&outside, &path).unwrap(),
                "dangling" => symlink(outside.join("made"), &path).unwrap(),
                "file" => std::fs::write(&path, "planted").unwrap(),
                _ => std::fs::hard_link(field.sentinel().join("secret"), &path).unwrap(),
            }
            let started =
                Sandbox::start(Arc::clone(&field.lab.runtime), id.clone(), &field.lab.spec(small())).await;
            let error = started.err().unwrap_or_else(|| panic!("{what} was followed")).to_api();
            assert_eq!(error.code, api::ErrorCode::Conflict, "{what}: {}", error.message);
            std::fs::remove_file(&path).unwrap();
        }
        field.recovers(&field.sandbox().await).await;
    });
}

/// Asserts that a mount by path follows a link in the root file system. This function uses a separate mount
/// namespace and a copy.
fn naive_mount_reaches(field: &Field<'_>, outside: &Path) {
    let root = lying_root(field, "dev", "absolute", outside);
    let script = "mount -t tmpfs none \"$0/dev\" && grep -c \" $1 \" /proc/self/mountinfo";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .arg(root.path())
        .arg(outside)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "1", "control: {output:?}");
}

/// Creates a minimal root file system with one malicious entry.
fn lying_root(field: &Field<'_>, place: &str, lie: &str, outside: &Path) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let words = payload(field.id, &[]);
    let made =
        Command::new("bash").args(&words[1..]).arg(root.path()).args([place, lie]).arg(outside).status();
    assert!(made.unwrap().success(), "{place} as {lie}");
    root
}

/// Asserts that no mount of process 1 exposes the host's sentinel directory.
fn assert_mounts_inside(field: &Field<'_>, sandbox: &Sandbox) {
    let pid = field.lab.data().join("sandboxes").join(sandbox.id().as_str()).join("pid");
    let pid = std::fs::read_to_string(pid).unwrap();
    let mounts = std::fs::read_to_string(format!("/proc/{}/mountinfo", pid.trim())).unwrap_or_default();
    let sentinel = field.sentinel().to_string_lossy().into_owned();
    // The fourth field of a line is the mounted part of the file system, and the fifth field is the mount
    // point.
    let mut shown = mounts.lines().filter_map(|line| line.split(' ').nth(3));
    assert!(!shown.any(|root| root.contains(&sentinel)), "{mounts}");
}
