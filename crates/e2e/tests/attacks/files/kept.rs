//! Attack T-01: hostile files in a session's folder.

use std::time::{Duration, Instant};

use api::session::{CreateSession, ToolSet};
use e2e::attack;
use e2e::service::served;
use e2e::talk::{Talk, service};
use serde_json::json;

/// Maximum time for a run and for storing its files.
const ANSWERED_WITHIN: Duration = Duration::from_secs(180);

#[test]
#[ignore = "starts real sandboxes"]
fn what_code_leaves_where_files_are_kept_harms_nobody() {
    served(async || {
        let service = service();
        let payload = std::fs::read_to_string(attack::file("T-01", "attack.py")).unwrap();
        let other = Talk::with(&service, CreateSession::of(ToolSet::Interpreter)).await;
        other.call("execute_python_code", json!({"code": "open('mine.csv', 'w').write('mine')"})).await;

        let talk = Talk::with(&service, CreateSession::of(ToolSet::Analysis)).await;
        talk.call("sandbox_write_file", json!({"file_path": "/tmp/attack.py", "content": payload})).await;
        let began = Instant::now();
        let answer =
            talk.call("sandbox_exec", json!({"command": ["python", "/tmp/attack.py", "/tmp/output"]})).await;
        assert!(began.elapsed() < ANSWERED_WITHIN);
        let said = answer["stdout"].as_str().unwrap();
        assert!(said.contains("THROUGH linked") && said.contains("planted"), "the control: {answer}");
        held(&talk).await;
        assert_eq!(talk.sh("echo on").await, "on");

        let talk = Talk::with(&service, CreateSession::of(ToolSet::Interpreter)).await;
        let code = format!("import sys\nsys.argv = ['x', '/workspace', 'many']\n{payload}");
        let began = Instant::now();
        let answer = talk.call("execute_python_code", json!({"code": code})).await;
        assert!(began.elapsed() < ANSWERED_WITHIN);
        assert_eq!(answer["success"], true, "{answer}");
        assert!(answer["files"].as_array().unwrap().len() <= 10);
        held(&talk).await;
        let again = talk.call("execute_python_code", json!({"code": "print('on')"})).await;
        assert_eq!(again["stdout"], "on\n", "{again}");

        assert_eq!(other.client.session_artifact(&other.id, "mine.csv").await.unwrap(), b"mine");
        // Names from a sandbox never become names on the host. File names on the host consist only of fixed
        // words and digits.
        let mut open = vec![service.data().join("sessions")];
        while let Some(directory) = open.pop() {
            for entry in std::fs::read_dir(directory).unwrap().flatten() {
                let name = entry.file_name().into_string().unwrap();
                assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'#'), "{name:?}");
                if entry.file_type().unwrap().is_dir() {
                    open.push(entry.path());
                } else {
                    assert!(entry.metadata().unwrap().len() < 1 << 30, "{name}");
                }
            }
        }
    });
}

/// Asserts that no stored file was read through a link.
async fn held(talk: &Talk) {
    let kept = talk.client.session_artifacts(&talk.id).await.unwrap();
    assert!(kept.iter().any(|one| one.name.ends_with(".csv")), "files that are files are kept");
    for one in kept {
        assert!(!["linked.csv", "waits.csv", "socket.csv"].contains(&one.name.as_str()), "{one:?}");
        assert!(!one.name.starts_with("guest/") && !one.name.starts_with("up/"), "{one:?}");
        if one.size < 1 << 20 {
            let bytes = talk.client.session_artifact(&talk.id, &one.name).await.unwrap();
            assert!(!bytes.starts_with(b"root:"), "{one:?}");
        }
    }
}
