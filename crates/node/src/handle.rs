//! Handle of one sandbox: its published record and its current use.

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

use crate::journal::{Ports, SandboxRecord};
use crate::message::DriverMessage;
use crate::secrets::Vault;

/// Timeout for sending the time to live to a guest.
pub(crate) const LIFE_WITHIN: Duration = Duration::from_secs(10);
/// Extra time that a guest lives beyond its sandbox's time to live if the server pauses the sandbox at its
/// timeout. A running server pauses it in time; a server that was down for longer finds the sandbox expired.
pub(crate) const GUEST_MARGIN: Duration = Duration::from_secs(3600);

/// Handle of one sandbox, shared by its driver and all other tasks.
pub(crate) struct Handle {
    id: SandboxId,
    record: watch::Sender<SandboxRecord>,
    /// Present from the end of the start until the sandbox has ended.
    sandbox: Mutex<Option<Arc<Sandbox>>>,
    inbox: mpsc::Sender<DriverMessage>,
    /// Number of calls in progress.
    calls: AtomicU32,
    uses: Mutex<Uses>,
    /// Current egress policy, for the tasks that enforce it.
    policy: watch::Sender<Policy>,
    saving: Mutex<()>,
    /// Held while the guest's time to live is changed, until the change is recorded.
    lifetime: tokio::sync::Mutex<()>,
    /// Vault with the secrets that its policy may bind.
    vault: Arc<dyn Vault>,
    /// Certificate of the authority that its programs trust, if one was installed.
    trusted: Mutex<Option<String>>,
    /// True if its guest has received the configuration of its interpreter.
    prepared: AtomicBool,
    /// True if its memory and disk are allocated. Relevant while it is starting.
    made: AtomicBool,
    /// Span of the request that stops it.
    asker: Mutex<Option<Span>>,
}

/// Last use of a sandbox, and the times at which its execs must be checked.
struct Uses {
    active: Instant,
    idle: Duration,
    /// Time at which the first exec with a deadline should have ended.
    due: Option<Instant>,
    /// Time at which its execs must be checked in any case, because their deadlines are not known.
    look: Option<Instant>,
}

impl Handle {
    pub fn new(record: SandboxRecord, inbox: mpsc::Sender<DriverMessage>, vault: Arc<dyn Vault>) -> Self {
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

    /// Returns its journal record.
    pub fn record(&self) -> SandboxRecord {
        self.record.borrow().clone()
    }

    /// Checks its ports without copying them: one request may check the ports of every sandbox.
    pub fn has_ports(&self, is_right: impl Fn(&Ports) -> bool) -> bool {
        is_right(&self.record.borrow().ports)
    }

    /// Locks the record for a change, from reading it to writing it. Used by [`crate::update`] only.
    pub fn alone(&self) -> MutexGuard<'_, ()> {
        locked(&self.saving)
    }

    /// Returns the sandbox as clients see it.
    pub fn shown(&self) -> Shown {
        self.record.borrow().sandbox.clone()
    }

    pub fn state(&self) -> SandboxState {
        self.record.borrow().sandbox.state
    }

    pub fn expires_boot_ms(&self) -> u64 {
        self.record.borrow().expires_boot_ms
    }

    /// Sends a message to its driver without waiting. A full inbox drops the message: a driver that is this
    /// busy checks all limits afterwards.
    pub fn tell(&self, message: DriverMessage) {
        let _ = self.inbox.try_send(message);
    }

    /// Sends a message to its driver, and waits for space in the inbox.
    pub async fn insist(&self, message: DriverMessage) {
        let _ = self.inbox.send(message).await;
    }

    /// Waits until its state satisfies `wanted`.
    pub async fn until(&self, wanted: impl Fn(SandboxState) -> bool) -> Shown {
        let mut watch = self.record.subscribe();
        match watch.wait_for(|record| wanted(record.sandbox.state)).await {
            Ok(record) => record.sandbox.clone(),
            // Unreachable: `self` holds the sender.
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

    /// Locks the guest's time to live, so that the last value sent to the guest is the recorded one.
    ///
    /// # Errors
    /// The wait timed out: the guest does not respond to the current holder of the lock.
    pub async fn lifetime(&self) -> Result<tokio::sync::MutexGuard<'_, ()>, Error> {
        let what = "telling the sandbox its time to live";
        let lock = tokio::time::timeout(LIFE_WITHIN, self.lifetime.lock());
        lock.await.map_err(|_| Error::Deadline { what, after: LIFE_WITHIN })
    }

    /// Returns its remaining time to live.
    pub fn left(&self) -> Duration {
        Duration::from_millis(self.expires_boot_ms().saturating_sub(host::clock::boot_ms()))
    }

    /// Returns true if it is paused, being paused, or being resumed. Its guest does not respond then.
    pub fn is_paused(&self) -> bool {
        self.sandbox().is_some_and(|sandbox| sandbox.link().is_paused())
    }

    /// Returns true if it was pre-warmed and is not claimed yet. Such a sandbox is invisible to clients.
    pub fn is_pooled(&self) -> bool {
        self.record.borrow().pooled
    }

    /// Records the request that stops it, so that the stop appears in the trace of that request. Only the
    /// first request counts.
    pub fn asked_by(&self, request: Span) {
        locked(&self.asker).get_or_insert(request);
    }

    /// Takes the span of the request that stops it.
    pub fn take_asker(&self) -> Option<Span> {
        locked(&self.asker).take()
    }

    /// Returns true if its memory and disk are allocated.
    pub fn is_made(&self) -> bool {
        self.made.load(Ordering::Acquire)
    }

    /// Records that its memory and disk are allocated.
    pub fn now_made(&self) {
        self.made.store(true, Ordering::Release);
    }

    /// Replaces the record and the values derived from it. Only two callers: [`crate::update`], and the pool
    /// for a claimed sandbox, whose record is journalled together with its next phase.
    pub fn replace(&self, record: SandboxRecord) {
        locked(&self.uses).idle = Duration::from_millis(record.sandbox.idle_ms);
        let policy = record.sandbox.policy.clone();
        self.record.send_replace(record);
        self.policy.send_if_modified(|current| {
            let changed = *current != policy;
            *current = policy;
            changed
        });
    }

    /// Subscribes to its egress policy.
    pub fn policy(&self) -> watch::Receiver<Policy> {
        self.policy.subscribe()
    }

    /// Returns the vault with the secrets that its policy may bind.
    pub fn vault(&self) -> &Arc<dyn Vault> {
        &self.vault
    }

    /// Returns true if its programs trust this authority.
    pub fn trusts(&self, certificate: &str) -> bool {
        locked(&self.trusted).as_deref() == Some(certificate)
    }

    /// Records that its programs trust this authority.
    pub fn now_trusts(&self, certificate: &str) {
        *locked(&self.trusted) = Some(certificate.to_owned());
    }

    /// Returns true if its guest has received the configuration of its interpreter.
    pub fn is_prepared(&self) -> bool {
        self.prepared.load(Ordering::Acquire)
    }

    /// Records that its guest has received the configuration of its interpreter.
    pub fn now_prepared(&self) {
        self.prepared.store(true, Ordering::Release);
    }

    /// Completes the spec of an exec with the variables and the directory from the policy and the template.
    pub fn dressed(&self, record: &SandboxRecord, spec: ExecSpec) -> ExecSpec {
        let policy = &record.sandbox.policy;
        // Variables from the policy take precedence over those of the template.
        let spec = crate::secrets::pointed(policy, &self.id, spec);
        let spec = template::apply(&record.env, record.cwd.as_ref(), spec);
        guest_client::egress::pointed(policy, spec)
    }

    /// Records a use at this time.
    pub fn active(&self, then: Instant) {
        let mut uses = locked(&self.uses);
        uses.active = uses.active.max(then);
    }

    /// Returns the time until it is idle, as far as the node knows.
    pub fn idle_left(&self, now: Instant) -> Duration {
        let uses = locked(&self.uses);
        if self.calls.load(Ordering::Acquire) > 0 {
            return uses.idle;
        }
        (uses.active + uses.idle).saturating_duration_since(now)
    }

    /// Records that it was resumed. The deadlines of its execs must be read from its guest again, because
    /// paused time does not count.
    pub fn resumed(&self, then: Instant) {
        let mut uses = locked(&self.uses);
        (uses.active, uses.due, uses.look) = (then, None, Some(then));
    }

    /// Returns the time of the next check of its execs for any reason other than idle time.
    pub fn next_look(&self) -> Option<Instant> {
        let uses = locked(&self.uses);
        uses.due.into_iter().chain(uses.look).min()
    }

    /// Records the time by which an exec should have ended.
    pub fn due_at(&self, at: Instant) {
        let mut uses = locked(&self.uses);
        uses.due = uses.due.into_iter().chain([at]).min();
    }

    /// Schedules a check of its execs.
    pub fn look_at(&self, at: Instant) {
        locked(&self.uses).look = Some(at);
    }

    /// Returns `None` if its execs need no check now, otherwise `Some(true)` if one of them should have
    /// ended. Later deadlines are learned from the result of the check and from execs that are started
    /// meanwhile.
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

    /// Returns the number of pauses since this process started or took over the sandbox.
    pub fn pauses(&self) -> u64 {
        self.sandbox().map_or(0, |sandbox| sandbox.link().pauses())
    }

    /// Returns true if it runs or is paused, so that a request can resume it.
    pub fn is_resumable(&self) -> bool {
        [SandboxState::Running, SandboxState::Paused].contains(&self.state())
    }

    /// Returns true if it is paused at its timeout instead of stopped.
    pub fn pauses_on_timeout(&self) -> bool {
        self.record().sandbox.on_timeout == OnTimeout::Pause
    }

    /// Returns the time to live for its guest, if `ttl` is that of the sandbox.
    pub fn guest_ttl(&self, ttl: Duration) -> Duration {
        if self.pauses_on_timeout() { ttl.saturating_add(GUEST_MARGIN) } else { ttl }
    }

    /// Installs the certificate of the project's authority in the sandbox, unless it is installed already.
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

    /// Counts a use of the sandbox, which is not idle meanwhile. Returns the sandbox.
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

    /// Ends a use that [`Self::begin_use`] counted.
    pub fn end_use(&self) {
        self.active(Instant::now());
        self.calls.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Returns the error for a call to a sandbox that does not run.
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
