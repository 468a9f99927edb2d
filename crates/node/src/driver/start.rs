//! Starts a sandbox: waits for its turn, creates it, copies datasets, and runs its template's commands.

use std::sync::Arc;
use std::time::Duration;

use api::trace::STEP;
use guest_client::Sandbox;
use host::error::Error;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::{Instrument as _, Span, info_span};

use super::Driver;
use super::ahead::hold_ready;
use super::egress::{Attendant, attended};
use crate::handle::Handle;
use crate::lifecycle::Event;
use crate::message::DriverMessage;
use crate::pool::Making;
use crate::ready::{Preparation, Readiness};
use crate::shared::NodeState;

/// Maximum time for which a sandbox waits for its turn to start.
const TURN_WITHIN: Duration = Duration::from_secs(120);

/// The reason for starting a sandbox.
pub(crate) enum StartFor {
    /// A client is waiting for the sandbox.
    Client(Preparation),
    /// The pool keeps the sandbox until it is claimed.
    Pool(Making),
}

/// A startup in progress.
pub(super) struct StartTask {
    task: JoinHandle<Result<Started, Error>>,
    /// Set when the result is no longer needed.
    unwanted: watch::Sender<bool>,
}

/// A sandbox that has been created and prepared.
struct Started {
    sandbox: Arc<Sandbox>,
    attendant: Option<Attendant>,
    /// Span of the request that is waiting for the sandbox.
    request: Span,
}

impl Driver {
    /// Spawns the task that creates the sandbox.
    pub(super) fn begin_start(&self, whom: StartFor) -> StartTask {
        let (shared, handle) = (Arc::clone(&self.shared), Arc::clone(&self.handle));
        let (sender, unwanted) = watch::channel(false);
        let task = tokio::spawn(async move {
            let (sandbox, preparation) = match whom {
                StartFor::Client(preparation) => {
                    let request = preparation.request.clone();
                    (in_turn(&shared, &handle).instrument(request).await?, preparation)
                }
                StartFor::Pool(making) => hold_ready(&shared, &handle, making, unwanted.clone()).await?,
            };
            let request = preparation.request.clone();
            let (sandbox, attendant) =
                furnish(&shared, &handle, sandbox, preparation, unwanted).instrument(request.clone()).await?;
            Ok(Started { sandbox, attendant, request })
        });
        StartTask { task, unwanted: sender }
    }

    pub(super) fn abandon_start(&self) {
        if let Some(start) = &self.start {
            start.unwanted.send_replace(true);
        }
    }

    /// Waits until startup finishes, or for a request to stop the sandbox.
    pub(super) async fn await_start(&mut self) -> Event {
        let Some(start) = &mut self.start else { return Event::StartFailed };
        let result = loop {
            tokio::select! {
                result = &mut start.task => break result,
                Some(word) = self.inbox.recv() => {
                    // Drops pause and resume requests with their reply channels. Their clients receive
                    // `not_running`.
                    if let DriverMessage::End(reason) = word {
                        return Event::Requested(reason);
                    }
                }
            }
        };
        self.start = None;
        let error = match result {
            Ok(Ok(started)) => {
                self.handle.hold(started.sandbox);
                // Time spent waiting for startup does not count as idle time.
                self.handle.active(Instant::now());
                self.attendant = started.attendant;
                self.request = started.request;
                return Event::Started;
            }
            Ok(Err(error)) => error,
            Err(source) => Error::System { act: "start a sandbox".into(), source: source.into() },
        };
        if !self.handle.is_pooled() {
            let told = error.to_api();
            if [api::ErrorCode::Platform, api::ErrorCode::TierUnavailable].contains(&told.code) {
                tracing::error!(sandbox = %self.handle.id(), error = told.message, "cannot start sandbox");
            }
            let act = format!("start sandbox {}", self.handle.id());
            self.error = Some(host::error::discreet_start(&error, &act));
        }
        Event::StartFailed
    }
}

/// Waits for the sandbox's turn to start, and creates the sandbox.
async fn in_turn(shared: &NodeState, handle: &Handle) -> Result<Sandbox, Error> {
    let project = handle.shown().project;
    let turn = tokio::time::timeout(TURN_WITHIN, shared.turns.turn(&project));
    let turn = turn.instrument(info_span!(target: STEP, "turn")).await;
    // Held only while the sandbox is created, so that datasets and slow `start` commands do not block the
    // startup of other sandboxes.
    let _turn =
        turn.map_err(|_| Error::Deadline { what: "waiting to start the sandbox", after: TURN_WITHIN })?;
    shared.start(handle).await
}

/// Copies datasets into a new sandbox, and runs the commands of its template.
async fn furnish(
    shared: &Arc<NodeState>,
    handle: &Arc<Handle>,
    sandbox: Sandbox,
    preparation: Preparation,
    unwanted: watch::Receiver<bool>,
) -> Result<(Arc<Sandbox>, Option<Attendant>), Error> {
    let disk = handle.shown().limits.disk_bytes;
    let putting = shared.datasets.put_in(sandbox, disk, &preparation.datasets, unwanted.clone());
    let sandbox = match preparation.datasets.is_empty() {
        true => putting.await?,
        false => putting.instrument(info_span!(target: STEP, "datasets")).await?,
    };
    bring_about(shared, handle, sandbox, &preparation.readiness, unwanted).await
}

/// Runs the `start` and `ready` commands of the template, with egress enabled. If they fail, removes the
/// sandbox. If the startup is abandoned in the meantime, returns at once.
async fn bring_about(
    shared: &Arc<NodeState>,
    handle: &Arc<Handle>,
    sandbox: Sandbox,
    readiness: &Readiness,
    mut unwanted: watch::Receiver<bool>,
) -> Result<(Arc<Sandbox>, Option<Attendant>), Error> {
    let sandbox = Arc::new(sandbox);
    if readiness.is_empty() {
        return Ok((sandbox, None));
    }
    let policy = handle.policy().borrow().clone();
    let attendant = attended(shared, handle, &sandbox);
    let bringing = async {
        if !policy.secrets.is_empty() {
            handle.trust(&sandbox).await?;
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
