//! The identity of a process: its user, its groups, its capabilities, and the filter that goes with them.

use api::exec::ExecSpec;
use api::limits;

use crate::descent::{never_root, no_namespaces};

/// Capabilities that root keeps in a sandbox that has a root: CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL,
/// SETGID and SETUID, which package managers need. Process 1 has more, so root cannot trace or inspect it.
const BUILDS: u64 = 0b1111_1011;

/// Purpose of the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Runs code: by default, an exec runs as the sandbox's user.
    Run,
    /// Like `Run`, but an exec may request to run as root of the sandbox's user namespace.
    Rooted,
    /// Runs the steps of a template's recipe, as root of the sandbox's user namespace.
    Build,
}

/// User, groups and capabilities of a process.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// User of the process. Its primary group has the same number.
    pub uid: u32,
    /// Exec group: the supplementary group ID by which the guest finds the process.
    pub group: u32,
    /// Capabilities that the process keeps, as a bit mask. A process that keeps capabilities without being
    /// root can never become root: see [`crate::descent`].
    pub capabilities: u64,
    /// True if the process is root of its own user namespace, and has no privileges outside of it.
    pub nested: bool,
}

impl Purpose {
    fn uid(self) -> u32 {
        match self {
            Self::Run | Self::Rooted => limits::UID,
            Self::Build => 0,
        }
    }

    /// Returns true if an exec may run as root.
    pub fn has_root(self) -> bool {
        match self {
            Self::Run => false,
            Self::Rooted | Self::Build => true,
        }
    }

    /// Returns the identity of a process that belongs to an exec.
    pub fn identity(self, spec: &ExecSpec, group: u32) -> Identity {
        let uid = spec.uid.unwrap_or(self.uid());
        let capabilities = if self.has_root() && uid == 0 { BUILDS } else { 0 };
        Identity { uid, group, capabilities, nested: false }
    }
}

impl Identity {
    /// Returns the seccomp filter for the process. In a user-space kernel, the sandbox's own filter allows
    /// creating user namespaces, because the parent interpreter needs one. This filter forbids them for user
    /// code.
    pub(super) fn filter(self, in_user_kernel: bool) -> Vec<libc::sock_filter> {
        match self.uid != 0 && self.capabilities != 0 && !self.nested {
            true => never_root(),
            false if in_user_kernel => no_namespaces(),
            false => Vec::new(),
        }
    }
}
