//! The handle of one sandbox: its published record and its current use.

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
/// Additional time to live of a guest whose sandbox is paused, not stopped, when the sandbox's own time to
/// live has passed. A running server pauses the sandbox in time. A server that was down for longer than this
/// margin finds the sandbox expired.
pub(crate) const GUEST_MARGIN: Duration = Duration::from_secs(3600);

/// The handle of one sandbox, shared by its driver and all other tasks.
pub(crate) struct Handle {
    id: SandboxId,
    record: watch::Sender<SandboxRecord>,
    /// Set when startup finishes, and cleared when the sandbox has ended.
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
    /// Vault with the secrets that the sandbox's policy may bind.
    vault: Arc<dyn Vault>,
    /// Certificate of the authority that the sandbox's programs trust, if one was installed.
    trusted: Mutex<Option<String>>,
    /// True if the guest has received the configuration of the interpreter.
    prepared: AtomicBool,
    /// True if the sandbox's memory and disk are allocated. Relevant only while the sandbox is starting.
    made: AtomicBool,
    /// Span of the request that stops the sandbox.
    asker: Mutex<Option<Span>>,
}

/// The last use of a sandbox, and the times at which its execs must be checked.
struct Uses {
    active: Instant,
    idle: Duration,
    /// Time at which the first exec with a deadline should have ended.
    due: Option<Instant>,
    /// Time at which the execs must be checked in any case, because their deadlines are not known.
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

    /// Returns the sandbox's journal record.
    pub fn record(&self) -> SandboxRecord {
        self.record.borrow().clone()
    }

    /// Checks the sandbox's ports without copying them, because one request may check the ports of every
    /// sandbox.
    pub fn has_ports(&self, is_right: impl Fn(&Ports) -> bool) -> bool {
        is_right(&self.record.borrow().ports)
    }

    /// Locks the record for the duration of a change, from reading the record to writing it. Only
    /// [`crate::update`] uses this lock.
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

    /// Sends a message to the driver without waiting. If the inbox is full, the message is dropped: a driver
    /// that is this busy checks all limits afterwards.
    pub fn tell(&self, message: DriverMessage) {
        let _ = self.inbox.try_send(message);
    }

    /// Sends a message to the driver, and waits for space in the inbox.
    pub async fn insist(&self, message: DriverMessage) {
        let _ = self.inbox.send(message).await;
    }

    /// Waits until the sandbox's state satisfies `wanted`.
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

    /// Locks the guest's time to live, so that the last value sent to the guest is also the recorded value.
    ///
    /// # Errors
    /// The wait timed out: the guest does not respond to the current holder of the lock.
    pub async fn lifetime(&self) -> Result<tokio::sync::MutexGuard<'_, ()>, Error> {
        let what = "telling the sandbox its time to live";
        let lock = tokio::time::timeout(LIFE_WITHIN, self.lifetime.lock());
        lock.await.map_err(|_| Error::Deadline { what, after: LIFE_WITHIN })
    }

    /// Returns the sandbox's remaining time to live.
    pub fn left(&self) -> Duration {
        Duration::from_millis(self.expires_boot_ms().saturating_sub(host::clock::boot_ms()))
    }

    /// Returns true if the sandbox is paused, being paused, or being resumed. In these states, its guest may
    /// not respond.
    pub fn is_paused(&self) -> bool {
        self.sandbox().is_some_and(|sandbox| sandbox.link().is_paused())
    }

    /// Returns true if the sandbox was pre-warmed and has not been claimed yet. Such a sandbox is invisible
    /// to clients.
    pub fn is_pooled(&self) -> bool {
        self.record.borrow().pooled
    }

    /// Records the request that stops the sandbox, so that the stop appears in the trace of that request.
    /// Only the first request counts.
    pub fn asked_by(&self, request: Span) {
        locked(&self.asker).get_or_insert(request);
    }

    /// Takes the span of the request that stops the sandbox.
    pub fn take_asker(&self) -> Option<Span> {
        locked(&self.asker).take()
    }

    /// Returns true if the sandbox's memory and disk are allocated.
    pub fn is_made(&self) -> bool {
        self.made.load(Ordering::Acquire)
    }

    /// Records that the sandbox's memory and disk are allocated.
    pub fn now_made(&self) {
        self.made.store(true, Ordering::Release);
    }

    /// Replaces the record and the values derived from it. There are only two callers: [`crate::update`], and
    /// the pool for a claimed sandbox, whose record is journalled together with its next phase.
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

    /// Subscribes to the sandbox's egress policy.
    pub fn policy(&self) -> watch::Receiver<Policy> {
        self.policy.subscribe()
    }

    /// Returns the vault with the secrets that the sandbox's policy may bind.
    pub fn vault(&self) -> &Arc<dyn Vault> {
        &self.vault
    }

    /// Returns true if the sandbox's programs trust this authority.
    pub fn trusts(&self, certificate: &str) -> bool {
        locked(&self.trusted).as_deref() == Some(certificate)
    }

    /// Records that the sandbox's programs trust this authority.
    pub fn now_trusts(&self, certificate: &str) {
        *locked(&self.trusted) = Some(certificate.to_owned());
    }

    /// Returns true if the guest has received the configuration of the interpreter.
    pub fn is_prepared(&self) -> bool {
        self.prepared.load(Ordering::Acquire)
    }

    /// Records that the guest has received the configuration of the interpreter.
    pub fn now_prepared(&self) {
        self.prepared.store(true, Ordering::Release);
    }

    /// Completes the spec of an exec with the variables and the directory from the policy and the template.
    pub fn dressed(&self, record: &SandboxRecord, spec: ExecSpec) -> ExecSpec {
        let policy = &record.sandbox.policy;
        // Variables from the policy take precedence over variables from the template.
        let spec = crate::secrets::pointed(policy, &self.id, spec);
        let spec = template::apply(&record.env, record.cwd.as_ref(), spec);
        guest_client::egress::pointed(policy, spec)
    }

    /// Records that the sandbox was used at this time.
    pub fn active(&self, then: Instant) {
        let mut uses = locked(&self.uses);
        uses.active = uses.active.max(then);
    }

    /// Returns the time until the sandbox becomes idle, judging by the uses that have been recorded so far.
    pub fn idle_left(&self, now: Instant) -> Duration {
        let uses = locked(&self.uses);
        if self.calls.load(Ordering::Acquire) > 0 {
            return uses.idle;
        }
        (uses.active + uses.idle).saturating_duration_since(now)
    }

    /// Records that the sandbox was resumed. The deadlines of its execs must be read from the guest again,
    /// because time spent paused does not count.
    pub fn resumed(&self, then: Instant) {
        let mut uses = locked(&self.uses);
        (uses.active, uses.due, uses.look) = (then, None, Some(then));
    }

    /// Returns the time at which the execs must next be checked for any reason other than idle time.
    pub fn next_look(&self) -> Option<Instant> {
        let uses = locked(&self.uses);
        uses.due.into_iter().chain(uses.look).min()
    }

    /// Records the time by which an exec should have ended.
    pub fn due_at(&self, at: Instant) {
        let mut uses = locked(&self.uses);
        uses.due = uses.due.into_iter().chain([at]).min();
    }

    /// Schedules a check of the sandbox's execs.
    pub fn look_at(&self, at: Instant) {
        locked(&self.uses).look = Some(at);
    }

    /// Returns `None` if the execs need no check now. Otherwise, returns `Some(true)` if one of them should
    /// have ended by now, and `Some(false)` if not. Later deadlines are learned from the result of the check,
    /// and from execs that are started in the meantime.
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

    /// Returns true if the sandbox is running or paused, so that a request can resume it.
    pub fn is_resumable(&self) -> bool {
        [SandboxState::Running, SandboxState::Paused].contains(&self.state())
    }

    /// Returns true if a timeout pauses the sandbox instead of stopping it.
    pub fn pauses_on_timeout(&self) -> bool {
        self.record().sandbox.on_timeout == OnTimeout::Pause
    }

    /// Returns the guest's time to live for a sandbox whose time to live is `ttl`.
    pub fn guest_ttl(&self, ttl: Duration) -> Duration {
        if self.pauses_on_timeout() { ttl.saturating_add(GUEST_MARGIN) } else { ttl }
    }

    /// Installs the certificate of the project's authority in the sandbox, unless it is already installed.
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

    /// Counts a use of the sandbox, and returns the sandbox. The sandbox is not idle until the use ends.
    ///
    /// # Errors
    /// The sandbox is not running, or is paused.
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

/// Returns the error for a call to a sandbox that is not running.
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
