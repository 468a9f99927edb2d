//! Commands and terminals: `process.Process` of E2B's agent.
//!
//! | module | contents |
//! |---|---|
//! | `command` | the exec of a command |
//! | `listener` | responses that stream the output of a process |

mod command;
mod listener;

use api::terminal::TerminalSize;
use axum::Json;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use control::account::Rate;
use control::audit::Act;

use super::connect::{Called, Code, ConnectMessage, Failed, alive_every, number};
use super::input::Input;
use super::running::{Config, ProcessMatch, RunningProcess, Selector, exec_id, fresh_pid, missing, pid_of};
use super::shown::put;
use super::who::{Commander, Inside};
use command::{Who, argv, spec};
use listener::{ProcessListener, events, started};

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

#[cfg(test)]
mod tests {
    use super::*;

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
