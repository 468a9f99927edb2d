//! Tests of the tool set `python` (requirements A14.05 and A14.06).

use api::session::{CreateSession, ToolSet};
use e2e::service::{Service, served};
use e2e::talk::{Talk, in_a_session, in_one_session};
use serde_json::{Value, json};

async fn execute(talk: &Talk, script: &str) -> Value {
    talk.call("execute_python", json!({"script": script})).await
}

async fn requiring(talk: &Talk, script: &str, requirements: &[&str]) -> Value {
    talk.call("execute_python", json!({"script": script, "requirements": requirements})).await
}

/// Checks requirements A14.05, A3.06, A7.03 and A7.07: files persist between runs, whereas variables and
/// imports do not.
#[test]
#[ignore = "starts real sandboxes"]
fn files_stay_and_variables_do_not() {
    in_a_session(ToolSet::Python, async |_, talk| {
        let done = execute(
            talk,
            "x = 42\nimport json\nopen('/workspace/data.txt', 'w').write('kept')\nprint('done')",
        )
        .await;
        assert_eq!(done, json!({"exit_code": 0, "stdout": "done\n", "stderr": ""}));
        let read = execute(talk, "print(open('/workspace/data.txt').read())").await;
        assert_eq!(read, json!({"exit_code": 0, "stdout": "kept\n", "stderr": ""}));
        for (script, says) in [("print(x)", "name 'x'"), ("print(json.dumps({}))", "name 'json'")] {
            let failed = execute(talk, script).await;
            assert_eq!((&failed["exit_code"], &failed["stdout"]), (&json!(1), &json!("")));
            assert!(
                failed["stderr"].as_str().unwrap().contains(&format!("NameError: {says} is not defined")),
                "{failed}"
            );
        }
        assert_eq!(
            execute(talk, "print(__file__, __name__)").await["stdout"],
            "/workspace/task.py __main__\n"
        );

        // A workflow of three steps. Each step imports its own modules and reads the files that the previous
        // step wrote.
        execute(talk, "import json\njson.dump([{'name': 'Ada', 'age': 36}, {'name': 'Alan', 'age': 41}], open('/workspace/users.json', 'w'))").await;
        execute(talk, "import json\nusers = json.load(open('/workspace/users.json'))\njson.dump({'count': len(users), 'mean': sum(u['age'] for u in users) / len(users)}, open('/workspace/stats.json', 'w'))").await;
        let report = execute(talk, "import json\nstats = json.load(open('/workspace/stats.json'))\nprint(f\"Users: {stats['count']}, mean age {stats['mean']}\")").await;
        assert_eq!(report, json!({"exit_code": 0, "stdout": "Users: 2, mean age 38.5\n", "stderr": ""}));

        let raised = execute(talk, "print('Before error')\nraise ValueError('Test error')\n").await;
        assert_eq!((&raised["exit_code"], &raised["stdout"]), (&json!(1), &json!("Before error\n")));
        let stderr = raised["stderr"].as_str().unwrap();
        assert!(stderr.starts_with("Traceback (most recent call last):\n"), "{stderr}");
        assert!(
            stderr.contains("File \"/workspace/task.py\", line 2")
                && stderr.ends_with("ValueError: Test error\n")
        );
        assert_eq!(raised.as_object().unwrap().len(), 3);
    });
}

/// Checks requirements A14.06, A4.01 to A4.05, A7.06, A7.08 and A1.06: packages persist until clean-up, and
/// failures have the documented shape.
#[test]
#[ignore = "starts real sandboxes"]
fn packages_are_installed_once_and_what_fails_keeps_its_shape() {
    in_one_session(ToolSet::Python, async |_, talk| {
        let code = "import cowsay\nprint(cowsay.__name__)";
        assert_eq!(execute(talk, code).await["exit_code"], 1);
        let installed = requiring(talk, code, &["cowsay==6.1"]).await;
        assert_eq!(installed, json!({"exit_code": 0, "stdout": "cowsay\n", "stderr": ""}));
        assert_eq!(
            execute(talk, "print(open('/workspace/requirements.txt').read())").await["stdout"],
            "cowsay==6.1\n\n"
        );
        assert_eq!(execute(talk, code).await["stdout"], "cowsay\n", "it stays");
        assert_eq!(requiring(talk, code, &["cowsay==6.1"]).await["stdout"], "cowsay\n");

        let script = "open('/workspace/ran', 'w')";
        let failed = requiring(talk, script, &["nonexistent-package-of-bellglass"]).await;
        assert_eq!((&failed["exit_code"], &failed["stdout"]), (&json!(1), &json!("")));
        let stderr = failed["stderr"].as_str().unwrap();
        assert!(
            stderr.starts_with("Failed to install requirements: ERROR: Could not find a version that satisfies the requirement \
                                nonexistent-package-of-bellglass"),
            "{stderr}"
        );
        assert_eq!(
            execute(talk, "import os; print(os.path.exists('/workspace/ran'))").await["stdout"],
            "False\n"
        );

        // Requirement A4.04: the installer can reach the package index, but the script cannot.
        let reach = "import urllib.request as u\nu.urlopen('https://pypi.org/simple/cowsay/', timeout=9)";
        assert_eq!(requiring(talk, reach, &["cowsay==6.1"]).await["exit_code"], 1);

        for wrong in [
            json!({}),
            json!({"script": ""}),
            json!({"script": "1", "timeout": 3}),
            json!({"script": "1", "requirements": "x"}),
        ] {
            let answer = talk.call("execute_python", wrong.clone()).await;
            assert_eq!((&answer["exit_code"], &answer["stdout"]), (&json!(1), &json!("")), "{wrong}");
            assert!(answer["stderr"].as_str().unwrap().starts_with("Invalid arguments: "), "{answer}");
        }

        for _ in 0..2 {
            assert_eq!(talk.call("cleanup_sandbox", json!({})).await, json!({"success": true}));
            assert_eq!(talk.client.session(&talk.id).await.unwrap().sandbox, None);
        }
        let fresh = execute(talk, "import os\nprint(sorted(os.listdir('/workspace')))\nimport cowsay").await;
        assert_eq!(
            (&fresh["stdout"], &fresh["exit_code"]),
            (&json!("['task.py']\n"), &json!(1)),
            "requirement A1.06: {fresh}"
        );
    });
}

/// Checks requirements A14.06, A3.04 and A3.05: calls are served in order of arrival, and a failed call does
/// not affect the others.
#[test]
#[ignore = "starts real sandboxes"]
fn many_callers_are_served_one_after_the_other_in_order() {
    in_one_session(ToolSet::Python, async |_, talk| {
        execute(talk, "open('/workspace/order', 'w').close()").await;
        let mut calls = Vec::new();
        for n in 0..12 {
            let talk = talk.clone();
            calls.push(tokio::spawn(async move {
                let script = match n % 4 {
                    3 => format!("open('/workspace/order', 'a').write('{n} ')\nraise SystemExit(3)"),
                    _ => format!("import time\nopen('/workspace/order', 'a').write('{n} ')\ntime.sleep(0.05)\nprint({n})"),
                };
                execute(&talk, &script).await
            }));
            // Send the next call only after this one is in the queue.
            tokio::time::sleep(std::time::Duration::from_millis(60)).await;
        }
        for (n, call) in calls.into_iter().enumerate() {
            let answer = call.await.unwrap();
            match n % 4 {
                3 => assert_eq!((&answer["exit_code"], &answer["stdout"]), (&json!(3), &json!(""))),
                _ => assert_eq!(answer, json!({"exit_code": 0, "stdout": format!("{n}\n"), "stderr": ""})),
            }
        }
        let order = execute(talk, "print(open('/workspace/order').read())").await;
        let expected: String = (0..12).map(|n| format!("{n} ")).collect();
        assert_eq!(order["stdout"], format!("{expected}\n"));
    });
}

/// Checks requirements A14.06 and A7.05: if there is no backend, the response has the same shape, and a later
/// call tries again.
#[test]
#[ignore = "starts real sandboxes"]
fn without_a_backend_the_answer_says_so() {
    served(async || {
        let service =
            Service::with(&["env", "DOCKER_HOST=unix:///nowhere/docker.sock"], &["--backends", "docker"]);
        e2e::talk::lend(&service);
        let talk = Talk::with(&service, CreateSession::of(ToolSet::Python)).await;
        for _ in 0..2 {
            assert_eq!(
                execute(&talk, "print(1)").await,
                json!({
                    "exit_code": 1, "stdout": "",
                    "stderr": "Failed to initialize sandbox engine: Failed to initialize any sandbox backend (Daytona or Docker)"
                })
            );
        }
        let talk = Talk::with(&service, CreateSession::of(ToolSet::Interpreter)).await;
        let failed = talk.call("execute_python_code", json!({"code": "print(1)"})).await;
        assert_eq!(
            (&failed["success"], &failed["files"], &failed["exit_code"]),
            (&json!(false), &json!([]), &json!(1))
        );
        assert!(
            failed["stderr"].as_str().unwrap().starts_with("No container runtime available: "),
            "requirement A8.07: {failed}"
        );
    });
}
