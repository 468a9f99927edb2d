//! Creates, moves, copies and removes files and directories, from descriptor to descriptor and without
//! following symlinks.

use std::os::fd::{AsFd, OwnedFd};

use api::Error;
use api::files::{DEPTH_MAX, FileKind, FilePath};
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

use super::content::{Fresh, take};
use super::failure::{conflict, failed, show};
use super::place::{DIRECTORY, FileLocation, enter, join, kind, too_deep};
use super::worker::{changed, undone};

/// Number of names that are removed before a directory is read again. This bounds the memory for names,
/// because a directory can have a million entries.
const BATCH: usize = 4096;

/// Creates a directory and its parents. Returns how many were created.
pub fn make(path: &[u8]) -> Result<u64, Error> {
    let mut made = 0;
    let ends = path.iter().enumerate().filter(|(at, byte)| *at > 0 && **byte == b'/').map(|(at, _)| at);
    for end in ends.chain([path.len()]) {
        let above = path.get(..end).unwrap_or_default();
        match rustix::fs::mkdirat(CWD, above, Mode::from_raw_mode(0o755)) {
            Ok(()) => made += 1,
            Err(Errno::EXIST) => {}
            // For an existing directory, the error can also differ from EEXIST, for example on a read-only
            // file system.
            Err(_) if is_directory(above) => {}
            Err(errno) => return Err(failed("create", above, errno)),
        }
    }
    if is_directory(path) { Ok(made) } else { Err(failed("create", path, Errno::NOTDIR)) }
}

/// Moves a file or directory. If source and target are on different file systems, copies it and removes the
/// source.
pub fn rename(from: &FilePath, to: &FilePath, replace: bool) -> Result<u64, Error> {
    let (source, target) = (FileLocation::find(from)?, FileLocation::find_or_make(to)?);
    let renamed = place(&source.parent, &source.name, &target, replace);
    match renamed {
        Ok(()) => Ok(1),
        Err(Errno::XDEV) => {
            let count = copy(from, to, replace)?;
            changed();
            remove(from, true)?;
            Ok(count)
        }
        Err(Errno::EXIST) => Err(taken(&target)),
        Err(Errno::NOENT) => Err(failed("move", &source.path, Errno::NOENT)),
        Err(errno) => Err(failed("move to", &target.path, errno)),
    }
}

/// Copies a file or a directory tree. The copy appears under its final name only when it is complete.
pub fn copy(from: &FilePath, to: &FilePath, replace: bool) -> Result<u64, Error> {
    let (source, target) = (FileLocation::find(from)?, FileLocation::find_or_make(to)?);
    let stat = source.stat().map_err(|errno| failed("inspect", &source.path, errno))?;
    let there = target.stat().is_ok();
    if there && !replace {
        return Err(taken(&target));
    }
    if kind(&stat) == FileKind::File {
        let (file, stat) = source.open(OFlags::RDONLY)?;
        let fresh = Fresh::new(&target, stat.st_mode & 0o777)?;
        take(&mut std::fs::File::from(file), &fresh.file, &target.path, |_| {})?;
        fresh.put()?;
        return Ok(1);
    }
    if there {
        return Err(conflict(
            format!(
                "{} already exists and cannot be replaced, because {} is not a file",
                show(&target.path),
                show(&source.path)
            ),
            "Remove the existing entry first, or choose another name.",
        ));
    }
    refuse_inside(&source, &target)?;
    let name = target.beside()?;
    let copied = clone(&source.parent, &source.name, &target.parent, &name, (&source.path, 0));
    let placed = copied.and_then(|count| {
        place(&target.parent, &name, &target, false)
            .map_err(|errno| failed("create", &target.path, errno))?;
        Ok(count)
    });
    if placed.is_err() {
        let _ = clear(&target.parent, &name, (&target.path, 0));
        undone();
    }
    placed
}

/// Removes a file or directory. Returns how many entries were removed.
pub fn remove(path: &FilePath, all: bool) -> Result<u64, Error> {
    let place = match FileLocation::find(path) {
        Err(error) if error.code == api::ErrorCode::NotFound => return Ok(0),
        found => found?,
    };
    if place.name == b"." {
        return Err(conflict(
            format!("{} cannot be removed", show(&place.path)),
            "Remove the contents of the directory instead.",
        ));
    }
    let stat = match place.stat() {
        Err(Errno::NOENT) => return Ok(0),
        stat => stat.map_err(|errno| failed("inspect", &place.path, errno))?,
    };
    if kind(&stat) == FileKind::Directory && !all {
        return match rustix::fs::unlinkat(&place.parent, place.name.as_slice(), AtFlags::REMOVEDIR) {
            Ok(()) => Ok(1),
            Err(Errno::NOTEMPTY) => Err(conflict(
                format!("{} is not empty", show(&place.path)),
                "Set `all` to remove the directory with its contents.",
            )),
            Err(errno) => Err(failed("remove", &place.path, errno)),
        };
    }
    clear(&place.parent, &place.name, (&place.path, 0))
}

/// Removes a file, or a directory with its entries. `at` is its path and depth.
fn clear(parent: &OwnedFd, name: &[u8], at: (&[u8], u32)) -> Result<u64, Error> {
    let (path, depth) = at;
    let fault = |errno| failed("remove", path, errno);
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) => {
            changed();
            return Ok(1);
        }
        Err(Errno::NOENT) => return Ok(0),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(errno) => return Err(fault(errno)),
    }
    if depth >= DEPTH_MAX {
        return Err(too_deep(path));
    }
    let directory = match enter(parent, name) {
        Err(Errno::NOENT) => return Ok(0),
        directory => directory.map_err(fault)?,
    };
    let mut count = 0;
    loop {
        let names = batch(&directory).map_err(fault)?;
        if names.is_empty() {
            break;
        }
        for inside in names {
            count += clear(&directory, &inside, (&join(path, &inside), depth + 1))?;
        }
    }
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR).map_err(fault)?;
    Ok(count + 1)
}

/// Copies a file, or a directory with its entries, to an unused name. `at` is the path and depth of the
/// source.
fn clone(parent: &OwnedFd, name: &[u8], to: &OwnedFd, new: &[u8], at: (&[u8], u32)) -> Result<u64, Error> {
    let (path, depth) = at;
    let fault = |errno| failed("copy", path, errno);
    let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).map_err(fault)?;
    match kind(&stat) {
        FileKind::File => {
            let safe = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file =
                rustix::fs::openat(parent, name, OFlags::RDONLY | safe, Mode::empty()).map_err(fault)?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mode = Mode::from_raw_mode(stat.st_mode & 0o777);
            let copy = rustix::fs::openat(to, new, flags, mode).map_err(fault)?;
            take(&mut std::fs::File::from(file), &copy, path, |_| {})?;
            Ok(1)
        }
        FileKind::Symlink => {
            let target = rustix::fs::readlinkat(parent, name, Vec::new()).map_err(fault)?;
            rustix::fs::symlinkat(target, to, new).map_err(fault)?;
            Ok(1)
        }
        FileKind::Directory if depth >= DEPTH_MAX => Err(too_deep(path)),
        FileKind::Directory => {
            let directory = enter(parent, name).map_err(fault)?;
            rustix::fs::mkdirat(to, new, Mode::from_raw_mode(stat.st_mode & 0o777 | 0o700)).map_err(fault)?;
            let copy = rustix::fs::openat(to, new, DIRECTORY, Mode::empty()).map_err(fault)?;
            let mut count = 1;
            for entry in Dir::read_from(&directory).map_err(fault)? {
                let entry = entry.map_err(fault)?;
                let inside = entry.file_name().to_bytes();
                if inside != b"." && inside != b".." {
                    count += clone(&directory, inside, &copy, inside, (&join(path, inside), depth + 1))?;
                }
            }
            Ok(count)
        }
        FileKind::Fifo | FileKind::Socket | FileKind::Device | FileKind::Unknown => Ok(0),
    }
}

/// Returns an error if `target` is inside the directory `source`, because such a copy would never end.
fn refuse_inside(source: &FileLocation, target: &FileLocation) -> Result<(), Error> {
    let fault = |errno| failed("copy to", &target.path, errno);
    let same = |one: &Stat, other: &Stat| (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino);
    let source = source.stat().map_err(fault)?;
    let mut above = rustix::io::dup(target.parent.as_fd()).map_err(fault)?;
    for _ in 0..=DEPTH_MAX {
        let stat = rustix::fs::fstat(&above).map_err(fault)?;
        if same(&stat, &source) {
            return Err(conflict(
                format!("{} is inside the directory that is copied", show(&target.path)),
                "Copy the directory to a path outside of it.",
            ));
        }
        let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
        let next = rustix::fs::openat(&above, "..", flags, Mode::empty()).map_err(fault)?;
        if same(&rustix::fs::fstat(&next).map_err(fault)?, &stat) {
            return Ok(());
        }
        above = next;
    }
    Err(too_deep(&target.path))
}

/// Renames a file or directory to `target`. No file may exist there unless `replace` is set.
fn place(parent: &OwnedFd, name: &[u8], target: &FileLocation, replace: bool) -> Result<(), Errno> {
    let rename =
        |flags| rustix::fs::renameat_with(parent, name, &target.parent, target.name.as_slice(), flags);
    if replace {
        return rename(RenameFlags::empty());
    }
    match rename(RenameFlags::NOREPLACE) {
        // gVisor's disks do not support this flag, so check for an existing file before the rename.
        Err(Errno::INVAL | Errno::NOSYS) => match target.stat() {
            Ok(_) => Err(Errno::EXIST),
            Err(_) => rename(RenameFlags::empty()),
        },
        renamed => renamed,
    }
}

fn batch(directory: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
        if names.len() == BATCH {
            break;
        }
    }
    Ok(names)
}

fn is_directory(path: &[u8]) -> bool {
    rustix::fs::statat(CWD, path, AtFlags::empty()).is_ok_and(|stat| kind(&stat) == FileKind::Directory)
}

fn taken(place: &FileLocation) -> Error {
    conflict(
        format!("{} already exists", show(&place.path)),
        "Set `replace` to replace the existing entry, or choose another name.",
    )
}
