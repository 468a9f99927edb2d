//! Looks up paths in a new layer together with the layers below it.
//!
//! Each layer of an image was created on top of the layers below it. If a lower layer has a symlink
//! `bin -> usr/bin`, an entry below `bin` therefore belongs in `usr/bin`. The lookup works as in an overlay
//! file system: the highest layer that has a path decides, a whiteout hides the path, and an opaque directory
//! hides the entries of lower layers.

use std::os::fd::OwnedFd;

use api::Error;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::entry::Meta;
use super::name::{self, DEPTH_MAX, PathComponent};
use super::refusal::{broken, failed, over, refused};

/// Attribute that marks an opaque directory, for overlay mounts with `userxattr`.
pub const OPAQUE: &str = "user.overlay.opaque";
/// Maximum number of symlinks that are followed in one path, as in Linux.
const LINKS_MAX: usize = 40;

/// The layers, lowest first; the last is the new layer, which is being created.
pub struct Merged {
    layers: Vec<OwnedFd>,
}

/// A file or directory at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Thing {
    /// A directory.
    Directory(Meta),
    /// A regular file.
    File(Meta),
    /// A symbolic link with this target.
    Symlink(Meta, Vec<u8>),
    /// Any other type.
    Other,
}

/// Result of resolving a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Canonical {
    /// This path, which contains no symlink.
    Path(Vec<PathComponent>),
    /// A path inside a directory that belongs to the sandbox.
    Closed,
}

/// Result of looking up a path in one layer.
enum LayerLookup {
    Here(Thing),
    /// This layer does not have the path, but lower layers may have it.
    Ask,
    /// The path is hidden: lower layers must not be searched.
    Hidden,
}

impl Merged {
    /// Creates a stack of layers.
    pub fn new(layers: Vec<OwnedFd>) -> Result<Self, Error> {
        if layers.is_empty() {
            return Err(broken("the target directory is missing"));
        }
        Ok(Self { layers })
    }

    /// Returns the root of the new layer.
    pub fn target(&self) -> Result<&OwnedFd, Error> {
        self.layers.last().ok_or_else(|| broken("the target directory is missing"))
    }

    /// Returns the roots of the layers below, highest first.
    pub fn lower(&self) -> impl Iterator<Item = &OwnedFd> {
        self.layers.iter().rev().skip(1)
    }

    /// Returns true if there are no layers below the new layer.
    pub fn is_lowest(&self) -> bool {
        self.layers.len() == 1
    }

    /// Looks up a path without symlinks. Returns the file, and the number of its layer, counted from the
    /// highest.
    pub fn look(&self, path: &[PathComponent]) -> Result<Option<(usize, Thing)>, Error> {
        self.look_from(0, path)
    }

    /// Looks up a path without symlinks in the layers below the new layer.
    pub fn look_below(&self, path: &[PathComponent]) -> Result<Option<Thing>, Error> {
        Ok(self.look_from(1, path)?.map(|(_, thing)| thing))
    }

    fn look_from(&self, first: usize, path: &[PathComponent]) -> Result<Option<(usize, Thing)>, Error> {
        for (level, root) in self.layers.iter().rev().enumerate().skip(first) {
            match say(root, path).map_err(|errno| failed("inspect", &path.join(&b'/'), errno))? {
                LayerLookup::Here(thing) => return Ok(Some((level, thing))),
                LayerLookup::Hidden => return Ok(None),
                LayerLookup::Ask => {}
            }
        }
        Ok(None)
    }

    /// Resolves a path: symlinks are followed within the image, and `..` stops at its root.
    pub fn canonical(&self, parts: &[PathComponent]) -> Result<Canonical, Error> {
        let mut ahead: Vec<PathComponent> = parts.iter().rev().cloned().collect();
        let mut path: Vec<PathComponent> = Vec::new();
        let mut links = 0;
        while let Some(part) = ahead.pop() {
            if part == b".." {
                path.pop();
                continue;
            }
            path.push(part);
            // Apply the depth limit of names here too, so that symlinks cannot circumvent it.
            if path.len() >= DEPTH_MAX {
                let message = format!("the path of entry {:?} is nested too deeply", show(parts));
                return Err(over(message, DEPTH_MAX));
            }
            if name::is_closed(&path) {
                return Ok(Canonical::Closed);
            }
            match self.look(&path)? {
                None | Some((_, Thing::Directory(_))) => {}
                Some((_, Thing::Symlink(_, text))) => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(refused(&parts.join(&b'/'), "has too many symlinks in its path"));
                    }
                    let (absolute, parts) = name::target(&text);
                    path.pop();
                    if absolute {
                        path.clear();
                    }
                    ahead.extend(parts.into_iter().rev());
                }
                Some((_, Thing::File(_) | Thing::Other)) => {
                    return Err(refused(&parts.join(&b'/'), "has a path component that is not a directory"));
                }
            }
        }
        Ok(Canonical::Path(path))
    }

    /// Opens a regular file in one layer.
    pub fn open(&self, level: usize, path: &[PathComponent]) -> Result<OwnedFd, Error> {
        let shown = path.join(&b'/');
        let root = self.layers.iter().rev().nth(level).ok_or_else(|| broken("the layer does not exist"))?;
        let (last, parents) = path.split_last().ok_or_else(|| refused(&shown, "is not a file"))?;
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = descend(root, parents).and_then(|directory| {
            rustix::fs::openat(directory.as_ref().unwrap_or(root), last, flags, Mode::empty())
        });
        opened.map_err(|errno| failed("open", &shown, errno))
    }
}

/// Extracts owner, mode and time from a status.
pub fn meta(status: &Stat) -> Meta {
    Meta {
        mode: status.st_mode & 0o7777,
        uid: status.st_uid,
        gid: status.st_gid,
        mtime: u32::try_from(status.st_mtime).unwrap_or(0),
    }
}

/// Returns true if this is the status of a whiteout.
pub fn is_whiteout(status: &Stat) -> bool {
    FileType::from_raw_mode(status.st_mode) == FileType::CharacterDevice && status.st_rdev == 0
}

/// Opens a directory without following symlinks.
pub fn directory(parent: &OwnedFd, part: &PathComponent) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, part, flags, Mode::empty())
}

/// Opens the directory at a path below `root`. Returns `None` for `root` itself.
pub fn descend(root: &OwnedFd, path: &[PathComponent]) -> Result<Option<OwnedFd>, Errno> {
    let mut here = None;
    for part in path {
        here = Some(directory(here.as_ref().unwrap_or(root), part)?);
    }
    Ok(here)
}

fn say(root: &OwnedFd, path: &[PathComponent]) -> Result<LayerLookup, Errno> {
    let Some((last, parents)) = path.split_last() else {
        return rustix::fs::fstat(root).map(|status| LayerLookup::Here(Thing::Directory(meta(&status))));
    };
    let mut here: Option<OwnedFd> = None;
    let mut below = LayerLookup::Ask;
    for part in parents {
        match directory(here.as_ref().unwrap_or(root), part) {
            Ok(next) => {
                if is_opaque(&next) {
                    below = LayerLookup::Hidden;
                }
                here = Some(next);
            }
            Err(Errno::NOENT) => return Ok(below),
            // A file, a symlink or a whiteout is in the way.
            Err(Errno::NOTDIR | Errno::LOOP) => return Ok(LayerLookup::Hidden),
            Err(errno) => return Err(errno),
        }
    }
    let here = here.as_ref().unwrap_or(root);
    let status = match rustix::fs::statat(here, last, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(status) => status,
        Err(Errno::NOENT) => return Ok(below),
        Err(errno) => return Err(errno),
    };
    if is_whiteout(&status) {
        return Ok(LayerLookup::Hidden);
    }
    let thing = match FileType::from_raw_mode(status.st_mode) {
        FileType::Directory => Thing::Directory(meta(&status)),
        FileType::RegularFile => Thing::File(meta(&status)),
        FileType::Symlink => {
            let text = rustix::fs::readlinkat(here, last, Vec::new())?;
            Thing::Symlink(meta(&status), text.into_bytes())
        }
        FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => Thing::Other,
    };
    Ok(LayerLookup::Here(thing))
}

fn show(parts: &[PathComponent]) -> String {
    String::from_utf8_lossy(&parts.join(&b'/')).chars().take(64).collect()
}

pub fn is_opaque(directory: &OwnedFd) -> bool {
    let mut value = [0; 2];
    matches!(rustix::fs::fgetxattr(directory, OPAQUE, &mut value), Ok(1)) && value.first() == Some(&b'y')
}
