//! Each sandbox's small in-memory file system, which holds its device nodes and its channel directory.
//!
//! An OCI runtime cannot create device nodes in a user namespace, so it bind-mounts the nodes that it finds
//! in `/dev`. If these were the host's nodes, all sandboxes would share the same inodes, and a lock or watch
//! on `/dev/null` would affect every sandbox and the host. Therefore this file system is mounted at `/dev` in
//! the OCI runtime's private mount namespace. As a side effect, the sandbox's mount table shows paths in this
//! file system for the device nodes, and no host paths.

use std::ffi::CStr;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FileType, makedev};
use rustix::mount::MountFlags;

use super::channel::ChannelSocket;
use super::disk::Disk;
use super::mounts::{Operation, c_string};
use crate::Error;

/// Mount point of this file system, relative to the bundle.
pub(crate) const PLACE: &str = "nodes";
/// Name of the channel directory in this file system.
pub(crate) const CHANNEL: &str = "channel";
/// Device node of the sandbox's disk. The mount table shows this name instead of the loop device's name.
pub(crate) const DISK: &CStr = c"disk";
/// Devices that OCI runtimes bind-mount into every container, with their names and device numbers.
const DEVICES: [(&CStr, u32, u32); 6] = [
    (c"null", 1, 3),
    (c"zero", 1, 5),
    (c"full", 1, 7),
    (c"random", 1, 8),
    (c"urandom", 1, 9),
    (c"tty", 5, 0),
];
/// Mount options that leave enough room for the nodes and the channel, with some to spare. Each entry uses
/// one inode and no data page.
const OPTIONS: &CStr = c"mode=755,size=16k,nr_inodes=32";

/// Returns the operations that mount the file system below the bundle and create the nodes. The operations
/// leave the child's current directory in this file system.
pub(crate) fn mount(bundle: &Path, disk: &Disk) -> Result<Vec<Operation>, Error> {
    let place = c_string(bundle.join(PLACE).as_os_str())?;
    let mut operations = vec![
        Operation::Mount {
            kind: c"tmpfs",
            source: c"nodes".to_owned(),
            target: place.clone(),
            flags: MountFlags::NOSUID | MountFlags::NOEXEC,
            options: OPTIONS.to_owned(),
        },
        Operation::Enter { path: place },
        Operation::Device {
            path: DISK.to_owned(),
            kind: FileType::BlockDevice,
            number: disk.device(),
            mode: 0o600,
        },
    ];
    operations.extend(DEVICES.map(|(name, major, minor)| Operation::Device {
        path: name.to_owned(),
        kind: FileType::CharacterDevice,
        number: makedev(major, minor),
        mode: 0o666,
    }));
    Ok(operations)
}

/// Returns the operations that create the channel directory and listen in it. The sandbox's root may enter
/// the directory, but no process in the sandbox may list or change it.
pub(crate) fn listen(bundle: &Path, socket: &ChannelSocket, base: u32) -> Result<Vec<Operation>, Error> {
    let directory = c_string(bundle.join(PLACE).join(CHANNEL).as_os_str())?;
    let name = socket.name.to_owned();
    Ok(vec![
        Operation::Directory { path: directory.clone() },
        Operation::Own { path: directory.clone(), user: 0, group: base, mode: 0o710 },
        Operation::Enter { path: directory },
        Operation::Listen { socket: Arc::clone(&socket.descriptor), address: socket.address.clone() },
        Operation::Own { path: name, user: 0, group: base, mode: 0o660 },
        Operation::Enter { path: c"/".to_owned() },
    ])
}

/// Returns the operation that makes the nodes available at `/dev`, where the OCI runtime expects them.
pub(crate) fn expose(bundle: &Path) -> Result<Operation, Error> {
    let source = c_string(bundle.join(PLACE).as_os_str())?;
    Ok(Operation::Bind { source, target: c"/dev".to_owned() })
}
