//! Exec groups: the supplementary group IDs by which the guest finds processes (see [`crate::sweep`]).
//!
//! Every exec, context and helper process holds a group of its own. A group is free again when its holder is
//! dropped, and is then assigned only if no living process carries it.

use std::cell::Cell;
use std::rc::Rc;

use api::limits;

use crate::sweep::{self, KnownGroups};

/// The assignment of groups.
pub struct Groups {
    next: Cell<u32>,
    /// True once every group has been assigned, so that later groups may still be in use.
    reused: Cell<bool>,
    held: KnownGroups,
}

/// A group that is in use until this value is dropped.
pub struct HeldGroup {
    number: u32,
    held: KnownGroups,
}

impl Default for Groups {
    fn default() -> Self {
        let next = Cell::new(*limits::EXEC_GROUPS.start());
        Self { next, reused: Cell::new(false), held: KnownGroups::default() }
    }
}

impl Groups {
    /// Assigns a group that has no holder and that no living process carries.
    pub fn take(&self) -> HeldGroup {
        let (first, last) = limits::EXEC_GROUPS.into_inner();
        let next = |group: u32| if group == last { first } else { group + 1 };
        let mut number = self.next.get();
        if self.reused.get() {
            let census = sweep::census();
            // Requests still query and signal ended execs by their group, so a group without processes may
            // have a holder.
            while census.contains_key(&number) || self.held.borrow().contains(&number) {
                number = next(number);
            }
        }
        if number == last {
            self.reused.set(true);
        }
        self.next.set(next(number));
        self.held.borrow_mut().insert(number);
        HeldGroup { number, held: Rc::clone(&self.held) }
    }

    /// Returns the groups that have a holder.
    pub fn held(&self) -> &KnownGroups {
        &self.held
    }

    /// Returns the number of groups that were assigned so far, up to the first reuse.
    #[cfg(test)]
    pub fn taken(&self) -> u32 {
        self.next.get() - limits::EXEC_GROUPS.start()
    }
}

impl HeldGroup {
    /// Returns the group ID.
    pub fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for HeldGroup {
    fn drop(&mut self) {
        self.held.borrow_mut().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A group that no process on the machine of a test carries.
    const FREE: u32 = 50_000;

    #[test]
    fn a_group_is_assigned_again_only_when_its_holder_is_gone() {
        let groups = Groups::default();
        groups.reused.set(true);
        let next_after = |number| {
            groups.next.set(number);
            groups.take()
        };
        let first = next_after(FREE);
        assert_eq!(first.number(), FREE);
        assert_eq!(next_after(FREE).number(), FREE + 1);
        drop(first);
        assert_eq!(next_after(FREE).number(), FREE);
        assert!(groups.held().borrow().is_empty());
    }

    #[test]
    fn the_first_group_follows_the_last() {
        let groups = Groups::default();
        groups.next.set(*limits::EXEC_GROUPS.end());
        assert_eq!(groups.take().number(), *limits::EXEC_GROUPS.end());
        assert!(groups.reused.get());
        assert_eq!(groups.taken(), 0);
    }
}
