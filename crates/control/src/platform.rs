//! State shared by all requests, and operations that take more than one step.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use api::limits::{Limits, WantedLimits};
use api::sandbox::{CreateSandbox, EndReason, Sandbox, SandboxState, Start};
use api::server::Health;
use api::trace::STEP;
use api::{Error, ErrorCode, SandboxId};
use node::{AutoResume, Claim, Node, Order, clock};
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use tracing::{Instrument as _, info_span};

use crate::account::{Account, Accounts};
use crate::audit::{Act, Audit, Entry};
use crate::fault::{Answer, Fault};
use crate::metrics::Metrics;
use crate::session::Sessions;
use crate::store::{Request, Requested, Store};
use crate::trace::Traces;
use crate::vault::Vault;

/// Interval between health probes. The reported health is at most slightly older than this.
const TRY_EVERY: Duration = Duration::from_secs(30);
/// Minimum interval between checks of the store.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Timeout for a stop request. Stopping a sandbox takes milliseconds. After the timeout, the caller gets an
/// error, and the stop continues.
const STOP_WITHIN: Duration = Duration::from_secs(60);
/// Interval between attempts to stop a sandbox that the node does not know yet. A create request takes about
/// this long to reach the node.
const STOP_AGAIN: Duration = Duration::from_millis(10);
/// Timeout for a health probe.
const TRY_WITHIN: Duration = Duration::from_secs(20);
/// Maximum number of retries of a create request whose earlier attempt was interrupted. One retry is enough
/// unless the store does not contain the result of the interrupted attempt yet.
const ASK_AGAIN_MAX: u32 = 3;

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
    tried: Tried,
}

/// A request for a sandbox.
pub struct NewSandbox {
    /// Parameters of the sandbox.
    pub request: CreateSandbox,
    /// Idempotency key. A repeated request with the same key returns the same sandbox.
    pub idempotency: Option<String>,
    /// Which requests resume the sandbox when it is paused.
    pub auto_resume: AutoResume,
}

/// Results of the last health checks.
struct Tried {
    began: Instant,
    /// Milliseconds from `began` to the end of the last probe, or 0 before the first probe has ended.
    at_ms: AtomicU64,
    /// Duration of the last probe; `u64::MAX` if it failed.
    took_ms: AtomicU64,
    /// Time and result of the last check of the store.
    store: tokio::sync::Mutex<Option<(Instant, bool)>>,
}

impl NewSandbox {
    /// Creates a request for a sandbox that, when paused, is resumed by any request.
    pub fn once(request: CreateSandbox, idempotency: Option<String>) -> Self {
        Self { request, idempotency, auto_resume: AutoResume::default() }
    }
}

impl Platform {
    /// Creates a platform from its parts. Does not start any background work; [`crate::follow`] does.
    pub fn new(node: Node, store: Store, audit: Audit) -> Self {
        let tried = Tried {
            began: Instant::now(),
            at_ms: AtomicU64::new(0),
            took_ms: AtomicU64::new(u64::MAX),
            store: tokio::sync::Mutex::default(),
        };
        let vault = Arc::new(Vault::new(store.clone(), node.data()));
        node.keep_secrets_in(Arc::clone(&vault) as Arc<dyn node::secrets::Vault>);
        let (accounts, metrics, sessions) = (Accounts::default(), Metrics::default(), Sessions::default());
        Self { node, store, vault, audit, accounts, metrics, traces: Traces::default(), sessions, tried }
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
        let ask = Request {
            sandbox: &wanted,
            quota: &account.quota,
            idempotency: idempotency.as_deref().map(|key| (key, hash)),
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

    /// Returns the project's sandbox with this ID or name. A sandbox of another project is reported as
    /// missing after the same amount of work.
    ///
    /// # Errors
    /// Returns `not_found` if the sandbox does not exist, and a different error if the store does not
    /// respond.
    pub async fn sandbox(&self, account: &Account, named: &str) -> Answer<Sandbox> {
        let id = named.parse::<SandboxId>().map_err(|_| missing(named))?;
        let live = self.node.find(&id).filter(|shown| shown.project == account.key.project);
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

    /// Returns the health of the server.
    pub async fn health(&self) -> Health {
        let (at, took_ms) =
            (self.tried.at_ms.load(Ordering::Acquire), self.tried.took_ms.load(Ordering::Acquire));
        let now = clock::millis(self.tried.began.elapsed());
        let tried_ms_ago = now.saturating_sub(at);
        let late = clock::millis(2 * TRY_EVERY + TRY_WITHIN);
        let sandbox = at > 0 && took_ms != u64::MAX && tried_ms_ago < late;
        let store = self.store_answers().await;
        let took_ms = if took_ms == u64::MAX { 0 } else { took_ms };
        Health { ok: store && sandbox, store, sandbox, tried_ms_ago, took_ms }
    }

    /// Returns true if the store can be written. Reuses a recent result, because any caller may request the
    /// server's health, and each check delays other writers.
    async fn store_answers(&self) -> bool {
        let mut seen = self.tried.store.lock().await;
        match *seen {
            Some((at, answers)) if at.elapsed() < LOOK_EVERY => answers,
            Some(_) | None => {
                let answers = self.store.ping().await.is_ok();
                *seen = Some((Instant::now(), answers));
                answers
            }
        }
    }

    /// Runs a health probe of the node at regular intervals, forever.
    pub async fn try_sandboxes(&self) {
        loop {
            let begun = Instant::now();
            let tried = tokio::time::timeout(TRY_WITHIN, self.node.probe()).await;
            let took = match tried {
                Ok(Ok(())) => clock::millis(begun.elapsed()),
                Ok(Err(error)) => {
                    tracing::error!(
                        error = node::error::chain(&error),
                        "health probe failed: a test sandbox did not work"
                    );
                    u64::MAX
                }
                Err(_) => {
                    tracing::error!("health probe failed: a test sandbox took longer than {TRY_WITHIN:?}");
                    u64::MAX
                }
            };
            self.tried.took_ms.store(took, Ordering::Release);
            self.tried.at_ms.store(clock::millis(self.tried.began.elapsed()).max(1), Ordering::Release);
            tokio::time::sleep(TRY_EVERY).await;
        }
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

/// Creates the order for a request, with the permissions that the project's quota grants.
fn ordered(account: &Account, request: CreateSandbox, auto_resume: AutoResume) -> Order {
    let (may_open, may_root) = (account.quota.open, account.quota.root);
    Order { project: account.key.project.clone(), request, may_open, may_root, auto_resume }
}
