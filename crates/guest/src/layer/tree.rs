//! Creates and replaces files in the new layer, always relative to the descriptor of a directory.
//!
//! Every file is created anew, and an existing file is removed first. So a file from an earlier entry of the
//! archive is never opened, and no write goes through a link.

use std::cell::Cell;
use std::io::{self, Read, Seek as _, SeekFrom, Write};
use std::os::fd::OwnedFd;

use api::Error;
use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::entry::Meta;
use super::merged::{self, Merged, OPAQUE, Thing};
use super::name::PathComponent;
use super::refusal::{broken, failed, no_marks, over, platform, refused};

/// Size of one read and write.
const BUFFER_BYTES: usize = 128 * 1024;
/// Minimum length of a run of zeros that becomes a hole: a shorter run does not save a block.
const HOLE_BYTES_MIN: usize = 4096;
/// Maximum number of bytes that are copied into one layer because of hard links to files of lower layers. It
/// equals the maximum size of an archive.
const COPIED_BYTES_MAX: u64 = 16 << 30;
/// Free space to preserve on the disk of the layer, because the host's own logs and records need space.
const FREE_BYTES_MIN: u64 = 1 << 30;
/// Free inodes to preserve, if the file system counts them.
const FREE_INODES_MIN: u64 = 10_000;
/// Number of written bytes between two checks of the free space.
const LOOK_EVERY_BYTES: u64 = 16 << 20;
/// Number of bytes that each entry counts as, in addition to its content: one block.
const ENTRY_BYTES: u64 = 4096;
/// Metadata of a directory for which the archive has no entry.
const IMPLIED: Meta = Meta { mode: 0o755, uid: 0, gid: 0, mtime: 0 };
/// Mode of unfinished files: no access for other users.
const UNFINISHED: Mode = Mode::RWXU;

/// The new layer, on top of the existing layers.
pub struct Tree {
    merged: Merged,
    unseen: Cell<u64>,
    copied: Cell<u64>,
}

/// Location of a new file: a directory and a name in it.
pub struct EntryLocation {
    /// The directory.
    pub directory: OwnedFd,
    /// Full path, which contains no symlink.
    pub path: Vec<PathComponent>,
}

/// Type of a file that was removed to make room for an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Was {
    Nothing,
    Whiteout,
    Directory,
    Other,
}

impl Tree {
    /// Creates a tree in the last of these layers.
    pub fn new(merged: Merged) -> Self {
        Self { merged, unseen: Cell::new(LOOK_EVERY_BYTES), copied: Cell::new(0) }
    }

    /// Returns the layers.
    pub fn merged(&self) -> &Merged {
        &self.merged
    }

    /// Opens the directory at a path without symlinks. Creates directories that are missing in this layer,
    /// with the metadata that they have in lower layers.
    pub fn directory_at(&self, path: &[PathComponent]) -> Result<OwnedFd, Error> {
        let mut here = duplicate(self.merged.target()?)?;
        for (index, part) in path.iter().enumerate() {
            let so_far = path.get(..=index).unwrap_or(path);
            here = match merged::directory(&here, part) {
                Ok(next) => next,
                Err(Errno::NOENT | Errno::NOTDIR) => {
                    let place = EntryLocation { directory: here, path: so_far.to_vec() };
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

    /// Creates a directory, or reuses an existing one with its entries.
    pub fn directory(&self, place: &EntryLocation, meta: Meta) -> Result<OwnedFd, Error> {
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

    /// Sets the owner and mode of the layer's own root.
    pub fn root(&self, meta: Meta) -> Result<(), Error> {
        set(self.merged.target()?, meta).map_err(|errno| failed("own", b"/", errno))
    }

    /// Creates a regular file from the next `size` bytes of `content`.
    pub fn file(
        &self,
        place: &EntryLocation,
        meta: Meta,
        size: u64,
        content: &mut dyn Read,
    ) -> Result<(), Error> {
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
            // Keep zeros as a hole. Otherwise, an image's author could fill the disk with a sparse file that
            // took no space when packed.
            let written = if count >= HOLE_BYTES_MIN && piece.iter().all(|byte| *byte == 0) {
                let hole = i64::try_from(count).map_err(io::Error::other);
                hole.and_then(|hole| file.seek(SeekFrom::Current(hole))).map(drop)
            } else {
                self.spend(count as u64)?;
                file.write_all(piece)
            };
            written.map_err(failed)?;
        }
        // A hole at the end has no effect until the length is set.
        file.set_len(size).map_err(failed)?;
        set(&OwnedFd::from(file), meta).map_err(|errno| place.failed("own", errno))
    }

    /// Creates a symbolic link. Its target is not checked, because it is only followed inside the sandbox.
    pub fn symlink(&self, place: &EntryLocation, meta: Meta, text: &[u8]) -> Result<(), Error> {
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

    /// Creates a hard link to the file at `source`. If that file is in a lower layer, copies it instead.
    pub fn link(&self, place: &EntryLocation, source: &[PathComponent]) -> Result<(), Error> {
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

    /// Hides the file that lower layers have at this location. Returns false if they have none.
    pub fn hide(&self, place: &EntryLocation) -> Result<bool, Error> {
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
            // Any other file in this layer already hides the file of lower layers.
            Ok(_) => {}
            Err(Errno::NOENT) => {
                self.spend(ENTRY_BYTES)?;
                rustix::fs::mknodat(&place.directory, base, FileType::CharacterDevice, Mode::empty(), 0)
                    .map_err(|errno| match errno {
                        // A whiteout is a device node, and gVisor cannot create any.
                        Errno::PERM => no_marks(&place.path.join(&b'/')),
                        errno => place.failed("hide", errno),
                    })?;
            }
            Err(errno) => return Err(place.failed("inspect", errno)),
        }
        Ok(true)
    }

    /// Hides all entries that lower layers have in a directory.
    pub fn hide_all(&self, directory: &OwnedFd, path: &[PathComponent]) -> Result<(), Error> {
        if !path.is_empty() {
            return set_opaque(directory).map_err(|errno| failed("mark", &path.join(&b'/'), errno));
        }
        // An overlay ignores the attribute on the roots of its layers, so hide each entry.
        let mut names = Vec::new();
        for root in self.merged.lower() {
            names.extend(list(root).map_err(|errno| failed("list", b"/", errno))?);
        }
        for name in names {
            let place = EntryLocation { directory: duplicate(self.merged.target()?)?, path: vec![name] };
            if !super::name::is_reserved(&place.path) {
                self.hide(&place)?;
            }
        }
        Ok(())
    }

    /// Creates a directory that has no entry of its own, because another entry is inside it.
    fn implied(&self, place: &EntryLocation, meta: Meta) -> Result<OwnedFd, Error> {
        let status = rustix::fs::statat(&place.directory, place.base()?, AtFlags::SYMLINK_NOFOLLOW);
        match status {
            Err(Errno::NOENT) => self.directory(place, meta),
            Ok(status) if merged::is_whiteout(&status) => self.directory(place, IMPLIED),
            _ => Err(refused(&place.path.join(&b'/'), "is not a directory, but another entry is below it")),
        }
    }

    /// Removes the file or directory at a location, if there is one. Returns its type.
    fn clear(&self, place: &EntryLocation) -> Result<Was, Error> {
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

    /// Counts written bytes, and occasionally checks the free space.
    fn spend(&self, bytes: u64) -> Result<(), Error> {
        self.unseen.set(self.unseen.get().saturating_add(bytes));
        if self.unseen.get() < LOOK_EVERY_BYTES {
            return Ok(());
        }
        self.unseen.set(0);
        let space = rustix::fs::fstatvfs(self.merged.target()?)
            .map_err(|errno| failed("check the free space of", b"/", errno))?;
        let bytes = space.f_bavail.saturating_mul(space.f_frsize);
        // A file system without a fixed number of inodes reports 0.
        if bytes < FREE_BYTES_MIN || (space.f_files > 0 && space.f_favail < FREE_INODES_MIN) {
            return Err(failed("keep the minimum free space on", b"/", Errno::NOSPC));
        }
        Ok(())
    }
}

impl EntryLocation {
    /// Returns the name in the directory.
    pub fn base(&self) -> Result<&PathComponent, Error> {
        self.path.last().ok_or_else(|| broken("the root of a layer can only be a directory"))
    }

    fn failed(&self, act: &str, errno: Errno) -> Error {
        failed(act, &self.path.join(&b'/'), errno)
    }
}

/// Returns true if a directory has no entries.
pub fn is_empty(directory: &OwnedFd) -> Result<bool, Errno> {
    Ok(list(directory)?.is_empty())
}

/// Sets the time of a directory, after its last entry was created.
pub fn touch(directory: &OwnedFd, mtime: u32) -> Result<(), Errno> {
    rustix::fs::futimens(directory, &times(mtime))
}

fn set(thing: &OwnedFd, meta: Meta) -> Result<(), Errno> {
    // Set the owner first, because changing it clears mode bits.
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

/// Removes a file, or a directory with its entries. The recursion is bounded, because the depth of names is
/// bounded.
fn remove(parent: &OwnedFd, name: &PathComponent) -> Result<(), Errno> {
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

fn list(directory: &OwnedFd) -> Result<Vec<PathComponent>, Errno> {
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
