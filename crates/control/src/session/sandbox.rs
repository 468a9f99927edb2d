//! Manages the sandbox of a session: creates it for the first call, reuses it for later calls, replaces it
//! after it has ended, and finally releases it.

use std::sync::Arc;

use api::files::{FileAsk, FilePath};
use api::sandbox::{CreateSandbox, OnTimeout, SESSION_LABEL, Sandbox};
use api::session::Persistence;
use api::{ErrorCode, SandboxId};
use node::Call;
use tracing::Instrument as _;

use super::{Live, check_open};
use crate::account::{Account, Rate};
use crate::fault::Answer;
use crate::platform::{NewSandbox, Platform};
use crate::store::SessionRecord;
use crate::trace;

/// Folders that are created in every new sandbox of a session (requirement A5.03).
const FOLDERS: [&str; 2] = ["/tmp/data", "/tmp/output"];
/// Maximum idle time of a sandbox that is used for a single run. It is short, so that the sandbox ends soon
/// if the server is killed.
const RUN_IDLE_MS: u64 = 60_000;
/// Maximum number of retries if a create request returns a sandbox that has already ended. One retry is
/// enough unless several sandboxes have ended unnoticed.
const TRIES: u32 = 3;

/// A sandbox in use.
pub struct Used {
    /// ID of the sandbox.
    pub id: SandboxId,
    /// Call that keeps the sandbox in use.
    pub call: Call,
    /// True until the sandbox has its initial files.
    pub fresh: bool,
}

impl Live {
    /// Returns the session's sandbox, with all datasets copied into it. The session's record stays locked
    /// during this time, so a concurrent request to end the session waits, and then stops this sandbox too.
    ///
    /// # Errors
    /// Returns an error if the session has ended, no sandbox can be created, or a dataset cannot be copied.
    /// In the last case, the next call tries to copy it again.
    pub(super) async fn sandbox(&self, platform: &Arc<Platform>, account: &Arc<Account>) -> Answer<Used> {
        let mut record = self.record.lock().await;
        check_open(&record.session)?;
        let used = self.found_or_made(platform, account, &mut record).await?;
        // If the server was killed while it installed packages, the more permissive policy for installations
        // may still be in place.
        let shown = platform.node.find(&used.id);
        if shown.is_some_and(|shown| shown.policy != record.session.policy) {
            platform.node.set_policy(&used.id, record.session.policy.clone()).await?;
        }
        self.place_datasets(platform, &mut record, &used.call).await?;
        Ok(used)
    }

    async fn found_or_made(
        &self,
        platform: &Arc<Platform>,
        account: &Arc<Account>,
        record: &mut SessionRecord,
    ) -> Answer<Used> {
        if let Some(id) = record.session.sandbox.clone() {
            match platform.node.call(&id).await {
                // The sandbox belongs to a run during which the server was killed. No other run may use it
                // (requirement A10.04).
                Ok(_) if record.session.persistence == Persistence::Run => {
                    self.release(platform, account, record).await;
                }
                Ok(call) => return Ok(Used { id, call, fresh: !record.prepared }),
                Err(error) if !(error.is_missing() || error.is_ended()) => return Err(error.into()),
                Err(_) => {
                    // The loss of the files must be logged (requirement A1.07).
                    tracing::warn!(
                        session = %self.id,
                        sandbox = %id,
                        "the sandbox of the session has ended, and the files in it are gone"
                    );
                    self.spend(record);
                }
            }
        }
        account.pace(Rate::Create)?;
        let mut tries = 0..TRIES;
        loop {
            let sandbox = self.make(platform, account, record).await?;
            if !sandbox.state.is_terminal() {
                record.session.sandbox = Some(sandbox.id.clone());
                let used = self.begun(platform, record, sandbox.id).await;
                if used.is_err() {
                    // Release the sandbox, so that the next call does not use a sandbox that is only partly
                    // set up.
                    self.release(platform, account, record).await;
                    let _ = self.save(platform, record).await;
                }
                return used;
            }
            // The server created this sandbox for the same call and was then killed. The sandbox has ended
            // since.
            self.spend(record);
            self.save(platform, record).await?;
            if tries.next().is_none() {
                return Err(node::not_running(&sandbox).into());
            }
        }
    }

    /// Records the sandbox in the session, and creates the initial folders.
    async fn begun(&self, platform: &Platform, record: &SessionRecord, id: SandboxId) -> Answer<Used> {
        self.save(platform, record).await?;
        let call = platform.node.call(&id).await?;
        for folder in FOLDERS {
            let path = FilePath::new(folder)?;
            call.files().ask(&FileAsk::Make { path }).await?;
        }
        Ok(Used { id, call, fresh: true })
    }

    /// Creates a sandbox. The idempotency key consists of the session's ID and the number of the session's
    /// earlier sandboxes. Therefore, after a crash, the server finds this sandbox instead of creating another
    /// one.
    async fn make(
        &self,
        platform: &Arc<Platform>,
        account: &Arc<Account>,
        record: &SessionRecord,
    ) -> Answer<Sandbox> {
        let session = &record.session;
        let request = CreateSandbox {
            name: None,
            template: session.template.clone(),
            tier: session.tier,
            limits: session.limits,
            idle_ms: match session.persistence {
                Persistence::Session => session.idle_ms,
                // A sandbox for a single run is in use until it is stopped. It becomes idle only if the
                // server is killed.
                Persistence::Run => session.idle_ms.min(RUN_IDLE_MS),
            },
            on_timeout: OnTimeout::Stop,
            labels: [(SESSION_LABEL.to_owned(), session.id.to_string())].into(),
            env: Default::default(),
            datasets: Default::default(),
            policy: Some(session.policy.clone()),
        };
        let once = format!("session {} {}", session.id, record.spent);
        let making = async {
            let (sandbox, _) =
                platform.create_own(account, NewSandbox::resumed_by_any_request(request, Some(once))).await?;
            trace::about(&sandbox.id);
            Ok(sandbox)
        };
        making.instrument(trace::create()).await
    }

    /// Stops the session's sandbox, if it has one. After a failure, logs the error and returns false; the
    /// sandbox's own limits then end it later (requirement A1.04).
    pub(super) async fn release(
        &self,
        platform: &Platform,
        account: &Account,
        record: &mut SessionRecord,
    ) -> bool {
        let Some(id) = record.session.sandbox.clone() else { return true };
        let stopping = async {
            trace::about(&id);
            platform.stop(account, id.as_str()).await
        };
        let stopped = match stopping.instrument(trace::stop()).await {
            Ok(_) => true,
            Err(fault) if fault.error().code == ErrorCode::NotFound => true,
            Err(fault) => {
                tracing::warn!(
                    session = %self.id,
                    sandbox = %id,
                    error = fault.error().message,
                    "cannot stop the sandbox of the session"
                );
                false
            }
        };
        self.spend(record);
        stopped
    }

    /// Records that the sandbox has its initial files. If the sandbox is for a single run, the record is not
    /// saved, because no later call uses the sandbox.
    pub(super) async fn prepared(&self, platform: &Platform) -> Answer<()> {
        let mut record = self.record.lock().await;
        record.prepared = true;
        match record.session.persistence {
            Persistence::Session => self.save(platform, &record).await,
            Persistence::Run => Ok(()),
        }
    }

    /// Detaches the sandbox from the session, so that the next call gets a new one.
    pub(super) fn spend(&self, record: &mut SessionRecord) {
        record.session.sandbox = None;
        record.spent += 1;
        record.prepared = false;
        record.placed.clear();
    }
}
