//! Unpacks an archive from a sandbox. The archive is untrusted and must not affect any other files on this
//! machine.
//!
//! Everything is created below one directory, through descriptors, one path component at a time. Symlinks are
//! never followed, no matter who created them. The unpacker accepts only entries that Bellglass's own packer
//! writes: directories, regular files, symlinks, and GNU long names. Anything else aborts the copy: absolute
//! paths, `..`, hard links, devices, and ambiguous headers. A symlink that could lead out of the directory is
//! skipped and counted.

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

use api::Error;
use api::files::{DEPTH_MAX, PATH_BYTES_MAX};
use api::limits::Limits;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use tar::Archive;

/// Maximum number of entries in an archive. No sandbox has more files than this.
const ENTRIES_MAX: u64 = Limits::MAX.disk_inodes;
/// Maximum total size of all files in bytes. No sandbox has a larger disk.
const BYTES_MAX: u64 = Limits::MAX.disk_bytes;
/// Maximum number of bytes after the last entry. Packers pad archives with zeros: usually to 10 KiB, some to
/// 1 MiB.
const REST_BYTES_MAX: u64 = 1 << 20;
/// Size of the buffer for copying file contents.
const CHUNK_BYTES: usize = 128 << 10;
/// Flags for opening a directory.
const DIRECTORY: OFlags =
    OFlags::DIRECTORY.union(OFlags::RDONLY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Entry types that our packer writes, with their values in the tar format.
const REGULAR: u8 = b'0';
const SYMLINK: u8 = b'2';
const FOLDER: u8 = b'5';
const LONG_NAME: u8 = b'L';
const LONG_TARGET: u8 = b'K';

/// Result of unpacking an archive.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Unpacked {
    /// Number of created entries.
    pub entries: u64,
    /// Total size of the files.
    pub bytes: u64,
    /// Number of skipped symlinks.
    pub left_out: u64,
}

/// Unpacker that creates all entries below one directory.
pub struct DirectoryUnpacker {
    root: OwnedFd,
    unpacked: Unpacked,
    /// Random number in the names of incomplete files.
    random: u64,
}

impl DirectoryUnpacker {
    /// Creates an unpacker for a local directory, or for its subdirectory `name`. Creates missing
    /// directories.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be created or opened.
    pub fn new(directory: &Path, name: Option<&[u8]>) -> Result<Self, Error> {
        let fault = |errno| local("open", directory.as_os_str().as_encoded_bytes(), errno);
        std::fs::create_dir_all(directory)
            .map_err(|error| fault(error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)))?;
        // Symlinks in this path are followed, because the user chose the path.
        let flags = DIRECTORY.difference(OFlags::NOFOLLOW);
        let mut root = rustix::fs::openat(CWD, directory, flags, Mode::empty()).map_err(fault)?;
        if let Some(name) = name {
            root = enter(&root, name)?;
        }
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
            .map_err(|errno| local("name", b"a file", errno))?;
        Ok(Self { root, unpacked: Unpacked::default(), random: u64::from_ne_bytes(random) })
    }

    /// Unpacks the whole archive.
    ///
    /// # Errors
    /// Returns an error if the archive is invalid, or contains an entry that is not allowed. Entries that
    /// were already unpacked remain.
    pub fn unpack(mut self, mut from: impl Read) -> Result<Unpacked, Error> {
        let broken = |error: io::Error| {
            Error::invalid(
                format!("the archive is truncated or invalid: {error}"),
                "Copy the directory again.",
            )
        };
        let mut archive = Archive::new(&mut from);
        let (mut long_name, mut long_target) = (None, None);
        for entry in archive.entries().map_err(broken)?.raw(true) {
            let mut entry = entry.map_err(broken)?;
            let header = entry.header().clone();
            let size = header.entry_size().map_err(broken)?;
            let name = long_name.take().unwrap_or_else(|| header.path_bytes().into_owned());
            self.unpacked.entries += 1;
            if self.unpacked.entries > ENTRIES_MAX {
                return Err(api::limits::exceeded(
                    "the number of archive entries",
                    ENTRIES_MAX + 1,
                    ENTRIES_MAX,
                ));
            }
            match header.entry_type().as_byte() {
                LONG_NAME => long_name = Some(text(&mut entry, size).map_err(broken)?),
                LONG_TARGET => {
                    long_target = Some(text(&mut entry, size).map_err(broken)?);
                    // A long name and a long target can precede the same entry. If the long name came first,
                    // it is kept. Otherwise, `name` is only this header's placeholder.
                    long_name = Some(name).filter(|name| name != b"././@LongLink");
                }
                FOLDER => drop(self.directory(&steps(&name)?)?),
                REGULAR => self.file(&steps(&name)?, &mut entry, size, header.mode().unwrap_or(0))?,
                SYMLINK => {
                    let short = header.link_name_bytes().map(std::borrow::Cow::into_owned);
                    let target = long_target.take().or(short).unwrap_or_default();
                    self.symlink(&steps(&name)?, &target)?;
                }
                kind => {
                    let what = format!("entry type {:?} is not supported", char::from(kind));
                    return Err(refused(&name, &what));
                }
            }
        }
        // The sender expects the whole stream to be read. After the last entry, it contains blocks of zeros
        // and the packer's report.
        let rest = io::copy(&mut from.by_ref().take(REST_BYTES_MAX + 1), &mut io::sink()).map_err(broken)?;
        if rest > REST_BYTES_MAX {
            return Err(refused(b"", "too much data follows the end of the archive"));
        }
        Ok(self.unpacked)
    }

    /// Opens a directory. Missing directories are created. A symlink in the path is an error.
    fn directory(&self, steps: &[Vec<u8>]) -> Result<OwnedFd, Error> {
        let mut here = self.root.try_clone().map_err(|error| crate::platform(error.to_string()))?;
        for step in steps {
            here = enter(&here, step)?;
        }
        Ok(here)
    }

    fn file(
        &mut self,
        steps: &[Vec<u8>],
        content: &mut impl Read,
        size: u64,
        mode: u32,
    ) -> Result<(), Error> {
        let Some((name, above)) = steps.split_last() else {
            return Err(refused(b"", "the entry has no name"));
        };
        self.unpacked.bytes = self.unpacked.bytes.saturating_add(size);
        if self.unpacked.bytes > BYTES_MAX {
            return Err(api::limits::exceeded("the total size of the files", self.unpacked.bytes, BYTES_MAX));
        }
        let parent = self.directory(above)?;
        // The file is first created under a temporary name. No existing file is opened, and an existing file
        // at the target path stays intact until the new content is complete.
        let part = format!(".{:016x}.{}.part", self.random, self.unpacked.entries);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode((mode & 0o777) | 0o200);
        let file = rustix::fs::openat(&parent, part.as_str(), flags, mode)
            .map_err(|errno| local("create", name, errno))?;
        let placed = pour(content, size, &file, name).and_then(|()| {
            rustix::fs::renameat(&parent, part.as_str(), &parent, name.as_slice())
                .map_err(|errno| local("replace", name, errno))
        });
        if placed.is_err() {
            let _ = rustix::fs::unlinkat(&parent, part.as_str(), AtFlags::empty());
        }
        placed
    }

    fn symlink(&mut self, steps: &[Vec<u8>], target: &[u8]) -> Result<(), Error> {
        let Some((name, above)) = steps.split_last() else {
            return Err(refused(b"", "the entry has no name"));
        };
        if !stays_inside(target, above.len()) {
            self.unpacked.left_out += 1;
            return Ok(());
        }
        let parent = self.directory(above)?;
        match rustix::fs::unlinkat(&parent, name.as_slice(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(local("replace", name, errno)),
        }
        rustix::fs::symlinkat(target, &parent, name.as_slice()).map_err(|errno| local("create", name, errno))
    }
}

/// Returns true if a symlink in a directory at this depth leads to a path inside the root directory, in any
/// combination with other accepted symlinks. The target may therefore contain `..` only at its start, and
/// must not lead above the root.
fn stays_inside(target: &[u8], depth: usize) -> bool {
    if target.is_empty() || target.starts_with(b"/") || target.contains(&0) {
        return false;
    }
    let parts = target.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    let (mut up, mut down) = (0, false);
    for part in parts {
        if part == b".." {
            up += 1;
            if down || up > depth {
                return false;
            }
        } else {
            down = true;
        }
    }
    true
}

/// Splits the path of an entry into its components, and rejects unsafe paths.
fn steps(name: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
    let why = if name.starts_with(b"/") {
        "the path is absolute"
    } else if name.contains(&0) {
        "the path contains a NUL byte"
    } else if name.len() > PATH_BYTES_MAX {
        "the path is too long"
    } else {
        let steps: Vec<Vec<u8>> = name
            .split(|byte| *byte == b'/')
            .filter(|step| !step.is_empty() && *step != b".")
            .map(<[u8]>::to_vec)
            .collect();
        if steps.iter().any(|step| step == b"..") {
            "the path contains `..`"
        } else if steps.len() > DEPTH_MAX as usize {
            "the path is too deep"
        } else {
            return Ok(steps);
        }
    };
    Err(refused(name, why))
}

/// Opens a directory, creating it if it is missing.
fn enter(here: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Error> {
    match rustix::fs::mkdirat(here, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(local("create", name, errno)),
    }
    rustix::fs::openat(here, name, DIRECTORY, Mode::empty()).map_err(|errno| match errno {
        Errno::NOTDIR | Errno::LOOP => in_the_way(name),
        errno => local("open", name, errno),
    })
}

fn pour(from: &mut impl Read, size: u64, to: &OwnedFd, name: &[u8]) -> Result<(), Error> {
    let (mut left, mut buffer) = (size, vec![0; CHUNK_BYTES]);
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
        let count = from.read(buffer.get_mut(..most).unwrap_or_default()).unwrap_or(0);
        if count == 0 {
            return Err(Error::invalid("the archive is truncated", "Copy the directory again."));
        }
        let mut bytes = buffer.get(..count).unwrap_or_default();
        while !bytes.is_empty() {
            let written = rustix::io::write(to, bytes).map_err(|errno| local("write", name, errno))?;
            bytes = bytes.get(written..).unwrap_or_default();
        }
        left -= count as u64;
    }
    Ok(())
}

/// Reads a long name, up to the maximum path length.
fn text(entry: &mut impl Read, size: u64) -> io::Result<Vec<u8>> {
    if size > PATH_BYTES_MAX as u64 + 1 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = Vec::new();
    entry.take(size).read_to_end(&mut bytes)?;
    if bytes.last() == Some(&0) {
        bytes.pop();
    }
    Ok(bytes)
}

fn refused(name: &[u8], why: &str) -> Error {
    let shown =
        String::from_utf8_lossy(name.get(..name.len().min(PATH_BYTES_MAX)).unwrap_or_default()).into_owned();
    Error::invalid(
        format!("refusing to unpack {shown:?} from the sandbox's archive: {why}"),
        "Do not trust this sandbox. Inspect its files with `bellglass ls` and copy them one by one.",
    )
}

/// Returns the error for an existing file or symlink in the place of a directory. The error does not blame
/// the sandbox, because the owner of this machine most likely created the file.
fn in_the_way(name: &[u8]) -> Error {
    Error::invalid(
        format!(
            "cannot unpack into {:?} on this machine: it is not a directory, and symlinks are not followed",
            String::from_utf8_lossy(name)
        ),
        "Move the existing file or symlink away, or copy to an empty directory. If the error also occurs in an empty directory, the sandbox sent an unsafe archive.",
    )
}

fn local(act: &str, name: &[u8], errno: Errno) -> Error {
    Error::invalid(
        format!("cannot {act} {:?}: {}", String::from_utf8_lossy(name), io::Error::from(errno)),
        "Check that you have write permission in the target directory and that the disk has free space.",
    )
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
