//! The execs there are. The table owns them; requests attach and leave.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hasher};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use api::exec::{ExecInfo, ExecSpec, Outcome};
use api::{Error, ErrorCode, ExecId, Layer, Ran, Retry, limits};
use rustix::process::{Pid, WaitStatus};

use crate::dial::Descriptors;
use crate::exec::{Exec, Pipes};
use crate::launch::{launch, verdict};
use crate::memory::Kills;
use crate::stdin::Stdin;
use crate::sweep;

/// What ended execs may keep together: it fits the reserved blocks of the sandbox's disk with room for running ones.
const KEPT_BYTES_MAX: u64 = 64_000_000;

/// The execs there are.
pub struct Table {
    execs: RefCell<HashMap<ExecId, Entry>>,
    /// In the order of their start; the oldest ended ones make room.
    order: RefCell<VecDeque<ExecId>>,
    processes: RefCell<HashMap<Pid, Rc<Exec>>>,
    cgroups: RefCell<Vec<OwnedFd>>,
    kills: Rc<Kills>,
    next_group: Cell<u32>,
    groups_reused: Cell<bool>,
}

struct Entry {
    exec: Rc<Exec>,
    stdin: Rc<Stdin>,
}

impl Table {
    /// An empty table.
    pub fn new() -> Self {
        Self {
            execs: RefCell::default(),
            order: RefCell::default(),
            processes: RefCell::default(),
            cgroups: RefCell::default(),
            kills: Rc::default(),
            next_group: Cell::new(*limits::EXEC_GROUPS.start()),
            groups_reused: Cell::new(false),
        }
    }

    /// Takes what the node of a new connection hands over.
    pub fn attend(&self, descriptors: Descriptors) {
        self.cgroups.replace(descriptors.cgroups);
        self.kills.attend(descriptors.oom_count, descriptors.oom_event);
    }

    /// Starts an exec, or finds the one that the same request has started before.
    pub async fn start(&self, id: ExecId, spec: &ExecSpec, body: &[u8]) -> Result<Rc<Exec>, Error> {
        let fingerprint = fingerprint(body);
        spec.check()?;
        self.kills.settled().await;
        if let Some(entry) = self.execs.borrow().get(&id) {
            return same(&id, &entry.exec, fingerprint);
        }
        self.make_room()?;
        let group = self.group();
        let exec = Rc::new(Exec::new(id.clone(), spec, fingerprint, group, Rc::clone(&self.kills)));
        let launched = launch(spec, group, &self.cgroups.borrow())?;
        // Known before anything is awaited: it may end, and be asked for again, meanwhile.
        self.processes.borrow_mut().insert(launched.pid, Rc::clone(&exec));
        let stdin = Rc::new(Stdin::new(launched.stdin));
        self.execs.borrow_mut().insert(id.clone(), Entry { exec: Rc::clone(&exec), stdin });
        self.order.borrow_mut().push_back(id.clone());
        if let Err(error) = verdict(spec, group, launched.verdict).await {
            self.execs.borrow_mut().remove(&id);
            self.order.borrow_mut().retain(|other| *other != id);
            exec.never_was();
            return Err(error);
        }
        let pipes = Pipes { stdout: launched.stdout, stderr: launched.stderr };
        tokio::task::spawn_local(Rc::clone(&exec).live(pipes));
        Ok(exec)
    }

    /// The exec of that name.
    pub fn exec(&self, id: &ExecId) -> Result<Rc<Exec>, Error> {
        self.execs
            .borrow()
            .get(id)
            .map(|entry| Rc::clone(&entry.exec))
            .ok_or_else(|| Error::not_found(format!("there is no exec {id}")))
    }

    /// The standard input of the exec of that name.
    pub fn stdin(&self, id: &ExecId) -> Result<Rc<Stdin>, Error> {
        self.execs
            .borrow()
            .get(id)
            .map(|entry| Rc::clone(&entry.stdin))
            .ok_or_else(|| Error::not_found(format!("there is no exec {id}")))
    }

    /// All execs in the order of their start.
    pub fn list(&self) -> Vec<ExecInfo> {
        let census = sweep::census();
        let execs = self.execs.borrow();
        let order = self.order.borrow();
        order
            .iter()
            .filter_map(|id| execs.get(id))
            .map(|entry| entry.exec.info(census.get(&entry.exec.group()).copied().unwrap_or(0)))
            .collect()
    }

    /// Ends an exec that runs. One that has ended stays as it is.
    pub fn cancel(&self, id: &ExecId) -> Result<(), Error> {
        self.exec(id)?.ask_to_end(Outcome::Cancelled);
        Ok(())
    }

    /// A child was reaped: the process of an exec, or an orphan of nobody's.
    pub fn ended(&self, pid: Pid, status: WaitStatus) {
        if let Some(exec) = self.processes.borrow_mut().remove(&pid) {
            exec.reaped(status);
        }
    }

    /// Forgets the oldest ended execs when the table is full, and their output when the disk would be.
    fn make_room(&self) -> Result<(), Error> {
        let mut execs = self.execs.borrow_mut();
        let mut order = self.order.borrow_mut();
        while execs.len() >= limits::EXECS_MAX {
            let ended = order.iter().position(|id| execs.get(id).is_none_or(|entry| entry.exec.has_ended()));
            let Some(id) = ended.and_then(|index| order.remove(index)) else {
                return Err(Error {
                    code: ErrorCode::Capacity,
                    message: format!("{} execs run already", limits::EXECS_MAX),
                    layer: Layer::Sandbox,
                    ran: Ran::No,
                    retry: Retry::Safe,
                    fix: "Wait for some to end, or cancel them.".into(),
                });
            };
            execs.remove(&id);
        }
        let ended = || order.iter().filter_map(|id| execs.get(id)).filter(|entry| entry.exec.has_ended());
        let mut kept: u64 = ended().map(|entry| entry.exec.kept()).sum();
        for entry in ended() {
            if kept <= KEPT_BYTES_MAX {
                break;
            }
            kept -= entry.exec.kept();
            entry.exec.forget_output();
        }
        Ok(())
    }

    /// A group that no living process carries.
    fn group(&self) -> u32 {
        let (first, last) = limits::EXEC_GROUPS.into_inner();
        let next = |group: u32| if group == last { first } else { group + 1 };
        let mut group = self.next_group.get();
        if self.groups_reused.get() {
            let census = sweep::census();
            while census.contains_key(&group) {
                group = next(group);
            }
        }
        if group == last {
            self.groups_reused.set(true);
        }
        self.next_group.set(next(group));
        group
    }
}

fn same(id: &ExecId, exec: &Rc<Exec>, fingerprint: u64) -> Result<Rc<Exec>, Error> {
    if exec.fingerprint == fingerprint {
        return Ok(Rc::clone(exec));
    }
    Err(Error {
        code: ErrorCode::Conflict,
        message: format!("exec {id} was started by another request"),
        layer: Layer::UserCode,
        ran: Ran::No,
        retry: Retry::Useless,
        fix: "Choose a new id for a new exec.".into(),
    })
}

fn fingerprint(body: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(body);
    hasher.finish()
}
