//! Processes that clients of E2B's SDKs have started: their output, for as many as listen.
//!
//! ```text
//! exec ──▶ pump ──┬──▶ whoever started it
//!                 └──▶ whoever connected later
//! ```
//!
//! The pump reads whether anybody listens or not: a process goes on when its client leaves, and one that writes much does not stand still
//! for it. Where somebody listens slowly, the process waits for them, within [`DEAF`]: nothing is left out. The exec itself, its end
//! and its last output are the guest's, so that a server that was killed loses nothing but its listeners.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::exec::{ExecEnd, ExecInfo, Stream};
use api::{ExecId, SandboxId};
use bytes::Bytes;
use node::{Call, Event, Exec};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::connect::{Called, Code, Failed};

/// What waits for one listener.
const WAITING: usize = 16;
/// Whoever takes nothing for so long is not listening.
const DEAF: Duration = Duration::from_secs(30);
/// The guest is told what was taken after so many bytes: a part of what it keeps.
const TAKE_BYTES: u64 = 256 << 10;
/// What the guest keeps of the output of a command that nobody has taken.
pub const KEPT_BYTES: u64 = 1 << 20;
/// Numbers below are those of a system's own processes.
const PID_MIN: u32 = 1000;

/// What was asked to run.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Config {
    pub cmd: String,
    pub args: Vec<String>,
    pub envs: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// What a listener is told.
#[derive(Clone, Debug)]
pub enum Told {
    Data { stream: Stream, bytes: Bytes },
    End(ExecEnd),
    Broken(api::Error),
}

/// A process that runs.
pub struct Process {
    /// What was asked for.
    pub config: Config,
    /// The name that it was given.
    pub tag: Option<String>,
    /// Whether it has a terminal.
    pub terminal: bool,
    /// What it was sent so far, where that is known; input is sent in order.
    pub sent: tokio::sync::Mutex<Option<u64>>,
    /// None after its end was told.
    listeners: Mutex<Option<Vec<mpsc::Sender<Told>>>>,
}

/// Those that run, as far as this server has heard of them.
#[derive(Default)]
pub struct Processes(Arc<Mutex<All>>);

type All = HashMap<(SandboxId, u32), Arc<Process>>;

/// Which process is meant.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Selector {
    Pid(u32),
    Tag(String),
}

/// A process as somebody finds it.
pub enum Found {
    Running(Arc<Process>),
    /// It has ended; the guest still knows how.
    Ended(ExecInfo),
}

/// A fresh number for a process. It is not the kernel's: it has to be known before there is one.
pub fn fresh_pid() -> Called<u32> {
    let number = u32::from_le_bytes(node::machine::random()?);
    Ok((number >> 1).max(PID_MIN))
}

/// The exec of a process.
pub fn exec_id(pid: u32) -> Called<ExecId> {
    format!("p{pid}").parse().map_err(|_| missing(&Selector::Pid(pid)))
}

/// The process of an exec, if it is one.
pub fn pid_of(id: &ExecId) -> Option<u32> {
    id.as_str().strip_prefix('p')?.parse().ok()
}

/// The error for a process that is not there.
pub fn missing(which: &Selector) -> Failed {
    let which = match which {
        Selector::Pid(pid) => format!("process with pid {pid}"),
        Selector::Tag(tag) => format!("process with tag {:?}", tag.chars().take(64).collect::<String>()),
    };
    Failed::of(Code::NotFound, format!("{which} not found"))
}

impl Process {
    /// One that was just started.
    pub fn new(config: Config, tag: Option<String>, terminal: bool) -> Self {
        let listeners = Mutex::new(Some(Vec::new()));
        Self { config, tag, terminal, sent: tokio::sync::Mutex::new(Some(0)), listeners }
    }

    /// One that a server before this one has started.
    fn of(info: &ExecInfo) -> Self {
        let config = Config { cmd: info.argv.clone(), ..Config::default() };
        let process = Self::new(config, None, info.terminal.is_some());
        Self { sent: tokio::sync::Mutex::new(None), ..process }
    }

    /// Listens from now on, unless it has ended.
    pub fn listen(&self) -> Option<mpsc::Receiver<Told>> {
        let (sender, receiver) = mpsc::channel(WAITING);
        locked(&self.listeners).as_mut()?.push(sender);
        Some(receiver)
    }

    /// Tells everybody who listens; waits for those who are slow.
    async fn tell(&self, told: &Told) {
        let all = locked(&self.listeners).clone().unwrap_or_default();
        for listener in all {
            let sent = tokio::time::timeout(DEAF, listener.send(told.clone())).await;
            if !matches!(sent, Ok(Ok(()))) {
                let mut listeners = locked(&self.listeners);
                listeners.iter_mut().for_each(|all| all.retain(|one| !one.same_channel(&listener)));
            }
        }
    }

    /// Tells the last that there is to tell.
    async fn close(&self, told: &Told) {
        let all = locked(&self.listeners).take().unwrap_or_default();
        for listener in all {
            let _ = tokio::time::timeout(DEAF, listener.send(told.clone())).await;
        }
    }

    /// Reads all its output, to its end.
    pub async fn pump(&self, mut exec: Exec) {
        let (mut reached, mut taken) = ([0; 2], 0);
        loop {
            match exec.next().await {
                Ok(Some(Event::Data { stream, offset, bytes })) => {
                    let end = offset + bytes.len() as u64;
                    match stream {
                        Stream::Stdout => reached[0] = end,
                        Stream::Stderr => reached[1] = end,
                        Stream::Results => continue,
                    }
                    self.tell(&Told::Data { stream, bytes }).await;
                    if !self.terminal && reached.iter().sum::<u64>() - taken >= TAKE_BYTES {
                        taken = reached.iter().sum();
                        // Where it is not heard, the next one says the same.
                        let _ = exec.take(reached[0], reached[1]).await;
                    }
                }
                Ok(Some(Event::Gap { stream, from, to })) if self.terminal => {
                    let note = format!("\r\n[{} bytes omitted]\r\n", to - from);
                    self.tell(&Told::Data { stream, bytes: note.into() }).await;
                }
                // Of a command, what is not there any more was taken by a server before this one.
                Ok(Some(Event::Gap { .. } | Event::Result { .. })) => {}
                Ok(Some(Event::End(end))) => return self.close(&Told::End(end)).await,
                Ok(None) => {
                    let error =
                        node::Error::Protocol("the output stream ended without an end event".into()).to_api();
                    return self.close(&Told::Broken(error)).await;
                }
                Err(error) => {
                    let error = crate::fault::Fault::from(error).error().clone();
                    return self.close(&Told::Broken(error)).await;
                }
            }
        }
    }
}

impl Processes {
    /// Has the output of a process read from now on.
    pub fn follow(&self, key: (SandboxId, u32), process: Process, exec: Exec) -> Arc<Process> {
        let process = Arc::new(process);
        let mut all = locked(&self.0);
        if let Some(known) = all.get(&key) {
            return Arc::clone(known);
        }
        all.insert(key.clone(), Arc::clone(&process));
        drop(all);
        let (all, pumped) = (Arc::clone(&self.0), Arc::clone(&process));
        tokio::spawn(async move {
            pumped.pump(exec).await;
            locked(&all).remove(&key);
        });
        process
    }

    /// A process of a sandbox, and its number.
    ///
    /// # Errors
    /// There is none, or the sandbox does not answer.
    pub async fn find(&self, sandbox: &SandboxId, call: &Call, which: &Selector) -> Called<(u32, Found)> {
        let pid = match which {
            Selector::Pid(pid) => *pid,
            Selector::Tag(tag) => self.tagged(sandbox, tag).ok_or_else(|| missing(which))?,
        };
        let key = (sandbox.clone(), pid);
        if let Some(process) = locked(&self.0).get(&key) {
            return Ok((pid, Found::Running(Arc::clone(process))));
        }
        let id = exec_id(pid)?;
        let info =
            call.execs().await?.into_iter().find(|info| info.id == id).ok_or_else(|| missing(which))?;
        if info.outcome.is_some() {
            return Ok((pid, Found::Ended(info)));
        }
        let process = Process::of(&info);
        Ok((pid, Found::Running(self.follow(key, process, call.exec_reader(id)))))
    }

    /// What is known of a process that runs.
    pub fn known(&self, sandbox: &SandboxId, pid: u32) -> Option<Arc<Process>> {
        locked(&self.0).get(&(sandbox.clone(), pid)).cloned()
    }

    fn tagged(&self, sandbox: &SandboxId, tag: &str) -> Option<u32> {
        let all = locked(&self.0);
        let mut own = all.iter().filter(|((of, _), _)| of == sandbox);
        own.find(|(_, process)| process.tag.as_deref() == Some(tag)).map(|((_, pid), _)| *pid)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
