//! A user namespace in which the root is an ordinary user of the sandbox.
//!
//! ```text
//! inside   outside
//! 0        the user        its capabilities are over what is mapped here, and nothing else
//! 1 …      the same        so that forks have the ids that everybody knows
//! –        0               the sandbox's root is nobody here
//! ```

use std::ffi::CStr;
use std::io::{self, Write as _};

use crate::launch::done;

/// A line of a map, and the next.
const TEXT_BYTES: usize = 64;

/// Has this process enter one of its own, with `uid` as its root. Runs in a child before it becomes its program, and only makes
/// system calls on memory of its stack.
pub fn enter(uid: libc::uid_t) -> io::Result<()> {
    // Opened now: of a process that nobody may look into they belong to the root of its namespace, who is nobody until they are written.
    let maps = [open(c"/proc/self/uid_map")?, open(c"/proc/self/gid_map")?];
    let mut ends = [0; 2];
    // SAFETY: an array of two, as the call writes them.
    done(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) })?;
    let [ready, tell] = ends;
    // Who maps the ids must have power over the ones outside, which whoever enters gives up: so there are two of us for a moment.
    // SAFETY: this process has one thread, and both sides only make system calls.
    let helper = unsafe { libc::fork() };
    done(helper)?;
    if helper == 0 {
        let status = map(uid, maps, ready, tell).err().map_or(0, |error| error.raw_os_error().unwrap_or(1));
        // SAFETY: ends this process, without anything of the one it is a copy of being run.
        unsafe { libc::_exit(status) };
    }
    // SAFETY: no pointers.
    done(unsafe { libc::unshare(libc::CLONE_NEWUSER) })?;
    let mut status = 0;
    // SAFETY: descriptors of ours, closed once; the status is written to memory that outlives the call.
    unsafe {
        for descriptor in [ready, tell].into_iter().chain(maps) {
            libc::close(descriptor);
        }
        done(libc::waitpid(helper, &raw mut status, 0))?;
    }
    if status == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::WEXITSTATUS(status))) }
}

/// In the helper: waits until the one that it was forked from has entered, and maps its ids.
fn map(uid: libc::uid_t, maps: [libc::c_int; 2], ready: libc::c_int, tell: libc::c_int) -> io::Result<()> {
    let mut none = 0_u8;
    // SAFETY: a descriptor of ours, closed once; nothing is read into the byte: the end comes when the other closes its own.
    unsafe {
        libc::close(tell);
        libc::read(ready, (&raw mut none).cast(), 1);
    }
    let mut text = [0; TEXT_BYTES];
    let mut left = &mut text[..];
    write!(left, "0 {uid} 1\n1 1 {}\n", uid - 1)?;
    let bytes = TEXT_BYTES - left.len();
    for map in maps {
        // SAFETY: so many bytes of the text were written; the descriptor is ours.
        done(unsafe { libc::write(map, text.as_ptr().cast(), bytes) } as libc::c_int)?;
    }
    Ok(())
}

fn open(path: &CStr) -> io::Result<libc::c_int> {
    // SAFETY: a NUL-terminated string, and no third argument is read with these flags.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC) };
    done(file)?;
    Ok(file)
}
