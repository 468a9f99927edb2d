//! Builds archives of the files that a recipe copies. Names are sorted, owners are root and times are zero,
//! so that the same files always produce the same bytes.
//!
//! Paths are resolved through descriptors below the recipe's directory. A symlink is copied, not followed.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use host::error::Error;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use tar::{Builder, EntryType, Header};

use crate::recipe::Copy;
use crate::{failed, unsound};

/// Maximum number of files and directories in one copy, and their maximum total size in bytes.
const ENTRIES_MAX: usize = 100_000;
const BYTES_MAX: u64 = 4 << 30;
const DEPTH_MAX: usize = 128;
const BELOW: ResolveFlags = ResolveFlags::BENEATH;

struct CopyPacker<'a, W: Write> {
    builder: &'a mut Builder<W>,
    entries: usize,
    bytes: u64,
}

/// Writes an archive of the files to copy.
pub(super) fn pack(directory: &Path, copy: &Copy, to: impl Write) -> Result<(), Error> {
    let mut builder = Builder::new(to);
    add(directory, copy, &mut builder)?;
    builder.into_inner().and_then(|mut to| to.flush()).map_err(failed("copy", directory))
}

/// Adds the files to copy to an archive.
pub(super) fn add(directory: &Path, copy: &Copy, builder: &mut Builder<impl Write>) -> Result<(), Error> {
    let path = directory.join(&copy.from);
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let home = rustix::fs::open(directory, flags, Mode::empty())
        .map_err(|errno| failed("open", directory)(errno.into()))?;
    let opened =
        rustix::fs::openat2(&home, &*copy.from, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), BELOW);
    if let Err(errno) = opened {
        return Err(unsound(
            format!("cannot copy {:?}: {errno}", copy.from),
            "Use a file or directory below the recipe's directory.",
        ));
    }
    let mut packer = CopyPacker { builder, entries: 0, bytes: 0 };
    let inside = PathBuf::from(copy.to.trim_start_matches('/'));
    let packed = packer.one(&home, Path::new(&copy.from), &inside, 0);
    packed.map_err(|error| match error.raw_os_error() {
        None => unsound(format!("cannot copy {:?}: {error}", copy.from), "Copy fewer or different files."),
        Some(_) => failed("copy", &path)(error),
    })
}

impl<W: Write> CopyPacker<'_, W> {
    fn one(&mut self, parent: &OwnedFd, name: &Path, inside: &Path, depth: usize) -> io::Result<()> {
        self.entries += 1;
        if self.entries > ENTRIES_MAX || depth > DEPTH_MAX {
            return Err(io::Error::other("there are too many files or too deeply nested directories"));
        }
        // The parent directories of the recipe's path may be symlinks, provided they stay below the recipe's
        // directory. The last component is examined itself, without following symlinks.
        let (parent, last) = match (name.parent(), name.file_name()) {
            (Some(above), Some(last)) if !above.as_os_str().is_empty() => {
                let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
                (&rustix::fs::openat2(parent, above, flags, Mode::empty(), BELOW)?, Path::new(last))
            }
            _ => (parent, name),
        };
        if last.as_os_str().as_bytes().starts_with(b".wh.") {
            return Err(io::Error::other(format!(
                "the name of {} starts with `.wh.`, which would hide another file in a layer",
                inside.display()
            )));
        }
        let stat = rustix::fs::statat(parent, last, AtFlags::SYMLINK_NOFOLLOW)?;
        let mut header = header(&stat);
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                let file = File::from(rustix::fs::openat(parent, last, flags, Mode::empty())?);
                let size = u64::try_from(stat.st_size).unwrap_or(0);
                self.bytes = self.bytes.saturating_add(size);
                if self.bytes > BYTES_MAX {
                    return Err(io::Error::other(format!(
                        "the files are larger than {BYTES_MAX} bytes in total"
                    )));
                }
                header.set_size(size);
                self.builder.append_data(&mut header, inside, SizedFile { file, left: size })
            }
            FileType::Symlink => {
                header.set_entry_type(EntryType::Symlink);
                let target = rustix::fs::readlinkat(parent, last, Vec::new())?;
                let target = std::ffi::OsString::from_vec(target.into_bytes());
                self.builder.append_link(&mut header, inside, target)
            }
            FileType::Directory => {
                header.set_entry_type(EntryType::Directory);
                self.builder.append_data(&mut header, inside, io::empty())?;
                let directory = rustix::fs::openat(parent, last, flags | OFlags::DIRECTORY, Mode::empty())?;
                let mut names = Vec::new();
                for entry in Dir::read_from(&directory)? {
                    let name = entry?.file_name().to_bytes().to_vec();
                    if name != b"." && name != b".." {
                        names.push(name);
                    }
                }
                names.sort();
                for name in names {
                    let name = Path::new(std::ffi::OsStr::from_bytes(&name));
                    self.one(&directory, name, &inside.join(name), depth + 1)?;
                }
                Ok(())
            }
            FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => {
                Err(io::Error::other(format!("{} is not a file, directory or symlink", inside.display())))
            }
        }
    }
}

/// A reader that returns exactly the announced number of bytes, or an error.
struct SizedFile {
    file: File,
    left: u64,
}

impl Read for SizedFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let count = self.file.read(buffer.get_mut(..most).unwrap_or_default())?;
        if count == 0 && most > 0 {
            return Err(io::Error::other("a file was truncated while it was being copied"));
        }
        self.left -= count as u64;
        Ok(count)
    }
}

fn header(stat: &Stat) -> Header {
    let mut header = Header::new_gnu();
    // The executable bit is the only part of a mode that has the same meaning on every machine.
    let runs = FileType::from_raw_mode(stat.st_mode) == FileType::Directory || stat.st_mode & 0o100 != 0;
    header.set_mode(if runs { 0o755 } else { 0o644 });
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(0);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(directory: &Path, from: &str) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        pack(directory, &Copy { from: from.into(), to: "/opt/app".into() }, &mut bytes).map(|()| bytes)
    }

    #[test]
    fn the_same_files_are_the_same_bytes_and_nothing_outside_is_read() {
        let home = tempfile::tempdir().unwrap();
        let inside = home.path().join("recipe");
        std::fs::create_dir_all(inside.join("app/sub")).unwrap();
        std::fs::write(home.path().join("secret"), "x").unwrap();
        std::fs::write(inside.join("app/sub/a"), "1").unwrap();
        std::fs::write(inside.join("app/b"), "2").unwrap();
        std::os::unix::fs::symlink("/etc/shadow", inside.join("app/link")).unwrap();
        std::os::unix::fs::symlink("../secret", inside.join("out")).unwrap();
        std::os::unix::fs::symlink("..", inside.join("up")).unwrap();
        let first = packed(&inside, "app").unwrap();
        let later = File::options().write(true).open(inside.join("app/b")).unwrap();
        later.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(first, packed(&inside, "app").unwrap());
        let mut archive = tar::Archive::new(first.as_slice());
        let names: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().display().to_string())
            .collect();
        let names: Vec<_> = names.iter().map(|name| name.trim_end_matches('/')).collect();
        assert_eq!(names, ["opt/app", "opt/app/b", "opt/app/link", "opt/app/sub", "opt/app/sub/a"]);
        for outside in ["out", "up/secret", "up", "gone"] {
            assert!(packed(&inside, outside).is_err(), "{outside}");
        }
        std::fs::write(inside.join("app/b"), "3").unwrap();
        assert_ne!(first, packed(&inside, "app").unwrap());
    }
}
