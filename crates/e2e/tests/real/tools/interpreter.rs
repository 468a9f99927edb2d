//! Tests of the tool set `interpreter` (requirement A14.09).

use api::session::{CreateSession, ToolSet};
use e2e::talk::{Talk, in_a_session, in_one_session};
use serde_json::{Value, json};

async fn execute(talk: &Talk, code: &str) -> Value {
    talk.call("execute_python_code", json!({"code": code})).await
}

fn names(answer: &Value) -> Vec<&str> {
    answer["files"].as_array().unwrap().iter().map(|file| file["name"].as_str().unwrap()).collect()
}

/// Checks requirements A14.09, A8.03 to A8.06, A5.07 and A5.12: a run returns its files and figures. Only
/// files in the session's folder remain afterwards.
#[test]
#[ignore = "starts real sandboxes"]
fn code_makes_files_and_figures_and_nothing_else_stays() {
    in_a_session(ToolSet::Interpreter, async |service, talk| {
        let answer = execute(talk, "print('hello')\nopen('/tmp/trace', 'w').write('x')\nvalue = 7").await;
        let mut keys: Vec<_> = answer.as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(
            keys,
            [
                "execution_time_ms",
                "exit_code",
                "files",
                "output_dir",
                "runtime",
                "stderr",
                "stdout",
                "success"
            ]
        );
        assert_eq!(
            (&answer["success"], &answer["stdout"], &answer["exit_code"]),
            (&json!(true), &json!("hello\n"), &json!(0))
        );
        assert_eq!((&answer["files"], &answer["stderr"]), (&json!([]), &json!("")));
        assert_eq!(answer["output_dir"], format!("data/files/{}/output/code", talk.id));
        assert!(["runc", "runsc"].contains(&answer["runtime"].as_str().unwrap()), "{answer}");
        assert!(answer["execution_time_ms"].as_u64().unwrap() > 0);

        let isolated = execute(
            talk,
            "import os\nprint(os.path.exists('/tmp/trace'), sorted(os.listdir('.')))\nprint(value)",
        )
        .await;
        assert_eq!(isolated["stdout"], "False ['script.py', 'stdout.txt']\n", "requirement A8.06");
        let stderr = isolated["stderr"].as_str().unwrap();
        assert!(
            stderr.contains("File \"/workspace/script.py\", line 3") && stderr.contains("NameError"),
            "{stderr}"
        );
        assert_eq!((&isolated["success"], &isolated["exit_code"]), (&json!(false), &json!(1)));

        let code = "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.figure()\nplt.bar(['a'], [1])\nplt.title('second')\n\
                    open('table.csv', 'w').write('a,b\\n')\nprint(plt.get_backend())";
        let drawn = execute(talk, code).await;
        assert_eq!((&drawn["stdout"], &drawn["stderr"]), (&json!("Agg\n"), &json!("")), "{drawn}");
        assert_eq!(names(&drawn), ["figure_1.png", "figure_2.png", "table.csv"]);
        for file in drawn["files"].as_array().unwrap() {
            let name = file["name"].as_str().unwrap();
            assert_eq!(file["path"], format!("data/files/{}/output/code/{name}", talk.id));
            let kept = talk.client.session_artifact(&talk.id, name).await.unwrap();
            assert_eq!(file["size"], kept.len());
            match name.ends_with(".png") {
                true => {
                    assert_eq!(file["type"], "image/png");
                    assert!(file["base64"].as_str().unwrap().starts_with("iVBOR"), "{name}");
                }
                false => assert_eq!((&file["type"], file.get("base64")), (&json!("text/csv"), None)),
            }
        }
        folder_has(talk, code).await;
        // Requirement A8.06: files in the folder are available to the next run, and unchanged files are not
        // listed again.
        let seen = execute(talk, "print(open('table.csv').read(), end='')").await;
        assert_eq!((&seen["stdout"], &seen["files"]), (&json!("a,b\n"), &json!([])));
        let changed =
            execute(talk, "open('table.csv', 'a').write('1,2\\n')\nimport os\nos.remove('figure_2.png')")
                .await;
        assert_eq!(names(&changed), ["table.csv"]);
        let kept = talk.client.session_artifacts(&talk.id).await.unwrap();
        let kept: Vec<_> = kept.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(kept, ["figure_1.png", "script.py", "stdout.txt", "table.csv"]);
        // Requirement A10.04: nothing is left of the sandboxes in which the code ran. Requirement A5.13: the
        // files remain.
        service.assert_nothing_left().await;
        assert_eq!(talk.client.session_artifact(&talk.id, "table.csv").await.unwrap(), b"a,b\n1,2\n");
        talk.client.clear_session(&talk.id).await.unwrap();
        assert!(talk.client.session_artifacts(&talk.id).await.unwrap().is_empty());
    });
}

/// Checks requirement A5.07: the folder contains the code exactly as it was sent, together with its output.
async fn folder_has(talk: &Talk, code: &str) {
    assert_eq!(talk.client.session_artifact(&talk.id, "script.py").await.unwrap(), code.as_bytes());
    assert_eq!(talk.client.session_artifact(&talk.id, "stdout.txt").await.unwrap(), b"Agg\n");
}

/// Checks requirements A14.09 and A5.08 to A5.12: files are collected by kind, size and number, even if a
/// figure cannot be saved.
#[test]
#[ignore = "starts real sandboxes"]
fn files_are_collected_by_their_kind_size_and_number() {
    in_one_session(ToolSet::Interpreter, async |service, talk| {
        let kinds = "for name in ['a.png', 'B.JPG', 'c.jpeg', 'd.SVG', 'e.csv', 'f.json', 'g.html', 'h.pdf', 'no.py', 'no.pkl', 'plain']:\n    open(name, 'w').write('x')";
        let answer = execute(talk, kinds).await;
        let told: Vec<_> = answer["files"]
            .as_array()
            .unwrap()
            .iter()
            .map(|file| {
                (file["name"].as_str().unwrap(), file["type"].as_str().unwrap(), file.get("base64").is_some())
            })
            .collect();
        assert_eq!(
            told,
            [
                ("B.JPG", "image/jpeg", true),
                ("a.png", "image/png", true),
                ("c.jpeg", "image/jpeg", true),
                ("d.SVG", "image/svg+xml", true),
                ("e.csv", "text/csv", false),
                ("f.json", "application/json", false),
                ("g.html", "text/html", false),
                ("h.pdf", "application/pdf", false),
            ]
        );
        let many = execute(talk, "import os\nos.makedirs('many', exist_ok=True)\nfor n in range(15): open(f'many/{n:02}.txt', 'w').write('x')").await;
        assert_eq!(names(&many).len(), 10);
        assert_eq!(names(&many)[9], "many/09.txt");

        let sizes = "open('empty.png', 'w')\nopen('large.png', 'wb').write(bytes(5 * 1024 * 1024 + 1))\n\
                     open('fits.png', 'wb').write(bytes(5 * 1024 * 1024))\nopen('huge.csv', 'wb').write(bytes(10 * 1024 * 1024 + 1))";
        let answer = execute(talk, sizes).await;
        let told: Vec<_> = answer["files"]
            .as_array()
            .unwrap()
            .iter()
            .map(|file| {
                (file["name"].as_str().unwrap(), file["size"].as_u64().unwrap(), file.get("base64").is_some())
            })
            .collect();
        assert_eq!(
            told,
            [("empty.png", 0, false), ("fits.png", 5_242_880, true), ("large.png", 5_242_881, false)]
        );
        assert!(service.words().contains("huge.csv"), "requirement A5.09: the log names it");
        assert_eq!(
            talk.client.session_artifact(&talk.id, "huge.csv").await.unwrap().len(),
            10_485_761,
            "it stays in the folder"
        );

        // Requirement A5.12: a figure that cannot be saved does not make the run fail. Figures that the code
        // itself saves are kept.
        let broken = "import os\nimport matplotlib.pyplot as plt\nfor name in os.listdir('.'):\n    if os.path.isfile(name): os.remove(name)\n\
                      os.makedirs('figure_1.png')\nplt.plot([1])\nplt.figure()\nplt.plot([2])\nplt.savefig('own.png')";
        let answer = execute(talk, broken).await;
        assert_eq!((&answer["success"], &answer["exit_code"]), (&json!(true), &json!(0)), "{answer}");
        assert_eq!(names(&answer), ["figure_2.png", "own.png"]);
        assert!(answer["stderr"].as_str().unwrap().contains("figure_1.png could not be saved"));
        let raised =
            execute(talk, "import matplotlib.pyplot as plt\nplt.plot([1])\nraise ValueError('after')").await;
        assert_eq!(raised["success"], false);
        assert!(raised["stderr"].as_str().unwrap().ends_with("ValueError: after\n"));
        let light =
            execute(talk, "import sys\nprint('matplotlib' in sys.modules, 'sitecustomize' in sys.modules)")
                .await;
        assert_eq!(light["stdout"], "False True\n", "who does not draw does not pay for it");
    });
}

/// Checks requirements A14.09, A8.07, A2.05, A3.03 and A3.07: when a time limit or memory limit is exceeded,
/// or the run fails in any other way, the result has the same shape.
#[test]
#[ignore = "starts real sandboxes"]
fn limits_and_failures_keep_the_shape() {
    in_one_session(ToolSet::Interpreter, async |service, _| {
        let request = CreateSession { timeout_seconds: 3, ..CreateSession::of(ToolSet::Interpreter) };
        let talk = Talk::with(service, request).await;
        let late = execute(
            &talk,
            "print('before', flush=True)\nopen('half.csv', 'w').write('1')\nimport time\ntime.sleep(60)",
        )
        .await;
        assert_eq!(
            (&late["success"], &late["exit_code"], &late["stdout"]),
            (&json!(false), &json!(124), &json!("before\n"))
        );
        assert_eq!(late["stderr"], "Execution timed out after 3 seconds\n");
        assert_eq!(names(&late), ["half.csv"]);
        let big = execute(&talk, "x = bytearray(2_000_000_000)").await;
        assert_eq!((&big["success"], &big["exit_code"]), (&json!(false), &json!(137)), "{big}");
        assert!(big["stderr"].as_str().unwrap().contains("Memory limit of 512MB exceeded\n"), "{big}");
        for wrong in ["", "   \n"] {
            let answer = execute(&talk, wrong).await;
            assert_eq!((&answer["success"], &answer["files"]), (&json!(false), &json!([])));
            assert!(
                answer["stderr"].as_str().unwrap().starts_with("Invalid code: `code` is empty"),
                "{answer}"
            );
        }
        let died = execute(&talk, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)").await;
        assert_eq!((&died["success"], &died["exit_code"]), (&json!(false), &json!(137)));
        let none =
            CreateSession { template: Some("nothing".into()), ..CreateSession::of(ToolSet::Interpreter) };
        let talk = Talk::with(service, none).await;
        let missing = execute(&talk, "print(1)").await;
        let stderr = missing["stderr"].as_str().unwrap();
        assert!(
            stderr.starts_with("Sandbox image missing: ") && stderr.contains("bellglass template"),
            "{stderr}"
        );
    });
}
