//! The table that owns all execs. Requests attach to its execs and detach from them.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use api::exec::{ExecInfo, ExecSpec, Outcome};
use api::{Error, ErrorCode, ExecId, Layer, Ran, Retry, limits};

use crate::exec::GuestExec;
use crate::groups::HeldGroup;
use crate::launch::{Launched, PendingStart, no_terminal, verdict};
use crate::processes::Processes;
use crate::sweep;

/// Maximum total output of ended execs while the disk has room for it: see [`ExecTable::forget_oldest`].
const KEPT_BYTES_MAX: u64 = 64_000_000;

/// The table of execs.
pub struct ExecTable {
    processes: Rc<Processes>,
    execs: RefCell<HashMap<ExecId, TableEntry>>,
    /// IDs in order of start. The oldest ended execs are removed first.
    order: RefCell<VecDeque<ExecId>>,
    /// True if the sandbox is paused, or about to be.
    holding: Cell<bool>,
}

struct TableEntry {
    exec: Rc<GuestExec>,
    /// Group of the exec's processes. A cell has none, because it runs in the process of its context.
    _group: Option<HeldGroup>,
}

impl ExecTable {
    /// Creates an empty table.
    pub fn new(processes: Rc<Processes>) -> Self {
        let (execs, order) = (RefCell::default(), RefCell::default());
        Self { processes, execs, order, holding: Cell::new(false) }
    }

    /// Stops the deadlines of all execs, because the sandbox is about to be paused.
    pub fn hold(&self) {
        self.holding.set(true);
        self.execs.borrow().values().for_each(|entry| entry.exec.hold_time());
    }

    /// Resumes the deadlines of all execs if they were stopped.
    pub fn release(&self) {
        self.holding.set(false);
        self.execs.borrow().values().for_each(|entry| entry.exec.release_time());
    }

    /// Starts the process of a new exec that runs a command. This function never awaits, and a separate task
    /// does the remaining work. So even if the request's connection breaks, the exec is started completely or
    /// not at all.
    pub fn begin(
        self: &Rc<Self>,
        id: ExecId,
        spec: ExecSpec,
        fingerprint: u64,
    ) -> Result<Rc<GuestExec>, Error> {
        self.make_room()?;
        if spec.terminal.is_some() {
            self.make_terminal_room()?;
        }
        let (processes, group) = (&self.processes, self.processes.group());
        let kills = Rc::clone(processes.memory());
        let exec = Rc::new(GuestExec::new(id.clone(), &spec, fingerprint, group.number(), kills));
        let who = processes.identity(&spec, group.number());
        if let Some(strays) = processes.strays_of(&who) {
            exec.watch_strays(strays);
        }
        let Launched { pid, verdict, ends } = processes.launch(&spec, who, &[])?;
        // Register the process before the first await: the process may end meanwhile, or the request may be
        // repeated.
        processes.adopt(pid, Rc::clone(&exec) as _);
        let streams = exec.hold(ends);
        exec.clock();
        self.know(&exec, id.clone(), Some(group));
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
            self.order.borrow_mut().retain(|other| other != id);
            exec.hang_up();
        }
        exec.judge(verdict);
        lives
    }

    /// Adds an exec to the table, in order of start. The table holds its group as long as the exec.
    pub fn know(&self, exec: &Rc<GuestExec>, id: ExecId, group: Option<HeldGroup>) {
        if self.holding.get() {
            exec.hold_time();
        }
        let entry = TableEntry { exec: Rc::clone(exec), _group: group };
        self.execs.borrow_mut().insert(id.clone(), entry);
        self.order.borrow_mut().push_back(id);
    }

    /// Returns the exec with this ID.
    pub fn exec(&self, id: &ExecId) -> Result<Rc<GuestExec>, Error> {
        let execs = self.execs.borrow();
        let found = execs.get(id).map(|entry| Rc::clone(&entry.exec));
        found.ok_or_else(|| Error::not_found(format!("there is no exec {id}")))
    }

    /// Returns the exec that an identical earlier request started, if there is one. Returns an error if a
    /// different request has used the ID.
    pub fn started_before(&self, id: &ExecId, fingerprint: u64) -> Result<Option<Rc<GuestExec>>, Error> {
        match self.exec(id) {
            Ok(exec) if exec.fingerprint == fingerprint => Ok(Some(exec)),
            Ok(_) => Err(conflict(format!("exec {id} was started by another request"), "exec")),
            Err(_not_found) => Ok(None),
        }
    }

    /// Returns the current state of all execs, in the order of their start.
    pub fn list(&self) -> Vec<ExecInfo> {
        let census = sweep::census();
        let execs = self.execs.borrow();
        let order = self.order.borrow();
        order
            .iter()
            .filter_map(|id| execs.get(id))
            .map(|TableEntry { exec, .. }| exec.info(census.get(&exec.group()).copied().unwrap_or(0)))
            .collect()
    }

    /// Cancels a running exec. Has no effect on an ended exec.
    pub fn cancel(&self, id: &ExecId) -> Result<(), Error> {
        self.exec(id)?.ask_to_end(Outcome::Cancelled);
        Ok(())
    }

    /// Makes room for a new exec: removes the oldest ended execs if the table is full, and discards the
    /// oldest output if ended execs retain too much.
    pub fn make_room(&self) -> Result<(), Error> {
        let mut execs = self.execs.borrow_mut();
        let mut order = self.order.borrow_mut();
        while execs.len() >= limits::EXECS_MAX {
            let ended = order.iter().position(|id| execs.get(id).is_none_or(|entry| entry.exec.has_ended()));
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
            execs.remove(&id);
        }
        let in_order = order.iter().filter_map(|id| execs.get(id)).map(|entry| &entry.exec);
        let ended = in_order.filter(|exec| exec.has_ended());
        let mut kept: u64 = ended.clone().map(|exec| exec.kept()).sum();
        for exec in ended {
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
        let mut in_order = order.iter().filter_map(|id| execs.get(id)).map(|entry| &entry.exec);
        let oldest = in_order.find(|exec| exec.end().is_some() && exec.has_file());
        oldest.is_some_and(|exec| exec.forget_output())
    }

    /// Returns an error if the maximum number of terminals is already open.
    fn make_terminal_room(&self) -> Result<(), Error> {
        let open = self.execs.borrow().values().filter(|entry| entry.exec.has_terminal()).count();
        if open < limits::TERMINALS_MAX { Ok(()) } else { Err(no_terminal()) }
    }
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
