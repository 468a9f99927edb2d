//! The user namespace through whose map a sandbox sees the owners of its template's files.
//!
//! Layers keep the ids of the image, where 0 is root. An idmapped mount shows them as ids of the sandbox's range, and
//! takes the map from a user namespace; the only way to make one with a map is to have a process in it for a moment.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use api::limits::UID_RANGE;
use rustix::process::{Pid, Signal, WaitOptions};

use crate::Error;
use crate::files::failed;

/// A child that does nothing, in a user namespace of its own. Dropping it ends it.
struct Holder {
    pid: Pid,
}

/// A user namespace that maps 0 and what follows to `base` and what follows.
pub(crate) fn namespace(base: u32) -> Result<OwnedFd, Error> {
    let holder =
        Holder::fork().map_err(|source| Error::System { act: "make a user namespace".into(), source })?;
    let home = PathBuf::from(format!("/proc/{}", holder.pid.as_raw_nonzero()));
    let map = format!("0 {base} {UID_RANGE}\n");
    for name in ["uid_map", "gid_map"] {
        let path = home.join(name);
        fs::write(&path, &map).map_err(|source| failed("write", &path, source))?;
    }
    let path = home.join("ns/user");
    File::open(&path).map(OwnedFd::from).map_err(|source| failed("open", &path, source))
}

impl Holder {
    fn fork() -> io::Result<Self> {
        let flags = libc::c_long::from(libc::CLONE_NEWUSER | libc::SIGCHLD);
        let parent = rustix::process::getpid();
        // SAFETY: without CLONE_VM and with no stack this is a fork; the child makes only the calls below.
        let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
        if pid == 0 {
            hold(parent);
        }
        i32::try_from(pid)
            .ok()
            .and_then(Pid::from_raw)
            .map(|pid| Self { pid })
            .ok_or_else(io::Error::last_os_error)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It is our own child and not collected yet, so the number is still its own. A failure leaves a child
        // that dies with this process.
        let _ = rustix::process::kill_process(self.pid, Signal::KILL);
        let _ = rustix::process::waitpid(Some(self.pid), WaitOptions::empty());
    }
}

/// What the child does: nothing, until it is killed or its parent is gone.
fn hold(parent: Pid) -> ! {
    let tied = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    while tied.is_ok() && rustix::process::getppid() == Some(parent) {
        // SAFETY: `pause` takes nothing and only waits for a signal.
        unsafe { libc::pause() };
    }
    // SAFETY: `_exit` ends the child without running anything of the parent's.
    unsafe { libc::_exit(0) }
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
