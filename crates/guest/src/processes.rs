//! The processes that the guest starts in the sandbox: their isolation, their groups and their owners.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use api::Error;
use api::exec::{ExecSpec, Outcome};
use rustix::process::Pid;

use crate::dial::Descriptors;
use crate::groups::{Groups, HeldGroup};
use crate::launch::{Identity, Isolation, Launched, Purpose, launch};
use crate::memory::Kills;
use crate::sweep::Strays;

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

/// Owner of a process: an exec or a context.
pub trait ProcessOwner {
    /// Records how the process ended. Called at most once for each process.
    fn reaped(&self, outcome: Outcome);
}

/// All processes that have an owner, and everything that is needed to start more.
pub struct Processes {
    purpose: Purpose,
    house: House,
    owners: RefCell<HashMap<Pid, Rc<dyn ProcessOwner>>>,
    cgroups: RefCell<Vec<OwnedFd>>,
    kills: Rc<Kills>,
    groups: Groups,
}

impl Processes {
    /// Creates the state of a sandbox with this purpose, in which no process has been started. In an engine's
    /// sandbox, starts to poll the counter of OOM kills.
    pub fn new(purpose: Purpose, house: House) -> Self {
        let processes = Self::unwatched(purpose, house);
        if house == House::Engine {
            processes.kills.look_ourselves();
        }
        processes
    }

    fn unwatched(purpose: Purpose, house: House) -> Self {
        let (owners, cgroups) = (RefCell::default(), RefCell::default());
        Self { purpose, house, owners, cgroups, kills: Rc::default(), groups: Groups::default() }
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

    /// Returns the counter of OOM kills.
    pub fn memory(&self) -> &Rc<Kills> {
        &self.kills
    }

    /// Assigns a group to a process that is about to start.
    pub fn group(&self) -> HeldGroup {
        self.groups.take()
    }

    /// Checks that the sandbox allows the user of `spec`.
    pub fn check_user(&self, spec: &ExecSpec) -> Result<(), Error> {
        spec.check_root(self.purpose.has_root())
    }

    /// Returns the identity of a process that belongs to an exec.
    pub fn identity(&self, spec: &ExecSpec, group: u32) -> Identity {
        self.purpose.identity(spec, group)
    }

    /// Returns the strays of an exec that begins now, if its processes can leave their group.
    pub fn strays_of(&self, who: &Identity) -> Option<Strays> {
        let can_leave = self.purpose == Purpose::Rooted && who.uid == 0;
        can_leave.then(|| Strays::from_now(self.groups.held()))
    }

    /// Starts a process in the cgroup of user code.
    pub fn launch(&self, spec: &ExecSpec, who: Identity, extra: &[OwnedFd]) -> Result<Launched, Error> {
        let in_user_kernel = self.in_user_kernel();
        launch(spec, who, &Isolation { cgroups: &self.cgroups.borrow(), in_user_kernel }, extra)
    }

    /// Registers a process, so that its end is reported to its owner.
    pub fn adopt(&self, pid: Pid, owner: Rc<dyn ProcessOwner>) {
        self.owners.borrow_mut().insert(pid, owner);
    }

    /// Reports the end of a reaped child to its owner. Ignores orphans, which have no owner.
    pub fn ended(&self, pid: Pid, outcome: Outcome) {
        let owner = self.owners.borrow_mut().remove(&pid);
        if let Some(owner) = owner {
            owner.reaped(outcome);
        }
    }

    /// Returns the processes that have an owner.
    #[cfg(test)]
    pub fn owned(&self) -> Vec<Pid> {
        self.owners.borrow().keys().copied().collect()
    }

    /// Returns the number of groups that were assigned so far.
    #[cfg(test)]
    pub fn groups_taken(&self) -> u32 {
        self.groups.taken()
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{WaitOptions, geteuid, waitpid};

    use super::*;

    /// Returns the owner of the output pipe of a process that is started in a sandbox without cgroups.
    async fn pipe_owner_in(house: House) -> u32 {
        let processes = Processes::unwatched(Purpose::Run, house);
        let argv = vec!["/bin/true".into()];
        let spec = ExecSpec { argv, cwd: Some("/".into()), ..ExecSpec::default() };
        let who = processes.identity(&spec, processes.group().number());
        let launched = processes.launch(&spec, who, &[]).unwrap();
        waitpid(Some(launched.pid), WaitOptions::empty()).unwrap();
        let (_, pipe) = launched.ends.streams.first().unwrap();
        rustix::fs::fstat(pipe.get_ref()).unwrap().st_uid
    }

    #[test]
    fn an_engine_is_not_taken_for_a_user_space_kernel() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            for (house, in_user_kernel) in [(House::Ours, true), (House::Engine, false)] {
                assert_eq!(
                    Processes::unwatched(Purpose::Run, house).in_user_kernel(),
                    in_user_kernel,
                    "{house:?}"
                );
            }
            if geteuid().is_root() {
                assert_eq!(pipe_owner_in(House::Ours).await, 0);
                assert_eq!(pipe_owner_in(House::Engine).await, api::limits::UID);
            }
        });
    }
}
