//! Requests to pause and resume a sandbox, and calls, which resume a paused sandbox.

use std::sync::Arc;
use std::time::Duration;

use api::SandboxId;
use host::error::Error;
use tokio::sync::oneshot;

use crate::handle::{Handle, not_running};
use crate::journal::AutoResume;
use crate::message::{DriverMessage, PauseReply, ResumeRequest};
use crate::{Call, Node};

/// Timeout for a pause or resume. It covers the timeouts of the guest and the freezer, and an earlier request
/// that is still in progress.
const REPLY_WITHIN: Duration = Duration::from_secs(60);

impl Node {
    /// Pauses a sandbox. Returns true if it was running before. The pause completes even if the caller is
    /// gone.
    ///
    /// # Errors
    /// The sandbox is unknown, is not running or does not respond, or its backend cannot pause it. A running
    /// sandbox then keeps running.
    pub async fn pause(&self, id: &SandboxId) -> Result<bool, Error> {
        request(&self.known(id)?, DriverMessage::Pause).await
    }

    /// Resumes a sandbox and restarts its idle timeout and its time to live. Returns true if it was paused. A
    /// running sandbox is left unchanged. The resume completes even if the caller is gone.
    ///
    /// # Errors
    /// The sandbox is unknown or has ended, or its backend cannot resume it. In the latter case, the sandbox
    /// stays paused.
    pub async fn resume(&self, id: &SandboxId, ttl: Option<Duration>) -> Result<bool, Error> {
        request(&self.known(id)?, |reply| DriverMessage::Resume(ResumeRequest { ttl, reply })).await
    }

    /// Returns the settings that decide which requests resume a sandbox.
    pub fn auto_resume(&self, id: &SandboxId) -> Option<AutoResume> {
        Some(self.known(id).ok()?.record().auto_resume)
    }

    /// Begins a call to a sandbox, and resumes the sandbox if it is paused. While the call is held, the
    /// sandbox does not count as idle.
    ///
    /// # Errors
    /// The sandbox is unknown, is not running, or cannot be resumed.
    pub async fn call(&self, id: &SandboxId) -> Result<Call, Error> {
        self.resumed(id, |_| Ok(None)).await
    }

    /// Begins a call like [`Node::call`], for requests that resume a sandbox only if its settings allow it.
    ///
    /// # Errors
    /// See [`Node::call`]. In addition, the error is `NotFound` if the sandbox is paused and its settings do
    /// not allow the resume.
    pub async fn call_if_resumable(&self, id: &SandboxId) -> Result<Call, Error> {
        let may_resume = |handle: &Handle| {
            let record = handle.record();
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
        may_resume: impl Fn(&Handle) -> Result<Option<Duration>, Error>,
    ) -> Result<Call, Error> {
        let handle = self.known(id)?;
        loop {
            match Call::begin(&handle) {
                // A pause may be in progress, or may immediately follow the resume. In both cases, resume
                // again.
                Err(_) if handle.is_paused() && handle.is_resumable() => {
                    let ttl = may_resume(&handle)?;
                    request(&handle, |reply| DriverMessage::Resume(ResumeRequest { ttl, reply })).await?;
                }
                call => return call,
            }
        }
    }
}

/// Sends a request to the driver of a sandbox and waits for its reply.
async fn request(
    handle: &Arc<Handle>,
    message: impl FnOnce(PauseReply) -> DriverMessage,
) -> Result<bool, Error> {
    let (reply, answer) = oneshot::channel();
    let asking = async {
        handle.insist(message(reply)).await;
        // The driver drops the reply channel when the sandbox is stopped or has ended.
        answer.await.unwrap_or_else(|_| Err(not_running(&handle.shown())))
    };
    let what = "pausing or resuming the sandbox";
    let late = |_| Error::Deadline { what, after: REPLY_WITHIN };
    tokio::time::timeout(REPLY_WITHIN, asking).await.map_err(late)?
}
