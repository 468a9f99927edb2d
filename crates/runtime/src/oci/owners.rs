//! The user namespace through whose map a sandbox sees the owners of its template's files.
//!
//! Layers keep the ids of the image, where 0 is root. An idmapped mount shows them as ids of the sandbox's range, and
//! takes the map from a user namespace; the only way to make one with a map is to have a process in it for a moment.

use std::ffi::{c_int, c_void};
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use api::limits::UID_RANGE;
use rustix::process::{Pid, Signal};

use super::child::{Child, Stack};
use crate::Error;
use crate::files::failed;

/// A child that does nothing, in a user namespace of its own. Dropping it ends it.
struct Holder {
    child: Child,
    /// What it stands on.
    _stack: Stack,
}

/// A user namespace that maps 0 and what follows to `base` and what follows.
pub(crate) fn namespace(base: u32) -> Result<OwnedFd, Error> {
    let holder =
        Holder::start().map_err(|source| Error::System { act: "make a user namespace".into(), source })?;
    let home = PathBuf::from(format!("/proc/{}", holder.child.pid().as_raw_nonzero()));
    let map = format!("0 {base} {UID_RANGE}\n");
    for name in ["uid_map", "gid_map"] {
        let path = home.join(name);
        fs::write(&path, &map).map_err(|source| failed("write", &path, source))?;
    }
    let path = home.join("ns/user");
    File::open(&path).map(OwnedFd::from).map_err(|source| failed("open", &path, source))
}

impl Holder {
    fn start() -> io::Result<Self> {
        let mut stack = Stack::new();
        let parent = rustix::process::getpid().as_raw_nonzero().get() as usize as *mut c_void;
        // Descriptors are shared only because to copy them takes time.
        // SAFETY: the stack is on the heap and kept until the child was collected; `hold` touches nothing.
        let child = unsafe { stack.start(libc::CLONE_NEWUSER | libc::CLONE_FILES, hold, parent) }?;
        Ok(Self { child, _stack: stack })
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // A failure leaves a child that dies with this process.
        let _ = self.child.kill();
        let _ = self.child.collect();
    }
}

/// What the child does: nothing, until it is killed or its parent is gone. System calls by themselves, without the C library: its
/// `errno` is the parent's.
extern "C" fn hold(parent: *mut c_void) -> c_int {
    let tied = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let is_parent = |pid: Pid| pid.as_raw_nonzero().get() as usize == parent as usize;
    while tied.is_ok() && rustix::process::getppid().is_some_and(is_parent) {
        rustix::event::pause();
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_namespace_outlives_its_holder() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: needs root");
            return;
        }
        let namespace = namespace(1 << 30).unwrap();
        let name = fs::read_link(format!("/proc/self/fd/{}", namespace.as_raw_fd())).unwrap();
        assert!(name.to_string_lossy().starts_with("user:["), "{name:?}");
        assert_ne!(name, fs::read_link("/proc/self/ns/user").unwrap());
    }
}
