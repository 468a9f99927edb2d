//! A user namespace whose root is an ordinary user of the sandbox.
//!
//! ```text
//! inside   outside
//! 0        the user        its capabilities apply only to the IDs mapped here
//! 1 …      the same        so that forks have their usual IDs
//! –        0               the sandbox's root is not mapped
//! ```

use std::ffi::CStr;
use std::io::{self, Write as _};

use crate::syscall::done;

/// Maximum size of the two lines of an ID map.
const TEXT_BYTES: usize = 64;

/// Moves this process into a new user namespace, in which the outer user `uid` is root. Runs in a child
/// before its exec, so it only makes system calls on its own stack memory.
pub fn enter(uid: libc::uid_t) -> io::Result<()> {
    // Open the maps first: in a new namespace, the `/proc` files of a non-dumpable process belong to the
    // namespace's root, which is not mapped until the maps are written.
    let maps = [open(c"/proc/self/uid_map")?, open(c"/proc/self/gid_map")?];
    let mut ends = [0; 2];
    // SAFETY: The pointer refers to an array of two descriptors, as the call requires.
    done(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) })?;
    let [ready, tell] = ends;
    // Mapping IDs requires capabilities in the outer namespace, which a process loses when it enters the new
    // one. So a helper process writes the maps.
    // SAFETY: This process has one thread, and after the fork, both processes only make system calls.
    let helper = unsafe { libc::fork() };
    done(helper)?;
    if helper == 0 {
        let status = map(uid, maps, ready, tell).err().map_or(0, |error| error.raw_os_error().unwrap_or(1));
        // SAFETY: `_exit` takes no pointers. It ends the helper without running the exit handlers of its
        // parent.
        unsafe { libc::_exit(status) };
    }
    // SAFETY: `unshare` takes no pointers.
    done(unsafe { libc::unshare(libc::CLONE_NEWUSER) })?;
    let mut status = 0;
    for descriptor in [ready, tell].into_iter().chain(maps) {
        // SAFETY: The descriptors are open and owned by this function, which closes each of them once.
        unsafe { libc::close(descriptor) };
    }
    // SAFETY: The status is written to a local variable that outlives the call.
    done(unsafe { libc::waitpid(helper, &raw mut status, 0) })?;
    if status == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::WEXITSTATUS(status))) }
}

/// Writes the ID maps after the parent has entered the new namespace. Runs in the helper.
fn map(uid: libc::uid_t, maps: [libc::c_int; 2], ready: libc::c_int, tell: libc::c_int) -> io::Result<()> {
    let mut none = 0_u8;
    // SAFETY: The descriptor is open and owned by this process, which closes it once.
    unsafe { libc::close(tell) };
    // SAFETY: The pointer refers to one byte of memory that outlives the call. No byte is ever sent: the read
    // returns when the other process closes its end.
    unsafe { libc::read(ready, (&raw mut none).cast(), 1) };
    let mut text = [0; TEXT_BYTES];
    let mut left = &mut text[..];
    write!(left, "0 {uid} 1\n1 1 {}\n", uid - 1)?;
    let bytes = TEXT_BYTES - left.len();
    for map in maps {
        // SAFETY: `text` is fully initialized and holds at least `bytes` bytes, and the descriptor is open.
        done(unsafe { libc::write(map, text.as_ptr().cast(), bytes) } as libc::c_int)?;
    }
    Ok(())
}

fn open(path: &CStr) -> io::Result<libc::c_int> {
    // SAFETY: The path is NUL-terminated, and the call reads no third argument with these flags.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC) };
    done(file)?;
    Ok(file)
}
