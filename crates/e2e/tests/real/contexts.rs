//! Contexts in real sandboxes: state between cells, the order of cells, interrupts, and the report of lost
//! state. IDs such as A3.04 refer to `docs/requirements.md`.

mod losses;
mod shells;

use std::time::{Duration, Instant};

use api::ErrorCode;
use api::code::{Code, ContextSpec, ContextState, Language, RunResult};
use api::exec::{ExecSpec, Outcome};
use e2e::room::{cell, coded, in_a_room};

/// In a context, unlike in the runs of requirement A3.06, variables, imports and the last value persist, and
/// magics and `await` work. The environment variables of one call do not persist.
#[test]
#[ignore = "starts real sandboxes"]
fn what_a_cell_leaves_is_there_for_the_next() {
    in_a_room(async |_, room| {
        let context = room.context(Language::Python).await;
        let run = async |source: &str| room.cell(&context, source).await.well();
        run("x = 20\ndef double(y): return 2 * y").await;
        assert_eq!(run("double(x) + 2").await.value(), "42");
        assert_eq!(run("_ + 1").await.value(), "43");
        assert_eq!(run("import asyncio\nawait asyncio.sleep(0.01, 'awaited')").await.value(), "'awaited'");
        assert_eq!(run("!echo from a shell").await.stdout, "from a shell\n");
        assert_eq!(run("lines = !printf 'a\\nb\\n'\nlist(lines)").await.value(), "['a', 'b']");
        assert_eq!(run("%cd /tmp\n!pwd").await.stdout.lines().last(), Some("/tmp"));
        assert_eq!(run("%%bash\necho inner").await.stdout, "inner\n");
        // The environment variables of one call do not persist after the call.
        let mut once = cell(&context, "import os; os.environ['ONCE']");
        once.env.insert("ONCE".into(), "here".into());
        assert_eq!(room.exec(&once).await.well().value(), "'here'");
        assert_eq!(run("os.environ.get('ONCE')").await.results.len(), 0);
        // The state survives an error. Reading input fails immediately.
        let failed = room.cell(&context, "x = 21\n1 / 0").await;
        assert_eq!((failed.code(), failed.error().frames[0].line), (1, 2));
        assert_eq!(room.cell(&context, "input()").await.error().name, "EOFError");
        // A syntax error is reported in the same way as by Python, without frames from IPython.
        for (source, name, line, told) in [
            ("y = 1\nx = (", "SyntaxError", 2, "never closed"),
            ("if x:\n    y = 1\n  z = 2", "IndentationError", 3, "unindent"),
            ("await asyncio.sleep(0)\nx y", "SyntaxError", 2, "invalid syntax"),
        ] {
            let unread = room.cell(&context, source).await;
            let error = unread.error();
            assert_eq!((unread.code(), error.name.as_str(), error.frames.len()), (1, name, 1), "{error:?}");
            assert!(error.frames[0].line == line && error.message.contains(told), "{error:?}");
        }
        let evaluated = room.cell(&context, "eval('(')").await.error().frames.len();
        assert_eq!(evaluated, 2, "code that ran keeps its frames");
        assert_eq!(run("x").await.value(), "21");
        // Exiting ends the cell but keeps the state.
        for (source, code) in [("import sys; sys.exit()", 0), ("sys.exit(3)", 3), ("exit()", 0)] {
            let ended = room.cell(&context, source).await;
            assert_eq!((ended.code(), ended.end.state_lost), (code, false), "{source}");
        }
        assert_eq!(run("x").await.value(), "21");
        let variables = room.client.variables(&room.id, &context).await.unwrap();
        let x = variables.iter().find(|variable| variable.name == "x").unwrap();
        assert_eq!((x.kind.as_str(), x.preview.as_str()), ("int", "21"));
        // Text that is not valid Unicode, and objects with misleading attributes, break neither a result nor
        // the list of variables.
        let failed = room.cell(&context, "name = '\\udcff.csv'; raise ValueError(name)").await;
        assert_eq!((failed.error().name.as_str(), failed.error().message.as_str()), ("ValueError", "?.csv"));
        run("class Odd:\n    __module__ = None\n    shape = (-1,)\n    nbytes = 1 << 70\nodd = Odd()").await;
        let variables = room.client.variables(&room.id, &context).await.unwrap();
        let odd = variables.iter().find(|variable| variable.name == "odd").unwrap();
        assert_eq!((odd.kind.as_str(), odd.shape.clone(), odd.size), ("?", None, None));
        run("import numpy as np, pandas as pd\nbig = pd.DataFrame(np.zeros((1_000_000, 50)))").await;
        let begun = Instant::now();
        let variables = room.client.variables(&room.id, &context).await.unwrap();
        let big = variables.iter().find(|variable| variable.name == "big").unwrap();
        assert_eq!((big.kind.as_str(), big.shape.clone()), ("pandas.DataFrame", Some(vec![1_000_000, 50])));
        assert!(big.size.unwrap() >= 400_000_000 && begun.elapsed() < Duration::from_secs(5), "{big:?}");
    });
}

/// Checks requirement A3.04: the cells of a context run in order, each caller gets its own output, and
/// contexts run in parallel.
#[test]
#[ignore = "starts real sandboxes"]
fn cells_take_turns_and_contexts_do_not_wait_for_each_other() {
    in_a_room(async |_, room| {
        let context = room.context(Language::Python).await;
        room.cell(&context, "import time; seen = []").await.well();
        let mut begun = Vec::new();
        for number in 0..50 {
            let source =
                format!("seen.append({number}); print('a{number}'); time.sleep(0.005); print('b{number}')");
            begun.push(room.client.exec(&room.id, &cell(&context, &source)).await.unwrap());
        }
        let ends = futures_util::future::join_all(begun.into_iter().map(|exec| exec.collect())).await;
        for (number, done) in ends.into_iter().enumerate() {
            assert_eq!(String::from_utf8(done.unwrap().stdout).unwrap(), format!("a{number}\nb{number}\n"));
        }
        assert_eq!(room.cell(&context, "seen == list(range(50))").await.value(), "True");
        let others = [room.context(Language::Python).await, room.context(Language::Python).await];
        let nap = "import time; time.sleep(1.5)";
        let since = Instant::now();
        tokio::join!(room.cell(&others[0], nap), room.cell(&others[1], nap), room.cell(&context, nap));
        assert!(since.elapsed() < Duration::from_secs(4), "{:?}", since.elapsed());
        // A queued cell can be cancelled; it never starts.
        let long = room.client.exec(&room.id, &cell(&context, "time.sleep(30)")).await.unwrap();
        let waits = room.client.exec(&room.id, &cell(&context, "seen.append('never')")).await.unwrap();
        room.client.cancel(&room.id, waits.id()).await.unwrap();
        let waited = waits.collect().await.unwrap();
        assert_eq!((waited.end.outcome, waited.end.duration_us), (Outcome::Cancelled, 0));
        room.client.interrupt_context(&room.id, &context).await.unwrap();
        assert_eq!(long.collect().await.unwrap().end.outcome, Outcome::Cancelled);
        assert_eq!(room.cell(&context, "'never' in seen").await.value(), "False");
    });
}

/// Invalid requests for contexts are refused with the reason. Removing a context also ends the cell that it
/// runs.
#[test]
#[ignore = "starts real sandboxes"]
fn contexts_are_made_listed_and_removed() {
    in_a_room(async |_, room| {
        let context = room.context(Language::Python).await;
        let listed = room.client.contexts(&room.id).await.unwrap();
        assert_eq!((listed.len(), listed[0].state), (1, ContextState::Idle));
        let refused = room.refused(&cell(&"c0nothere".parse().unwrap(), "1")).await;
        assert_eq!(refused.code, ErrorCode::NotFound);
        let code = Code { source: "1".into(), context: Some(context.clone()), ..Code::default() };
        let wrong = coded(Code { language: Some(Language::Bash), ..code.clone() });
        assert!(room.refused(&wrong).await.message.contains("python"));
        let placed = ExecSpec { cwd: Some("/".into()), ..coded(code) };
        assert!(room.refused(&placed).await.message.contains("cwd"));
        let spec = ContextSpec { language: Language::Javascript, ..ContextSpec::default() };
        assert!(room.client.create_context(&room.id, &spec).await.is_err());
        let spec = ContextSpec { cwd: Some("/nowhere".into()), ..ContextSpec::default() };
        for language in [Language::Python, Language::Bash] {
            let spec = ContextSpec { language, ..spec.clone() };
            let refused = room.client.create_context(&room.id, &spec).await.unwrap_err().to_api();
            assert_eq!((refused.code, refused.ran), (ErrorCode::SpawnFailed, api::Ran::No), "{refused:?}");
            assert!(refused.message.contains("/nowhere"), "{refused:?}");
        }
        assert_eq!(room.client.contexts(&room.id).await.unwrap().len(), 1, "what cannot begin is none");
        let runs = room.client.exec(&room.id, &cell(&context, "import time; time.sleep(60)")).await.unwrap();
        room.client.remove_context(&room.id, &context).await.unwrap();
        assert_eq!(runs.collect().await.unwrap().end.outcome, Outcome::Cancelled);
        assert!(room.client.contexts(&room.id).await.unwrap().is_empty());
        room.until_gone("fd/4 context", Duration::from_secs(5)).await;
        if room.is_container() {
            let shell = ContextSpec { language: Language::Bash, ..ContextSpec::default() };
            for _ in 0..api::limits::CONTEXTS_MAX {
                room.client.create_context(&room.id, &shell).await.unwrap();
            }
            let error = room.client.create_context(&room.id, &shell).await.unwrap_err();
            assert!(error.to_api().message.contains("contexts"), "{error}");
        }
    });
}

/// Output that a thread writes after its cell has ended is delivered with the next cell. The state survives a
/// restart of the server.
#[test]
#[ignore = "starts real sandboxes"]
fn late_words_and_new_servers_are_no_loss() {
    in_a_room(async |service, room| {
        let context = room.context(Language::Python).await;
        let source = "import threading, time\nkept = 'still here'\n\
                      threading.Thread(target=lambda: (time.sleep(0.5), print('late'))).start()\nprint('now')";
        assert_eq!(room.cell(&context, source).await.well().stdout, "now\n");
        tokio::time::sleep(Duration::from_millis(1500)).await;
        service.kill();
        service.begin();
        let next = room.cell(&context, "print(kept)").await.well();
        assert_eq!(next.stdout, "still here\n");
        let late = next.results.iter().find_map(|line| match &line.result {
            RunResult::Late { stdout, .. } => Some(stdout.clone()),
            _ => None,
        });
        assert_eq!(late.as_deref(), Some("late\n"), "{next:?}");
    });
}
