//! The task that collects the artifacts of one exec, from the listing before the exec to the manifest.

use std::sync::Arc;
use std::time::Duration;

use api::artifact::{Artifacts, Keep};
use api::exec::{ExecInfo, ExecSpec};
use api::trace::STEP;
use api::{ErrorCode, Layer, Ran, Retry};
use host::error::{Error, chain};
use tokio::time::Instant;
use tracing::{Instrument as _, Span, info_span};

use super::collect::{Collection, before};
use super::shelf::{CollectionRequest, Of, Shelf};
use super::{CollectionProgress, Keeper, Launch};
use crate::call::Call;
use crate::handle::Handle;

/// Shortest and longest delay between two checks for the end of an exec. The delay doubles after each check.
const ASK_FIRST: Duration = Duration::from_millis(20);
const ASK_LAST: Duration = Duration::from_millis(500);
/// Time within which a client must repeat a request if its server was killed after recording the request but
/// before starting the exec. After that, the exec counts as never started.
const STARTED_WITHIN: Duration = Duration::from_secs(60);
/// Delay between two attempts to write the manifest to a full disk.
const KEEP_AGAIN: Duration = Duration::from_secs(1);

/// The task that collects the artifacts of one exec.
pub struct Attendant {
    pub keeper: Arc<Keeper>,
    pub handle: Arc<Handle>,
    pub of: Of,
    pub progress: Arc<CollectionProgress>,
}

/// The result of waiting for an exec.
enum Waited {
    Ended,
    /// The sandbox is about to stop while the exec is still running.
    Cut,
    /// The exec was never started.
    Never,
    Lost(Error),
}

impl Attendant {
    /// Runs the whole collection. The steps up to the launch are recorded in the trace of `request`.
    pub async fn begin(self, mut wanted: CollectionRequest, spec: ExecSpec, request: Span) {
        let look = request.in_scope(|| info_span!(target: STEP, "artifacts", what = "before"));
        if let Err(error) = self.prepare(&mut wanted).instrument(look).await {
            // The exec was not started.
            self.progress.launch.send_replace(Launch::Refused(api::Error { ran: Ran::No, ..error.to_api() }));
            self.forget().await;
            return self.finish();
        }
        match self.launch(spec).instrument(request).await {
            Ok(info) => {
                self.progress.launch.send_replace(Launch::Started(Box::new(info)));
                wanted.started = true;
                if let Err(error) = self.shelf().want(&wanted).await {
                    // Without the record, a restarted server asks the guest whether the exec has started.
                    tracing::warn!(sandbox = %self.of.sandbox, error = chain(&error), "cannot record that the exec with artifacts started");
                }
                self.attend(&wanted).await;
            }
            Err(error) => {
                let told = error.to_api();
                if told.ran == Ran::No {
                    self.progress.launch.send_replace(Launch::Refused(told));
                    self.forget().await;
                } else {
                    // The exec may be running. Only the guest knows its state.
                    self.progress.launch.send_replace(Launch::Elsewhere);
                    self.attend(&wanted).await;
                }
            }
        }
        self.finish();
    }

    /// Resumes a collection after the server that started it was killed.
    pub async fn go_on(self, wanted: CollectionRequest) {
        // A partial collection is repeated from the beginning.
        if let Err(error) = self.shelf().clear(&wanted.of).await {
            tracing::warn!(sandbox = %self.of.sandbox, error = chain(&error), "cannot remove a partial artifact collection");
        }
        self.attend(&wanted).await;
        self.finish();
    }

    /// Lists the folders and records the request, unless an earlier server has recorded it.
    async fn prepare(&self, wanted: &mut CollectionRequest) -> Result<(), Error> {
        let call = Call::begin(&self.handle)?;
        if let Some(found) = self.shelf().wanted(&self.of).await? {
            // Compare with the folders as they were before the first attempt, not as they are now.
            *wanted = found;
            return Ok(());
        }
        let (files, within) = (call.files(), within(&wanted.keep));
        let late = |_| Error::Deadline { what: "listing the artifact folders", after: within };
        let looked = tokio::time::timeout(within, before(&files, &wanted.keep)).await.map_err(late)?;
        (wanted.before, wanted.unseen) = looked?;
        self.shelf().want(wanted).await.map_err(|error| match host::objects::is_full(&error) {
            true => {
                let (what, why) = ("artifacts", "the disk is full".into());
                Error::Runtime(runtime::Error::Capacity { what, why })
            }
            false => error,
        })
    }

    async fn launch(&self, spec: ExecSpec) -> Result<ExecInfo, Error> {
        Call::begin(&self.handle)?.start_exec(&self.of.exec, spec).await
    }

    /// Waits until the exec ends, collects its artifacts, and writes the manifest.
    async fn attend(&self, wanted: &CollectionRequest) {
        let (sandbox, exec) = (self.of.sandbox.clone(), self.of.exec.clone());
        let mut artifacts = Artifacts { pending: false, ..Artifacts::pending(sandbox, exec) };
        let waited = self.wait(wanted).await;
        let is_cut = matches!(waited, Waited::Cut);
        let collected = match waited {
            Waited::Never => return self.forget().await,
            Waited::Lost(error) => Err(error),
            Waited::Ended | Waited::Cut => self.collect_between_pauses(wanted, &mut artifacts).await,
        };
        if let Err(error) = collected {
            artifacts.error = Some(if matches!(error, Error::Lost(_)) { gone() } else { error.to_api() });
        } else if is_cut {
            artifacts.error = Some(still_running());
        }
        artifacts.complete = artifacts.error.is_none() && !artifacts.unseen;
        loop {
            match self.shelf().keep(&self.of, &artifacts).await {
                Ok(()) => break,
                Err(error) => {
                    tracing::error!(sandbox = %self.of.sandbox, error = chain(&error), "cannot store the artifact list; retrying");
                    tokio::time::sleep(KEEP_AGAIN).await;
                }
            }
        }
        if let Err(error) = self.shelf().unwant(&self.of).await {
            // A restarted server finds both the manifest and the request, and removes the request.
            tracing::warn!(sandbox = %self.of.sandbox, error = chain(&error), "cannot remove the record of a finished artifact collection");
        }
    }

    async fn wait(&self, wanted: &CollectionRequest) -> Waited {
        let (since, mut pause, mut seen) = (Instant::now(), ASK_FIRST, wanted.started);
        let mut closing = self.progress.closing.subscribe();
        loop {
            // Read before the check, so that the exec is checked once more after the stop has been announced.
            let is_closing = *closing.borrow_and_update();
            let Some(sandbox) = self.handle.sandbox() else { return Waited::Lost(self.lost()) };
            match sandbox.execs().await {
                Ok(execs) => match execs.iter().find(|info| info.id == self.of.exec) {
                    Some(info) if info.outcome.is_some() => return Waited::Ended,
                    Some(_) => seen = true,
                    // The exec has ended: the guest drops ended execs, oldest first, when its table is full.
                    None if seen => return Waited::Ended,
                    None if since.elapsed() > STARTED_WITHIN => return Waited::Never,
                    None => {}
                },
                Err(error @ Error::Lost(_)) => return Waited::Lost(error),
                Err(_) => {}
            }
            if is_closing {
                return Waited::Cut;
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = closing.changed() => {}
            }
            pause = (pause * 2).min(ASK_LAST);
        }
    }

    /// Collects the artifacts. If the sandbox was paused during the collection, the result may be incomplete,
    /// so the collection is repeated.
    async fn collect_between_pauses(
        &self,
        wanted: &CollectionRequest,
        into: &mut Artifacts,
    ) -> Result<(), Error> {
        loop {
            let (pauses, mut artifacts) = (self.handle.pauses(), into.clone());
            let collected = self.collect(wanted, &mut artifacts).await;
            if self.handle.pauses() == pauses || matches!(collected, Err(Error::Lost(_))) {
                *into = artifacts;
                return collected;
            }
            self.shelf().clear(&wanted.of).await?;
        }
    }

    async fn collect(&self, wanted: &CollectionRequest, into: &mut Artifacts) -> Result<(), Error> {
        let own = self.keeper.turns_of(&self.of.project);
        let (_turns, call) = loop {
            // A paused sandbox must not occupy a slot that others wait for.
            self.handle.until_resumed().await;
            // Each collection has a deadline, so every task gets a slot eventually.
            let turns = (own.acquire().await, self.keeper.turns.acquire().await);
            match Call::begin(&self.handle) {
                Err(_) if self.handle.is_paused() => drop(turns),
                call => break (turns, call?),
            }
        };
        let deadline = Instant::now() + within(&wanted.keep);
        Collection { files: &call.files(), shelf: self.shelf(), wanted, deadline }.collect(into).await
    }

    /// Removes the request, because the exec did not run.
    async fn forget(&self) {
        if let Err(error) = self.shelf().unwant(&self.of).await {
            tracing::warn!(sandbox = %self.of.sandbox, error = chain(&error), "cannot remove the artifact record of an exec that did not run");
        }
    }

    fn finish(&self) {
        self.keeper.under_way().remove(&self.of);
        self.progress.done.send_replace(true);
    }

    fn shelf(&self) -> &Shelf {
        &self.keeper.shelf
    }

    fn lost(&self) -> Error {
        crate::handle::not_running(&self.handle.shown())
    }
}

/// Returns the timeout for a collection.
pub fn within(keep: &Keep) -> Duration {
    guest_client::files::worked(keep.bytes_max)
}

/// Returns the error for a sandbox that ended before the collection was complete.
pub fn gone() -> api::Error {
    api::Error {
        code: ErrorCode::SandboxLost,
        message: "the sandbox stopped before all its artifacts were collected".into(),
        layer: Layer::Sandbox,
        ran: Ran::Yes,
        retry: Retry::Useless,
        fix: "Each listed artifact was stored completely. To get the missing artifacts, run the command again in a new sandbox.".into(),
    }
}

fn still_running() -> api::Error {
    api::Error {
        message: "the exec was still running when its sandbox was stopped; its artifacts were collected at the time of the stop".into(),
        fix: "Wait for the exec to finish before you stop its sandbox, or give the exec more time.".into(),
        ..gone()
    }
}
