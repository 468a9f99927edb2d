//! Descriptors that tokio waits on.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A descriptor that never blocks and tells when it is ready.
pub type Watched = AsyncFd<OwnedFd>;

/// Hands a descriptor to tokio.
pub fn watch(descriptor: OwnedFd, interest: Interest) -> io::Result<Watched> {
    rustix::io::ioctl_fionbio(&descriptor, true)?;
    // SAFETY: an `OwnedFd` is open, and only the `AsyncFd` has it from here on.
    let watched = unsafe { AsyncFd::register_with_interest(descriptor, interest) };
    Ok(watched?)
}
