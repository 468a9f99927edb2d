//! The table that owns all execs. Requests attach to its execs and detach from them.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hasher};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use api::exec::{ExecInfo, ExecSpec, Outcome};
use api::{Error, ErrorCode, ExecId, Layer, Ran, Retry, limits};
use rustix::process::Pid;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::code;
use crate::context::ContextProcess;
use crate::contexts::Contexts;
use crate::dial::Descriptors;
use crate::exec::GuestExec;
use crate::launch::{Identity, Launched, PendingStart, Purpose, launch, no_terminal, verdict};
use crate::memory::Kills;
use crate::parent::Parent;
use crate::sweep::{self, KnownGroups, Strays};

/// Maximum total output of ended execs while the disk has room for it: see [`ExecTable::forget_oldest`].
const KEPT_BYTES_MAX: u64 = 64_000_000;

/// Maximum number of concurrent requests with a helper process. Each helper process takes a few pages of
/// memory.
const ASSISTANTS_MAX: usize = 64;

/// The component that isolates this sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum House {
    /// The node's own runtime.
    Ours,
    /// A container engine. Process 1 shares the cgroup of user code.
    Engine,
    /// Process 1, which has set up its own walls.
    Walls,
}

/// The table of execs.
pub struct ExecTable {
    execs: RefCell<HashMap<ExecId, Rc<GuestExec>>>,
    /// IDs in order of start. The oldest ended execs are removed first.
    order: RefCell<VecDeque<ExecId>>,
    processes: RefCell<HashMap<Pid, Child>>,
    /// Long-lived interpreters.
    pub contexts: Contexts,
    /// Parent interpreter, from which Python runs are forked.
    pub parent: Parent,
    purpose: Purpose,
    house: House,
    cgroups: RefCell<Vec<OwnedFd>>,
    kills: Rc<Kills>,
    next_group: Cell<u32>,
    groups_reused: Cell<bool>,
    /// Groups in use.
    known: KnownGroups,
    assistants: Rc<Cell<usize>>,
    /// End of the sandbox's time to live, which applies even if the node is gone.
    expires: watch::Sender<Instant>,
    /// True if the sandbox is paused, or about to be.
    holding: Cell<bool>,
}

/// Owner of a process.
pub enum Child {
    /// An exec.
    Exec(Rc<GuestExec>),
    /// A context.
    Context(Rc<ContextProcess>),
}

/// A helper process that runs this program for one request, isolated like user code.
pub struct Assistant {
    group: u32,
    count: Rc<Cell<usize>>,
    known: KnownGroups,
}

impl ExecTable {
    /// Creates an empty table for a sandbox with this purpose and time to live.
    pub fn new(purpose: Purpose, house: House, ttl: Duration) -> Self {
        let kills: Rc<Kills> = Rc::default();
        if house == House::Engine {
            kills.look_ourselves();
        }
        Self {
            purpose,
            house,
            execs: RefCell::default(),
            order: RefCell::default(),
            processes: RefCell::default(),
            contexts: Contexts::default(),
            parent: Parent::default(),
            cgroups: RefCell::default(),
            kills,
            next_group: Cell::new(*limits::EXEC_GROUPS.start()),
            groups_reused: Cell::new(false),
            known: KnownGroups::default(),
            assistants: Rc::default(),
            expires: watch::Sender::new(after(ttl)),
            holding: Cell::new(false),
        }
    }

    /// Sets the time to live, which counts from now.
    fn live_for(&self, ttl: Duration) {
        self.expires.send_replace(after(ttl));
    }

    /// Stops the deadlines of all execs, because the sandbox is about to be paused. Also sets the sandbox's
    /// time to live.
    pub fn hold(&self, ttl: Duration) {
        self.live_for(ttl);
        self.holding.set(true);
        self.execs.borrow().values().for_each(|exec| exec.hold_time());
    }

    /// Resumes the deadlines of all execs if they were stopped. Also sets the sandbox's time to live.
    pub fn release(&self, ttl: Duration) {
        self.live_for(ttl);
        self.holding.set(false);
        self.execs.borrow().values().for_each(|exec| exec.release_time());
    }

    /// Waits for the end of the time to live.
    pub async fn expired(&self) {
        let mut expires = self.expires.subscribe();
        loop {
            let at = *expires.borrow_and_update();
            tokio::select! {
                // After a pause, the timer may fire before this task is notified of a later end, so check the
                // end again.
                () = tokio::time::sleep_until(at) => if *expires.borrow() <= Instant::now() {
                    return;
                },
                // This cannot fail, because `self` owns the sender.
                _ = expires.changed() => {}
            }
        }
    }

    /// Takes ownership of the descriptors that the node sent with a new connection.
    pub fn attend(&self, descriptors: Descriptors) {
        self.cgroups.replace(descriptors.cgroups);
        self.kills.attend(descriptors.oom_count, descriptors.oom_event);
    }

    /// Returns true if an intermediary relays the bytes between node and guest.
    pub fn is_relayed(&self) -> bool {
        self.house != House::Ours
    }

    /// Returns true if the sandbox has a user-space kernel: the node sent no cgroup descriptors, and no
    /// container engine runs the sandbox.
    pub fn in_user_kernel(&self) -> bool {
        self.cgroups.borrow().is_empty() && self.house == House::Ours
    }

    /// Starts an exec, or finds the exec that an identical earlier request started. Both requests wait for
    /// the same result, so a repeated request gets the same answer.
    pub async fn start(
        self: &Rc<Self>,
        id: ExecId,
        spec: ExecSpec,
        body: &[u8],
    ) -> Result<Rc<GuestExec>, Error> {
        let fingerprint = fingerprint(body);
        spec.check()?;
        spec.check_root(self.purpose.has_root())?;
        self.kills.settled().await;
        let exec = match self.exec(&id) {
            Ok(known) => same(&id, known, fingerprint)?,
            Err(_not_found) => self.begin(id, spec, fingerprint)?,
        };
        exec.begun().await?;
        Ok(exec)
    }

    /// Starts the process of a new exec. This function never awaits, and a separate task does the remaining
    /// work. So even if the request's connection breaks, the exec is started completely or not at all.
    pub fn begin(
        self: &Rc<Self>,
        id: ExecId,
        spec: ExecSpec,
        fingerprint: u64,
    ) -> Result<Rc<GuestExec>, Error> {
        self.make_room()?;
        if spec.code.is_some() {
            return code::begin(self, id, spec, fingerprint);
        }
        if spec.terminal.is_some() {
            self.make_terminal_room()?;
        }
        let group = self.group();
        let exec = Rc::new(GuestExec::new(id.clone(), &spec, fingerprint, group, Rc::clone(&self.kills)));
        let who = self.purpose.identity(&spec, group);
        if self.purpose == Purpose::Rooted && who.uid == 0 {
            exec.watch_strays(Strays::from_now(&self.known));
        }
        let Launched { pid, verdict, ends } = self.launch(&spec, who, &[])?;
        // Register the process before the first await: the process may end meanwhile, or the request may be
        // repeated.
        self.adopt(pid, Child::Exec(Rc::clone(&exec)));
        let streams = exec.hold(ends);
        exec.clock();
        self.know(&exec, id.clone());
        let (table, begun) = (Rc::clone(self), Rc::clone(&exec));
        tokio::task::spawn_local(async move {
            if table.judged(id, &spec, &begun, verdict).await {
                begun.live(streams).await;
            }
        });
        Ok(exec)
    }

    /// Waits until it is known whether an exec started, and reports this to all waiters. Returns true if the
    /// exec started.
    async fn judged(&self, id: ExecId, spec: &ExecSpec, exec: &GuestExec, said: PendingStart) -> bool {
        let verdict = verdict(spec, exec.group(), said).await;
        self.judge(&id, exec, verdict)
    }

    /// Reports to all waiters whether an exec started. Returns true if it did.
    pub fn judge(&self, id: &ExecId, exec: &GuestExec, verdict: Result<(), Error>) -> bool {
        let lives = verdict.is_ok();
        if !lives {
            // Remove the exec before the report, so that a repeated request starts a new exec.
            self.execs.borrow_mut().remove(id);
            self.known.borrow_mut().remove(&exec.group());
            self.order.borrow_mut().retain(|other| other != id);
            exec.hang_up();
        }
        exec.judge(verdict);
        lives
    }

    /// Adds an exec to the table, in order of start.
    pub fn know(&self, exec: &Rc<GuestExec>, id: ExecId) {
        if self.holding.get() {
            exec.hold_time();
        }
        self.execs.borrow_mut().insert(id.clone(), Rc::clone(exec));
        self.order.borrow_mut().push_back(id);
    }

    /// Starts a process in the cgroup of user code.
    pub fn launch(&self, spec: &ExecSpec, who: Identity, extra: &[OwnedFd]) -> Result<Launched, Error> {
        launch(spec, who, &self.cgroups.borrow(), extra)
    }

    /// Registers a process, so that its end is reported to its owner.
    pub fn adopt(&self, pid: Pid, child: Child) {
        self.processes.borrow_mut().insert(pid, child);
    }

    /// Returns the counter of OOM kills.
    pub fn memory(&self) -> &Rc<Kills> {
        &self.kills
    }

    /// Starts a helper process for a request. This process is not an exec: it has no ID and no outcome.
    pub async fn assist(&self, spec: &ExecSpec) -> Result<(Launched, Assistant), Error> {
        spec.check_root(self.purpose.has_root())?;
        self.kills.settled().await;
        if self.assistants.get() >= ASSISTANTS_MAX {
            return Err(Error {
                code: ErrorCode::Capacity,
                message: format!("{ASSISTANTS_MAX} file requests are in progress, the maximum"),
                layer: Layer::Sandbox,
                ran: Ran::No,
                retry: Retry::Safe,
                fix: "Retry when some of these requests have finished.".into(),
            });
        }
        let group = self.group();
        let launched = self.launch(spec, self.purpose.identity(spec, group), &[])?;
        self.assistants.set(self.assistants.get() + 1);
        let (count, known) = (Rc::clone(&self.assistants), Rc::clone(&self.known));
        Ok((launched, Assistant { group, count, known }))
    }

    /// Returns the exec with this ID.
    pub fn exec(&self, id: &ExecId) -> Result<Rc<GuestExec>, Error> {
        self.execs.borrow().get(id).cloned().ok_or_else(|| Error::not_found(format!("there is no exec {id}")))
    }

    /// Returns the current state of all execs, in the order of their start.
    pub fn list(&self) -> Vec<ExecInfo> {
        let census = sweep::census();
        let execs = self.execs.borrow();
        let order = self.order.borrow();
        order
            .iter()
            .filter_map(|id| execs.get(id))
            .map(|exec| exec.info(census.get(&exec.group()).copied().unwrap_or(0)))
            .collect()
    }

    /// Cancels a running exec. Has no effect on an ended exec.
    pub fn cancel(&self, id: &ExecId) -> Result<(), Error> {
        self.exec(id)?.ask_to_end(Outcome::Cancelled);
        Ok(())
    }

    /// Reports the end of a reaped child to its owner. Ignores orphans, which have no owner.
    pub fn ended(&self, pid: Pid, outcome: Outcome) {
        match self.processes.borrow_mut().remove(&pid) {
            Some(Child::Exec(exec)) => exec.reaped(outcome),
            Some(Child::Context(process)) => process.reaped(outcome),
            None => {}
        }
    }

    /// Makes room for a new exec: removes the oldest ended execs if the table is full, and discards the
    /// oldest output if ended execs retain too much.
    fn make_room(&self) -> Result<(), Error> {
        let mut execs = self.execs.borrow_mut();
        let mut order = self.order.borrow_mut();
        while execs.len() >= limits::EXECS_MAX {
            let ended = order.iter().position(|id| execs.get(id).is_none_or(|exec| exec.has_ended()));
            let Some(id) = ended.and_then(|index| order.remove(index)) else {
                return Err(Error {
                    code: ErrorCode::Capacity,
                    message: format!("{} execs are already running", limits::EXECS_MAX),
                    layer: Layer::Sandbox,
                    ran: Ran::No,
                    retry: Retry::Safe,
                    fix: "Wait until some execs have finished, or cancel some of them.".into(),
                });
            };
            if let Some(exec) = execs.remove(&id) {
                self.known.borrow_mut().remove(&exec.group());
            }
        }
        let ended = || order.iter().filter_map(|id| execs.get(id)).filter(|exec| exec.has_ended());
        let mut kept: u64 = ended().map(|exec| exec.kept()).sum();
        for exec in ended() {
            if kept <= KEPT_BYTES_MAX {
                break;
            }
            kept -= exec.kept();
            let _ = exec.forget_output();
        }
        Ok(())
    }

    /// Discards the output of the oldest ended exec that has output on disk. Returns true if it found such an
    /// exec.
    pub fn forget_oldest(&self) -> bool {
        let (Ok(execs), Ok(order)) = (self.execs.try_borrow(), self.order.try_borrow()) else { return false };
        let oldest =
            order.iter().filter_map(|id| execs.get(id)).find(|exec| exec.end().is_some() && exec.has_file());
        oldest.is_some_and(|exec| exec.forget_output())
    }

    /// Returns an error if the maximum number of terminals is already open.
    fn make_terminal_room(&self) -> Result<(), Error> {
        let open = self.execs.borrow().values().filter(|exec| exec.has_terminal()).count();
        if open < limits::TERMINALS_MAX { Ok(()) } else { Err(no_terminal()) }
    }

    /// Allocates a group that no living process carries.
    pub fn group(&self) -> u32 {
        let (first, last) = limits::EXEC_GROUPS.into_inner();
        let next = |group: u32| if group == last { first } else { group + 1 };
        let mut group = self.next_group.get();
        if self.groups_reused.get() {
            let census = sweep::census();
            // Requests still query and signal ended execs by their group.
            let known: HashSet<u32> = self.execs.borrow().values().map(|exec| exec.group()).collect();
            while census.contains_key(&group) || known.contains(&group) {
                group = next(group);
            }
        }
        if group == last {
            self.groups_reused.set(true);
        }
        self.next_group.set(next(group));
        self.known.borrow_mut().insert(group);
        group
    }
}

impl Assistant {
    /// Returns the group of the helper process.
    pub fn group(&self) -> u32 {
        self.group
    }
}

impl Drop for Assistant {
    fn drop(&mut self) {
        self.count.set(self.count.get().saturating_sub(1));
        self.known.borrow_mut().remove(&self.group);
    }
}

fn same(id: &ExecId, exec: Rc<GuestExec>, fingerprint: u64) -> Result<Rc<GuestExec>, Error> {
    if exec.fingerprint == fingerprint {
        return Ok(exec);
    }
    Err(conflict(format!("exec {id} was started by another request"), "exec"))
}

/// Returns the error for an ID that is already used for something else.
pub fn conflict(message: String, what: &str) -> Error {
    Error {
        code: ErrorCode::Conflict,
        message,
        layer: Layer::UserCode,
        ran: Ran::No,
        retry: Retry::Useless,
        fix: format!("Choose a new id for a new {what}."),
    }
}

fn fingerprint(body: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(body);
    hasher.finish()
}

/// Returns the time `ttl` from now, limited to a century so that the sum cannot overflow.
fn after(ttl: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    Instant::now() + ttl.min(CENTURY)
}

#[cfg(test)]
mod tests {
    use rustix::process::{WaitOptions, waitpid};
    use tokio::task::LocalSet;

    use super::*;

    /// Runs a test on one thread, like the guest, and reaps the children afterwards.
    fn with_table(test: impl AsyncFn(&Rc<ExecTable>)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let table = Rc::new(ExecTable::new(Purpose::Run, House::Ours, Duration::MAX));
        LocalSet::new().block_on(&runtime, test(&table));
        for pid in table.processes.borrow().keys() {
            waitpid(Some(*pid), WaitOptions::empty()).unwrap();
        }
    }

    async fn start(table: &Rc<ExecTable>, program: &str) -> Result<Rc<GuestExec>, Error> {
        let spec = ExecSpec { argv: vec![program.into()], cwd: Some("/".into()), ..ExecSpec::default() };
        table.start("e1".parse().unwrap(), spec, program.as_bytes()).await
    }

    fn groups_taken(table: &ExecTable) -> u32 {
        table.next_group.get() - limits::EXEC_GROUPS.start()
    }

    #[test]
    fn a_start_that_is_asked_for_twice_is_answered_the_same_twice() {
        with_table(async |table| {
            let (first, second) = tokio::join!(start(table, "/nowhere"), start(table, "/nowhere"));
            let first = first.err().unwrap();
            assert_eq!((first.code, first.ran), (ErrorCode::SpawnFailed, Ran::No));
            assert_eq!(Some(first), second.err());
            assert!(table.list().is_empty(), "what never was is not listed");
            assert_eq!(groups_taken(table), 1, "it was tried once");
            // Without privileges, the start fails. Both requests must then get the same error.
            match tokio::join!(start(table, "/bin/true"), start(table, "/bin/true")) {
                (Ok(first), Ok(second)) => assert!(Rc::ptr_eq(&first, &second)),
                (first, second) => assert_eq!(first.err().unwrap(), second.err().unwrap()),
            }
            assert_eq!(groups_taken(table), 2);
        });
    }

    #[test]
    fn the_time_to_live_is_the_last_that_was_given() {
        with_table(async |table| {
            let waits = Duration::from_millis(50);
            assert!(tokio::time::timeout(waits, table.expired()).await.is_err());
            let shortened = async {
                tokio::task::yield_now().await;
                table.live_for(Duration::ZERO);
            };
            let expired = tokio::time::timeout(Duration::from_secs(10), table.expired());
            assert!(tokio::join!(expired, shortened).0.is_ok(), "whoever waits hears of it");
            table.live_for(Duration::MAX);
            assert!(tokio::time::timeout(waits, table.expired()).await.is_err());
        });
    }

    #[test]
    fn a_start_comes_to_its_verdict_when_the_request_for_it_is_gone() {
        with_table(async |table| {
            tokio::select! {
                biased;
                _ = start(table, "/nowhere") => panic!("nothing was awaited"),
                () = std::future::ready(()) => {}
            }
            let reader = table.exec(&"e1".parse().unwrap()).unwrap();
            let conflict = start(table, "/elsewhere").await.err().unwrap();
            assert_eq!(conflict.code, ErrorCode::Conflict);
            let error = start(table, "/nowhere").await.err().unwrap();
            assert_eq!(error.code, ErrorCode::SpawnFailed);
            assert_eq!(reader.begun().await, Err(error), "a reader that attached meanwhile hears it too");
            assert_eq!(groups_taken(table), 1, "it was tried once");
            start(table, "/nowhere").await.err().unwrap();
            assert_eq!(groups_taken(table), 2, "after the verdict it can be tried again");
        });
    }
}
