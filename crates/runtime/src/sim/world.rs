//! The sandboxes of one simulated machine, and the processes that own them.
//!
//! ```text
//! (nothing) ──begin──▶ half-made ──made──▶ alive ──life ends──▶ dead      each ──remove──▶ (nothing)
//! ```
//!
//! A sandbox is looked up by its ID and identified by its guest, so an operation on one sandbox never affects
//! a later sandbox with the same ID.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use api::SandboxId;
use tokio::sync::{Notify, watch};

use super::faults::Faults;
use super::guest::Guest;
use crate::{Error, Exit, Listed, Usage};

/// Resource usage that a sandbox reports unless a test changes it. It resembles the usage of a guest and a
/// small interpreter.
const USAGE: Usage = Usage {
    memory_bytes: 8 << 20,
    memory_peak_bytes: 12 << 20,
    sandbox_memory_bytes: 14 << 20,
    pids: 1,
    oom_kills: 0,
    pids_refused: 0,
    cpu_us: 50_000,
};

/// One simulated machine.
#[derive(Default)]
pub(super) struct World {
    state: Mutex<WorldState>,
    /// Wakes `connect` calls that are waiting because guests are silent.
    faults_changed: Notify,
}

/// One sandbox.
pub(super) struct SimSandbox {
    pub guest: Arc<Guest>,
    pub usage: Usage,
    /// True once process 1 has started.
    pub is_made: bool,
    owner: Weak<SimProcess>,
}

/// A process that drives the machine.
pub(super) struct SimProcess {
    gone: watch::Sender<bool>,
}

/// A start or stop that has been recorded but not finished, and whether it will fail.
pub(super) struct PendingOperation {
    pub guest: Arc<Guest>,
    pub delay: Duration,
    pub fails: bool,
}

#[derive(Default)]
struct WorldState {
    sandboxes: BTreeMap<SandboxId, SimSandbox>,
    processes: Vec<Weak<SimProcess>>,
    faults: Faults,
}

impl World {
    fn state(&self) -> MutexGuard<'_, WorldState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a new process.
    pub fn enter(&self) -> Arc<SimProcess> {
        let process = Arc::new(SimProcess { gone: watch::Sender::new(false) });
        let mut state = self.state();
        state.processes.retain(|other| other.strong_count() > 0);
        state.processes.push(Arc::downgrade(&process));
        process
    }

    /// Kills every process.
    pub fn end_processes(&self) {
        for process in self.state().processes.drain(..).filter_map(|process| process.upgrade()) {
            process.gone.send_replace(true);
        }
    }

    /// Reads or changes the faults.
    pub fn faults<T>(&self, change: impl FnOnce(&mut Faults) -> T) -> T {
        let answer = change(&mut self.state().faults);
        self.faults_changed.notify_waiters();
        answer
    }

    /// Waits until the faults allow guests to connect.
    pub async fn until_guests_dial(&self) {
        loop {
            // Register before the check, so that no change in between is missed.
            let changed = self.faults_changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if !self.state().faults.silent_guest {
                return;
            }
            changed.await;
        }
    }

    /// Calls `look` on a sandbox and returns the result.
    pub fn see<T>(&self, id: &SandboxId, look: impl FnOnce(&mut SimSandbox) -> T) -> Result<T, Error> {
        self.state().sandboxes.get_mut(id).map(look).ok_or_else(|| Error::NotFound(id.clone()))
    }

    /// Records a new sandbox, which is half-made until process 1 starts.
    pub fn begin(&self, id: &SandboxId, process: &Arc<SimProcess>) -> Result<PendingOperation, Error> {
        let mut state = self.state();
        if state.sandboxes.contains_key(id) {
            return Err(Error::Exists(id.clone()));
        }
        if state.faults.fills_start() {
            return Err(Error::Capacity {
                what: "a disk",
                why: "injected fault: the machine is full".into(),
            });
        }
        let guest = Arc::new(Guest::new());
        let owner = Arc::downgrade(process);
        let sandbox = SimSandbox { guest: Arc::clone(&guest), usage: USAGE, is_made: false, owner };
        state.sandboxes.insert(id.clone(), sandbox);
        Ok(PendingOperation { guest, delay: state.faults.start_delay, fails: state.faults.fails_start() })
    }

    /// Records that process 1 of this guest's sandbox has started.
    pub fn made(&self, id: &SandboxId, guest: &Arc<Guest>) -> Result<(), Error> {
        let ended = || Error::Ended(id.clone());
        let mut state = self.state();
        let sandbox = state.sandboxes.get_mut(id).filter(|sandbox| sandbox.is_of(guest)).ok_or_else(ended)?;
        if !guest.life.is_on() {
            return Err(ended());
        }
        sandbox.is_made = true;
        Ok(())
    }

    /// Makes `process` the owner of a sandbox, unless another living process owns it.
    pub fn take(&self, id: &SandboxId, process: &Arc<SimProcess>) -> Result<Arc<Guest>, Error> {
        let mut state = self.state();
        let sandbox = state.sandboxes.get_mut(id).ok_or_else(|| Error::NotFound(id.clone()))?;
        if !sandbox.is_alive() {
            return Err(Error::Ended(id.clone()));
        }
        if sandbox.is_owned() && !std::ptr::eq(sandbox.owner.as_ptr(), Arc::as_ptr(process)) {
            let source = std::io::Error::other("another running process owns the sandbox");
            return Err(Error::System { act: format!("take over sandbox {id}"), source });
        }
        sandbox.owner = Arc::downgrade(process);
        Ok(Arc::clone(&sandbox.guest))
    }

    /// Ends process 1. With a grace period, process 1 exits cleanly; without one, it is killed. Returns
    /// `None` for an unknown sandbox.
    pub fn end(&self, id: &SandboxId, grace: Duration) -> Option<PendingOperation> {
        let mut state = self.state();
        let guest = Arc::clone(&state.sandboxes.get(id)?.guest);
        guest.life.end(if grace.is_zero() { Exit::Signaled(9) } else { Exit::Exited(0) });
        Some(PendingOperation { guest, delay: state.faults.stop_delay, fails: state.faults.fails_stop() })
    }

    /// Removes this guest's sandbox.
    pub fn remove(&self, id: &SandboxId, guest: &Arc<Guest>) {
        let mut state = self.state();
        if state.sandboxes.get(id).is_some_and(|sandbox| sandbox.is_of(guest)) {
            state.sandboxes.remove(id);
        }
    }

    /// Lists all sandboxes.
    pub fn list(&self) -> Vec<Listed> {
        let state = self.state();
        let listed = state.sandboxes.iter().map(|(id, sandbox)| Listed {
            id: id.clone(),
            owned: sandbox.is_owned(),
            alive: sandbox.is_alive(),
        });
        listed.collect()
    }
}

impl SimSandbox {
    /// Returns true if the sandbox's process 1 is alive.
    pub fn is_alive(&self) -> bool {
        self.is_made && self.guest.life.is_on()
    }

    fn is_owned(&self) -> bool {
        self.owner.upgrade().is_some_and(|owner| !owner.is_gone())
    }

    fn is_of(&self, guest: &Arc<Guest>) -> bool {
        Arc::ptr_eq(&self.guest, guest)
    }
}

impl SimProcess {
    pub fn is_gone(&self) -> bool {
        *self.gone.borrow()
    }

    /// Waits until the process is gone.
    pub async fn gone(&self) {
        until_gone(self.watch()).await;
    }

    /// Returns a receiver for [`until_gone`], which does not keep the process alive.
    pub fn watch(&self) -> watch::Receiver<bool> {
        self.gone.subscribe()
    }
}

/// Waits until a process has been killed or its last handle has been dropped.
pub(super) async fn until_gone(mut process: watch::Receiver<bool>) {
    let _ = process.wait_for(|gone| *gone).await;
}
