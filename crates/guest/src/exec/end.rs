//! The end of an exec: the reasons to end it, the end of its processes, and its outcome.

use std::rc::Rc;

use api::exec::{Background, ExecEnd, Outcome, Stream};
use rustix::process::Signal;
use tokio::time::Instant;

use super::{GuestExec, streams};
use crate::processes::ProcessOwner;
use crate::sweep::{self, Strays, Whom};
use crate::watched::Watched;

impl ProcessOwner for GuestExec {
    /// Records how the process or the cell ended.
    fn reaped(&self, outcome: Outcome) {
        self.status.replace(Some(outcome));
        self.decided.notify_waiters();
    }
}

impl GuestExec {
    /// Returns true if the exec has ended.
    pub fn has_ended(&self) -> bool {
        self.end.borrow().is_some()
    }

    /// Returns how the exec ended, or `None` until all output of its process has been read.
    pub fn end(&self) -> Option<ExecEnd> {
        if self.complete.get() { self.end.borrow().clone() } else { None }
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
            let limit = self.clock.limit();
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
                () = due => if self.clock.limit().is_some_and(|at| at <= Instant::now()) {
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
        let ran = self.clock.age();
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
