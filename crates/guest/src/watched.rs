//! File descriptors that are registered with tokio.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A non-blocking descriptor with readiness notifications.
pub type Watched = AsyncFd<OwnedFd>;

/// Makes a descriptor non-blocking, and registers it with tokio.
pub fn watch(descriptor: OwnedFd, interest: Interest) -> io::Result<Watched> {
    rustix::io::ioctl_fionbio(&descriptor, true)?;
    // SAFETY: An `OwnedFd` is open, and from here on only the `AsyncFd` owns it.
    let watched = unsafe { AsyncFd::register_with_interest(descriptor, interest) };
    Ok(watched?)
}
