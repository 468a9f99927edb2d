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
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use tar::{Builder, EntryType, Header};

    use super::*;

    fn entry(builder: &mut Builder<Vec<u8>>, kind: u8, name: &[u8], target: &[u8], content: &[u8]) {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::new(kind));
        header.set_mode(0o4777);
        header.set_size(content.len() as u64);
        // The fields are set as raw bytes, because the library's setters reject the names that an attacker
        // would use.
        header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name);
        header.as_gnu_mut().unwrap().linkname[..target.len()].copy_from_slice(target);
        header.set_cksum();
        builder.append(&header, content).unwrap();
    }

    type Lines<'a> = &'a [(u8, &'a [u8], &'a [u8], &'a [u8])];

    fn archive(entries: Lines<'_>) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        for (kind, name, target, content) in entries {
            entry(&mut builder, *kind, name, target, content);
        }
        builder.into_inner().unwrap()
    }

    /// Creates a directory to unpack into, and a sibling directory that must not change.
    fn ground() -> tempfile::TempDir {
        let ground = tempfile::tempdir().unwrap();
        std::fs::create_dir(ground.path().join("outside")).unwrap();
        std::fs::write(ground.path().join("outside/kept"), "kept").unwrap();
        std::fs::set_permissions(ground.path().join("outside"), std::fs::Permissions::from_mode(0o711))
            .unwrap();
        ground
    }

    fn unpack(ground: &Path, bytes: &[u8]) -> Result<Unpacked, Error> {
        let done = DirectoryUnpacker::new(&ground.join("inside"), None)?.unpack(bytes);
        let mut names: Vec<_> =
            std::fs::read_dir(ground).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["inside", "outside"]);
        let outside = ground.join("outside");
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
        assert_eq!(std::fs::read(outside.join("kept")).unwrap(), b"kept");
        assert_eq!(std::fs::metadata(&outside).unwrap().permissions().mode() & 0o777, 0o711);
        done
    }

    #[test]
    fn what_our_packer_writes_is_unpacked_as_it_was() {
        let ground = ground();
        let source = ground.path().join("outside").join("..").join("inside-source");
        std::fs::create_dir_all(source.join("a/b")).unwrap();
        let long = "n".repeat(200);
        std::fs::write(source.join("a/b").join(&long), "deep").unwrap();
        std::fs::write(source.join("run.sh"), "#!").unwrap();
        std::fs::set_permissions(source.join("run.sh"), std::fs::Permissions::from_mode(0o755)).unwrap();
        std::os::unix::fs::symlink("a/b", source.join("link")).unwrap();
        let mut bytes = Vec::new();
        super::super::pack::pack(&source, &mut bytes).unwrap();
        std::fs::remove_dir_all(&source).unwrap();
        let unpacked = unpack(ground.path(), &bytes).unwrap();
        assert_eq!((unpacked.bytes, unpacked.left_out), (6, 0));
        let inside = ground.path().join("inside");
        assert_eq!(std::fs::read(inside.join("link").join(long)).unwrap(), b"deep");
        assert_eq!(std::fs::metadata(inside.join("run.sh")).unwrap().permissions().mode() & 0o111, 0o111);
        assert!(unpack(ground.path(), &bytes).is_ok(), "a second time over the first");
    }

    /// Verifies that attacks U-02 and U-05 fail: nothing outside the target directory is changed or followed.
    #[test]
    fn a_hostile_archive_touches_nothing_outside_its_directory() {
        let plans: &[Lines<'_>] = &[
            &[(b'0', b"../x", b"", b"x")],
            &[(b'0', b"a/../../x", b"", b"x")],
            &[(b'0', b"/tmp/bellglass-x", b"", b"x")],
            &[(b'5', b"../x", b"", b"")],
            &[(b'1', b"x", b"../outside/kept", b"")],
            &[(b'1', b"x", b"/etc/passwd", b"")],
            &[(b'3', b"x", b"", b"")],
            &[(b'4', b"x", b"", b"")],
            &[(b'6', b"x", b"", b"")],
            &[(b'S', b"x", b"", b"")],
            &[(b'x', b"x", b"", b"18 path=../outside\n")],
            &[(b'g', b"x", b"", b"18 path=../outside\n")],
            &[(b'L', b"././@LongLink", b"", b"../outside/kept\0"), (b'0', b"x", b"", b"x")],
        ];
        for plan in plans {
            let ground = ground();
            assert!(unpack(ground.path(), &archive(plan)).is_err(), "{plan:?}");
        }
        // Symlinks that lead out of the directory are skipped. Entries below such a symlink are created
        // inside the directory, or fail the copy.
        for target in [&b"../outside"[..], b"/tmp", b"a/../../outside", b"../../x"] {
            let ground = ground();
            let plan: Lines<'_> = &[(b'2', b"x", target, b""), (b'0', b"x/kept", b"", b"changed")];
            let unpacked = unpack(ground.path(), &archive(plan)).unwrap();
            assert_eq!(unpacked.left_out, 1);
            assert_eq!(std::fs::read(ground.path().join("inside/x/kept")).unwrap(), b"changed");
        }
    }

    #[test]
    fn no_symlink_is_followed_whoever_has_put_it_there() {
        // No symlink is followed: neither a symlink to a path inside, which the archive created, nor an
        // existing symlink to a path outside.
        let ground = ground();
        let two: Lines<'_> = &[(b'5', b"a", b"", b""), (b'2', b"b", b"a", b""), (b'0', b"b/x", b"", b"x")];
        assert!(unpack(ground.path(), &archive(two)).is_err());
        let inside = ground.path().join("inside");
        std::os::unix::fs::symlink("../outside", inside.join("c")).unwrap();
        assert!(unpack(ground.path(), &archive(&[(b'0', b"c/kept", b"", b"x")])).is_err());
        assert!(unpack(ground.path(), &archive(&[(b'5', b"c", b"", b"")])).is_err());
        std::os::unix::fs::symlink("../outside/kept", inside.join("d")).unwrap();
        assert!(unpack(ground.path(), &archive(&[(b'0', b"d", b"", b"x")])).is_ok());
        assert!(inside.join("d").symlink_metadata().unwrap().is_file(), "the symlink was replaced");
    }

    #[test]
    fn a_sandbox_is_not_blamed_for_what_was_here_before() {
        let ground = ground();
        std::fs::write(ground.path().join("mine"), "x").unwrap();
        std::os::unix::fs::symlink("outside", ground.path().join("link")).unwrap();
        for name in ["mine", "link"] {
            let error = DirectoryUnpacker::new(ground.path(), Some(name.as_bytes())).err().unwrap();
            assert!(error.message.contains("on this machine") && !error.fix.contains("trust"), "{error:?}");
        }
    }

    #[test]
    fn what_follows_the_end_of_an_archive_is_read_and_bounded() {
        let mut bytes = archive(&[(b'0', b"x", b"", b"x")]);
        bytes.extend(vec![0; 10 << 10]);
        let mut rest = bytes.as_slice();
        let ground = ground();
        DirectoryUnpacker::new(&ground.path().join("inside"), None).unwrap().unpack(&mut rest).unwrap();
        assert!(rest.is_empty());
        bytes.extend(vec![0; 2 << 20]);
        assert!(unpack(ground.path(), &bytes).is_err());
    }

    #[test]
    fn a_symlink_stays_inside_whatever_the_others_do() {
        for (target, depth, wanted) in [
            ("a", 0, true),
            ("../a", 1, true),
            ("../a", 0, false),
            ("a/../b", 1, false),
            ("./../a", 1, true),
            ("../../a", 1, false),
            ("/a", 3, false),
            ("", 0, false),
        ] {
            assert_eq!(stays_inside(target.as_bytes(), depth), wanted, "{target}");
        }
    }

    #[test]
    fn an_archive_that_breaks_off_leaves_no_half_file() {
        let whole = archive(&[(b'0', b"x", b"", &[7; 2000])]);
        for at in (0..2500).step_by(100) {
            let ground = ground();
            let _ = unpack(ground.path(), &whole[..at]);
            let inside = ground.path().join("inside");
            assert_eq!(std::fs::read_dir(inside).unwrap().count(), 0, "{at}");
        }
    }
}
