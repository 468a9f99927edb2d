//! One exec from its start to its outcome.
//!
//! ```text
//! starting ──became its program──▶ running ──process ends──▶ ended ──what was in its pipes is read──▶ complete
//!    └─could not──▶ never was         └─deadline · cancel · output limit · memory──▶ swept, then ended
//! ```
//!
//! On a terminal there is one stream instead of two pipes, and whoever still holds the terminal after the end is hung up.
//!
//! An exec that never was has no outcome: whoever asked for it, or for its output, is told why.
//!
//! The outcome is decided by the first reason to end it, else by how the process ended. Pipes decide nothing: a
//! process left behind may hold them for ever; what it still writes is counted and thrown away.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use api::exec::{Background, ExecEnd, ExecInfo, ExecSpec, Outcome, Stream};
use api::terminal::TerminalSize;
use api::{Error, ErrorCode, ExecId, limits};
use rustix::process::{Signal, WaitStatus};
use tokio::sync::{Notify, SetOnce};
use tokio::time::Instant;

use crate::init;
use crate::launch::{Ends, Terminal};
use crate::memory::Kills;
use crate::spare;
use crate::spool::{Spool, Taken};
use crate::stdin::Stdin;
use crate::sweep::{self, Whom};
use crate::terminal;
use crate::watched::Watched;

/// One read of a pipe. Shared by all execs: a read and its spooling happen without a pause between.
const SCRATCH_BYTES: usize = 256 * 1024;
/// What a terminal can hold that was written and not read: Linux has 68 KiB, gVisor 128 KiB and a page.
const TERMINAL_BYTES_MAX: usize = 256 * 1024;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; SCRATCH_BYTES]);
}

/// One exec.
pub struct Exec {
    id: ExecId,
    argv: String,
    /// Of the request that started it: the same id with another request is a conflict.
    pub fingerprint: u64,
    group: u32,
    started: Instant,
    deadline: Option<Duration>,
    grace: Duration,
    background: Background,
    kills: Rc<Kills>,
    kills_before: u64,
    spools: RefCell<[Spool; 2]>,
    /// Its standard input.
    pub stdin: Stdin,
    /// Its terminal, from its start to its end, if it has one.
    terminal: RefCell<Option<Terminal>>,
    /// The size of that.
    size: Cell<Option<TerminalSize>>,
    /// Whether its process became its program, once that is known.
    verdict: SetOnce<Result<(), Error>>,
    status: Cell<Option<WaitStatus>>,
    reason: RefCell<Option<Outcome>>,
    end: RefCell<Option<ExecEnd>>,
    complete: Cell<bool>,
    /// There are new bytes, or it is complete.
    pub changed: Notify,
    /// A reader has made room.
    room: Notify,
    /// The process has ended, or there is a reason to end it.
    decided: Notify,
}

impl Exec {
    /// An exec whose process is about to be started.
    pub fn new(id: ExecId, spec: &ExecSpec, fingerprint: u64, group: u32, kills: Rc<Kills>) -> Self {
        let bytes = spec.output_bytes.unwrap_or(limits::OUTPUT_BYTES);
        let spool = || Spool::new(spec.output, bytes, spare::take);
        let mut argv = spec.argv.join(" ");
        argv.truncate(argv.floor_char_boundary(limits::ARGV_SHOWN_BYTES));
        Self {
            id,
            argv,
            fingerprint,
            group,
            started: Instant::now(),
            deadline: spec.deadline_ms.map(Duration::from_millis),
            grace: Duration::from_millis(spec.grace_ms.unwrap_or(limits::GRACE_MS)),
            background: spec.background,
            kills_before: kills.count(),
            kills,
            spools: RefCell::new([spool(), spool()]),
            stdin: Stdin::default(),
            terminal: RefCell::new(None),
            size: Cell::new(spec.terminal),
            verdict: SetOnce::new(),
            status: Cell::new(None),
            reason: RefCell::new(None),
            end: RefCell::new(None),
            complete: Cell::new(false),
            changed: Notify::new(),
            room: Notify::new(),
            decided: Notify::new(),
        }
    }

    /// The group that all its processes carry.
    pub fn group(&self) -> u32 {
        self.group
    }

    /// Whether its process has ended.
    pub fn has_ended(&self) -> bool {
        self.end.borrow().is_some()
    }

    /// How it ended, once everything its process wrote has been read.
    pub fn end(&self) -> Option<ExecEnd> {
        if self.complete.get() { self.end.borrow().clone() } else { None }
    }

    /// How it is doing; `processes` carry its group.
    pub fn info(&self, processes: u32) -> ExecInfo {
        let end = self.end.borrow();
        let [stdout, stderr] = &*self.spools.borrow();
        let ran =
            end.as_ref().map_or_else(|| self.started.elapsed(), |end| Duration::from_micros(end.duration_us));
        let whole_ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        ExecInfo {
            id: self.id.clone(),
            argv: self.argv.clone(),
            outcome: end.as_ref().map(|end| end.outcome.clone()),
            processes,
            stdout_bytes: stdout.written(),
            stderr_bytes: stderr.written(),
            stdin_bytes: self.stdin.received(),
            duration_ms: whole_ms(ran),
            deadline_ms: self.deadline.map(whole_ms),
            grace_ms: whole_ms(self.grace),
            ended_ms_ago: end.as_ref().map(|_| whole_ms(self.started.elapsed().saturating_sub(ran))),
            terminal: self.size.get(),
        }
    }

    /// Does something with the spool of a stream.
    pub fn spool<T>(&self, stream: Stream, act: impl FnOnce(&mut Spool) -> T) -> T {
        let [stdout, stderr] = &mut *self.spools.borrow_mut();
        act(match stream {
            Stream::Stdout => stdout,
            Stream::Stderr => stderr,
        })
    }

    /// Bytes of its output that can be read again.
    pub fn kept(&self) -> u64 {
        self.spools.borrow().iter().map(Spool::kept).sum()
    }

    /// Lets go of its output. A reader that comes for it is told of the gap.
    pub fn forget_output(&self) {
        self.spools.borrow_mut().iter_mut().for_each(Spool::forget);
    }

    /// A reader has everything below the offset.
    pub fn consume(&self, stream: Stream, offset: u64) {
        self.spool(stream, |spool| spool.consume(offset));
        self.room.notify_waiters();
    }

    /// Its process was reaped.
    pub fn reaped(&self, status: WaitStatus) {
        self.status.set(Some(status));
        self.decided.notify_waiters();
    }

    /// Gives a reason to end it. The first one counts; after the end none does.
    pub fn ask_to_end(&self, reason: Outcome) {
        if !self.has_ended() && self.reason.borrow().is_none() {
            self.reason.replace(Some(reason));
            self.decided.notify_waiters();
        }
    }

    /// Tells everybody who waits whether its process became its program. Said once.
    pub fn judge(&self, verdict: Result<(), Error>) {
        let _ = self.verdict.set(verdict);
    }

    /// Waits until its process has become its program; says why it could not.
    pub async fn begun(&self) -> Result<(), Error> {
        self.verdict.wait().await.clone()
    }

    /// Takes over our ends of its process's streams; gives back those to be read.
    pub fn hold(&self, ends: Ends) -> Vec<(Stream, Rc<Watched>)> {
        self.stdin.open(ends.stdin);
        self.terminal.replace(ends.terminal);
        ends.streams
    }

    /// Whether it was started on a terminal.
    pub fn is_terminal(&self) -> bool {
        self.size.get().is_some()
    }

    /// Whether it has a terminal open.
    pub fn has_terminal(&self) -> bool {
        self.terminal.borrow().is_some()
    }

    /// Gives its terminal another size.
    pub fn resize(&self, size: TerminalSize) -> Result<(), Error> {
        size.check()?;
        let terminal = self.terminal.borrow();
        let Some(Terminal { master, .. }) = &*terminal else {
            let message = format!("exec {} has no terminal", self.id);
            let fix = "Start it with `terminal`; one that has ended has none any more.";
            return Err(Error { code: ErrorCode::Conflict, ..Error::invalid(message, fix) });
        };
        terminal::resize(master.get_ref(), size).map_err(|error| {
            Error::invalid(format!("the terminal cannot have that size: {error}"), "Choose another.")
        })?;
        if self.size.replace(Some(size)) != Some(size) && !terminal::tells_sizes(master.get_ref()) {
            sweep::signal(Whom::Group(self.group), Signal::WINCH);
        }
        Ok(())
    }

    /// Lets go of its terminal and its standard input. Whatever still has the terminal is hung up.
    pub fn hang_up(&self) {
        if self.terminal.take().is_some() {
            self.stdin.close();
        }
    }

    /// Lives the exec from start to end.
    pub async fn live(self: Rc<Self>, streams: Vec<(Stream, Rc<Watched>)>) {
        let pumps: Vec<_> = streams
            .iter()
            .map(|(stream, pipe)| tokio::task::spawn_local(Rc::clone(&self).pump(*stream, Rc::clone(pipe))))
            .collect();
        self.until_decided().await;
        if self.status.get().is_none() || self.background == Background::Kill || self.is_struck() {
            self.until_swept().await;
        }
        if self.is_struck() {
            self.kills.tidy().await;
        }
        for pump in pumps {
            pump.abort();
        }
        let pending: Vec<usize> = streams.iter().map(|(_, pipe)| self.pending(pipe)).collect();
        let left = u32::try_from(sweep::find(Whom::Group(self.group)).len()).unwrap_or(u32::MAX);
        self.finish(left);
        for ((stream, pipe), bytes) in streams.iter().zip(pending) {
            self.drain(*stream, pipe, bytes).await;
        }
        let is_terminal = self.has_terminal();
        self.hang_up();
        self.complete();
        if left > 0 && !is_terminal {
            for (_, pipe) in streams {
                tokio::task::spawn_local(discard(pipe));
            }
        }
    }

    /// Waits for the end of the process or a reason to end it.
    async fn until_decided(&self) {
        let deadline = async {
            match self.deadline {
                Some(after) => tokio::time::sleep_until(self.started + after).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(deadline);
        loop {
            // Registered before looking, so that nothing said in between is missed.
            let (decided, struck) = (self.decided.notified(), self.kills.struck.notified());
            tokio::pin!(decided, struck);
            decided.as_mut().enable();
            struck.as_mut().enable();
            if self.status.get().is_some() || self.reason.borrow().is_some() {
                return;
            }
            tokio::select! {
                () = decided => {}
                () = struck => self.ask_to_end(Outcome::Oom),
                () = &mut deadline => self.ask_to_end(Outcome::Timeout),
            }
        }
    }

    /// Ends all its processes and waits until the first of them is reaped.
    async fn until_swept(&self) {
        if self.has_terminal() {
            // An interactive shell ignores the SIGTERM that everybody gets. This is what it ends by.
            sweep::signal(Whom::Group(self.group), Signal::HUP);
        }
        sweep::end(Whom::Group(self.group), self.grace).await;
        loop {
            let decided = self.decided.notified();
            tokio::pin!(decided);
            decided.as_mut().enable();
            if self.status.get().is_some() {
                return;
            }
            decided.await;
        }
    }

    /// Whether the kernel has killed for memory since it was started.
    fn is_struck(&self) -> bool {
        self.kills.count() > self.kills_before
    }

    /// Decides the outcome. From here on it has ended, whoever still holds its pipes.
    fn finish(&self, left_running: u32) {
        let natural = || self.status.get().map_or(Outcome::Unknown, init::outcome);
        let outcome = match self.reason.borrow().clone() {
            Some(reason) => reason,
            // The kernel ends all of user code for memory, or we do: whoever ran then ran out.
            None if self.is_struck() => Outcome::Oom,
            None => natural(),
        };
        let duration_us = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.end.replace(Some(ExecEnd {
            outcome,
            stdout_bytes: 0,
            stdout_dropped: 0,
            stderr_bytes: 0,
            stderr_dropped: 0,
            duration_us,
            left_running,
            memory: None,
        }));
    }

    /// Everything it wrote is in the spools: the counts are final.
    fn complete(&self) {
        if let Some(end) = &mut *self.end.borrow_mut() {
            let [stdout, stderr] = &*self.spools.borrow();
            (end.stdout_bytes, end.stdout_dropped) = (stdout.written(), stdout.dropped());
            (end.stderr_bytes, end.stderr_dropped) = (stderr.written(), stderr.dropped());
        }
        self.complete.set(true);
        self.changed.notify_waiters();
    }

    /// Moves bytes from a pipe to its spool until the pipe closes.
    async fn pump(self: Rc<Self>, stream: Stream, pipe: Rc<Watched>) {
        loop {
            let most = self.until_room(stream).await;
            let Ok(mut ready) = pipe.readable().await else { return };
            match ready.try_io(|pipe| self.take(stream, pipe.get_ref(), most)) {
                Ok(Ok(0)) => return,
                Ok(Ok(_)) => tokio::task::yield_now().await,
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(_)) => return,
                Err(_would_block) => {}
            }
        }
    }

    /// Moves the `bytes` that were in a pipe when the process ended.
    async fn drain(&self, stream: Stream, pipe: &Watched, bytes: usize) {
        let mut left = bytes;
        while left > 0 {
            let most = self.until_room(stream).await;
            match self.take(stream, pipe.get_ref(), left.min(most)) {
                Ok(0) | Err(_) => return,
                Ok(count) => left = left.saturating_sub(count),
            }
            tokio::task::yield_now().await;
        }
    }

    /// How many bytes may be in a pipe now. A terminal does not say, and is read until it has nothing.
    fn pending(&self, pipe: &Watched) -> usize {
        if self.has_terminal() {
            return TERMINAL_BYTES_MAX;
        }
        let count = rustix::io::ioctl_fionread(pipe.get_ref()).ok();
        count.and_then(|count| usize::try_from(count).ok()).unwrap_or(0)
    }

    /// Waits until the spool takes at least one byte; says how many it takes.
    async fn until_room(&self, stream: Stream) -> usize {
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            match self.spool(stream, |spool| spool.room()) {
                0 => room.await,
                bytes => return usize::try_from(bytes).unwrap_or(usize::MAX),
            }
        }
    }

    /// One read of a pipe, straight into the spool: no byte is ever held between the two.
    fn take(&self, stream: Stream, pipe: &OwnedFd, most: usize) -> io::Result<usize> {
        SCRATCH.with_borrow_mut(|scratch| {
            let most = most.min(SCRATCH_BYTES);
            let count = rustix::io::read(pipe, scratch.get_mut(..most).unwrap_or_default())?;
            let bytes = scratch.get(..count).unwrap_or_default();
            if self.spool(stream, |spool| spool.write(bytes)) == Taken::OverLimit {
                self.ask_to_end(Outcome::OutputLimit);
            }
            self.changed.notify_waiters();
            Ok(count)
        })
    }
}

/// Reads and throws away, so that a process left behind neither blocks nor dies of a closed pipe.
async fn discard(pipe: Rc<Watched>) {
    while let Ok(mut ready) = pipe.readable().await {
        let read = ready.try_io(|pipe| {
            SCRATCH.with_borrow_mut(|scratch| Ok(rustix::io::read(pipe.get_ref(), &mut scratch[..])?))
        });
        match read {
            Ok(Ok(0)) => return,
            Ok(Err(error)) if error.kind() != io::ErrorKind::Interrupted => return,
            _ => tokio::task::yield_now().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exec_tells_the_deadline_it_was_given() {
        for deadline_ms in [None, Some(1), Some(limits::DEADLINE_MS_MAX)] {
            let spec = ExecSpec { argv: vec!["true".into()], deadline_ms, ..ExecSpec::default() };
            let exec = Exec::new("e1".parse().unwrap(), &spec, 0, 20_000, Rc::default());
            assert_eq!(exec.info(1).deadline_ms, deadline_ms);
        }
    }
}
