//! One sandbox as everybody sees it: what is published of it, and who is using it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::SandboxId;
use api::exec::ExecSpec;
use api::policy::Policy;
use api::sandbox::{OnTimeout, Sandbox as Shown, SandboxState};
use guest_client::sandbox::Sandbox;
use host::error::Error;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tracing::Span;

use crate::journal::{Ports, Record};
use crate::message::DriverMessage;
use crate::secrets::Vault;

/// A guest is told how long it lives within this.
pub(crate) const LIFE_WITHIN: Duration = Duration::from_secs(10);
/// Time that a guest lives longer than its sandbox if the server is to pause the sandbox at its timeout. The server does that in time if
/// it runs; a server that was stopped for longer finds the sandbox expired.
pub(crate) const GUEST_MARGIN: Duration = Duration::from_secs(3600);

/// One sandbox as everybody sees it.
pub(crate) struct Handle {
    id: SandboxId,
    record: watch::Sender<Record>,
    /// There while it runs.
    sandbox: Mutex<Option<Arc<Sandbox>>>,
    inbox: mpsc::Sender<DriverMessage>,
    /// Calls in progress.
    calls: AtomicU32,
    uses: Mutex<Uses>,
    /// What may leave it, for those who let it.
    policy: watch::Sender<Policy>,
    saving: Mutex<()>,
    /// Held while its guest is told how long it lives, until that is recorded.
    lifetime: tokio::sync::Mutex<()>,
    /// Who keeps the secrets that its policy may bind.
    vault: Arc<dyn Vault>,
    /// The authority that its programs were told to trust, if they were.
    trusted: Mutex<Option<String>>,
    /// Whether its guest was told what its interpreter begins with.
    prepared: AtomicBool,
    /// Whether its memory and disk are taken, while it is starting.
    made: AtomicBool,
    /// The request that asked for its end.
    asker: Mutex<Option<Span>>,
}

/// When a sandbox was last used, and when it must be looked at.
struct Uses {
    active: Instant,
    idle: Duration,
    /// When the first exec with a deadline should have ended.
    due: Option<Instant>,
    /// When its execs are to be asked for in any case: what they are due is not known.
    look: Option<Instant>,
}

impl Handle {
    pub fn new(record: Record, inbox: mpsc::Sender<DriverMessage>, vault: Arc<dyn Vault>) -> Self {
        let idle = Duration::from_millis(record.sandbox.idle_ms);
        Self {
            id: record.sandbox.id.clone(),
            policy: watch::Sender::new(record.sandbox.policy.clone()),
            record: watch::Sender::new(record),
            sandbox: Mutex::default(),
            inbox,
            calls: AtomicU32::new(0),
            uses: Mutex::new(Uses { active: Instant::now(), idle, due: None, look: None }),
            saving: Mutex::default(),
            lifetime: tokio::sync::Mutex::default(),
            vault,
            trusted: Mutex::default(),
            prepared: AtomicBool::new(false),
            made: AtomicBool::new(false),
            asker: Mutex::default(),
        }
    }

    pub fn id(&self) -> &SandboxId {
        &self.id
    }

    /// What is written down of it.
    pub fn record(&self) -> Record {
        self.record.borrow().clone()
    }

    /// Whether its ports pass a check. Nothing is copied: every sandbox may be asked for one request.
    pub fn has_ports(&self, is_right: impl Fn(&Ports) -> bool) -> bool {
        is_right(&self.record.borrow().ports)
    }

    /// Locks the record for a change, from reading it to writing it. Used by [`crate::update`] only.
    pub fn alone(&self) -> MutexGuard<'_, ()> {
        locked(&self.saving)
    }

    /// What is shown of it.
    pub fn shown(&self) -> Shown {
        self.record.borrow().sandbox.clone()
    }

    pub fn state(&self) -> SandboxState {
        self.record.borrow().sandbox.state
    }

    pub fn expires_boot_ms(&self) -> u64 {
        self.record.borrow().expires_boot_ms
    }

    /// Says something to its driver. A driver whose inbox is full has enough to do and will look at everything.
    pub fn tell(&self, message: DriverMessage) {
        let _ = self.inbox.try_send(message);
    }

    /// Says something that must be heard.
    pub async fn insist(&self, message: DriverMessage) {
        let _ = self.inbox.send(message).await;
    }

    /// Waits until its state is one of these.
    pub async fn until(&self, wanted: impl Fn(SandboxState) -> bool) -> Shown {
        let mut watch = self.record.subscribe();
        match watch.wait_for(|record| wanted(record.sandbox.state)).await {
            Ok(record) => record.sandbox.clone(),
            // We hold the sender.
            Err(_) => self.shown(),
        }
    }

    pub fn hold(&self, sandbox: Arc<Sandbox>) {
        *locked(&self.sandbox) = Some(sandbox);
    }

    pub fn let_go(&self) {
        *locked(&self.sandbox) = None;
    }

    pub fn sandbox(&self) -> Option<Arc<Sandbox>> {
        locked(&self.sandbox).clone()
    }

    pub fn idle(&self) -> Duration {
        locked(&self.uses).idle
    }

    /// Whoever tells its guest how long it lives holds this lock, so that the last one told is the one recorded.
    ///
    /// # Errors
    /// Others hold it for too long, because the guest does not answer them.
    pub async fn lifetime(&self) -> Result<tokio::sync::MutexGuard<'_, ()>, Error> {
        let what = "telling the sandbox its time to live";
        let lock = tokio::time::timeout(LIFE_WITHIN, self.lifetime.lock());
        lock.await.map_err(|_| Error::Deadline { what, after: LIFE_WITHIN })
    }

    /// How long it may still live.
    pub fn left(&self) -> Duration {
        Duration::from_millis(self.expires_boot_ms().saturating_sub(host::clock::boot_ms()))
    }

    /// Whether it is paused, being paused, or being resumed: then its guest does not answer.
    pub fn is_paused(&self) -> bool {
        self.sandbox().is_some_and(|sandbox| sandbox.link().is_paused())
    }

    /// Whether it was made ahead and is nobody's yet: then it is not there for anybody.
    pub fn is_pooled(&self) -> bool {
        self.record.borrow().pooled
    }

    /// The request under way asks for its end: what that takes is told of it.
    pub fn asked_by(&self, request: Span) {
        locked(&self.asker).get_or_insert(request);
    }

    /// Who asked for its end.
    pub fn take_asker(&self) -> Option<Span> {
        locked(&self.asker).take()
    }

    /// Whether its memory and disk are taken.
    pub fn is_made(&self) -> bool {
        self.made.load(Ordering::Acquire)
    }

    /// They are from now on.
    pub fn now_made(&self) {
        self.made.store(true, Ordering::Release);
    }

    /// Replaces the record, and what is derived from it. Only two callers: [`crate::update`], and the pool for a claimed sandbox,
    /// whose record is journalled together with its next phase.
    pub fn replace(&self, record: Record) {
        locked(&self.uses).idle = Duration::from_millis(record.sandbox.idle_ms);
        let policy = record.sandbox.policy.clone();
        self.record.send_replace(record);
        self.policy.send_if_modified(|current| {
            let changed = *current != policy;
            *current = policy;
            changed
        });
    }

    /// What may leave it, now and later.
    pub fn policy(&self) -> watch::Receiver<Policy> {
        self.policy.subscribe()
    }

    /// Who keeps the secrets that its policy may bind.
    pub fn vault(&self) -> &Arc<dyn Vault> {
        &self.vault
    }

    /// Whether its programs were told to trust this authority.
    pub fn trusts(&self, certificate: &str) -> bool {
        locked(&self.trusted).as_deref() == Some(certificate)
    }

    /// They were told now.
    pub fn now_trusts(&self, certificate: &str) {
        *locked(&self.trusted) = Some(certificate.to_owned());
    }

    /// Whether its guest was told what its interpreter begins with.
    pub fn is_prepared(&self) -> bool {
        self.prepared.load(Ordering::Acquire)
    }

    /// It was told now.
    pub fn now_prepared(&self) {
        self.prepared.store(true, Ordering::Release);
    }

    /// What an exec is asked to do, and what the policy and the template say where it does not.
    pub fn dressed(&self, record: &Record, spec: ExecSpec) -> ExecSpec {
        let policy = &record.sandbox.policy;
        // What a policy binds stands before what a template says.
        let spec = crate::secrets::pointed(policy, &self.id, spec);
        let spec = template::apply(&record.env, record.cwd.as_ref(), spec);
        guest_client::egress::pointed(policy, spec)
    }

    /// It was in use then.
    pub fn active(&self, then: Instant) {
        let mut uses = locked(&self.uses);
        uses.active = uses.active.max(then);
    }

    /// How long until it is idle, as far as is known here.
    pub fn idle_left(&self, now: Instant) -> Duration {
        let uses = locked(&self.uses);
        if self.calls.load(Ordering::Acquire) > 0 {
            return uses.idle;
        }
        (uses.active + uses.idle).saturating_duration_since(now)
    }

    /// It was resumed then. When its execs are due is asked of its guest, because the time of the pause does not count.
    pub fn resumed(&self, then: Instant) {
        let mut uses = locked(&self.uses);
        (uses.active, uses.due, uses.look) = (then, None, Some(then));
    }

    /// When its execs are to be looked at next, for another reason than that it may be idle.
    pub fn next_look(&self) -> Option<Instant> {
        let uses = locked(&self.uses);
        uses.due.into_iter().chain(uses.look).min()
    }

    /// An exec should have ended by then.
    pub fn due_at(&self, at: Instant) {
        let mut uses = locked(&self.uses);
        uses.due = uses.due.into_iter().chain([at]).min();
    }

    /// Its execs are to be asked for then.
    pub fn look_at(&self, at: Instant) {
        locked(&self.uses).look = Some(at);
    }

    /// Whether its execs are to be asked for now, and if so, whether one of them should have ended. What is due after that is
    /// learned from the answer, and from execs that are started meanwhile.
    pub fn take_look(&self, now: Instant) -> Option<bool> {
        let idle = self.idle_left(now).is_zero();
        let mut uses = locked(&self.uses);
        let due = uses.due.take_if(|at| *at <= now).is_some();
        let look = uses.look.take_if(|at| *at <= now).is_some();
        (idle || due || look).then_some(due)
    }

    /// Waits until the sandbox is not paused, or has ended.
    pub async fn until_resumed(&self) {
        if let Some(sandbox) = self.sandbox() {
            sandbox.link().resumed().await;
        }
    }

    /// How often the sandbox was paused since this process has it.
    pub fn pauses(&self) -> u64 {
        self.sandbox().map_or(0, |sandbox| sandbox.link().pauses())
    }

    /// Whether it runs or is paused, so that a request can resume it.
    pub fn is_resumable(&self) -> bool {
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

    /// Sees to it that programs inside can trust the authority of their project.
    pub(crate) async fn trust(&self, sandbox: &Sandbox) -> Result<(), Error> {
        let authority = self.vault().authority(&self.shown().project).await.map_err(Error::Request)?;
        let certificate = authority.certificate();
        if self.trusts(certificate) {
            return Ok(());
        }
        sandbox.trust(certificate).await?;
        self.now_trusts(certificate);
        Ok(())
    }

    /// Counts a use of the sandbox, which is not idle meanwhile, and returns the sandbox.
    ///
    /// # Errors
    /// The sandbox does not run, or is paused.
    pub fn begin_use(&self) -> Result<Arc<Sandbox>, Error> {
        let sandbox = self.sandbox().filter(|_| self.state() == SandboxState::Running);
        let Some(sandbox) = sandbox else { return Err(not_running(&self.shown())) };
        if sandbox.link().is_paused() {
            return Err(paused(&self.id));
        }
        self.calls.fetch_add(1, Ordering::AcqRel);
        Ok(sandbox)
    }

    /// Ends what [`Self::begin_use`] began.
    pub fn end_use(&self) {
        self.active(Instant::now());
        self.calls.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The error for a call to a sandbox that does not run.
pub fn not_running(shown: &Shown) -> Error {
    let (code, ran, retry, fix) = match shown.state {
        SandboxState::Starting => {
            (api::ErrorCode::Conflict, api::Ran::No, api::Retry::Safe, "Retry when the sandbox is running.")
        }
        SandboxState::Paused => return paused(&shown.id),
        SandboxState::Running | SandboxState::Stopping | SandboxState::Ended | SandboxState::Lost => (
            api::ErrorCode::SandboxLost,
            api::Ran::No,
            api::Retry::Useless,
            "Create a new sandbox, because the processes of this sandbox have ended.",
        ),
    };
    let why = shown.reason.map(|reason| format!(" ({})", reason.name())).unwrap_or_default();
    let message = format!("sandbox {} is {}{why}", shown.id, shown.state.name());
    Error::Request(api::Error { code, message, layer: api::Layer::Sandbox, ran, retry, fix: fix.into() })
}

fn paused(id: &SandboxId) -> Error {
    Error::Request(api::Error {
        code: api::ErrorCode::Conflict,
        message: format!("sandbox {id} is paused"),
        layer: api::Layer::Sandbox,
        ran: api::Ran::No,
        retry: api::Retry::Useless,
        fix: "Resume the sandbox first: `bellglass resume`.".into(),
    })
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
