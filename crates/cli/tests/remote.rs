//! Tests of the `bellglass` executable with a server: its requests, its output and its exit codes. The tests
//! include a minimal server, which can also send responses that a real server never sends.

#![cfg(test)]

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Server that chooses its response by the first line of each request, and keeps the connection open if the
/// response says so.
struct Server {
    url: String,
    seen: Arc<Mutex<Vec<String>>>,
}

/// Response: the status, the body, and true if the connection stays open afterwards.
struct Answer(u16, String, bool);

impl Server {
    fn start(answer: impl Fn(&str) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (shared, answer) = (Arc::clone(&seen), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (seen, answer) = (Arc::clone(&shared), Arc::clone(&answer));
                std::thread::spawn(move || serve(stream.unwrap(), &seen, &*answer));
            }
        });
        Self { url, seen }
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = bare(arguments);
        command.env("BELLGLASS_SERVER", &self.url).env("BELLGLASS_API_KEY", "secret");
        command
    }

    fn bellglass(&self, arguments: &[&str]) -> (String, String, Option<i32>) {
        said(&self.command(arguments).output().unwrap())
    }
}

fn serve(mut stream: TcpStream, seen: &Mutex<Vec<String>>, answer: &(dyn Fn(&str) -> Answer + Send + Sync)) {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 4096]);
    let (head, end) = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break (String::from_utf8_lossy(&bytes[..end]).to_lowercase(), end + 4);
        }
        match stream.read(&mut chunk).unwrap_or(0) {
            0 => return,
            count => bytes.extend_from_slice(&chunk[..count]),
        }
    };
    let length =
        head.lines().find_map(|line| line.strip_prefix("content-length: ")).map_or(0, |l| l.parse().unwrap());
    while bytes.len() < end + length {
        let count = stream.read(&mut chunk).unwrap();
        bytes.extend_from_slice(&chunk[..count]);
    }
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let line = head.lines().next().unwrap().trim_end_matches(" HTTP/1.1").to_owned();
    assert!(head.contains("Bearer secret"), "{head}");
    seen.lock().unwrap().push(format!("{line} {}", String::from_utf8_lossy(&bytes[end..])).trim().to_owned());
    let Answer(status, body, open) = answer(&line);
    let chunk = if body.is_empty() { String::new() } else { format!("{:x}\r\n{body}\r\n", body.len()) };
    let last = if open { "" } else { "0\r\n\r\n" };
    let head = if status == 204 { "" } else { "transfer-encoding: chunked\r\n" };
    let body = if status == 204 { String::new() } else { format!("{chunk}{last}") };
    let _ = write!(stream, "HTTP/1.1 {status} X\r\nconnection: close\r\n{head}\r\n{body}");
    if open {
        // Wait until the client disconnects.
        let _ = stream.read(&mut [0; 1]);
    }
}

fn bare(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bellglass"));
    command
        .args(arguments)
        .stdin(Stdio::null())
        .env_remove("BELLGLASS_SERVER")
        .env_remove("BELLGLASS_API_KEY");
    command
}

fn said(output: &Output) -> (String, String, Option<i32>) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr), output.status.code())
}

fn sandbox(id: &str) -> Value {
    json!({
        "id": id, "project": "p", "template": "base", "tier": "container", "limits": {}, "idle_ms": 1000,
        "labels": {"note": "\u{1b}[2Jx"}, "state": "running", "created_at_ms": 1,
    })
}

fn info() -> Value {
    json!({"id": "e1", "argv": "sh -c 'printf \u{1b}[2J'", "outcome": null, "processes": 1, "stdout_bytes": 3,
           "stderr_bytes": 0, "duration_ms": 1})
}

/// Returns the output stream of a command that writes `hi` and exits with 7.
fn lines(started: bool) -> String {
    let end = json!({"outcome": {"kind": "exited", "code": 7}, "stdout_bytes": 3, "stdout_dropped": 0, "stderr_bytes": 2,
                     "stderr_dropped": 0, "duration_us": 9, "left_running": 0});
    let lines = [
        json!({"type": "started", "exec": info()}),
        json!({"type": "data", "stream": "stdout", "offset": 0, "text": "hi\n"}),
        json!({"type": "data", "stream": "stderr", "offset": 0, "base64": "/wo="}),
        json!({"type": "end", "end": end}),
    ];
    lines.iter().skip(usize::from(!started)).map(|line| format!("{line}\n")).collect()
}

/// Returns the response that a correct server sends.
fn honest(line: &str) -> Answer {
    let page = |item: Value| json!({"items": [item]}).to_string();
    let words: Vec<_> = line.split([' ', '?']).collect();
    match (words[0], words[1].trim_start_matches("/v1/").split('/').collect::<Vec<_>>().as_slice()) {
        ("POST", ["sandboxes"]) => Answer(201, sandbox("s1").to_string(), false),
        ("GET", ["sandboxes"]) => Answer(200, page(sandbox("s1")), false),
        ("DELETE", ["sandboxes", id]) => {
            let mut gone = sandbox(id);
            gone["state"] = "ended".into();
            gone["reason"] = "stopped".into();
            Answer(200, gone.to_string(), false)
        }
        ("GET", ["sandboxes", _, "usage"]) => {
            let usage =
                json!({"memory_bytes": 1 << 20, "memory_peak_bytes": 1, "pids": 2, "cpu_us": 5, "execs": 1});
            Answer(200, usage.to_string(), false)
        }
        ("POST", ["sandboxes", _, "execs"]) => Answer(200, lines(true), false),
        ("GET", ["sandboxes", _, "execs"]) => Answer(200, page(info()), false),
        ("GET", ["sandboxes", _, "execs", _, "output"]) => Answer(200, lines(false), false),
        (_, ["sandboxes", _, "execs", ..]) => Answer(204, String::new(), false),
        (_, path) => panic!("nobody asks for {path:?}"),
    }
}

#[test]
fn a_command_that_needs_a_server_says_exactly_what_to_set() {
    let output = bare(&["list"]).output().unwrap();
    let (stdout, stderr, code) = said(&output);
    assert_eq!((stdout.as_str(), code), ("", Some(125)));
    assert!(stderr.contains("BELLGLASS_SERVER") && stderr.contains("BELLGLASS_API_KEY"), "{stderr}");
    let output = bare(&["--server", "http://127.0.0.1:1", "list"]).output().unwrap();
    assert!(said(&output).1.contains("Set BELLGLASS_API_KEY"), "{output:?}");
}

#[test]
fn a_server_that_is_not_there_is_named_with_what_to_do() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{free}");
    let mut command = bare(&["--server", &url, "--server-wait", "50ms", "list"]);
    let (_, stderr, code) = said(&command.env("BELLGLASS_API_KEY", "secret").output().unwrap());
    assert_eq!(code, Some(125));
    assert!(
        stderr.contains(&url) && stderr.contains("refused") && stderr.contains("bellglass serve"),
        "{stderr}"
    );
    assert!(stderr.contains("ran: no"), "{stderr}");
}

#[test]
fn a_key_comes_from_a_file_and_never_from_the_command_line() {
    let server = Server::start(honest);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "secret\n").unwrap();
    let mut command =
        bare(&["list", "-q", "--key-file", file.path().to_str().unwrap(), "--server", &server.url]);
    assert_eq!(said(&command.output().unwrap()), ("s1\n".into(), String::new(), Some(0)));
    assert_eq!(bare(&["--key", "secret", "list"]).output().unwrap().status.code(), Some(2));
}

/// Verifies that output is passed on byte for byte, and that the exit code is the command's own.
#[test]
fn exec_streams_and_exits_with_the_commands_own_code() {
    let server = Server::start(honest);
    let output = server.command(&["exec", "s1", "--env", "A=1", "--", "sh", "-c", "x"]).output().unwrap();
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"hi\n"[..], &[0xff, b'\n'][..]));
    assert_eq!(output.status.code(), Some(7));
    let asked = server.seen()[0].clone();
    assert!(asked.contains(r#""env":{"A":"1"}"#) && asked.contains(r#""output":"block""#), "{asked}");
    let (stdout, _, code) = server.bellglass(&["exec", "--json", "s1", "--", "x"]);
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((report["stdout"].as_str(), code), (Some("hi\n"), Some(7)));
}

/// Returns the output stream of code that writes `hi`, displays figures and a value, and produces two notes
/// about its run.
fn shown(line: &str) -> Answer {
    if !line.starts_with("POST") {
        return honest(line);
    }
    let result = |offset: u64, result: Value| json!({"type": "result", "offset": offset, "next": offset + 10, "stdout": 3, "stderr": 0, "result": result});
    let figure = json!({"kind": "display", "name": "figure_1.png",
                        "data": {"image/png": "YWJj", "text/plain": "<Figure>"}});
    let end = json!({"outcome": {"kind": "exited", "code": 3}, "stdout_bytes": 3, "stdout_dropped": 0, "stderr_bytes": 0,
                     "stderr_dropped": 0, "results_bytes": 50, "state_lost": true, "duration_us": 9, "left_running": 0});
    let lines = [
        json!({"type": "started", "exec": info()}),
        json!({"type": "data", "stream": "stdout", "offset": 0, "text": "hi\n"}),
        result(0, json!({"kind": "installed", "packages": [{"module": "cv2", "package": "opencv\u{1b}"}]})),
        result(10, figure.clone()),
        result(20, figure),
        result(30, json!({"kind": "display", "data": {"text/html": "<b>x</b>"}})),
        result(40, json!({"kind": "value", "data": {"text/plain": "42", "text/html": "<b>42</b>"}})),
        json!({"type": "end", "end": end}),
    ];
    Answer(200, lines.iter().map(|line| format!("{line}\n")).collect(), false)
}

#[test]
fn code_shows_its_values_saves_its_figures_and_exits_with_its_own_code() {
    let server = Server::start(shown);
    let place = tempfile::tempdir().unwrap();
    let mut command = server.command(&["python", "s1", "-c", "x = 1", "--requirement", "numpy"]);
    let (stdout, stderr, code) = said(&command.current_dir(place.path()).output().unwrap());
    assert_eq!((stdout.as_str(), code), ("hi\n42\n", Some(3)));
    assert_eq!(
        stderr,
        "bellglass: installed opencv\\u{1b}\nbellglass: saved figure_1.png (3 B)\nbellglass: saved figure_1-2.png (3 B)\n\
         bellglass: the cell displayed a value that has no text representation: text/html\n\
         bellglass: the context lost its variables; the next cell starts without them\n"
    );
    assert_eq!(std::fs::read(place.path().join("figure_1-2.png")).unwrap(), b"abc");
    let asked = server.seen()[0].clone();
    assert!(
        asked.contains(r#""source":"x = 1""#) && asked.contains(r#""requirements":["numpy"]"#),
        "{asked}"
    );
    let (stdout, _, code) = server.bellglass(&["python", "s1", "--json", "--context", "c1", "-c", "x"]);
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((report["results"].as_array().map(Vec::len), code), (Some(5), Some(3)));
    assert!(server.seen()[1].contains(r#""context":"c1""#));
}

#[test]
fn code_comes_from_a_file_or_from_standard_input() {
    let server = Server::start(shown);
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("report.py");
    std::fs::write(&file, "from_file = 1").unwrap();
    for (words, text) in
        [(vec!["python", "s1", file.to_str().unwrap()], ""), (vec!["python", "s1"], "from_pipe = 1")]
    {
        let mut command = server.command(&words);
        let mut child = command
            .current_dir(place.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(3));
    }
    let seen = server.seen();
    assert!(seen[0].contains("from_file = 1") && seen[1].contains("from_pipe = 1"), "{seen:?}");
    let (_, stderr, code) = server.bellglass(&["python", "s1", "/nowhere.py"]);
    assert!(code == Some(125) && stderr.contains("/nowhere.py"), "{stderr}");
}

#[test]
fn contexts_are_listed_looked_into_and_ended() {
    let context = || {
        json!({"id": "c1", "language": "python", "cwd": "/workspace", "state": "lost", "cells": 3, "waiting": 0,
               "restarts": 1, "lost": "oom"})
    };
    let server = Server::start(move |line| match line.split(' ').collect::<Vec<_>>().as_slice() {
        ["POST", "/v1/sandboxes/s1/contexts"] => Answer(201, context().to_string(), false),
        ["GET", "/v1/sandboxes/s1/contexts"] => Answer(200, json!({"items": [context()]}).to_string(), false),
        ["GET", "/v1/sandboxes/s1/contexts/c1/variables"] => {
            let variable = json!({"name": "x", "type": "numpy.ndarray", "shape": [2, 3], "size": 48, "preview": "[\u{1b}"});
            Answer(200, json!({"items": [variable]}).to_string(), false)
        }
        ["DELETE", "/v1/sandboxes/s1/contexts/c1"] => Answer(204, String::new(), false),
        ["POST", "/v1/sandboxes/s1/contexts/c1/restart" | "/v1/sandboxes/s1/contexts/c1/interrupt"] => {
            Answer(200, context().to_string(), false)
        }
        other => panic!("nobody asks for {other:?}"),
    });
    assert_eq!(server.bellglass(&["context", "create", "s1"]).0, "c1\n");
    let (stdout, _, code) = server.bellglass(&["context", "list", "s1"]);
    assert!(code == Some(0) && stdout.contains("lost (oom)") && stdout.contains("/workspace"), "{stdout}");
    let (stdout, ..) = server.bellglass(&["context", "variables", "s1", "c1"]);
    assert!(stdout.contains("2 x 3") && stdout.contains("48 B") && !stdout.contains('\u{1b}'), "{stdout}");
    for act in ["restart", "interrupt", "remove"] {
        assert_eq!(server.bellglass(&["context", act, "s1", "c1"]).2, Some(0), "{act}");
    }
}

#[test]
fn run_makes_a_sandbox_on_the_server_and_stops_it() {
    let server = Server::start(honest);
    let (stdout, _, code) = server.bellglass(&["run", "--memory", "64M", "--", "x"]);
    assert_eq!((stdout.as_str(), code), ("hi\n", Some(7)));
    let seen: Vec<_> =
        server.seen().iter().map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(seen, ["POST /v1/sandboxes", "POST /v1/sandboxes/s1/execs", "DELETE /v1/sandboxes/s1"]);
    assert!(server.seen()[0].contains(&format!(r#""memory_bytes":{}"#, 64 << 20)));
}

#[test]
fn attach_and_logs_read_what_was_written() {
    let server = Server::start(honest);
    let (stdout, _, code) = server.bellglass(&["attach", "s1", "e1"]);
    assert_eq!((stdout.as_str(), code), ("hi\n", Some(7)));
    let (stdout, _, code) = server.bellglass(&["logs", "s1", "e1"]);
    assert_eq!((stdout.as_str(), code), ("hi\n", Some(0)));
    assert!(server.seen().last().unwrap().ends_with("follow=false"));
}

/// Verifies that attack O-08 fails: names, labels and commands in a sandbox cannot control the terminal.
#[test]
fn what_a_sandbox_says_of_itself_is_shown_not_obeyed() {
    let server = Server::start(honest);
    for arguments in [&["list"][..], &["logs", "s1"], &["top"]] {
        let (stdout, stderr, code) = server.bellglass(arguments);
        assert_eq!(code, Some(0), "{stderr}");
        assert!(!stdout.contains('\u{1b}') && stdout.contains("1"), "{stdout}");
    }
    assert!(server.bellglass(&["list"]).0.contains("note=\\u{1b}[2Jx"));
}

#[test]
fn an_interrupt_cancels_an_exec_and_leaves_an_attached_one_alone() {
    let endless = |line: &str| match line {
        _ if line.starts_with("DELETE") || line.starts_with("PUT") => Answer(204, String::new(), false),
        _ => {
            let last = lines(false).lines().last().unwrap().to_owned();
            Answer(200, lines(line.starts_with("POST")).replace(&(last + "\n"), ""), true)
        }
    };
    for (arguments, cancels) in [(&["exec", "s1", "--", "x"][..], true), (&["attach", "s1", "e1"], false)] {
        let server = Server::start(endless);
        let mut child =
            server.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 3]).unwrap();
        let interrupt = || {
            let pid = child.id().to_string();
            assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
        };
        interrupt();
        let began = Instant::now();
        while cancels && !server.seen().iter().any(|line| line == "DELETE /v1/sandboxes/s1/execs/e1") {
            assert!(began.elapsed() < Duration::from_secs(10), "{:?}", server.seen());
            std::thread::sleep(Duration::from_millis(5));
        }
        if cancels {
            // The server never ends the exec. The second interrupt detaches only if it arrives late enough
            // not to count as a repetition of the first.
            std::thread::sleep(Duration::from_millis(800));
            interrupt();
        }
        let (_, stderr, code) = said(&child.wait_with_output().unwrap());
        assert_eq!(code, Some(if cancels { 125 } else { 130 }), "{stderr}");
        assert!(stderr.contains("bellglass attach s1 e1"), "{stderr}");
        assert_eq!(server.seen().iter().any(|line| line.starts_with("DELETE")), cancels);
    }
}

#[test]
fn output_that_a_full_disk_loses_is_a_failure_and_a_reader_who_left_is_none() {
    let server = Server::start(honest);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = server.command(&["list", "-q"]).stdout(full).stderr(Stdio::piped()).output().unwrap();
    let (_, stderr, code) = said(&output);
    assert_eq!(code, Some(125), "{stderr}");
    assert!(stderr.contains("standard output"), "{stderr}");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = server.command(&["list", "-q"]).stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(said(&output), (String::new(), String::new(), Some(0)));
}

#[test]
fn watching_ends_when_nobody_reads_what_is_told() {
    let event = json!({"type": "changed", "event": "created", "path": "/workspace/a"});
    let told = format!("{}\n{event}\n", json!({"type": "watching"}));
    let server = Server::start(move |_| Answer(200, told.clone(), true));
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = server.command(&["watch", "s1"]).stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn a_copy_that_is_interrupted_leaves_no_part_of_it_in_the_sandbox() {
    let info = |size: u64| {
        json!({"path": "/workspace/x", "kind": "file", "size_bytes": size, "mode": 0o644, "uid": 1000, "gid": 1000,
               "modified_at_ms": 0, "version": "v1"})
    };
    let server = Server::start(move |line| match line {
        _ if line.starts_with("DELETE") => Answer(200, json!({"count": 1}).to_string(), false),
        // Never complete this response, so that the copy is still in progress at the interrupt.
        _ if line.contains("offset=") => Answer(200, String::new(), true),
        _ if line.starts_with("PUT") => {
            Answer(200, json!({"file": info(0), "sha256": ""}).to_string(), false)
        }
        _ => Answer(200, info(0).to_string(), false),
    });
    let here = tempfile::tempdir().unwrap();
    let file = here.path().join("big");
    std::fs::File::create(&file).unwrap().set_len(9 << 20).unwrap();
    let mut command = server.command(&["cp", file.to_str().unwrap(), "s1:x"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    while !server.seen().iter().any(|line| line.contains("offset=")) {
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", server.seen());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let (_, stderr, code) = said(&child.wait_with_output().unwrap());
    assert_eq!((code, stderr.as_str()), (Some(130), ""));
    let removed = server.seen().last().unwrap().clone();
    assert!(removed.starts_with("DELETE") && removed.contains(".part&"), "{removed}");
}

#[test]
fn stopping_several_goes_on_after_one_that_is_not_there() {
    let server = Server::start(|line| match line {
        "DELETE /v1/sandboxes/s1" => {
            let error = json!({"code": "not_found", "message": "there is no sandbox s1", "layer": "user_code",
                               "ran": "no", "retry": "useless", "fix": "List what there is."});
            Answer(404, error.to_string(), false)
        }
        _ => honest(line),
    });
    let (_, stderr, code) = server.bellglass(&["stop", "s1", "s2"]);
    assert_eq!(code, Some(125));
    assert!(
        stderr.contains("there is no sandbox s1") && stderr.contains("s2 is ended (stopped)"),
        "{stderr}"
    );
}

#[test]
fn every_form_of_help_groups_the_commands_by_task() {
    for form in ["-h", "--help", "help"] {
        let (help, _, code) = said(&bare(&[form]).output().unwrap());
        assert!(code == Some(0) && help.contains("\nRun code:\n  run "), "{form}: {help}");
        assert!(help.contains("\nOperate:\n  serve ") && !help.contains("\nCommands:\n"), "{form}: {help}");
    }
}

#[test]
fn shells_and_man_learn_every_command() {
    let (script, _, code) = said(&bare(&["completions", "bash"]).output().unwrap());
    assert!(code == Some(0) && script.contains("attach") && script.contains("--server"));
    let directory = tempfile::tempdir().unwrap();
    let output = bare(&["man", directory.path().to_str().unwrap()]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    for page in ["bellglass.1", "bellglass-exec.1", "bellglass-key-create.1"] {
        assert!(directory.path().join(page).exists(), "{page}");
    }
}
