//! Disks in memory, for backends that cannot limit the size of files on a real disk.

use api::limits::Limits;

use crate::{Error, confinement};

/// Divisor of the disk size: the home directory gets a quarter of the disk, and the workspace gets the rest.
const HOME_SHARE: u64 = 4;
/// Number of disk bytes per allowed inode.
const FILE_BYTES: u64 = 1024;
/// Divisor of the memory limit that yields the spool's size, and the spool's maximum size. The spool holds
/// output that process 1 does not keep in its own memory.
const SPOOL_SHARE: u64 = 8;
const SPOOL_BYTES_MAX: u64 = 64 << 20;

/// Returns the maximum disk size, which is half the memory limit, because files are stored in memory and code
/// needs memory too. The minimum disk size is always allowed.
fn disk_bytes_max(limits: &Limits) -> u64 {
    (limits.memory_bytes / 2).max(Limits::MIN.disk_bytes)
}

/// Returns the maximum number of files. It is limited because each file takes kernel memory, which is also
/// charged to the sandbox.
fn disk_inodes_max(limits: &Limits) -> u64 {
    limits.disk_bytes / FILE_BYTES
}

/// Reduces the limits to the maximum that this backend can enforce.
pub(crate) fn within(limits: Limits) -> Limits {
    let limits = Limits { disk_bytes: limits.disk_bytes.min(disk_bytes_max(&limits)), ..limits };
    Limits { disk_inodes: limits.disk_inodes.min(disk_inodes_max(&limits)), ..limits }
}

/// Refuses limits that cannot be enforced when files are stored in memory.
pub(crate) fn check(limits: &Limits) -> Result<(), Error> {
    let (most, most_files) = (disk_bytes_max(limits), disk_inodes_max(limits));
    if limits.disk_inodes > most_files {
        return Err(Error::Unsupported {
            what: "disk_inodes",
            why: format!(
                "this backend keeps sandbox files in memory and cannot provide {} inodes; request {most_files} or fewer",
                limits.disk_inodes
            ),
        });
    }
    if limits.disk_bytes > most {
        return Err(Error::Unsupported {
            what: "disk_bytes",
            why: format!(
                "this backend keeps sandbox files in memory and cannot provide {} bytes; request {most} bytes or fewer, or request more memory",
                limits.disk_bytes
            ),
        });
    }
    Ok(())
}

/// Returns a sandbox's in-memory disks. Each has a path, a size, and mount options that contain the size and
/// the owner.
pub(crate) fn disks(limits: &Limits) -> [(&'static str, u64, String); 3] {
    let home = limits.disk_bytes / HOME_SHARE;
    let inodes = limits.disk_inodes;
    let user = format!("mode=0755,uid={0},gid={0}", api::limits::UID);
    let disk = |path, bytes: u64, inodes: u64, mode: &str| {
        (path, bytes, format!("size={bytes},nr_inodes={inodes},{mode}"))
    };
    [
        disk("/workspace", limits.disk_bytes - home, inodes - inodes / HOME_SHARE, &user),
        disk("/home/sandbox", home, inodes / HOME_SHARE, &user),
        match limits.tmp_bytes {
            // All disks are in memory here, within the memory limit, so `/tmp` is as large as the disk.
            0 => disk("/tmp", limits.disk_bytes, inodes, "mode=1777"),
            bytes => disk("/tmp", bytes, confinement::tmp_inodes(limits), "mode=1777"),
        },
    ]
}

/// Returns the mount options of the spool.
pub(crate) fn spool(limits: &Limits) -> String {
    format!("size={},mode=0700", (limits.memory_bytes / SPOOL_SHARE).min(SPOOL_BYTES_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_memory_and_leave_half_of_it() {
        let limits = Limits::default();
        assert!(check(&limits).is_err(), "a disk larger than memory is refused, by its name");
        assert!(check(&Limits { disk_bytes: limits.memory_bytes / 2, ..limits }).is_ok());
        assert!(check(&Limits { memory_bytes: 16 << 20, tmp_bytes: 1 << 20, ..Limits::MIN }).is_ok());
        assert!(check(&Limits { disk_inodes: 1 << 30, ..Limits::MIN }).is_err());
    }
}
