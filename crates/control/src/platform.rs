//! What all requests share, and the decisions that are more than one step.

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
use crate::ports::Ports;
use crate::ports::name::Domain;
use crate::session::Sessions;
use crate::store::{Request, Requested, Store};
use crate::trace::Traces;
use crate::vault::Vault;

/// A sandbox is tried this often; what is told of health is never older by much.
const TRY_EVERY: Duration = Duration::from_secs(30);
/// The store is looked at this often at most.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A stop takes milliseconds. Whoever waits longer is told so, and the stop goes on.
const STOP_WITHIN: Duration = Duration::from_secs(60);
/// Interval between two attempts to stop a sandbox that is not on its node yet: about the time that a create needs to get there.
const STOP_AGAIN: Duration = Duration::from_millis(10);
/// A try that takes longer has failed.
const TRY_WITHIN: Duration = Duration::from_secs(20);
/// How often a request is taken anew whose start was interrupted: once is enough, unless the store has not heard of it.
const ASK_AGAIN_MAX: u32 = 3;

/// The platform on one machine.
pub struct Platform {
    /// The machine.
    pub node: Node,
    /// What must be true.
    pub store: Store,
    /// What nobody may see.
    pub vault: Arc<Vault>,
    /// Who did what.
    pub audit: Audit,
    /// Who may ask.
    pub accounts: Accounts,
    /// What is counted.
    pub metrics: Metrics,
    /// Where the time of requests went.
    pub traces: Traces,
    /// How ports inside are reached.
    pub ports: Ports,
    /// Sessions in use.
    pub sessions: Sessions,
    /// Clients that speak the API of E2B.
    pub e2b: crate::e2b::State,
    /// Clients that speak MCP.
    pub mcp: tools::mcp::Service,
    tried: Tried,
}

/// A request for a sandbox.
pub struct NewSandbox {
    /// Parameters of the sandbox.
    pub request: CreateSandbox,
    /// The key that makes a repeated request return the same sandbox.
    pub idempotency: Option<String>,
    /// Which requests resume the sandbox when it is paused.
    pub auto_resume: AutoResume,
}

/// How the last try of a sandbox went.
struct Tried {
    began: Instant,
    /// Milliseconds from `began` to the last try that ended; 0 before the first.
    at_ms: AtomicU64,
    /// How long it took; `u64::MAX` if it did not work.
    took_ms: AtomicU64,
    /// When the store was last looked at, and whether it answered.
    store: tokio::sync::Mutex<Option<(Instant, bool)>>,
}

impl NewSandbox {
    /// A request for a sandbox that every request resumes.
    pub fn once(request: CreateSandbox, idempotency: Option<String>) -> Self {
        Self { request, idempotency, auto_resume: AutoResume::default() }
    }
}

impl Platform {
    /// Puts the parts together. Nothing runs yet: see [`crate::follow::begin`].
    pub fn new(node: Node, store: Store, audit: Audit) -> Self {
        let tried = Tried {
            began: Instant::now(),
            at_ms: AtomicU64::new(0),
            took_ms: AtomicU64::new(u64::MAX),
            store: tokio::sync::Mutex::default(),
        };
        let vault = Arc::new(Vault::new(store.clone(), node.data()));
        node.keep_secrets_in(Arc::clone(&vault) as Arc<dyn node::secrets::Vault>);
        let (accounts, metrics, ports) = (Accounts::default(), Metrics::default(), Ports::default());
        let (sessions, mcp) = (Sessions::default(), crate::mcp::service());
        let traces = Traces::default();
        let e2b = crate::e2b::State::default();
        Self { e2b, node, store, vault, audit, accounts, metrics, traces, ports, sessions, mcp, tried }
    }

    /// The same, with what keeps the steps of requests.
    #[must_use]
    pub fn traced_by(self, traces: Traces) -> Self {
        Self { traces, ..self }
    }

    /// The same, with ports under this domain.
    #[must_use]
    pub fn ports_under(self, domain: Domain) -> Self {
        Self { ports: Ports::under(domain), ..self }
    }

    /// Writes down who did what.
    pub fn note(&self, account: &Account, act: Act, with: impl FnOnce(Entry) -> Entry) {
        let entry = Entry::new(clock::wall_ms(), act).key(&account.key.id).project(&account.key.project);
        self.audit.record(with(entry));
    }

    /// Makes a sandbox, once for each idempotency key. Says whether it was made now.
    ///
    /// It goes on to the end even if whoever asked is gone: what was begun becomes a sandbox, whose lease then counts, or
    /// nothing.
    ///
    /// # Errors
    /// It is refused, or the start failed and nothing is left.
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

    /// The same for a part of the server, which may set labels that are reserved.
    ///
    /// # Errors
    /// Likewise.
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

    /// Writes down what became of a request for a sandbox. One that was made before is not made now.
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
        let order = ordered(account, (request, auto_resume));
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
        // Whoever repeats a request is answered from what is known, at any rate.
        let mut again = 0..ASK_AGAIN_MAX;
        let (sandbox, new) = loop {
            match self.store.request(&ask).await {
                Ok(Requested::New(sandbox)) => break (sandbox, true),
                Ok(Requested::Known(sandbox)) => {
                    let settled = self.node.settled(&sandbox.id).await.unwrap_or_else(|| sandbox.clone());
                    if settled.reason != Some(EndReason::Interrupted) || again.next().is_none() {
                        // What could not be started is not there, however often it is asked for.
                        if let (Some(EndReason::StartFailed), Some(error)) = (settled.reason, settled.error) {
                            return Err(error.into());
                        }
                        break (sandbox, false);
                    }
                    // The server was killed during its start. Nothing ran in it that was asked for, and its end gives the key back.
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
                // The node has it and tells the store, for which nobody has to wait.
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

    /// A sandbox as it is asked for, under the id of one that is ready for it or under a fresh one. What is wrong with the order is
    /// told by the node when it is to be made: a request that was made before is answered in any case.
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

    /// Whether a request was made before: it is answered from what is known, also by a machine that takes no others.
    async fn knows(&self, project: &str, key: Option<&str>) -> Answer<bool> {
        match key {
            Some(key) => Ok(self.store.knows_key(project, key).await?),
            None => Ok(false),
        }
    }

    /// Takes back a request that the node refused before it began; of one that it had begun the node itself tells the end.
    async fn gave_up(&self, sandbox: &Sandbox) {
        let ended = match self.node.find(&sandbox.id) {
            Some(shown) => self.store.moved(&shown).await,
            None => self.store.withdraw(&sandbox.id).await,
        };
        if let Err(error) = ended {
            // It is compared with the node again, at the latest at the next start of the server.
            tracing::warn!(
                sandbox = %sandbox.id,
                error = node::error::chain(&error),
                "cannot record in the store that a sandbox failed to start"
            );
        }
    }

    /// A sandbox of this project, by id or by name. One of another project is not there, and looking for it takes as long.
    ///
    /// # Errors
    /// `not_found`, or the store does not answer.
    pub async fn sandbox(&self, account: &Account, named: &str) -> Answer<Sandbox> {
        let id = named.parse::<SandboxId>().map_err(|_| missing(named))?;
        let live = self.node.find(&id).filter(|shown| shown.project == account.key.project);
        if let Some(shown) = live {
            return Ok(shown);
        }
        let stored = self.store.sandbox(&account.key.project, named).await?.ok_or_else(|| missing(named))?;
        // The node knows better how it is; the store, that it was.
        Ok(self.node.find(&stored.id).unwrap_or(stored))
    }

    /// A sandbox of this project that has not ended.
    ///
    /// # Errors
    /// As [`Platform::sandbox`]; and `sandbox_lost`, with why, where it has.
    pub async fn running(&self, account: &Account, named: &str) -> Answer<Sandbox> {
        let sandbox = self.sandbox(account, named).await?;
        if sandbox.state.is_terminal() {
            return Err(node::not_running(&sandbox).into());
        }
        Ok(sandbox)
    }

    /// Ends a sandbox and waits until nothing of it is left.
    ///
    /// # Errors
    /// As [`Platform::sandbox`].
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
        // Asked for right away, so that the quota and the name are free when this is answered.
        let _ = self.store.moved(&ended).await;
        Ok(ended)
    }

    /// Stops a sandbox on its node. A create writes its row to the store before the node has the sandbox, so a sandbox that the node
    /// does not know, and that has not ended, is asked for again.
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

    /// The sandbox as the node has it now, saved in the store. The store learns it later if it cannot save it now.
    pub async fn saved(&self, sandbox: Sandbox) -> Sandbox {
        let Some(shown) = self.node.find(&sandbox.id) else { return sandbox };
        let _ = self.store.moved(&shown).await;
        shown
    }

    /// Whether all of it works.
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

    /// Whether the store can be written. Anybody may ask for the health, and each look takes a turn of those who write: so
    /// what was seen a moment ago is told again.
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

    /// Tries a sandbox again and again.
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

/// The error for a sandbox that is not there, or not this project's.
pub fn missing(named: &str) -> Error {
    let shown: String = named.chars().take(api::id::ID_BYTES_MAX).collect();
    Error {
        code: ErrorCode::NotFound,
        fix: "List the sandboxes (`bellglass list --all`) and use one of them.".into(),
        ..Error::not_found(format!("there is no sandbox {shown:?}"))
    }
}

/// What somebody asks for, with what their project may have.
fn ordered(account: &Account, (request, auto_resume): (CreateSandbox, AutoResume)) -> Order {
    let (may_open, may_root) = (account.quota.open, account.quota.root);
    Order { project: account.key.project.clone(), request, may_open, may_root, auto_resume }
}
