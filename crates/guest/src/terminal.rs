//! The pseudo-terminal of an exec: the guest holds the master, and the slave is all three streams of the
//! process.
//!
//! The exec's user owns the slave, because a slave belongs to the user that opened its master.
//!
//! The guest also keeps a descriptor of the slave, so that the terminal does not hang up when processes close
//! theirs. When the exec ends, the guest closes the master, which hangs up processes that still hold the
//! slave.

use std::io;
use std::os::fd::OwnedFd;

use api::terminal::TerminalSize;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::pty::{OpenptFlags, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::belonging::made_for;

/// Both ends of a pseudo-terminal.
pub struct Pair {
    /// The guest's end.
    pub master: OwnedFd,
    /// The process's end.
    pub slave: OwnedFd,
}

/// Opens a terminal with this size, owned by this user.
pub fn open(size: TerminalSize, uid: u32) -> io::Result<Pair> {
    let pair = made_for(uid, open_pair)?;
    resize(&pair.master, size)?;
    Ok(pair)
}

/// Returns true if the kernel notifies the terminal's foreground processes of a new size. Linux does; gVisor
/// does not. Unlike Linux, gVisor also does not return the foreground process group for a master, so this
/// call distinguishes the two.
pub fn tells_sizes(master: &OwnedFd) -> bool {
    rustix::termios::tcgetpgrp(master).is_ok()
}

/// Sets the size of a terminal.
pub fn resize(master: &OwnedFd, size: TerminalSize) -> io::Result<()> {
    let side = |value: u32| u16::try_from(value).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
    let size = Winsize { ws_col: side(size.cols)?, ws_row: side(size.rows)?, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(tcsetwinsize(master, size)?)
}

/// Returns true if an error means that no more terminals are available.
pub fn is_full(error: &io::Error) -> bool {
    // Linux returns ENOSPC at the limit of a devpts mount and EIO at the limit of the machine. gVisor returns
    // ENOMEM.
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EIO | libc::ENOMEM))
}

fn open_pair() -> io::Result<Pair> {
    // Without NOCTTY, the terminal would become the controlling terminal of process 1, and a Ctrl-C in the
    // terminal would reach process 1.
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    unlockpt(&master)?;
    // Open the slave by name, because gVisor has no call that opens it through the master.
    let name = ptsname(&master, Vec::new())?;
    let slave = openat(CWD, name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(Pair { master, slave })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use rustix::termios::tcgetwinsize;

    use super::*;

    const SIZE: TerminalSize = TerminalSize { cols: 80, rows: 24 };

    #[test]
    fn a_terminal_has_the_size_it_was_asked_for_and_then_another() {
        let pair = open(SIZE, 1000).unwrap();
        let seen = || tcgetwinsize(&pair.slave).map(|size| (size.ws_col, size.ws_row)).unwrap();
        assert_eq!(seen(), (80, 24));
        resize(&pair.master, TerminalSize { cols: 1000, rows: 1 }).unwrap();
        assert_eq!(seen(), (1000, 1));
        assert!(resize(&pair.master, TerminalSize { cols: 65_536, rows: 1 }).is_err());
        assert_eq!(seen(), (1000, 1));
    }

    #[test]
    fn the_slave_belongs_to_the_user_and_we_are_who_we_were() {
        let before = rustix::process::geteuid();
        let pair = open(SIZE, 1000).unwrap();
        assert_eq!(rustix::process::geteuid(), before);
        if before.is_root() {
            let slave = std::fs::File::from(pair.slave);
            assert_eq!(slave.metadata().unwrap().uid(), 1000);
        }
    }
}
