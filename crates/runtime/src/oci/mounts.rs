//! The operations that a child runs before it executes the OCI runtime. Most of them set up the sandbox's
//! private mount namespace.
//!
//! The list of operations, with every string in it, is prepared before the child is started. The child shares
//! this process's memory until it executes the OCI runtime, so an operation may only make system calls. Only
//! the sandbox's processes keep the mount namespace alive. The host's mount table therefore does not change,
//! and the kernel removes the mounts when the last process ends.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Uid};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags};
use rustix::net::SocketAddrUnix;
use rustix::process::{Pid, Resource, Rlimit, Signal};
use rustix::thread::UnshareFlags;

use crate::Error;

/// Maximum number of connections waiting to be accepted. The guest opens only one connection at a time, and
/// connects again after a disconnect.
const BACKLOG: i32 = 128;

/// An operation that the child performs before it executes the OCI runtime.
pub(crate) enum Operation {
    /// Makes the kernel kill the child when its parent dies. Fails if the parent is already dead.
    DieWith {
        /// The process that started the child.
        parent: Pid,
    },
    /// Joins a cgroup.
    Join {
        /// The cgroup's `cgroup.procs` or `tasks` file, opened for writing.
        procs: OwnedFd,
    },
    /// Leaves the host's mount namespace for a private copy.
    Separate,
    /// Mounts a directory or a file at a second path, with its own mount flags.
    Mirror {
        /// The directory or file.
        source: CString,
        /// The mount point, which must exist.
        target: CString,
        /// True if the mount is writable.
        writable: bool,
        /// The user namespace whose ID map is applied to the file owners.
        owners: Option<Arc<OwnedFd>>,
    },
    /// Mounts a file system.
    Mount {
        /// The file system type.
        kind: &'static CStr,
        /// The device.
        source: CString,
        /// The mount point.
        target: CString,
        /// The mount flags.
        flags: MountFlags,
        /// Options specific to this file system type.
        options: CString,
    },
    /// Changes the current directory, so that the names in an overlay's options stay short.
    Enter {
        /// The directory.
        path: CString,
    },
    /// Creates a directory.
    Directory {
        /// The directory's path.
        path: CString,
    },
    /// Sets the owner, group and mode of a path that was just created.
    Own {
        /// The path.
        path: CString,
        /// The user.
        user: u32,
        /// The group.
        group: u32,
        /// The mode.
        mode: u32,
    },
    /// Sets a resource limit of this process and its descendants.
    Limit {
        /// The limited resource.
        resource: Resource,
        /// The new soft and hard limit. It must not exceed the current hard limit.
        value: u64,
    },
    /// Creates a device node.
    Device {
        /// The node's path.
        path: CString,
        /// The type of device: character or block.
        kind: FileType,
        /// The device number.
        number: u64,
        /// The mode.
        mode: u32,
    },
    /// Bind-mounts a directory, with the mount flags of its source.
    Bind {
        /// The directory.
        source: CString,
        /// The mount point, which must exist.
        target: CString,
    },
    /// Binds a socket that the parent created to a name in the current directory, and listens on it.
    Listen {
        /// The socket, which the parent keeps open.
        socket: Arc<OwnedFd>,
        /// The socket's name, as an address.
        address: SocketAddrUnix,
    },
}

/// A failure of the child before it executed its command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChildFailure {
    /// Index of the failed operation and the part that failed, or `None` if the command itself could not be
    /// executed.
    at: Option<(usize, FailedPart)>,
    errno: Errno,
}

/// The part of an operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FailedPart {
    /// The operation as a whole.
    Whole,
    /// The application of the ID map, which the file system may not support.
    Owners,
}

impl ChildFailure {
    /// Builds the failure for a command that could not be executed.
    pub(crate) fn of_program(errno: Errno) -> Self {
        Self { at: None, errno }
    }

    /// Returns an error that describes the failed operation, or the system error if the command itself could
    /// not be executed.
    pub(crate) fn explain(self, operations: &[Operation]) -> Result<Error, io::Error> {
        let source = io::Error::from(self.errno);
        let at = self.at.and_then(|(index, part)| Some((operations.get(index)?, part)));
        let Some((operation, part)) = at else { return Err(source) };
        if part == FailedPart::Owners {
            return Ok(Error::Unsupported {
                what: "a separate uid range",
                why: format!(
                    "cannot {} ({source}): the file system does not support idmapped mounts; use ext4, xfs or btrfs, on \
                     Linux 5.19 or later",
                    operation.act()
                ),
            });
        }
        Ok(Error::System { act: operation.act(), source })
    }
}

impl Operation {
    /// Runs the operation in the child; `index` is its position in the list.
    pub(crate) fn run(&self, index: usize) -> Result<(), ChildFailure> {
        self.perform().map_err(|(part, errno)| ChildFailure { at: Some((index, part)), errno })
    }

    fn perform(&self) -> Result<(), (FailedPart, Errno)> {
        let whole = |errno| (FailedPart::Whole, errno);
        match self {
            Self::DieWith { parent } => die_with(*parent).map_err(whole),
            Self::Join { procs } => rustix::io::write(procs, b"0").map(|_| ()).map_err(whole),
            Self::Separate => separate().map_err(whole),
            Self::Mirror { source, target, writable, owners } => {
                mirror(source, target, *writable, owners.as_deref())
            }
            Self::Mount { kind, source, target, flags, options } => {
                rustix::mount::mount(source.as_c_str(), target.as_c_str(), *kind, *flags, options.as_c_str())
                    .map_err(whole)
            }
            Self::Enter { path } => rustix::process::chdir(path.as_c_str()).map_err(whole),
            Self::Directory { path } => {
                rustix::fs::mkdir(path.as_c_str(), Mode::from_raw_mode(0o700)).map_err(whole)
            }
            Self::Own { path, user, group, mode } => own(path, *user, *group, *mode).map_err(whole),
            Self::Device { path, kind, number, mode } => {
                device(path, *kind, *number, Mode::from_raw_mode(*mode)).map_err(whole)
            }
            Self::Limit { resource, value } => {
                let limit = Rlimit { current: Some(*value), maximum: Some(*value) };
                rustix::process::setrlimit(*resource, limit).map_err(whole)
            }
            Self::Bind { source, target } => {
                rustix::mount::mount_bind(source.as_c_str(), target.as_c_str()).map_err(whole)
            }
            Self::Listen { socket, address } => rustix::net::bind(socket, address)
                .and_then(|()| rustix::net::listen(socket, BACKLOG))
                .map_err(whole),
        }
    }

    /// Describes the operation for messages.
    fn act(&self) -> String {
        match self {
            Self::DieWith { .. } => "set the parent death signal of the OCI runtime".into(),
            Self::Join { .. } => "move the OCI runtime to its cgroup".into(),
            Self::Separate => "leave the host's mount namespace".into(),
            Self::Mirror { source, .. } => format!("mount {} for the sandbox", source.to_string_lossy()),
            Self::Mount { source, .. } => format!("mount {}", source.to_string_lossy()),
            Self::Enter { path } => format!("change to directory {}", path.to_string_lossy()),
            Self::Directory { path } => format!("create directory {}", path.to_string_lossy()),
            Self::Own { path, .. } => format!("set owner of {}", path.to_string_lossy()),
            Self::Device { path, .. } => format!("create device node {}", path.to_string_lossy()),
            Self::Limit { resource, value } => format!("limit {resource:?} to {value}"),
            Self::Bind { source, target } => {
                format!("bind-mount {} at {}", source.to_string_lossy(), target.to_string_lossy())
            }
            Self::Listen { .. } => "listen on the sandbox's channel".into(),
        }
    }
}

/// Converts a path to a C string.
pub(crate) fn c_string(path: &OsStr) -> Result<CString, Error> {
    CString::new(path.as_bytes()).map_err(|source| Error::System {
        act: format!("use the path {}", path.display()),
        source: io::Error::new(io::ErrorKind::InvalidInput, source),
    })
}

fn die_with(parent: Pid) -> Result<(), Errno> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // If the parent died before the call above, the kernel will never send the signal.
    if rustix::process::getppid() == Some(parent) { Ok(()) } else { Err(Errno::SRCH) }
}

fn separate() -> Result<(), Errno> {
    // SAFETY: this only changes the mount namespace; no memory or descriptor table is shared or unshared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }?;
    rustix::mount::mount_change(c"/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
}

fn own(path: &CStr, user: u32, group: u32, mode: u32) -> Result<(), Errno> {
    rustix::fs::chown(path, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))?;
    rustix::fs::chmod(path, Mode::from_raw_mode(mode))
}

fn device(path: &CStr, kind: FileType, number: u64, mode: Mode) -> Result<(), Errno> {
    rustix::fs::mknodat(CWD, path, kind, mode, number)?;
    // The mode is set again because the umask may have cleared some of its bits.
    rustix::fs::chmod(path, mode)
}

fn mirror(
    source: &CStr,
    target: &CStr,
    writable: bool,
    owners: Option<&OwnedFd>,
) -> Result<(), (FailedPart, Errno)> {
    let whole = |errno| (FailedPart::Whole, errno);
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = rustix::mount::open_tree(CWD, source, flags).map_err(whole)?;
    let read_only = if writable { 0 } else { libc::MOUNT_ATTR_RDONLY };
    set_attributes(&tree, read_only | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOSUID, None)
        .map_err(whole)?;
    if let Some(owners) = owners {
        set_attributes(&tree, libc::MOUNT_ATTR_IDMAP, Some(owners))
            .map_err(|errno| (FailedPart::Owners, errno))?;
    }
    rustix::mount::move_mount(&tree, c"", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).map_err(whole)
}

fn set_attributes(tree: &OwnedFd, attributes: u64, owners: Option<&OwnedFd>) -> Result<(), Errno> {
    let attributes = libc::mount_attr {
        attr_set: attributes,
        attr_clr: 0,
        propagation: 0,
        userns_fd: owners
            .map_or(Ok(0), |owners| u64::try_from(owners.as_raw_fd()))
            .map_err(|_| Errno::BADF)?,
    };
    // SAFETY: the descriptors are open, the path is a NUL-terminated string, and `attributes` outlives the
    // call, which only reads it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_fd().as_raw_fd(),
            c"".as_ptr(),
            AtFlags::EMPTY_PATH.bits(),
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if result < 0 {
        Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL))
    } else {
        Ok(())
    }
}
