//! Attacks of groups A and R on the state that an exec could inherit: its working directory, descriptors,
//! variables, privileges and user IDs.

use api::ErrorCode;
use api::exec::{ExecSpec, Outcome};
use api::limits::UID_MAX;
use e2e::lab::{collect, exec, sh, start, text};

use super::field::{BOTH, THROUGH, payload, said, withstand};
use super::room::Room;

/// Environment variables that every exec has.
const VARIABLES: [&str; 16] = [
    "ALL_PROXY",
    "HOME",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "LANG",
    "NODE_USE_ENV_PROXY",
    "NO_PROXY",
    "PATH",
    "SHELL",
    "TMPDIR",
    "TZ",
    "USER",
    "all_proxy",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];
/// Environment variables that shells and interpreters add.
const ADDED: [&str; 4] = ["PWD", "SHLVL", "_", "LC_CTYPE"];

/// Verifies that attacks, modelled on CVE-2024-21626, fail: no working directory leads out of
/// the sandbox.
#[test]
#[ignore = "starts real sandboxes"]
fn no_working_directory_leads_outside() {
    withstand("A-10", BOTH, async |field| {
        let control = Room::default().attack("A-10", &["leak"]);
        control.assert("control", &[("through a descriptor", "ok"), ("at", "/etc")]);
        let sandbox = field.sandbox().await;
        let places =
            "cd /workspace; ln -s loop loop; mkdir -m 0 closed; ln -s / root; ln -s /proc/self/fd/7 seven";
        assert_eq!(sh(&sandbox, places).await.end.outcome, Outcome::Exited { code: 0 });
        let mut asked: Vec<String> = (0..=100).map(|number| format!("/proc/self/fd/{number}")).collect();
        asked.extend((3..20).map(|number| format!("/proc/self/fd/{number}/../../..")));
        let more = "/proc/1/cwd /proc/1/root /proc/self/cwd /proc/self/root /proc/thread-self/fd/5 /proc/self/task \
                    /workspace/loop /workspace/closed /workspace/root /workspace/seven ../../.. /.bellglass \
                    /.bellglass/channel /.bellglass/spool /proc/1/fd/5 /dev/fd/6 /proc/self/ns /workspace/../../..";
        asked.extend(more.split_whitespace().map(str::to_owned));
        asked.push(String::new());
        let mut stood = 0;
        for cwd in asked {
            let spec = ExecSpec { cwd: Some(cwd.clone()), ..field.payload(&[]) };
            match start(&sandbox, &spec).await {
                Ok(exec) => {
                    let said = said(&exec.collect().await.unwrap());
                    assert_eq!(said.get("root"), Some("same"), "{cwd}: {}", said.raw);
                    stood += 1;
                }
                Err(error) => assert_eq!(error.to_api().code, ErrorCode::SpawnFailed, "{cwd}"),
            }
        }
        assert!(stood > 0, "not one of them is a directory");
        field.recovers(&sandbox).await;
    });
}

/// Verifies that attacks fail: the first process of an exec has exactly three descriptors.
#[test]
#[ignore = "starts real sandboxes"]
fn the_first_process_has_three_descriptors() {
    withstand("A-11", BOTH, async |field| {
        // Control: the payload detects an inherited descriptor.
        let mut argv =
            ["/bin/bash", "-c", "exec 9</etc 8<>/tmp/leak; exec \"$0\" \"$@\""].map(str::to_owned).to_vec();
        argv.extend(payload(field.id, &[]));
        let control = Room::default().run(&argv);
        assert_eq!(control.code, Some(THROUGH), "{control:?}");
        assert!(control.all(1).any(|(thing, _)| thing.starts_with("descriptor-9-")), "{control:?}");
        let sandbox = field.sandbox().await;
        // Run a second exec at the same time, so that the guest holds that exec's descriptors open.
        let other = start(&sandbox, &ExecSpec { stdin: true, ..exec(&["cat"]) }).await.unwrap();
        for stdin in [false, true] {
            let spec = ExecSpec { stdin, ..field.payload(&[]) };
            let said = said(&collect(&sandbox, &spec).await);
            said.assert_held("sandbox");
            let standard = if stdin { "pipe" } else { "/dev/null" };
            said.assert(
                "sandbox",
                &[("standard 0", standard), ("standard 1", "pipe"), ("standard 2", "pipe")],
            );
        }
        other.cancel().await.unwrap();
        field.recovers(&sandbox).await;
    });
}

/// Verifies that attack A-12 fails: an exec inherits no environment variables of the host.
#[test]
#[ignore = "starts real sandboxes"]
fn no_variable_of_the_host_is_inherited() {
    withstand("A-12", BOTH, async |field| {
        // Control: an ordinary child of this process inherits all variables.
        let words = payload(field.id, &[]);
        let control = std::process::Command::new("python3").args(&words[1..]).output().unwrap();
        let control = String::from_utf8_lossy(&control.stdout).into_owned();
        let inherited: Vec<String> = std::env::vars().map(|(name, _)| format!("self {name}")).collect();
        assert!(
            inherited.len() > 2 && inherited.iter().all(|line| control.contains(line)),
            "control: {control}"
        );
        e2e::attack::count_control();
        let sandbox = field.sandbox().await;
        let mut spec = field.payload(&[]);
        spec.env.insert("MINE".into(), "1".into());
        let done = collect(&sandbox, &spec).await;
        for line in text(&done).lines() {
            let (source, name) = line.split_once(' ').unwrap();
            let known = match source {
                "self" => VARIABLES.contains(&name) || ADDED.contains(&name) || name == "MINE",
                // Under a user-space kernel, the variables of the parent process, the guest, can be read. The
                // guest has only these two.
                "1" | "parent" => name == "PATH" || name == "HOME",
                _ => name == "EACCES",
            };
            assert!(known, "{line}");
        }
        assert!(text(&done).contains("self MINE"));
        field.recovers(&sandbox).await;
    });
}

/// Verifies that attack R-05, modelled on CVE-2022-29162 and CVE-2022-27650, fails: an exec has no
/// capabilities, whatever its user ID.
#[test]
#[ignore = "starts real sandboxes"]
fn an_exec_has_no_more_rights_than_a_start() {
    withstand("R-05", BOTH, async |field| {
        let control = Room::default().attack("R-05", &[]);
        control
            .assert("control", &[("CapInh", "ok"), ("CapEff", "ok"), ("CapAmb", "ok"), ("NoNewPrivs", "0")]);
        let sandbox = field.sandbox().await;
        for uid in [1000, 1, 1001, 20_000, UID_MAX] {
            let said = said(&collect(&sandbox, &ExecSpec { uid: Some(uid), ..field.payload(&[]) }).await);
            said.assert_held("sandbox");
            let ids = vec![uid.to_string(); 4].join("+");
            for set in ["CapInh", "CapPrm", "CapEff", "CapBnd"] {
                said.assert("sandbox", &[(set, "none")]);
            }
            said.assert("sandbox", &[("Uid", &ids), ("Gid", &ids), ("NoNewPrivs", "1"), ("Seccomp", "2")]);
            let group: u32 = said.get("Groups").unwrap().parse().unwrap();
            assert!((20_000..60_000).contains(&group), "{}", said.raw);
        }
        field.recovers(&sandbox).await;
    });
}

/// Verifies that attack R-09, modelled on CVE-2026-30892, fails: a user ID is used exactly as requested, or
/// refused.
#[test]
#[ignore = "starts real sandboxes"]
fn an_identity_is_exact_or_refused() {
    withstand("R-09", BOTH, async |field| {
        let words = std::fs::read_to_string(e2e::attack::file("R-09", "attack.json")).unwrap();
        let asked: Vec<serde_json::Value> = serde_json::from_str(&words).unwrap();
        // Control: without the check of the number, the uid of root is used as requested.
        let undefended = {
            let _undefended = super::field::turn_off("R-09");
            field.sandbox().await
        };
        let as_root = {
            let _undefended = super::field::turn_off("R-09");
            collect(&undefended, &ExecSpec { uid: Some(0), ..exec(&["id", "-u"]) }).await
        };
        assert_eq!(text(&as_root), "0\n", "control: {as_root:?}");
        let sandbox = field.sandbox().await;
        let mut refused = 0;
        for uid in asked {
            let request = serde_json::json!({ "argv": ["id", "-u"], "uid": uid });
            let Ok(spec) = serde_json::from_value::<ExecSpec>(request) else {
                refused += 1;
                continue;
            };
            match start(&sandbox, &spec).await {
                Ok(exec) => {
                    let seen = text(&exec.collect().await.unwrap());
                    assert_eq!(seen.trim(), uid.to_string(), "asked for {uid}");
                    assert_ne!(seen.trim(), "0", "{uid} is root");
                }
                Err(error) => {
                    assert_eq!(error.to_api().code, ErrorCode::InvalidRequest, "{uid}");
                    refused += 1;
                }
            }
        }
        assert!(refused >= 25, "only {refused} were refused");
        for uid in [1, 999, 1000, 1001, UID_MAX] {
            let spec = ExecSpec { uid: Some(uid), ..exec(&["id", "-u"]) };
            assert_eq!(text(&collect(&sandbox, &spec).await), format!("{uid}\n"));
        }
        field.recovers(&sandbox).await;
    });
}
