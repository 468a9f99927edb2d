//! Creation of sandboxes: from a request, through the store, to the node.

use std::sync::Arc;

use api::ErrorCode;
use api::account::Quota;
use api::defence;
use api::limits::{Limits, WantedLimits};
use api::sandbox::{CreateSandbox, EndReason, Sandbox, SandboxState, Start};
use api::trace::STEP;
use node::{AutoResume, Claim, Order, clock};
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use tracing::{Instrument as _, info_span};

use super::Platform;
use crate::account::Account;
use crate::audit::Act;
use crate::fault::{Answer, Fault};
use crate::store::{Request, Requested};

/// Maximum number of retries of a create request whose earlier attempt was interrupted. One retry is enough
/// unless the store does not contain the result of the interrupted attempt yet.
const ASK_AGAIN_MAX: u32 = 3;

/// A request for a sandbox.
pub struct NewSandbox {
    /// Parameters of the sandbox.
    pub request: CreateSandbox,
    /// Idempotency key. A repeated request with the same key returns the same sandbox.
    pub idempotency: Option<String>,
    /// Which requests resume the sandbox when it is paused.
    pub auto_resume: AutoResume,
}

impl NewSandbox {
    /// Creates a request for a sandbox that, when paused, is resumed by any request.
    pub fn resumed_by_any_request(request: CreateSandbox, idempotency: Option<String>) -> Self {
        Self { request, idempotency, auto_resume: AutoResume::default() }
    }
}

impl Platform {
    /// Creates a sandbox, at most one per idempotency key. The returned flag is true if the sandbox is new.
    ///
    /// The operation completes even if the caller disconnects. The result is then either a running sandbox,
    /// whose idle time has begun, or no sandbox at all.
    ///
    /// # Errors
    /// Returns an error if the request is rejected or the sandbox fails to start. In the latter case, all
    /// parts of the sandbox have been removed.
    pub async fn create(
        self: &Arc<Self>,
        account: &Arc<Account>,
        new: NewSandbox,
    ) -> Answer<(Sandbox, bool)> {
        if let Err(error) = new.request.check_asked() {
            let refused = Err(error.into());
            self.note_create(account, &refused);
            return refused;
        }
        self.create_own(account, new).await
    }

    /// Like [`Platform::create`], but for components of the server, which may set reserved labels.
    ///
    /// # Errors
    /// See [`Platform::create`].
    pub async fn create_own(
        self: &Arc<Self>,
        account: &Arc<Account>,
        new: NewSandbox,
    ) -> Answer<(Sandbox, bool)> {
        let (platform, account) = (Arc::clone(self), Arc::clone(account));
        let asked = Instant::now();
        let making = async move {
            let made = platform.make(&account, new, asked).await;
            platform.note_create(&account, &made);
            made
        };
        let made = tokio::spawn(making.in_current_span());
        made.await
            .map_err(|source| node::Error::System { act: "create a sandbox".into(), source: source.into() })?
    }

    /// Records the result of a create request in the audit log, unless an earlier request created the
    /// sandbox.
    fn note_create(&self, account: &Account, made: &Answer<(Sandbox, bool)>) {
        match made {
            Ok((_, false)) => {}
            Ok((sandbox, true)) => {
                let start = match sandbox.start {
                    Start::Cold => "cold",
                    Start::Warm => "warm",
                };
                self.note(account, Act::SandboxCreate, |entry| entry.sandbox(&sandbox.id).detail(start));
            }
            Err(fault) => {
                let code = fault.error().code.name();
                self.note(account, Act::SandboxRefused, |entry| entry.detail(code));
            }
        }
    }

    async fn make(&self, account: &Account, new: NewSandbox, asked: Instant) -> Answer<(Sandbox, bool)> {
        let NewSandbox { request, idempotency, auto_resume } = new;
        request.check()?;
        let project = account.key.project.clone();
        let hash: [u8; 32] = Sha256::digest(serde_json::to_vec(&request).unwrap_or_default()).into();
        let order = ordered(account, request, auto_resume);
        let (wanted, mut claim) = info_span!(target: STEP, "plan").in_scope(|| self.planned(&order))?;
        if let Some(claim) = &mut claim {
            claim.begin();
        }
        if claim.is_none()
            && let Err(error) = self.node.may_wait(&order, asked)
            && !self.knows(&project, idempotency.as_deref()).await?
        {
            self.metrics.create_failed(ErrorCode::Capacity);
            return Err(error.into());
        }
        let unlimited = Quota { sandboxes: u32::MAX, ..account.quota };
        let ask = Request {
            sandbox: &wanted,
            quota: if defence::is_off("X-08") { &unlimited } else { &account.quota },
            idempotency: idempotency.as_deref().filter(|_| !defence::is_off("H-08")).map(|key| (key, hash)),
        };
        // A repeated request gets its response from the store, even if the node has no capacity.
        let mut again = 0..ASK_AGAIN_MAX;
        let (sandbox, new) = loop {
            match self.store.request(&ask).await {
                Ok(Requested::New(sandbox)) => break (sandbox, true),
                Ok(Requested::Known(sandbox)) => {
                    let settled = self.node.settled(&sandbox.id).await.unwrap_or_else(|| sandbox.clone());
                    if settled.reason != Some(EndReason::Interrupted) || again.next().is_none() {
                        // If the sandbox failed to start, it does not exist. Return the same error again.
                        if let (Some(EndReason::StartFailed), Some(error)) = (settled.reason, settled.error) {
                            return Err(error.into());
                        }
                        break (sandbox, false);
                    }
                    // The server was killed while the sandbox was starting, so none of the caller's code ran
                    // in it. Record that the sandbox ended, which releases the idempotency key.
                    self.store.moved(&settled).await?;
                }
                Err(error) => {
                    if let crate::store::Error::Quota { .. } = error {
                        self.note(account, Act::QuotaRefused, |entry| entry);
                    }
                    return Err(error.into());
                }
            }
        };
        crate::trace::about(&sandbox.id);
        if sandbox.state != SandboxState::Starting {
            return Ok((sandbox, new));
        }
        let begun = Instant::now();
        match self.node.create(&sandbox.id, &order, claim).await {
            Ok(shown) => {
                // Do not make the caller wait for the store: `follow` updates the store from the node's
                // events.
                self.metrics.created(begun.elapsed());
                Ok((shown, new))
            }
            Err(error) => {
                let fault = Fault::from(error);
                let code = fault.error().code;
                self.metrics.create_failed(code);
                if code == ErrorCode::TierUnavailable {
                    self.note(account, Act::TierRefused, |entry| entry);
                }
                if code == ErrorCode::PostureMismatch {
                    self.note(account, Act::PostureMismatch, |entry| entry.sandbox(&sandbox.id));
                }
                self.gave_up(&sandbox).await;
                Err(fault)
            }
        }
    }

    /// Returns the requested sandbox, and a claim to a pre-warmed sandbox if one is available. In that case,
    /// the requested sandbox gets the ID of the pre-warmed one. If the node cannot plan the order, does not
    /// report the error. The node reports it when it creates the sandbox, because a repeated request must
    /// still get its first result.
    fn planned(&self, order: &Order) -> Answer<(Sandbox, Option<Claim>)> {
        let Order { project, request, .. } = order;
        let (limits, claim) = match self.node.plan(order) {
            Ok(plan) => (plan.limits(), self.node.claim(order, plan)),
            Err(_) => (request.limits.over(Limits::default()), None),
        };
        limits.check()?;
        let id = match &claim {
            Some(claim) => claim.id().clone(),
            None => node::machine::fresh_id()?,
        };
        let asked = Sandbox::asked(id, project, request, &WantedLimits::default(), clock::wall_ms());
        Ok((Sandbox { limits, ..asked }, claim))
    }

    /// Returns true if an earlier request had this idempotency key. Such a request gets a response even if
    /// the node has no capacity.
    async fn knows(&self, project: &str, key: Option<&str>) -> Answer<bool> {
        match key {
            Some(key) => Ok(self.store.knows_key(project, key).await?),
            None => Ok(false),
        }
    }

    /// Deletes the stored request for a sandbox that the node failed to create. If the node has a record of
    /// the sandbox, saves its state instead.
    async fn gave_up(&self, sandbox: &Sandbox) {
        let ended = match self.node.find(&sandbox.id) {
            Some(shown) => self.store.moved(&shown).await,
            None => self.store.withdraw(&sandbox.id).await,
        };
        if let Err(error) = ended {
            // A later comparison of the store with the node corrects this, at the latest when the server
            // restarts.
            tracing::warn!(
                sandbox = %sandbox.id,
                error = node::error::chain(&error),
                "cannot record in the store that a sandbox failed to start"
            );
        }
    }
}

/// Creates the order for a request, with the permissions that the project's quota grants.
fn ordered(account: &Account, request: CreateSandbox, auto_resume: AutoResume) -> Order {
    let (may_open, may_root) = (account.quota.open, account.quota.root);
    Order { project: account.key.project.clone(), request, may_open, may_root, auto_resume }
}
