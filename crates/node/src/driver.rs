//! One task for each sandbox. It alone moves the sandbox from one phase to the next.
//!
//! Other tasks send it a [`DriverMessage`] and read the record that it publishes. [`crate::lifecycle`] decides; this module executes the
//! effects: it waits for the start, the end of process 1, the time to live and the idle time, and removes the sandbox.

mod pause;

use std::sync::Arc;
use std::time::Duration;

use api::exec::LostCause;
use api::sandbox::{EndReason, SandboxEvent, SandboxState};
use api::trace::STEP;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument as _, Span, info_span};

use crate::clock;
use crate::datasets::Placed;
use crate::entry::Entry;
use crate::error::Error;
use crate::lifecycle::{Effect, Event, Phase, next};
use crate::live::Shared;
use crate::pool::Making;
use crate::ready::Readiness;
use crate::sandbox::Sandbox;
use pause::Reply;
pub(crate) use pause::{ResumeRequest, pausing};

/// Between two tries to remove what could not be removed.
const TEAR_DOWN_AGAIN: Duration = Duration::from_secs(1);
/// The longest sleep: the machine may have slept meanwhile, which only another clock tells.
const SLEEP_MAX: Duration = Duration::from_secs(10);
/// People are warned this long before an idle sandbox is stopped, or a fifth of its idle time before.
const WARN_MAX: Duration = Duration::from_secs(60);
/// How long after its deadline and grace an exec may go on before its sandbox is ended from outside.
pub(crate) const OVERDUE_MS: u64 = 2000;
/// When a guest did not answer, it is asked again after this.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How long a start waits for its turn.
const TURN_WITHIN: Duration = Duration::from_secs(120);

/// A message to the driver of a sandbox.
pub(crate) enum DriverMessage {
    /// The sandbox is to end.
    End(EndReason),
    /// The sandbox is to be paused.
    Pause(Reply),
    /// The sandbox is to be resumed.
    Resume(ResumeRequest),
    /// The idle time is another one, or an exec with a deadline was started: look again when to wake.
    Look,
}

/// Where a driver begins.
pub(crate) enum Beginning {
    /// The sandbox is to be made.
    Start(For),
    /// It runs, was made by a process that is gone, and is in our hand now.
    Adopt,
    /// What is left of it is to be removed.
    End(EndReason),
}

/// What a sandbox is to have before it runs.
pub(crate) struct Wanted {
    /// Files that are in it.
    pub datasets: Vec<Placed>,
    /// What has to be so for it to count as started.
    pub readiness: Readiness,
    /// The request that waits for it.
    pub request: Span,
}

/// The task that lets out what may leave.
type Attendant = AbortOnDropHandle<()>;

/// Whom a sandbox is made for.
pub(crate) enum For {
    /// Somebody who waits for it.
    Somebody(Wanted),
    /// Whoever claims it: it is made ahead.
    Anybody(Making),
}

/// The task of one sandbox.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    entry: Arc<Entry>,
    inbox: mpsc::Receiver<DriverMessage>,
    /// The start, while it is in progress.
    start: Option<Start>,
    /// Serves the sandbox's outgoing connections from its start on, if its template needs that to become ready.
    attendant: Option<Attendant>,
    /// The error with which the start failed, for the record.
    error: Option<api::Error>,
    /// Tells the guest how long it lives, after that changed.
    telling: Option<AbortOnDropHandle<()>>,
    /// Whether the processes of a paused sandbox are known to be frozen.
    frozen: bool,
    /// Those who wait for the pause.
    pause_replies: Vec<Reply>,
    /// The request to resume that is being executed.
    resume_request: Option<ResumeRequest>,
    /// The request that caused the current phase. Its steps are reported in the trace of that request.
    request: Span,
}

/// A start in progress.
struct Start {
    task: JoinHandle<Result<Started, Error>>,
    /// Set when the result is no longer needed.
    unwanted: watch::Sender<bool>,
}

/// A sandbox that was created.
struct Started {
    sandbox: Arc<Sandbox>,
    attendant: Option<Attendant>,
    /// The request that waits for the sandbox.
    request: Span,
}

impl Driver {
    pub fn new(shared: Arc<Shared>, entry: Arc<Entry>, inbox: mpsc::Receiver<DriverMessage>) -> Self {
        let request = Span::none();
        Self {
            shared,
            entry,
            inbox,
            start: None,
            attendant: None,
            error: None,
            telling: None,
            frozen: false,
            pause_replies: Vec::new(),
            resume_request: None,
            request,
        }
    }

    /// Drives the sandbox through its life: executes each effect of [`next`], and enters the phase before the next effect. A server
    /// that is restarted therefore continues with the effect of the last journalled phase.
    pub async fn drive(mut self, beginning: Beginning) {
        let (mut phase, mut effect) = match beginning {
            Beginning::Start(whom) => {
                self.start = Some(self.begin_start(whom));
                (Phase::Starting { requested: None }, Effect::AwaitStart)
            }
            Beginning::Adopt => {
                self.take_over().await;
                match self.entry.state() == SandboxState::Paused {
                    true => (Phase::Paused, Effect::AwaitResume),
                    false => (Phase::Running, Effect::Watch),
                }
            }
            Beginning::End(reason) => {
                self.shared.enter(&self.entry, Phase::Stopping(reason), None);
                (Phase::Stopping(reason), Effect::TearDown)
            }
        };
        loop {
            let event = match effect {
                Effect::AwaitStart => self.await_start().await,
                Effect::AbandonStart => {
                    self.abandon_start();
                    self.await_start().await
                }
                Effect::Watch => self.watch().await,
                Effect::Pause => self.pause().await,
                Effect::AwaitResume => self.await_resume().await,
                Effect::Resume => self.resume().await,
                Effect::Settle => {
                    self.attendant = None;
                    self.shared.keeper.settle(self.entry.id()).await;
                    Event::Settled
                }
                Effect::TearDown => self.tear_down(phase).await,
                Effect::TearDownLater => {
                    tokio::time::sleep(TEAR_DOWN_AGAIN).await;
                    self.tear_down(phase).await
                }
                Effect::Finish => return,
            };
            let (after, following) = next(phase, event);
            self.enter(phase, after);
            (phase, effect) = (after, following);
        }
    }

    /// Enters a phase. Clients see a new state only after it is journalled.
    fn enter(&mut self, before: Phase, after: Phase) {
        let (is_stopping, was_stopping) =
            (matches!(after, Phase::Stopping(_)), matches!(before, Phase::Stopping(_)));
        if is_stopping && !was_stopping {
            self.request = self.entry.take_asker().unwrap_or_else(Span::none);
        }
        if let Phase::Ended(_) = after {
            self.entry.let_go();
            if self.entry.is_pooled() {
                // No client knows this sandbox, so no client acknowledges its end.
                self.shared.forget(self.entry.id());
            }
        }
        let shown = self.entry.shown();
        // A pause and a resume are journalled while they are executed, because they fail if the journal does.
        if (shown.state, shown.reason) != (after.state(), after.reason()) {
            let error = self.error.take();
            self.request.in_scope(|| self.shared.enter(&self.entry, after, error));
        }
    }

    /// Begins to create the sandbox.
    fn begin_start(&self, whom: For) -> Start {
        let (shared, entry) = (Arc::clone(&self.shared), Arc::clone(&self.entry));
        let (sender, unwanted) = watch::channel(false);
        let task = tokio::spawn(async move {
            let (sandbox, wanted) = match whom {
                For::Somebody(wanted) => {
                    let request = wanted.request.clone();
                    (in_turn(&shared, &entry).instrument(request).await?, wanted)
                }
                For::Anybody(making) => shared.hold_ready(&entry, making, unwanted.clone()).await?,
            };
            let request = wanted.request.clone();
            let (sandbox, attendant) =
                furnish(&shared, &entry, sandbox, (wanted, unwanted)).instrument(request.clone()).await?;
            Ok(Started { sandbox, attendant, request })
        });
        Start { task, unwanted: sender }
    }

    fn abandon_start(&self) {
        if let Some(start) = &self.start {
            start.unwanted.send_replace(true);
        }
    }

    /// Waits for the end of the start, or for a request to stop.
    async fn await_start(&mut self) -> Event {
        let Some(start) = &mut self.start else { return Event::StartFailed };
        let result = loop {
            tokio::select! {
                result = &mut start.task => break result,
                Some(word) = self.inbox.recv() => {
                    // A dropped reply tells a client that pauses or resumes the sandbox that it does not run.
                    if let DriverMessage::End(reason) = word {
                        return Event::Requested(reason);
                    }
                }
            }
        };
        self.start = None;
        let error = match result {
            Ok(Ok(started)) => {
                self.entry.hold(started.sandbox);
                // Time spent waiting for the start does not count as idle time.
                self.entry.active(Instant::now());
                self.attendant = started.attendant;
                self.request = started.request;
                return Event::Started;
            }
            Ok(Err(error)) => error,
            Err(source) => Error::System { act: "start a sandbox".into(), source: source.into() },
        };
        if !self.entry.is_pooled() {
            let told = error.to_api();
            if [api::ErrorCode::Platform, api::ErrorCode::TierUnavailable].contains(&told.code) {
                tracing::error!(sandbox = %self.entry.id(), error = told.message, "cannot start sandbox");
            }
            let act = format!("start sandbox {}", self.entry.id());
            self.error = Some(crate::error::discreet_start(&error, &act));
        }
        Event::StartFailed
    }

    /// Waits for the end of process 1, for a request to stop or to pause, or for a limit. Meanwhile serves the outgoing connections.
    async fn watch(&mut self) -> Event {
        let Some(sandbox) = self.entry.sandbox() else { return Event::Exited(EndReason::Died) };
        if self.attendant.is_none() {
            self.attendant = Some(attended(&self.shared, &self.entry, &sandbox));
        }
        if self.telling.is_none() && self.entry.pauses_on_timeout() {
            self.tell_lifetime(&sandbox);
        }
        let mut warned = false;
        loop {
            let wake = self.wake(&mut warned);
            let message = tokio::select! {
                cause = sandbox.ended() => return Event::Exited(self.why(cause)),
                message = self.inbox.recv() => message,
                () = tokio::time::sleep_until(wake) => match self.look(&sandbox).await {
                    Looked::Reason(reason) => return self.timeout(reason),
                    Looked::Nothing if !self.pause_replies.is_empty() => {
                        return Event::PauseRequested { otherwise: None };
                    }
                    Looked::Nothing => continue,
                    Looked::Message(message) => Some(message),
                },
            };
            match message {
                Some(DriverMessage::End(reason)) => return Event::Requested(reason),
                Some(DriverMessage::Pause(asked)) => {
                    self.pause_replies.push(asked);
                    return Event::PauseRequested { otherwise: None };
                }
                Some(DriverMessage::Resume(request)) => drop(request.reply.send(Ok(false))),
                Some(DriverMessage::Look) => {}
                // The node is gone: so will this task be.
                None => std::future::pending().await,
            }
        }
    }

    /// Looks whether a limit wants the end now. A guest that does not answer must not keep anybody from ending its sandbox; a pause
    /// waits, because what a look has found would be lost.
    async fn look(&mut self, sandbox: &Sandbox) -> Looked {
        let looking = look(&self.entry, sandbox);
        tokio::pin!(looking);
        loop {
            tokio::select! {
                reason = &mut looking => return match reason {
                    Some(reason) => Looked::Reason(reason),
                    None => Looked::Nothing,
                },
                message = self.inbox.recv() => match message {
                    Some(DriverMessage::Pause(asked)) => self.pause_replies.push(asked),
                    Some(DriverMessage::Resume(request)) => drop(request.reply.send(Ok(false))),
                    Some(DriverMessage::Look) => {}
                    Some(message @ DriverMessage::End(_)) => return Looked::Message(message),
                    // The node is gone: so will this task be.
                    None => std::future::pending().await,
                },
            }
        }
    }

    /// What a limit does to the sandbox.
    fn timeout(&self, reason: EndReason) -> Event {
        let is_timeout = matches!(reason, EndReason::Idle | EndReason::Expired);
        match is_timeout && self.entry.pauses_on_timeout() {
            true => Event::PauseRequested { otherwise: Some(reason) },
            false => Event::Requested(reason),
        }
    }

    /// When to look next, at the latest. Warns when an end is near.
    fn wake(&self, warned: &mut bool) -> Instant {
        let now = Instant::now();
        let left = self.entry.left();
        let idle = self.entry.idle_left(now);
        let near = WARN_MAX.min(self.entry.idle() / 5);
        if idle > near {
            *warned = false;
        } else if !*warned {
            *warned = true;
            self.shared.say(SandboxEvent::Expiring {
                sandbox: self.entry.id().clone(),
                reason: EndReason::Idle,
                in_ms: clock::millis(idle),
            });
        }
        let to_warning = if *warned { idle } else { idle - near };
        let look = self.entry.next_look().map_or(SLEEP_MAX, |at| at.saturating_duration_since(now));
        now + left.min(to_warning).min(look).min(SLEEP_MAX)
    }

    /// Why a sandbox ended whose process 1 is gone.
    fn why(&self, cause: LostCause) -> EndReason {
        match cause {
            // Who was not its parent cannot tell how it exited.
            LostCause::Died | LostCause::Expired if clock::boot_ms() >= self.entry.expires_boot_ms() => {
                EndReason::Expired
            }
            LostCause::Died => EndReason::Died,
            LostCause::Expired => EndReason::Expired,
            LostCause::Oom => EndReason::Oom,
            LostCause::Stopped => EndReason::Stopped,
            LostCause::KernelResource => EndReason::KernelResource,
        }
    }

    /// Removes the sandbox, in the trace of the request that stopped it.
    async fn tear_down(&mut self, phase: Phase) -> Event {
        (self.attendant, self.telling) = (None, None);
        self.pause_replies.clear();
        if let (Some(sandbox), Some(reason)) = (self.entry.sandbox(), phase.reason()) {
            sandbox.link().stopping(lost_by(reason));
        }
        let stop = async {
            let runtime = self.shared.runtime_of(&self.entry)?;
            runtime.stop(self.entry.id(), Duration::ZERO).await.map_err(Error::from)
        };
        match stop.instrument(self.request.clone()).await {
            Ok(()) => Event::Removed,
            Err(error) => {
                tracing::warn!(sandbox = %self.entry.id(), error = crate::error::chain(&error), "cannot remove sandbox; retrying");
                Event::NotRemoved
            }
        }
    }
}

/// Whether a limit wants the end now.
async fn look(entry: &Entry, sandbox: &Sandbox) -> Option<EndReason> {
    if clock::boot_ms() >= entry.expires_boot_ms() {
        return Some(EndReason::Expired);
    }
    let now = Instant::now();
    let overdue = entry.take_look(now)?;
    let execs = match sandbox.execs().await {
        Ok(execs) => execs,
        // Why it ended is told by its process 1.
        Err(Error::Lost(_)) => return None,
        Err(_) => {
            // A guest that does not answer cannot keep a deadline that is over. Else it may only be slow to dial again.
            entry.look_at(Instant::now() + LOOK_AGAIN);
            return overdue.then_some(EndReason::Overdue);
        }
    };
    let of_template = crate::ready::started();
    for exec in execs.iter().filter(|exec| exec.id != of_template) {
        if let Some(since) = exec.ended_ms_ago {
            entry.active(now.checked_sub(Duration::from_millis(since)).unwrap_or(now));
        } else if exec.outcome.is_none() {
            entry.active(now);
            let whole = exec.deadline_ms.map(|deadline| deadline + exec.grace_ms + OVERDUE_MS);
            match whole.map(|whole| whole.saturating_sub(exec.duration_ms)) {
                Some(0) => {
                    sandbox.link().overdue(&exec.id);
                    return Some(EndReason::Overdue);
                }
                Some(left) => entry.due_at(now + Duration::from_millis(left)),
                None => {}
            }
        }
    }
    entry.idle_left(now).is_zero().then_some(EndReason::Idle)
}

/// Makes a sandbox when its turn has come.
async fn in_turn(shared: &Shared, entry: &Entry) -> Result<Sandbox, Error> {
    let project = entry.shown().project;
    let turn = tokio::time::timeout(TURN_WITHIN, shared.turns.turn(&project));
    let turn = turn.instrument(info_span!(target: STEP, "turn")).await;
    // What takes longer than a start does not keep others from theirs.
    let _turn =
        turn.map_err(|_| Error::Deadline { what: "waiting to start the sandbox", after: TURN_WITHIN })?;
    shared.start(entry).await
}

/// Puts into a sandbox what it is to have before it runs.
async fn furnish(
    shared: &Arc<Shared>,
    entry: &Arc<Entry>,
    sandbox: Sandbox,
    (wanted, unwanted): (Wanted, watch::Receiver<bool>),
) -> Result<(Arc<Sandbox>, Option<Attendant>), Error> {
    let disk = entry.shown().limits.disk_bytes;
    let putting = shared.datasets.put_in(sandbox, disk, &wanted.datasets, unwanted.clone());
    let sandbox = match wanted.datasets.is_empty() {
        true => putting.await?,
        false => putting.instrument(info_span!(target: STEP, "datasets")).await?,
    };
    bring_about(shared, entry, sandbox, &wanted.readiness, unwanted).await
}

/// Has what the template starts running and ready, with a way out. Of a sandbox in which that cannot be nothing is left; one that
/// nobody wants any more is given back at once.
async fn bring_about(
    shared: &Arc<Shared>,
    entry: &Arc<Entry>,
    sandbox: Sandbox,
    readiness: &Readiness,
    mut unwanted: watch::Receiver<bool>,
) -> Result<(Arc<Sandbox>, Option<Attendant>), Error> {
    let sandbox = Arc::new(sandbox);
    if readiness.is_empty() {
        return Ok((sandbox, None));
    }
    let policy = entry.policy().borrow().clone();
    let attendant = attended(shared, entry, &sandbox);
    let bringing = async {
        if !policy.secrets.is_empty() {
            entry.trust(&sandbox).await?;
        }
        readiness.bring_about(&sandbox, &policy).await
    };
    let bringing = bringing.instrument(info_span!(target: STEP, "ready"));
    let brought = tokio::select! {
        brought = bringing => brought,
        Ok(_) = unwanted.wait_for(|unwanted| *unwanted) => Ok(()),
    };
    match brought {
        Ok(()) => Ok((sandbox, Some(attendant))),
        Err(error) => {
            sandbox.stop(Duration::ZERO).await?;
            Err(error)
        }
    }
}

/// Has what leaves a sandbox attended to.
fn attended(shared: &Arc<Shared>, entry: &Arc<Entry>, sandbox: &Arc<Sandbox>) -> Attendant {
    let attending = Arc::clone(shared).attend_egress(Arc::clone(entry), Arc::clone(sandbox));
    AbortOnDropHandle::new(tokio::spawn(attending))
}

/// What a look at the limits of a sandbox found.
enum Looked {
    /// A reason to end the sandbox.
    Reason(EndReason),
    /// Somebody asked for something meanwhile.
    Message(DriverMessage),
    Nothing,
}

/// What the readers of its execs are told.
fn lost_by(reason: EndReason) -> LostCause {
    match reason {
        EndReason::Expired => LostCause::Expired,
        EndReason::Oom => LostCause::Oom,
        EndReason::KernelResource => LostCause::KernelResource,
        EndReason::Died
        | EndReason::HostReboot
        | EndReason::Interrupted
        | EndReason::StartFailed
        | EndReason::RecordDamaged => LostCause::Died,
        EndReason::Stopped | EndReason::Idle | EndReason::Overdue => LostCause::Stopped,
    }
}
