//! A run: one tool call, from its turn in the queue to its response, and its stored record.

use std::collections::hash_map::Entry;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use api::exec::{ExecSpec, Outcome};
use api::session::{Persistence, Run, RunState, Session, SessionEvent, ToolSet};
use api::{Error, ErrorCode, ExecId, Layer, Ran as DidRun, Retry};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use node::{Event, clock};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::{OwnedMutexGuard, watch};
use tokio::time::{Instant, timeout};
use tools::EndedExec;
use tracing::Instrument as _;

use super::exec::{FinishedExec, KeptOutput, RunExec};
use super::files::whole;
use super::flight::{Flight, Landing, ToolReply, another_call, asked_to_end};
use super::sandbox::Used;
use super::tool::{ValidatedCall, checked, shaped};
use super::{Live, QueuePermit, RUNS_MAX, ToolRequest, TurnState, check_open, locked};
use crate::account::Account;
use crate::audit::Act;
use crate::fault::Answer;
use crate::platform::Platform;
use crate::trace;

/// Timeout for copying the files of a session into or out of a sandbox.
pub(super) const FILES_WITHIN: Duration = Duration::from_secs(120);

/// Stored form of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct StoredRun {
    run: Run,
    /// Hash of the call. A different call with the same ID is a conflict.
    call: String,
    failed: bool,
    kept: [KeptOutput; 2],
}

/// Executor of one run.
pub(super) struct Runner {
    pub platform: Arc<Platform>,
    pub account: Arc<Account>,
    pub live: Arc<Live>,
    pub session: Session,
    pub run: Run,
    call: String,
    pub kept: [KeptOutput; 2],
    pub cancelled: watch::Receiver<bool>,
    /// True if the call has an idempotency key, so that a client can repeat it. The run is then recorded
    /// before it starts.
    keyed: bool,
}

/// Position in the queue, assigned when the call arrived. It contains the lock's guard if the lock was free.
/// Otherwise, the future acquires the lock.
type QueuePosition =
    (Option<OwnedMutexGuard<TurnState>>, Pin<Box<dyn Future<Output = OwnedMutexGuard<TurnState>> + Send>>);

/// Guard for the task of a call. If the task ends without a result, the guard reports an error to the waiting
/// callers.
struct Aloft {
    live: Arc<Live>,
    id: ExecId,
    flight: Arc<Flight>,
}

impl Live {
    /// Starts a tool call, or returns the call that an earlier identical request started.
    ///
    /// # Errors
    /// Returns an error if the tool does not exist, the idempotency key was used for a different call, or the
    /// call failed and its tool set has no format for errors.
    pub async fn call(
        self: &Arc<Self>,
        platform: &Arc<Platform>,
        account: &Arc<Account>,
        request: ToolRequest<'_>,
    ) -> Answer<Arc<Flight>> {
        let session = self.shown().await;
        let begun = self.begin(platform, account, &session, request).await;
        match begun {
            Ok(flight) => Ok(flight),
            // An unknown tool and a conflicting key are errors of the request, not responses of a tool.
            Err(error) if [ErrorCode::NotFound, ErrorCode::Conflict].contains(&error.code) => {
                Err(error.into())
            }
            Err(error) => Ok(Flight::landed(Ok(shaped(&session, error)?))),
        }
    }

    async fn begin(
        self: &Arc<Self>,
        platform: &Arc<Platform>,
        account: &Arc<Account>,
        session: &Session,
        request: ToolRequest<'_>,
    ) -> Result<Arc<Flight>, Error> {
        check_open(session)?;
        let ToolRequest { tool, body, id, keyed } = request;
        let hash = crate::audit::hex(&Sha256::digest(format!("{tool} {body}")));
        let call = tools::Call::read(tool, body)?;
        let work = match checked(session, tool, &call)? {
            Ok(work) => work,
            Err(told) => return Ok(Flight::landed(Ok(told))),
        };
        if let Some(known) = self.known(session, &id, keyed, &hash).await? {
            return Ok(known);
        }
        let waiting = self.wait()?;
        let flight = match locked(&self.flights).entry(id.clone()) {
            Entry::Occupied(known) => {
                known.get().check(&hash)?;
                return Ok(Arc::clone(known.get()));
            }
            Entry::Vacant(place) => Arc::clone(place.insert(Arc::new(Flight::of(&hash)))),
        };
        let aloft = Aloft { live: Arc::clone(self), id: id.clone(), flight: Arc::clone(&flight) };
        let run = Run {
            id,
            tool: tool.to_owned(),
            reasoning_trace: call.reasoning_trace,
            state: RunState::Running,
            sandbox: None,
            outcome: None,
            stdout_bytes: 0,
            stderr_bytes: 0,
            stdout_gap: None,
            stderr_gap: None,
            started_at_ms: 0,
            duration_ms: 0,
            result: None,
        };
        let runner = Runner {
            platform: Arc::clone(platform),
            account: Arc::clone(account),
            live: Arc::clone(self),
            session: session.clone(),
            run,
            call: hash,
            kept: Default::default(),
            cancelled: flight.cancelled(),
            keyed,
        };
        let line = self.line().await;
        tokio::spawn(async move {
            let landing = runner.fly(work, line, waiting).await;
            aloft.flight.land(landing);
        });
        Ok(flight)
    }

    /// Joins the queue of runs. Calls run in order of arrival, regardless of the order in which their tasks
    /// are scheduled (requirement A3.04).
    async fn line(&self) -> QueuePosition {
        let mut turn: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(Arc::clone(&self.turn).lock_owned());
        match poll_fn(|context| Poll::Ready(turn.as_mut().poll(context))).await {
            Poll::Ready(guard) => (Some(guard), turn),
            Poll::Pending => (None, turn),
        }
    }

    /// Returns the stored runs, oldest first.
    ///
    /// # Errors
    /// Returns an error if a file system operation fails.
    pub async fn runs(&self) -> Result<Vec<Run>, node::Error> {
        let ids = self.record.lock().await.runs.clone();
        let mut runs = Vec::with_capacity(ids.len());
        for id in ids {
            runs.extend(self.run(&id).await?);
        }
        Ok(runs)
    }

    /// Returns a stored run.
    ///
    /// # Errors
    /// Returns an error if a file system operation fails.
    pub async fn run(&self, id: &ExecId) -> Result<Option<Run>, node::Error> {
        Ok(self.written(id).await?.map(|written| written.run))
    }

    /// Returns a run's output on one stream, beginning at an offset (requirement A3.02). A stream may have a
    /// gap, which was not stored. For an offset before the gap, returns the output up to the gap; otherwise,
    /// the output after the gap.
    ///
    /// # Errors
    /// Returns an error if a file system operation fails.
    pub async fn run_output(
        &self,
        id: &ExecId,
        stderr: bool,
        offset: u64,
    ) -> Result<Option<Vec<u8>>, node::Error> {
        let Some(StoredRun { run, kept: [stdout, errors], .. }) = self.written(id).await? else {
            return Ok(None);
        };
        let (kept, name, gap) =
            if stderr { (errors, "stderr", run.stderr_gap) } else { (stdout, "stdout", run.stdout_gap) };
        let Some(bytes) = self.kept_output(id, name, &kept).await? else { return Ok(None) };
        let (from, to) = within(offset, bytes.len() as u64, gap);
        let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
        Ok(Some(bytes.get(place(from)..place(to)).unwrap_or_default().to_vec()))
    }

    /// Returns all stored output of one stream of a run.
    pub(super) async fn kept_output(
        &self,
        id: &ExecId,
        name: &str,
        kept: &KeptOutput,
    ) -> Result<Option<Vec<u8>>, node::Error> {
        Ok(match kept {
            KeptOutput::Nothing => None,
            KeptOutput::Small(text) => STANDARD.decode(text).ok(),
            KeptOutput::Large => match self.folder.read(&["runs", id.as_str(), name]).await? {
                Some(outgoing) => Some(whole(outgoing).await?),
                None => None,
            },
        })
    }

    async fn written(&self, id: &ExecId) -> Result<Option<StoredRun>, node::Error> {
        self.folder.json(&["runs", id.as_str(), "record"]).await
    }

    /// Returns the call that an earlier identical request started, whether it is still in progress or has
    /// ended.
    async fn known(
        &self,
        session: &Session,
        id: &ExecId,
        keyed: bool,
        hash: &str,
    ) -> Result<Option<Arc<Flight>>, Error> {
        if let Some(flight) = locked(&self.flights).get(id).map(Arc::clone) {
            flight.check(hash)?;
            return Ok(Some(flight));
        }
        if !keyed {
            return Ok(None);
        }
        let written =
            self.written(id).await.map_err(|error| crate::fault::Fault::from(error).error().clone())?;
        let Some(StoredRun { run, call, failed, .. }) = written else { return Ok(None) };
        if call != hash {
            return Err(another_call());
        }
        if let (RunState::Ended, Some(mut result)) = (run.state, run.result) {
            self.put_pictures_back(&mut result).await;
            let told = ToolReply { text: result.to_string(), failed, artifacts: Vec::new() };
            return Ok(Some(Flight::landed(Ok(told))));
        }
        // The server was killed during the run. If the session still has the same sandbox, the new call finds
        // the exec there by its ID. In a different sandbox, it would run the code a second time.
        let same = session.persistence == Persistence::Session && run.sandbox == session.sandbox;
        if same || run.sandbox.is_none() {
            return Ok(None);
        }
        Err(Error {
            code: ErrorCode::SandboxLost,
            message: format!("run {id} was in progress when the server stopped, and its sandbox is gone"),
            layer: Layer::Platform,
            ran: DidRun::Unknown,
            retry: Retry::Unknown,
            fix: "Check what the run changed, then call again with another idempotency key.".into(),
        })
    }
}

impl Drop for Aloft {
    fn drop(&mut self) {
        self.flight.land_unless_landed(Err(Error {
            code: ErrorCode::Platform,
            message: "the call ended without a result".into(),
            layer: Layer::Platform,
            ran: DidRun::Unknown,
            retry: Retry::Unknown,
            fix: "Check the runs of the session, then call again.".into(),
        }));
        locked(&self.live.flights).remove(&self.id);
    }
}

impl Runner {
    /// Waits in the queue, performs the call, and records the result.
    async fn fly(mut self, work: ValidatedCall, position: QueuePosition, waiting: QueuePermit) -> Landing {
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
        let written = if not_begun { self.forget().await } else { self.write_down(failed).await };
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

    /// Records the run, and deletes the oldest one if there are too many.
    pub(super) async fn write_down(&self, failed: bool) -> Answer<()> {
        let (run, call, kept) = (self.run.clone(), self.call.clone(), self.kept.clone());
        let folder = &self.live.folder;
        folder
            .put_json(&["runs", self.run.id.as_str(), "record"], &StoredRun { run, call, failed, kept })
            .await?;
        let mut record = self.live.record.lock().await;
        if record.runs.contains(&self.run.id) {
            return Ok(());
        }
        record.runs.push_back(self.run.id.clone());
        if record.runs.len() > RUNS_MAX
            && let Some(oldest) = record.runs.pop_front()
        {
            folder.remove(&["runs", oldest.as_str()]).await?;
        }
        self.live.save(&self.platform, &record).await
    }

    async fn forget(&self) -> Answer<()> {
        let mut record = self.live.record.lock().await;
        if record.runs.contains(&self.run.id) {
            record.runs.retain(|id| *id != self.run.id);
            self.live.save(&self.platform, &record).await?;
        }
        Ok(self.live.folder.remove(&["runs", self.run.id.as_str()]).await?)
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

/// Converts an offset in the stream into a range of the stored bytes. For an offset before the gap, the range
/// ends at the gap. For any other offset, the range lies after the gap.
fn within(offset: u64, kept: u64, gap: Option<(u64, u64)>) -> (u64, u64) {
    match gap {
        Some((from, _)) if offset < from => (offset, from),
        Some((from, to)) => (offset.max(to) - to + from, kept),
        None => (offset, kept),
    }
}

/// Removes the content of pictures from a response before the response is stored. Pictures are large, and
/// they are already stored as files of the session.
fn without_pictures(text: &str) -> Value {
    let mut result: Value = serde_json::from_str(text).unwrap_or_default();
    for file in result.get_mut("files").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(file) = file.as_object_mut() {
            file.remove("base64");
        }
    }
    result
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_those_of_the_stream_whatever_was_not_kept() {
        // Requirement A3.02: of 25 bytes, 10 are stored; bytes 5 to 19 are missing.
        for (offset, expected) in
            [(0, (0, 5)), (4, (4, 5)), (5, (5, 10)), (12, (5, 10)), (20, (5, 10)), (23, (8, 10))]
        {
            assert_eq!(within(offset, 10, Some((5, 20))), expected, "{offset}");
        }
        assert_eq!(within(3, 10, None), (3, 10));
    }

    #[test]
    fn what_is_remembered_of_an_answer_has_no_pictures() {
        let text = r#"{"success":true,"files":[{"name":"a.png","base64":"AAAA"}]}"#;
        assert_eq!(without_pictures(text).to_string(), r#"{"files":[{"name":"a.png"}],"success":true}"#);
    }
}
