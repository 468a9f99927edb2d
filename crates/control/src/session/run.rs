//! A run: one tool call, from its turn in the queue to its response. The run is recorded when it begins, if it
//! can be repeated, and when it ends.

use std::sync::Arc;
use std::time::Duration;

use api::exec::{ExecSpec, Outcome};
use api::session::{Persistence, Run, RunState, Session, SessionEvent, ToolSet};
use api::{Error, ErrorCode, ExecId, Layer, Ran as DidRun, Retry};
use node::{Event, clock};
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tools::EndedExec;
use tracing::Instrument as _;

use super::Live;
use super::exec::{FinishedExec, KeptOutput, RunExec};
use super::flight::{Landing, asked_to_end};
use super::history::{StoredRun, without_pictures};
use super::queue::{QueuePermit, QueuePosition, TurnState};
use super::sandbox::Used;
use super::tool::{ValidatedCall, shaped};
use crate::account::Account;
use crate::audit::Act;
use crate::fault::Answer;
use crate::platform::Platform;
use crate::trace;

/// Timeout for copying the files of a session into or out of a sandbox.
pub(super) const FILES_WITHIN: Duration = Duration::from_secs(120);

/// Executor of one run.
pub(super) struct Runner {
    pub platform: Arc<Platform>,
    pub account: Arc<Account>,
    pub live: Arc<Live>,
    pub session: Session,
    pub run: Run,
    /// Hash of the call.
    pub call: String,
    pub kept: [KeptOutput; 2],
    pub cancelled: watch::Receiver<bool>,
    /// True if the call has an idempotency key, so that a client can repeat it. The run is then recorded
    /// before it starts.
    pub keyed: bool,
}

impl Runner {
    /// Waits in the queue, performs the call, and records the result.
    pub(super) async fn fly(
        mut self,
        work: ValidatedCall,
        position: QueuePosition,
        waiting: QueuePermit,
    ) -> Landing {
        let (first, line) = position;
        let live = Arc::clone(&self.live);
        let mut turn = match first {
            Some(turn) => turn,
            None => tokio::select! {
                turn = line => turn,
                () = asked_to_end(&mut self.cancelled) => return shaped(&self.session, called_off()),
            },
        };
        drop(waiting);
        let begun = Instant::now();
        self.run.started_at_ms = clock::wall_ms();
        live.say(SessionEvent::RunStarted { run: Box::new(self.run.clone()) });
        let worked = self.work(work, &mut turn).await;
        let not_begun = worked.as_ref().is_err_and(|fault| fault.error().ran == DidRun::No);
        let landing = match worked {
            Ok(told) => Ok(told),
            Err(fault) => shaped(&self.session, fault.error().clone()),
        };
        self.run.state = RunState::Ended;
        self.run.duration_ms = clock::millis(begun.elapsed());
        self.run.result = landing.as_ref().ok().map(|told| without_pictures(&told.text));
        let failed = landing.as_ref().map_or(true, |told| told.failed);
        // If the code of the call did not run, forget the run, so that the client can repeat the call.
        let written = if not_begun {
            live.forget_run(&self.platform, &self.run.id).await
        } else {
            self.write_down(failed).await
        };
        if let Err(fault) = written {
            tracing::warn!(
                session = %live.id,
                error = fault.error().message,
                "cannot record a run of the session"
            );
        }
        live.say(SessionEvent::RunEnded { run: Box::new(self.run.clone()) });
        landing
    }

    /// Records the run.
    pub(super) async fn write_down(&self, failed: bool) -> Answer<()> {
        let (run, call, kept) = (self.run.clone(), self.call.clone(), self.kept.clone());
        self.live.store_run(&self.platform, &StoredRun { run, call, failed, kept }).await
    }

    /// Returns the sandbox of the session, after all earlier runs in it have ended.
    pub(super) async fn sandbox(&mut self, turn: &mut TurnState) -> Answer<Used> {
        let used = match self.live.sandbox(&self.platform, &self.account).await {
            // The sandbox of the previous run may still be stopping. Until it has stopped, it counts against
            // the quota.
            Err(fault) if fault.error().code == ErrorCode::QuotaExceeded && turn.leaving.is_some() => {
                if let Some(leaving) = turn.leaving.take() {
                    let _ = leaving.await;
                }
                self.live.sandbox(&self.platform, &self.account).await?
            }
            used => used?,
        };
        self.run.sandbox = Some(used.id.clone());
        if turn.of.as_ref() != Some(&used.id) {
            (turn.of, turn.kept) = (Some(used.id.clone()), Default::default());
            if !used.fresh {
                self.alone(&used).await?;
            }
        }
        if self.keyed {
            self.write_down(true).await?;
        }
        Ok(used)
    }

    /// Waits for execs that were started before the server restarted and are still running, because the runs
    /// of a session must never overlap (requirement A3.04).
    async fn alone(&mut self, used: &Used) -> Answer<()> {
        let own = [self.run.id.clone(), beside(&self.run.id, "install")];
        for info in used.call.execs().await? {
            if info.outcome.is_some() || own.contains(&info.id) || info.deadline_ms.is_none() {
                continue;
            }
            let mut exec = used.call.exec_reader(info.id);
            loop {
                tokio::select! {
                    event = exec.next() => {
                        if matches!(event?, Some(Event::End(_)) | None) {
                            break;
                        }
                    }
                    () = asked_to_end(&mut self.cancelled) => return Err(called_off().into()),
                }
            }
        }
        Ok(())
    }

    /// Detaches a sandbox that was created only for this run, or that is unusable, and stops it in the
    /// background.
    pub(super) async fn leave(&self, turn: &mut TurnState, used: &Used) {
        let mut record = self.live.record.lock().await;
        if record.session.sandbox.as_ref() != Some(&used.id) {
            return;
        }
        self.live.spend(&mut record);
        if let Err(fault) = self.live.save(&self.platform, &record).await {
            tracing::warn!(
                session = %self.session.id,
                error = fault.error().message,
                "cannot record that the session released its sandbox"
            );
        }
        let (platform, account, id) =
            (Arc::clone(&self.platform), Arc::clone(&self.account), used.id.clone());
        turn.leaving = Some(tokio::spawn(async move {
            let stopping = async {
                trace::about(&id);
                platform.stop(&account, id.as_str()).await
            };
            if let Err(fault) = stopping.instrument(trace::stop()).await {
                tracing::warn!(
                    sandbox = %id,
                    error = fault.error().message,
                    "cannot stop the sandbox of a finished run"
                );
            }
        }));
    }

    /// Runs an exec and records its result in the run. If `told` is false, does not publish the output, and
    /// records the result only if the exec failed.
    pub(super) async fn exec(
        &mut self,
        used: &Used,
        id: &ExecId,
        told: bool,
        spec: ExecSpec,
        timeout_seconds: f64,
    ) -> Answer<EndedExec> {
        self.platform.note(&self.account, Act::Exec, |entry| entry.sandbox(&used.id).exec(id).command(&spec));
        let memory_bytes = self.session.memory_bytes();
        let (live, call, run) = (&self.live, &used.call, &self.run.id);
        let order = RunExec { live, call, run, told, timeout_seconds, memory_bytes };
        let span = trace::exec();
        span.in_scope(|| trace::about_exec(&used.id, id));
        let FinishedExec { ran, kept, gaps: [stdout_gap, stderr_gap] } =
            order.exec(id, spec, &mut self.cancelled).instrument(span).await?;
        if told || ran.outcome != (Outcome::Exited { code: 0 }) {
            self.kept = kept;
            self.run.outcome = Some(ran.outcome.clone());
            (self.run.stdout_bytes, self.run.stderr_bytes) = (ran.stdout.total(), ran.stderr.total());
            (self.run.stdout_gap, self.run.stderr_gap) = (stdout_gap, stderr_gap);
        }
        Ok(ran)
    }

    /// Copies the session's stored files into the sandbox. If that fails, the sandbox is unusable.
    pub(super) async fn give(&self, used: &Used) -> Answer<()> {
        let manifest = self.live.folder.manifest().await?;
        let given = timeout(FILES_WITHIN, self.live.folder.give(&manifest, &used.call)).await;
        let late = || node::Error::Deadline {
            what: "copying the session's files into the sandbox",
            after: FILES_WITHIN,
        };
        Ok(given.unwrap_or_else(|_| Err(late()))?)
    }

    /// Returns true if the files in `/workspace` belong to the session and outlive its sandboxes.
    pub(super) fn keeps_workspace(&self) -> bool {
        self.session.set == ToolSet::Interpreter || self.session.persistence == Persistence::Run
    }
}

/// Returns the ID for an additional exec of a run. The same `run` and `what` always yield the same ID.
pub(super) fn beside(run: &ExecId, what: &str) -> ExecId {
    let hash = Sha256::digest(format!("{run} {what}"));
    ExecId::from_random(hash.first_chunk::<16>().copied().unwrap_or_default())
}

fn called_off() -> Error {
    Error {
        code: ErrorCode::Conflict,
        message: "the call was cancelled while it was queued".into(),
        layer: Layer::UserCode,
        ran: DidRun::No,
        retry: Retry::Safe,
        fix: "Call again.".into(),
    }
}
