//! Tests with a guest that lies. All input from a sandbox is hostile, including the input from process 1.
//!
//! The test itself plays the guest, at the other end of a real socket. The runtime does nothing but hand out
//! this socket.

#![cfg(test)]

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::exec::{ExecEnd, ExecSpec, LostCause, Outcome, Stream};
use api::files::{FileAnswer, FileAsk, FilePath, Hashing, Part, PartKind};
use api::frame::Header;
use api::posture::Posture;
use api::{ErrorCode, ExecId, SandboxId};
use bytes::Bytes;
use guest_client::{Event, Sandbox};
use host::Error;
use http_body_util::{BodyExt, Either, Full};
use hyper::service::service_fn;
use hyper::{Request, Response, body::Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use runtime::{Exit, Inspect, Listed, Properties, Runtime, Spec, Tier, Usage};
use tokio::net::UnixStream;
use tokio::sync::{Mutex, Notify, mpsc};

/// A runtime that hands out sockets. The test holds the other end of each.
struct Liar {
    dials: Mutex<mpsc::Receiver<UnixStream>>,
    died: Notify,
}

#[async_trait::async_trait]
impl Runtime for Liar {
    fn properties(&self) -> Properties {
        Properties::new("liar", Tier::Container)
    }

    async fn start(&self, _: &SandboxId, _: &Spec) -> Result<(), runtime::Error> {
        Ok(())
    }
    async fn connect(&self, id: &SandboxId, _: Duration) -> Result<UnixStream, runtime::Error> {
        self.dials.lock().await.recv().await.ok_or_else(|| runtime::Error::Ended(id.clone()))
    }
    async fn wait(&self, _: &SandboxId) -> Result<Exit, runtime::Error> {
        self.died.notified().await;
        Ok(Exit::Signaled(9))
    }
    async fn stop(&self, _: &SandboxId, _: Duration) -> Result<(), runtime::Error> {
        self.died.notify_one();
        Ok(())
    }
    async fn list(&self) -> Result<Vec<Listed>, runtime::Error> {
        Ok(Vec::new())
    }
}

#[async_trait::async_trait]
impl Inspect for Liar {
    async fn usage(&self, _: &SandboxId) -> Result<Usage, runtime::Error> {
        Ok(Usage::default())
    }

    async fn posture(&self, _: &SandboxId) -> Result<(Posture, Vec<String>), runtime::Error> {
        Ok((Posture::default(), Vec::new()))
    }
}

type Body = Either<Full<Bytes>, streamed::Streamed>;
type Outputs = Arc<std::sync::Mutex<VecDeque<Vec<u8>>>>;

/// Creates a sandbox whose guest responds to each request for output with the next of these byte strings.
fn sandbox(outputs: Vec<Vec<u8>>) -> (Sandbox, Arc<Liar>) {
    answering(outputs, Duration::from_secs(60))
}

/// Like `sandbox`, but also sets how long each response stays open after its bytes.
fn answering(outputs: Vec<Vec<u8>>, open: Duration) -> (Sandbox, Arc<Liar>) {
    let (dialler, dials) = mpsc::channel(8);
    let liar = Arc::new(Liar { dials: Mutex::new(dials), died: Notify::new() });
    let outputs: Outputs = Arc::new(std::sync::Mutex::new(outputs.into()));
    tokio::spawn(async move {
        loop {
            let (ours, theirs) = UnixStream::pair().unwrap();
            if dialler.send(theirs).await.is_err() {
                return;
            }
            let outputs = Arc::clone(&outputs);
            let service = service_fn(move |request| answer(request, Arc::clone(&outputs), open));
            let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(ours), service)
                .await;
        }
    });
    let id = "stest".parse().unwrap();
    (Sandbox::attach(liar.clone(), id, 1 << 20), liar)
}

async fn answer(
    request: Request<Incoming>,
    outputs: Outputs,
    open: Duration,
) -> Result<Response<Body>, Infallible> {
    if request.uri().path() == "/files" {
        // The response is sent after the whole request has been received, and ends after its bytes.
        let (bytes, mut body) = (outputs.lock().unwrap().pop_front(), request.into_body());
        let (sender, channel) = streamed::body(2);
        tokio::spawn(async move {
            while let Some(Ok(_)) = body.frame().await {}
            let _ = sender.send(bytes.unwrap_or_default().into()).await;
        });
        return Ok(Response::new(Either::Right(channel)));
    }
    if request.uri().path().ends_with("/output") {
        let output = outputs.lock().unwrap().pop_front();
        let (sender, channel) = streamed::body(2);
        tokio::spawn(async move {
            match output {
                // Keep the response open: the guest falls silent after its bytes.
                Some(bytes) => {
                    let _ = sender.send(bytes.into()).await;
                    tokio::time::sleep(open).await;
                }
                None => std::future::pending().await,
            }
        });
        return Ok(Response::new(Either::Right(channel)));
    }
    let info = r#"{"id":"e1","argv":"true","outcome":null,"processes":1,"stdout_bytes":0,"stderr_bytes":0,"duration_ms":0}"#;
    Ok(Response::new(Either::Left(Full::new(Bytes::from_static(info.as_bytes())))))
}

fn spec() -> ExecSpec {
    ExecSpec { argv: vec!["true".into()], ..ExecSpec::default() }
}

fn exec_id() -> ExecId {
    "e1".parse().unwrap()
}

fn data(stream: Stream, offset: u64, bytes: &[u8]) -> Vec<u8> {
    [&Header::Data { stream, offset, length: bytes.len() as u32 }.encode()[..], bytes].concat()
}

fn end(stdout_bytes: u64) -> Vec<u8> {
    end_with(stdout_bytes, 0)
}

fn end_with(stdout_bytes: u64, results_bytes: u64) -> Vec<u8> {
    let end = ExecEnd {
        outcome: Outcome::Exited { code: 0 },
        stdout_bytes,
        stdout_dropped: 0,
        stderr_bytes: 0,
        stderr_dropped: 0,
        results_bytes,
        state_lost: false,
        duration_us: 1,
        left_running: 0,
        memory: None,
    };
    let json = serde_json::to_vec(&end).unwrap();
    [&Header::End { length: json.len() as u32 }.encode()[..], &json].concat()
}

/// Reads until the first error or the end.
async fn read(outputs: Vec<Vec<u8>>) -> Result<Vec<Event>, Error> {
    let (sandbox, _liar) = sandbox(outputs);
    let mut exec = sandbox.exec(exec_id(), &spec()).await?;
    let mut events = Vec::new();
    while let Some(event) = exec.next().await? {
        events.push(event);
    }
    Ok(events)
}

async fn refused(outputs: Vec<u8>) {
    let started = Instant::now();
    let error = read(vec![outputs]).await.expect_err("the lie was believed");
    assert!(matches!(error, Error::Protocol(_)), "{error}");
    assert_eq!(error.to_api().code, ErrorCode::Protocol);
    assert!(started.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn an_honest_guest_is_believed() {
    let events = read(vec![[data(Stream::Stdout, 0, b"hi"), end(2)].concat()]).await.unwrap();
    assert!(matches!(events.last(), Some(Event::End(end)) if end.outcome == Outcome::Exited { code: 0 }));
}

/// Attack A-03: duplicate and out-of-order data frames.
#[tokio::test]
async fn bytes_that_do_not_follow_are_refused() {
    refused([data(Stream::Stdout, 0, b"hi"), data(Stream::Stdout, 0, b"hi")].concat()).await;
    refused(data(Stream::Stdout, 7, b"hi")).await;
}

/// Attack A-03: a frame that claims a false length.
#[tokio::test]
async fn a_frame_over_the_bound_is_refused_before_its_bytes_come() {
    let mut header = Header::Heartbeat.encode();
    header[0] = 1;
    header[1] = 1;
    header[4..8].copy_from_slice(&u32::MAX.to_be_bytes());
    refused(header.to_vec()).await;
}

/// Attack A-03: frames of unknown kinds, and gaps that go backwards.
#[tokio::test]
async fn frames_that_mean_nothing_are_refused() {
    refused(vec![9; 16]).await;
    refused(Header::Gap { stream: Stream::Stdout, to: 0 }.encode().to_vec()).await;
}

/// Attack A-03: a forged end of output.
#[tokio::test]
async fn an_end_that_does_not_agree_with_the_bytes_is_refused() {
    refused([data(Stream::Stdout, 0, b"hi"), end(3)].concat()).await;
    let forged = br#"{"outcome":{"kind":"exited"}}"#;
    refused([&Header::End { length: forged.len() as u32 }.encode()[..], &forged[..]].concat()).await;
}

/// Output that looks like a frame is delivered as output.
#[tokio::test]
async fn output_that_imitates_an_end_stays_output() {
    let forged = end(0);
    let length = forged.len() as u64;
    let events = read(vec![[data(Stream::Stdout, 0, &forged), end(length)].concat()]).await.unwrap();
    let bytes: Vec<u8> = events
        .iter()
        .filter_map(|event| match event {
            Event::Data { bytes, .. } => Some(bytes.to_vec()),
            Event::Gap { .. } | Event::Result { .. } | Event::End(_) => None,
        })
        .flatten()
        .collect();
    assert_eq!(bytes, forged);
}

fn shown(stdout: u64, text: &str) -> Vec<u8> {
    let result = serde_json::json!({"kind": "value", "data": {"text/plain": text}});
    format!("{}\n", serde_json::json!({"stdout": stdout, "stderr": 0, "result": result})).into_bytes()
}

/// Returns the delivered events in order: output as text, results as offsets.
fn order(events: &[Event]) -> Vec<String> {
    let told = |event: &Event| match event {
        Event::Data { bytes, .. } => Some(String::from_utf8_lossy(bytes).into_owned()),
        Event::Result { offset, next, .. } => Some(format!("{offset}..{next}")),
        Event::Gap { .. } | Event::End(_) => None,
    };
    events.iter().filter_map(told).collect()
}

/// The guest interleaves the streams, so a result may arrive before the output that it follows.
#[tokio::test]
async fn a_result_is_told_after_the_output_that_was_written_before_it() {
    let (one, two) = (shown(2, "a"), shown(4, "b"));
    let (first, both) = (one.len() as u64, (one.len() + two.len()) as u64);
    let early = [
        data(Stream::Results, 0, &[one.clone(), two.clone()].concat()),
        data(Stream::Stdout, 0, b"hi"),
        data(Stream::Stdout, 2, b"ho"),
        end_with(4, both),
    ];
    let told = order(&read(vec![early.concat()]).await.unwrap());
    assert_eq!(told, ["hi".into(), format!("0..{first}"), "ho".into(), format!("{first}..{both}")]);
    // A result that arrives after its output is delivered at once.
    let late = [data(Stream::Stdout, 0, b"hiho"), data(Stream::Results, 0, &one), end_with(4, first)];
    assert_eq!(order(&read(vec![late.concat()]).await.unwrap()), ["hiho".into(), format!("0..{first}")]);
}

/// A connection that breaks in the middle of a line loses nothing: the next connection starts at the
/// beginning of the line.
#[tokio::test]
async fn a_result_that_was_cut_is_read_again_from_its_beginning() {
    let (one, two) = (shown(0, "a"), shown(0, "b"));
    let (first, both) = (one.len() as u64, (one.len() + two.len()) as u64);
    let rest = [data(Stream::Results, first, &two), end_with(0, both)].concat();
    // The connection ends after half a line, and the output is requested again.
    let half = [data(Stream::Results, 0, &one), data(Stream::Results, first, &two[..two.len() / 2])].concat();
    let (sandbox, _liar) = answering(vec![half, rest], Duration::ZERO);
    let done = sandbox.exec(exec_id(), &spec()).await.unwrap().collect().await.unwrap();
    assert_eq!((done.results.len(), done.end.results_bytes), (2, both));
}

/// If a caller resumes in the middle of a line, this is the caller's error, not the guest's.
#[tokio::test]
async fn an_offset_at_which_no_result_begins_is_refused_as_a_request() {
    let one = shown(0, "a");
    let from = |at: usize| {
        [data(Stream::Results, at as u64 - 1, &one[at - 1..]), end_with(0, one.len() as u64)].concat()
    };
    for (at, fine) in [(7, false), (one.len(), true)] {
        let (sandbox, _liar) = sandbox(vec![from(at)]);
        let mut exec = sandbox.exec_reader(exec_id());
        exec.seek(0, 0, at as u64);
        let told = exec.next().await;
        match told {
            Ok(Some(Event::End(_))) if fine => {}
            Err(error) if !fine => assert_eq!(error.to_api().code, ErrorCode::InvalidRequest),
            other => panic!("{other:?}"),
        }
    }
}

/// The guest may have discarded all results of an exec that ended long ago.
#[tokio::test]
async fn results_that_were_not_kept_are_told_as_a_gap() {
    let gap = Header::Gap { stream: Stream::Results, to: 90 }.encode().to_vec();
    let told = read(vec![[gap.clone(), end_with(0, 90)].concat()]).await.unwrap();
    assert!(matches!(told[0], Event::Gap { stream: Stream::Results, from: 0, to: 90 }), "{told:?}");
    // Half a line was received before the gap.
    let half = [data(Stream::Results, 0, &shown(0, "a")[..9]), gap, end_with(0, 90)].concat();
    let told = read(vec![half]).await.unwrap();
    assert!(matches!(told[0], Event::Gap { from: 0, to: 90, .. }), "{told:?}");
}

/// Attack A-03: results that are malformed, too long, truncated, or placed after output that never arrives.
#[tokio::test]
async fn lies_about_results_are_refused() {
    let one = shown(0, "a");
    let length = one.len() as u64;
    refused([data(Stream::Results, 0, b"{\"stdout\":0}\n"), end_with(0, 13)].concat()).await;
    refused([data(Stream::Results, 0, b"\xff\n"), end_with(0, 2)].concat()).await;
    refused([data(Stream::Results, 0, &one[..5]), end_with(0, 5)].concat()).await;
    refused([data(Stream::Results, 0, &one), end_with(0, length + 1)].concat()).await;
    refused([data(Stream::Results, 3, &one), end_with(0, length)].concat()).await;
    let never = shown(7, "a");
    refused([data(Stream::Results, 0, &never), end_with(0, never.len() as u64)].concat()).await;
    let piece = vec![b'x'; 1 << 20];
    let endless = (0..9).flat_map(|number| data(Stream::Results, number << 20, &piece)).collect();
    refused(endless).await;
}

/// Attack A-01: the guest dies while an exec is running.
#[tokio::test]
async fn the_death_of_the_guest_is_an_outcome_within_a_second() {
    let (sandbox, liar) = sandbox(vec![data(Stream::Stdout, 0, b"hi")]);
    let mut exec = sandbox.exec(exec_id(), &spec()).await.unwrap();
    assert!(matches!(exec.next().await, Ok(Some(Event::Data { .. }))));
    liar.died.notify_one();
    let started = Instant::now();
    // Requests fail at once; an open stream ends with its connection, which the kernel closes with process 1.
    assert_eq!(sandbox.ended().await, LostCause::Died);
    assert!(started.elapsed() < Duration::from_secs(1));
    let error = sandbox.execs().await.unwrap_err();
    assert_eq!(error.to_api().code, ErrorCode::SandboxLost);
}

/// Verifies that attack A-04 fails: a guest that hides the end of an exec cannot extend it past its deadline.
#[tokio::test]
async fn a_guest_that_goes_quiet_cannot_outlast_the_deadline() {
    let (sandbox, _liar) = sandbox(vec![data(Stream::Stdout, 0, b"hi")]);
    let quick = ExecSpec { deadline_ms: Some(100), grace_ms: Some(0), ..spec() };
    let started = Instant::now();
    let collected = sandbox.exec(exec_id(), &quick).await.unwrap().collect().await.unwrap();
    assert_eq!(collected.end.outcome, Outcome::Timeout);
    assert_eq!(collected.stdout, b"hi");
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
}

fn part(kind: PartKind, json: &str) -> Vec<u8> {
    [&Part { kind, length: json.len() as u32 }.encode()[..], json.as_bytes()].concat()
}

fn path() -> FilePath {
    FilePath::new("a").unwrap()
}

fn read_ask() -> FileAsk {
    FileAsk::Read { path: path(), from: 0, to: Some(4), version: None, digest: Hashing::Sha256 }
}

const INFO: &str = r#"{"path":"/workspace/a","kind":"file","size_bytes":4,"mode":420,"uid":1000,"gid":1000,"modified_at_ms":0,"version":"1"}"#;

fn content(to: u64) -> Vec<u8> {
    part(PartKind::Head, &format!(r#"{{"answer":"content","info":{INFO},"from":0,"to":{to}}}"#))
}

fn read_end(sha256: &str) -> Vec<u8> {
    part(PartKind::End, &format!(r#"{{"end":"read","sha256":"{sha256}","changed":false}}"#))
}

/// Sends one file request, which is answered with these bytes.
async fn asked(ask: &FileAsk, answer: Vec<u8>) -> Result<FileAnswer, Error> {
    let (sandbox, _liar) = sandbox(vec![answer]);
    sandbox.files(1 << 20).ask(ask).await
}

/// Reads a file, with these bytes as the response.
async fn file(answer: Vec<u8>) -> Result<Vec<u8>, Error> {
    let (sandbox, _liar) = sandbox(vec![answer]);
    let (_, mut reading) = sandbox.files(1 << 20).read(&read_ask()).await?;
    let mut all = Vec::new();
    loop {
        match reading.next().await? {
            guest_client::ReadChunk::Data(bytes) => all.extend_from_slice(&bytes),
            guest_client::ReadChunk::Read { .. } => return Ok(all),
            guest_client::ReadChunk::Packed(_) => panic!("an archive"),
        }
    }
}

#[tokio::test]
async fn an_honest_answer_about_files_is_believed() {
    let info = part(PartKind::Head, &format!(r#"{{"answer":"info","info":{INFO}}}"#));
    assert!(matches!(asked(&FileAsk::Stat { path: path() }, info).await, Ok(FileAnswer::Info { .. })));
    let hash = "0".repeat(64);
    let whole = [content(4), part(PartKind::Data, "abcd"), read_end(&hash)].concat();
    assert_eq!(file(whole).await.unwrap(), b"abcd");
}

/// Attack A-03: responses to a different request, unannounced bytes, and data after the end.
#[tokio::test]
async fn lies_about_files_are_refused() {
    let stat = FileAsk::Stat { path: path() };
    let info = |version: &str| INFO.replace(r#""version":"1""#, &format!(r#""version":"{version}""#));
    let head = |json: &str| part(PartKind::Head, json);
    let told = |info: &str| head(&format!(r#"{{"answer":"info","info":{info}}}"#));
    let long = "t".repeat(20_000);
    for lie in [
        head(r#"{"answer":"page","items":[],"more":false}"#),
        head(r#"{"answer":"done","count":1}"#),
        head(r#"{"answer":"what"}"#),
        told(&info("a\r\nset-cookie: x")),
        told(&INFO.replace("/workspace/a", "../a")),
        told(&INFO.replace(r#""version":"1""#, &format!(r#""version":"1","target":"{long}""#))),
        told(&INFO.replace("/workspace/a", &long).replace(r#""kind""#, r#""path_encoded":"a","kind""#)),
        [told(INFO), part(PartKind::Data, "x")].concat(),
        [told(INFO), told(INFO)].concat(),
        head(
            r#"{"answer":"refused","error":{"code":"unauthorized","message":"","layer":"policy","ran":"no","retry":"useless","fix":""}}"#,
        ),
    ] {
        let error = asked(&stat, lie.clone()).await.expect_err("the lie was believed");
        assert!(matches!(error, Error::Protocol(_)), "{error}: {}", String::from_utf8_lossy(&lie));
    }
    let hash = "0".repeat(64);
    for lie in [
        [content(4), part(PartKind::Data, "abcde"), read_end(&hash)].concat(),
        [content(4), part(PartKind::Data, "abc"), read_end(&hash)].concat(),
        [content(5), part(PartKind::Data, "abcde"), read_end(&hash)].concat(),
        [content(4), part(PartKind::Data, "abcd"), read_end("x")].concat(),
        [
            content(4),
            part(PartKind::Data, "abcd"),
            part(PartKind::End, &format!(r#"{{"end":"read","blake3":"{hash}","changed":false}}"#)),
        ]
        .concat(),
        [
            content(4),
            part(
                PartKind::End,
                r#"{"end":"packed","report":{"entries":0,"bytes":0,"skipped":0,"changed":0}}"#,
            ),
        ]
        .concat(),
    ] {
        let error = file(lie).await.expect_err("the lie was believed");
        assert!(matches!(error, Error::Protocol(_)), "{error}");
    }
}

/// A process that serves files can be killed at any byte. A partial response must never be mistaken for a
/// complete one.
#[tokio::test]
async fn an_answer_about_files_that_breaks_off_says_so() {
    let whole = [content(4), part(PartKind::Data, "abcd"), read_end(&"0".repeat(64))].concat();
    for at in 0..whole.len() {
        let error = file(whole[..at].to_vec()).await.expect_err("a part was taken for the whole").to_api();
        assert_eq!((error.code, error.retry), (ErrorCode::Conflict, api::Retry::Safe), "{at}: {error:?}");
    }
    let removed = asked(&FileAsk::Remove { path: path(), all: true }, Vec::new()).await.unwrap_err().to_api();
    assert_eq!((removed.code, removed.retry), (ErrorCode::Conflict, api::Retry::Unknown));
}

/// A file counts as written only after a response that follows the last byte.
#[tokio::test]
async fn a_file_is_written_when_the_guest_says_so_and_not_before() {
    let hash = "0".repeat(64);
    let digest = Hashing::Sha256;
    let ask = FileAsk::Write { path: path(), offset: None, mode: None, sha256: None, digest };
    let said = part(PartKind::Head, &format!(r#"{{"answer":"whole","info":{INFO},"sha256":"{hash}"}}"#));
    let (sandbox, _liar) = sandbox(vec![said]);
    let files = sandbox.files(1 << 20);
    let mut writing = files.write(ask.clone()).await.unwrap();
    writing.push(Bytes::from_static(b"abcd")).await.unwrap();
    assert!(matches!(writing.finish().await, Ok(FileAnswer::Whole { .. })));
    let writing = files.write(ask).await.unwrap();
    let error = writing.finish().await.expect_err("nothing was said").to_api();
    assert_eq!((error.code, error.retry), (ErrorCode::Conflict, api::Retry::Unknown));
}
