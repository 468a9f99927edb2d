//! A sandbox's own disk: an ext4 file system on a loop device, which is backed by a file of the requested
//! size.
//!
//! The blocks are reserved on the host when the file is created, so a sandbox is refused at that point if the
//! host lacks the space. With a sparse file, the host would accept the sandbox's writes and could lose them
//! later. The loop device detaches automatically after its last unmount, which happens when the sandbox's
//! last mount namespace ends.

use std::ffi::{CStr, CString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use api::defence;
use api::limits::{Limits, UID};
use rustix::fs::{FallocateFlags, FileType, Mode};
use rustix::mount::MountFlags;

use crate::Error;
use crate::files::{self, failed};
use crate::oci::blank;
use crate::oci::mounts::{Operation, c_string};
use crate::oci::process::{self, ENDING, Words};

/// Minimum free space that a new disk must leave on the host, because logs, records and databases need room.
const HOST_FREE_BYTES: u64 = 1 << 30;
/// Minimum free space that a new disk must leave, as a percentage of the host's file system. This matters for
/// large file systems, which slow down when nearly full.
const HOST_FREE_PERCENT: u64 = 2;
/// Disk space that only the guest may use, so that it can store output after user code has filled the disk.
/// It is enough for four full outputs of the default size, and for some directories.
const RESERVED_BYTES: u64 = 48 << 20;
/// Divisor of the disk size: at most an eighth of a small disk is reserved for the guest.
const RESERVED_SHARE: u64 = 8;
/// Size of an inode on the disk.
const INODE_BYTES: u64 = 256;
/// Divisor of the disk size: the inode tables may use at most half of the disk.
const INODES_SHARE: u64 = 2;
/// Number of inodes that ext4 reserves, plus the inodes of the directories that are created here.
const INODES_OWN: u64 = 16;
/// Timeout for `mke2fs`. It usually takes 3 ms; the rest is a margin for an overloaded machine.
const FORMAT: Duration = Duration::from_secs(20);
/// Maximum number of attempts to attach a loop device. Other processes compete for free devices, and one of
/// them may win in each attempt.
const ATTACH_TRIES: u32 = 256;

/// Directories of a writable root file system: the overlay's upper directory, which holds the changes, and
/// its work directory.
pub(crate) const UPPER: &str = "upper";
pub(crate) const WORK: &str = "work";

const LOOP_MAJOR: u32 = 7;
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// The kernel's `struct loop_config`, including its `struct loop_info64`.
#[repr(C)]
struct LoopConfig {
    descriptor: u32,
    block_size: u32,
    device: u64,
    inode: u64,
    device_inside: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encryption: [u32; 2],
    flags: u32,
    names: [u8; 160],
    initial: [u64; 2],
    reserved: [u64; 8],
}

/// A disk that is attached to a loop device. It stays attached while this value or a mount of the device
/// exists.
pub(crate) struct Disk {
    number: u32,
    _device: File,
}

impl Disk {
    /// Returns the device number of the loop device.
    pub(crate) fn device(&self) -> u64 {
        rustix::fs::makedev(LOOP_MAJOR, self.number)
    }

    /// Returns the operations that mount the disk at `target` and create the sandbox's directories on it.
    /// `source` is the name of the device node in the current directory, and the sandbox's mount table shows
    /// this name.
    pub(crate) fn operations(
        &self,
        source: &CStr,
        target: &Path,
        base: u32,
    ) -> Result<Vec<Operation>, Error> {
        // No data on this disk outlives the sandbox, so there is no need to flush the host's disk.
        let options = format!("resuid={base},noinit_itable,nobarrier");
        let mut operations = vec![
            Operation::Mount {
                kind: c"ext4",
                source: source.to_owned(),
                target: c_string(target.as_os_str())?,
                flags: MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOATIME,
                options: CString::new(options).unwrap_or_default(),
            },
            Operation::Own { path: c_string(target.as_os_str())?, user: base, group: base, mode: 0o711 },
        ];
        for (name, user, mode) in [
            ("workspace", UID, 0o755),
            ("home", UID, 0o750),
            ("tmp", 0, 0o1777),
            ("spool", 0, 0o700),
            (UPPER, 0, 0o755),
            (WORK, 0, 0o700),
        ] {
            let path = c_string(target.join(name).as_os_str())?;
            operations.push(Operation::Directory { path: path.clone() });
            operations.push(Operation::Own { path, user: base + user, group: base + user, mode });
        }
        Ok(operations)
    }
}

/// Creates the disk's file with all its blocks, and the file system in it. `blanks` is the directory that
/// holds the blank disks.
pub(crate) fn make(path: &Path, blanks: &Path, limits: &Limits) -> Result<(), Error> {
    if limits.disk_inodes.saturating_mul(INODE_BYTES) > limits.disk_bytes / INODES_SHARE {
        return Err(Error::Unsupported {
            what: "disk_inodes",
            why: format!(
                "the inode tables would fill a disk of {} bytes; request fewer inodes or more disk",
                limits.disk_bytes
            ),
        });
    }
    let limits = &Limits {
        disk_bytes: defence::limit(limits.disk_bytes, "C-08"),
        disk_inodes: defence::limit(limits.disk_inodes, "C-09"),
        ..*limits
    };
    refuse_if_full(path, limits.disk_bytes)?;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|source| failed("create", path, source))?;
    match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, limits.disk_bytes) {
        Ok(()) => blank::copy_into(&file, path, blanks, limits, |blank| format(blank, limits)),
        Err(rustix::io::Errno::NOSPC | rustix::io::Errno::FBIG | rustix::io::Errno::DQUOT) => {
            Err(Error::Capacity {
                what: "the disk",
                why: format!("the host does not have {} free bytes for the disk", limits.disk_bytes),
            })
        }
        Err(rustix::io::Errno::OPNOTSUPP) => Err(Error::Unsupported {
            what: "disk_bytes",
            why: "the file system of the data directory cannot reserve blocks; put the data directory on ext4, xfs or btrfs"
                .into(),
        }),
        Err(error) => Err(failed("reserve blocks of", path, error.into())),
    }
}

/// Attaches the disk to a free loop device. Calls `chosen` with the device's number before attaching it, so
/// that the caller can record the number first.
pub(crate) fn attach(path: &Path, mut chosen: impl FnMut(u32) -> Result<(), Error>) -> Result<Disk, Error> {
    let control_path = Path::new("/dev/loop-control");
    let control = open_device(control_path).map_err(|source| failed("open", control_path, source))?;
    let backing = open_device(path).map_err(|source| failed("open", path, source))?;
    for _ in 0..ATTACH_TRIES {
        // SAFETY: this request takes no argument and returns the number of a free device.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
        let number = u32::try_from(number)
            .map_err(|_| failed("find a free loop device with", control_path, io::Error::last_os_error()))?;
        chosen(number)?;
        let device = open_node(number)?;
        match configure(device.as_raw_fd(), backing.as_raw_fd()) {
            Ok(()) => return Ok(Disk { number, _device: device }),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            Err(error) => return Err(failed("attach to a loop device", path, error)),
        }
    }
    Err(Error::Capacity { what: "a loop device", why: "other processes took all free loop devices".into() })
}

/// Waits until the kernel has detached the loop device of a sandbox that has ended.
pub(crate) fn wait_detached(number: u32, path: &Path) -> Result<(), Error> {
    let deadline = Instant::now() + ENDING;
    let backing = PathBuf::from(format!("/sys/block/loop{number}/loop/backing_file"));
    while files::read_if_there(&backing)?.is_some_and(|text| Path::new(text.trim_end()) == path) {
        if Instant::now() > deadline {
            return Err(Error::Deadline { what: "releasing the loop device of a sandbox", after: ENDING });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Removes the disk's file. On a host that discards freed blocks, deletion takes one round trip to the device
/// per extent. Zeroing the file first merges the many extents of a used disk into one.
pub(crate) fn remove(path: &Path) -> Result<(), Error> {
    if let Ok(file) = OpenOptions::new().write(true).open(path)
        && let Ok(found) = file.metadata()
    {
        let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        // This is only an optimization. If the file system does not support it, the file is removed anyway.
        let _ = rustix::fs::fallocate(&file, flags, 0, found.len());
    }
    files::remove_file(path)
}

fn refuse_if_full(path: &Path, bytes: u64) -> Result<(), Error> {
    let parent = path.parent().unwrap_or(path);
    let host = rustix::fs::statvfs(parent)
        .map_err(|error| failed("inspect the file system of", parent, error.into()))?;
    let free = host.f_bavail.saturating_mul(host.f_frsize);
    let kept = HOST_FREE_BYTES.max(host.f_blocks.saturating_mul(host.f_frsize) / 100 * HOST_FREE_PERCENT);
    if free < bytes.saturating_add(kept) {
        return Err(Error::Capacity {
            what: "the disk",
            why: format!("{bytes} bytes were requested, {free} are free, and {kept} of these are reserved"),
        });
    }
    Ok(())
}

fn format(path: &Path, limits: &Limits) -> Result<(), Error> {
    let reserved = RESERVED_BYTES.min(limits.disk_bytes / RESERVED_SHARE);
    let hundredths = reserved.saturating_mul(10_000) / limits.disk_bytes.max(1);
    let mut command = Command::new("mke2fs");
    command
        .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-I"])
        .arg(INODE_BYTES.to_string())
        .arg("-N")
        .arg((limits.disk_inodes + INODES_OWN).to_string())
        .arg("-m")
        .arg(format!("{}.{:02}", hundredths / 100, hundredths % 100))
        // The file system has no journal: the disk is removed with the sandbox, so a journal would never be
        // replayed.
        .args(["-O", "^has_journal,^resize_inode", "-E", "nodiscard,lazy_itable_init=1"])
        .arg(path);
    process::run(&command, &[], &Words::Stderr, FORMAT)
}

fn configure(device: RawFd, backing: RawFd) -> io::Result<()> {
    let config = LoopConfig {
        descriptor: u32::try_from(backing).map_err(|_| io::ErrorKind::InvalidInput)?,
        block_size: 0,
        device: 0,
        inode: 0,
        device_inside: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encryption: [0; 2],
        // Use direct I/O, so that data in the page cache of the sandbox's file system is not cached a second
        // time.
        flags: LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO,
        names: [0; 160],
        initial: [0; 2],
        reserved: [0; 8],
    };
    // SAFETY: both descriptors are open, and `config` has the kernel's layout and outlives the call, which
    // only reads it.
    let result = unsafe { libc::ioctl(device, LOOP_CONFIGURE, &raw const config) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn open_node(number: u32) -> Result<File, Error> {
    let path = node(number);
    match open_device(&path) {
        Ok(device) => return Ok(device),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed("open", &path, error)),
    }
    // If the kernel does not manage /dev (devtmpfs), the node of a new device must be created here.
    let device = rustix::fs::makedev(LOOP_MAJOR, number);
    match rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        FileType::BlockDevice,
        Mode::from_raw_mode(0o660),
        device,
    ) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(failed("create device", &path, error.into())),
    }
    open_device(&path).map_err(|source| failed("open", &path, source))
}

fn open_device(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

fn node(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/loop{number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_the_kernels() {
        // `sizeof(struct loop_config)` in <linux/loop.h>, and the offset of `lo_flags` in it.
        assert_eq!(size_of::<LoopConfig>(), 304);
        assert_eq!(std::mem::offset_of!(LoopConfig, flags), 60);
    }

    #[test]
    fn a_disk_that_the_host_has_no_room_for_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("disk.img");
        let limits = Limits { disk_bytes: 1 << 55, ..Limits::default() };
        assert!(matches!(make(&path, home.path(), &limits), Err(Error::Capacity { .. })));
        assert!(!path.exists());
    }
}
