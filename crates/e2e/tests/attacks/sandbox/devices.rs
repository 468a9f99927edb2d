//! Attacks K-10, K-12 to K-14, K-16, R-01 and R-10: files by handle, files of the kernel's memory, devices, programs whose files grant privileges, and programs of
//! other processes.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use e2e::lab::{collect, exec, start, text};
use node::Sandbox;
use rustix::fs::XattrFlags;

use super::field::{BOTH, Field, OCI_BOTH, RUNC, THROUGH, compile, payload, said, small, withstand};
use super::room::{BASE, Room, as_maker};

/// Entries of `/dev` in every tier.
const PRESENT: &str =
    "core console fd full fuse mqueue net null ptmx pts random shm stderr stdin stdout tty urandom zero";
/// Number of results of K-13: each of 20 devices is opened, and created in four directories. The last result
/// lists `/dev`.
const RESULTS: usize = 20 * 5 + 1;
/// Devices that gVisor emulates.
const OWN: [&str; 2] = [" fuse", " net/tun"];

/// Verifies that attack K-13 fails: no device of the host can be opened, and no device node gives access to
/// one.
#[test]
#[ignore = "starts real sandboxes"]
fn no_device_of_the_host_can_be_opened_or_made() {
    withstand("K-13", BOTH, async |field| {
        let place = tempfile::tempdir().unwrap();
        let control = as_maker(place.path(), &payload("K-13", &["harmless", "/mnt"]));
        control.assert(
            "control",
            &[("mknod null in /mnt", "ok"), ("use null in /mnt", "ok"), ("use zero in /mnt", "ok")],
        );
        let sandbox = field.sandbox().await;
        let said = field.attack(&sandbox, &["/tmp", "/workspace", "/dev/shm", "/home/sandbox"]).await;
        for (thing, answer) in said.all(RESULTS) {
            match thing.split(' ').next() {
                // A user-space kernel emulates these two devices. They give access to nothing, because
                // nothing can be mounted or configured.
                Some("open" | "use")
                    if !field.is_container() && OWN.iter().any(|own| thing.contains(own)) => {}
                Some("open") => assert!(["ENOENT", "EACCES"].contains(&answer), "{thing} {answer}"),
                // A user-space kernel creates the nodes in its own memory, and no device is behind them.
                Some("mknod") => assert!(answer == "EPERM" || !field.is_container(), "{thing} {answer}"),
                Some("use") => assert!(["ENXIO", "EACCES"].contains(&answer), "{thing} {answer}"),
                Some("present") => {
                    let strange =
                        answer.split(',').find(|name| !PRESENT.split(' ').any(|known| known == *name));
                    assert_eq!(strange, None, "in /dev: {answer}");
                }
                _ => panic!("{thing} {answer}"),
            }
        }
        field.recovers(&sandbox).await;
    });
}

/// Verifies that attack R-10, modelled on CVE-2026-96812 in gVisor, fails: device nodes that an image
/// contains cannot be opened.
#[test]
#[ignore = "starts real sandboxes"]
fn device_nodes_in_an_image_open_nothing() {
    withstand("R-10", OCI_BOTH, async |field| {
        let layer = tempfile::tempdir().unwrap();
        let place = layer.path().join("attack");
        std::fs::create_dir(&place).unwrap();
        let control = as_maker(&place, &payload("R-10", &["make", "/mnt"]));
        control.assert("control", &[("open null", "ok"), ("open zero", "ok"), ("open fuse", "ok")]);
        let sandbox = with_layer(field, layer.path()).await;
        let said = field.attack(&sandbox, &["use", "/attack"]).await;
        said.assert_held("sandbox");
        for (thing, answer) in said.all(100) {
            assert!(["EACCES", "ENXIO", "EPERM"].contains(&answer), "{thing} {answer}");
        }
        field.recovers(&sandbox).await;
    });
}

/// Verifies that attack K-10 fails: no file can be opened by the number of its inode.
#[test]
#[ignore = "starts real sandboxes"]
fn no_file_is_opened_by_its_handle() {
    withstand("K-10", BOTH, async |field| {
        let place = tempfile::tempdir().unwrap();
        let control = as_maker(place.path(), &payload("K-10", &["/mnt"]));
        control.assert("control", &[("name_to_handle_at", "ok"), ("own file by handle", "ok")]);
        let sandbox = field.sandbox().await;
        let said = field.attack(&sandbox, &["/workspace"]).await;
        for (thing, answer) in said.all(3) {
            assert!(["EPERM", "ENOSYS"].contains(&answer), "{thing} {answer}");
        }
        said.assert_held("sandbox");
        field.recovers(&sandbox).await;
    });
}

/// Verifies that attack K-12 fails: the files that show the memory and the work of the machine's kernel are
/// empty or out of reach.
#[test]
#[ignore = "starts real sandboxes"]
fn the_kernels_memory_is_not_shown() {
    withstand("K-12", BOTH, async |field| {
        let place = tempfile::tempdir().unwrap();
        let control = as_maker(place.path(), &payload("K-12", &[]));
        let shown =
            ["kallsyms", "slabinfo", "timer_list", "interrupts", "softirqs", "vmallocinfo", "1/environ"];
        let paths = shown.map(|name| format!("/proc/{name}"));
        control.assert("control", &paths.each_ref().map(|path| (path.as_str(), "ok")));
        control.assert("control", &[("/proc/1/root", "ok")]);
        let sandbox = field.sandbox().await;
        let said = field.attack(&sandbox, &[]).await;
        for (thing, answer) in said.all(21) {
            // With gVisor, the guest's two variables can be read, which A-12 checks.
            let is_known = thing == "/proc/1/environ" && !field.is_container();
            assert!(is_known || ["empty", "ENOENT", "EACCES", "EPERM"].contains(&answer), "{thing} {answer}");
        }
        field.recovers(&sandbox).await;
    });
}

/// Verifies that attack K-14 fails: set-user-id bits, set-group-id bits and file capabilities grant no
/// privileges.
#[test]
#[ignore = "starts real sandboxes"]
fn no_file_gives_a_program_more_rights() {
    withstand("K-14", OCI_BOTH, async |field| {
        let (layer, shown) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        open_to_all(shown.path());
        let place = layer.path().join("attack");
        std::fs::create_dir(&place).unwrap();
        promising_programs(&place, 0);
        promising_programs(shown.path(), BASE);
        let room = Room {
            uid: 1000,
            powerful: true,
            binds: vec![(shown.path().to_owned(), "/mnt")],
            ..Room::default()
        };
        let control = room.attack("K-14", &["/mnt"]);
        control.assert("control", &[("set-user-id", "ok"), ("set-group-id", "ok"), ("capable", "ok")]);
        let sandbox = with_layer(field, layer.path()).await;
        let said = field.attack(&sandbox, &["/attack"]).await;
        let nothing = "nothing";
        said.assert(
            "sandbox",
            &[
                ("set-user-id", nothing),
                ("set-group-id", nothing),
                ("capable", "nothing|EPERM"),
                ("own", nothing),
                ("chown to root", "EPERM"),
                ("setuid", "EPERM"),
                ("setgid", "EPERM"),
                ("file capabilities", "EPERM|ENOTSUP"),
            ],
        );
        said.assert_held("sandbox");
        field.recovers(&sandbox).await;
    });
}

/// Verifies that attack K-16, modelled on CVE-2019-5736, fails: no program of the host can be overwritten
/// through a process.
#[test]
#[ignore = "starts real sandboxes"]
fn no_program_of_the_host_can_be_overwritten_through_a_process() {
    withstand("K-16", BOTH, async |field| {
        let control = Room { uid: 1000, powerful: false, ..Room::default() }.attack("K-16", &["/tmp/victim"]);
        control.assert("control", &[("later another", "ok")]);
        let guest = std::fs::read(field.lab.machine.guest()).unwrap();
        let sandbox = field.sandbox().await;
        let bystander = start(&sandbox, &exec(&["sleep", "60"])).await.unwrap();
        let said = field.attack(&sandbox, &[]).await;
        let stopped = "EACCES|ETXTBSY|EROFS|ENOENT|EPERM";
        said.assert(
            "sandbox",
            &[("write process 1", stopped), ("write itself", stopped), ("write another", stopped)],
        );
        said.assert("sandbox", &[("/.bellglass/guest", stopped)]);
        said.assert_held("sandbox");
        bystander.cancel().await.unwrap();
        assert!(std::fs::read(field.lab.machine.guest()).unwrap() == guest, "the guest was changed");
        field.recovers(&sandbox).await;
    });
}

/// Verifies that attack R-01, modelled on CVE-2019-5736 and CVE-2024-21626, fails: nothing on the host is
/// reachable while execs start.
#[test]
#[ignore = "starts real sandboxes"]
fn nothing_of_the_host_is_in_reach_while_execs_are_born() {
    race_births(RUNC);
}

/// Verifies that attack R-01 fails under a user-space kernel, where every process can list the descriptors of
/// process 1.
#[test]
#[ignore = "starts real sandboxes"]
fn nothing_of_process_1_is_in_reach_under_a_user_space_kernel() {
    race_births(&["runsc"]);
}

fn race_births(runtimes: &[&str]) {
    withstand("R-01", runtimes, async |field| {
        // Control: the attack of K-16 opens a victim's program, if the attacker owns that program.
        let control = Room { uid: 1000, powerful: false, ..Room::default() }.attack("K-16", &["/tmp/victim"]);
        assert_eq!(control.code, Some(THROUGH), "{control:?}");
        let guest = std::fs::read(field.lab.machine.guest()).unwrap();
        let sandbox = field.sandbox().await;
        let seconds = "8";
        let looking = start(&sandbox, &field.payload(&[seconds])).await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let execs = if field.is_container() { 1000 } else { 100 };
        let began = std::time::Instant::now();
        let mut done = 0;
        while done < execs && began.elapsed() < Duration::from_secs(6) {
            collect(&sandbox, &exec(&["/bin/true"])).await;
            done += 1;
        }
        let said = said(&looking.collect().await.unwrap());
        println!("{done} execs while {} looks were taken", said.number("looks"));
        assert!(done >= execs / 10, "{done} execs are too few for a race");
        assert!(said.number("looks") > 1000, "{}", said.raw);
        said.assert("sandbox", &[("exe", "stopped"), ("half-born", "stopped"), ("process-1", "stopped")]);
        said.assert_held("sandbox");
        assert!(std::fs::read(field.lab.machine.guest()).unwrap() == guest, "the guest was changed");
        field.recovers(&sandbox).await;
    });
}

/// Starts a sandbox with an additional layer.
async fn with_layer(field: &Field<'_>, layer: &Path) -> Sandbox {
    open_to_all(layer);
    let mut spec = field.lab.spec(small());
    spec.layers.push(layer.to_owned());
    let started = Sandbox::start(std::sync::Arc::clone(&field.lab.runtime), field.lab.id(), &spec).await;
    let sandbox = started.unwrap_or_else(|error| panic!("{}", node::error::chain(&error)));
    let seen = collect(&sandbox, &exec(&["ls", "/attack"])).await;
    assert!(!text(&seen).is_empty(), "the layer is not there");
    sandbox
}

/// Creates programs that this user owns, with set-user-ID bits, set-group-ID bits and file capabilities.
fn promising_programs(place: &Path, owner: u32) {
    for (name, mode) in [("set-user-id", 0o4755), ("set-group-id", 0o2755), ("capable", 0o755)] {
        let path = place.join(name);
        compile("K-14", &path);
        std::os::unix::fs::chown(&path, Some(owner), Some(owner)).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, mode);
    }
    // The capabilities CAP_SYS_ADMIN, CAP_SETUID and CAP_SETGID, permitted and effective, valid in user
    // namespaces whose root is the owner.
    let mut value = vec![1, 0, 0, 3];
    for word in [1_u32 << 21 | 1 << 7 | 1 << 6, 0, 0, 0, owner] {
        value.extend(word.to_le_bytes());
    }
    rustix::fs::setxattr(place.join("capable"), "security.capability", &value, XattrFlags::empty()).unwrap();
}

fn open_to_all(path: &Path) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}
