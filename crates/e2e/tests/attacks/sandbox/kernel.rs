//! Attacks of group K: kernel interfaces that a sandbox must not reach. Each call must fail with the expected
//! error.

use super::field::{BOTH, THROUGH, withstand};
use super::room::Room;

/// Errors with which the filter refuses calls that ordinary programs might make: "not permitted" or "not
/// implemented".
const REFUSED: &str = "EPERM|ENOSYS";

/// Runs one payload in a [`Room`] without defences and in a sandbox. In the room, each attempt must have the
/// given result. In the sandbox, every attempt must be refused.
fn refused_everywhere(id: &'static str, things: &[(&str, &str)]) {
    withstand(id, BOTH, async |field| {
        let control = Room::default().attack(id, &[]);
        control.assert("control", things);
        assert_eq!(control.code, Some(THROUGH), "{control:?}");
        let sandbox = field.sandbox().await;
        let said = field.attack(&sandbox, &[]).await;
        // A kernel without cgroup namespaces lacks the file through which a process could enter one.
        let answer = |thing: &str| if thing == "setns cgroup" { "EPERM|ENOSYS|ENOENT" } else { REFUSED };
        let refused: Vec<(&str, &str)> = things.iter().map(|(thing, _)| (*thing, answer(thing))).collect();
        said.assert("sandbox", &refused);
        said.assert_held("sandbox");
        field.recovers(&sandbox).await;
    });
}

/// Verifies that attack K-01 fails: nothing can be mounted.
#[test]
#[ignore = "starts real sandboxes"]
fn nothing_can_be_mounted() {
    refused_everywhere(
        "K-01",
        &[
            ("mount", "ok"),
            ("bind", "ok"),
            ("remount", "ok"),
            ("umount2", "ok"),
            ("pivot_root", "ok"),
            ("chroot", "ok"),
            ("open_tree", "ok"),
            ("move_mount", "EBADF"),
            ("fsopen", "ok"),
            ("fsconfig", "EINVAL|EBADF"),
            ("fsmount", "EBADF"),
            ("fspick", "ok"),
            ("mount_setattr", "ok"),
        ],
    );
}

/// Verifies that attack K-02 fails: namespaces can be neither created nor entered.
#[test]
#[ignore = "starts real sandboxes"]
fn no_namespace_can_be_made_or_entered() {
    let kinds = ["mnt", "cgroup", "uts", "ipc", "user", "pid", "net"];
    let ways = ["unshare", "clone", "clone3", "setns"];
    let names: Vec<String> = ways.iter().flat_map(|way| kinds.map(|kind| format!("{way} {kind}"))).collect();
    // Every kernel refuses to let a process enter the user namespace that the process is already in.
    let answer = |name: &str| if name == "setns user" { "EINVAL" } else { "ok" };
    let mut things: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), answer(name))).collect();
    things.extend([("unshare time", "ok"), ("clone user high", "ok")]);
    refused_everywhere("K-02", &things);
}

/// Verifies that attack K-04 fails: the kernel accepts no BPF programs, performance events or `userfaultfd`
/// from a sandbox.
#[test]
#[ignore = "starts real sandboxes"]
fn the_kernel_takes_no_code_and_no_measuring() {
    withstand("K-04", BOTH, async |field| {
        let control = Room::default().attack("K-04", &[]);
        // In the room, the kernel processes each call. The kernel may not support every bpf command, and it
        // rejects the descriptor -1.
        control.assert("control", &[("userfaultfd", "ok"), ("perf_event_open", "ok|EACCES")]);
        assert!(control.get("bpf").unwrap().contains("EINVAL"), "{control:?}");
        let sandbox = field.sandbox().await;
        let said = field.attack(&sandbox, &[]).await;
        said.assert(
            "sandbox",
            &[
                ("bpf", "EPERM|ENOSYS"),
                ("perf_event_open", REFUSED),
                ("userfaultfd", REFUSED),
                ("/dev/userfaultfd", "ENOENT"),
            ],
        );
        said.assert_held("sandbox");
        field.recovers(&sandbox).await;
    });
}

/// Verifies that attack K-05 fails: io_uring, through which system calls could bypass the filter, is not
/// available.
#[test]
#[ignore = "starts real sandboxes"]
fn there_is_no_second_door_to_system_calls() {
    refused_everywhere(
        "K-05",
        &[("io_uring_setup", "ok"), ("io_uring_enter", "EBADF"), ("io_uring_register", "EBADF|EINVAL")],
    );
}

/// Verifies that attack K-03 fails: the kernel's keyrings are out of reach.
#[test]
#[ignore = "starts real sandboxes"]
fn no_key_of_the_kernel_is_in_reach() {
    let calls = ["add_key", "request_key", "join session", "keyring of the user", "describe"];
    refused_everywhere("K-03", &calls.map(|call| (call, "ok")));
}

/// Verifies that attack K-15 fails: filters that code adds do not undo the sandbox's filter, and execution
/// domains that weaken a program are refused.
#[test]
#[ignore = "starts real sandboxes"]
fn a_filter_of_ones_own_opens_nothing() {
    withstand("K-15", BOTH, async |field| {
        let calls = ["mount", "io_uring"]
            .map(|call| [format!("{call} under own filter"), format!("{call} under a listener")]);
        let domains = ["no randomization", "executable memory", "page zero", "old layout"];
        let domains = domains.map(|domain| format!("personality {domain}"));
        let things: Vec<&str> = calls.iter().flatten().chain(&domains).map(String::as_str).collect();
        let control = Room::default().attack("K-15", &[]);
        control.assert("control", &things.iter().map(|thing| (*thing, "ok")).collect::<Vec<_>>());
        let sandbox = field.sandbox().await;
        let said = field.attack(&sandbox, &[]).await;
        for thing in things {
            // gVisor has no listeners.
            let is_listener = thing.ends_with("listener") && !field.is_container();
            said.assert("sandbox", &[(thing, if is_listener { "EPERM|ENOSYS|EINVAL" } else { REFUSED })]);
        }
        said.assert_held("sandbox");
        field.recovers(&sandbox).await;
    });
}

/// Verifies that attack K-08 fails: raw packets cannot be sent.
#[test]
#[ignore = "starts real sandboxes"]
fn no_raw_packet_can_be_sent() {
    withstand("K-08", BOTH, async |field| {
        let raw = [
            "inet raw",
            "inet raw tcp",
            "inet raw any",
            "inet6 raw",
            "raw with flags",
            "packet raw",
            "packet dgram",
        ];
        let reached: Vec<(&str, &str)> = raw.iter().map(|thing| (*thing, "ok")).collect();
        let control = Room::default().attack("K-08", &[]);
        control.assert("control", &reached);
        control.assert("control", &[("ping", "ok")]);
        let sandbox = field.sandbox().await;
        let said = field.attack(&sandbox, &[]).await;
        let refused: Vec<(&str, &str)> = raw.iter().map(|thing| (*thing, "EPERM|EAFNOSUPPORT")).collect();
        said.assert("sandbox", &refused);
        said.assert("sandbox", &[("inet packet", "EPERM|ESOCKTNOSUPPORT"), ("ping", "EACCES|EPERM")]);
        said.assert_held("sandbox");
        field.recovers(&sandbox).await;
    });
}

/// Verifies that attack K-09 fails: only four socket families can be opened, and only through the native ABI.
#[test]
#[ignore = "starts real sandboxes"]
fn only_four_socket_families_open_and_only_by_the_native_abi() {
    withstand("K-09", BOTH, async |field| {
        let control = Room::default().attack("K-09", &[]);
        let families = control.get("families").unwrap().split(',').count();
        assert!(families > 4, "control: {control:?}");
        control.assert(
            "control",
            &[("xfrm", "ok"), ("i386 getpid", "ok"), ("i386 socketcall", "ok"), ("i386 socket", "ok")],
        );
        let sandbox = field.sandbox().await;
        let said = field.attack(&sandbox, &[]).await;
        let stopped = "stopped";
        said.assert(
            "sandbox",
            &[
                ("families", "1,2,10,16"),
                ("netlink", "0"),
                ("vsock", stopped),
                ("alg", stopped),
                ("alg high", stopped),
                ("xfrm", stopped),
                ("netfilter", stopped),
                ("socketpair vsock", "EAFNOSUPPORT|EPERM"),
            ],
        );
        if cfg!(target_arch = "x86_64") {
            // In a container, the filter sends SIGSYS. A user-space kernel does not support these ABIs at
            // all.
            let foreign = if field.is_container() { "SIG31" } else { "SIG31|SIG11|ENOSYS" };
            let calls = ["i386 getpid", "i386 socketcall", "i386 socket", "x32 getpid", "x32 socket"];
            said.assert("sandbox", &calls.map(|call| (call, foreign)));
        }
        said.assert_held("sandbox");
        field.recovers(&sandbox).await;
    });
}

/// Verifies that attack K-11 fails: kernel settings cannot be written.
#[test]
#[ignore = "starts real sandboxes"]
fn no_setting_of_the_kernel_can_be_written() {
    withstand("K-11", BOTH, async |field| {
        // Control: on a copy of the tree, every setting can be written. In a room without defences, the
        // settings of the room's own network can be written.
        let copy = tempfile::tempdir().unwrap();
        let settings = ["kernel/core_pattern", "kernel/modprobe", "kernel/hostname", "fs/suid_dumpable"];
        for path in
            settings.map(|name| format!("proc/sys/{name}")).iter().chain([&"proc/sysrq-trigger".to_owned()])
        {
            let path = copy.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "core\n").unwrap();
        }
        std::process::Command::new("chown")
            .arg("-R")
            .arg(super::room::BASE.to_string())
            .arg(copy.path())
            .status()
            .unwrap();
        let room = Room { binds: vec![(copy.path().to_owned(), "/mnt")], ..Room::default() };
        let control = room.attack("K-11", &["/mnt"]);
        control.assert("control on a copy", &settings.map(|name| (name, "ok")));
        control.assert("control on a copy", &[("/proc/sysrq-trigger", "ok")]);
        Room::default().attack("K-11", &[]).assert("control", &[("net/ipv4/ip_forward", "ok")]);
        let sandbox = field.sandbox().await;
        let said = field.attack(&sandbox, &[]).await;
        for (thing, answer) in said.all(17) {
            // A user-space kernel stores this value without passing it on to the host's kernel.
            if thing == "/proc/self/oom_score_adj" && !field.is_container() {
                continue;
            }
            assert!(["EACCES", "EROFS", "EPERM", "ENOENT", "EINVAL"].contains(&answer), "{thing} {answer}");
        }
        field.recovers(&sandbox).await;
    });
}
