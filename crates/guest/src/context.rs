//! Contexts: long-lived interpreters. A cell is an exec whose process outlives it.
//!
//! ```text
//! cell ──waits in the queue──▶ begins ──reports done──▶ over; the next cell begins
//!                                 ├─deadline · cancel──▶ SIGINT, repeated, then killed: its state is lost
//!                                 └─process ends, memory──▶ its state is lost; the next cell starts a new process and reports that
//! ```
//!
//! A fair lock serializes cells in their order of arrival. The channel is not read between cells. Output that
//! arrives between cells is retained, up to a limit, and reported with the next cell.

mod cell;
mod process;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use api::code::{Code, ContextInfo, ContextSpec, ContextState, Language, Loss, Variable};
use api::exec::{Outcome, Stream};
use api::{ContextId, Error, ErrorCode, Layer, Ran, Retry, limits};
use tokio::sync::Mutex;

use crate::exec::GuestExec;
use crate::interpreter::Tell;
use crate::launch::DIRECTORY;
use crate::parent::Parent;
use crate::said::{ACK, CodeMessage, understand};
use crate::sweep::{self, Whom};
use crate::watched::Watched;
use process::ContextProcess;

/// Time to wait for a process to end after its channel was closed or it was killed.
const END_WITHIN: Duration = Duration::from_secs(1);
/// Timeout for a list of variables. Listing them takes milliseconds, but a `repr` in user code may never
/// return.
const VARIABLES_WITHIN: Duration = Duration::from_secs(8);
/// Maximum number of checks whether the current cell has ended. After its process has ended, the cell ends
/// within a check or two.
const END_LOOKS: u32 = 200;
const END_LOOK_EVERY: Duration = Duration::from_millis(10);
/// Maximum size of a list of variables: many times the usual size, because values are truncated.
const VARIABLES_BYTES_MAX: usize = 1 << 20;
/// Maximum output of each stream that is retained between two cells.
const LATE_BYTES_MAX: usize = 64 * 1024;

/// Group of a cell that is not running. No process has this group.
pub const NO_GROUP: u32 = *limits::EXEC_GROUPS.end() + 3;

/// A context: a long-lived interpreter and its cells.
pub struct Context {
    id: ContextId,
    spec: ContextSpec,
    parent: Rc<Parent>,
    process: RefCell<Option<Rc<ContextProcess>>>,
    /// Current cell.
    running: RefCell<Option<Rc<GuestExec>>>,
    turn: Mutex<()>,
    waiting: Cell<u32>,
    cells: Cell<u64>,
    restarts: Cell<u32>,
    lost: Cell<Option<Loss>>,
    /// Loss of state that the next cell must report.
    untold: Cell<Option<Loss>>,
    /// Reason why the guest is currently ending the process, if it is doing so.
    ending: Cell<Option<Loss>>,
    late: RefCell<[Vec<u8>; 2]>,
    /// Result that arrived before the first cell: a notice that the interpreter was started separately, not
    /// forked.
    early: RefCell<Option<Box<str>>>,
    removed: Cell<bool>,
}

impl Context {
    /// Creates a context without a process.
    pub fn new(id: ContextId, spec: ContextSpec, parent: Rc<Parent>) -> Self {
        Self {
            id,
            spec,
            parent,
            process: RefCell::default(),
            running: RefCell::default(),
            turn: Mutex::new(()),
            waiting: Cell::new(0),
            cells: Cell::new(0),
            restarts: Cell::new(0),
            lost: Cell::new(None),
            untold: Cell::new(None),
            ending: Cell::new(None),
            late: RefCell::default(),
            early: RefCell::default(),
            removed: Cell::new(false),
        }
    }

    /// Returns the specification that the context was created with.
    pub fn spec(&self) -> &ContextSpec {
        &self.spec
    }

    /// Returns an error if the context cannot run this cell.
    pub fn admits(&self, code: &Code) -> Result<(), Error> {
        if code.language.is_some_and(|language| language != self.spec.language) {
            return Err(Error::invalid(
                format!("context {} uses the language {}", self.id, self.spec.language.name()),
                "Omit the language, or use another context.",
            ));
        }
        if self.spec.language == Language::Bash {
            if code.install_missing || !code.requirements.is_empty() {
                return Err(Error::invalid(
                    "`requirements` and `install_missing` are supported only for Python",
                    "Install packages with a command instead.",
                ));
            }
            let (bytes, most) = (code.source.len() as u64, limits::SHELL_CELL_BYTES_MAX as u64);
            if bytes > most {
                return Err(limits::exceeded(
                    "the length of code.source of a bash cell in bytes",
                    bytes,
                    most,
                ));
            }
        }
        if self.waiting.get() as usize >= limits::CELLS_WAITING_MAX {
            return Err(Error {
                code: ErrorCode::Capacity,
                message: format!(
                    "{} cells are queued in context {}, the maximum",
                    limits::CELLS_WAITING_MAX,
                    self.id
                ),
                ..busy(&self.id)
            });
        }
        Ok(())
    }

    /// Returns the current state.
    pub fn info(&self) -> ContextInfo {
        self.notice();
        let state = match (self.running.borrow().is_some(), self.process.borrow().is_some()) {
            (true, _) => ContextState::Busy,
            (false, true) => ContextState::Idle,
            (false, false) => ContextState::Lost,
        };
        ContextInfo {
            id: self.id.clone(),
            language: self.spec.language,
            cwd: self.spec.cwd.clone().unwrap_or_else(|| DIRECTORY.into()),
            state,
            cells: self.cells.get(),
            waiting: self.waiting.get(),
            restarts: self.restarts.get(),
            lost: self.lost.get(),
        }
    }

    /// Starts the first process, so that the caller learns whether the context can be created.
    pub async fn begin(self: &Rc<Self>) -> Result<(), Error> {
        let _turn = self.turn.lock().await;
        self.alive_and_kept().await
    }

    /// Like [`Context::alive`], but fails if the context was removed meanwhile.
    async fn alive_and_kept(self: &Rc<Self>) -> Result<(), Error> {
        if !self.removed.get() {
            self.alive().await?;
        }
        if self.removed.get() {
            self.end(Loss::Ended).await;
            return Err(Error::not_found(format!("context {} was removed", self.id)));
        }
        Ok(())
    }

    /// Updates the state if the process has ended.
    fn notice(&self) {
        let process = self.process.borrow().clone();
        let Some(process) = process.filter(|process| process.has_ended()) else { return };
        self.process.replace(None);
        // Kill the descendants of the process too. Otherwise, they would write into the output of later
        // cells.
        tokio::task::spawn_local(sweep::kill(Whom::Group(process.group())));
        let kills = self.parent.processes().memory().count();
        let ended = if kills > process.kills_before() { Loss::Oom } else { Loss::Ended };
        let loss = self.ending.take().unwrap_or(ended);
        self.restarts.set(self.restarts.get() + 1);
        self.lost.set(Some(loss));
        self.untold.set(Some(loss));
    }

    /// Returns the current process, or starts a new one. The caller must hold the `turn` lock.
    async fn alive(self: &Rc<Self>) -> Result<Rc<ContextProcess>, Error> {
        self.notice();
        let there = self.process.borrow().clone();
        if let Some(process) = there {
            return Ok(process);
        }
        self.parent.processes().memory().settled().await;
        let process = ContextProcess::start(&self.spec, &self.parent, &self.early).await?;
        for (stream, pipe) in process.running().iter().flat_map(|running| &running.streams) {
            tokio::task::spawn_local(Rc::clone(self).pump(*stream, Rc::clone(pipe)));
        }
        self.process.replace(Some(Rc::clone(&process)));
        Ok(process)
    }

    /// Moves bytes from a pipe to the current cell, or to the output that is reported with the next cell,
    /// until the pipe closes.
    async fn pump(self: Rc<Self>, stream: Stream, pipe: Rc<Watched>) {
        let mut bytes = [0; 4096];
        loop {
            let Ok(mut ready) = pipe.readable().await else { return };
            let exec = self.running.borrow().clone();
            let most = match &exec {
                Some(exec) => exec.until_room(stream).await,
                None => bytes.len(),
            };
            // The cell may have ended while this task waited for room in the cell's spool.
            let same = self.running.borrow().as_ref().map(Rc::as_ptr) == exec.as_ref().map(Rc::as_ptr);
            if !same {
                continue;
            }
            let read = ready.try_io(|pipe| match &exec {
                Some(exec) => exec.take(stream, pipe.get_ref(), most),
                None => {
                    let count = rustix::io::read(pipe.get_ref(), &mut bytes)?;
                    self.keep(stream, bytes.get(..count).unwrap_or_default());
                    Ok(count)
                }
            });
            match read {
                Ok(Ok(0)) => return,
                Ok(Err(error)) if error.kind() != std::io::ErrorKind::Interrupted => return,
                _ => tokio::task::yield_now().await,
            }
        }
    }

    fn keep(&self, stream: Stream, bytes: &[u8]) {
        let [stdout, stderr] = &mut *self.late.borrow_mut();
        let late = if stream == Stream::Stdout { stdout } else { stderr };
        let room = LATE_BYTES_MAX.saturating_sub(late.len());
        late.extend_from_slice(bytes.get(..room.min(bytes.len())).unwrap_or_default());
    }

    /// Ends the current cell within seconds, even if its code ignores interrupts.
    pub fn interrupt(&self) {
        if let Some(exec) = &*self.running.borrow() {
            exec.ask_to_end(Outcome::Cancelled);
        }
    }

    /// Restarts the interpreter, which discards its state. The current cell is cancelled. Queued cells run in
    /// the new process.
    pub async fn restart(self: &Rc<Self>) -> Result<(), Error> {
        self.end(Loss::Restarted).await;
        match self.turn.try_lock() {
            Ok(_turn) => self.alive_and_kept().await,
            // Another task holds the `turn` lock. That task or the next cell starts the new process.
            Err(_) => Ok(()),
        }
    }

    /// Marks the context as removed, so that calls that are waiting for its turn fail.
    pub fn forget(&self) {
        self.removed.set(true);
    }

    /// Ends the context permanently.
    pub async fn remove(&self) {
        self.forget();
        self.end(Loss::Ended).await;
    }

    async fn end(&self, loss: Loss) {
        self.interrupt();
        let process = self.process.borrow().clone();
        if let Some(process) = process.filter(|process| !process.has_ended()) {
            self.ending.set(Some(loss));
            sweep::kill(Whom::Group(process.group())).await;
            let _ = tokio::time::timeout(END_WITHIN, process.until_ended()).await;
        }
        // Wait until the current cell has noticed the end of its process and has ended.
        for _ in 0..END_LOOKS {
            if self.running.borrow().is_none() {
                return;
            }
            tokio::time::sleep(END_LOOK_EVERY).await;
        }
    }

    /// Returns the variables of the context.
    pub async fn variables(self: &Rc<Self>) -> Result<Vec<Variable>, Error> {
        if self.spec.language != Language::Python {
            return Err(Error::invalid(
                "variables can be listed only for Python contexts",
                "Run `declare -p` as a cell.",
            ));
        }
        let Ok(_turn) = self.turn.try_lock() else { return Err(busy(&self.id)) };
        self.notice();
        let running = self.process.borrow().as_ref().and_then(|process| process.running());
        let Some(running) = running else { return Ok(Vec::new()) };
        let asked = async {
            running.channel.write(&Tell::Variables {}).await.ok()?;
            loop {
                let record = running.channel.read().await?;
                match understand(&record.bytes) {
                    // User code can forge this message, and parsing even a small one can use a lot of memory.
                    Some(CodeMessage::Variables(list)) if list.get().len() > VARIABLES_BYTES_MAX => {
                        return None;
                    }
                    Some(CodeMessage::Variables(list)) => return serde_json::from_str(list.get()).ok(),
                    // A thread displayed a result between two cells. Acknowledge it, because the thread waits
                    // for the acknowledgement.
                    Some(CodeMessage::Result(_)) => running.channel.send_bytes(ACK, &[]).await.ok()?,
                    _ => {}
                }
            }
        };
        match tokio::time::timeout(VARIABLES_WITHIN, asked).await {
            Ok(Some(list)) => Ok(list),
            Ok(None) | Err(_) => Err(Error {
                message: format!("context {} did not return its variables", self.id),
                fix: "Interrupt or restart the context.".into(),
                ..busy(&self.id)
            }),
        }
    }
}

fn busy(id: &ContextId) -> Error {
    Error {
        code: ErrorCode::Conflict,
        message: format!("context {id} is running a cell"),
        layer: Layer::UserCode,
        ran: Ran::No,
        retry: Retry::Safe,
        fix: "Retry when the cell has finished, or interrupt it.".into(),
    }
}
