//! The interpreter that runs of Python are forked from: one process for each sandbox, with the template's imports done.
//!
//! ```text
//! first code ──▶ started ──imports──▶ ready ──fork──▶ a run, or a context      ended (memory, a crash) ──▶ the next code starts another
//! ```
//!
//! It never runs user code and has a user of its own, so that nobody inside can signal it. It keeps two capabilities, SETUID and
//! SETGID, to give a fork its user and group; the fork drops them before user code exists. But it is the image's Python, and what an
//! image's author or a package put into that is not ours: so it is never root. See [`crate::descent`] for how, and for gVisor.
//! Nothing that user code can write to is read by it.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use api::code::{InterpreterInfo, InterpreterSpec};
use api::exec::{ExecSpec, Outcome};
use api::{Error, ErrorCode, Layer, Ran, Retry, limits};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::process::Pid;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, oneshot};

use crate::descent::SETPCAP;
use crate::launch::{Identity, Launched, environment, verdict};
use crate::records::Records;
use crate::sweep::{self, Whom};
use crate::table::{Child, Table};
use crate::watched::Watched;

/// What is started: it finds the others in `SOURCES`.
const BOOT: &str = include_str!("interpreter/boot.py");

macro_rules! sources {
    ($($name:literal)*) => { [$(($name, include_str!(concat!("interpreter/", $name, ".py")))),*] };
}
/// All of its Python files but that one.
const SOURCES: &[(&str, &str)] = &sources!["boxes" "channel" "charts" "context" "ending" "errors" "figures" "fork" "hooks" "identity" "missing" "packages" "pages" "parent" "plain" "results" "run" "shadow" "shell" "threads" "variables" "warm"];
/// What it is found by: the second group that no exec has.
const GROUP: u32 = *limits::EXEC_GROUPS.end() + 2;
/// SETGID and SETUID.
const CAPABILITIES: u64 = 0b1100_0000;
/// A second for most imports; many times that on a machine that is busy.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// A fork takes milliseconds.
const FORKED_WITHIN: Duration = Duration::from_secs(20);
/// For process 1 to be told of the children of one that has ended.
const ORPHANS_WITHIN: Duration = Duration::from_millis(200);
/// What is kept of what it writes, to explain why it did not start.
const WORDS_BYTES: usize = 4096;
/// Where user code can write. Nothing there is started by root.
const WRITABLE: [&str; 4] = ["/workspace", "/home", "/tmp", "/dev"];
/// Stays away from what belongs to the user.
const HOME: &str = "/nonexistent";

/// What it begins with, and the process there is.
#[derive(Default)]
pub struct Parent {
    spec: RefCell<InterpreterSpec>,
    live: RefCell<Option<Rc<Live>>>,
    /// One request at a time: an answer belongs to the last.
    turn: Mutex<()>,
}

struct Live {
    records: Records,
    info: InterpreterInfo,
    waiting: RefCell<Option<Waiting>>,
    /// Those it has forked that have not ended.
    children: RefCell<HashSet<Pid>>,
    gone: Cell<bool>,
}

struct Waiting {
    /// Of the request: who asked may be gone, and the answer come to the next.
    run: u32,
    child: Child,
    answer: oneshot::Sender<Result<Pid, String>>,
}

/// What a fork is to become.
#[derive(Serialize)]
pub struct Fork<'a> {
    /// Comes back with the answer.
    pub run: u32,
    /// Its user.
    pub uid: u32,
    /// Its extra group.
    pub group: u32,
    /// The directory it begins in.
    pub cwd: &'a str,
    /// All its variables.
    pub env: std::collections::BTreeMap<&'a str, &'a str>,
    /// A run, or a context.
    pub kind: Kind,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Ask<'a> {
    Fork(&'a Fork<'a>),
}

/// What a fork is for.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// One run.
    Run,
    /// Cells, for as long as it lives.
    Context,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Said {
    Ready(InterpreterInfo),
    Forked { run: u32, pid: i32 },
    Failed { run: u32, message: String },
    Ended { pid: i32, status: i32 },
}

impl Parent {
    /// What it begins with, from its next start on.
    pub fn set(&self, spec: InterpreterSpec) {
        self.spec.replace(spec);
    }

    /// What it says of itself, once it is ready.
    pub async fn info(&self, table: &Rc<Table>) -> Result<InterpreterInfo, Error> {
        let _turn = self.turn.lock().await;
        Ok(self.live(table).await?.info.clone())
    }

    /// Makes a fork, with its three streams and its channel. Its end will be told to `child`.
    pub async fn fork(
        &self,
        table: &Rc<Table>,
        fork: &Fork<'_>,
        descriptors: [OwnedFd; 4],
        child: Child,
    ) -> Result<Pid, Error> {
        let _turn = self.turn.lock().await;
        let live = self.live(table).await?;
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
        live.waiting.replace(Some(Waiting { run: fork.run, child, answer }));
        let sent = async {
            let descriptors = descriptors.each_ref().map(AsFd::as_fd);
            live.records.send(&Ask::Fork(fork), &descriptors).await.ok()?;
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

    /// The process there is, or a new one.
    async fn live(&self, table: &Rc<Table>) -> Result<Rc<Live>, Error> {
        let there = self.live.borrow().clone().filter(|live| !live.gone.get());
        if let Some(live) = there {
            return Ok(live);
        }
        let spec = self.spec.borrow().clone();
        let live = Rc::new(start(table, &spec).await?);
        self.live.replace(Some(Rc::clone(&live)));
        tokio::task::spawn_local(attend(Rc::clone(table), Rc::clone(&live)));
        Ok(live)
    }
}

async fn start(table: &Rc<Table>, spec: &InterpreterSpec) -> Result<Live, Error> {
    let mut command = ExecSpec { env: spec.env.clone(), cwd: Some("/".into()), ..ExecSpec::default() };
    let python = environment(&command).get("PATH").and_then(|path| trusted(path)).ok_or_else(|| {
        failed(
            "the template has no python3".into(),
            "Use a template with Python, such as `python` or `interpreter`, or add { apt = [\"python3\"] } to its recipe.",
            Retry::Useless,
        )
    })?;
    // gVisor gives no program of an ordinary user capabilities: there it is root of a namespace of its own, in which it empties the
    // bounding set itself.
    let nested = table.in_user_kernel();
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
    let Launched { verdict: said, ends, .. } = table.launch(&command, who, &[theirs, program])?;
    verdict(&command, GROUP, said).await?;
    let words = Rc::new(RefCell::new(Vec::new()));
    for (_, pipe) in ends.streams {
        tokio::task::spawn_local(listen(pipe, Rc::clone(&words)));
    }
    let ready = tokio::time::timeout(READY_WITHIN, records.read()).await;
    let ready = ready.ok().flatten().and_then(|record| serde_json::from_slice(&record.bytes).ok());
    let Some(Said::Ready(info)) = ready else {
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

/// Hears what the process says until it is gone.
async fn attend(table: Rc<Table>, live: Rc<Live>) {
    while let Some(record) = live.records.read().await {
        match serde_json::from_slice(&record.bytes) {
            Ok(Said::Forked { run, pid }) => {
                let waiting = live.waiting.borrow_mut().take_if(|waiting| waiting.run == run);
                // A fork that nobody waits for finds its channel closed, and ends.
                let (Some(waiting), Some(pid)) = (waiting, Pid::from_raw(pid)) else { continue };
                // Known before anything else is heard: its end may be the next word.
                table.adopt(pid, waiting.child);
                live.children.borrow_mut().insert(pid);
                let _ = waiting.answer.send(Ok(pid));
            }
            Ok(Said::Failed { run, message }) => {
                if let Some(waiting) = live.waiting.borrow_mut().take_if(|waiting| waiting.run == run) {
                    let _ = waiting.answer.send(Err(message));
                }
            }
            Ok(Said::Ended { pid, status }) => {
                if let Some(pid) = Pid::from_raw(pid).filter(|pid| live.children.borrow_mut().remove(pid)) {
                    table.ended(pid, outcome(status));
                }
            }
            Ok(Said::Ready(_)) | Err(_) => break,
        }
    }
    live.gone.set(true);
    live.waiting.take();
    sweep::kill(Whom::Group(GROUP)).await;
    // Its children are ours now. Of one that it has reaped and not told of, nobody knows how it ended.
    tokio::time::sleep(ORPHANS_WITHIN).await;
    for pid in live.children.take() {
        if rustix::process::test_kill_process(pid).is_err() {
            table.ended(pid, Outcome::Unknown);
        }
    }
}

/// Keeps the first of what the process writes.
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

/// Its files in one, without a name: each is text for the first of them.
fn program() -> std::io::Result<OwnedFd> {
    let sources: std::collections::BTreeMap<_, _> = SOURCES.iter().copied().collect();
    // What JSON writes for texts, Python reads as texts.
    let text = format!("SOURCES = {}\n{BOOT}", serde_json::to_string(&sources)?);
    let memory = rustix::fs::memfd_create("interpreter", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = std::fs::File::from(memory);
    std::io::Write::write_all(&mut file, text.as_bytes())?;
    // Forks keep it, for interpreters that are started plainly: nobody may write to what others run.
    rustix::fs::fcntl_add_seals(
        &file,
        SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE,
    )?;
    Ok(file.into())
}

/// The first `python3` of a path that user code cannot have put there.
fn trusted(path: &str) -> Option<String> {
    let ours = |path: &Path| !WRITABLE.iter().any(|place| path.starts_with(place));
    path.split(':').filter(|directory| directory.starts_with('/')).find_map(|directory| {
        let directory = Path::new(directory).canonicalize().ok().filter(|directory| ours(directory))?;
        let python = directory.join("python3");
        python.canonicalize().ok().filter(|file| file.is_file() && ours(file))?;
        python.to_str().map(str::to_owned)
    })
}

/// How a process ended, by what `waitpid` says of it.
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
