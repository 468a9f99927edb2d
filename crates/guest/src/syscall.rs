//! Results of system calls that are made through `libc`.

use std::io;

/// Converts the result of a system call, which is negative on failure.
pub fn done(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the error number of the last system call that failed.
pub fn errno() -> libc::c_int {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)
}
