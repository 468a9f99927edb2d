//! Semantics of a run: each run is an independent script, and only the files that it writes remain.

use std::collections::BTreeMap;
use std::time::Duration;

use api::artifact::Keep;
use api::code::Code;
use api::exec::{ExecSpec, Outcome, OutputMode};
use api::limits::{self, Limits};
use api::sandbox::CreateSandbox;
use api::{ErrorCode, Ran};
use e2e::room::{Room, coded, in_a_room, python};
use e2e::service::{Service, served, small_limits, tiers};
use e2e::wire;

/// Python code that raises an exception. Line numbers refer to the code as it was sent, so the empty first
/// line counts.
const FAILING: &str =
    "\nimport json\n\ndef deep(text):\n    return json.loads(text)\n\nprint('before')\ndeep('{')\n";

#[test]
#[ignore = "starts real sandboxes"]
fn a_run_is_a_script_of_its_own_of_which_only_files_stay() {
    in_a_room(async |service, room| {
        output_and_exit_codes(room).await;
        exceptions(room).await;
        nothing_but_files_stays(room).await;
        variables_and_directory(room).await;
        refusals(service, room).await;
        output_modes(room).await;
        artifacts(room).await;
        the_same_key_runs_once(service, room).await;
    });
}

/// Checks requirement A3.01: standard output, standard error and exit codes are returned.
async fn output_and_exit_codes(room: &Room) {
    let ran = room.run("import sys\nprint('out')\nprint('err', file=sys.stderr)").await.well();
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("out\n", "err\n"));
    assert!(ran.results.is_empty() && ran.end.duration_us > 0, "{ran:?}");
    for (code, expected) in [
        ("import sys; sys.exit(3)", 3),
        ("raise SystemExit", 0),
        ("raise SystemExit(None)", 0),
        ("import os; os._exit(7)", 7),
        ("exit(4)", 4),
        ("quit()", 0),
        ("import sys; sys.exit(256 + 5)", 5),
        ("import sys; sys.exit(-1)", 255),
    ] {
        let ran = room.run(code).await;
        assert_eq!((ran.code(), ran.stdout.as_str(), ran.stderr.as_str()), (expected, "", ""), "{code}");
        assert!(ran.results.is_empty(), "an exit is no error: {ran:?}");
    }
    let ran = room.run("import sys; sys.exit('what went wrong')").await;
    assert_eq!((ran.code(), ran.stderr.as_str()), (1, "what went wrong\n"));
    // Output that is not UTF-8 is kept as bytes. A client that wants text replaces the invalid sequences.
    let ran = room.run("import os; os.write(1, b'a\\xff\\xfeb\\n'); os.write(2, b'\\x80')").await.well();
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("a\u{fffd}\u{fffd}b\n", "\u{fffd}"));
    let ran = room.run("print('\\ud800 漢字 😀')").await.well();
    assert_eq!(ran.stdout, "\\ud800 漢字 😀\n");
    // Output and files are written even if the code does not flush, close or join.
    let code = "import sys, threading, time, atexit\natexit.register(print, 'last')\n\
                f = open('unclosed.txt', 'w'); f.write('whole')\n\
                threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\n\
                sys.stdout.write('no newline;')";
    let ran = room.run(code).await.well();
    assert_eq!(ran.stdout, "no newline;thread\nlast\n");
    assert_eq!(room.sh("cat unclosed.txt").await, "whole");
    let ran = room.run("import signal, os; os.kill(os.getpid(), signal.SIGKILL)").await;
    assert_eq!(ran.end.outcome, Outcome::Signaled { signal: 9 });
}

/// Checks requirement A5.12: line numbers refer to the code as it was sent, and a traceback contains no
/// frames from Bellglass.
async fn exceptions(room: &Room) {
    let ran = room.run(FAILING).await;
    assert_eq!((ran.code(), ran.stdout.as_str()), (1, "before\n"));
    let error = ran.error();
    assert_eq!(error.name, "JSONDecodeError");
    assert!(error.message.starts_with("Expecting property name"), "{error:?}");
    assert_eq!(error.text, ran.stderr, "standard error has what the result has");
    assert!(
        ran.stderr.starts_with(
            "Traceback (most recent call last):\n  File \"<code>\", line 8, in <module>\n    deep('{')"
        ),
        "{error:?}"
    );
    let mine: Vec<_> = error.frames.iter().filter(|frame| frame.file == "<code>").collect();
    assert_eq!(
        (mine[0].line, mine[0].function.as_str(), mine[0].source.as_str()),
        (8, "<module>", "deep('{')")
    );
    assert_eq!((mine[1].line, mine[1].function.as_str()), (5, "deep"));
    assert!(error.frames.last().unwrap().file.contains("json"), "{error:?}");
    assert!(!ran.stderr.contains("bellglass") && !ran.stderr.contains("IPython"), "{}", ran.stderr);
    let last = ran.results.last().unwrap();
    assert_eq!((last.stdout, last.stderr), (7, ran.stderr.len() as u64), "after what was written before it");
    for (code, name, line) in [
        ("x = 1\nprint('never'\n", "SyntaxError", 2),
        ("if True:\nx = 1", "IndentationError", 2),
        ("\n\n1/0", "ZeroDivisionError", 3),
        ("try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError('b') from e", "ValueError", 4),
        ("def f(): f()\nf()", "RecursionError", 2),
        ("assert 1 == 2, 'no'", "AssertionError", 1),
        ("import nowhere_to_be_found", "ModuleNotFoundError", 1),
        ("x = 1\rraise RuntimeError('\\N{SNOWMAN}')", "RuntimeError", 2),
    ] {
        let ran = room.run(code).await;
        let error = ran.error();
        assert_eq!((ran.code(), error.name.as_str(), ran.stdout.as_str()), (1, name, ""), "{ran:?}");
        let first = error.frames.iter().find(|frame| frame.file == "<code>").unwrap();
        assert_eq!(first.line, line, "{code:?}: {error:?}");
        assert!(error.frames.len() <= 50, "{}", error.frames.len());
    }
    let ran = room.run("class Odd(Exception):\n    def __str__(self): raise ValueError\nraise Odd").await;
    assert_eq!((ran.code(), ran.error().name.as_str()), (1, "Odd"));
}

/// Checks requirement A3.06: files remain; variables, imports and changes to modules do not.
async fn nothing_but_files_stays(room: &Room) {
    room.run(
        "x = 42\nimport json, sys\njson.bellglass = 1\nsys.path.append('/x')\nopen('kept.txt', 'w').write('x')",
    )
    .await
    .well();
    let ran = room.run("print(x)").await;
    assert_eq!((ran.code(), ran.error().name.as_str()), (1, "NameError"));
    let ran = room
        .run("import json, sys\nprint([open('kept.txt').read()], hasattr(json, 'bellglass'), '/x' in sys.path)")
        .await
        .well();
    assert_eq!(ran.stdout, "['x'] False False\n");
    // Each run is a new process with a new random state.
    let code = "import os, random, numpy, uuid\nprint(os.getpid(), random.random(), numpy.random.rand(), uuid.uuid4())";
    let (one, two) = (room.run(code).await.well().stdout, room.run(code).await.well().stdout);
    assert!(one.split(' ').zip(two.split(' ')).all(|(one, two)| one != two), "{one} {two}");
    let code = "import os, sys\nprint(os.getuid(), os.getcwd(), __name__, sys.argv, sys.stdin.read() == '')";
    assert_eq!(room.run(code).await.well().stdout, "1000 /workspace __main__ [''] True\n");
}

async fn variables_and_directory(room: &Room) {
    let env = BTreeMap::from([("GREETING".to_owned(), "it's \"quoted\" 漢".to_owned())]);
    let code =
        "import os\nprint(os.environ['GREETING'], os.getcwd(), os.getuid(), os.environ.get('BELLGLASS_UID'))";
    let spec = ExecSpec { env, cwd: Some("/tmp".into()), uid: Some(2000), ..python(code) };
    assert_eq!(room.exec(&spec).await.well().stdout, "it's \"quoted\" 漢 /tmp 2000 None\n");
    let spec = ExecSpec { cwd: Some("/nowhere".into()), ..python("print(1)") };
    let error = room.refused(&spec).await;
    assert_eq!((error.code, error.ran), (ErrorCode::SpawnFailed, Ran::No), "{error:?}");
    assert!(error.message.contains("/nowhere"), "{error:?}");
}

/// Checks requirement A3.07: both the client and the server refuse invalid code before anything runs.
async fn refusals(service: &Service, room: &Room) {
    let long = "#".repeat(limits::CODE_BYTES_MAX + 1);
    for (source, code, names) in [
        ("", "invalid_request", "empty"),
        (" \n\t", "invalid_request", "empty"),
        (&long, "limit_exceeded", "code.source"),
    ] {
        let before = room.client.execs(&room.id).await.unwrap().len();
        let error = room.refused(&python(source)).await;
        assert_eq!((error.code.name(), error.ran), (code, Ran::No), "{error:?}");
        assert!(error.message.contains(names), "{error:?}");
        let body = wire::command(&python(source));
        let path = format!("/v1/sandboxes/{}/execs", room.id);
        let answer = service.wire().ask("POST", &path, Some(&body)).await;
        assert_eq!(answer.code(), code, "{answer:?}");
        assert_eq!(room.client.execs(&room.id).await.unwrap().len(), before);
    }
    // Code of the maximum size is accepted and runs.
    let most = format!("print('ran')\n#{}", "x".repeat(limits::CODE_BYTES_MAX - 15));
    assert_eq!(room.run(&most).await.well().stdout, "ran\n");
    let ran = room.run("x = 'a\0b'").await;
    assert_eq!((ran.code(), ran.error().name.as_str()), (1, "SyntaxError"), "{ran:?}");
}

async fn output_modes(room: &Room) {
    let code = "import sys\nfor n in range(30000): sys.stdout.write(f'{n:09}\\n')";
    let (total, kept) = (300_000, 50_000);
    let limited = |output| ExecSpec { output, output_bytes: Some(kept), ..python(code) };
    let ran = room.exec(&limited(OutputMode::Keep)).await.well();
    assert_eq!((ran.end.stdout_bytes, ran.end.stdout_dropped), (total, total - kept), "{:?}", ran.end);
    assert!(ran.stdout.starts_with("000000000\n") && ran.stdout.ends_with("000029999\n"));
    let ran = room.exec(&limited(OutputMode::Block)).await.well();
    assert_eq!((ran.stdout.len() as u64, ran.end.stdout_dropped), (total, 0));
    let ran = room.exec(&limited(OutputMode::Kill)).await;
    assert_eq!((ran.end.outcome.clone(), ran.stdout.len() as u64), (Outcome::OutputLimit, kept));
}

async fn artifacts(room: &Room) {
    let code = "import os\nos.makedirs('out', exist_ok=True)\n\
                import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.savefig('out/chart.png')\n\
                open('out/data.csv', 'w').write('a,b\\n1,2\\n')";
    let keep = Keep::folders(vec!["/workspace/out".into()]);
    let exec = room.client.exec(&room.id, &ExecSpec { artifacts: Some(keep), ..python(code) }).await.unwrap();
    let of = exec.id().clone();
    assert_eq!(exec.collect().await.unwrap().end.outcome, Outcome::Exited { code: 0 });
    let kept = room.client.artifacts(&room.id, &of, Duration::from_secs(60)).await.unwrap();
    let names: Vec<_> = kept.items.iter().map(|item| (item.name.as_str(), item.mime.as_str())).collect();
    assert_eq!(names, [("chart.png", "image/png"), ("data.csv", "text/csv")], "{kept:?}");
    let bytes = room.client.artifact(&room.id, &of, &kept.items[1]).await.unwrap();
    assert_eq!(bytes, b"a,b\n1,2\n");
}

async fn the_same_key_runs_once(service: &Service, room: &Room) {
    let body = wire::command(&python("open('counted', 'a').write('1')\nprint('once')"));
    let path = format!("/v1/sandboxes/{}/execs", room.id);
    let key = [("idempotency-key", "the same run")];
    let mut ids = Vec::new();
    for _ in 0..3 {
        let answer = service.wire().ask_with("POST", &path, Some(&body), &key).await;
        assert!(answer.status < 300, "{answer:?}");
        ids.push(answer.json()["id"].as_str().unwrap().to_owned());
    }
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    let done = room.client.reader(&room.id, &ids[0].parse().unwrap()).collect().await.unwrap();
    assert_eq!(done.stdout, b"once\n");
    assert_eq!(room.sh("cat counted").await, "1");
    let other = wire::command(&python("print('another')"));
    let answer = service.wire().ask_with("POST", &path, Some(&other), &key).await;
    assert_eq!(answer.code(), "conflict", "{answer:?}");
}

/// A template whose Python has no packages can still run code. A template without Python returns an error
/// that names `python3`.
#[test]
#[ignore = "starts real sandboxes"]
fn a_template_with_little_or_no_python_runs_what_it_can_and_says_what_it_cannot() {
    served(async || {
        for tier in tiers() {
            let service = Service::start();
            let store = node::template::Store::new(service.data());
            let base = store.load("base").unwrap();
            let env = BTreeMap::from([("PATH".to_owned(), "/usr/lib".to_owned())]);
            store.save(&node::template::Template { name: "bare".into(), env, ..base }).unwrap();
            let client = service.client();
            let limits = Limits { memory_bytes: 256 << 20, ..small_limits() };
            let make = async |template: &str| {
                let template = template.to_owned();
                let ask = CreateSandbox { template, tier, limits: limits.into(), ..CreateSandbox::default() };
                let id = client.create(&ask).await.unwrap().id;
                Room { client: client.clone(), id, tier }
            };
            let bare = make("bare").await;
            let error = bare.refused(&python("print(1)")).await;
            assert_eq!((error.code, error.ran), (ErrorCode::SpawnFailed, Ran::No), "{error:?}");
            assert!(error.message.contains("python3") && error.fix.contains("python3"), "{error:?}");
            let plain = make("base").await;
            let ran = plain.run("display(1)\nprint('plain')\n[1, 2]").await.well();
            assert_eq!((ran.stdout.as_str(), ran.value()), ("plain\n", "[1, 2]"));
            assert_eq!(ran.shown()[0].data["text/plain"], "1");
            let ran = plain.run("1/0").await;
            assert_eq!(ran.error().name, "ZeroDivisionError");
            let missing = Code { source: "x".into(), install_missing: true, ..Code::default() };
            assert_eq!(plain.refused(&coded(missing)).await.code, ErrorCode::Forbidden);
        }
    });
}
