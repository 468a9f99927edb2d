//! Who has a sandbox in hand: a locked file. The kernel drops the lock when the process that has it dies, however it dies.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::Error;
use crate::files::failed;

/// The lock on a sandbox in hand. Dropping it lets the sandbox go.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

/// Takes hold, unless a living process has it.
pub(crate) fn take(path: &Path) -> Result<Option<Lock>, Error> {
    let file = open(path)?;
    match lock_call(&file, libc::F_OFD_SETLK) {
        Ok(_) => Ok(Some(Lock { _file: file })),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(source) => Err(failed("lock", path, source)),
    }
}

/// Whether a living process has it. Asks without locking, so nobody is kept from taking it.
pub(crate) fn is_taken(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    lock_call(&file, libc::F_OFD_GETLK).map_or(true, |kind| kind != libc::F_UNLCK)
}

/// The file to lock, made if it is not there.
pub(crate) fn open(path: &Path) -> Result<File, Error> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(|source| failed("open", path, source))
}

/// Asks for, or asks about, the write lock on a whole file; says what kind of lock the kernel reports.
///
/// The lock belongs to the open file, not to the process, and, unlike one of `flock`, it can be asked about without
/// being taken.
fn lock_call(file: &File, command: libc::c_int) -> io::Result<libc::c_int> {
    // SAFETY: `flock` is plain data, for which all zeroes (the whole file, no process) is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    // SAFETY: the descriptor is open, and `lock` outlives the call, which reads it and may write to it.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(libc::c_int::from(lock.l_type)) }
}
