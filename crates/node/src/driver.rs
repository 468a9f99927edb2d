//! The driver: one task for each sandbox. Only this task moves the sandbox from one phase to the next.
//!
//! Other tasks send the driver a [`DriverMessage`], and read the record that it publishes.
//! [`crate::lifecycle`] decides on the effects of each event, and this module executes them: it waits until
//! startup finishes, process 1 exits, the time to live expires or the sandbox has been idle for too long, and
//! it removes the sandbox.

mod ahead;
mod egress;
mod pause;
mod start;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use api::exec::LostCause;
use api::sandbox::{EndReason, SandboxState};
use host::error::Error;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument as _, Span};

use crate::handle::Handle;
use crate::lifecycle::{Effect, Event, Phase, next};
use crate::message::{DriverMessage, PauseReply, ResumeRequest};
use crate::shared::NodeState;
use egress::Attendant;
pub(crate) use start::StartFor;
use start::StartTask;

/// Delay between two attempts to remove a sandbox.
const TEAR_DOWN_AGAIN: Duration = Duration::from_secs(1);
/// Maximum time to sleep between two checks. Timers stop while the machine is suspended, so the boot clock
/// must be read at least this often.
const SLEEP_MAX: Duration = Duration::from_secs(10);
/// Delay before an unresponsive guest is checked again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The first action of a driver.
pub(crate) enum Beginning {
    /// Create the sandbox.
    Start(StartFor),
    /// Take over a running or paused sandbox from an earlier server process.
    Adopt,
    /// Remove the remains of the sandbox.
    End(EndReason),
}

/// The task of one sandbox.
pub(crate) struct Driver {
    shared: Arc<NodeState>,
    handle: Arc<Handle>,
    inbox: mpsc::Receiver<DriverMessage>,
    /// The startup task, while startup is in progress.
    start: Option<StartTask>,
    /// The task that serves the sandbox's outgoing connections. It begins during startup if the template has
    /// `start` or `ready` commands, and otherwise once the sandbox is running.
    attendant: Option<Attendant>,
    /// The error that made startup fail, to be written to the record.
    error: Option<api::Error>,
    /// The background task that sends a changed time to live to the guest.
    telling: Option<AbortOnDropHandle<()>>,
    /// True if the processes of a paused sandbox are known to be frozen.
    frozen: bool,
    /// Replies to the requests that are waiting for the pause.
    pause_replies: Vec<PauseReply>,
    /// The request to resume that is being executed.
    resume_request: Option<ResumeRequest>,
    /// The request that caused the current phase. The steps of the phase are recorded in the trace of that
    /// request.
    request: Span,
}

impl Driver {
    pub fn new(shared: Arc<NodeState>, handle: Arc<Handle>, inbox: mpsc::Receiver<DriverMessage>) -> Self {
        let request = Span::none();
        Self {
            shared,
            handle,
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

    /// Drives the sandbox through its life: executes each effect that [`next`] returns, and enters the new
    /// phase before it executes the next effect. A restarted server therefore continues with the effect of
    /// the last journalled phase.
    pub async fn drive(mut self, beginning: Beginning) {
        let (mut phase, mut effect) = match beginning {
            Beginning::Start(whom) => {
                self.start = Some(self.begin_start(whom));
                (Phase::Starting { requested: None }, Effect::AwaitStart)
            }
            Beginning::Adopt => {
                self.take_over().await;
                match self.handle.state() == SandboxState::Paused {
                    true => (Phase::Paused, Effect::AwaitResume),
                    false => (Phase::Running, Effect::Watch),
                }
            }
            Beginning::End(reason) => {
                self.shared.enter(&self.handle, Phase::Stopping(reason), None);
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
                    self.shared.keeper.settle(self.handle.id()).await;
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

    /// Enters a phase. Clients see a new state only after it has been journalled.
    fn enter(&mut self, before: Phase, after: Phase) {
        let (is_stopping, was_stopping) =
            (matches!(after, Phase::Stopping(_)), matches!(before, Phase::Stopping(_)));
        if is_stopping && !was_stopping {
            self.request = self.handle.take_asker().unwrap_or_else(Span::none);
        }
        if let Phase::Ended(_) = after {
            self.handle.let_go();
            if self.handle.is_pooled() {
                // No client knows this sandbox, so no client acknowledges its end.
                self.shared.forget(self.handle.id());
            }
        }
        let shown = self.handle.shown();
        // A pause or resume is journalled while it is executed, because it must fail if journalling fails.
        // Only other changes of the state are journalled here.
        if (shown.state, shown.reason) != (after.state(), after.reason()) {
            let error = self.error.take();
            self.request.in_scope(|| self.shared.enter(&self.handle, after, error));
        }
    }

    /// Removes the sandbox. The steps are recorded in the trace of the request that stopped it.
    async fn tear_down(&mut self, phase: Phase) -> Event {
        (self.attendant, self.telling) = (None, None);
        self.pause_replies.clear();
        if let (Some(sandbox), Some(reason)) = (self.handle.sandbox(), phase.reason()) {
            sandbox.link().stopping(lost_by(reason));
        }
        let stop = async {
            let runtime = self.shared.runtime_of(&self.handle)?;
            runtime.stop(self.handle.id(), Duration::ZERO).await.map_err(Error::from)
        };
        match stop.instrument(self.request.clone()).await {
            Ok(()) => Event::Removed,
            Err(error) => {
                tracing::warn!(sandbox = %self.handle.id(), error = host::error::chain(&error), "cannot remove sandbox; retrying");
                Event::NotRemoved
            }
        }
    }
}

/// Returns the cause of loss that readers of the sandbox's execs receive for this end reason.
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
