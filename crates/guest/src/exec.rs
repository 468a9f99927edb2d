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
use tokio::time::Instant;

use crate::launch::{Ends, Terminal};
use crate::memory::Kills;
use crate::spare;
use crate::spool::Spool;
use crate::stdin::Stdin;
use crate::sweep::{self, Strays, Whom};
use crate::terminal;
use crate::watched::Watched;

/// One exec and all its state.
pub struct GuestExec {
    id: ExecId,
    argv: String,
    /// Fingerprint of the request that started the exec. A different request with the same ID is a conflict.
    pub fingerprint: u64,
    group: Cell<u32>,
    /// Context in which the exec runs, if it is a cell.
    context: Option<ContextId>,
    /// Time from which the exec's duration and deadline count. Not set while code is queued or its packages
    /// are being installed.
    started: Cell<Option<Instant>>,
    /// Time at which the current phase (preparation or run) times out, if it has a time limit.
    limit: Cell<Option<Instant>>,
    deadline: Option<Duration>,
    /// Start of the sandbox's current pause, if it is paused. Paused time does not count toward the exec's
    /// duration or deadline.
    held: Cell<Option<Instant>>,
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
            started: Cell::new(None),
            limit: Cell::new(None),
            held: Cell::new(None),
            deadline: spec.deadline_ms.map(Duration::from_millis),
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

    /// Returns true if the exec has ended.
    pub fn has_ended(&self) -> bool {
        self.end.borrow().is_some()
    }

    /// Returns how the exec ended, or `None` until all output of its process has been read.
    pub fn end(&self) -> Option<ExecEnd> {
        if self.complete.get() { self.end.borrow().clone() } else { None }
    }

    /// Returns the exec's current state. `processes` is the number of processes in the exec's group.
    pub fn info(&self, processes: u32) -> ExecInfo {
        let end = self.end.borrow();
        let [stdout, stderr, results] = &*self.spools.borrow();
        let since = self.age();
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
            deadline_ms: self.deadline.map(whole_ms),
            grace_ms: whole_ms(self.grace),
            ended_ms_ago: end.as_ref().map(|_| whole_ms(since.saturating_sub(ran))),
            terminal: self.size.get(),
        }
    }

    /// Records how the process or the cell ended.
    pub fn reaped(&self, outcome: Outcome) {
        self.status.replace(Some(outcome));
        self.decided.notify_waiters();
    }

    /// Starts the exec's clock: its duration and deadline count from now. Only the first call has an effect,
    /// so code cannot gain time by reporting its start again.
    pub fn clock(&self) {
        if self.started.get().is_some() {
            return;
        }
        let now = Instant::now();
        // If the exec begins during a pause, only the rest of the pause is excluded from its time.
        self.held.set(self.held.get().map(|_| now));
        self.started.set(Some(now));
        self.limit.set(self.deadline.map(|after| now + after));
        self.decided.notify_waiters();
    }

    /// Sets a time limit for the preparation phase, which precedes the start of the exec's clock.
    pub fn prepare(&self, within: Duration) {
        // OOM kills that happened while the exec was queued do not count against it.
        self.kills_before.set(self.kills.count());
        let now = Instant::now();
        self.held.set(self.held.get().map(|_| now));
        self.limit.set(Some(now + within));
        self.decided.notify_waiters();
    }

    /// Stops the exec's clock, because the sandbox is about to be paused.
    pub fn hold_time(&self) {
        self.held.set(self.held.get().or_else(|| Some(Instant::now())));
        self.decided.notify_waiters();
    }

    /// Restarts the exec's clock, and moves the deadline by the length of the pause.
    pub fn release_time(&self) {
        let Some(held) = self.held.take() else { return };
        let paused = held.elapsed();
        let later = |at: Option<Instant>| at.map(|at| at + paused);
        self.started.set(later(self.started.get()));
        self.limit.set(later(self.limit.get()));
        self.decided.notify_waiters();
    }

    /// Returns the current time limit, or `None` while the clock is stopped.
    fn limit(&self) -> Option<Instant> {
        self.limit.get().filter(|_| self.held.get().is_none())
    }

    /// Returns the time since the exec's clock started, excluding pauses.
    fn age(&self) -> Duration {
        let now = self.held.get().unwrap_or_else(Instant::now);
        self.started.get().map_or(Duration::ZERO, |started| now.saturating_duration_since(started))
    }

    /// Returns the reason to end the exec, if there is one.
    pub fn reason(&self) -> Option<Outcome> {
        self.reason.borrow().clone()
    }

    /// Requests that the exec end for this reason. Only the first request counts, and only if the exec has
    /// not ended yet.
    pub fn ask_to_end(&self, reason: Outcome) {
        if !self.has_ended() && self.reason.borrow().is_none() {
            self.reason.replace(Some(reason));
            self.decided.notify_waiters();
        }
    }

    /// Waits until there is a reason to end the exec.
    pub async fn until_asked(&self) {
        loop {
            let decided = self.decided.notified();
            tokio::pin!(decided);
            decided.as_mut().enable();
            if self.reason.borrow().is_some() {
                return;
            }
            decided.await;
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

    /// Ends a cell with this outcome. If there was an earlier reason to end the cell, that reason becomes the
    /// outcome.
    pub fn over(&self, outcome: Outcome) {
        self.reaped(outcome);
        self.finish(0);
        self.complete();
    }

    /// Runs the exec until it is complete: moves its output to the spools, enforces its deadline, and ends
    /// its processes if necessary.
    pub async fn live(self: Rc<Self>, streams: Vec<(Stream, Rc<Watched>)>) {
        let pumps: Vec<_> = streams
            .iter()
            .map(|(stream, pipe)| tokio::task::spawn_local(Rc::clone(&self).pump(*stream, Rc::clone(pipe))))
            .collect();
        self.until_decided().await;
        if self.status.borrow().is_none() || self.background == Background::Kill || self.is_struck() {
            self.until_swept().await;
        }
        if self.is_struck() {
            self.kills.tidy().await;
        }
        for pump in pumps {
            pump.abort();
        }
        let pending: Vec<usize> = streams.iter().map(|(_, pipe)| self.pending(pipe)).collect();
        let left =
            sweep::find(Whom::Group(self.group())).len() + self.strays().map_or(0, |all| all.find().len());
        let left = u32::try_from(left).unwrap_or(u32::MAX);
        self.finish(left);
        for ((stream, pipe), bytes) in streams.iter().zip(pending) {
            self.drain(*stream, pipe, bytes).await;
        }
        let is_terminal = self.has_terminal();
        self.hang_up();
        self.complete();
        if left > 0 && !is_terminal {
            for (_, pipe) in streams {
                tokio::task::spawn_local(streams::discard(pipe));
            }
        }
    }

    /// Waits until the process has ended or there is a reason to end it.
    pub async fn until_decided(&self) {
        loop {
            // Register before the checks, so that no notification is missed in between.
            let (decided, struck) = (self.decided.notified(), self.kills.struck.notified());
            tokio::pin!(decided, struck);
            decided.as_mut().enable();
            struck.as_mut().enable();
            if self.status.borrow().is_some() || self.reason.borrow().is_some() {
                return;
            }
            let limit = self.limit();
            let due = async {
                match limit {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = decided => {}
                () = struck => self.ask_to_end(Outcome::Oom),
                // After a pause, the timer may fire before this task is notified that the deadline was
                // stopped or moved, so check the deadline again.
                () = due => if self.limit().is_some_and(|at| at <= Instant::now()) {
                    self.ask_to_end(Outcome::Timeout);
                },
            }
        }
    }

    /// Ends all processes of the exec, and waits until its main process is reaped.
    async fn until_swept(&self) {
        if self.has_terminal() {
            // An interactive shell ignores the SIGTERM that all processes get below, but exits on SIGHUP.
            sweep::signal(Whom::Group(self.group()), Signal::HUP);
        }
        sweep::end(Whom::Group(self.group()), self.grace).await;
        if let Some(strays) = self.strays() {
            strays.kill().await;
        }
        loop {
            let decided = self.decided.notified();
            tokio::pin!(decided);
            decided.as_mut().enable();
            if self.status.borrow().is_some() {
                return;
            }
            decided.await;
        }
    }

    fn strays(&self) -> Option<Strays> {
        self.strays.borrow().clone()
    }

    /// Returns true if an OOM kill has happened since the exec began.
    pub fn is_struck(&self) -> bool {
        self.kills.count() > self.kills_before.get()
    }

    /// Decides the outcome and marks the exec as ended, even if processes still hold its pipes.
    fn finish(&self, left_running: u32) {
        let natural = || self.status.borrow().clone().unwrap_or(Outcome::Unknown);
        let outcome = match self.reason.borrow().clone() {
            Some(reason) => reason,
            // After an OOM kill, the kernel or the guest kills all user code, so every running exec gets this
            // outcome.
            None if self.is_struck() => Outcome::Oom,
            None => natural(),
        };
        let ran = self.age();
        let duration_us = u64::try_from(ran.as_micros()).unwrap_or(u64::MAX);
        self.end.replace(Some(ExecEnd {
            outcome,
            stdout_bytes: 0,
            stdout_dropped: 0,
            stderr_bytes: 0,
            stderr_dropped: 0,
            results_bytes: 0,
            state_lost: self.state_lost.get(),
            duration_us,
            left_running,
            memory: None,
        }));
    }

    /// Marks the exec as complete: all output is in the spools, and the counts are final.
    fn complete(&self) {
        if let Some(end) = &mut *self.end.borrow_mut() {
            let [stdout, stderr, results] = &*self.spools.borrow();
            end.results_bytes = results.written();
            (end.stdout_bytes, end.stdout_dropped) = (stdout.written(), stdout.dropped());
            (end.stderr_bytes, end.stderr_dropped) = (stderr.written(), stderr.dropped());
        }
        self.complete.set(true);
        self.changed.notify_waiters();
    }
}

/// Returns the summary of code for listings: its language and its first line.
fn shown(code: &Code) -> String {
    let first = code.source.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    format!("{}: {first}", code.language.unwrap_or_default().name())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Verifies that a pause longer than the deadline does not end the exec, and does not count toward its
    /// duration.
    #[tokio::test(start_paused = true)]
    async fn the_time_of_a_pause_does_not_count() {
        let spec = ExecSpec { argv: vec!["true".into()], deadline_ms: Some(1000), ..ExecSpec::default() };
        let exec = GuestExec::new(ExecId::from_random([1; 16]), &spec, 0, 1, Rc::default());
        let seconds = Duration::from_secs;
        exec.clock();
        tokio::time::advance(Duration::from_millis(400)).await;
        exec.hold_time();
        assert!(tokio::time::timeout(seconds(3600), exec.until_decided()).await.is_err());
        exec.hold_time();
        assert_eq!(exec.info(1).duration_ms, 400);
        exec.release_time();
        exec.release_time();
        assert_eq!(exec.info(1).duration_ms, 400);
        assert!(tokio::time::timeout(Duration::from_millis(500), exec.until_decided()).await.is_err());
        tokio::time::timeout(seconds(1), exec.until_decided()).await.unwrap();
        assert_eq!(exec.reason(), Some(Outcome::Timeout));
    }

    /// Verifies that a deadline timer that expires during a pause does not end the exec.
    #[tokio::test(start_paused = true)]
    async fn a_deadline_that_passed_in_a_pause_ends_nothing() {
        let spec = ExecSpec { argv: vec!["true".into()], deadline_ms: Some(1000), ..ExecSpec::default() };
        for _ in 0..20 {
            let exec = GuestExec::new(ExecId::from_random([1; 16]), &spec, 0, 1, Rc::default());
            exec.clock();
            let decided = exec.until_decided();
            tokio::pin!(decided);
            assert!(tokio::time::timeout(Duration::ZERO, &mut decided).await.is_err());
            exec.hold_time();
            tokio::time::advance(Duration::from_secs(3600)).await;
            exec.release_time();
            assert!(tokio::time::timeout(Duration::from_millis(500), &mut decided).await.is_err());
            assert_eq!(exec.reason(), None);
        }
    }

    /// Verifies that code that begins during a pause gets its full deadline, and no more.
    #[tokio::test(start_paused = true)]
    async fn what_begins_during_a_pause_has_its_own_deadline() {
        let spec = ExecSpec { argv: vec!["true".into()], deadline_ms: Some(1000), ..ExecSpec::default() };
        let exec = GuestExec::new(ExecId::from_random([1; 16]), &spec, 0, 1, Rc::default());
        exec.hold_time();
        tokio::time::advance(Duration::from_secs(3600)).await;
        exec.clock();
        tokio::time::advance(Duration::from_millis(10)).await;
        exec.release_time();
        assert_eq!(exec.info(1).duration_ms, 0);
        tokio::time::timeout(Duration::from_millis(1100), exec.until_decided()).await.unwrap();
        assert_eq!(exec.reason(), Some(Outcome::Timeout));
    }

    #[test]
    fn an_exec_tells_the_deadline_it_was_given() {
        for deadline_ms in [None, Some(1), Some(limits::DEADLINE_MS_MAX)] {
            let spec = ExecSpec { argv: vec!["true".into()], deadline_ms, ..ExecSpec::default() };
            let exec = GuestExec::new("e1".parse().unwrap(), &spec, 0, 20_000, Rc::default());
            assert_eq!(exec.info(1).deadline_ms, deadline_ms);
        }
    }
}
