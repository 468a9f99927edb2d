//! Upgrades from an older release, and back. `just upgrade` builds the older release from its commit, and sets
//! `BELLGLASS_OLD_RELEASE` to its executable. It sets `BELLGLASS_FORWARD_ONLY` if there is more than one store
//! migration between the releases, because a server refuses such a rollback.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use api::account::Role;
use e2e::service::{PLENTY, Service, binary, served};
use serde_json::Value;

use super::service::under_load;

/// Returns the executable of the older release. Without one, the test is skipped.
fn old_release() -> Option<PathBuf> {
    let path = std::env::var_os("BELLGLASS_OLD_RELEASE").map(PathBuf::from);
    if path.is_none() {
        println!("skipped: needs an older release, as `just upgrade` builds it");
    }
    path
}

/// Returns the releases that take over from the older one, in this order.
fn successors(old: &Path) -> Vec<PathBuf> {
    let is_forward_only = std::env::var_os("BELLGLASS_FORWARD_ONLY").is_some();
    if is_forward_only { vec![binary()] } else { vec![binary(), old.to_owned()] }
}

/// Upgrades from an older release and rollbacks to it lose no sandbox and no output.
#[test]
#[ignore = "starts real sandboxes"]
fn an_upgrade_from_an_older_release_and_back_under_load_loses_nothing() {
    let Some(old) = old_release() else { return };
    let releases = successors(&old);
    under_load(
        || Service::of_release(&old),
        4,
        |service, time| {
            service.replace(&releases[time as usize % releases.len()]);
        },
    );
}

/// Everything that a server keeps is there after an upgrade from an older release, and after the rollback.
#[test]
#[ignore = "starts real sandboxes"]
fn what_an_older_release_kept_is_there_after_an_upgrade_and_after_the_rollback() {
    let Some(old) = old_release() else { return };
    served(async || {
        let mut service = Service::of_release(&old);
        let key = service.key_of("other", Role::Write, PLENTY).await;
        fed(&service, "a value that is kept", &["secret", "set", "TOKEN"]);
        let allow = ["--allow", "example.org:443", "--label", "kind=kept"];
        output(&service, &[&["create", "--name", "keeper", "--idle", "1h"], &allow[..]].concat());
        output(&service, &["exec", "keeper", "--", "sh", "-c", "echo written before > /workspace/kept"]);
        let ended = output(&service, &["create", "--name", "ended"]);
        output(&service, &["stop", "ended"]);
        let session = output(&service, &["session", "create", "analysis", "--template", "base"]);
        let call = |service: &Service, command: &str| {
            let arguments = format!(r#"{{"command": ["sh", "-c", "{command}"]}}"#);
            let text = output(service, &["session", "call", &session, "sandbox_exec", &arguments]);
            serde_json::from_str::<Value>(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
        };
        assert_eq!(call(&service, "echo of the session > kept")["exit_code"], 0);
        for release in successors(&old) {
            service.kill();
            service.replace(&release);
            service.begin();
            let client = client::Client::new(&service.url(), &key).unwrap();
            assert_eq!(client.sandboxes(true).await.unwrap(), [], "{release:?}: the key of another project");
            assert!(output(&service, &["secret", "list"]).contains("TOKEN"), "{release:?}");
            let kept = output(&service, &["exec", "keeper", "--", "cat", "/workspace/kept"]);
            assert_eq!(kept, "written before", "{release:?}");
            assert!(output(&service, &["policy", "keeper"]).contains("example.org"), "{release:?}");
            let all = service.client().sandboxes(true).await.unwrap();
            let reason = all.iter().find(|one| one.id.as_str() == ended).and_then(|one| one.reason);
            assert_eq!(reason, Some(api::sandbox::EndReason::Stopped), "{release:?}");
            let keeper =
                all.iter().find(|one| one.name.as_ref().is_some_and(|name| name.as_str() == "keeper"));
            assert_eq!(keeper.unwrap().labels.get("kind").map(String::as_str), Some("kept"), "{release:?}");
            assert_eq!(call(&service, "cat kept")["stdout"], "of the session\n", "{release:?}");
            output(&service, &["audit", "verify"]);
        }
        output(&service, &["stop", "keeper"]);
        output(&service, &["session", "end", &session]);
        service.assert_nothing_left().await;
    });
}

/// Runs a command of the service's own release, which must succeed, and returns what it prints.
fn output(service: &Service, words: &[&str]) -> String {
    fed(service, "", words)
}

/// Does the same as [`output`], with text on standard input.
fn fed(service: &Service, input: &str, words: &[&str]) -> String {
    let mut command = service.command(words);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let done = child.wait_with_output().unwrap();
    assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap().trim_end().to_owned()
}
