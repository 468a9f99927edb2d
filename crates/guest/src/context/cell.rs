//! A cell, from the queue to its end.

use std::rc::Rc;
use std::time::Duration;

use api::code::{Language, Loss, RunResult};
use api::exec::Outcome;
use api::limits;
use rustix::process::{Signal, kill_process_group};
use tokio::time::Instant;

use super::process::ContextProcess;
use super::{Context, END_WITHIN, NO_GROUP};
use crate::exec::GuestExec;
use crate::interpreter::{CellSpec, Job, RunSpec, Running, Tell};
use crate::records::Records;
use crate::said::{CellEnd, CodeMessage, shown, understand};
use crate::shell;
use crate::sweep::{self, Whom};

/// Interval between interrupts of a cell that does not end.
const INTERRUPT_EVERY: Duration = Duration::from_secs(1);
/// Time after which an interrupted cell is killed. Including the time to notice the end, an interruption
/// takes at most five seconds.
const KILL_AFTER: Duration = Duration::from_secs(3);
/// Timeout for the start of a cell, not counting the installation of packages.
const BEGIN_WITHIN: Duration = Duration::from_secs(60);

/// How a cell's turn ended.
enum TurnEnd {
    Done(i32),
    Gone,
}

impl Context {
    /// Runs a cell when its turn comes.
    pub async fn cell(self: Rc<Self>, exec: Rc<GuestExec>, job: Job) {
        self.waiting.set(self.waiting.get() + 1);
        let turn = tokio::select! {
            biased;
            () = exec.until_asked() => None,
            turn = self.turn.lock() => Some(turn),
        };
        self.waiting.set(self.waiting.get() - 1);
        if turn.is_none() || self.removed.get() {
            exec.ask_to_end(Outcome::Cancelled);
            return exec.over(Outcome::Cancelled);
        }
        let process = self.alive().await;
        if self.removed.get() {
            self.end(Loss::Ended).await;
            exec.ask_to_end(Outcome::Cancelled);
            return exec.over(Outcome::Cancelled);
        }
        if let Some(reason) = exec.reason() {
            // The cell was cancelled while its process was starting, so its code does not run.
            return exec.over(reason);
        }
        match process {
            Ok(process) => self.run(&exec, &job, &process).await,
            Err(error) => {
                exec.show(&RunResult::Refused { error });
                // A shell uses this exit code for a command that it cannot start.
                exec.over(Outcome::Exited { code: 127 });
            }
        }
    }

    /// Runs a cell whose turn has come.
    async fn run(self: &Rc<Self>, exec: &Rc<GuestExec>, job: &Job, process: &Rc<ContextProcess>) {
        let Some(running) = process.running() else {
            return exec.over(Outcome::Unknown);
        };
        self.cells.set(self.cells.get() + 1);
        self.running.replace(Some(Rc::clone(exec)));
        exec.belong(process.group());
        self.tell(exec);
        exec.prepare(BEGIN_WITHIN + Duration::from_millis(job.code.install_ms.unwrap_or(limits::INSTALL_MS)));
        let outcome = match self.follow(exec, process, &running, job).await {
            TurnEnd::Done(code) => Outcome::Exited { code },
            TurnEnd::Gone => {
                let ended = tokio::time::timeout(END_WITHIN, process.until_ended()).await;
                let outcome = ended.unwrap_or(Outcome::Unknown);
                sweep::kill(Whom::Group(process.group())).await;
                // Wait until the process has ended, so that the next cell starts a new process.
                let _ = tokio::time::timeout(END_WITHIN, process.until_ended()).await;
                exec.state_lost.set(true);
                if exec.is_struck() {
                    self.parent.processes().memory().tidy().await;
                }
                outcome
            }
        };
        exec.catch_up(&running.streams).await;
        self.running.replace(None);
        self.notice();
        exec.belong(NO_GROUP);
        exec.over(outcome);
    }

    /// Reports pending notices as results of a cell that is about to begin.
    fn tell(&self, exec: &GuestExec) {
        if let Some(because) = self.untold.take() {
            exec.show(&RunResult::Restarted { because });
        }
        if let Some(result) = self.early.take() {
            exec.show_raw(&result);
        }
        let [stdout, stderr] = self.late.take();
        if !stdout.is_empty() || !stderr.is_empty() {
            let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
            exec.show(&RunResult::Late { stdout: text(stdout), stderr: text(stderr) });
        }
    }

    async fn say(&self, channel: &Records, Job { spec, code }: &Job) -> std::io::Result<()> {
        if self.spec.language == Language::Bash {
            return channel.send_bytes(&shell::cell(&code.source, &spec.env), &[]).await;
        }
        let cell = CellSpec { number: self.cells.get(), env: &spec.env, run: RunSpec::of(code) };
        channel.write(&Tell::Cell(cell)).await
    }

    /// Waits until an interrupt that was sent just as a cell ended can no longer reach the next cell.
    async fn settle(&self, channel: &Records) {
        if self.spec.language != Language::Python {
            return;
        }
        let settled = async {
            channel.write(&Tell::Settle {}).await.ok()?;
            loop {
                let record = channel.read().await?;
                if let Some(CodeMessage::Settled(_)) = understand(&record.bytes) {
                    return Some(());
                }
            }
        };
        let _ = tokio::time::timeout(END_WITHIN, settled).await;
    }

    /// Follows a cell until it is done or its process is gone. If there is a reason to end the cell,
    /// interrupts the cell, and kills its process if the cell does not end. Neither messages from the cell
    /// nor their absence can delay this.
    async fn follow(
        &self,
        exec: &Rc<GuestExec>,
        process: &ContextProcess,
        running: &Running,
        job: &Job,
    ) -> TurnEnd {
        let heard = async {
            match self.say(&running.channel, job).await {
                Ok(()) => hear(exec, process, running).await,
                Err(_gone) => TurnEnd::Gone,
            }
        };
        tokio::pin!(heard);
        let mut since: Option<Instant> = None;
        let mut next = Instant::now();
        loop {
            let decided = async {
                match since {
                    Some(_) => tokio::time::sleep_until(next).await,
                    None => exec.until_decided().await,
                }
            };
            tokio::select! {
                biased;
                () = decided => {}
                turn = &mut heard => {
                    if since.is_some() {
                        self.settle(&running.channel).await;
                    }
                    return turn;
                }
            }
            let since = *since.get_or_insert_with(Instant::now);
            let oom = exec.reason() == Some(Outcome::Oom);
            if oom || since.elapsed() >= KILL_AFTER {
                self.ending.set(if oom { None } else { Some(Loss::Killed) });
                sweep::kill(Whom::Group(process.group())).await;
                return TurnEnd::Gone;
            }
            if let Some(pid) = process.pid() {
                let _ = kill_process_group(pid, Signal::INT);
            }
            next = (Instant::now() + INTERRUPT_EVERY).min(since + KILL_AFTER);
        }
    }
}

/// Handles the messages of a cell until it reports that it is done.
async fn hear(exec: &Rc<GuestExec>, process: &ContextProcess, running: &Running) -> TurnEnd {
    loop {
        let record = tokio::select! {
            biased;
            record = running.channel.read() => record,
            _ = process.until_ended() => None,
        };
        let Some(record) = record else { return TurnEnd::Gone };
        match understand(&record.bytes) {
            Some(CodeMessage::Begun(_)) => exec.clock(),
            Some(CodeMessage::Result(result)) => {
                shown(exec, &running.streams, result, record.patience(), &running.channel).await;
            }
            Some(CodeMessage::Done(CellEnd { code })) => return TurnEnd::Done(code),
            // Ignore all other messages: they can affect only the cell that sent them.
            Some(CodeMessage::Refused(_) | CodeMessage::Variables(_) | CodeMessage::Settled(_)) | None => {}
        }
    }
}
