//! Packs a directory into an archive, and unpacks an archive into a directory.
//!
//! A received archive is untrusted. The `tar` crate splits it into headers and contents, `layer::source`
//! decompresses and meters it, and `layer::entry` refuses headers that archive readers interpret differently.
//! This module walks every path itself, one name at a time, without following symlinks, so all unpacked files
//! lie below the target directory.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use api::Error;
use api::files::{ArchiveReport, DEPTH_MAX, FileAnswer, FileEnd, FileKind, FilePath};
use api::layer::Compression;
use flate2::write::GzEncoder;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, Stat, Timespec, Timestamps};
use rustix::io::Errno;
use tar::{Archive, Builder, EntryType, Header};

use super::content::take;
use super::failure::{conflict, failed, failed_io, show};
use super::parts::{self, PartReader, PartWriter};
use super::place::{FileLocation, enter, join, kind, version};
use super::worker::{changed, unheard};
use crate::layer::{Ahead, ArchiveEntry, EntryKind, Fault, Source, broken};

/// Maximum number of entries in one archive.
const ENTRIES_MAX: u64 = 1_000_000;

/// An archive that is being written.
struct ArchivePacker<W: Write> {
    builder: Builder<W>,
    report: ArchiveReport,
}

/// Unpacker that creates the entries of an archive below a directory.
struct ArchiveUnpacker {
    root: OwnedFd,
    path: Vec<u8>,
    /// Path and descriptor of the last entry's parent directory. Cached, because archives list a directory's
    /// files together.
    last: Option<(Vec<Vec<u8>>, OwnedFd)>,
    report: ArchiveReport,
}

/// Reader that returns exactly `size` bytes of a file, even if the file changes meanwhile.
struct FixedSizeReader<'a> {
    file: &'a OwnedFd,
    at: u64,
    size: u64,
    short: bool,
}

/// Sends a directory or a file as an archive.
pub fn pack(path: &FilePath, compression: Compression) -> Result<(), Error> {
    let place = FileLocation::find(path)?;
    let stat = place.stat().map_err(|errno| failed("inspect", &place.path, errno))?;
    let directory = match kind(&stat) {
        FileKind::Directory => {
            Some(enter(&place.parent, &place.name).map_err(|errno| failed("list", &place.path, errno))?)
        }
        FileKind::File => None,
        other @ (FileKind::Symlink
        | FileKind::Fifo
        | FileKind::Socket
        | FileKind::Device
        | FileKind::Unknown) => {
            return Err(api::files::not_regular(&String::from_utf8_lossy(&place.path), other));
        }
    };
    parts::head(&FileAnswer::Streams).map_err(unheard)?;
    let packed = match compression {
        Compression::Gzip => {
            let encoder = GzEncoder::new(PartWriter::default(), flate2::Compression::fast());
            pack_into(encoder, &place, directory).and_then(|(encoder, report)| {
                let mut outlet = encoder.finish().map_err(unheard)?;
                outlet.flush().map_err(unheard)?;
                Ok(report)
            })
        }
        Compression::None | Compression::Zstd => pack_into(PartWriter::default(), &place, directory)
            .and_then(|(mut outlet, report)| {
                outlet.flush().map_err(unheard)?;
                Ok(report)
            }),
    };
    let end = match packed {
        Ok(report) => FileEnd::Packed { report },
        Err(error) => FileEnd::Failed { error },
    };
    parts::end(&end).map_err(unheard)
}

fn pack_into<W: Write>(
    writer: W,
    place: &FileLocation,
    directory: Option<OwnedFd>,
) -> Result<(W, ArchiveReport), Error> {
    let mut packer = ArchivePacker { builder: Builder::new(writer), report: ArchiveReport::default() };
    match directory {
        Some(directory) => packer.inside(&directory, b"", 0)?,
        None => packer.one(&place.parent, &place.name, &place.name, 0)?,
    }
    let writer = packer.builder.into_inner().map_err(unheard)?;
    Ok((writer, packer.report))
}

impl<W: Write> ArchivePacker<W> {
    /// Adds the entries of a directory. `path` is the path of the directory in the archive.
    fn inside(&mut self, directory: &OwnedFd, path: &[u8], depth: u32) -> Result<(), Error> {
        let fault = |errno| failed("list", path, errno);
        for entry in Dir::read_from(directory).map_err(fault)? {
            let entry = entry.map_err(fault)?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                let inner = if path.is_empty() { name.to_vec() } else { join(path, name) };
                self.one(directory, name, &inner, depth)?;
            }
        }
        Ok(())
    }

    /// Adds one file or directory. Skips and counts unreadable entries, because an archive without them is
    /// still useful.
    fn one(&mut self, parent: &OwnedFd, name: &[u8], path: &[u8], depth: u32) -> Result<(), Error> {
        let Ok(stat) = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) else {
            self.report.skipped += 1;
            return Ok(());
        };
        if self.report.entries >= ENTRIES_MAX {
            return Err(api::limits::exceeded("the number of entries", ENTRIES_MAX + 1, ENTRIES_MAX));
        }
        let shown = Path::new(OsStr::from_bytes(path));
        let mut header = header(&stat);
        match kind(&stat) {
            FileKind::File => {
                let safe = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let Ok(file) = rustix::fs::openat(parent, name, OFlags::RDONLY | safe, Mode::empty()) else {
                    self.report.skipped += 1;
                    return Ok(());
                };
                let size = u64::try_from(stat.st_size).unwrap_or(0);
                header.set_size(size);
                let mut content = FixedSizeReader { file: &file, at: 0, size, short: false };
                self.builder.append_data(&mut header, shown, &mut content).map_err(unheard)?;
                let now = rustix::fs::fstat(&file).ok();
                let changed = content.short || now.is_none_or(|now| version(&now) != version(&stat));
                self.report.changed += u64::from(changed);
                self.report.bytes += size;
            }
            FileKind::Symlink => {
                let Ok(target) = rustix::fs::readlinkat(parent, name, Vec::new()) else {
                    self.report.skipped += 1;
                    return Ok(());
                };
                header.set_entry_type(EntryType::Symlink);
                let target = Path::new(OsStr::from_bytes(target.as_bytes()));
                self.builder.append_link(&mut header, shown, target).map_err(unheard)?;
            }
            FileKind::Directory => {
                let opened = if depth < DEPTH_MAX { enter(parent, name) } else { Err(Errno::NAMETOOLONG) };
                let Ok(directory) = opened else {
                    self.report.skipped += 1;
                    return Ok(());
                };
                header.set_entry_type(EntryType::Directory);
                self.builder.append_data(&mut header, shown, io::empty()).map_err(unheard)?;
                self.report.entries += 1;
                return self.inside(&directory, path, depth + 1);
            }
            FileKind::Fifo | FileKind::Socket | FileKind::Device | FileKind::Unknown => {
                self.report.skipped += 1;
                return Ok(());
            }
        }
        self.report.entries += 1;
        Ok(())
    }
}

impl Read for FixedSizeReader<'_> {
    /// Reads the file's bytes. If the file has become shorter, pads it with zeros, because the header already
    /// states its size, and marks it as changed.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.size - self.at).unwrap_or(usize::MAX);
        let most = left.min(buffer.len());
        let Some(buffer) = buffer.get_mut(..most).filter(|buffer| !buffer.is_empty()) else { return Ok(0) };
        let count = match rustix::io::pread(self.file, &mut *buffer, self.at) {
            Ok(count) if count > 0 => count,
            Ok(_) | Err(_) => {
                self.short = true;
                buffer.fill(0);
                most
            }
        };
        self.at += count as u64;
        Ok(count)
    }
}

/// Unpacks an archive below a directory.
pub fn unpack(path: &FilePath, compression: Compression, sent: PartReader) -> Result<ArchiveReport, Error> {
    let place = FileLocation::find_or_make(path)?;
    match rustix::fs::mkdirat(&place.parent, place.name.as_slice(), Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(failed("create", &place.path, errno)),
    }
    let root = enter(&place.parent, &place.name).map_err(|errno| failed("open", &place.path, errno))?;
    let fault = Fault::default();
    let mut archive = Archive::new(Source::new(sent, compression, fault.clone()));
    let mut unpacker =
        ArchiveUnpacker { root, path: place.path, last: None, report: ArchiveReport::default() };
    let unpacked = unpacker.all(&mut archive);
    let finished = unpacked.and_then(|()| archive.into_inner().finish());
    // Decoders and the archive reader hide why their source failed, so the source's own error takes
    // precedence.
    finished.map_err(|error| fault.take().unwrap_or(error))?;
    Ok(unpacker.report)
}

impl ArchiveUnpacker {
    fn all<R: Read>(&mut self, archive: &mut Archive<Source<R>>) -> Result<(), Error> {
        let mut ahead = Ahead::of_any_owner();
        for raw in archive.entries().map_err(broken)?.raw(true) {
            let mut raw = raw.map_err(broken)?;
            if let Some(entry) = ahead.take(&mut raw)? {
                self.one(&entry, &mut raw)?;
            }
        }
        ahead.end()
    }

    fn one(&mut self, entry: &ArchiveEntry, content: &mut impl Read) -> Result<(), Error> {
        if self.report.entries + self.report.skipped >= ENTRIES_MAX {
            return Err(api::limits::exceeded("the number of entries", ENTRIES_MAX + 1, ENTRIES_MAX));
        }
        // The root of the archive is the target directory, which already exists.
        let Some((parents, name)) = entry.name.split() else { return Ok(()) };
        let path = entry.name.bytes();
        let whole = join(&self.path, &path);
        let fault = |errno| failed("unpack", &whole, errno);
        let parent = self.parent(parents, &path)?;
        match &entry.kind {
            EntryKind::Directory => {
                match rustix::fs::mkdirat(&parent, name.as_slice(), Mode::from_raw_mode(0o700)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(fault(errno)),
                }
                let directory = enter(&parent, name).map_err(fault)?;
                // Keep the owner's full access, because later entries are unpacked into this directory.
                rustix::fs::fchmod(&directory, Mode::from_raw_mode(entry.meta.mode & 0o777 | 0o700))
                    .map_err(fault)?;
            }
            EntryKind::File => {
                clear(&parent, name, &whole)?;
                let flags =
                    OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = rustix::fs::openat(&parent, name.as_slice(), flags, Mode::from_raw_mode(0o600))
                    .map_err(fault)?;
                let count = take(&mut content.take(entry.size), &file, &whole, |_| {})?;
                if count != entry.size {
                    return Err(broken("it ends in the middle of a file"));
                }
                rustix::fs::fchmod(&file, Mode::from_raw_mode(entry.meta.mode & 0o777)).map_err(fault)?;
                let time = Timespec { tv_sec: entry.meta.mtime.into(), tv_nsec: 0 };
                let times = Timestamps { last_access: time, last_modification: time };
                rustix::fs::futimens(&file, &times).map_err(fault)?;
                self.report.bytes += count;
            }
            EntryKind::Symlink(target) => {
                clear(&parent, name, &whole)?;
                rustix::fs::symlinkat(target.as_slice(), &parent, name.as_slice()).map_err(fault)?;
            }
            EntryKind::Link(target) => {
                let Some((above, last)) = target.split() else { return Err(fault(Errno::ISDIR)) };
                let other = self.parent(above, &path)?;
                clear(&parent, name, &whole)?;
                rustix::fs::linkat(&other, last.as_slice(), &parent, name.as_slice(), AtFlags::empty())
                    .map_err(fault)?;
            }
            EntryKind::Device | EntryKind::Fifo => {
                self.report.skipped += 1;
                return Ok(());
            }
        }
        self.report.entries += 1;
        changed();
        Ok(())
    }

    /// Opens the parent directory of an entry, and creates missing directories. Does not follow symlinks.
    fn parent(&mut self, parents: &[Vec<u8>], entry: &[u8]) -> Result<OwnedFd, Error> {
        let duplicate = |fd: &OwnedFd| fd.try_clone().map_err(|error| failed_io("unpack", entry, &error));
        if let Some((path, directory)) = &self.last
            && path == parents
        {
            return duplicate(directory);
        }
        let mut directory = duplicate(&self.root)?;
        for name in parents {
            let next = match enter(&directory, name) {
                Err(Errno::NOENT) => {
                    rustix::fs::mkdirat(&directory, name.as_slice(), Mode::from_raw_mode(0o755))
                        .and_then(|()| enter(&directory, name))
                }
                next => next,
            };
            directory = next.map_err(|errno| match errno {
                Errno::LOOP | Errno::NOTDIR => conflict(
                    format!("the parent path of entry {} is not a directory", show(entry)),
                    "Remove the conflicting file, or unpack into an empty directory.",
                ),
                errno => failed("unpack", entry, errno),
            })?;
        }
        let kept = duplicate(&directory)?;
        self.last = Some((parents.to_vec(), kept));
        Ok(directory)
    }
}

/// Makes room for an entry that is not a directory, by removing the existing file at its path.
fn clear(parent: &OwnedFd, name: &[u8], path: &[u8]) -> Result<(), Error> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(failed("replace", path, errno)),
    }
}

fn header(stat: &Stat) -> Header {
    let mut header = Header::new_gnu();
    header.set_mode(stat.st_mode & 0o777);
    header.set_uid(stat.st_uid.into());
    header.set_gid(stat.st_gid.into());
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
    header.set_entry_type(EntryType::Regular);
    header.set_size(0);
    header
}

#[cfg(test)]
mod fuzz;
