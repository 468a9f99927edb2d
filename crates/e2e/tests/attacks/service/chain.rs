//! Attack L-14: the audit log is truncated or modified, or loses a line or a file. The tests also check the
//! log's entries about refused create requests.

use std::fs;
use std::path::{Path, PathBuf};

use api::account::{Quota, Role};
use e2e::service::{PLENTY, Service, served, until};
use serde_json::{Value, json};

use super::ground::{held, keyed, recovers, small};

/// Number of actions. Their entries fill several log files of 4 KiB.
const ACTS: usize = 120;
/// Number of actions after which the test waits until the log contains their entries.
const AT_ONCE: usize = 5;

/// Runs `bellglass audit verify`. Returns true if the log is intact, together with the command's output.
fn verify(service: &Service, undefended: bool) -> (bool, String) {
    let mut command = service.command(&["audit", "verify"]);
    if undefended {
        command.env(api::defence::VARIABLE, "L-14");
    }
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

/// Returns the files of the log. The oldest file comes first, and the current file comes last.
fn files(data: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(data).unwrap().flatten().map(|entry| entry.path());
    let is_full = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.strip_prefix("audit.log.").is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let mut full: Vec<_> = entries.filter(is_full).collect();
    full.sort();
    full.push(data.join("audit.log"));
    full
}

fn entries(data: &Path) -> Vec<Value> {
    // While this function reads, a file may be renamed or a line may be incomplete. The callers wait until
    // the entries are complete.
    let text: String = files(data).iter().map(|path| fs::read_to_string(path).unwrap_or_default()).collect();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_default()).collect()
}

type Tampering = (&'static str, fn(&[PathBuf]), &'static str);

fn without_line(path: &Path, line: usize) {
    let text = fs::read_to_string(path).unwrap();
    let kept = text.split_inclusive('\n').enumerate().filter(|(number, _)| *number != line);
    fs::write(path, kept.map(|(_, line)| line).collect::<String>()).unwrap();
}

const TAMPERINGS: [Tampering; 5] = [
    (
        "a changed line",
        |files| {
            let text = fs::read_to_string(&files[1]).unwrap();
            fs::write(&files[1], text.replacen("\"many\"", "\"none\"", 1)).unwrap();
        },
        "audit.log.000002, line ",
    ),
    ("a missing line", |files| without_line(&files[1], 3), "1 entries are missing before this line"),
    ("a missing file", |files| fs::remove_file(&files[1]).unwrap(), "entries are missing before this line"),
    ("a missing first file", |files| fs::remove_file(&files[0]).unwrap(), "entries of the log are missing"),
    (
        "a cut end",
        |files| {
            // The current file has no entries if the previous file has only just been filled.
            let has_entries = |path: &&PathBuf| fs::metadata(path).unwrap().len() > 0;
            fs::write(files.iter().rfind(has_entries).unwrap(), "").unwrap();
        },
        "missing at the end",
    ),
];

/// Fills several files of the log. It pauses regularly, because on a slow disk all pending entries would be
/// written to one file.
async fn fill(service: &Service, data: &Path) {
    for act in 1..=ACTS {
        let put = keyed(service, &service.key, "PUT", "/v1/projects/many", &json!({ "quota": PLENTY }));
        assert_eq!(put.status, 200, "{put:?}");
        if act % AT_ONCE == 0 {
            until(std::time::Duration::from_secs(10), "the log to be written", async || {
                entries(data).iter().filter(|entry| entry["detail"] == "many").count() == act
            })
            .await;
        }
    }
}

/// Verifies that attack L-14 fails: every removal from the audit log and every change to it is detected.
#[test]
#[ignore = "starts real sandboxes"]
fn whatever_is_taken_out_of_the_audit_log_shows() {
    served(async || {
        let place = tempfile::tempdir().unwrap();
        let config = place.path().join("serve.toml");
        fs::write(&config, "pool_ready = 0\naudit_bytes_max = 65536\n").unwrap();
        let mut service = Service::with(&[], &["--config", config.to_str().unwrap()]);
        let data = service.data().to_owned();
        // The log records the results of create requests: one sandbox was created and one was refused.
        let poor = service.key_of("poor", Role::Write, Quota { sandboxes: 0, ..PLENTY }).await;
        assert_eq!(keyed(&service, &poor, "POST", "/v1/sandboxes", &small()).status, 429);
        recovers(&service).await;
        fill(&service, &data).await;
        let all = entries(&data);
        // The server records the end of the log in a separate file within a second.
        until(std::time::Duration::from_secs(10), "the head", async || {
            let head = fs::read_to_string(data.join("audit.log.head")).unwrap_or_default();
            head.split_whitespace().next() == Some(entries(&data).len().to_string().as_str())
        })
        .await;
        let of = |project: &str, act: &str| {
            all.iter().filter(|entry| entry["project"] == project && entry["act"] == act).count()
        };
        assert_eq!((of("poor", "sandbox_create"), of("poor", "sandbox_refused")), (0, 1));
        assert_eq!((of("default", "sandbox_create"), of("default", "sandbox_refused")), (1, 0));
        let count = files(&data).len();
        assert!(count >= 4, "{count} files");
        let (whole, said) = verify(&service, false);
        assert!(whole && said.contains("the audit log is intact"), "{said}");
        service.kill();
        let (whole, said) = verify(&service, false);
        assert!(whole, "{said}");
        let kept = files(&data).into_iter().chain([data.join("audit.log.head")]);
        let copies: Vec<_> = kept.map(|path| (path.clone(), fs::read(path).unwrap())).collect();
        for (what, tamper, expected) in TAMPERINGS {
            tamper(&files(&data));
            let (whole, said) = verify(&service, false);
            assert!(!whole && said.contains(expected), "{what}: {said}");
            // Control: without the defence, the modification is not detected.
            let (whole, said) = verify(&service, true);
            assert!(whole, "control, {what}: {said}");
            e2e::attack::count_control();
            for (path, bytes) in &copies {
                fs::write(path, bytes).unwrap();
            }
        }
        // When the server starts, it reports the damage too.
        for (place, expected) in [(0, "the audit log is damaged"), (4, "the audit log was truncated")] {
            let before = service.words().len();
            TAMPERINGS[place].1(&files(&data));
            service.begin();
            until(std::time::Duration::from_secs(10), expected, async || {
                service.words()[before..].contains(expected)
            })
            .await;
            recovers(&service).await;
            service.kill();
            for path in files(&data) {
                fs::remove_file(path).unwrap();
            }
            for (path, bytes) in &copies {
                fs::write(path, bytes).unwrap();
            }
        }
        held(
            "L-14",
            &format!("{} entries in {count} files; {} kinds of tampering", all.len(), TAMPERINGS.len()),
        );
    });
}
