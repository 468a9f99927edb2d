//! Attacks of group R: malicious root file systems, links at the paths of new sandboxes, and abstract
//! sockets.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::ErrorCode;
use e2e::attack;
use e2e::lab::{sh, sized, text};
use node::Sandbox;

use super::field::payload;
use super::field::{BOTH, Field, OCI_BOTH, small, turn_off, withstand};
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
/// Shell command that reads files of the kernel.
const KERNEL_FILES: &str = "cat /proc/self/status /proc/self/uid_map /proc/mounts";
/// Kinds of objects that replace the directory at such a path.
const LIES: [&str; 10] =
    ["absolute", "relative", "root", "dangling", "loop", "magic", "file", "pipe", "device", "full"];
/// Places at which every lie is tried with gVisor too.
const FULL_PLACES: [&str; 3] = ["proc", "dev", ".bellglass/channel"];
/// Maximum time until a start succeeds or is refused.
const START: Duration = Duration::from_secs(15);

/// Verifies that attacks, modelled on CVE-2019-16884, CVE-2025-54867, CVE-2026-41579 and
/// CVE-2026-47766, fail: a malicious root file system is refused, or its mounts stay inside the sandbox.
#[test]
#[ignore = "starts real sandboxes"]
fn a_root_file_system_that_lies_is_refused_or_kept_inside() {
    withstand("R-08", OCI_BOTH, async |field| {
        let outside = field.sentinel().join("inner");
        naive_mount_reaches(field, &outside);
        let (mut refused, mut inside) = (0, 0);
        for place in PLACES {
            // With gVisor, which starts more slowly, only some places have every lie in CI.
            let is_full = field.is_container() || sized(true, FULL_PLACES.contains(&place));
            for lie in if is_full { &LIES[..] } else { &LIES[..3] } {
                let root = lying_root(field, place, lie, &outside);
                let mut spec = field.lab.spec(small());
                // Below the lie is a system, so that commands can look for the host's files.
                spec.layers.push(root.path().to_owned());
                let began = Instant::now();
                let started = Sandbox::start(Arc::clone(&field.lab.runtime), field.lab.id(), &spec).await;
                assert!(began.elapsed() < START, "{place} as {lie}: {:?}", began.elapsed());
                match started {
                    Ok(sandbox) => {
                        assert_inside(field, &sandbox, place, lie).await;
                        sandbox.stop(Duration::ZERO).await.unwrap();
                        inside += 1;
                    }
                    Err(error) => {
                        let why = node::error::chain(&error);
                        let code = error.to_api().code;
                        println!("R-08 {place} as {lie}: {code:?}: {why}");
                        // A start that fails for another reason is no refusal.
                        assert!(
                            !matches!(code, ErrorCode::Deadline | ErrorCode::Capacity),
                            "{place} as {lie}: {code:?}: {why}"
                        );
                        refused += 1;
                    }
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
#[ignore = "starts real sandboxes"]
fn false_files_of_an_image_do_not_hide_the_kernels() {
    withstand("R-02", BOTH, async |field| {
        let layer = tempfile::tempdir().unwrap();
        for name in ["self/status", "self/attr/exec", "self/uid_map", "sys/kernel/core_pattern", "mounts"] {
            let path = layer.path().join("proc").join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "Name:\tlie\n").unwrap();
        }
        std::fs::set_permissions(layer.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        // Control: in the same root without the kernel's files, the same command reads the false files.
        let read = without_kernel_files(layer.path());
        assert_eq!(read.matches("lie").count(), 3, "control: {read}");
        attack::count_control();
        let mut spec = field.lab.spec(small());
        spec.layers.push(layer.path().to_owned());
        let started = Sandbox::start(Arc::clone(&field.lab.runtime), field.lab.id(), &spec).await;
        let sandbox = started.unwrap_or_else(|error| panic!("{}", node::error::chain(&error)));
        let seen = sh(&sandbox, &format!("{KERNEL_FILES}; stat -f -c %T /proc")).await;
        assert!(!text(&seen).contains("lie"), "{}", text(&seen));
        assert!(text(&seen).contains("Seccomp:") && text(&seen).ends_with("proc\n"), "{}", text(&seen));
        field.recovers(&sandbox).await;
    });
}

/// Verifies that attack R-03, modelled on CVE-2020-15257, fails: the host's abstract sockets are not
/// reachable.
#[test]
#[ignore = "starts real sandboxes"]
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
#[ignore = "starts real sandboxes"]
fn a_link_where_a_sandbox_is_to_be_made_is_not_followed() {
    withstand("R-11", OCI_BOTH, async |field| {
        let outside = field.sentinel().join("inner");
        let data = field.lab.data();
        // Control: without the defence, the sandbox is made in the directory to which the link leads.
        let target = tempfile::Builder::new().prefix("bellglass-linked").tempdir().unwrap();
        let (id, spec) = (field.lab.id(), field.lab.spec(small()));
        let link = data.join("sandboxes").join(id.as_str());
        symlink(target.path(), &link).unwrap();
        let followed = {
            let _undefended = turn_off("R-11");
            Sandbox::start(Arc::clone(&field.lab.runtime), id, &spec).await
        };
        let sandbox = followed.unwrap_or_else(|error| panic!("control: {}", node::error::chain(&error)));
        assert!(target.path().join("record.json").exists(), "control: the link was not followed");
        let _ = sandbox.stop(Duration::ZERO).await;
        std::fs::remove_file(&link).unwrap();
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
    attack::count_control();
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

/// Runs [`KERNEL_FILES`] in a root with this layer and without the kernel's files, and returns the output.
fn without_kernel_files(layer: &Path) -> String {
    let script = "mount -t overlay none -o lowerdir=\"$1:$2\" \"$0\" && exec chroot \"$0\" sh -c \"$3\"";
    let root = tempfile::tempdir().unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).arg(root.path()).arg(layer).arg(e2e::layer::base());
    let output = command.arg(KERNEL_FILES).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Asserts that neither the mounts of process 1 nor commands in the sandbox reach the host's sentinel
/// directory.
async fn assert_inside(field: &Field<'_>, sandbox: &Sandbox, place: &str, lie: &str) {
    let look = format!("cd /; cat {place}/file {place}/secret {place}/deep/file 2>/dev/null; echo looked");
    let seen = text(&sh(sandbox, &look).await);
    assert!(seen.ends_with("looked\n"), "{place} as {lie}: the sandbox does not work: {seen}");
    assert!(!seen.contains("the host's own"), "{place} as {lie}: {seen}");
    let pid = field.lab.data().join("sandboxes").join(sandbox.id().as_str()).join("pid");
    let pid = std::fs::read_to_string(pid).unwrap();
    let mounts = std::fs::read_to_string(format!("/proc/{}/mountinfo", pid.trim())).unwrap();
    assert!(!mounts.is_empty(), "{place} as {lie}: process 1 is gone");
    let sentinel = field.sentinel().to_string_lossy().into_owned();
    // The fourth field of a line is the mounted part of the file system, and the fifth field is the mount
    // point.
    let mut shown = mounts.lines().filter_map(|line| line.split(' ').nth(3));
    assert!(!shown.any(|root| root.contains(&sentinel)), "{mounts}");
}
