//! One exec, from its start to its outcome.
//!
//! ```text
//! starting ──program executed────▶ running ──process ends──▶ ended ──pipes are drained──▶ complete
//!    └─failed──▶ never started         └─deadline · cancel · output limit · memory──▶ swept, then ended
//! ```
//!
//! An exec on a terminal has one stream instead of two pipes. When the exec ends, the terminal hangs up,
//! which signals processes that still hold it.
//!
//! An exec that never started has no outcome. A request for the exec or its output returns the reason as an
//! error.
//!
//! The first recorded reason to end the exec decides its outcome. Without such a reason, the exit status of
//! its process decides. Open pipes do not delay the outcome, because a process left in the background can
//! hold them open forever. Output that such a process writes later is discarded.

mod clock;
mod end;
mod streams;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use api::code::Code;
use api::exec::{Background, ExecEnd, ExecInfo, ExecSpec, Outcome, OutputMode, Stream};
use api::terminal::TerminalSize;
use api::{ContextId, Error, ErrorCode, ExecId, limits};
use rustix::process::Signal;
use tokio::sync::{Notify, SetOnce};

use crate::launch::{Ends, Terminal};
use crate::memory::Kills;
use crate::spare;
use crate::spool::Spool;
use crate::stdin::Stdin;
use crate::sweep::{self, Strays, Whom};
use crate::terminal;
use crate::watched::Watched;
use clock::ExecClock;

/// One exec and all its state.
pub struct GuestExec {
    id: ExecId,
    argv: String,
    /// Fingerprint of the request that started the exec. A different request with the same ID is a conflict.
    pub fingerprint: u64,
    group: Cell<u32>,
    /// Context in which the exec runs, if it is a cell.
    context: Option<ContextId>,
    clock: ExecClock,
    grace: Duration,
    background: Background,
    kills: Rc<Kills>,
    kills_before: Cell<u64>,
    /// Processes that may have left the exec group. Set only if the exec runs as root.
    strays: RefCell<Option<Strays>>,
    spools: RefCell<[Spool; 3]>,
    /// Standard input of the exec.
    pub stdin: Stdin,
    /// Terminal of the exec, if it has one, until the exec ends.
    terminal: RefCell<Option<Terminal>>,
    /// Size of the terminal, if the exec was started on one.
    size: Cell<Option<TerminalSize>>,
    /// Result of the start, once it is known.
    verdict: SetOnce<Result<(), Error>>,
    /// How the process or the cell ended, once it has.
    status: RefCell<Option<Outcome>>,
    /// True if the context of this cell lost its variables.
    pub state_lost: Cell<bool>,
    reason: RefCell<Option<Outcome>>,
    end: RefCell<Option<ExecEnd>>,
    complete: Cell<bool>,
    /// Notified when new output arrives and when the exec is complete.
    pub changed: Notify,
    /// Notified when a reader has freed space in a spool.
    room: Notify,
    /// Notified when the process has ended, when there is a reason to end it, and when its time limit
    /// changes.
    decided: Notify,
}

impl GuestExec {
    /// Creates an exec whose process is about to start.
    pub fn new(id: ExecId, spec: &ExecSpec, fingerprint: u64, group: u32, kills: Rc<Kills>) -> Self {
        let bytes = spec.output_bytes.unwrap_or(limits::OUTPUT_BYTES);
        let context = spec.code.as_ref().and_then(|code| code.context.clone());
        let grace = spec.grace_ms.unwrap_or(limits::GRACE_MS);
        let spool = || Spool::new(spec.output, bytes, spare::take);
        // Results are written only if they fit, so the exec never exceeds this limit. Mode `keep` is
        // unsuitable: it drops bytes from the middle, which could split a line.
        let results = Spool::new(OutputMode::Kill, limits::RESULTS_BYTES_MAX, spare::take);
        let mut argv = spec.code.as_ref().map_or_else(|| spec.argv.join(" "), shown);
        argv.truncate(argv.floor_char_boundary(limits::ARGV_SHOWN_BYTES));
        Self {
            id,
            argv,
            fingerprint,
            group: Cell::new(group),
            clock: ExecClock::new(spec.deadline_ms.map(Duration::from_millis)),
            // The interruption of a cell has a fixed maximum duration, which is reported as the grace period.
            grace: Duration::from_millis(if context.is_some() { limits::CELL_GRACE_MS } else { grace }),
            context,
            background: spec.background,
            kills_before: Cell::new(kills.count()),
            kills,
            strays: RefCell::default(),
            spools: RefCell::new([spool(), spool(), results]),
            stdin: Stdin::default(),
            terminal: RefCell::new(None),
            size: Cell::new(spec.terminal),
            verdict: SetOnce::new(),
            status: RefCell::new(None),
            state_lost: Cell::new(false),
            reason: RefCell::new(None),
            end: RefCell::new(None),
            complete: Cell::new(false),
            changed: Notify::new(),
            room: Notify::new(),
            decided: Notify::new(),
        }
    }

    /// Returns the group that all processes of the exec carry.
    pub fn group(&self) -> u32 {
        self.group.get()
    }

    /// Sets the exec's group. A cell takes the group of its context's process when it begins, and leaves that
    /// group when it ends.
    pub fn belong(&self, group: u32) {
        self.group.set(group);
    }

    /// Sets the [`Strays`] to kill if the exec is terminated. Only an exec that runs as root needs this,
    /// because only root can leave its group.
    pub fn watch_strays(&self, strays: Strays) {
        self.strays.replace(Some(strays));
    }

    /// Returns the exec's current state. `processes` is the number of processes in the exec's group.
    pub fn info(&self, processes: u32) -> ExecInfo {
        let end = self.end.borrow();
        let [stdout, stderr, results] = &*self.spools.borrow();
        let since = self.clock.age();
        let ran = end.as_ref().map_or(since, |end| Duration::from_micros(end.duration_us));
        let whole_ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        ExecInfo {
            id: self.id.clone(),
            argv: self.argv.clone(),
            outcome: end.as_ref().map(|end| end.outcome.clone()),
            processes,
            stdout_bytes: stdout.written(),
            stderr_bytes: stderr.written(),
            results_bytes: results.written(),
            context: self.context.clone(),
            stdin_bytes: self.stdin.received(),
            duration_ms: whole_ms(ran),
            deadline_ms: self.clock.deadline().map(whole_ms),
            grace_ms: whole_ms(self.grace),
            ended_ms_ago: end.as_ref().map(|_| whole_ms(since.saturating_sub(ran))),
            terminal: self.size.get(),
        }
    }

    /// Starts the exec's clock: its duration and deadline count from now. Only the first call has an effect,
    /// so code cannot gain time by reporting its start again.
    pub fn clock(&self) {
        if self.clock.start() {
            self.decided.notify_waiters();
        }
    }

    /// Sets a time limit for the preparation phase, which precedes the start of the exec's clock.
    pub fn prepare(&self, within: Duration) {
        // OOM kills that happened while the exec was queued do not count against it.
        self.kills_before.set(self.kills.count());
        self.clock.prepare(within);
        self.decided.notify_waiters();
    }

    /// Stops the exec's clock, because the sandbox is about to be paused.
    pub fn hold_time(&self) {
        self.clock.hold();
        self.decided.notify_waiters();
    }

    /// Restarts the exec's clock, and moves the deadline by the length of the pause.
    pub fn release_time(&self) {
        if self.clock.release() {
            self.decided.notify_waiters();
        }
    }

    /// Reports to all waiters whether the exec started. Called once.
    pub fn judge(&self, verdict: Result<(), Error>) {
        let _ = self.verdict.set(verdict);
    }

    /// Waits until the process has executed its program. Returns an error if it could not.
    pub async fn begun(&self) -> Result<(), Error> {
        self.verdict.wait().await.clone()
    }

    /// Takes ownership of the guest's ends of the process's streams. Returns the ends to read from.
    pub fn hold(&self, ends: Ends) -> Vec<(Stream, Rc<Watched>)> {
        self.stdin.open(ends.stdin);
        self.terminal.replace(ends.terminal);
        ends.streams
    }

    /// Returns true if the exec was started on a terminal.
    pub fn is_terminal(&self) -> bool {
        self.size.get().is_some()
    }

    /// Returns true if the exec has a terminal that is still open.
    pub fn has_terminal(&self) -> bool {
        self.terminal.borrow().is_some()
    }

    /// Resizes the exec's terminal.
    pub fn resize(&self, size: TerminalSize) -> Result<(), Error> {
        size.check()?;
        let terminal = self.terminal.borrow();
        let Some(Terminal { master, .. }) = &*terminal else {
            let message = format!("exec {} has no terminal", self.id);
            let fix = "Start the exec with `terminal`. An exec that has ended has no terminal.";
            return Err(Error { code: ErrorCode::Conflict, ..Error::invalid(message, fix) });
        };
        terminal::resize(master.get_ref(), size).map_err(|error| {
            Error::invalid(format!("cannot set the terminal size: {error}"), "Choose another size.")
        })?;
        if self.size.replace(Some(size)) != Some(size) && !terminal::tells_sizes(master.get_ref()) {
            sweep::signal(Whom::Group(self.group()), Signal::WINCH);
        }
        Ok(())
    }

    /// Closes the exec's terminal and standard input, if the exec has a terminal. The kernel then hangs up
    /// processes that still hold the terminal.
    pub fn hang_up(&self) {
        if self.terminal.take().is_some() {
            self.stdin.close();
        }
    }
}

/// Returns the summary of code for listings: its language and its first line.
fn shown(code: &Code) -> String {
    let first = code.source.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    format!("{}: {first}", code.language.unwrap_or_default().name())
}

#[cfg(test)]
mod tests;
