//! Descriptors that tokio polls.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A non-blocking descriptor with readiness notifications.
pub type Watched = AsyncFd<OwnedFd>;

/// Registers a descriptor with tokio.
pub fn watch(descriptor: OwnedFd, interest: Interest) -> io::Result<Watched> {
    rustix::io::ioctl_fionbio(&descriptor, true)?;
    // SAFETY: an `OwnedFd` is open, and only the `AsyncFd` owns it from here on.
    let watched = unsafe { AsyncFd::register_with_interest(descriptor, interest) };
    Ok(watched?)
}
