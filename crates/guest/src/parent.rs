//! The parent interpreter: one Python process per sandbox, which has already imported the template's modules.
//! Python runs are forked from it.
//!
//! ```text
//! first code ──▶ started ──imports──▶ ready ──fork──▶ a run or a context      dead (memory, crash) ──▶ the next code starts a new one
//! ```
//!
//! The parent never runs user code. It has its own user, so that no other process in the sandbox can signal
//! it. It keeps two capabilities, SETUID and SETGID, to set the user and group of each fork. Each fork drops
//! them before any user code runs. The parent runs the image's Python, which the image's author or a package
//! in the image may have changed, so the parent is never root. [`crate::descent`] explains how this works,
//! and how it differs under gVisor. The parent reads no file that user code can write to.

mod program;

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use api::code::{InterpreterInfo, InterpreterSpec};
use api::exec::{ExecSpec, Outcome};
use api::{Error, ErrorCode, Layer, Ran, Retry, limits};
use rustix::process::Pid;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, oneshot};

use crate::descent::SETPCAP;
use crate::launch::{Identity, Launched, environment, verdict};
use crate::processes::{ProcessOwner, Processes};
use crate::records::Records;
use crate::sweep::{self, Whom};
use crate::watched::Watched;
use program::{program, trusted};

/// Group of the parent: the second ID above the range of exec groups.
const GROUP: u32 = *limits::EXEC_GROUPS.end() + 2;
/// Capabilities that the parent keeps, SETGID and SETUID, as a bit mask.
const CAPABILITIES: u64 = 0b1100_0000;
/// Timeout for the parent's start. Imports usually take a second, but can take many times as long on a busy
/// machine.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Timeout for one fork, which normally takes milliseconds.
const FORKED_WITHIN: Duration = Duration::from_secs(20);
/// Time to wait until process 1 has inherited and reaped the children of a parent that has died.
const ORPHANS_WITHIN: Duration = Duration::from_millis(200);
/// Maximum output of the parent that is retained to explain a failed start.
const WORDS_BYTES: usize = 4096;
/// Home directory of the parent. It does not exist, so that Python reads no per-user files.
const HOME: &str = "/nonexistent";

/// The configuration of the parent, and its current process.
pub struct Parent {
    processes: Rc<Processes>,
    spec: RefCell<InterpreterSpec>,
    live: RefCell<Option<Rc<Live>>>,
    /// Held during a request, so that an answer always belongs to the latest request.
    turn: Mutex<()>,
}

struct Live {
    records: Records,
    info: InterpreterInfo,
    waiting: RefCell<Option<PendingFork>>,
    /// Forked processes that have not ended yet.
    children: RefCell<HashSet<Pid>>,
    gone: Cell<bool>,
}

struct PendingFork {
    /// ID of the request, so that a late answer does not go to the next caller.
    run: u32,
    owner: Rc<dyn ProcessOwner>,
    answer: oneshot::Sender<Result<Pid, String>>,
}

/// Request for a fork.
#[derive(Serialize)]
pub struct Fork<'a> {
    /// ID of the request, which the answer repeats.
    pub run: u32,
    /// User of the fork.
    pub uid: u32,
    /// Exec group of the fork.
    pub group: u32,
    /// Working directory of the fork.
    pub cwd: &'a str,
    /// All environment variables of the fork.
    pub env: std::collections::BTreeMap<&'a str, &'a str>,
    /// Purpose of the fork.
    pub kind: ForkKind,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum ParentRequest<'a> {
    Fork(&'a Fork<'a>),
}

/// Purpose of a fork.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ForkKind {
    /// Run one piece of code.
    Run,
    /// Run the cells of a context until the process ends.
    Context,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum ParentMessage {
    Ready(InterpreterInfo),
    Forked { run: u32, pid: i32 },
    Failed { run: u32, message: String },
    Ended { pid: i32, status: i32 },
}

impl Parent {
    /// Creates a parent that has not been started.
    pub fn new(processes: Rc<Processes>) -> Self {
        let (spec, live) = (RefCell::default(), RefCell::default());
        Self { processes, spec, live, turn: Mutex::default() }
    }

    /// Returns the processes of the sandbox.
    pub fn processes(&self) -> &Rc<Processes> {
        &self.processes
    }

    /// Sets the configuration, effective from the parent's next start.
    pub fn set(&self, spec: InterpreterSpec) {
        self.spec.replace(spec);
    }

    /// Returns the information that the parent reported when it became ready. Starts the parent if necessary.
    pub async fn info(&self) -> Result<InterpreterInfo, Error> {
        let _turn = self.turn.lock().await;
        Ok(self.live().await?.info.clone())
    }

    /// Forks a process with these descriptors: three streams and a channel. Reports the end of the process to
    /// `owner`.
    pub async fn fork(
        &self,
        fork: &Fork<'_>,
        descriptors: [OwnedFd; 4],
        owner: Rc<dyn ProcessOwner>,
    ) -> Result<Pid, Error> {
        let _turn = self.turn.lock().await;
        let live = self.live().await?;
        if let Some(module) = &live.info.threaded_by {
            return Err(failed(
                format!(
                    "the module {module}, which the template pre-imports, starts a thread; a process with threads cannot be forked"
                ),
                "Remove the module from the template's imports. Code can still import the module.",
                Retry::Useless,
            ));
        }
        let (answer, answered) = oneshot::channel();
        live.waiting.replace(Some(PendingFork { run: fork.run, owner, answer }));
        let sent = async {
            let descriptors = descriptors.each_ref().map(AsFd::as_fd);
            live.records.send(&ParentRequest::Fork(fork), &descriptors).await.ok()?;
            answered.await.ok()
        };
        let answer = tokio::time::timeout(FORKED_WITHIN, sent).await;
        drop(descriptors);
        match answer {
            Ok(Some(Ok(pid))) => Ok(pid),
            Ok(Some(Err(why))) => Err(failed(
                format!("cannot fork the interpreter: {why}"),
                "Stop some processes in the sandbox, or request larger limits.",
                Retry::Safe,
            )),
            Ok(None) => Err(failed("the interpreter exited".into(), "Run the code again.", Retry::Safe)),
            Err(_elapsed) => {
                self.live.take();
                sweep::kill(Whom::Group(GROUP)).await;
                Err(failed("the interpreter does not respond".into(), "Run the code again.", Retry::Safe))
            }
        }
    }

    /// Returns the running parent, or starts a new one.
    async fn live(&self) -> Result<Rc<Live>, Error> {
        let there = self.live.borrow().clone().filter(|live| !live.gone.get());
        if let Some(live) = there {
            return Ok(live);
        }
        let spec = self.spec.borrow().clone();
        let live = Rc::new(start(&self.processes, &spec).await?);
        self.live.replace(Some(Rc::clone(&live)));
        tokio::task::spawn_local(attend(Rc::clone(&self.processes), Rc::clone(&live)));
        Ok(live)
    }
}

async fn start(processes: &Processes, spec: &InterpreterSpec) -> Result<Live, Error> {
    let mut command = ExecSpec { env: spec.env.clone(), cwd: Some("/".into()), ..ExecSpec::default() };
    let python = environment(&command).get("PATH").and_then(|path| trusted(path)).ok_or_else(|| {
        failed(
            "the template has no python3".into(),
            "Use a template with Python, such as `python` or `interpreter`, or add { apt = [\"python3\"] } to its recipe.",
            Retry::Useless,
        )
    })?;
    // gVisor gives no capabilities to a program that an ordinary user starts. Under gVisor, the parent is
    // therefore root of its own user namespace, and empties the bounding set itself.
    let nested = processes.in_user_kernel();
    let capabilities = if nested { CAPABILITIES | SETPCAP } else { CAPABILITIES };
    let who = match api::defence::is_off("I-11") {
        true => Identity { uid: 0, group: GROUP, capabilities: CAPABILITIES | SETPCAP, nested: false },
        false => Identity { uid: limits::INTERPRETER_UID, group: GROUP, capabilities, nested },
    };
    for (name, value) in [
        ("HOME", HOME.to_owned()),
        ("BELLGLASS_IMPORTS", spec.imports.join(",")),
        ("BELLGLASS_UID", if nested { 0 } else { limits::INTERPRETER_UID }.to_string()),
    ] {
        command.env.insert(name.into(), value);
    }
    command.argv = [&python, "-I", "-B", "/proc/self/fd/4"].map(str::to_owned).to_vec();
    let broken = |error: std::io::Error| {
        failed(format!("cannot start the interpreter: {error}"), "Run the code again.", Retry::Safe)
    };
    let (records, theirs) = Records::pair().map_err(broken)?;
    let program = program().map_err(broken)?;
    let Launched { verdict: said, ends, .. } = processes.launch(&command, who, &[theirs, program])?;
    verdict(&command, GROUP, said).await?;
    let words = Rc::new(RefCell::new(Vec::new()));
    for (_, pipe) in ends.streams {
        tokio::task::spawn_local(listen(pipe, Rc::clone(&words)));
    }
    let ready = tokio::time::timeout(READY_WITHIN, records.read()).await;
    let ready = ready.ok().flatten().and_then(|record| serde_json::from_slice(&record.bytes).ok());
    let Some(ParentMessage::Ready(info)) = ready else {
        sweep::kill(Whom::Group(GROUP)).await;
        let words = String::from_utf8_lossy(&words.borrow()).trim().to_owned();
        return Err(failed(
            format!("the interpreter did not start: {words}"),
            "Check the template's imports and the sandbox's memory, then run the code again.",
            Retry::Safe,
        ));
    };
    Ok(Live {
        records,
        info,
        waiting: RefCell::default(),
        children: RefCell::default(),
        gone: Cell::new(false),
    })
}

/// Handles the parent's messages until it is gone.
async fn attend(processes: Rc<Processes>, live: Rc<Live>) {
    while let Some(record) = live.records.read().await {
        match serde_json::from_slice(&record.bytes) {
            Ok(ParentMessage::Forked { run, pid }) => {
                let waiting = live.waiting.borrow_mut().take_if(|waiting| waiting.run == run);
                // Ignore a fork whose caller has left: the fork finds its channel closed, and exits.
                let (Some(waiting), Some(pid)) = (waiting, Pid::from_raw(pid)) else { continue };
                // Register the process before reading the next message, which may already report its end.
                processes.adopt(pid, waiting.owner);
                live.children.borrow_mut().insert(pid);
                let _ = waiting.answer.send(Ok(pid));
            }
            Ok(ParentMessage::Failed { run, message }) => {
                if let Some(waiting) = live.waiting.borrow_mut().take_if(|waiting| waiting.run == run) {
                    let _ = waiting.answer.send(Err(message));
                }
            }
            Ok(ParentMessage::Ended { pid, status }) => {
                if let Some(pid) = Pid::from_raw(pid).filter(|pid| live.children.borrow_mut().remove(pid)) {
                    processes.ended(pid, outcome(status));
                }
            }
            Ok(ParentMessage::Ready(_)) | Err(_) => break,
        }
    }
    live.gone.set(true);
    live.waiting.take();
    sweep::kill(Whom::Group(GROUP)).await;
    // Process 1 has inherited the children and reaps them. If the parent reaped a child but did not report
    // it, the outcome is unknown.
    tokio::time::sleep(ORPHANS_WITHIN).await;
    for pid in live.children.take() {
        if rustix::process::test_kill_process(pid).is_err() {
            processes.ended(pid, Outcome::Unknown);
        }
    }
}

/// Retains the last [`WORDS_BYTES`] of the parent's output.
async fn listen(pipe: Rc<Watched>, words: Rc<RefCell<Vec<u8>>>) {
    let mut bytes = [0; 1024];
    while let Ok(mut ready) = pipe.readable().await {
        match ready.try_io(|pipe| Ok(rustix::io::read(pipe.get_ref(), &mut bytes)?)) {
            Ok(Ok(0)) => return,
            Ok(Ok(count)) => {
                let mut words = words.borrow_mut();
                words.extend_from_slice(bytes.get(..count).unwrap_or_default());
                let over = words.len().saturating_sub(WORDS_BYTES);
                words.drain(..over);
            }
            Ok(Err(_)) | Err(_) => {}
        }
    }
}

/// Converts a status from `waitpid` into an outcome.
fn outcome(status: i32) -> Outcome {
    if libc::WIFEXITED(status) {
        Outcome::Exited { code: libc::WEXITSTATUS(status) }
    } else if libc::WIFSIGNALED(status) {
        Outcome::Signaled { signal: libc::WTERMSIG(status) }
    } else {
        Outcome::Unknown
    }
}

fn failed(message: String, fix: &str, retry: Retry) -> Error {
    Error {
        code: ErrorCode::SpawnFailed,
        message,
        layer: Layer::UserCode,
        ran: Ran::No,
        retry,
        fix: fix.into(),
    }
}
