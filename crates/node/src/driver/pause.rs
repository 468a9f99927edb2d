//! Pauses and resumes a sandbox.
//!
//! ```text
//! pause    the guest holds the deadlines of execs    processes are frozen       `paused` is journalled
//! resume   processes run again                       `running` is journalled    the guest counts deadlines again
//! ```
//!
//! If a server is killed between two steps, the journal contains the state that clients last saw. A restarted
//! server restores this state: it freezes a paused sandbox again, and makes sure that a running sandbox runs
//! and counts deadlines.

use std::sync::Arc;
use std::time::Duration;

use api::sandbox::{EndReason, SandboxState};
use guest_client::link::PauseState;
use guest_client::sandbox::Sandbox;
use host::clock;
use host::error::{Error, chain};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{Driver, LOOK_AGAIN, SLEEP_MAX};
use crate::handle::{GUEST_MARGIN, LIFE_WITHIN, not_running};
use crate::lifecycle::Event;
use crate::message::{DriverMessage, PauseReply};
use crate::plan::pausing;

impl Driver {
    /// Pauses the sandbox, and replies to the requests that wait for the pause.
    pub(super) async fn pause(&mut self) -> Event {
        // While the sandbox is paused, a new time to live must not reach the guest: it would restart the
        // deadlines of execs.
        self.telling = None;
        let Some(sandbox) = self.handle.sandbox() else {
            return self.not_paused(not_running(&self.handle.shown()));
        };
        sandbox.link().set_pause(PauseState::Changing);
        match self.freeze(&sandbox).await {
            Ok(()) => {
                sandbox.link().set_pause(PauseState::Frozen);
                self.frozen = true;
                // The first request paused the sandbox. For the others, the sandbox was already paused.
                for (index, asked) in self.pause_replies.drain(..).enumerate() {
                    reply(Some(asked), Ok(index == 0));
                }
                Event::Paused
            }
            Err(error) => {
                sandbox.link().set_pause(PauseState::None);
                self.tell_lifetime(&sandbox);
                // The pause may have interrupted a check of the execs.
                self.handle.look_at(Instant::now());
                self.not_paused(error)
            }
        }
    }

    fn not_paused(&mut self, error: Error) -> Event {
        tracing::warn!(sandbox = %self.handle.id(), error = chain(&error), "cannot pause the sandbox");
        let told = error.to_api();
        for asked in self.pause_replies.drain(..) {
            reply(Some(asked), Err(Error::Request(told.clone())));
        }
        Event::NotPaused
    }

    async fn freeze(&self, sandbox: &Sandbox) -> Result<(), Error> {
        let (id, longest) = (self.handle.id(), Duration::from_millis(self.shared.bounds.paused_max_ms));
        let runtime = self.shared.runtime_of(&self.handle)?;
        let pausing = pausing(&*runtime)?;
        let _lifetime = self.handle.lifetime().await?;
        sandbox.hold(longest.saturating_add(GUEST_MARGIN), LIFE_WITHIN).await?;
        if let Err(error) = pausing.pause(id).await {
            // An engine may have paused the sandbox even if its response was lost.
            undone(pausing.resume(id).await);
            return Err(error.into());
        }
        let journalled = self.shared.update(&self.handle, |record| {
            record.sandbox.state = SandboxState::Paused;
            record.expires_boot_ms = clock::boot_ms().saturating_add(clock::millis(longest));
            Ok(())
        });
        if let Err(error) = journalled {
            undone(pausing.resume(id).await);
            return Err(error);
        }
        Ok(())
    }

    /// Waits until a request to resume or stop the paused sandbox arrives, process 1 exits, or the maximum
    /// pause time has passed.
    pub(super) async fn await_resume(&mut self) -> Event {
        let Some(sandbox) = self.handle.sandbox() else { return Event::Exited(EndReason::Died) };
        loop {
            let left = self.handle.left();
            if left.is_zero() {
                return Event::Requested(EndReason::Expired);
            }
            let look = if self.frozen { SLEEP_MAX } else { LOOK_AGAIN };
            tokio::select! {
                cause = sandbox.ended() => return Event::Exited(self.why(cause)),
                message = self.inbox.recv() => match message {
                    Some(DriverMessage::End(reason)) => return Event::Requested(reason),
                    Some(DriverMessage::Resume(request)) => {
                        self.resume_request = Some(request);
                        return Event::ResumeRequested;
                    }
                    Some(DriverMessage::Pause(asked)) => reply(Some(asked), Ok(false)),
                    Some(DriverMessage::Look) => {}
                    // The node is gone, and this task is about to be dropped.
                    None => std::future::pending().await,
                },
                () = tokio::time::sleep(left.min(look)) => {
                    if !self.frozen {
                        self.frozen = self.restore(true).await;
                        if self.frozen {
                            sandbox.link().set_pause(PauseState::Frozen);
                        }
                    }
                }
            }
        }
    }

    /// Resumes the sandbox, and replies to the request.
    pub(super) async fn resume(&mut self) -> Event {
        let request = self.resume_request.take();
        let ttl = request.as_ref().and_then(|request| request.ttl);
        let asked = request.map(|request| request.reply);
        match self.thaw(ttl).await {
            Ok(()) => {
                if let Some(sandbox) = self.handle.sandbox() {
                    sandbox.link().set_pause(PauseState::None);
                    self.tell_lifetime(&sandbox);
                }
                self.handle.resumed(Instant::now());
                reply(asked, Ok(true));
                Event::Resumed
            }
            Err(error) => {
                self.frozen = false;
                tracing::warn!(sandbox = %self.handle.id(), error = chain(&error), "cannot resume the sandbox");
                reply(asked, Err(error));
                Event::NotResumed
            }
        }
    }

    async fn thaw(&self, ttl: Option<Duration>) -> Result<(), Error> {
        let runtime = self.shared.runtime_of(&self.handle)?;
        let (pausing, id) = (pausing(&*runtime)?, self.handle.id());
        if let Err(error) = pausing.resume(id).await {
            undone(pausing.pause(id).await);
            return Err(error.into());
        }
        let journalled = self.shared.update(&self.handle, |record| {
            record.sandbox.state = SandboxState::Running;
            record.expire_in(ttl.unwrap_or(Duration::from_millis(record.sandbox.limits.ttl_ms)));
            Ok(())
        });
        if let Err(error) = journalled {
            undone(pausing.pause(id).await);
            return Err(error);
        }
        Ok(())
    }

    /// Takes over a sandbox from a server that was killed, perhaps during a pause or a resume.
    pub(super) async fn take_over(&mut self) {
        let Some(sandbox) = self.handle.sandbox() else { return };
        let paused = self.handle.state() == SandboxState::Paused;
        let restored = self.restore(paused).await;
        self.frozen = paused && restored;
        if self.frozen {
            sandbox.link().set_pause(PauseState::Frozen);
        }
        if !paused {
            self.tell_lifetime(&sandbox);
        }
    }

    /// Freezes the sandbox's processes if `paused` is true, and thaws them otherwise. Returns true on
    /// success.
    async fn restore(&self, paused: bool) -> bool {
        let restored = async {
            let runtime = self.shared.runtime_of(&self.handle)?;
            match (runtime.pausing(), paused) {
                (Some(pausing), true) => pausing.pause(self.handle.id()).await?,
                (Some(pausing), false) => pausing.resume(self.handle.id()).await?,
                (None, _) => {}
            }
            Ok::<_, Error>(())
        };
        let restored = restored.await;
        if let Err(error) = &restored {
            tracing::warn!(sandbox = %self.handle.id(), error = chain(error), paused, "cannot restore the pause of a recovered sandbox");
        }
        restored.is_ok()
    }

    /// Sends the remaining time to live to the guest, which then counts the deadlines of execs again. Retries
    /// until the guest has acknowledged the value. A running driver stops the sandbox in time without the
    /// guest. If the server is killed, however, only the guest can do so, and needs the current value.
    pub(super) fn tell_lifetime(&mut self, sandbox: &Arc<Sandbox>) {
        let (handle, sandbox) = (Arc::clone(&self.handle), Arc::clone(sandbox));
        let runtime = self.shared.runtime_of(&handle).ok();
        self.telling = Some(AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                let told = async {
                    let _lifetime = handle.lifetime().await?;
                    sandbox.live_for(handle.guest_ttl(handle.left()), LIFE_WITHIN).await
                };
                match told.await {
                    Ok(()) | Err(Error::Lost(_)) => return,
                    Err(_) => tokio::time::sleep(LOOK_AGAIN).await,
                }
                // An unresponsive guest may have been frozen by a server that was killed during a pause.
                if let Some(pausing) = runtime.as_ref().and_then(|runtime| runtime.pausing()) {
                    undone(pausing.resume(handle.id()).await);
                }
            }
        })));
    }
}

/// Logs a failure to undo a step.
fn undone(result: Result<(), runtime::Error>) {
    if let Err(error) = result {
        tracing::error!(error = chain(&error), "cannot undo an incomplete pause or resume");
    }
}

/// Sends a reply, if one is expected. Ignores errors, because the sender of the request may be gone.
fn reply(to: Option<PauseReply>, result: Result<bool, Error>) {
    if let Some(to) = to {
        let _ = to.send(result);
    }
}
