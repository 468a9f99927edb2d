//! Commands and terminals: `process.Process` of E2B's agent.

use std::time::Duration;

use api::exec::{ExecEnd, ExecSpec, Outcome, OutputMode, Stream};
use api::limits::DEADLINE_MS_MAX;
use api::terminal::TerminalSize;
use axum::Json;
use axum::body::Body;
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream;
use http_body_util::BodyExt as _;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::timeout;

use crate::account::Rate;
use crate::audit::Act;
use crate::output::place;

use super::connect::{Asked, Called, Code, Envelopes, Failed, alive_every, last, message, number, streamed};
use super::place::absolute;
use super::running::{
    Config, Found, KEPT_BYTES, Process, Selector, Told, exec_id, fresh_pid, missing, pid_of,
};
use super::shown::put;
use super::who::{Commander, Inside};

/// How long a piece of input waits for a process that does not read, before whoever sends it is told.
const INPUT_WITHIN: Duration = Duration::from_secs(60);
/// The next piece of a stream of input, or a sign of life, comes within this.
const STREAM_WITHIN: Duration = Duration::from_secs(120);
/// What ends at its deadline has had its time.
const GRACE_MS: u64 = 500;

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Start {
    process: Config,
    pty: Option<Pty>,
    tag: Option<String>,
    stdin: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Pty {
    size: Size,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Size {
    cols: u32,
    rows: u32,
}

#[derive(Deserialize)]
pub struct Selected {
    process: Selector,
    #[serde(default)]
    input: Option<Input>,
    #[serde(default)]
    signal: Value,
    #[serde(default)]
    pty: Option<Pty>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Input {
    stdin: Option<String>,
    pty: Option<String>,
}

/// One message of a stream of input.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Streamed {
    start: Option<Value>,
    data: Option<Data>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Data {
    input: Input,
}

impl Pty {
    fn size(&self) -> TerminalSize {
        // What is not said is what every terminal has.
        let or = |number: u32, usual: u32| if number == 0 { usual } else { number };
        TerminalSize { cols: or(self.size.cols, 80), rows: or(self.size.rows, 24) }
    }
}

/// Starts a command, and tells what it writes to its end. It goes on if whoever listens leaves.
pub async fn start(
    Commander(inside, as_root): Commander,
    headers: HeaderMap,
    Asked(ask): Asked<Start>,
) -> Called<Response> {
    let Inside { platform, caller, call, sandbox, home } = &inside;
    caller.pace(Rate::Exec)?;
    let launch = caller.share.launch()?;
    let place = place(&caller.share)?;
    let terminal = ask.pty.as_ref().map(Pty::size);
    let who = if as_root { Who::Root } else { Who::User(home) };
    let mut spec = spec(&ask, terminal, who, number(&headers, "connect-timeout-ms"));
    if ask.process.cwd.as_deref().unwrap_or_default().is_empty() {
        // A template's own directory is for everybody; a home is its owner's.
        spec.cwd = call.directory().filter(|directory| directory != home).or(spec.cwd);
    }
    let pid = fresh_pid()?;
    let id = exec_id(pid)?;
    crate::trace::about_exec(sandbox, &id);
    platform.note(caller, Act::Exec, |entry| entry.sandbox(sandbox).exec(&id).command(&spec));
    let (_, exec) = platform.node.follow(call, &id, spec).await?;
    drop(launch);
    let process = Process::new(ask.process, ask.tag, terminal.is_some());
    // Before anything is read, so that nothing is missed.
    let told = process.listen().ok_or_else(|| missing(&Selector::Pid(pid)))?;
    platform.e2b.processes.follow((sandbox.clone(), pid), process, exec);
    let (terminal, every, first) = (terminal.is_some(), alive_every(&headers), started(pid));
    Ok(events(Listener { _inside: inside, _place: place, told, terminal, every, first }))
}

/// Listens to a process that was started before. One that has ended tells what is left of its output, and its end.
pub async fn connect(inside: Inside, headers: HeaderMap, Asked(ask): Asked<Selected>) -> Called<Response> {
    let Inside { platform, caller, call, sandbox, .. } = &inside;
    let place = place(&caller.share)?;
    let (pid, found) = platform.e2b.processes.find(sandbox, call, &ask.process).await?;
    let (terminal, told) = match &found {
        Found::Running(process) => (process.terminal, process.listen()),
        Found::Ended(info) => (info.terminal.is_some(), None),
    };
    let told = match told {
        Some(told) => told,
        None => {
            let process = Process::new(Config::default(), None, terminal);
            let told = process.listen().ok_or_else(|| missing(&ask.process))?;
            let exec = call.reader(exec_id(pid)?);
            tokio::spawn(async move { process.pump(exec).await });
            told
        }
    };
    let (every, first) = (alive_every(&headers), started(pid));
    Ok(events(Listener { _inside: inside, _place: place, told, terminal, every, first }))
}

/// Those that run.
pub async fn list(inside: Inside) -> Called<Json<Value>> {
    let processes = inside.call.execs().await?.into_iter().filter(|info| info.outcome.is_none());
    let processes = processes.filter_map(|info| {
        let pid = pid_of(&info.id)?;
        let known = inside.platform.e2b.processes.known(&inside.sandbox, pid);
        let config = known.as_ref().map(|process| process.config.clone());
        let config = config.unwrap_or(Config { cmd: info.argv, ..Config::default() });
        let mut shown = json!({ "config": config, "pid": pid });
        if let Some(tag) = known.and_then(|process| process.tag.clone()) {
            put(&mut shown, "tag", tag.into());
        }
        Some(shown)
    });
    Ok(Json(json!({ "processes": processes.collect::<Vec<_>>() })))
}

/// Sends a piece of input.
pub async fn send_input(inside: Inside, Asked(ask): Asked<Selected>) -> Called<Json<Value>> {
    let input = ask.input.unwrap_or_default();
    feed(&inside, &ask.process, &input, false).await?;
    Ok(Json(json!({})))
}

/// Says that no more input comes.
pub async fn close_stdin(inside: Inside, Asked(ask): Asked<Selected>) -> Called<Json<Value>> {
    feed(&inside, &ask.process, &Input::default(), true).await?;
    Ok(Json(json!({})))
}

/// Sends input as it comes.
pub async fn stream_input(inside: Inside, request: Request) -> Called<Response> {
    let mut body = request.into_body();
    let (mut envelopes, mut which) = (Envelopes::default(), None);
    loop {
        while let Some(text) = envelopes.next()? {
            let wrong = |error| Failed::of(Code::InvalidArgument, format!("the message is {error}"));
            let part: Streamed = serde_json::from_slice(&text).map_err(wrong)?;
            if let Some(start) = part.start {
                let selector = start.get("process").cloned().unwrap_or_default();
                which = Some(serde_json::from_value::<Selector>(selector).map_err(wrong)?);
            }
            if let Some(data) = part.data {
                let first = || Failed::of(Code::InvalidArgument, "the first message must name the process");
                feed(&inside, which.as_ref().ok_or_else(first)?, &data.input, false).await?;
            }
        }
        match timeout(STREAM_WITHIN, body.frame()).await {
            Ok(None) => break,
            Ok(Some(Ok(frame))) => envelopes.take(&frame.into_data().unwrap_or_default()),
            Ok(Some(Err(_))) => return Err(Failed::of(Code::InvalidArgument, "the body broke off")),
            Err(_) => return Err(Failed::of(Code::DeadlineExceeded, "no input came for two minutes")),
        }
    }
    let answer: Bytes = [message(&json!({})), last(None)].concat().into();
    Ok(streamed(Body::from(answer)))
}

/// Sends a signal to a process, with all it has started.
pub async fn send_signal(inside: Inside, Asked(ask): Asked<Selected>) -> Called<Json<Value>> {
    let signal = match (ask.signal.as_str(), ask.signal.as_i64()) {
        (Some("SIGNAL_SIGKILL"), _) | (_, Some(9)) => 9,
        (Some("SIGNAL_SIGTERM"), _) | (_, Some(15)) => 15,
        (_, _) => {
            let told = format!("{} is no signal that can be sent", ask.signal);
            return Err(Failed::of(Code::InvalidArgument, told));
        }
    };
    let which = &ask.process;
    let (pid, found) = inside.platform.e2b.processes.find(&inside.sandbox, &inside.call, which).await?;
    let Found::Running(_) = found else { return Err(missing(which)) };
    let id = exec_id(pid)?;
    inside.platform.note(&inside.caller, Act::ExecSignal, |entry| entry.sandbox(&inside.sandbox).exec(&id));
    match inside.call.reader(id).signal(signal).await? {
        0 => Err(missing(which)),
        _ => Ok(Json(json!({}))),
    }
}

/// Gives a terminal another size.
pub async fn update(inside: Inside, Asked(ask): Asked<Selected>) -> Called<Json<Value>> {
    let (pid, _) = inside.platform.e2b.processes.find(&inside.sandbox, &inside.call, &ask.process).await?;
    if let Some(pty) = ask.pty {
        inside.call.reader(exec_id(pid)?).resize(pty.size()).await?;
    }
    Ok(Json(json!({})))
}

/// Who runs a command.
#[derive(Clone, Copy)]
enum Who<'a> {
    /// The sandbox's user, whose home this is.
    User(&'a str),
    Root,
}

/// What the guest is asked for.
fn spec(ask: &Start, terminal: Option<TerminalSize>, who: Who<'_>, deadline_ms: Option<u64>) -> ExecSpec {
    let Config { cmd, args, envs, cwd } = &ask.process;
    let mut env = envs.clone();
    let (uid, home) = match who {
        Who::User(home) => (None, home),
        Who::Root => (Some(0), "/root"),
    };
    env.entry("E2B_SANDBOX".into()).or_insert_with(|| "true".into());
    ExecSpec {
        argv: std::iter::once(cmd.clone()).chain(args.iter().cloned()).collect(),
        env,
        uid,
        cwd: Some(absolute(cwd.as_deref().unwrap_or_default(), home)),
        stdin: terminal.is_none() && ask.stdin.unwrap_or(true),
        deadline_ms: deadline_ms.filter(|ms| *ms > 0).map(|ms| ms.min(DEADLINE_MS_MAX)),
        grace_ms: Some(GRACE_MS),
        output: if terminal.is_some() { OutputMode::Keep } else { OutputMode::Block },
        output_bytes: Some(KEPT_BYTES),
        terminal,
        ..ExecSpec::default()
    }
}

/// Sends input to a process, after what was sent before.
async fn feed(inside: &Inside, which: &Selector, input: &Input, closes: bool) -> Called<()> {
    let (pid, found) = inside.platform.e2b.processes.find(&inside.sandbox, &inside.call, which).await?;
    let Found::Running(process) = found else { return Err(missing(which)) };
    let text = input.stdin.as_deref().or(input.pty.as_deref()).unwrap_or_default();
    let bytes = STANDARD.decode(text);
    let bytes = bytes.map_err(|_| Failed::of(Code::InvalidArgument, "the input is not in base64"))?;
    if closes && process.terminal {
        let told = "a terminal has no end of input; send it the character of control-D";
        return Err(Failed::of(Code::FailedPrecondition, told));
    }
    let mut sent = process.sent.lock().await;
    let id = exec_id(pid)?;
    // Where a piece before was not taken whole, or whoever sent it left, only the guest knows how much it has.
    let at = match sent.take() {
        Some(at) => at,
        None => {
            inside
                .call
                .execs()
                .await?
                .iter()
                .find(|info| info.id == id)
                .ok_or_else(|| missing(which))?
                .stdin_bytes
        }
    };
    let length = bytes.len() as u64;
    inside.call.reader(id).write_stdin(at, bytes.into(), closes, INPUT_WITHIN).await?;
    *sent = Some(at + length);
    Ok(())
}

/// Somebody who listens.
struct Listener {
    _inside: Inside,
    _place: OwnedSemaphorePermit,
    told: mpsc::Receiver<Told>,
    terminal: bool,
    every: Duration,
    /// What is said before anything else.
    first: Option<Bytes>,
}

/// What happens to a process as an answer.
fn events(listener: Listener) -> Response {
    let body = stream::unfold(Some(listener), |listener| async move {
        let mut listener = listener?;
        let (bytes, goes_on) = listener.next().await;
        Some((Ok::<_, std::convert::Infallible>(bytes), goes_on.then_some(listener)))
    });
    streamed(Body::from_stream(body))
}

fn started(pid: u32) -> Option<Bytes> {
    Some(message(&json!({ "event": { "start": { "pid": pid } } })))
}

impl Listener {
    /// What is said next, and whether more comes.
    async fn next(&mut self) -> (Bytes, bool) {
        if let Some(first) = self.first.take() {
            return (first, true);
        }
        let told = match timeout(self.every, self.told.recv()).await {
            Err(_) => return (message(&json!({ "event": { "keepalive": {} } })), true),
            Ok(told) => told,
        };
        match told {
            Some(Told::Data { stream, bytes }) => {
                let name = match stream {
                    _ if self.terminal => "pty",
                    Stream::Stderr => "stderr",
                    Stream::Stdout | Stream::Results => "stdout",
                };
                (message(&json!({ "event": { "data": { name: STANDARD.encode(&bytes) } } })), true)
            }
            Some(Told::End(end)) => match ended(&end) {
                Ok(event) => {
                    let event = message(&json!({ "event": { "end": event } }));
                    ([event, last(None)].concat().into(), false)
                }
                Err(failed) => (last(Some(&failed)), false),
            },
            Some(Told::Broken(error)) => (last(Some(&error.into())), false),
            None => {
                let failed = Failed::of(
                    Code::ResourceExhausted,
                    "nothing of this stream was taken for too long; connect again",
                );
                (last(Some(&failed)), false)
            }
        }
    }
}

/// How a process ended, as these clients are told.
fn ended(end: &ExecEnd) -> Called<Value> {
    let by_signal = |name: &str, why: String| json!({ "exitCode": -1, "exited": false, "status": format!("signal: {name}"), "error": why });
    Ok(match &end.outcome {
        Outcome::Exited { code: 0 } => json!({ "exitCode": 0, "exited": true, "status": "exit status 0" }),
        Outcome::Exited { code } => {
            let status = format!("exit status {code}");
            json!({ "exitCode": code, "exited": true, "status": status, "error": status })
        }
        Outcome::Signaled { signal } => {
            let name = name_of(*signal);
            by_signal(&name, format!("signal: {name}"))
        }
        Outcome::Cancelled => by_signal("killed", "it was cancelled".into()),
        Outcome::Oom => {
            let limit =
                end.memory.map(|memory| format!(" of {} bytes", memory.limit_bytes)).unwrap_or_default();
            by_signal("killed", format!("the memory{limit} was used up"))
        }
        Outcome::OutputLimit => by_signal("killed", "it wrote more than it may".into()),
        Outcome::Timeout => {
            return Err(Failed::of(
                Code::DeadlineExceeded,
                "the command ran longer than its timeout and was ended",
            ));
        }
        Outcome::SandboxLost { .. } => return Err(Failed::Gone),
        Outcome::Unknown => return Err(Failed::of(Code::Internal, "how the command ended is not known")),
    })
}

fn name_of(signal: i32) -> String {
    match signal {
        1 => "hangup".into(),
        2 => "interrupt".into(),
        3 => "quit".into(),
        6 => "aborted".into(),
        9 => "killed".into(),
        11 => "segmentation fault".into(),
        13 => "broken pipe".into(),
        15 => "terminated".into(),
        other => format!("signal {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_is_what_is_usual() {
        let ask: Start =
            serde_json::from_str(r#"{"process":{"cmd":"/bin/bash","args":["-l","-c","x"]}}"#).unwrap();
        let spec = spec(&ask, None, Who::User("/home/user"), None);
        assert_eq!(spec.argv, ["/bin/bash", "-l", "-c", "x"]);
        assert!(spec.stdin && spec.cwd.as_deref() == Some("/home/user") && spec.deadline_ms.is_none());
        assert_eq!(spec.check(), Ok(()));
        let ask: Start = serde_json::from_str(
            r#"{"process":{"cmd":"a","cwd":"b"},"pty":{"size":{"cols":9}},"stdin":false}"#,
        )
        .unwrap();
        let size = ask.pty.as_ref().map(Pty::size);
        let spec = super::spec(&ask, size, Who::User("/home/user"), Some(u64::MAX));
        assert_eq!((size.unwrap().cols, size.unwrap().rows), (9, 24));
        assert!(!spec.stdin && spec.cwd.as_deref() == Some("/home/user/b"));
        assert_eq!(spec.check(), Ok(()));
    }

    #[test]
    fn selectors_are_as_the_sdks_write_them() {
        let ask: Selected =
            serde_json::from_str(r#"{"process":{"pid":7},"input":{"stdin":"YQ=="}}"#).unwrap();
        assert!(matches!(ask.process, Selector::Pid(7)));
        let ask: Selected =
            serde_json::from_str(r#"{"process":{"tag":"a"},"signal":"SIGNAL_SIGKILL"}"#).unwrap();
        assert!(matches!(ask.process, Selector::Tag(tag) if tag == "a"));
    }
}
