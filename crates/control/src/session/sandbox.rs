//! The sandbox of a session: made for the first call, found for the next, replaced when it is gone, given up.

use std::sync::Arc;

use api::files::{FileAsk, FilePath};
use api::sandbox::{CreateSandbox, OnTimeout, SESSION_LABEL, Sandbox};
use api::session::Persistence;
use api::{Error, ErrorCode, SandboxId};
use node::{Call, folder};
use tracing::Instrument as _;

use super::{Live, Record, check_open, dataset_key};
use crate::account::{Account, Rate};
use crate::fault::Answer;
use crate::platform::{NewSandbox, Platform};
use crate::trace;

/// Folders that are there from the start (requirement A5.03).
const FOLDERS: [&str; 2] = ["/tmp/data", "/tmp/output"];
/// What the sandbox of a single run outlives a killed server by.
const RUN_IDLE_MS: u64 = 60_000;
/// How often a sandbox is asked for that turns out to be gone: once is enough, unless several have ended unseen.
const TRIES: u32 = 3;

/// A sandbox in use, and whether it is fresh.
pub struct Used {
    /// Its id.
    pub id: SandboxId,
    /// The call that keeps it in use.
    pub call: Call,
    /// Whether it has not got yet what one begins with.
    pub fresh: bool,
}

impl Live {
    /// The sandbox, with all its datasets. The record is held meanwhile: whoever ends the session waits, and then ends this one too.
    ///
    /// # Errors
    /// The session was ended, or no sandbox can be made, or a dataset cannot be copied; then the next call tries again.
    pub(super) async fn sandbox(&self, platform: &Arc<Platform>, account: &Arc<Account>) -> Answer<Used> {
        let mut record = self.record.lock().await;
        check_open(&record.session)?;
        let used = self.found_or_made(platform, account, &mut record).await?;
        // A server that was killed during an installation has left its policy there.
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
        record: &mut Record,
    ) -> Answer<Used> {
        if let Some(id) = record.session.sandbox.clone() {
            match platform.node.call(&id).await {
                // Of a run whose server was killed: no other may have it (requirement A10.04).
                Ok(_) if record.session.persistence == Persistence::Run => {
                    self.release(platform, account, record).await;
                }
                Ok(call) => return Ok(Used { id, call, fresh: !record.prepared }),
                Err(error) if !(error.is_missing() || error.is_ended()) => return Err(error.into()),
                Err(_) => {
                    // Requirement A1.07.
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
                    // The next call is to find a fresh one, or none.
                    self.release(platform, account, record).await;
                    let _ = self.save(platform, record).await;
                }
                return used;
            }
            // It was made for a call that a killed server never answered, and has ended since.
            self.spend(record);
            self.save(platform, record).await?;
            if tries.next().is_none() {
                return Err(node::not_running(&sandbox).into());
            }
        }
    }

    /// Writes down that a sandbox is the session's, and makes what is there from the start.
    async fn begun(&self, platform: &Platform, record: &Record, id: SandboxId) -> Answer<Used> {
        self.save(platform, record).await?;
        let call = platform.node.call(&id).await?;
        for folder in FOLDERS {
            let path = FilePath::new(folder)?;
            call.files().ask(&FileAsk::Make { path }).await?;
        }
        Ok(Used { id, call, fresh: true })
    }

    /// Asks for a sandbox under a name that is made of the session and how many it has had: a server that is killed in between finds it
    /// again instead of making another.
    async fn make(
        &self,
        platform: &Arc<Platform>,
        account: &Arc<Account>,
        record: &Record,
    ) -> Answer<Sandbox> {
        let session = &record.session;
        let request = CreateSandbox {
            name: None,
            template: session.template.clone(),
            tier: session.tier,
            limits: session.limits,
            idle_ms: match session.persistence {
                Persistence::Session => session.idle_ms,
                // It is in use until it is stopped: one that is idle has lost its server.
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
            let (sandbox, _) = platform.create_own(account, NewSandbox::once(request, Some(once))).await?;
            trace::about(&sandbox.id);
            Ok(sandbox)
        };
        making.instrument(trace::create()).await
    }

    /// Copies the datasets that the sandbox does not have yet (requirement A5.02).
    async fn place_datasets(&self, platform: &Platform, record: &mut Record, call: &Call) -> Answer<()> {
        let datasets = record.session.datasets.clone();
        let missing = datasets.iter().filter(|dataset| !record.placed.contains(&dataset.path));
        let missing: Vec<_> = missing.cloned().collect();
        if missing.is_empty() {
            return Ok(());
        }
        for dataset in missing {
            let outgoing = self.folder.read(&["datasets", &dataset_key(&dataset.name)]).await?;
            let gone = || Error {
                code: ErrorCode::Platform,
                fix: "Register the dataset again.".into(),
                ..Error::not_found(format!("the content of the dataset {:?} is missing", dataset.name))
            };
            let outgoing = outgoing.ok_or_else(gone)?;
            folder::give(&call.files(), FilePath::new(dataset.path.as_bytes())?, 0o644, outgoing).await?;
            record.placed.push(dataset.path);
        }
        self.save(platform, record).await?;
        Ok(())
    }

    /// Stops the sandbox, if there is one. What cannot be stopped is written to the log, and ends by its own limits (requirement A1.04); says
    /// whether nothing is left.
    pub(super) async fn release(&self, platform: &Platform, account: &Account, record: &mut Record) -> bool {
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

    /// Its sandbox has what one begins with. For a single run nobody asks again.
    pub(super) async fn prepared(&self, platform: &Platform) -> Answer<()> {
        let mut record = self.record.lock().await;
        record.prepared = true;
        match record.session.persistence {
            Persistence::Session => self.save(platform, &record).await,
            Persistence::Run => Ok(()),
        }
    }

    /// Has the next sandbox be another one.
    pub(super) fn spend(&self, record: &mut Record) {
        record.session.sandbox = None;
        record.spent += 1;
        record.prepared = false;
        record.placed.clear();
    }
}
