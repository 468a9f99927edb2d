//! Represents the ownership of a sandbox as a file lock. The kernel releases the lock when the owning process
//! dies, regardless of the reason.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::Error;
use crate::files::failed;

/// The ownership lock of a sandbox. Dropping it releases the sandbox.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

/// Acquires the lock, or returns `None` if a living process already holds it.
pub(crate) fn take(path: &Path) -> Result<Option<Lock>, Error> {
    let file = open(path)?;
    match lock_call(&file, libc::F_OFD_SETLK) {
        Ok(_) => Ok(Some(Lock { _file: file })),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(source) => Err(failed("lock", path, source)),
    }
}

/// Returns true if a living process holds the lock. Queries the lock without acquiring it, so this call never
/// prevents a different process from acquiring the lock.
pub(crate) fn is_taken(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    lock_call(&file, libc::F_OFD_GETLK).map_or(true, |kind| kind != libc::F_UNLCK)
}

/// Opens the lock file, and creates it if it does not exist.
pub(crate) fn open(path: &Path) -> Result<File, Error> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(|source| failed("open", path, source))
}

/// Sets or queries the write lock on a whole file, and returns the lock type that the kernel reports.
///
/// The lock belongs to the open file description, not to the process. Unlike a `flock` lock, it can be
/// queried without being acquired.
fn lock_call(file: &File, command: libc::c_int) -> io::Result<libc::c_int> {
    // SAFETY: `flock` is plain data, for which all zeroes (the whole file, no process) is a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    // SAFETY: the descriptor is open, and `lock` outlives the call, which reads it and may write to it.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(libc::c_int::from(lock.l_type)) }
}
