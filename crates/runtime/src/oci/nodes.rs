//! A small file system in memory for each sandbox: its device nodes, and the directory of its channel.
//!
//! An OCI runtime cannot make device nodes in a user namespace, so it binds those it finds in `/dev`. The host's are the same
//! inodes for everybody: locks and watches on `/dev/null` would reach every sandbox and the host. So the OCI runtime finds this
//! file system at `/dev`, in the private mount namespace. What is bound from here also shows a path of this file system in the
//! sandbox's table of mounts, and none of the host's.

use std::ffi::CStr;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FileType, makedev};
use rustix::mount::MountFlags;

use super::channel::Socket;
use super::disk::Disk;
use super::mounts::{Operation, c_string};
use crate::Error;

/// The directory of the bundle at which it is mounted.
pub(crate) const PLACE: &str = "nodes";
/// The directory of the channel in it.
pub(crate) const CHANNEL: &str = "channel";
/// The node of the sandbox's disk. The table of mounts shows this name, and not that of the loop device.
pub(crate) const DISK: &CStr = c"disk";
/// What OCI runtimes bind in every container, by name and device number.
const DEVICES: [(&CStr, u32, u32); 6] = [
    (c"null", 1, 3),
    (c"zero", 1, 5),
    (c"full", 1, 7),
    (c"random", 1, 8),
    (c"urandom", 1, 9),
    (c"tty", 5, 0),
];
/// Room for the nodes and the channel, with some to spare; each is an inode without a page.
const OPTIONS: &CStr = c"mode=755,size=16k,nr_inodes=32";

/// Mounts it below the bundle and makes the nodes. The current directory is in it afterwards.
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

/// Makes the channel's directory, which root of the sandbox may enter and nobody inside may list or change, and listens in it.
pub(crate) fn listen(bundle: &Path, socket: &Socket, base: u32) -> Result<Vec<Operation>, Error> {
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

/// Has the OCI runtime find the nodes where it looks for them.
pub(crate) fn expose(bundle: &Path) -> Result<Operation, Error> {
    let source = c_string(bundle.join(PLACE).as_os_str())?;
    Ok(Operation::Bind { source, target: c"/dev".to_owned() })
}
