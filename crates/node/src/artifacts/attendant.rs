//! The task of one exec whose files are kept: from the look before it to the manifest.

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
use super::shelf::{Of, Shelf, Wanted};
use super::{Keeper, Launch, Progress};
use crate::call::Call;
use crate::handle::Handle;

/// Between two questions whether an exec has ended, at first and at last.
const ASK_FIRST: Duration = Duration::from_millis(20);
const ASK_LAST: Duration = Duration::from_millis(500);
/// After a server was killed between what is wanted and the exec, whoever asked for it comes back within this or not at all.
const STARTED_WITHIN: Duration = Duration::from_secs(60);
/// Between two tries to write down what was kept, on a disk that is full.
const KEEP_AGAIN: Duration = Duration::from_secs(1);

/// The task of one exec.
pub struct Attendant {
    pub keeper: Arc<Keeper>,
    pub handle: Arc<Handle>,
    pub of: Of,
    pub progress: Arc<Progress>,
}

/// How the wait for an exec went.
enum Waited {
    Ended,
    /// Its sandbox is about to end before it.
    Cut,
    /// It was never started.
    Never,
    Lost(Error),
}

impl Attendant {
    /// From the look before the exec to the manifest. Up to the launch it is a part of `request`.
    pub async fn begin(self, mut wanted: Wanted, spec: ExecSpec, request: Span) {
        let look = request.in_scope(|| info_span!(target: STEP, "artifacts", what = "before"));
        if let Err(error) = self.prepare(&mut wanted).instrument(look).await {
            // Nothing was started.
            self.progress.launch.send_replace(Launch::Refused(api::Error { ran: Ran::No, ..error.to_api() }));
            self.forget().await;
            return self.finish();
        }
        match self.launch(spec).instrument(request).await {
            Ok(info) => {
                self.progress.launch.send_replace(Launch::Started(Box::new(info)));
                wanted.started = true;
                if let Err(error) = self.shelf().want(&wanted).await {
                    // A server that starts asks the guest whether it was started.
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
                    // It may run: whoever asks for it is told by the guest.
                    self.progress.launch.send_replace(Launch::Elsewhere);
                    self.attend(&wanted).await;
                }
            }
        }
        self.finish();
    }

    /// From where a server before this one was killed.
    pub async fn go_on(self, wanted: Wanted) {
        // Half of a collection is made anew.
        if let Err(error) = self.shelf().clear(&wanted.of).await {
            tracing::warn!(sandbox = %self.of.sandbox, error = chain(&error), "cannot remove a partial artifact collection");
        }
        self.attend(&wanted).await;
        self.finish();
    }

    /// Looks at the folders and writes down what is wanted, unless a server before this one did.
    async fn prepare(&self, wanted: &mut Wanted) -> Result<(), Error> {
        let call = Call::begin(&self.handle)?;
        if let Some(found) = self.shelf().wanted(&self.of).await? {
            // What was there before it was first asked for counts, not what is there now.
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

    /// Waits for the end of the exec, takes out what is to be kept, and writes it down.
    async fn attend(&self, wanted: &Wanted) {
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
            // A server that starts finds both, and removes it.
            tracing::warn!(sandbox = %self.of.sandbox, error = chain(&error), "cannot remove the record of a finished artifact collection");
        }
    }

    async fn wait(&self, wanted: &Wanted) -> Waited {
        let (since, mut pause, mut seen) = (Instant::now(), ASK_FIRST, wanted.started);
        let mut closing = self.progress.closing.subscribe();
        loop {
            // Whoever ends the sandbox is told once more whether the exec has ended.
            let is_closing = *closing.borrow_and_update();
            let Some(sandbox) = self.handle.sandbox() else { return Waited::Lost(self.lost()) };
            match sandbox.execs().await {
                Ok(execs) => match execs.iter().find(|info| info.id == self.of.exec) {
                    Some(info) if info.outcome.is_some() => return Waited::Ended,
                    Some(_) => seen = true,
                    // The oldest of those that ended make room for others.
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

    /// Collects; once more after a pause, because what was under way then is not complete.
    async fn collect_between_pauses(&self, wanted: &Wanted, into: &mut Artifacts) -> Result<(), Error> {
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

    async fn collect(&self, wanted: &Wanted, into: &mut Artifacts) -> Result<(), Error> {
        let own = self.keeper.turns_of(&self.of.project);
        let (_turns, call) = loop {
            // A paused sandbox must not keep others from their turn.
            self.handle.until_resumed().await;
            // Those who have theirs are done in time, so everybody's comes.
            let turns = (own.acquire().await, self.keeper.turns.acquire().await);
            match Call::begin(&self.handle) {
                Err(_) if self.handle.is_paused() => drop(turns),
                call => break (turns, call?),
            }
        };
        let deadline = Instant::now() + within(&wanted.keep);
        Collection { files: &call.files(), shelf: self.shelf(), wanted, deadline }.collect(into).await
    }

    /// Nothing ran, so there is nothing to keep.
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

/// How long a collection may take.
pub fn within(keep: &Keep) -> Duration {
    guest_client::files::worked(keep.bytes_max)
}

/// The error for a sandbox that ended too early.
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
