//! Detects kernel features that are available inside a user namespace, by trying each one once in a child
//! process.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Error that the probe returns if the setting exists. The probe always returns an error, so it never
/// executes a program.
const THERE: i32 = libc::EALREADY;

/// Returns true if the backlog of listening sockets can be set in a network namespace that a user namespace
/// owns. Older kernels, such as Debian 12's 6.1, expose no `net.core` settings there, and every start that
/// sets one would fail.
pub(crate) fn has_backlog() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        let mut probe = Command::new("/proc/self/exe");
        probe.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: `look` runs between fork and exec; it makes two system calls, which only access static
        // memory, and allocates nothing.
        unsafe { probe.pre_exec(look) };
        matches!(probe.spawn(), Err(error) if error.raw_os_error() == Some(THERE))
    })
}

/// Checks whether the setting exists. Runs in the child, which first creates its own user and network
/// namespaces.
fn look() -> io::Result<()> {
    // SAFETY: `unshare` takes no pointers.
    if unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the path is a NUL-terminated string.
    let there = unsafe { libc::access(c"/proc/sys/net/core/somaxconn".as_ptr(), libc::F_OK) } == 0;
    Err(io::Error::from_raw_os_error(if there { THERE } else { libc::ENOENT }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_answers_the_same_twice_and_soon() {
        let began = std::time::Instant::now();
        let first = has_backlog();
        println!("{first} in {:?}", began.elapsed());
        assert_eq!(has_backlog(), first);
        assert!(began.elapsed() < std::time::Duration::from_secs(5));
    }
}
