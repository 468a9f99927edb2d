//! Pauses and resumes a sandbox.
//!
//! ```text
//! pause    the guest holds the deadlines of execs    processes are frozen       `paused` is journalled
//! resume   processes run again                       `running` is journalled    the guest counts deadlines again
//! ```
//!
//! A server that is killed in between finds the state that clients were last told. It freezes a paused sandbox again, and lets a running
//! one run and count.

use std::sync::Arc;
use std::time::Duration;

use api::SandboxId;
use api::sandbox::{EndReason, OnTimeout, SandboxState};
use runtime::Pausing;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{Driver, DriverMessage, LOOK_AGAIN, SLEEP_MAX};
use crate::clock;
use crate::entry::{Call, Entry, not_running};
use crate::error::{Error, chain};
use crate::journal::AutoResume;
use crate::lifecycle::Event;
use crate::link::Pause;
use crate::live::{LIFE_WITHIN, Node};
use crate::sandbox::Sandbox;

/// Time that a guest lives longer than its sandbox if the server is to pause the sandbox at its timeout. The server does that in time if
/// it runs; a server that was stopped for longer finds the sandbox expired.
const GUEST_MARGIN: Duration = Duration::from_secs(3600);

/// A pause takes the time that a guest and a freezer may take at most, and may wait for another one.
const REPLY_WITHIN: Duration = Duration::from_secs(60);

/// Says whether the sandbox was paused or resumed by this request, or was paused or running before.
pub(crate) type Reply = oneshot::Sender<Result<bool, Error>>;

/// A request to resume a sandbox.
pub(crate) struct ResumeRequest {
    /// The new time to live; that of the sandbox if absent.
    pub ttl: Option<Duration>,
    pub reply: Reply,
}

impl Node {
    /// Pauses a sandbox. Returns whether it was running before. The pause completes even if the caller is gone.
    ///
    /// # Errors
    /// The sandbox is not known, does not run or does not answer, or its backend cannot pause it: then it runs.
    pub async fn pause(&self, id: &SandboxId) -> Result<bool, Error> {
        request(&self.known(id)?, DriverMessage::Pause).await
    }

    /// Resumes a sandbox and restarts its idle time and its time to live. Returns whether it was paused. A running sandbox is left as it
    /// is. The resume completes even if the caller is gone.
    ///
    /// # Errors
    /// The sandbox is not known or has ended, or its backend cannot resume it: then it is paused.
    pub async fn resume(&self, id: &SandboxId, ttl: Option<Duration>) -> Result<bool, Error> {
        request(&self.known(id)?, |reply| DriverMessage::Resume(ResumeRequest { ttl, reply })).await
    }

    /// Which requests resume a sandbox when it is paused.
    pub fn auto_resume(&self, id: &SandboxId) -> Option<AutoResume> {
        Some(self.known(id).ok()?.record().auto_resume)
    }

    /// Begins a call to a sandbox, which is not idle as long as the call is held. Resumes a paused sandbox.
    ///
    /// # Errors
    /// The sandbox is not known, does not run, or cannot be resumed.
    pub async fn call(&self, id: &SandboxId) -> Result<Call, Error> {
        self.resumed(id, |_| Ok(None)).await
    }

    /// Begins a call like [`Node::call`], for a client that resumes a sandbox only if the sandbox was created so.
    ///
    /// # Errors
    /// As [`Node::call`]; `NotFound` if the sandbox is paused and only a connect resumes it.
    pub async fn call_if_resumable(&self, id: &SandboxId) -> Result<Call, Error> {
        let may_resume = |entry: &Entry| {
            let record = entry.record();
            let least = Duration::from_millis(record.auto_resume.ttl_min_ms);
            let ttl = Duration::from_millis(record.sandbox.limits.ttl_ms).max(least);
            let missing = || Error::Runtime(runtime::Error::NotFound(id.clone()));
            record.auto_resume.enabled.then_some(Some(ttl)).ok_or_else(missing)
        };
        self.resumed(id, may_resume).await
    }

    /// Begins a call. If the sandbox is paused, resumes it with the time to live that `may_resume` returns.
    async fn resumed(
        &self,
        id: &SandboxId,
        may_resume: impl Fn(&Entry) -> Result<Option<Duration>, Error>,
    ) -> Result<Call, Error> {
        let entry = self.known(id)?;
        loop {
            match entry.call() {
                // A pause that is in progress, or follows the resume at once, is answered by another resume.
                Err(_) if entry.is_paused() && entry.is_resumable() => {
                    let ttl = may_resume(&entry)?;
                    request(&entry, |reply| DriverMessage::Resume(ResumeRequest { ttl, reply })).await?;
                }
                call => return call,
            }
        }
    }
}

/// Sends a request to the driver of a sandbox and waits for its reply.
async fn request(entry: &Arc<Entry>, message: impl FnOnce(Reply) -> DriverMessage) -> Result<bool, Error> {
    let (reply, answer) = oneshot::channel();
    let asking = async {
        entry.insist(message(reply)).await;
        // The driver drops the reply when the sandbox is stopped or has ended.
        answer.await.unwrap_or_else(|_| Err(not_running(&entry.shown())))
    };
    let what = "pausing or resuming the sandbox";
    let late = |_| Error::Deadline { what, after: REPLY_WITHIN };
    tokio::time::timeout(REPLY_WITHIN, asking).await.map_err(late)?
}

impl Driver {
    /// Pauses the sandbox, and replies to whoever asked for it.
    pub(super) async fn pause(&mut self) -> Event {
        // A guest that is told that its time counts again, while it is paused, would end execs too early.
        self.telling = None;
        let Some(sandbox) = self.entry.sandbox() else {
            return self.not_paused(not_running(&self.entry.shown()));
        };
        sandbox.link().set_pause(Pause::Changing);
        match self.freeze(&sandbox).await {
            Ok(()) => {
                sandbox.link().set_pause(Pause::Frozen);
                self.frozen = true;
                // One of them paused it; the others found it paused.
                for (index, asked) in self.pause_replies.drain(..).enumerate() {
                    reply(Some(asked), Ok(index == 0));
                }
                Event::Paused
            }
            Err(error) => {
                sandbox.link().set_pause(Pause::None);
                self.tell_lifetime(&sandbox);
                // The pause may have interrupted a look.
                self.entry.look_at(Instant::now());
                self.not_paused(error)
            }
        }
    }

    fn not_paused(&mut self, error: Error) -> Event {
        tracing::warn!(sandbox = %self.entry.id(), error = chain(&error), "cannot pause the sandbox");
        let told = error.to_api();
        for asked in self.pause_replies.drain(..) {
            reply(Some(asked), Err(Error::Request(told.clone())));
        }
        Event::NotPaused
    }

    async fn freeze(&self, sandbox: &Sandbox) -> Result<(), Error> {
        let (id, longest) = (self.entry.id(), Duration::from_millis(self.shared.bounds.paused_max_ms));
        let runtime = self.shared.runtime_of(&self.entry)?;
        let pausing = pausing(&*runtime)?;
        let _lifetime = self.entry.lifetime().await?;
        sandbox.hold(longest.saturating_add(GUEST_MARGIN), LIFE_WITHIN).await?;
        if let Err(error) = pausing.pause(id).await {
            // An engine may have paused it although its answer was lost.
            undone(pausing.resume(id).await);
            return Err(error.into());
        }
        let journalled = self.shared.update(&self.entry, |record| {
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

    /// Waits until the paused sandbox is to be resumed or ended.
    pub(super) async fn await_resume(&mut self) -> Event {
        let Some(sandbox) = self.entry.sandbox() else { return Event::Exited(EndReason::Died) };
        loop {
            let left = self.entry.left();
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
                    // The node is gone, and this task with it.
                    None => std::future::pending().await,
                },
                () = tokio::time::sleep(left.min(look)) => {
                    if !self.frozen {
                        self.frozen = self.restore(true).await;
                        if self.frozen {
                            sandbox.link().set_pause(Pause::Frozen);
                        }
                    }
                }
            }
        }
    }

    /// Resumes the sandbox, and replies to whoever asked for it.
    pub(super) async fn resume(&mut self) -> Event {
        let request = self.resume_request.take();
        let ttl = request.as_ref().and_then(|request| request.ttl);
        let asked = request.map(|request| request.reply);
        match self.thaw(ttl).await {
            Ok(()) => {
                if let Some(sandbox) = self.entry.sandbox() {
                    sandbox.link().set_pause(Pause::None);
                    self.tell_lifetime(&sandbox);
                }
                self.entry.resumed(Instant::now());
                reply(asked, Ok(true));
                Event::Resumed
            }
            Err(error) => {
                self.frozen = false;
                tracing::warn!(sandbox = %self.entry.id(), error = chain(&error), "cannot resume the sandbox");
                reply(asked, Err(error));
                Event::NotResumed
            }
        }
    }

    async fn thaw(&self, ttl: Option<Duration>) -> Result<(), Error> {
        let runtime = self.shared.runtime_of(&self.entry)?;
        let (pausing, id) = (pausing(&*runtime)?, self.entry.id());
        if let Err(error) = pausing.resume(id).await {
            undone(pausing.pause(id).await);
            return Err(error.into());
        }
        let journalled = self.shared.update(&self.entry, |record| {
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
        let Some(sandbox) = self.entry.sandbox() else { return };
        let paused = self.entry.state() == SandboxState::Paused;
        let restored = self.restore(paused).await;
        self.frozen = paused && restored;
        if self.frozen {
            sandbox.link().set_pause(Pause::Frozen);
        }
        if !paused {
            self.tell_lifetime(&sandbox);
        }
    }

    /// Freezes the processes of the sandbox, or lets them run, as its record says. Returns whether that succeeded.
    async fn restore(&self, paused: bool) -> bool {
        let restored = async {
            let runtime = self.shared.runtime_of(&self.entry)?;
            match (runtime.pausing(), paused) {
                (Some(pausing), true) => pausing.pause(self.entry.id()).await?,
                (Some(pausing), false) => pausing.resume(self.entry.id()).await?,
                (None, _) => {}
            }
            Ok::<_, Error>(())
        };
        let restored = restored.await;
        if let Err(error) = &restored {
            tracing::warn!(sandbox = %self.entry.id(), error = chain(error), paused, "cannot restore the pause of a recovered sandbox");
        }
        restored.is_ok()
    }

    /// Tells the guest how long it lives, until it has heard it, and lets it count the deadlines of execs. The driver ends the sandbox
    /// in time in any case; a guest that was not told yet would only outlive its server for too long.
    pub(super) fn tell_lifetime(&mut self, sandbox: &Arc<Sandbox>) {
        let (entry, sandbox) = (Arc::clone(&self.entry), Arc::clone(sandbox));
        let runtime = self.shared.runtime_of(&entry).ok();
        self.telling = Some(AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                let told = async {
                    let _lifetime = entry.lifetime().await?;
                    sandbox.live_for(entry.guest_ttl(entry.left()), LIFE_WITHIN).await
                };
                match told.await {
                    Ok(()) | Err(Error::Lost(_)) => return,
                    Err(_) => tokio::time::sleep(LOOK_AGAIN).await,
                }
                // A guest that does not answer may be frozen by a server that was killed during a pause.
                if let Some(pausing) = runtime.as_ref().and_then(|runtime| runtime.pausing()) {
                    undone(pausing.resume(entry.id()).await);
                }
            }
        })));
    }
}

impl Entry {
    /// Whether it runs or is paused, so that a request can resume it.
    fn is_resumable(&self) -> bool {
        [SandboxState::Running, SandboxState::Paused].contains(&self.state())
    }

    /// Whether the sandbox is paused at its timeout instead of stopped.
    pub fn pauses_on_timeout(&self) -> bool {
        self.record().sandbox.on_timeout == OnTimeout::Pause
    }

    /// The time that its guest is told to live, if the sandbox has so long to live.
    pub fn guest_ttl(&self, ttl: Duration) -> Duration {
        if self.pauses_on_timeout() { ttl.saturating_add(GUEST_MARGIN) } else { ttl }
    }
}

/// How a backend pauses sandboxes.
pub(crate) fn pausing(runtime: &dyn runtime::Runtime) -> Result<&dyn Pausing, Error> {
    runtime.pausing().ok_or_else(|| {
        let why = format!("{} cannot pause sandboxes", runtime.name());
        Error::Runtime(runtime::Error::Unsupported { what: "pausing a sandbox", why })
    })
}

/// Logs that a step could not be undone.
fn undone(result: Result<(), runtime::Error>) {
    if let Err(error) = result {
        tracing::error!(error = chain(&error), "cannot undo an incomplete pause or resume");
    }
}

/// Sends a reply, if somebody asked. Whoever asked may be gone.
fn reply(to: Option<Reply>, result: Result<bool, Error>) {
    if let Some(to) = to {
        let _ = to.send(result);
    }
}
