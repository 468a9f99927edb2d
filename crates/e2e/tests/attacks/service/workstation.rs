//! Attack A-21: root of a workstation tries to leave its sandbox.

use api::account::{Quota, Role};
use api::exec::{ExecSpec, Outcome};
use api::files::FilePath;
use api::sandbox::{CreateSandbox, Tier};
use api::{ErrorCode, SandboxId};
use bytes::Bytes;
use client::Client;
use e2e::lab::script;
use e2e::service::{PLENTY, small, tiers};
use e2e::world::in_a_world;

use super::ground::{held, recovers};
use crate::sandbox::rooted;
use crate::sandbox::said::Said;

const PAYLOAD: &str = include_str!("../../../../../attacks/A-21-workstation-root/attack.sh");

/// Attempts of the payload that have a control. The control of `proxied` is `outside`.
const ACTS: [&str; 17] = [
    "mount",
    "bind",
    "guest",
    "channel",
    "disk",
    "device",
    "trace",
    "memory",
    "descriptors",
    "root",
    "unshare",
    "chroot",
    "hostname",
    "kernel",
    "raw",
    "outside",
    "file",
];

async fn said(client: &Client, id: &SandboxId, spec: &ExecSpec) -> String {
    let done = client.exec(id, spec).await.unwrap().collect().await.unwrap();
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert_eq!(
        done.end.outcome,
        Outcome::Exited { code: 0 },
        "{text}{}",
        String::from_utf8_lossy(&done.stderr)
    );
    text
}

fn path(text: &str) -> FilePath {
    FilePath::new(text.as_bytes()).unwrap()
}

/// Asserts that file requests as root can access the same files as commands as root, but neither process 1,
/// nor the host's kernel, nor mounts. Returns the number of attempts.
async fn files_as_root(client: &Client, id: &SandboxId) -> usize {
    let files = client.files(id).as_root();
    // Control: the sandbox's own files are accessible.
    files.write(&path("/etc/own"), Bytes::from_static(b"x"), Some(0o600)).await.unwrap();
    assert_eq!(files.stat(&path("/etc/own")).await.unwrap().uid, 0);
    assert!(client.files(id).read(&path("/etc/own"), 1024).await.is_err(), "control: a file of root's");
    let text = |name: &str| format!("echo through > {name}");
    let forbidden = [
        "/.bellglass/guest",
        "/proc/1/mem",
        "/proc/1/oom_score_adj",
        "/proc/sysrq-trigger",
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/hostname",
        "/sys/kernel/uevent_helper",
        "/sys/fs/cgroup/cgroup.procs",
        "/dev/mem",
        "/dev/kmsg",
    ];
    for name in forbidden {
        // Try the same write with a command that runs as root.
        let shell = ExecSpec { uid: Some(0), ..script(&text(name)) };
        let by_shell = client.exec(id, &shell).await.unwrap().collect().await.unwrap().end.outcome;
        let written = files.write(&path(name), Bytes::from_static(b"through"), None).await;
        // If the device does not exist, the two writes either both create a file in the sandbox's own /dev,
        // or both fail.
        let same = written.is_ok() == (by_shell == Outcome::Exited { code: 0 });
        assert!(same, "{name}: {by_shell:?} by a command, {written:?} as a file");
    }
    for name in ["/proc/1/environ", "/proc/1/root/etc/passwd", "/proc/1/fd/0", "/proc/kcore"] {
        assert!(files.read(&path(name), 1 << 20).await.is_err(), "{name} was read");
    }
    forbidden.len() + 4
}

/// Verifies that attack A-21 fails: root of a workstation has no privileges outside its sandbox.
#[test]
#[ignore = "starts real sandboxes"]
fn root_of_a_workstation_is_root_of_nothing_else() {
    in_a_world(async |world| {
        rooted::assert_reached("A-21", &ACTS);
        let service = world.service();
        service.build("workstation");
        let trusted = service.client_of("trusted", Role::Write, Quota { root: true, ..PLENTY }).await;
        let other = service.client_of("other", Role::Write, PLENTY).await;
        let root = |text: &str| ExecSpec { uid: Some(0), ..script(text) };
        let mut held_all = 0;
        for tier in tiers() {
            let ask = CreateSandbox { tier, template: "workstation".into(), ..small() };
            let id = trusted.create(&ask).await.unwrap().id;
            if tier == Tier::UserKernel {
                // In gVisor, root could reach process 1, so root is not available there.
                let refused = trusted.exec(&id, &root("id")).await.err().unwrap();
                assert_eq!(refused.code(), Some(ErrorCode::InvalidRequest), "{refused}");
                let refused = trusted.files(&id).as_root().stat(&path("/")).await.unwrap_err();
                assert_eq!(refused.code(), Some(ErrorCode::InvalidRequest), "{refused}");
                trusted.stop(&id).await.unwrap();
                continue;
            }
            let tried = said(&trusted, &id, &root(PAYLOAD)).await;
            let tried = Said::read(&tried, "", Some(0));
            rooted::assert_held(&tried, &[&ACTS[..], &["proxied"]].concat());
            held_all += ACTS.len() + 1 + files_as_root(&trusted, &id).await;
            // Control: permitted actions as root succeed, and the ordinary user still has no privileges.
            let lawful = "echo x > /etc/lawful; chown 1000:1000 /etc/lawful; stat -c %u /etc/lawful; id -u";
            assert_eq!(said(&trusted, &id, &root(lawful)).await, "1000\n0\n");
            let user =
                "id -u; grep CapEff /proc/self/status | cut -f2; rm -f /etc/passwd 2>/dev/null || echo no";
            assert_eq!(said(&trusted, &id, &script(user)).await, "1000\n0000000000000000\nno\n");
            trusted.stop(&id).await.unwrap();
            // Root is refused to a project without permission for root, and in a template without root.
            let theirs = other.create(&ask).await.unwrap().id;
            let plain = trusted.create(&CreateSandbox { tier, ..small() }).await.unwrap().id;
            for (client, id) in [(&other, &theirs), (&trusted, &plain)] {
                let refused = client.exec(id, &root("id")).await.err().unwrap();
                assert_eq!(refused.code(), Some(ErrorCode::InvalidRequest), "{refused}");
                assert!(refused.to_string().contains("uid 0"), "{refused}");
                let refused = client.files(id).as_root().stat(&path("/")).await.unwrap_err();
                assert_eq!(refused.code(), Some(ErrorCode::InvalidRequest), "{refused}");
                assert_eq!(said(client, id, &script("id -u")).await, "1000\n");
                client.stop(id).await.unwrap();
            }
        }
        recovers(&service).await;
        held(
            "A-21",
            &format!(
                "{held_all} tries as root; refused without the project's right, and without a workstation"
            ),
        );
    });
}
