//! One sandbox as everybody sees it: what is published of it, and who is using it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::exec::{ExecInfo, ExecSpec};
use api::policy::Policy;
use api::sandbox::{Sandbox as Shown, SandboxState};
use api::trace::STEP;
use api::{ExecId, SandboxId, limits};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tracing::{Instrument as _, Span, info_span};

use crate::driver::DriverMessage;
use crate::error::Error;
use crate::exec::Exec;
use crate::journal::{Ports, Record};
use crate::live::LIFE_WITHIN;
use crate::port::Port;
use crate::sandbox::Sandbox;
use crate::secrets::Vault;

/// One sandbox as everybody sees it.
pub(crate) struct Entry {
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

/// A call in progress: as long as it is held, the sandbox is not idle.
pub struct Call {
    entry: Arc<Entry>,
    sandbox: Arc<Sandbox>,
    /// Whether its files are opened as root.
    root_files: bool,
}

impl Entry {
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
        Duration::from_millis(self.expires_boot_ms().saturating_sub(crate::clock::boot_ms()))
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
        let spec = crate::template::apply(&record.env, record.cwd.as_ref(), spec);
        crate::egress::pointed(policy, spec)
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

    /// Begins a call.
    pub fn call(self: &Arc<Self>) -> Result<Call, Error> {
        let sandbox = self.sandbox().filter(|_| self.state() == SandboxState::Running);
        let Some(sandbox) = sandbox else { return Err(not_running(&self.shown())) };
        if sandbox.link().is_paused() {
            return Err(paused(&self.id));
        }
        self.calls.fetch_add(1, Ordering::AcqRel);
        Ok(Call { entry: Arc::clone(self), sandbox, root_files: false })
    }
}

impl Call {
    /// Starts a command or code under this id, with the template's variables and directory where it has none of its own.
    /// The same call again starts nothing. Artifacts are kept by [`crate::Node::exec`].
    ///
    /// # Errors
    /// As [`Sandbox::exec`].
    pub async fn exec(&self, id: &ExecId, spec: ExecSpec) -> Result<ExecInfo, Error> {
        let spec = self.prepared(spec).await?;
        let info = self.sandbox.launch(id, &spec).await?;
        self.due(&spec);
        Ok(info)
    }

    /// Starts it in the same way, to read what it writes from the first byte on.
    ///
    /// # Errors
    /// As [`Call::exec`].
    pub async fn follow(&self, id: &ExecId, spec: ExecSpec) -> Result<(ExecInfo, Exec), Error> {
        let spec = self.prepared(spec).await?;
        let begun = self.sandbox.begin(id, &spec).await?;
        self.due(&spec);
        Ok(begun)
    }

    /// What the guest is asked for.
    async fn prepared(&self, spec: ExecSpec) -> Result<ExecSpec, Error> {
        let record = self.entry.record();
        spec.check().and_then(|()| spec.check_root(record.rooted)).map_err(Error::Request)?;
        let spec = if spec.uid == Some(0) { at_home(spec) } else { spec };
        let spec = match spec.code.clone() {
            Some(code) => self.coded(&record, spec, &code).await?,
            None => self.entry.dressed(&record, spec),
        };
        if !record.sandbox.policy.secrets.is_empty() {
            self.entry.trust(&self.sandbox).instrument(info_span!(target: STEP, "trust")).await?;
        }
        Ok(spec)
    }

    /// Has the sandbox looked at when the exec should have ended.
    fn due(&self, spec: &ExecSpec) {
        if let Some(deadline) = spec.deadline_ms {
            let whole = deadline + spec.grace_ms.unwrap_or(limits::GRACE_MS) + crate::driver::OVERDUE_MS;
            self.entry.due_at(Instant::now() + Duration::from_millis(whole));
            self.entry.tell(DriverMessage::Look);
        }
    }

    /// The sandbox.
    pub fn id(&self) -> &SandboxId {
        self.entry.id()
    }

    /// The home of the user that code runs as.
    pub fn home(&self) -> String {
        let record = self.entry.record();
        record.env.get("HOME").cloned().unwrap_or_else(|| format!("/home/{}", limits::USER))
    }

    /// The directory that its template has commands start in, if it says one.
    pub fn directory(&self) -> Option<String> {
        self.entry.record().cwd
    }

    /// Whether root of its own user namespace may run commands.
    pub fn has_root(&self) -> bool {
        self.entry.record().rooted
    }

    /// A reader of an exec.
    pub fn reader(&self, id: ExecId) -> Exec {
        self.sandbox.reader(id)
    }

    /// Connects to a port inside. The sandbox is in use for as long as the connection is held.
    ///
    /// # Errors
    /// Nothing listens there, the sandbox has as many connections as it may, or has ended.
    pub async fn dial(self, port: u16) -> Result<Port, Error> {
        let sandbox = Arc::clone(&self.sandbox);
        sandbox.dial(port, Some(self)).await
    }

    /// All its execs.
    ///
    /// # Errors
    /// As [`Sandbox::execs`].
    pub async fn execs(&self) -> Result<Vec<ExecInfo>, Error> {
        self.sandbox.execs().await
    }
}

impl Call {
    /// The same call, whose files are opened as root of the sandbox's own user namespace.
    ///
    /// # Errors
    /// The sandbox has no root.
    pub fn with_root_files(mut self) -> Result<Self, Error> {
        let root = ExecSpec { uid: Some(0), ..ExecSpec::default() };
        root.check_root(self.has_root()).map_err(Error::Request)?;
        self.root_files = true;
        Ok(self)
    }

    /// Whether its files are opened as root.
    pub(crate) fn has_root_files(&self) -> bool {
        self.root_files
    }

    /// Whose call it is.
    pub(crate) fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// The sandbox, and the size of its disk.
    pub(crate) fn sandbox_and_disk(&self) -> (&Sandbox, u64) {
        (&self.sandbox, self.entry.shown().limits.disk_bytes)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.entry.active(Instant::now());
        self.entry.calls.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Root with a home of its own: the template's variables are its user's.
fn at_home(mut spec: ExecSpec) -> ExecSpec {
    for (name, value) in [("HOME", "/root"), ("USER", "root"), ("LOGNAME", "root")] {
        spec.env.entry(name.into()).or_insert_with(|| value.into());
    }
    spec
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
