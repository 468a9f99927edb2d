//! Making and replacing things in the layer that is being made, always relative to a directory's descriptor.
//!
//! Whatever is made is made new: what was there before is removed first, so nothing is ever opened that an earlier
//! entry of the archive has put there, and no write goes through a link.

use std::cell::Cell;
use std::io::{self, Read, Seek as _, SeekFrom, Write};
use std::os::fd::OwnedFd;

use api::Error;
use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::entry::Meta;
use super::merged::{self, Merged, OPAQUE, Thing};
use super::name::Part;
use super::refusal::{broken, failed, no_marks, over, platform, refused};

/// What is read and written at once.
const BUFFER_BYTES: usize = 128 * 1024;
/// Zeros that are not written: what is shorter saves no block.
const HOLE_BYTES_MIN: usize = 4096;
/// Bytes that hard links to files of lower layers may copy into one layer; the same as its archive may have.
const COPIED_BYTES_MAX: u64 = 16 << 30;
/// What must stay free where the layer is written: the host's own logs and records need room.
const FREE_BYTES_MIN: u64 = 1 << 30;
/// The same for files, where the file system counts them.
const FREE_INODES_MIN: u64 = 10_000;
/// How often free space is looked at, in bytes written.
const LOOK_EVERY_BYTES: u64 = 16 << 20;
/// What an entry without content counts for: one block.
const ENTRY_BYTES: u64 = 4096;
/// A directory that no entry described.
const IMPLIED: Meta = Meta { mode: 0o755, uid: 0, gid: 0, mtime: 0 };
/// Nobody may open what is not finished.
const UNFINISHED: Mode = Mode::RWXU;

/// The layer that is being made, on those below it.
pub struct Tree {
    merged: Merged,
    unseen: Cell<u64>,
    copied: Cell<u64>,
}

/// Where something is to be made: a directory and a name in it.
pub struct Place {
    /// The directory.
    pub directory: OwnedFd,
    /// The whole path, on whose way no symlink is.
    pub path: Vec<Part>,
}

/// What was removed to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Was {
    Nothing,
    Whiteout,
    Directory,
    Other,
}

impl Tree {
    /// A tree in the last of these layers.
    pub fn new(merged: Merged) -> Self {
        Self { merged, unseen: Cell::new(LOOK_EVERY_BYTES), copied: Cell::new(0) }
    }

    /// The layers.
    pub fn merged(&self) -> &Merged {
        &self.merged
    }

    /// The directory at a path on whose way no symlink is; directories that are missing in this layer are made, like
    /// those that lower layers have there.
    pub fn directory_at(&self, path: &[Part]) -> Result<OwnedFd, Error> {
        let mut here = duplicate(self.merged.target()?)?;
        for (index, part) in path.iter().enumerate() {
            let so_far = path.get(..=index).unwrap_or(path);
            here = match merged::directory(&here, part) {
                Ok(next) => next,
                Err(Errno::NOENT | Errno::NOTDIR) => {
                    let place = Place { directory: here, path: so_far.to_vec() };
                    let meta = match self.merged.look_below(so_far)? {
                        Some(Thing::Directory(meta)) => meta,
                        Some(Thing::File(_) | Thing::Symlink(..) | Thing::Other) | None => IMPLIED,
                    };
                    self.implied(&place, meta)?
                }
                Err(errno) => return Err(failed("open", &so_far.join(&b'/'), errno)),
            };
        }
        Ok(here)
    }

    /// Makes a directory, or takes over the one that is there with what is in it.
    pub fn directory(&self, place: &Place, meta: Meta) -> Result<OwnedFd, Error> {
        let base = place.base()?;
        let (opened, was) = match merged::directory(&place.directory, base) {
            Ok(there) => (there, Was::Directory),
            Err(_) => {
                let was = self.clear(place)?;
                self.spend(ENTRY_BYTES)?;
                rustix::fs::mkdirat(&place.directory, base, UNFINISHED)
                    .and_then(|()| merged::directory(&place.directory, base))
                    .map(|made| (made, was))
                    .map_err(|errno| place.failed("create directory", errno))?
            }
        };
        if was == Was::Whiteout {
            set_opaque(&opened).map_err(|errno| place.failed("mark", errno))?;
        }
        set(&opened, meta).map_err(|errno| place.failed("own", errno))?;
        Ok(opened)
    }

    /// Sets owner and mode of the layer's own root.
    pub fn root(&self, meta: Meta) -> Result<(), Error> {
        set(self.merged.target()?, meta).map_err(|errno| failed("own", b"/", errno))
    }

    /// Makes a regular file with the next `size` bytes of `content`.
    pub fn file(&self, place: &Place, meta: Meta, size: u64, content: &mut dyn Read) -> Result<(), Error> {
        self.clear(place)?;
        self.spend(ENTRY_BYTES)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&place.directory, place.base()?, flags, UNFINISHED)
            .map_err(|errno| place.failed("create file", errno))?;
        let mut file = std::fs::File::from(made);
        let failed =
            |error: io::Error| place.failed("write", Errno::from_io_error(&error).unwrap_or(Errno::IO));
        let mut buffer = vec![0; BUFFER_BYTES.min(usize::try_from(size).unwrap_or(BUFFER_BYTES))];
        let mut left = size;
        while left > 0 {
            let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let count = content.read(buffer.get_mut(..most).unwrap_or_default()).map_err(broken)?;
            if count == 0 {
                return Err(refused(&place.path.join(&b'/'), "is shorter than the size in its header"));
            }
            let piece = buffer.get(..count).unwrap_or_default();
            left = left.saturating_sub(count as u64);
            // What is empty stays a hole: a file that cost its author nothing costs the layer nothing.
            let written = if count >= HOLE_BYTES_MIN && piece.iter().all(|byte| *byte == 0) {
                let hole = i64::try_from(count).map_err(io::Error::other);
                hole.and_then(|hole| file.seek(SeekFrom::Current(hole))).map(drop)
            } else {
                self.spend(count as u64)?;
                file.write_all(piece)
            };
            written.map_err(failed)?;
        }
        // A hole at the end is none until the file has its length.
        file.set_len(size).map_err(failed)?;
        set(&OwnedFd::from(file), meta).map_err(|errno| place.failed("own", errno))
    }

    /// Makes a symbolic link. Its text is nobody's business here: it is followed inside the sandbox only.
    pub fn symlink(&self, place: &Place, meta: Meta, text: &[u8]) -> Result<(), Error> {
        self.clear(place)?;
        self.spend(ENTRY_BYTES)?;
        let base = place.base()?;
        let (uid, gid) = (Uid::from_raw(meta.uid), Gid::from_raw(meta.gid));
        rustix::fs::symlinkat(text, &place.directory, base)
            .and_then(|()| {
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::chownat(&place.directory, base, Some(uid), Some(gid), flags)?;
                rustix::fs::utimensat(&place.directory, base, &times(meta.mtime), flags)
            })
            .map_err(|errno| place.failed("create symlink", errno))
    }

    /// Makes one more name for what is at `source`; what a lower layer has is copied.
    pub fn link(&self, place: &Place, source: &[Part]) -> Result<(), Error> {
        let shown = place.path.join(&b'/');
        if source == place.path {
            return Ok(());
        }
        let nothing = || refused(&shown, "is a hard link to something that is missing or not a file");
        match self.merged.look(source)?.ok_or_else(nothing)? {
            (0, Thing::File(_) | Thing::Symlink(..)) => {
                let (base, parents) = source.split_last().ok_or_else(nothing)?;
                let from = self.directory_at(parents)?;
                self.clear(place)?;
                rustix::fs::linkat(&from, base, &place.directory, place.base()?, AtFlags::empty())
                    .map_err(|errno| place.failed("link", errno))
            }
            (level, Thing::File(meta)) => {
                let mut content = std::fs::File::from(self.merged.open(level, source)?);
                let size = content.metadata().map_err(|error| platform("inspect a file", &error))?.len();
                self.copied.set(self.copied.get().saturating_add(size));
                if self.copied.get() > COPIED_BYTES_MAX {
                    return Err(over(
                        "hard links require copying too many bytes from lower layers",
                        COPIED_BYTES_MAX,
                    ));
                }
                self.file(place, meta, size, &mut content)
            }
            (_, Thing::Symlink(meta, text)) => self.symlink(place, meta, &text),
            (_, Thing::Directory(_) | Thing::Other) => Err(nothing()),
        }
    }

    /// Hides what lower layers have at this place. False if they have nothing.
    pub fn hide(&self, place: &Place) -> Result<bool, Error> {
        if self.merged.look_below(&place.path)?.is_none() {
            return Ok(false);
        }
        let base = place.base()?;
        match rustix::fs::statat(&place.directory, base, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(status) if FileType::from_raw_mode(status.st_mode) == FileType::Directory => {
                merged::directory(&place.directory, base)
                    .and_then(|directory| set_opaque(&directory))
                    .map_err(|errno| place.failed("mark", errno))?;
            }
            // What this layer has there hides what is below by itself.
            Ok(_) => {}
            Err(Errno::NOENT) => {
                self.spend(ENTRY_BYTES)?;
                rustix::fs::mknodat(&place.directory, base, FileType::CharacterDevice, Mode::empty(), 0)
                    .map_err(|errno| match errno {
                        // gVisor's kernel makes no device nodes at all.
                        Errno::PERM => no_marks(&place.path.join(&b'/')),
                        errno => place.failed("hide", errno),
                    })?;
            }
            Err(errno) => return Err(place.failed("inspect", errno)),
        }
        Ok(true)
    }

    /// Hides everything that lower layers have in a directory.
    pub fn hide_all(&self, directory: &OwnedFd, path: &[Part]) -> Result<(), Error> {
        if !path.is_empty() {
            return set_opaque(directory).map_err(|errno| failed("mark", &path.join(&b'/'), errno));
        }
        // An overlay does not look for the mark on the roots of its layers.
        let mut names = Vec::new();
        for root in self.merged.lower() {
            names.extend(list(root).map_err(|errno| failed("list", b"/", errno))?);
        }
        for name in names {
            let place = Place { directory: duplicate(self.merged.target()?)?, path: vec![name] };
            if !super::name::is_reserved(&place.path) {
                self.hide(&place)?;
            }
        }
        Ok(())
    }

    /// Makes a directory that no entry described.
    fn implied(&self, place: &Place, meta: Meta) -> Result<OwnedFd, Error> {
        let status = rustix::fs::statat(&place.directory, place.base()?, AtFlags::SYMLINK_NOFOLLOW);
        match status {
            Err(Errno::NOENT) => self.directory(place, meta),
            Ok(status) if merged::is_whiteout(&status) => self.directory(place, IMPLIED),
            _ => Err(refused(&place.path.join(&b'/'), "is not a directory, but another entry is below it")),
        }
    }

    /// Removes what is at a place.
    fn clear(&self, place: &Place) -> Result<Was, Error> {
        let base = place.base()?;
        let was = match rustix::fs::statat(&place.directory, base, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(Was::Nothing),
            Err(errno) => return Err(place.failed("inspect", errno)),
            Ok(status) if merged::is_whiteout(&status) => Was::Whiteout,
            Ok(status) if FileType::from_raw_mode(status.st_mode) == FileType::Directory => Was::Directory,
            Ok(_) => Was::Other,
        };
        remove(&place.directory, base).map_err(|errno| place.failed("replace", errno))?;
        Ok(was)
    }

    /// Counts bytes that were written, and looks at what is free once in a while.
    fn spend(&self, bytes: u64) -> Result<(), Error> {
        self.unseen.set(self.unseen.get().saturating_add(bytes));
        if self.unseen.get() < LOOK_EVERY_BYTES {
            return Ok(());
        }
        self.unseen.set(0);
        let space = rustix::fs::fstatvfs(self.merged.target()?)
            .map_err(|errno| failed("check the free space of", b"/", errno))?;
        let bytes = space.f_bavail.saturating_mul(space.f_frsize);
        // A file system without a number of inodes says 0.
        if bytes < FREE_BYTES_MIN || (space.f_files > 0 && space.f_favail < FREE_INODES_MIN) {
            return Err(failed("keep the minimum free space on", b"/", Errno::NOSPC));
        }
        Ok(())
    }
}

impl Place {
    /// The name in the directory.
    pub fn base(&self) -> Result<&Part, Error> {
        self.path.last().ok_or_else(|| broken("the root of a layer can only be a directory"))
    }

    fn failed(&self, act: &str, errno: Errno) -> Error {
        failed(act, &self.path.join(&b'/'), errno)
    }
}

/// Whether a directory has nothing in it.
pub fn is_empty(directory: &OwnedFd) -> Result<bool, Errno> {
    Ok(list(directory)?.is_empty())
}

/// Sets the time of a directory once nothing more is made in it.
pub fn touch(directory: &OwnedFd, mtime: u32) -> Result<(), Errno> {
    rustix::fs::futimens(directory, &times(mtime))
}

fn set(thing: &OwnedFd, meta: Meta) -> Result<(), Errno> {
    // The owner first: a change of owner takes mode bits away.
    rustix::fs::fchown(thing, Some(Uid::from_raw(meta.uid)), Some(Gid::from_raw(meta.gid)))?;
    rustix::fs::fchmod(thing, Mode::from_raw_mode(meta.mode))?;
    touch(thing, meta.mtime)
}

fn set_opaque(directory: &OwnedFd) -> Result<(), Errno> {
    rustix::fs::fsetxattr(directory, OPAQUE, b"y", XattrFlags::empty())
}

fn times(mtime: u32) -> Timestamps {
    let time = Timespec { tv_sec: i64::from(mtime), tv_nsec: 0 };
    Timestamps { last_access: time, last_modification: time }
}

fn duplicate(directory: &OwnedFd) -> Result<OwnedFd, Error> {
    directory.try_clone().map_err(|error| platform("keep a directory open", &error))
}

/// Removes a thing and, if it is a directory, everything in it. Names are bounded in depth, so this is too.
fn remove(parent: &OwnedFd, name: &Part) -> Result<(), Errno> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => {
            let directory = merged::directory(parent, name)?;
            for inside in list(&directory)? {
                remove(&directory, &inside)?;
            }
            rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
        }
        other => other,
    }
}

fn list(directory: &OwnedFd) -> Result<Vec<Part>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    Ok(names)
}
