//! Commands and terminals: `process.Process` of E2B's agent.

use std::time::Duration;

use api::exec::{ExecEnd, ExecSpec, Outcome, OutputMode, Stream};
use api::limits::DEADLINE_MS_MAX;
use api::terminal::TerminalSize;
use axum::Json;
use axum::body::Body;
use axum::http::HeaderMap;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::timeout;

use control::account::Rate;
use control::audit::Act;

use super::connect::{Called, Code, ConnectMessage, Failed, alive_every, last, message, number, streamed};
use super::input::Input;
use super::place::absolute;
use super::running::{
    Config, KEPT_BYTES, ProcessEvent, ProcessMatch, RunningProcess, Selector, exec_id, fresh_pid, missing,
    pid_of,
};
use super::shown::put;
use super::who::{Commander, Inside};

/// Time between SIGTERM and SIGKILL for a command that exceeds its deadline. It is short, because the command
/// has already used up its time.
const GRACE_MS: u64 = 500;

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct StartProcessRequest {
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
    pub(super) process: Selector,
    #[serde(default)]
    pub(super) input: Option<Input>,
    #[serde(default)]
    signal: Value,
    #[serde(default)]
    pty: Option<Pty>,
}

impl Pty {
    fn size(&self) -> TerminalSize {
        // Zero means that the client did not specify the number, so use the default.
        let or = |number: u32, usual: u32| if number == 0 { usual } else { number };
        TerminalSize { cols: or(self.size.cols, 80), rows: or(self.size.rows, 24) }
    }
}

/// Starts a command and streams its output until it ends. The command continues if the client disconnects.
pub async fn start(
    Commander(inside, as_root): Commander,
    headers: HeaderMap,
    ConnectMessage(ask): ConnectMessage<StartProcessRequest>,
) -> Called<Response> {
    let Inside { platform, caller, call, sandbox, home, .. } = &inside;
    caller.pace(Rate::Exec)?;
    let launch = caller.share.launch()?;
    let place = caller.share.stream()?;
    let terminal = ask.pty.as_ref().map(Pty::size);
    let who = if as_root { Who::Root } else { Who::User(home) };
    let mut spec = spec(&ask, terminal, who, number(&headers, "connect-timeout-ms"));
    if ask.process.cwd.as_deref().unwrap_or_default().is_empty() {
        // A working directory that the template sets applies to every user, but a home directory only to its
        // owner.
        spec.cwd = call.directory().filter(|directory| directory != home).or(spec.cwd);
    }
    let pid = fresh_pid()?;
    let id = exec_id(pid)?;
    control::trace::about_exec(sandbox, &id);
    platform.note(caller, Act::Exec, |entry| entry.sandbox(sandbox).exec(&id).command(&spec));
    spec.argv = argv(&ask.process.cmd, &ask.process.args);
    let (_, exec) = platform.node.start_exec_and_read(call, &id, spec).await?;
    drop(launch);
    let process = RunningProcess::new(ask.process, ask.tag, terminal.is_some());
    // Subscribe before the output is read, so that nothing is missed.
    let told = process.listen().ok_or_else(|| missing(&Selector::Pid(pid)))?;
    inside.clients.processes.follow((sandbox.clone(), pid), process, exec);
    let (terminal, every, first) = (terminal.is_some(), alive_every(&headers), started(pid));
    Ok(events(ProcessListener { _inside: inside, _place: place, told, terminal, every, first }))
}

/// Streams the output of a process that is already running. For a process that has ended, returns its
/// remaining output and its outcome.
pub async fn connect(
    inside: Inside,
    headers: HeaderMap,
    ConnectMessage(ask): ConnectMessage<Selected>,
) -> Called<Response> {
    let Inside { caller, call, sandbox, .. } = &inside;
    let place = caller.share.stream()?;
    let (pid, found) = inside.clients.processes.find(sandbox, call, &ask.process).await?;
    let (terminal, told) = match &found {
        ProcessMatch::Running(process) => (process.terminal, process.listen()),
        ProcessMatch::Ended(info) => (info.terminal.is_some(), None),
    };
    let told = match told {
        Some(told) => told,
        None => {
            let process = RunningProcess::new(Config::default(), None, terminal);
            let told = process.listen().ok_or_else(|| missing(&ask.process))?;
            let exec = call.exec_reader(exec_id(pid)?);
            tokio::spawn(async move { process.pump(exec).await });
            told
        }
    };
    let (every, first) = (alive_every(&headers), started(pid));
    Ok(events(ProcessListener { _inside: inside, _place: place, told, terminal, every, first }))
}

/// Lists the running processes.
pub async fn list(inside: Inside) -> Called<Json<Value>> {
    let processes = inside.call.execs().await?.into_iter().filter(|info| info.outcome.is_none());
    let processes = processes.filter_map(|info| {
        let pid = pid_of(&info.id)?;
        let known = inside.clients.processes.known(&inside.sandbox, pid);
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

/// Sends a signal to a process and to all processes that it has started.
pub async fn send_signal(
    inside: Inside,
    ConnectMessage(ask): ConnectMessage<Selected>,
) -> Called<Json<Value>> {
    let signal = match (ask.signal.as_str(), ask.signal.as_i64()) {
        (Some("SIGNAL_SIGKILL"), _) | (_, Some(9)) => 9,
        (Some("SIGNAL_SIGTERM"), _) | (_, Some(15)) => 15,
        (_, _) => {
            let told =
                format!("signal {} is not supported; use SIGNAL_SIGKILL or SIGNAL_SIGTERM", ask.signal);
            return Err(Failed::of(Code::InvalidArgument, told));
        }
    };
    let which = &ask.process;
    let (pid, found) = inside.clients.processes.find(&inside.sandbox, &inside.call, which).await?;
    let ProcessMatch::Running(_) = found else { return Err(missing(which)) };
    let id = exec_id(pid)?;
    inside.platform.note(&inside.caller, Act::ExecSignal, |entry| entry.sandbox(&inside.sandbox).exec(&id));
    match inside.call.exec_reader(id).signal(signal).await? {
        0 => Err(missing(which)),
        _ => Ok(Json(json!({}))),
    }
}

/// Resizes a terminal.
pub async fn update(inside: Inside, ConnectMessage(ask): ConnectMessage<Selected>) -> Called<Json<Value>> {
    let (pid, _) = inside.clients.processes.find(&inside.sandbox, &inside.call, &ask.process).await?;
    if let Some(pty) = ask.pty {
        inside.call.exec_reader(exec_id(pid)?).resize(pty.size()).await?;
    }
    Ok(Json(json!({})))
}

/// User that runs a command.
#[derive(Clone, Copy)]
enum Who<'a> {
    /// The user of the sandbox, with this home directory.
    User(&'a str),
    Root,
}

/// Creates the exec request that is sent to the guest.
fn spec(
    ask: &StartProcessRequest,
    terminal: Option<TerminalSize>,
    who: Who<'_>,
    deadline_ms: Option<u64>,
) -> ExecSpec {
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

/// Script that runs a command as `bash -c` does, except that the shell never replaces itself with the
/// command.
const STAY: &str = "eval \"set --; $1\"; exit $?";

/// Returns the command line to execute. The shell that E2B's SDKs start would replace itself with its last
/// command. That command would then lead the process group of the exec, and some programs behave differently
/// as group leaders: `setsid`, for example, forks and returns at once. On E2B's own platform, the command
/// does not lead its group. To get the same behavior here, the script [`STAY`] keeps the shell as the leader
/// of the group.
fn argv(cmd: &str, args: &[String]) -> Vec<String> {
    match args {
        [login, run, command] if (cmd, login.as_str(), run.as_str()) == ("/bin/bash", "-l", "-c") => {
            [cmd, login, run, STAY, cmd, command].map(str::to_owned).to_vec()
        }
        _ => std::iter::once(cmd.to_owned()).chain(args.iter().cloned()).collect(),
    }
}

/// A client that receives the output of a process.
struct ProcessListener {
    _inside: Inside,
    _place: OwnedSemaphorePermit,
    told: mpsc::Receiver<ProcessEvent>,
    terminal: bool,
    every: Duration,
    /// Message to send before all others.
    first: Option<Bytes>,
}

/// Creates the response that streams the events of a process.
fn events(listener: ProcessListener) -> Response {
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

impl ProcessListener {
    /// Returns the next message, and whether more messages follow.
    async fn next(&mut self) -> (Bytes, bool) {
        if let Some(first) = self.first.take() {
            return (first, true);
        }
        let told = match timeout(self.every, self.told.recv()).await {
            Err(_) => return (message(&json!({ "event": { "keepalive": {} } })), true),
            Ok(told) => told,
        };
        match told {
            Some(ProcessEvent::Data { stream, bytes }) => {
                let name = match stream {
                    _ if self.terminal => "pty",
                    Stream::Stderr => "stderr",
                    Stream::Stdout | Stream::Results => "stdout",
                };
                (message(&json!({ "event": { "data": { name: STANDARD.encode(&bytes) } } })), true)
            }
            Some(ProcessEvent::End(end)) => match ended(&end) {
                Ok(event) => {
                    let event = message(&json!({ "event": { "end": event } }));
                    ([event, last(None)].concat().into(), false)
                }
                Err(failed) => (last(Some(&failed)), false),
            },
            Some(ProcessEvent::Broken(error)) => (last(Some(&error.into())), false),
            None => {
                let failed = Failed::of(
                    Code::ResourceExhausted,
                    "the client did not read this stream for too long; connect again",
                );
                (last(Some(&failed)), false)
            }
        }
    }
}

/// Converts an outcome into the event that E2B's clients expect.
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
        Outcome::Cancelled => by_signal("killed", "the command was cancelled".into()),
        Outcome::Oom => {
            let limit =
                end.memory.map(|memory| format!(" of {} bytes", memory.limit_bytes)).unwrap_or_default();
            by_signal("killed", format!("the memory limit{limit} was exceeded"))
        }
        Outcome::OutputLimit => by_signal("killed", "the command exceeded its output limit".into()),
        Outcome::Timeout => {
            return Err(Failed::of(
                Code::DeadlineExceeded,
                "the command exceeded its timeout and was stopped",
            ));
        }
        Outcome::SandboxLost { .. } => return Err(Failed::Gone),
        Outcome::Unknown => return Err(Failed::of(Code::Internal, "the outcome of the command is unknown")),
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

    /// Compares a shell that runs [`STAY`] with a shell that replaces itself with its last command. They must
    /// differ only in the leader of the process group.
    #[test]
    fn a_shell_that_stays_behaves_like_any_other() {
        let ran = |argv: &[String]| {
            let output = std::process::Command::new(&argv[0]).args(&argv[1..]).output().unwrap();
            let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
            (output.status.code(), text(output.stdout), text(output.stderr))
        };
        for command in [
            "echo one; exit 3",
            "echo $0 $# \"$@\"",
            "false",
            "cat <<END\n$HOME \\$x\nEND",
            "echo a \\",
            "echo 'it''s' \"quoted\" # a comment",
            "set -e; false; echo not reached",
            "set -u; echo \"${nothing}\"",
            "trap 'echo trapped' EXIT; true",
            "f() { return 7; }; f",
            "exec true",
            "nothing-of-this-name",
            "",
            "(exit 9) | true; echo ${PIPESTATUS[0]}",
        ] {
            let args = ["-l", "-c", command].map(str::to_owned);
            let plain = ran(&[&["/bin/bash".to_owned()][..], &args[..]].concat());
            assert_eq!(ran(&argv("/bin/bash", &args)), plain, "{command}");
        }
        let broken = ["-l", "-c", "echo ("].map(str::to_owned);
        assert_eq!(ran(&argv("/bin/bash", &broken)).0, Some(2));
        let detached = ["-l", "-c", "setsid sh -c 'echo in place'"].map(str::to_owned);
        assert_eq!(ran(&argv("/bin/bash", &detached)).1, "in place\n");
    }

    #[test]
    fn what_is_not_said_is_what_is_usual() {
        let ask: StartProcessRequest =
            serde_json::from_str(r#"{"process":{"cmd":"/bin/bash","args":["-l","-c","x"]}}"#).unwrap();
        let spec = spec(&ask, None, Who::User("/home/user"), None);
        assert_eq!(spec.argv, ["/bin/bash", "-l", "-c", "x"]);
        assert_eq!(argv("/bin/bash", &spec.argv[1..])[3..], [STAY, "/bin/bash", "x"]);
        assert!(spec.stdin && spec.cwd.as_deref() == Some("/home/user") && spec.deadline_ms.is_none());
        assert_eq!(spec.check(), Ok(()));
        let ask: StartProcessRequest = serde_json::from_str(
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
