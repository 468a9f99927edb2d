//! Running processes that clients of E2B's SDKs started, and their output for any number of listeners.
//!
//! ```text
//! exec ──▶ pump ──┬──▶ client that started it
//!                 └──▶ clients that connected later
//! ```
//!
//! The pump, a task of this server, reads the output even without listeners. Therefore a process continues
//! when its client disconnects, and never blocks because of unread output. To avoid losing output, the pump
//! waits for a slow listener, for at most [`DEAF`] per event. The guest owns the exec, its outcome and its
//! latest output, so a server that is killed loses only the listeners.

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

/// Maximum number of events that are queued for one listener.
const WAITING: usize = 16;
/// Time within which a listener must accept an event. After this time, the listener is removed.
const DEAF: Duration = Duration::from_secs(30);
/// Amount of output after which the server notifies the guest that the output was read. It is a fraction of
/// [`KEPT_BYTES`], so that the guest can free space before its buffer is full.
const TAKE_BYTES: u64 = 256 << 10;
/// Size of the guest's buffer for a command's unread output.
pub const KEPT_BYTES: u64 = 1 << 20;
/// Minimum process number. Lower numbers look like the numbers of system processes.
const PID_MIN: u32 = 1000;

/// Command as the client specified it.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Config {
    pub cmd: String,
    pub args: Vec<String>,
    pub envs: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// Event for the listeners of a process.
#[derive(Clone, Debug)]
pub enum ProcessEvent {
    Data { stream: Stream, bytes: Bytes },
    End(ExecEnd),
    Broken(api::Error),
}

/// Running process.
pub struct RunningProcess {
    /// Command as the client specified it.
    pub config: Config,
    /// Name that the client chose.
    pub tag: Option<String>,
    /// True if the process has a terminal.
    pub terminal: bool,
    /// Number of input bytes sent so far, or `None` if it is unknown. The lock keeps the chunks of input in
    /// order.
    pub sent: tokio::sync::Mutex<Option<u64>>,
    /// Channels to the listeners, or `None` after the last event.
    listeners: Mutex<Option<Vec<mpsc::Sender<ProcessEvent>>>>,
}

/// Running processes that this server process knows, by sandbox and process number.
#[derive(Default)]
pub struct Processes(Arc<Mutex<All>>);

type All = HashMap<(SandboxId, u32), Arc<RunningProcess>>;

/// Selector of a process.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Selector {
    Pid(u32),
    Tag(String),
}

/// Result of looking up a process.
pub enum ProcessMatch {
    Running(Arc<RunningProcess>),
    /// The process has ended, and the guest still has its outcome.
    Ended(ExecInfo),
}

/// Returns a random process number. It cannot be the kernel's PID, because the process does not exist yet.
pub fn fresh_pid() -> Called<u32> {
    let number = u32::from_le_bytes(node::machine::random()?);
    Ok((number >> 1).max(PID_MIN))
}

/// Returns the ID of the exec that runs a process.
pub fn exec_id(pid: u32) -> Called<ExecId> {
    format!("p{pid}").parse().map_err(|_| missing(&Selector::Pid(pid)))
}

/// Returns the process number that belongs to an exec ID, or `None` if the exec was not started through this
/// API.
pub fn pid_of(id: &ExecId) -> Option<u32> {
    id.as_str().strip_prefix('p')?.parse().ok()
}

/// Builds the error for a process that does not exist.
pub fn missing(which: &Selector) -> Failed {
    let which = match which {
        Selector::Pid(pid) => format!("process with pid {pid}"),
        Selector::Tag(tag) => format!("process with tag {:?}", tag.chars().take(64).collect::<String>()),
    };
    Failed::of(Code::NotFound, format!("{which} not found"))
}

impl RunningProcess {
    /// Creates the state for a process that was just started.
    pub fn new(config: Config, tag: Option<String>, terminal: bool) -> Self {
        let listeners = Mutex::new(Some(Vec::new()));
        Self { config, tag, terminal, sent: tokio::sync::Mutex::new(Some(0)), listeners }
    }

    /// Creates the state for a process that was already running when this server process started.
    fn of(info: &ExecInfo) -> Self {
        let config = Config { cmd: info.argv.clone(), ..Config::default() };
        let process = Self::new(config, None, info.terminal.is_some());
        Self { sent: tokio::sync::Mutex::new(None), ..process }
    }

    /// Adds a listener, unless the process has ended.
    pub fn listen(&self) -> Option<mpsc::Receiver<ProcessEvent>> {
        let (sender, receiver) = mpsc::channel(WAITING);
        locked(&self.listeners).as_mut()?.push(sender);
        Some(receiver)
    }

    /// Sends an event to all listeners. Waits for slow listeners, but removes a listener after its timeout.
    async fn tell(&self, told: &ProcessEvent) {
        let all = locked(&self.listeners).clone().unwrap_or_default();
        for listener in all {
            let sent = tokio::time::timeout(DEAF, listener.send(told.clone())).await;
            if !matches!(sent, Ok(Ok(()))) {
                let mut listeners = locked(&self.listeners);
                listeners.iter_mut().for_each(|all| all.retain(|one| !one.same_channel(&listener)));
            }
        }
    }

    /// Sends the last event to all listeners, and removes them.
    async fn close(&self, told: &ProcessEvent) {
        let all = locked(&self.listeners).take().unwrap_or_default();
        for listener in all {
            let _ = tokio::time::timeout(DEAF, listener.send(told.clone())).await;
        }
    }

    /// Reads the output of a process until it ends, and forwards it to the listeners.
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
                    self.tell(&ProcessEvent::Data { stream, bytes }).await;
                    if !self.terminal && reached.iter().sum::<u64>() - taken >= TAKE_BYTES {
                        taken = reached.iter().sum();
                        // If this notification is lost, the next notification covers the same output.
                        let _ = exec.take(reached[0], reached[1]).await;
                    }
                }
                Ok(Some(Event::Gap { stream, from, to })) if self.terminal => {
                    let note = format!("\r\n[{} bytes omitted]\r\n", to - from);
                    self.tell(&ProcessEvent::Data { stream, bytes: note.into() }).await;
                }
                // A gap in the output of a command is output that the server already read before it
                // restarted.
                Ok(Some(Event::Gap { .. } | Event::Result { .. })) => {}
                Ok(Some(Event::End(end))) => return self.close(&ProcessEvent::End(end)).await,
                Ok(None) => {
                    let error =
                        node::Error::Protocol("the output stream ended without an end event".into()).to_api();
                    return self.close(&ProcessEvent::Broken(error)).await;
                }
                Err(error) => {
                    let error = server::rejection::Rejection::from(error).error().clone();
                    return self.close(&ProcessEvent::Broken(error)).await;
                }
            }
        }
    }
}

impl Processes {
    /// Starts reading the output of a process in the background, unless a pump is already reading it.
    pub fn follow(&self, key: (SandboxId, u32), process: RunningProcess, exec: Exec) -> Arc<RunningProcess> {
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

    /// Finds a process of a sandbox, and returns its number and its state.
    ///
    /// # Errors
    /// Returns an error if the process does not exist or the sandbox does not respond.
    pub async fn find(
        &self,
        sandbox: &SandboxId,
        call: &Call,
        which: &Selector,
    ) -> Called<(u32, ProcessMatch)> {
        let pid = match which {
            Selector::Pid(pid) => *pid,
            Selector::Tag(tag) => self.tagged(sandbox, tag).ok_or_else(|| missing(which))?,
        };
        let key = (sandbox.clone(), pid);
        if let Some(process) = locked(&self.0).get(&key) {
            return Ok((pid, ProcessMatch::Running(Arc::clone(process))));
        }
        let id = exec_id(pid)?;
        let info =
            call.execs().await?.into_iter().find(|info| info.id == id).ok_or_else(|| missing(which))?;
        if info.outcome.is_some() {
            return Ok((pid, ProcessMatch::Ended(info)));
        }
        let process = RunningProcess::of(&info);
        Ok((pid, ProcessMatch::Running(self.follow(key, process, call.exec_reader(id)))))
    }

    /// Returns the state of a running process, if this server knows it.
    pub fn known(&self, sandbox: &SandboxId, pid: u32) -> Option<Arc<RunningProcess>> {
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
