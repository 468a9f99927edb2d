//! Tests of the tool set `analysis` (requirements A14.01 to A14.04).

use std::time::Instant;

use api::ErrorCode;
use api::session::ToolSet;
use bytes::Bytes;
use e2e::talk::{Talk, in_a_session, in_one_session};
use serde_json::{Value, json};

/// Keys in a response of `sandbox_exec` (requirements A6.04 and A6.15).
const KEYS: [&str; 9] = [
    "execution_time",
    "exit_code",
    "hint",
    "output_files",
    "stderr",
    "stderr_truncated",
    "stdout",
    "stdout_truncated",
    "total_output_files",
];

async fn exec(talk: &Talk, command: &[&str]) -> Value {
    talk.call("sandbox_exec", json!({"command": command})).await
}

async fn write(talk: &Talk, path: &str, content: &str) {
    let answer = talk.call("sandbox_write_file", json!({"file_path": path, "content": content})).await;
    assert_eq!(
        answer,
        json!({
            "success": true, "file_path": path, "bytes_written": content.len(),
            "hint": "File written successfully. Use sandbox_exec to run it."
        })
    );
}

/// Checks requirements A14.01, A1.02 and A5.01: datasets are copied in on the first call, and the documented
/// example runs unchanged.
#[test]
#[ignore = "starts real sandboxes"]
fn datasets_are_analysed_as_the_instructions_say() {
    in_a_session(ToolSet::Analysis, async |_, talk| {
        let mut rows = "name,volume,count\n".to_owned();
        for n in 0..60 {
            rows.push_str(&format!("p{n},{},{}\n", n % 3 * 100 + n, n % 3 * 50 + n / 2));
        }
        talk.client.add_dataset(&talk.id, "prescribers", Bytes::from(rows)).await.unwrap();
        talk.client.add_dataset(&talk.id, "a b/c", Bytes::from_static(b"x\n1\n")).await.unwrap();
        assert_eq!(
            talk.client.session(&talk.id).await.unwrap().sandbox,
            None,
            "nothing is made before the first call"
        );

        let hello = exec(talk, &["python", "-c", "print('Hello, World!')"]).await;
        let mut keys: Vec<_> = hello.as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, KEYS);
        assert_eq!(
            (&hello["exit_code"], &hello["stdout"], &hello["stderr"]),
            (&json!(0), &json!("Hello, World!\n"), &json!(""))
        );
        assert_eq!(
            hello["hint"],
            "Code executed but no outputs in /tmp/output/. Verify script saves results."
        );
        assert!(hello["execution_time"].as_f64().unwrap() > 0.0);

        assert_eq!(
            exec(talk, &["head", "-1", "/tmp/data/prescribers.csv"]).await["stdout"],
            "name,volume,count\n"
        );
        assert_eq!(exec(talk, &["cat", "/tmp/data/a_b_c.csv"]).await["stdout"], "x\n1\n");

        let polars = "import polars as pl\ndf = pl.read_csv('/tmp/data/prescribers.csv')\nprint(df.height, df['count'].sum())\n";
        write(talk, "/tmp/analysis.py", polars).await;
        let counted = exec(talk, &["python", "/tmp/analysis.py"]).await;
        assert_eq!((&counted["stdout"], &counted["stderr"]), (&json!("60 3870\n"), &json!("")));

        // Run the example from the instructions without changes.
        let prompt = talk.client.tools_prompt(ToolSet::Analysis).await.unwrap();
        let example = prompt.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
        write(talk, "/tmp/example.py", example).await;
        let clustered = exec(talk, &["python", "/tmp/example.py"]).await;
        assert_eq!(
            (&clustered["stdout"], &clustered["exit_code"]),
            (&json!("Created 3 clusters\n"), &json!(0)),
            "{clustered}"
        );
        assert_eq!(clustered["output_files"], json!(["clustered.csv", "plot.png"]));
        assert_eq!(
            clustered["hint"],
            "Code executed successfully. 2 output files created. Consider using 'complete' to present results."
        );
        let kept = talk.client.session_artifacts(&talk.id).await.unwrap();
        let kept: Vec<_> =
            kept.iter().map(|one| (one.name.as_str(), one.mime.as_str(), one.path.clone())).collect();
        let below = |name: &str| format!("output/session_{}/{name}", talk.id);
        assert_eq!(
            kept,
            [
                ("clustered.csv", "text/csv", below("clustered.csv")),
                ("plot.png", "image/png", below("plot.png"))
            ]
        );
        let plot = talk.client.session_artifact(&talk.id, "plot.png").await.unwrap();
        assert!(plot.starts_with(b"\x89PNG"));
    });
}

/// Checks requirements A14.02, A6.12, A6.13 and A6.14: after an error, a failed edit or a missing output, a
/// hint tells the agent how to fix the problem.
#[test]
#[ignore = "starts real sandboxes"]
fn an_agent_recovers_from_what_went_wrong() {
    in_one_session(ToolSet::Analysis, async |_, talk| {
        write(talk, "/tmp/buggy.py", "values = [1, 2, 3]\nprint(sum(valuse))\n").await;
        let failed = exec(talk, &["python", "/tmp/buggy.py"]).await;
        assert_eq!(failed["exit_code"], 1);
        assert!(
            failed["stderr"].as_str().unwrap().contains("NameError: name 'valuse' is not defined"),
            "{failed}"
        );
        assert_eq!(
            failed["hint"],
            "Execution failed. Review stderr and use sandbox_edit_file to fix errors."
        );
        let edit = json!({"file_path": "/tmp/buggy.py", "old_string": "valuse", "new_string": "values"});
        assert_eq!(
            talk.call("sandbox_edit_file", edit.clone()).await,
            json!({
                "success": true, "file_path": "/tmp/buggy.py",
                "hint": "File edited successfully. Re-run with sandbox_exec."
            })
        );
        assert_eq!(exec(talk, &["python", "/tmp/buggy.py"]).await["stdout"], "6\n");
        assert_eq!(
            talk.call("sandbox_edit_file", edit).await,
            json!({
                "success": false, "error": "old_string not found", "file_path": "/tmp/buggy.py",
                "hint": "Edit failed - old_string not found. Read file first with sandbox_exec."
            })
        );

        write(talk, "/tmp/many.py", "x = 1\nx = 1\nx = 1\nprint(x)\n").await;
        let edit = json!({"file_path": "/tmp/many.py", "old_string": "x = 1", "new_string": "x = 2"});
        assert_eq!(
            talk.call("sandbox_edit_file", edit).await,
            json!({
                "success": false, "error": "old_string found 3 times - not unique. Include more context.",
                "file_path": "/tmp/many.py",
                "hint": "Edit failed - old_string not unique. Include more surrounding context."
            })
        );
        assert_eq!(exec(talk, &["cat", "/tmp/many.py"]).await["stdout"], "x = 1\nx = 1\nx = 1\nprint(x)\n");
        let edit =
            json!({"file_path": "/tmp/many.py", "old_string": "x = 1\nprint", "new_string": "x = 2\nprint"});
        assert_eq!(talk.call("sandbox_edit_file", edit).await["success"], true);
        assert_eq!(exec(talk, &["python", "/tmp/many.py"]).await["stdout"], "2\n");

        write(talk, "/tmp/lost.py", "open('/tmp/result.csv', 'w').write('a\\n')\n").await;
        let without = exec(talk, &["python", "/tmp/lost.py"]).await;
        assert_eq!(
            without["hint"],
            "Code executed but no outputs in /tmp/output/. Verify script saves results."
        );
        let looked = exec(talk, &["ls", "-la", "/tmp/output"]).await;
        assert!(!looked["stdout"].as_str().unwrap().contains("csv"), "{looked}");
        let edit = json!({"file_path": "/tmp/lost.py", "old_string": "/tmp/result", "new_string": "/tmp/output/result"});
        talk.call("sandbox_edit_file", edit).await;
        assert_eq!(exec(talk, &["python", "/tmp/lost.py"]).await["output_files"], json!(["result.csv"]));

        other_words(talk).await;
    });
}

/// Checks requirement A6.14: a missing file, an empty `old_string` and a file that is not UTF-8 each have
/// their own error message.
async fn other_words(talk: &Talk) {
    let edit = |path: &str, old: &str| json!({"file_path": path, "old_string": old, "new_string": "b"});
    assert_eq!(talk.call("sandbox_edit_file", edit("/tmp/none.py", "a")).await["error"], "File not found");
    assert_eq!(
        talk.call("sandbox_edit_file", edit("/tmp/lost.py", "")).await["error"],
        "old_string is empty"
    );
    talk.sh("printf 'a\\377' > /tmp/bytes").await;
    assert_eq!(
        talk.call("sandbox_edit_file", edit("/tmp/bytes", "a")).await["error"],
        "File is not UTF-8 text"
    );
}

/// Checks requirements A14.03, A5.03, A5.04, A5.05 and A3.02: output files are listed and kept within their
/// limits, and truncated output can be read in full.
#[test]
#[ignore = "starts real sandboxes"]
fn outputs_are_named_kept_and_cut() {
    in_one_session(ToolSet::Analysis, async |_, talk| {
        let script = "mkdir -p /tmp/output/a /tmp/output/b; cd /tmp/output; echo 1 > a/x.csv; echo 2 > b/x.csv; \
                      echo model > model.pkl; echo '{}' > m.json; echo log > run.log; ln -s /etc/passwd link.csv";
        let several = talk.call("sandbox_exec", json!({"command": ["sh", "-c", script]})).await;
        assert_eq!(several["output_files"], json!(["a/x.csv", "b/x.csv", "m.json", "model.pkl", "run.log"]));
        assert_eq!(several["total_output_files"], 5);
        let kept = talk.client.session_artifacts(&talk.id).await.unwrap();
        let names: Vec<_> = kept.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["a/x.csv", "b/x.csv", "m.json", "run.log"], "a model stays in the sandbox");
        assert_eq!(talk.client.session_artifact(&talk.id, "b/x.csv").await.unwrap(), b"2\n");

        let many = talk.call("sandbox_exec", json!({"command": ["sh", "-c", "cd /tmp/output; rm -rf *; for n in $(seq 10 44); do echo $n > $n.csv; done"]})).await;
        assert_eq!(many["output_files"].as_array().unwrap().len(), 20);
        assert_eq!((&many["output_files"][0], &many["total_output_files"]), (&json!("10.csv"), &json!(35)));
        assert_eq!(
            many["hint"],
            "Code executed successfully. 35 output files created. Consider using 'complete' to present results."
        );

        // Requirement A2.07: `/tmp` is on a disk of 1 GiB, and not in the 512 MB of memory.
        assert_eq!(
            talk.sh("head -c 600M /dev/zero > /tmp/large && stat -c %s /tmp/large").await,
            "629145600"
        );
        let full = talk
            .call("sandbox_exec", json!({"command": ["sh", "-c", "head -c 2G /dev/zero > /tmp/large"]}))
            .await;
        assert!(full["stderr"].as_str().unwrap().contains("No space left on device"), "{full}");
        talk.sh("rm /tmp/large").await;

        let gone = talk.call("sandbox_exec", json!({"command": ["rm", "-rf", "/tmp/output"]})).await;
        assert_eq!(
            (&gone["exit_code"], &gone["output_files"], &gone["total_output_files"]),
            (&json!(0), &json!([]), &json!(0))
        );

        let long = "import sys\nfor n in range(5000): print(f'{n:09}')\nfor n in range(5000): print(f'e{n:08}', file=sys.stderr)";
        let called = talk.called("sandbox_exec", json!({"command": ["python", "-c", long]})).await;
        let answer = &called.result;
        assert_eq!((&answer["stdout_truncated"], &answer["stderr_truncated"]), (&json!(true), &json!(true)));
        let (stdout, stderr) = (answer["stdout"].as_str().unwrap(), answer["stderr"].as_str().unwrap());
        assert_eq!((stdout.len(), stderr.len()), (10_240, 10_240));
        assert!(stdout.starts_with("000000000\n000000001\n") && stderr.ends_with("e00004999\n"));
        let part = talk.client.run_output(&talk.id, &called.run, "stdout", 49_990, Some(10)).await.unwrap();
        assert_eq!(part, b"000004999\n");
        assert_eq!(
            talk.client.run_output(&talk.id, &called.run, "stderr", 0, None).await.unwrap().len(),
            50_000
        );
    });
}

/// Checks requirements A14.04, A6.05, A6.10 and A2.12: paths, network access, timeouts and arguments are
/// restricted, and ending the session ends its sandbox.
#[test]
#[ignore = "starts real sandboxes"]
fn constraints_are_kept() {
    in_a_session(ToolSet::Analysis, async |service, talk| {
        assert_eq!(
            talk.call("sandbox_write_file", json!({"file_path": "/home/bad.py", "content": "x"})).await,
            json!({
                "success": false, "error": "Invalid path: must be /tmp/* or /workspace/*", "file_path": "/home/bad.py",
                "hint": "Invalid path. Use /tmp/ or /workspace/ only."
            })
        );
        assert_eq!(talk.client.session(&talk.id).await.unwrap().sandbox, None, "no sandbox is made for that");
        talk.sh("ln -s /home /tmp/away; ln -s /tmp/away /workspace/far; mkdir /tmp/near; ln -s near /tmp/by")
            .await;
        for path in ["/tmp/away/bad.py", "/workspace/far/bad.py", "/tmp/away"] {
            let refused = talk.call("sandbox_write_file", json!({"file_path": path, "content": "x"})).await;
            assert_eq!(refused["error"], "Invalid path: must be /tmp/* or /workspace/*", "{path}");
        }
        write(talk, "/tmp/by/good.py", "x").await;

        let net = "import socket\nsocket.create_connection(('93.184.216.34', 80), 5)";
        let began = Instant::now();
        let blocked = exec(talk, &["python", "-c", net]).await;
        assert_eq!(blocked["exit_code"], 1);
        assert!(began.elapsed().as_secs() < 5, "it fails at once");
        let named = exec(
            talk,
            &["python", "-c", "import urllib.request as u\nu.urlopen('http://pypi.org', timeout=5)"],
        )
        .await;
        assert_eq!(named["exit_code"], 1, "{named}");

        let began = Instant::now();
        let late = talk
            .call("sandbox_exec", json!({"command": ["sh", "-c", "echo before; echo err >&2; sleep 99 & sleep 99"], "timeout": 2}))
            .await;
        assert_eq!(
            (&late["exit_code"], &late["stdout"], &late["stderr"]),
            (&json!(124), &json!("before\n"), &json!("err\nExecution timed out after 2 seconds\n"))
        );
        assert!(began.elapsed().as_secs() < 20);
        assert_eq!(
            talk.sh("ps ax | grep -c '[s]leep 99' || true").await,
            "0",
            "requirement A3.05: nothing of it goes on"
        );

        let missing = exec(talk, &["no-such-program"]).await;
        assert_eq!(missing["exit_code"], 127);
        assert!(missing["stderr"].as_str().unwrap().contains("no-such-program"), "{missing}");
        for (arguments, names) in [
            (json!({"command": "ls"}), "`command`"),
            (json!({"command": ["ls"], "timeout": 301}), "`timeout`"),
        ] {
            let error = talk.refused("sandbox_exec", arguments).await;
            assert!(error.code == ErrorCode::InvalidRequest && error.message.contains(names), "{error:?}");
        }
        assert_eq!(talk.refused("rm_rf", json!({})).await.code, ErrorCode::NotFound);

        let session = talk.client.end_session(&talk.id).await.unwrap();
        assert_eq!(session.sandbox, None);
        talk.client.end_session(&talk.id).await.unwrap();
        assert_eq!(talk.refused("sandbox_exec", json!({"command": ["ls"]})).await.code, ErrorCode::Conflict);
        service.assert_nothing_left().await;
    });
}
