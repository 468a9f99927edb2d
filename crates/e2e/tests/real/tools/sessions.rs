//! Sessions: their sandboxes, stored files and events, and their recovery after kills of the server.

use std::time::Duration;

use api::ErrorCode;
use api::account::Role;
use api::session::{CreateSession, Persistence, RunState, SessionEvent, ToolSet};
use bytes::Bytes;
use client::Calling;
use e2e::service::PLENTY;
use e2e::talk::{Talk, in_one_session};
use serde_json::json;

/// Checks requirements A1.03, A1.07, A5.02 and A6.02: the first call creates the sandbox, and a later call
/// replaces the sandbox if it has ended.
#[test]
#[ignore = "starts real sandboxes"]
fn a_sandbox_is_made_for_the_first_call_and_again_when_it_is_gone() {
    in_one_session(ToolSet::Analysis, async |service, talk| {
        talk.client.add_dataset(&talk.id, "one", Bytes::from_static(b"1\n")).await.unwrap();
        assert_eq!(
            talk.sh("cat /tmp/data/one.csv; echo mine > /tmp/data/one.csv; touch /tmp/here").await,
            "1"
        );
        let first = talk.client.session(&talk.id).await.unwrap().sandbox.unwrap();
        talk.client.add_dataset(&talk.id, "two", Bytes::from_static(b"2\n")).await.unwrap();
        assert_eq!(
            talk.sh("cat /tmp/data/one.csv /tmp/data/two.csv; ls /tmp/here").await,
            "mine\n2\n/tmp/here"
        );
        let clash = talk.client.add_dataset(&talk.id, "a b", Bytes::new()).await;
        assert!(clash.is_ok());
        let clash = talk.client.add_dataset(&talk.id, "a/b", Bytes::new()).await.unwrap_err().to_api();
        assert_eq!(clash.code, ErrorCode::Conflict, "requirement A5.02: two names of one file");

        talk.client.stop(&first).await.unwrap();
        assert_eq!(talk.sh("cat /tmp/data/*.csv; ls /tmp/here 2>/dev/null || echo gone").await, "1\n2\ngone");
        assert!(
            service.words().contains("the sandbox of the session has ended, and the files in it are gone")
        );
        let second = talk.client.session(&talk.id).await.unwrap().sandbox.unwrap();
        assert_ne!(first, second);

        let call = json!({"tool": "sandbox_exec", "parameters": {"command": ["env"]}, "reasoning_trace": "looking around"});
        let called = talk.called("sandbox_exec", call).await;
        assert!(!called.result.to_string().contains("looking"), "requirement A6.02: the sandbox is not told");
        let runs = talk.client.runs(&talk.id).await.unwrap();
        let last = runs.last().unwrap();
        assert_eq!((&last.id, last.reasoning_trace.as_deref()), (&called.run, Some("looking around")));
        assert_eq!((last.state, last.result.as_ref()), (RunState::Ended, Some(&called.result)));
        talk.client.end_session(&talk.id).await.unwrap();
        service.assert_nothing_left().await;
    });
}

/// Checks requirements A3.08 and A5.06: a run's events are published while the run is in progress.
#[test]
#[ignore = "starts real sandboxes"]
fn whoever_follows_a_session_sees_output_pictures_and_its_end() {
    in_one_session(ToolSet::Analysis, async |_, talk| {
        let mut events = talk.client.session_events(&talk.id);
        let following = tokio::spawn(async move {
            let mut seen = Vec::new();
            loop {
                let event =
                    tokio::time::timeout(Duration::from_secs(60), events.next()).await.unwrap().unwrap();
                let last = event == SessionEvent::SessionEnded;
                seen.push(event);
                if last {
                    return seen;
                }
            }
        });
        tokio::time::sleep(Duration::from_millis(500)).await;
        let script = "echo one; echo two >&2; cp /usr/share/pixmaps/*.png /tmp/output/ 2>/dev/null; printf x > /tmp/output/p.png";
        let called = talk.called("sandbox_exec", json!({"command": ["sh", "-c", script]})).await;
        talk.client.end_session(&talk.id).await.unwrap();
        let seen = following.await.unwrap();
        let mut words = Vec::new();
        for event in &seen {
            match event {
                SessionEvent::Sandbox { sandbox } => words.push(sandbox.state.name().to_owned()),
                SessionEvent::RunStarted { run } => words.push(format!("begins {}", run.tool)),
                SessionEvent::Output { run, stream, text, .. } => {
                    assert_eq!(*run, called.run);
                    words.push(format!("{stream:?} {}", text.as_deref().unwrap_or_default().trim()));
                }
                SessionEvent::Visualization { artifact, .. } => {
                    words.push(format!("shows {}", artifact.name))
                }
                SessionEvent::RunEnded { run } => words.push(format!("ends {:?}", run.state)),
                SessionEvent::SessionEnded => words.push("over".into()),
                SessionEvent::Missed { .. } | SessionEvent::Heartbeat => {}
            }
        }
        for word in [
            "starting",
            "running",
            "begins sandbox_exec",
            "Stdout one",
            "Stderr two",
            "shows p.png",
            "ends Ended",
            "over",
        ] {
            assert!(words.iter().any(|one| one == word), "{word} is not among {words:?}");
        }
        assert_eq!(words.last().unwrap(), "over");
    });
}

/// If the server is killed during a call, nothing is lost and nothing is executed twice.
#[test]
#[ignore = "starts real sandboxes"]
fn a_call_survives_a_server_that_is_killed_under_it() {
    in_one_session(ToolSet::Python, async |service, talk| {
        talk.call("execute_python", json!({"script": "open('/workspace/count', 'w').close()"})).await;
        let script = "import time\nopen('/workspace/count', 'a').write('x')\nfor n in range(40):\n    print(n, flush=True)\n    time.sleep(0.1)";
        let calling = talk.clone();
        let call =
            tokio::spawn(async move { calling.call("execute_python", json!({"script": script})).await });
        talk.until_printing().await;
        service.kill();
        tokio::time::sleep(Duration::from_millis(300)).await;
        service.begin();
        let answer = call.await.unwrap();
        let all: String = (0..40).map(|n| format!("{n}\n")).collect();
        assert_eq!(answer, json!({"exit_code": 0, "stdout": all, "stderr": ""}));
        let count =
            talk.call("execute_python", json!({"script": "print(open('/workspace/count').read())"})).await;
        assert_eq!(count["stdout"], "x\n", "it ran once");
    });
}

/// With `ends_with_caller`, a run is cancelled when its caller disconnects, so that other calls do not have
/// to wait for it.
#[test]
#[ignore = "starts real sandboxes"]
fn a_call_ends_with_its_caller_if_it_asks_for_that() {
    in_one_session(ToolSet::Analysis, async |_, talk| {
        talk.sh("true").await;
        let calling = talk.clone();
        let long = tokio::spawn(async move {
            let arguments = json!({"command": ["sh", "-c", "echo up; exec sleep 77"], "timeout": 100});
            let calling_off = Calling { ends_with_caller: true };
            calling.client.call_tool(&calling.id, "sandbox_exec", &arguments, calling_off).await
        });
        talk.until_printing().await;
        long.abort();
        let began = std::time::Instant::now();
        assert_eq!(talk.sh("ps ax | grep -c '[s]leep 77' || true").await, "0");
        assert!(began.elapsed() < Duration::from_secs(10));
        let runs = talk.client.runs(&talk.id).await.unwrap();
        assert!(runs.iter().any(|run| run.outcome == Some(api::exec::Outcome::Cancelled)), "{runs:?}");
    });
}

/// Checks requirements A1.01, A1.08 and A11.05: sessions cannot access each other's data, and neither can
/// projects.
#[test]
#[ignore = "starts real sandboxes"]
fn sessions_are_apart() {
    in_one_session(ToolSet::Interpreter, async |service, talk| {
        talk.call("execute_python_code", json!({"code": "open('secret.txt', 'w').write('mine')"})).await;
        let other = Talk::with(service, CreateSession::of(ToolSet::Interpreter)).await;
        let seen =
            other.call("execute_python_code", json!({"code": "import os\nprint(os.listdir('.'))"})).await;
        assert_eq!(seen["stdout"], "['script.py']\n");
        for name in ["secret.txt", "../secret.txt", "..%2F..%2Fsecret.txt", "/etc/passwd"] {
            let error = other.client.session_artifact(&other.id, name).await.unwrap_err().to_api();
            assert_eq!(error.code, ErrorCode::NotFound, "{name}");
        }
        other.client.clear_session(&other.id).await.unwrap();
        assert_eq!(talk.client.session_artifact(&talk.id, "secret.txt").await.unwrap(), b"mine");
        let stranger = service.client_of("strangers", Role::Admin, PLENTY).await;
        assert_eq!(stranger.session(&talk.id).await.unwrap_err().to_api().code, ErrorCode::NotFound);
        let call = stranger
            .call_tool(&talk.id, "execute_python_code", &json!({"code": "1"}), Calling::default())
            .await;
        assert_eq!(call.unwrap_err().to_api().code, ErrorCode::NotFound);
        assert!(stranger.sessions().await.unwrap().is_empty());
        assert_eq!(talk.client.sessions().await.unwrap().len(), 2);
        let reader = service.client_of("default", Role::Read, PLENTY).await;
        let call = reader
            .call_tool(&talk.id, "execute_python_code", &json!({"code": "1"}), Calling::default())
            .await;
        assert_eq!(call.unwrap_err().to_api().code, ErrorCode::Forbidden);
        // A session can choose its persistence (requirement A1.03).
        let stays = CreateSession {
            persistence: Some(Persistence::Session),
            ..CreateSession::of(ToolSet::Interpreter)
        };
        let stays = Talk::with(service, stays).await;
        stays.call("execute_python_code", json!({"code": "open('/tmp/stays', 'w')"})).await;
        let seen = stays
            .call("execute_python_code", json!({"code": "import os\nprint(os.path.exists('/tmp/stays'))"}))
            .await;
        assert_eq!(seen["stdout"], "True\n");
    });
}

/// Checks requirements A8.06 and A10.04: if the server is killed during a run, the next run gets a different
/// sandbox, and the folder keeps its files.
#[test]
#[ignore = "starts real sandboxes"]
fn files_of_a_session_outlive_killed_servers_and_sandboxes() {
    in_one_session(ToolSet::Interpreter, async |service, talk| {
        let run = async |code: &str| talk.call("execute_python_code", json!({"code": code})).await;
        run("open('kept.csv', 'w').write('1')").await;
        let id = talk.id.clone();
        let wire = service.wire();
        let calling = tokio::spawn(async move {
            let code = "open('/tmp/trace', 'w')\nimport time\nprint('begun', flush=True)\ntime.sleep(60)";
            wire.ask(
                "POST",
                &format!("/v1/sessions/{id}/tools/execute_python_code"),
                Some(&json!({"code": code})),
            )
            .await
        });
        talk.until_printing().await;
        service.kill();
        calling.abort();
        service.begin();
        let seen = run("import os\nprint(os.path.exists('/tmp/trace'), open('kept.csv').read())").await;
        assert_eq!(seen["stdout"], "False 1\n", "{seen}");
        assert_eq!(talk.client.session_artifact(&talk.id, "kept.csv").await.unwrap(), b"1");

        let request = CreateSession {
            persistence: Some(Persistence::Session),
            ..CreateSession::of(ToolSet::Interpreter)
        };
        let stays = Talk::with(service, request).await;
        stays.call("execute_python_code", json!({"code": "open('kept.csv', 'w').write('2')"})).await;
        let sandbox = stays.client.session(&stays.id).await.unwrap().sandbox.unwrap();
        stays.client.stop(&sandbox).await.unwrap();
        let seen = stays.call("execute_python_code", json!({"code": "print(open('kept.csv').read())"})).await;
        assert_eq!(seen["stdout"], "2\n", "what is kept is there in the next sandbox: {seen}");
        // Files that a sandbox never received, because a dataset did not fit, are not treated as removed.
        let sandbox = stays.client.session(&stays.id).await.unwrap().sandbox.unwrap();
        stays.client.stop(&sandbox).await.unwrap();
        stays.client.add_dataset(&stays.id, "large", Bytes::from(vec![b'x'; 100 << 20])).await.unwrap();
        let full = stays.call("execute_python_code", json!({"code": "print(1)"})).await;
        assert_eq!((&full["success"], &full["files"]), (&json!(false), &json!([])), "{full}");
        stays.client.add_dataset(&stays.id, "large", Bytes::from_static(b"small")).await.unwrap();
        let seen = stays.call("execute_python_code", json!({"code": "print(open('kept.csv').read())"})).await;
        assert_eq!(seen["stdout"], "2\n", "{seen}");
        assert_eq!(stays.client.session_artifact(&stays.id, "kept.csv").await.unwrap(), b"2");
        // Files that cannot be read are not treated as removed either.
        let made = "import os\nos.mkdir('d')\nopen('d/in.csv', 'w').write('3')";
        stays.call("execute_python_code", json!({"code": made})).await;
        stays.call("execute_python_code", json!({"code": "import os\nos.chmod('d', 0)"})).await;
        assert_eq!(stays.client.session_artifact(&stays.id, "d/in.csv").await.unwrap(), b"3");
    });
}

/// An idempotency key identifies one call. Repeating the call returns the recorded response, including its
/// pictures.
#[test]
#[ignore = "starts real sandboxes"]
fn a_repeated_call_is_answered_from_what_is_remembered() {
    in_one_session(ToolSet::Interpreter, async |service, talk| {
        let wire = service.wire();
        let path = format!("/v1/sessions/{}/tools/execute_python_code", talk.id);
        let key = [("idempotency-key", "the same call")];
        let call = json!({"code": "import time\nimport matplotlib.pyplot as plt\nplt.plot([1])\nprint(time.time_ns())"});
        let first = wire.ask_with("POST", &path, Some(&call), &key).await.json();
        assert!(first["files"][0]["base64"].as_str().unwrap().starts_with("iVBOR"), "{first}");
        assert_eq!(wire.ask_with("POST", &path, Some(&call), &key).await.json(), first);
        let other = wire.ask_with("POST", &path, Some(&json!({"code": "print(2)"})), &key).await;
        assert_eq!(other.code(), "conflict");
        let runs = talk.client.runs(&talk.id).await.unwrap();
        assert_eq!(runs.len(), 1);
        assert!(!runs[0].result.as_ref().unwrap().to_string().contains("base64"), "a record has no pictures");
    });
}

/// A list of runs is divided into pages by their number and by their size, and the pages contain each run once.
#[test]
#[ignore = "starts real sandboxes"]
fn runs_are_listed_in_pages_of_a_bounded_size() {
    in_one_session(ToolSet::Analysis, async |service, talk| {
        let trace = "\u{1}".repeat(60_000);
        for _ in 0..6 {
            let parameters = json!({"command": ["true"]});
            let call = json!({"tool": "sandbox_exec", "parameters": parameters, "reasoning_trace": trace});
            talk.called("sandbox_exec", call).await;
        }
        let all = talk.client.runs(&talk.id).await.unwrap();
        assert_eq!(all.len(), 6);
        for (query, runs_max) in [("?limit=4", 4), ("?", 4)] {
            let path = format!("/v1/sessions/{}/runs{query}", talk.id);
            let first = service.wire().ask("GET", &path, None).await.json();
            let items = first["items"].as_array().unwrap();
            assert!((1..=runs_max).contains(&items.len()), "{query}: {} runs", items.len());
            let next = format!("{path}&cursor={}", first["next"].as_str().unwrap());
            let rest = service.wire().ask("GET", &next, None).await.json();
            let rest = rest["items"].as_array().unwrap();
            let ids: Vec<&str> = items.iter().chain(rest).map(|run| run["id"].as_str().unwrap()).collect();
            assert_eq!(ids, all.iter().map(|run| run.id.as_str()).collect::<Vec<_>>(), "{query}");
        }
    });
}

/// Ending a session ends its run. Clients that follow the session receive both events. Clients that connect
/// later receive only the end of the session.
#[test]
#[ignore = "starts real sandboxes"]
fn the_end_of_a_session_is_told_after_the_end_of_its_run() {
    in_one_session(ToolSet::Analysis, async |service, talk| {
        talk.sh("true").await;
        let mut events = talk.client.session_events(&talk.id);
        // The first read opens the stream, which contains only events that happen afterwards.
        let _ = tokio::time::timeout(Duration::from_secs(2), events.next()).await;
        let calling = talk.clone();
        let long = tokio::spawn(async move {
            calling
                .client
                .call_tool(
                    &calling.id,
                    "sandbox_exec",
                    &json!({"command": ["sleep", "60"]}),
                    Calling::default(),
                )
                .await
        });
        let mut words = Vec::new();
        let mut ended = false;
        while words.last().map(String::as_str) != Some("over") {
            let event = tokio::time::timeout(Duration::from_secs(30), events.next()).await.unwrap().unwrap();
            match event {
                SessionEvent::RunEnded { run } => words.push(format!("{:?}", run.outcome)),
                SessionEvent::SessionEnded => words.push("over".into()),
                _ => {}
            }
            if !ended {
                ended = true;
                tokio::time::sleep(Duration::from_millis(700)).await;
                talk.client.end_session(&talk.id).await.unwrap();
            }
        }
        assert_eq!(words.len(), 2, "{words:?}");
        assert!(words[0].contains("SandboxLost"), "{words:?}");
        let answer = long.await.unwrap().unwrap().result;
        assert_eq!(answer["exit_code"], 125, "{answer}");
        assert!(
            answer["stderr"].as_str().unwrap().contains("The sandbox ended during the execution"),
            "{answer}"
        );
        let mut late = talk.client.session_events(&talk.id);
        let first = tokio::time::timeout(Duration::from_secs(10), late.next()).await.unwrap().unwrap();
        assert_eq!(first, SessionEvent::SessionEnded);
        service.assert_nothing_left().await;
    });
}
