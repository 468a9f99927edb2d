//! State shared by all requests, and operations that take more than one step.
//!
//! | module | contents |
//! |---|---|
//! | `create` | creation of sandboxes |
//! | `health` | health checks of the server |

mod create;
mod health;

use std::sync::Arc;
use std::time::Duration;

use api::sandbox::{EndReason, Sandbox};
use api::{Error, ErrorCode, SandboxId};
use node::{Node, clock};

use crate::account::{Account, Accounts};
use crate::audit::{Act, Audit, Entry};
use crate::fault::Answer;
use crate::metrics::Metrics;
use crate::session::Sessions;
use crate::store::Store;
use crate::trace::Traces;
use crate::vault::Vault;
pub use create::NewSandbox;
use health::HealthChecks;

/// Timeout for a stop request. Stopping a sandbox takes milliseconds. After the timeout, the caller gets an
/// error, and the stop continues.
const STOP_WITHIN: Duration = Duration::from_secs(60);
/// Interval between attempts to stop a sandbox that the node does not know yet. A create request takes about
/// this long to reach the node.
const STOP_AGAIN: Duration = Duration::from_millis(10);

/// The platform on one machine.
pub struct Platform {
    /// The node of this machine.
    pub node: Node,
    /// Accounts, and the history of sandboxes.
    pub store: Store,
    /// Secrets.
    pub vault: Arc<Vault>,
    /// The audit log.
    pub audit: Audit,
    /// Authentication and limits of projects.
    pub accounts: Accounts,
    /// Counters.
    pub metrics: Metrics,
    /// Traces of requests.
    pub traces: Traces,
    /// Agent sessions in use.
    pub sessions: Sessions,
    checks: HealthChecks,
}

impl Platform {
    /// Creates a platform from its parts. Does not start any background work; [`crate::follow`] does.
    pub fn new(node: Node, store: Store, audit: Audit) -> Self {
        let vault = Arc::new(Vault::new(store.clone(), node.data()));
        node.keep_secrets_in(Arc::clone(&vault) as Arc<dyn node::secrets::Vault>);
        let (accounts, metrics, sessions) = (Accounts::default(), Metrics::default(), Sessions::default());
        let (traces, checks) = (Traces::default(), HealthChecks::new());
        Self { node, store, vault, audit, accounts, metrics, traces, sessions, checks }
    }

    /// Sets the state for tracing requests.
    #[must_use]
    pub fn traced_by(self, traces: Traces) -> Self {
        Self { traces, ..self }
    }

    /// Records an action of the account in the audit log.
    pub fn note(&self, account: &Account, act: Act, with: impl FnOnce(Entry) -> Entry) {
        let entry = Entry::new(clock::wall_ms(), act).key(&account.key.id).project(&account.key.project);
        self.audit.record(with(entry));
    }

    /// Returns the project's sandbox with this ID or name. A sandbox of another project is reported as
    /// missing after the same amount of work.
    ///
    /// # Errors
    /// Returns `not_found` if the sandbox does not exist, and a different error if the store does not
    /// respond.
    pub async fn sandbox(&self, account: &Account, named: &str) -> Answer<Sandbox> {
        let id = named.parse::<SandboxId>().map_err(|_| missing(named))?;
        let is_own = |shown: &Sandbox| shown.project == account.key.project || api::defence::is_off("X-01");
        let live = self.node.find(&id).filter(is_own);
        if let Some(shown) = live {
            return Ok(shown);
        }
        let stored = self.store.sandbox(&account.key.project, named).await?.ok_or_else(|| missing(named))?;
        // The node has the current state; the store also knows earlier sandboxes.
        Ok(self.node.find(&stored.id).unwrap_or(stored))
    }

    /// Returns a sandbox of this project that has not ended.
    ///
    /// # Errors
    /// See [`Platform::sandbox`]. Also returns `sandbox_lost`, with the cause, if the sandbox has ended.
    pub async fn running(&self, account: &Account, named: &str) -> Answer<Sandbox> {
        let sandbox = self.sandbox(account, named).await?;
        if sandbox.state.is_terminal() {
            return Err(node::not_running(&sandbox).into());
        }
        Ok(sandbox)
    }

    /// Stops a sandbox, and waits until all parts of it have been removed.
    ///
    /// # Errors
    /// See [`Platform::sandbox`]. Also returns `deadline` if the sandbox does not stop in time.
    pub async fn stop(&self, account: &Account, named: &str) -> Answer<Sandbox> {
        let sandbox = self.sandbox(account, named).await?;
        if sandbox.state.is_terminal() {
            return Ok(sandbox);
        }
        self.note(account, Act::SandboxStop, |entry| entry.sandbox(&sandbox.id));
        let stopping = self.stopped(account, &sandbox.id);
        let Ok(ended) = tokio::time::timeout(STOP_WITHIN, stopping).await else {
            return Err(node::Error::Deadline { what: "stopping the sandbox", after: STOP_WITHIN }.into());
        };
        let ended = ended?;
        // Save the final state before responding, so that the quota and the name are free when the caller
        // continues.
        let _ = self.store.moved(&ended).await;
        Ok(ended)
    }

    /// Stops a sandbox on the node. A create request writes a row to the store before it reaches the node.
    /// Therefore, while the node does not know the sandbox and the sandbox has not ended, retries the stop.
    async fn stopped(&self, account: &Account, id: &SandboxId) -> Answer<Sandbox> {
        loop {
            if let Some(ended) = self.node.stop(id, EndReason::Stopped).await {
                return Ok(ended);
            }
            let stored = self.sandbox(account, id.as_str()).await?;
            if stored.state.is_terminal() {
                return Ok(stored);
            }
            tokio::time::sleep(STOP_AGAIN).await;
        }
    }

    /// Returns the current state of the sandbox on the node, and saves it in the store. If the store cannot
    /// be written now, a later change updates it.
    pub async fn saved(&self, sandbox: Sandbox) -> Sandbox {
        let Some(shown) = self.node.find(&sandbox.id) else { return sandbox };
        let _ = self.store.moved(&shown).await;
        shown
    }
}

/// Builds the error for a sandbox that does not exist in this project.
pub fn missing(named: &str) -> Error {
    let shown: String = named.chars().take(api::id::ID_BYTES_MAX).collect();
    Error {
        code: ErrorCode::NotFound,
        fix: "List the sandboxes (`bellglass list --all`) and use one of them.".into(),
        ..Error::not_found(format!("there is no sandbox {shown:?}"))
    }
}
