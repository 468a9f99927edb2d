//! Detects sandboxes that hold too many file locks. Linux neither limits the kernel memory for locks nor
//! charges it to a cgroup (CVE-2022-0480).
//!
//! Counting the machine's locks is cheap and is done continuously. The sandboxes that hold them are
//! determined only if there are too many locks, because reading the lock table blocks every process that
//! locks a file. Only the newest locks are read, up to a limit. A lock is attributed to a sandbox if the
//! sandbox's file system contains the file, if one of its processes took the lock, or if one of its processes
//! has the file open.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use api::SandboxId;

use super::Oci;
use super::cgroup::Cgroups;
use super::stop::is_current;
use crate::files::{self, failed};
use crate::{Culprit, Error, Tier, tables};

/// Number of locks on the whole machine that triggers the search for their holders. This many locks take 19
/// MiB of kernel memory, and a busy machine has only a few thousand.
const LOCKS_MAX: u64 = 100_000;
/// Maximum number of the sampled locks that one sandbox may hold. Databases hold at most one lock for each
/// open file.
const HELD_MAX: u64 = 8000;
/// Maximum size of the sample, which is about 16,000 locks. Reading them takes a hundredth of a second.
const SAMPLE_BYTES: u64 = 1 << 20;
/// Maximum number of open files to inspect when a lock's entry identifies neither a process nor a sandbox.
const FILES_MAX: usize = 100_000;

/// Location of a file: the major and minor number of its device, and its inode number.
type LockedFile = ((u32, u32), u64);

/// A lock in the kernel's table.
#[derive(Debug, PartialEq, Eq)]
struct Lock {
    /// Pid of the process that took the lock, or -1 if the lock belongs to an open file description.
    pid: i32,
    place: LockedFile,
}

impl Oci {
    /// Returns the sandbox that holds too many locks, if there is one.
    pub(super) fn locks_culprit(&self) -> Result<Option<Culprit>, Error> {
        let off = self.flavor.tier == Tier::UserKernel || api::defence::is_off("C-33");
        if off || tables::locks().is_none_or(|count| count < LOCKS_MAX) {
            return Ok(None);
        }
        let devices = self.devices()?;
        let mut held: BTreeMap<SandboxId, u64> = BTreeMap::new();
        let mut unknown: BTreeMap<LockedFile, u64> = BTreeMap::new();
        let mut callers: BTreeMap<i32, Option<SandboxId>> = BTreeMap::new();
        for lock in sample()?.lines().filter_map(parse) {
            let by_process =
                || callers.entry(lock.pid).or_insert_with(|| Cgroups::sandbox_of(lock.pid)).clone();
            match devices.get(&lock.place.0).cloned().or_else(by_process) {
                Some(id) => *held.entry(id).or_default() += 1,
                None => *unknown.entry(lock.place).or_default() += 1,
            }
        }
        if unknown.values().sum::<u64>() > HELD_MAX {
            self.find_open(&unknown, &mut held)?;
        }
        // Sandboxes that are not in this data directory belong to a different server.
        let own: BTreeSet<SandboxId> = self.dirs.ids()?.into_iter().collect();
        held.retain(|id, _| own.contains(id));
        let most = held.into_iter().max_by_key(|(_, count)| *count).filter(|(_, count)| *count > HELD_MAX);
        Ok(most.map(|(id, count)| Culprit { id, what: format!("holds at least {count} file locks") }))
    }

    /// Returns a map from the device of each file system to the sandbox that mounts it. Devices that the host
    /// also mounts are excluded, because they are shared. For example, a sandbox that unpacks layers mounts
    /// such a device.
    fn devices(&self) -> Result<BTreeMap<(u32, u32), SandboxId>, Error> {
        let mut devices = BTreeMap::new();
        let host = files::read(Path::new("/proc/self/mountinfo"))?;
        let host: BTreeSet<(u32, u32)> = host.lines().filter_map(device).collect();
        for id in self.dirs.ids()? {
            let Some(record) = self.record(&id)?.filter(is_current) else { continue };
            let Some(process) = record.process else { continue };
            let path = PathBuf::from(format!("/proc/{}/mountinfo", process.pid));
            let mounts = files::read_if_there(&path)?.unwrap_or_default();
            let own = mounts.lines().filter_map(device).filter(|device| !host.contains(device));
            devices.extend(own.map(|device| (device, id.clone())));
        }
        Ok(devices)
    }

    /// Attributes locks to the sandboxes that have the locked files open. This is needed for unnamed files,
    /// because these are on a file system that all processes share.
    fn find_open(
        &self,
        unknown: &BTreeMap<LockedFile, u64>,
        held: &mut BTreeMap<SandboxId, u64>,
    ) -> Result<(), Error> {
        let mut looked = 0;
        for id in self.dirs.ids()? {
            let mut files = BTreeSet::new();
            for pid in self.cgroups.processes(&id)? {
                looked += find_locked(pid, FILES_MAX - looked, unknown, &mut files);
            }
            let count = locks_on(&files, unknown);
            if count > 0 {
                *held.entry(id).or_default() += count;
            }
        }
        Ok(())
    }
}

/// Adds the locked files that a process has open to `files`. Inspects at most `most` descriptors, and returns
/// their number.
fn find_locked(
    pid: i32,
    most: usize,
    locks: &BTreeMap<LockedFile, u64>,
    files: &mut BTreeSet<LockedFile>,
) -> usize {
    let mut looked = 0;
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    for file in open.take(most) {
        looked += 1;
        let Ok(found) = std::fs::metadata(file.path()) else { continue };
        let device = (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
        files.extend(Some((device, found.ino())).filter(|file| locks.contains_key(file)));
    }
    looked
}

/// Returns the number of locks on these files. A lock counts once, however many descriptors of the file a
/// sandbox has: duplicates and inherited descriptors do not take another lock.
fn locks_on(files: &BTreeSet<LockedFile>, locks: &BTreeMap<LockedFile, u64>) -> u64 {
    files.iter().filter_map(|file| locks.get(file)).sum()
}

/// Reads the newest locks, in the kernel's text format.
fn sample() -> Result<String, Error> {
    let path = Path::new("/proc/locks");
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(SAMPLE_BYTES).read_to_end(&mut bytes))
        .map_err(|source| failed("read", path, source))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Parses a line such as `7: POSIX  ADVISORY  WRITE 13580 00:1b:310 0 EOF`. A request that waits for a lock
/// has an arrow after the number.
fn parse(line: &str) -> Option<Lock> {
    let mut words = line.split_whitespace().skip(1).filter(|word| *word != "->").skip(3);
    let pid = words.next()?.parse().ok()?;
    let mut place = words.next()?.split(':');
    let hexadecimal = |word: Option<&str>| u32::from_str_radix(word?, 16).ok();
    let device = (hexadecimal(place.next())?, hexadecimal(place.next())?);
    Some(Lock { pid, place: (device, place.next()?.parse().ok()?) })
}

/// Parses the device numbers in a line of `mountinfo`.
fn device(line: &str) -> Option<(u32, u32)> {
    let (major, minor) = line.split(' ').nth(2)?.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_read_as_the_kernel_writes_them() {
        let lock = parse("452: POSIX  ADVISORY  WRITE 13580 00:1b:310 1099511625556 1099511625556");
        assert_eq!(lock, Some(Lock { pid: 13580, place: ((0, 27), 310) }));
        let waits = parse("452: -> OFDLCK ADVISORY  READ  -1 fe:00:10133507 0 EOF");
        assert_eq!(waits, Some(Lock { pid: -1, place: ((254, 0), 10_133_507) }));
        assert_eq!(parse("452: POSI"), None, "the last line may be cut");
        assert_eq!(device("36 35 98:0 / /x rw - ext4 disk rw"), Some((98, 0)));
    }

    #[test]
    fn a_lock_counts_once_however_many_descriptors_its_file_has() {
        let locked = tempfile::tempfile().unwrap();
        let copies: Vec<File> = (0..9).map(|_| locked.try_clone().unwrap()).collect();
        let found = locked.metadata().unwrap();
        let device = (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
        let locks = BTreeMap::from([((device, found.ino()), 5), ((device, u64::MAX), 7)]);
        let own = std::process::id().try_into().unwrap();
        let mut files = BTreeSet::new();
        let looked = find_locked(own, FILES_MAX, &locks, &mut files);
        assert!(looked > copies.len(), "each copy is a descriptor");
        assert_eq!(locks_on(&files, &locks), 5);
    }
}
