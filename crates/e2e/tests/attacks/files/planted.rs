//! Attacks P-02, P-03, P-04, P-06, P-07, P-08 and P-13: links, devices and unreadable files where a file is
//! expected.

use std::time::Duration;

use api::ErrorCode;
use api::files::{FileInfo, FileKind};

use e2e::attack;
use serde_json::Value;

use super::ground::{code, each, path, timed};
use crate::sandbox::room::Room;
use crate::service::ground::keyed;

/// A file inside the sandbox that must not change. Users can read it, but not write to it.
const SENTINEL: &str = "/etc/passwd";

/// Verifies that attacks P-02, P-03 and P-04 fail: file operations list symlinks that user code has planted,
/// but never follow them.
#[test]
#[ignore = "starts real sandboxes"]
fn links_are_listed_and_never_followed_by_what_reads_writes_or_removes() {
    each(async |ground| {
        // Control: without the defence, the same request reads through the link.
        let control = ground.without_defence("P-02").await;
        control.run(&format!("ln -s {SENTINEL} link")).await;
        // The client would refuse to read a symlink itself.
        let content = format!("/v1/sandboxes/{}/files/content?path=/workspace/link", control.sandbox);
        let answer = keyed(&control.service, &control.service.key, "GET", &content, &Value::Null);
        assert!(answer.body.starts_with("root:"), "control: {answer:?}");
        control.end().await;
        let before = std::fs::metadata("/etc/shadow").unwrap();
        ground
            .run(
                "mkdir out && cd out && ln -s /etc/shadow shadow && ln -s /proc/1/environ environ && ln -s ../../.. up && \
                 ln -s nowhere dangling && ln -s itself itself && ln -s /etc/passwd passwd && echo own > ../own && \
                 ln -s ../own own && n=own && for i in $(seq 40); do ln -s $n c$i; n=c$i; done",
            )
            .await;
        let listed = ground.files.list(&path("out"), 9).await.unwrap();
        assert_eq!(listed.len(), 47);
        assert!(
            listed.iter().all(|info| info.kind == FileKind::Symlink && info.target.is_some()),
            "{listed:?}"
        );
        for info in &listed {
            let place = info.exact().unwrap();
            assert_eq!(code(ground.files.read(&place, 1000).await), ErrorCode::NotRegular, "{place:?}");
            assert_eq!(
                code(ground.files.write(&place, "x".into(), None).await),
                ErrorCode::NotRegular,
                "{place:?}"
            );
            assert_eq!(code(ground.files.hash(&place).await), ErrorCode::NotRegular, "{place:?}");
        }
        assert_eq!(ground.run("cat own").await, "own", "nothing was written through a link");
        let passwd = ground.run(&format!("sha256sum < {SENTINEL}; stat -c '%u %a' {SENTINEL}")).await;
        ground.files.copy(&path("out"), &path("copied"), false).await.unwrap();
        ground.files.remove(&path("out"), true).await.unwrap();
        assert_eq!(ground.run(&format!("sha256sum < {SENTINEL}; stat -c '%u %a' {SENTINEL}")).await, passwd);
        assert_eq!(
            ground.run("cat own; find copied -type l | wc -l").await,
            "own\n47",
            "copies are links, too"
        );
        let after = std::fs::metadata("/etc/shadow").unwrap();
        assert_eq!((before.modified().unwrap(), before.len()), (after.modified().unwrap(), after.len()));
        ground
            .held("P-02", "47 links read, written, hashed, copied, removed: none followed (P-03, P-04 too)");
    });
}

/// Verifies that attack P-06 fails: a hard link names the same file on the sandbox's own disk and gives no
/// additional access.
#[test]
#[ignore = "starts real sandboxes"]
fn a_hard_link_reaches_nothing_that_its_maker_could_not() {
    each(async |ground| {
        let made = ground
            .run(
                "echo mine > a && ln a b && ln /etc/passwd p 2>/dev/null && echo linked; \
                 ln /usr/bin/env e 2>/dev/null && echo linked; ls",
            )
            .await;
        assert!(!made.contains("linked"), "another mount, or another owner: {made}");
        assert_eq!(ground.files.read(&path("b"), 10).await.unwrap(), b"mine\n");
        ground.files.write(&path("b"), "new".into(), None).await.unwrap();
        assert_eq!(ground.run("cat a").await, "mine", "a file that is replaced leaves its other names alone");
        // Control: if the guest writes in place, the same request changes the file under both of its names.
        let control = ground.without_defence("U-08").await;
        control.run("echo mine > a && ln a b").await;
        control.files.write(&path("b"), "new".into(), None).await.unwrap();
        assert_eq!(control.run("cat a").await, "new", "control");
        control.end().await;
        ground.held("P-06", "two foreign files, one own");
    });
}

/// Verifies that attacks P-07 and P-08 fail: everything except a regular file is refused immediately and
/// never opened.
#[test]
#[ignore = "starts real sandboxes"]
fn what_is_no_file_is_refused_at_once_and_never_opened() {
    each(async |ground| {
        ground
            .run(
                "mkfifo fifo && python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('/workspace/socket')\" && \
                 mkdir directory",
            )
            .await;
        // Control: a program that opens a FIFO without precautions waits for a writer.
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let waits = std::process::Command::new("timeout").args(["0.3", "cat"]).arg(&fifo).status().unwrap();
        assert_eq!(waits.code(), Some(124));
        attack::count_control();
        let mut slowest = Duration::ZERO;
        for place in ["fifo", "socket", "directory", "/dev/zero", "/dev/null", "/dev/urandom"] {
            let place = path(place);
            let (read, took) = timed(ground.files.read(&place, 1000)).await;
            assert_eq!(code(read), ErrorCode::NotRegular, "{place:?}");
            assert_eq!(
                code(ground.files.write(&place, "x".into(), None).await),
                ErrorCode::NotRegular,
                "{place:?}"
            );
            slowest = slowest.max(took);
        }
        for endless in ["/proc/kmsg", "/proc/self/mem", "/proc/self/pagemap", "/proc/cpuinfo"] {
            let (read, took) = timed(ground.files.read(&path(endless), 1 << 20)).await;
            assert!(!matches!(&read, Ok(bytes) if bytes.len() > 1 << 20), "{endless}");
            slowest = slowest.max(took);
        }
        assert!(slowest < Duration::from_secs(2), "{slowest:?}");
        ground.held("P-07", &format!("10 kinds, the slowest refusal {slowest:?} (P-08 too)"));
    });
}

/// Verifies that attack P-13 fails: an unreadable file or directory is listed together with its error.
#[test]
#[ignore = "starts real sandboxes"]
fn what_may_not_be_read_is_listed_and_says_so() {
    each(async |ground| {
        ground
            .run(
                "mkdir d closed && echo x > d/none && chmod 000 d/none && echo y > d/fine && mkdir d/shut && echo z > d/shut/in && \
                 chmod 000 d/shut",
            )
            .await;
        let listed = ground.files.list(&path("d"), 5).await.unwrap();
        let find =
            |name: &str| -> &FileInfo { listed.iter().find(|info| info.path.ends_with(name)).unwrap() };
        assert_eq!(listed.len(), 3, "{listed:?}");
        assert!(
            find("/shut").error.as_ref().is_some_and(|error| error.code == ErrorCode::Forbidden),
            "{listed:?}"
        );
        assert!(find("/fine").error.is_none() && find("/none").kind == FileKind::File);
        assert_eq!(code(ground.files.read(&path("d/none"), 10).await), ErrorCode::Forbidden);
        assert_eq!(
            code(ground.files.write(&path("/etc/passwd"), "x".into(), None).await),
            ErrorCode::Forbidden
        );
        assert_eq!(
            code(ground.files.write(&path("/usr/bin/x"), "x".into(), None).await),
            ErrorCode::Forbidden
        );
        // Control: in a room without the defences, root reads another user's file of mode 000, and writes to
        // another user's file.
        let script = "cd /tmp; echo x > none; chown 1000 none; chmod 000 none; \
                      cat none >/dev/null && echo read ok; echo y > none && echo write ok";
        let control = Room::default().run(&["/bin/bash", "-c", script].map(str::to_owned));
        control.assert("control", &[("read", "ok"), ("write", "ok")]);
        ground.run("chmod 700 d/shut").await;
        ground.held("P-13", "one directory shut, two others listed");
    });
}
