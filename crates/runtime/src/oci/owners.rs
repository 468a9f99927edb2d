//! A sandbox's user namespace. It maps the sandbox's users, and the owners of its template's files, to user
//! IDs in the sandbox's range.
//!
//! Files in layers are stored with the owners from the image, where 0 is root. An idmapped mount translates
//! these owners to IDs in the range, and takes the map from a user namespace. A user namespace with a map can
//! only be created if a process is in it. The sandbox's container runs in this namespace too.
//!
//! Linux also counts inotify instances and watches, queued signals, message queues and namespaces against the
//! user that *created* the user namespace. If root created it, all sandboxes would share one count with the
//! host's root. Therefore it is created under the first user ID in the sandbox's range, which no other
//! sandbox uses.

use std::ffi::{c_int, c_void};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::limits::UID_RANGE;
use rustix::fs::Uid;
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal};
use rustix::thread::UnshareFlags;

use super::child::{Child, Stack};
use super::process::wait_readable;
use crate::Error;
use crate::files::failed;

/// Timeout for the creation of a namespace. It takes microseconds; the rest is a margin for an overloaded
/// machine.
const MADE_WITHIN: Duration = Duration::from_secs(10);

/// A user namespace that maps 0 and the following IDs to a sandbox's range. Until this value is dropped, a
/// child process keeps the namespace's path valid.
pub(crate) struct Owners {
    /// The namespace.
    pub namespace: Arc<OwnedFd>,
    holder: Holder,
}

/// An idle child in its own user namespace. Dropping this value kills the child.
struct Holder {
    child: Child,
    /// The child's stack and argument, which must outlive it.
    _stack: Stack,
    _given: Box<Given>,
}

/// The child's argument. The child shares this process's memory and descriptors.
struct Given {
    parent: Pid,
    creator: u32,
    made: RawFd,
}

impl Owners {
    /// Creates the namespace for the range that begins with this ID.
    pub(crate) fn make(base: u32) -> Result<Self, Error> {
        let holder = Holder::start(base)
            .map_err(|source| Error::System { act: "create a user namespace".into(), source })?;
        let home = holder.home();
        let map = format!("0 {base} {UID_RANGE}\n");
        for name in ["uid_map", "gid_map"] {
            let path = home.join(name);
            fs::write(&path, &map).map_err(|source| failed("write", &path, source))?;
        }
        let path = home.join("ns/user");
        let namespace = File::open(&path).map_err(|source| failed("open", &path, source))?;
        Ok(Self { namespace: Arc::new(namespace.into()), holder })
    }

    /// Returns a path through which other processes can open the namespace. The path is valid until this
    /// value is dropped.
    pub(crate) fn path(&self) -> PathBuf {
        self.holder.home().join("ns/user")
    }
}

impl Holder {
    fn start(base: u32) -> io::Result<Self> {
        let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let creator = if api::defence::is_off("C-30") { 0 } else { base };
        let given = Box::new(Given { parent: rustix::process::getpid(), creator, made: writer.as_raw_fd() });
        let mut stack = Stack::new();
        let pointer = (&raw const *given).cast_mut().cast::<c_void>();
        // The child shares the descriptors only because copying them would take time.
        // SAFETY: the stack and `given` are on the heap and kept until the child has been reaped; `hold` only
        // reads `given` and accesses nothing else.
        let child = unsafe { stack.start(libc::CLONE_FILES, hold, pointer) }?;
        let holder = Self { child, _stack: stack, _given: given };
        let mut answer = [0; 1];
        if !wait_readable(&reader, Instant::now() + MADE_WITHIN) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match (rustix::io::read(&reader, &mut answer)?, answer) {
            (1, [0]) => Ok(holder),
            (_, [errno]) => Err(io::Error::from_raw_os_error(i32::from(errno))),
        }
    }

    fn home(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}", self.child.pid().as_raw_nonzero()))
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // If this fails, the child dies with this process.
        let _ = self.child.kill();
        let _ = self.child.collect();
    }
}

/// Entry point of the child: creates the namespace, reports the result, and sleeps until it is killed or its
/// parent is gone. Makes only direct system calls, because it shares the C library's `errno` with the parent.
extern "C" fn hold(given: *mut c_void) -> c_int {
    // SAFETY: `Holder::start` passes a pointer to its `Given`, which outlives the child.
    let given = unsafe { &*given.cast::<Given>() };
    // SAFETY: the parent keeps the descriptor open until it has read the answer.
    let made = unsafe { BorrowedFd::borrow_raw(given.made) };
    let result = separate(given.creator);
    let tied = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let errno = result.and(tied).err().map_or(0, Errno::raw_os_error);
    let _ = rustix::io::write(made, &[u8::try_from(errno).unwrap_or(u8::MAX)]);
    while errno == 0 && rustix::process::getppid() == Some(given.parent) {
        rustix::event::pause();
    }
    0
}

/// Creates the namespace as the user `creator`. Changing the user makes the shared memory undumpable, so from
/// then on this server produces no core dumps. This is intended: the server's memory contains keys, which
/// must not end up in a core dump. The effective capabilities are restored after the change, because some
/// machines do not let unprivileged users create user namespaces.
fn separate(creator: u32) -> Result<(), Errno> {
    let root = Uid::ROOT;
    rustix::thread::set_thread_res_uid(root, Uid::from_raw(creator), root)?;
    let mut capabilities = rustix::thread::capabilities(None)?;
    capabilities.effective = capabilities.permitted;
    rustix::thread::set_capabilities(None, capabilities)?;
    // SAFETY: this only changes the user namespace; no memory or descriptor table is shared or unshared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_outlives_its_holder_and_belongs_to_the_range() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: needs root");
            return;
        }
        let base = 1 << 30;
        let owners = Owners::make(base).unwrap();
        let namespace = Arc::clone(&owners.namespace);
        drop(owners);
        let name = fs::read_link(format!("/proc/self/fd/{}", namespace.as_raw_fd())).unwrap();
        assert!(name.to_string_lossy().starts_with("user:["), "{name:?}");
        assert_ne!(name, fs::read_link("/proc/self/ns/user").unwrap());
        // This is `NS_GET_OWNER_UID` from <linux/nsfs.h>.
        let (request, mut owner) = (0xb704, 0_u32);
        // SAFETY: the descriptor is open, and the kernel writes one `u32` to `owner`.
        let done = unsafe { libc::ioctl(namespace.as_raw_fd(), request, &raw mut owner) };
        assert_eq!((done, owner), (0, base));
    }
}
