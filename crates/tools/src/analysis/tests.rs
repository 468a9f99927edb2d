//! Tests of the tool set `analysis` that compare its texts byte by byte with the required texts.

use std::time::Duration;

use api::exec::Outcome;
use serde_json::{Value, json};

use super::*;

fn ask(tool: &str, arguments: Value) -> Result<AnalysisCall, Error> {
    Ok(asked(tool, &Call::read(tool, arguments).unwrap())?.expect("it is not refused"))
}

fn refused(tool: &str, arguments: Value) -> Value {
    let refused = asked(tool, &Call::read(tool, arguments).unwrap()).unwrap().unwrap_err();
    serde_json::to_value(refused).unwrap()
}

#[test]
fn there_are_three_tools_with_their_categories() {
    // Covers requirements A6.01 and A6.18.
    let tools: Vec<_> = definitions().into_iter().map(|tool| (tool.name, tool.category)).collect();
    assert_eq!(
        tools,
        [
            ("sandbox_exec", Category::CodeExecution),
            ("sandbox_write_file", Category::FileManagement),
            ("sandbox_edit_file", Category::FileManagement)
        ]
    );
}

#[test]
fn a_command_is_an_array_of_words_and_its_time_has_a_maximum() {
    // Covers requirements A6.03 and A6.05.
    let exec = ask("sandbox_exec", json!({"command": ["python", "/tmp/a.py"], "timeout": 300})).unwrap();
    assert_eq!(
        exec,
        AnalysisCall::Exec(ExecCall {
            command: vec!["python".into(), "/tmp/a.py".into()],
            timeout: Some(300.0)
        })
    );
    for (arguments, names) in [
        (json!({"command": "python x"}), "`command`"),
        (json!({"command": []}), "`command`"),
        (json!({"command": [1]}), "`command`"),
        (json!({}), "`command`"),
        (json!({"command": ["x"], "timeout": 301}), "`timeout`"),
        (json!({"command": ["x"], "timeout": 0}), "`timeout`"),
        (json!({"command": ["x"], "timeout": "60"}), "`timeout`"),
        (json!({"command": ["x"], "cwd": "/"}), "`cwd`"),
    ] {
        let error = ask("sandbox_exec", arguments.clone()).unwrap_err();
        assert!(error.message.contains(names), "{arguments}: {error:?}");
    }
}

#[test]
fn a_path_elsewhere_is_refused_in_these_words() {
    // Covers requirements A6.10 and A2.12.
    for path in [
        "/home/bad.py",
        "/tmp/../etc/passwd",
        "/tmpx/a",
        "/workspace",
        "/tmp/",
        "tmp/a",
        "/tmp/../../tmp",
        "/workspace/../tmp",
        "",
    ] {
        let expected = json!({
            "success": false,
            "error": "Invalid path: must be /tmp/* or /workspace/*",
            "file_path": path,
            "hint": "Invalid path. Use /tmp/ or /workspace/ only.",
        });
        assert_eq!(refused("sandbox_write_file", json!({"file_path": path, "content": ""})), expected);
        let edit = json!({"file_path": path, "old_string": "a", "new_string": "b"});
        assert_eq!(refused("sandbox_edit_file", edit), expected);
    }
    let plain =
        ask("sandbox_write_file", json!({"file_path": "/tmp/a/./../b//c.py", "content": "x"})).unwrap();
    assert_eq!(
        plain,
        AnalysisCall::Write {
            file: File { given: "/tmp/a/./../b//c.py".into(), place: "/tmp/b/c.py".into() },
            content: "x".into()
        }
    );
}

#[test]
fn content_of_five_megabytes_is_refused() {
    // Covers requirement A6.11.
    let of = |bytes: usize| json!({"file_path": "/tmp/a", "content": "x".repeat(bytes)});
    assert!(matches!(ask("sandbox_write_file", of(5_242_879)).unwrap(), AnalysisCall::Write { .. }));
    let refused = refused("sandbox_write_file", of(5_242_880));
    assert_eq!(refused["error"], "Content too large: 5242880 bytes (limit 5MB)");
    assert_eq!(refused["success"], false);
}

#[test]
fn an_edit_that_fails_says_why_and_what_to_do() {
    // Covers requirements A6.13 and A6.14.
    let value = |refused: FileToolRefusal| serde_json::to_value(refused).unwrap();
    assert_eq!(
        value(FileToolRefusal::occurrences("/tmp/a", 3)),
        json!({
            "success": false,
            "error": "old_string found 3 times - not unique. Include more context.",
            "file_path": "/tmp/a",
            "hint": "Edit failed - old_string not unique. Include more surrounding context.",
        })
    );
    assert_eq!(
        value(FileToolRefusal::occurrences("/tmp/a", 0)),
        json!({
            "success": false,
            "error": "old_string not found",
            "file_path": "/tmp/a",
            "hint": "Edit failed - old_string not found. Read file first with sandbox_exec.",
        })
    );
    let empty = json!({"file_path": "/tmp/a", "old_string": "", "new_string": "b"});
    assert_eq!(refused("sandbox_edit_file", empty)["error"], "old_string is empty");
}

#[test]
fn an_answer_has_its_fields_in_order_and_its_hint() {
    // Covers requirements A6.04, A6.06, A6.07, A6.08 and A6.15.
    let mut ran = EndedExec::not_started("", 60.0, 512 << 20);
    ran.outcome = Outcome::Exited { code: 0 };
    ran.duration = Duration::from_micros(2_300_400);
    ran.stdout.push(b"Created 3 clusters\nSilhouette score: 0.72\n");
    let files: Vec<String> = vec!["clusters.csv".into(), "plot.png".into()];
    assert_eq!(
        serde_json::to_string(&ExecAnswer::new(&ran, &files)).unwrap(),
        "{\"exit_code\":0,\"stdout\":\"Created 3 clusters\\nSilhouette score: 0.72\\n\",\"stderr\":\"\",\
         \"stdout_truncated\":false,\"stderr_truncated\":false,\"output_files\":[\"clusters.csv\",\"plot.png\"],\
         \"total_output_files\":2,\"execution_time\":2.3,\
         \"hint\":\"Code executed successfully. 2 output files created. Consider using 'complete' to present results.\"}"
    );
    assert_eq!(
        ExecAnswer::new(&ran, &[]).hint,
        "Code executed but no outputs in /tmp/output/. Verify script saves results."
    );
    ran.outcome = Outcome::Exited { code: 1 };
    assert_eq!(
        ExecAnswer::new(&ran, &files).hint,
        "Execution failed. Review stderr and use sandbox_edit_file to fix errors."
    );
    assert_eq!(WriteAnswer::new("/tmp/a", 3).hint, "File written successfully. Use sandbox_exec to run it.");
    assert_eq!(EditAnswer::new("/tmp/a").hint, "File edited successfully. Re-run with sandbox_exec.");
}

#[test]
fn twenty_files_are_named_and_all_are_counted() {
    // Covers requirement A5.04.
    let ran = EndedExec { outcome: Outcome::Exited { code: 0 }, ..EndedExec::not_started("", 60.0, 1) };
    let files: Vec<String> = (0..25).map(|n| format!("{n:02}.csv")).collect();
    let executed = ExecAnswer::new(&ran, &files);
    assert_eq!((executed.output_files.len(), executed.total_output_files), (20, 25));
    assert!(executed.hint.contains("25 output files"));
}

#[test]
fn texts_and_pictures_are_kept_and_models_are_not() {
    // Covers requirement A5.05.
    for kept in ["a.csv", "a.JSON", "b/c.txt", "run.log", "p.PNG", "p.jpg", "p.jpeg", "p.svg"] {
        assert!(is_kept(kept), "{kept}");
    }
    for left in ["model.pkl", "m.joblib", "x.parquet", "noending", ".csv", "a.bin"] {
        assert!(!is_kept(left), "{left}");
    }
    assert!(is_picture("a/P.JPEG") && !is_picture("a.csv"));
}

#[test]
fn the_instructions_say_what_they_must() {
    // Covers requirement A6.17.
    for text in [
        "ADVANCED ANALYSIS (Sandboxed Code Execution)",
        "pl.read_csv('/tmp/data/prescribers.csv')",
        "- Timeout: 60s (adjustable to 300s max)",
        "- No network access",
        "- NO PANDAS - Use Polars only",
        "- Files in /tmp/ or /workspace/ only",
        "- Output files in /tmp/output/",
        "3. If errors: Read output, edit script, re-run",
    ] {
        assert!(PROMPT.contains(text), "{text}");
    }
}
