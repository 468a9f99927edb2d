//! Tests of reading output over connections that break, carry false data or fall silent.

use api::exec::{ExecSpec, OutputMode, Stream};
use api::output::{LINE_BYTES_MAX, OutputLine, PerStream};
use api::{ErrorCode, Retry};
use base64::Engine as _;
use client::{Error, Event, Exec};

use crate::server::{Answer, Request, Server, text};
use crate::{client, end, error, info, spec};

const STDOUT: &str = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen";
const STDERR: &[u8] = &[0xff, 0xfe, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9];

fn data(stream: Stream, offset: u64, bytes: &[u8]) -> OutputLine {
    match std::str::from_utf8(bytes) {
        Ok(text) => OutputLine::Data { stream, offset, text: Some(text.into()), base64: None },
        Err(_) => {
            let base64 = Some(base64::prelude::BASE64_STANDARD.encode(bytes));
            OutputLine::Data { stream, offset, text: None, base64 }
        }
    }
}

/// Returns the number that a query parameter of the request contains, or 0 if the parameter is missing.
fn number(request: &Request, name: &str) -> usize {
    let (_, query) = request.line.split_once('?').unwrap_or_default();
    let value = query.split('&').find_map(|pair| pair.strip_prefix(&format!("{name}=")));
    value.map_or(0, |value| value.parse().unwrap())
}

/// Returns a correct server's response to this request: seven bytes per line, then the end event.
fn honest(request: &Request) -> Vec<OutputLine> {
    let (stdout, stderr) = (number(request, "stdout"), number(request, "stderr"));
    let mut lines = Vec::new();
    if request.line.starts_with("POST") {
        lines.push(OutputLine::Started { exec: info() });
    }
    for (stream, all, from) in [(Stream::Stderr, STDERR, stderr), (Stream::Stdout, STDOUT.as_bytes(), stdout)]
    {
        for (index, chunk) in all[from..].chunks(7).enumerate() {
            lines.push(data(stream, (from + 7 * index) as u64, chunk));
        }
    }
    lines.push(OutputLine::End { end: end(STDOUT.len() as u64, STDERR.len() as u64) });
    lines
}

async fn exec(server: &Server) -> Exec {
    client(server).exec(&"s1".parse().unwrap(), &spec()).await.unwrap()
}

fn reader(server: &Server) -> Exec {
    client(server).reader(&"s1".parse().unwrap(), &"e1".parse().unwrap())
}

#[tokio::test]
async fn output_that_is_cut_everywhere_arrives_once_and_in_order() {
    // The `started` and `end` lines have up to 200 bytes. A connection that breaks before these are complete
    // makes no progress, so the test cuts no earlier than after 230 bytes.
    for cut in (230..700).step_by(31) {
        let server = Server::start(move |_, request| Answer::cut(&text(&honest(request)), cut)).await;
        let collected = exec(&server).await.collect().await.unwrap();
        assert_eq!(collected.stdout, STDOUT.as_bytes(), "cut at {cut}");
        assert_eq!(collected.stderr, STDERR, "cut at {cut}");
        assert_eq!(server.seen().iter().filter(|r| r.line.starts_with("POST")).count(), 1);
    }
}

#[tokio::test]
async fn a_stream_without_an_end_is_never_a_success() {
    let server = Server::start(|_, request| {
        let mut lines = honest(request);
        lines.pop();
        Answer::lines(&lines)
    })
    .await;
    let error = exec(&server).await.collect().await.unwrap_err();
    assert!(matches!(&error, Error::Unreachable { why, .. } if why.contains("last line")), "{error}");
}

#[tokio::test]
async fn silence_is_a_broken_connection() {
    let server = Server::start(|number, request| match number {
        0 => Answer::cut(&text(&honest(request)), 400).then_silence(),
        1 => Answer::nothing().then_silence(),
        _ => Answer::lines(&honest(request)),
    })
    .await;
    let collected = exec(&server).await.collect().await.unwrap();
    assert_eq!(collected.stdout, STDOUT.as_bytes());
}

#[tokio::test]
async fn a_server_that_lies_about_output_is_not_believed() {
    let stdout = |offset, text: &str| data(Stream::Stdout, offset, text.as_bytes());
    let gap = |from, to| OutputLine::Gap { stream: Stream::Stdout, from, to };
    let both = OutputLine::Data {
        stream: Stream::Stdout,
        offset: 0,
        text: Some("a".into()),
        base64: Some("YQ==".into()),
    };
    let neither = OutputLine::Data { stream: Stream::Stdout, offset: 0, text: None, base64: None };
    let cases = [
        text(&[stdout(1, "skipped")]),
        text(&[stdout(0, "abc"), stdout(2, "overlap")]),
        text(&[stdout(0, "abc"), stdout(0, "abc")]),
        text(&[stdout(0, "abc"), gap(2, 9)]),
        text(&[gap(0, 0)]),
        text(&[stdout(0, "abc"), OutputLine::End { end: end(4, 0) }]),
        text(&[stdout(0, "abc"), OutputLine::End { end: end(2, 0) }]),
        text(&[OutputLine::Started { exec: info() }]),
        text(&[data(Stream::Results, 0, b"{}\n")]),
        text(&[OutputLine::Gap { stream: Stream::Results, from: 0, to: 9 }]),
        text(&[result(5, 9)]),
        text(&[result(0, 0)]),
        text(&[result(0, 9), result(0, 9)]),
        text(&[result(0, 9), OutputLine::End { end: end(0, 0) }]),
        text(&[both]),
        text(&[neither]),
        "no line of ours\n".into(),
        "x".repeat(LINE_BYTES_MAX + 2),
    ];
    for case in cases {
        let body = case.clone();
        let server = Server::start(move |_, _| Answer::text(&body)).await;
        let lie = reader(&server).collect().await.unwrap_err();
        assert!(matches!(lie, Error::Protocol { .. }), "{lie} for {:.80}", case);
    }
}

fn result(offset: u64, next: u64) -> OutputLine {
    let value = serde_json::json!({
        "stdout": 0, "stderr": 0, "result": {"kind": "value", "data": {"text/plain": "x".repeat(300)}},
    });
    OutputLine::Result { offset, next, line: serde_json::from_value(value).unwrap() }
}

/// If the connection breaks in the middle of a result, the result is not delivered. The next connection
/// starts with this result.
#[tokio::test]
async fn results_arrive_once_wherever_the_connection_breaks() {
    let all = |request: &Request| {
        let from = number(request, "results") as u64;
        let mut lines: Vec<_> =
            (0..5).map(|n| result(n * 10, n * 10 + 10)).skip(usize::try_from(from / 10).unwrap()).collect();
        lines.push(OutputLine::End { end: api::exec::ExecEnd { results_bytes: 50, ..end(0, 0) } });
        lines
    };
    for cut in (450..1500).step_by(97) {
        let server = Server::start(move |_, request| Answer::cut(&text(&all(request)), cut)).await;
        let mut exec = reader(&server);
        let mut offsets = Vec::new();
        loop {
            match exec.next().await.unwrap().unwrap() {
                Event::Result { offset, .. } => offsets.push(offset),
                Event::End(_) => break,
                other @ (Event::Data { .. } | Event::Gap { .. }) => panic!("{other:?}"),
            }
        }
        assert_eq!(offsets, [0, 10, 20, 30, 40], "cut at {cut}");
        assert!(server.seen().iter().all(|request| number(request, "results").is_multiple_of(10)));
    }
    let server = Server::start(move |_, request| Answer::lines(&all(request))).await;
    assert_eq!(reader(&server).collect().await.unwrap().results.len(), 5);
}

#[tokio::test]
async fn a_resumed_stream_that_repeats_bytes_is_not_believed() {
    let server = Server::start(|number, _| match number {
        0 => Answer::cut(&text(&[data(Stream::Stdout, 0, b"abc")]), 1000),
        _ => Answer::lines(&[data(Stream::Stdout, 0, b"abc"), OutputLine::End { end: end(3, 0) }]),
    })
    .await;
    let lie = reader(&server).collect().await.unwrap_err();
    assert!(matches!(lie, Error::Protocol { .. }), "{lie}");
}

#[tokio::test]
async fn what_is_gone_when_the_reader_comes_back_is_said_by_name() {
    for code in [ErrorCode::NotFound, ErrorCode::SandboxLost] {
        let server = Server::start(move |number, _| match number {
            0 => Answer::cut(&text(&[data(Stream::Stdout, 0, b"abc")]), 1000),
            _ => Answer::json("404 Not Found", &error(code, Retry::Useless)),
        })
        .await;
        let mut exec = reader(&server);
        assert!(matches!(exec.next().await.unwrap(), Some(Event::Data { .. })));
        assert_eq!(exec.next().await.unwrap_err().code(), Some(code));
        assert_eq!(exec.position(), PerStream { stdout: 3, stderr: 0, results: 0 });
    }
}

#[tokio::test]
async fn a_stream_that_says_why_it_cannot_go_on_is_heard() {
    let server = Server::start(|number, request| {
        let retry = if number == 0 { Retry::Safe } else { Retry::Useless };
        let at = number_of_bytes(request);
        let last = OutputLine::Error { error: error(ErrorCode::Platform, retry) };
        Answer::lines(&[data(Stream::Stdout, at, b"abc"), last])
    })
    .await;
    let mut exec = reader(&server);
    for offset in [0, 3] {
        assert!(matches!(exec.next().await, Ok(Some(Event::Data { offset: at, .. })) if at == offset));
    }
    assert_eq!(exec.next().await.unwrap_err().code(), Some(ErrorCode::Platform));
}

fn number_of_bytes(request: &Request) -> u64 {
    number(request, "stdout") as u64
}

/// A process in mode `block` waits for acknowledgements. The client sends them after each quarter of the
/// buffer, on a heartbeat, and after a reconnect. It sends lost acknowledgements again.
#[tokio::test]
async fn a_process_that_waits_for_its_reader_is_told_what_was_read() {
    let server = Server::start(|number, request| {
        if request.line.starts_with("PUT") {
            return if number == 1 { Answer::nothing() } else { Answer::empty("204 No Content") };
        }
        let kilobyte = [b'x'; 1024];
        let from = number_of_bytes(request);
        if request.line.starts_with("POST") {
            let lines = [
                OutputLine::Started { exec: info() },
                data(Stream::Stdout, 0, &kilobyte),
                data(Stream::Stdout, 1024, b"abc"),
                OutputLine::Heartbeat,
                data(Stream::Stdout, 1027, b"d"),
            ];
            return Answer::cut(&text(&lines), usize::MAX);
        }
        Answer::lines(&[data(Stream::Stdout, from, b"e"), OutputLine::End { end: end(from + 1, 0) }])
    })
    .await;
    let spec = ExecSpec { output: OutputMode::Block, output_bytes: Some(4096), ..spec() };
    let exec = client(&server).exec(&"s1".parse().unwrap(), &spec).await.unwrap();
    assert_eq!(exec.collect().await.unwrap().stdout.len(), 1029);
    let told: Vec<_> = server
        .seen()
        .iter()
        .filter(|request| request.line.starts_with("PUT /v1/sandboxes/s1/execs/e1/read"))
        .map(number_of_bytes)
        .collect();
    assert_eq!(told, [1024, 1024, 1027, 1028]);
}

#[tokio::test]
async fn what_was_written_so_far_ends_where_the_server_says_so() {
    let server = Server::start(|number, request| {
        assert!(request.line.ends_with("follow=false"), "{}", request.line);
        let line = data(Stream::Stdout, number_of_bytes(request), b"abc");
        match number {
            0 => Answer::cut(&text(&[line]), 1000),
            _ => Answer::lines(&[line, OutputLine::Heartbeat]),
        }
    })
    .await;
    let mut exec = client(&server).reader_of_now(&"s1".parse().unwrap(), &"e1".parse().unwrap());
    for _ in 0..2 {
        assert!(matches!(exec.next().await, Ok(Some(Event::Data { .. }))));
    }
    assert_eq!(exec.next().await, Ok(None));
    assert_eq!(server.seen().len(), 2);
    let body = text(&[OutputLine::Heartbeat, OutputLine::Heartbeat]);
    let server = Server::start(move |_, _| Answer::cut(&body, usize::MAX).then_silence()).await;
    let mut exec = client(&server).reader_of_now(&"s1".parse().unwrap(), &"e1".parse().unwrap());
    assert_eq!(exec.next().await, Ok(None), "a server that goes on saying that nothing happens");
}

#[tokio::test]
async fn a_reader_begins_where_it_is_told_to() {
    let server = Server::start(|_, request| Answer::lines(&honest(request))).await;
    let mut exec = reader(&server);
    exec.seek(4, STDERR.len() as u64, 0);
    assert_eq!(exec.collect().await.unwrap().stdout, &STDOUT.as_bytes()[4..]);
}

/// A caller that waits for two things at once frequently drops one of the futures.
#[tokio::test]
async fn a_wait_that_is_dropped_loses_nothing() {
    let server = Server::start(|_, request| Answer::cut(&text(&honest(request)), 500)).await;
    let (mut exec, mut stdout) = (exec(&server).await, Vec::new());
    loop {
        let event = tokio::select! {
            biased;
            () = tokio::time::sleep(std::time::Duration::from_millis(5)) => continue,
            event = exec.next() => event.unwrap(),
        };
        match event.unwrap() {
            Event::Data { stream: Stream::Stdout, bytes, .. } => stdout.extend_from_slice(&bytes),
            Event::Data { .. } | Event::Gap { .. } | Event::Result { .. } => {}
            Event::End(_) => break,
        }
    }
    assert_eq!(stdout, STDOUT.as_bytes());
}
