//! Packs a layer as an archive, with entries sorted by name.
//!
//! | in the layer | in the archive |
//! |---|---|
//! | directory, file, symlink | the same, with owner, permissions and time |
//! | another hard link to a file | a hard link to the first name |
//! | an overlay's whiteout, an opaque directory | `.wh.NAME`, `.wh..wh..opq` |
//! | all other types, and paths inside reserved directories | omitted |
//!
//! The layer of a build is untrusted. No other process runs while the layer is read, no symlink is followed,
//! and the archive is later unpacked under the same rules as any other archive.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bytes::{Bytes, BytesMut};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use tar::{Builder, EntryType, Header};
use tokio::sync::mpsc;

use super::merged::{is_opaque, is_whiteout};
use super::name::{DEPTH_MAX, HIDES, HIDES_ALL, is_closed};

/// Size from which buffered bytes are sent as a chunk.
const PIECE_BYTES: usize = 256 * 1024;

/// A chunk of an archive.
pub enum Packed {
    /// Some bytes.
    Bytes(Bytes),
    /// End marker. Without it, the archive is incomplete.
    End,
}

struct ChunkWriter<'a> {
    pieces: &'a mpsc::Sender<Packed>,
    now: BytesMut,
}

struct LayerPacker<W: Write> {
    builder: Builder<W>,
    /// First name of each file with several hard links, by inode number.
    first: HashMap<u64, Vec<u8>>,
}

/// Packs the content of a directory. Sends the end marker only if the archive is complete.
pub fn pack(root: &OwnedFd, pieces: &mpsc::Sender<Packed>) {
    let outlet = ChunkWriter { pieces, now: BytesMut::new() };
    let mut packer = LayerPacker { builder: Builder::new(outlet), first: HashMap::new() };
    let packed = packer.inside(root, &[]).and_then(|()| packer.builder.into_inner()?.flush());
    if packed.is_ok() {
        // Ignore an error: the receiver may be gone.
        let _ = pieces.blocking_send(Packed::End);
    }
}

impl<W: Write> LayerPacker<W> {
    fn inside(&mut self, directory: &OwnedFd, path: &[Vec<u8>]) -> io::Result<()> {
        if path.len() > DEPTH_MAX {
            return Err(io::Error::other("the directories of the layer are nested too deeply"));
        }
        if !path.is_empty() && is_opaque(directory) {
            self.mark(path, HIDES_ALL)?;
        }
        let mut names = Vec::new();
        for entry in Dir::read_from(directory)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(name);
            }
        }
        names.sort();
        for name in names {
            // Skip a file with this prefix, because archive readers would interpret it as a whiteout.
            if !name.starts_with(HIDES) {
                self.one(directory, name, path)?;
            }
        }
        Ok(())
    }

    fn one(&mut self, parent: &OwnedFd, name: Vec<u8>, above: &[Vec<u8>]) -> io::Result<()> {
        let stat = rustix::fs::statat(parent, &*name, AtFlags::SYMLINK_NOFOLLOW)?;
        if is_whiteout(&stat) {
            return self.mark(above, &[HIDES, &name].concat());
        }
        let path = [above, std::slice::from_ref(&name)].concat();
        if is_closed(&path) {
            return Ok(());
        }
        let joined = path.join(&b'/');
        let shown = Path::new(OsStr::from_bytes(&joined));
        let mut header = header(&stat);
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                header.set_entry_type(EntryType::Directory);
                self.builder.append_data(&mut header, shown, io::empty())?;
                let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let inner = rustix::fs::openat(parent, &*name, flags, Mode::empty())?;
                return self.inside(&inner, &path);
            }
            FileType::RegularFile => return self.file(parent, &name, &stat, joined),
            FileType::Symlink => {
                header.set_entry_type(EntryType::Symlink);
                let target = rustix::fs::readlinkat(parent, &*name, Vec::new())?;
                let target = Path::new(OsStr::from_bytes(target.as_bytes()));
                self.builder.append_link(&mut header, shown, target)?;
            }
            FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => {}
        }
        Ok(())
    }

    fn file(&mut self, parent: &OwnedFd, name: &[u8], stat: &Stat, path: Vec<u8>) -> io::Result<()> {
        let shown = Path::new(OsStr::from_bytes(&path));
        let mut header = header(stat);
        if let Some(first) = self.first.get(&stat.st_ino) {
            header.set_entry_type(EntryType::Link);
            return self.builder.append_link(&mut header, shown, Path::new(OsStr::from_bytes(first)));
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = std::fs::File::from(rustix::fs::openat(parent, name, flags, Mode::empty())?);
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        header.set_size(size);
        self.builder.append_data(&mut header, shown, file.take(size))?;
        if stat.st_nlink > 1 {
            self.first.insert(stat.st_ino, path);
        }
        Ok(())
    }

    /// Adds an empty file whose name serves as a marker.
    fn mark(&mut self, directory: &[Vec<u8>], name: &[u8]) -> io::Result<()> {
        let path = [directory, &[name.to_vec()]].concat().join(&b'/');
        let mut header = empty(0o644);
        self.builder.append_data(&mut header, Path::new(OsStr::from_bytes(&path)), io::empty())
    }
}

impl Write for ChunkWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.now.extend_from_slice(bytes);
        if self.now.len() >= PIECE_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let piece = self.now.split().freeze();
        if piece.is_empty() {
            return Ok(());
        }
        self.pieces.blocking_send(Packed::Bytes(piece)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

fn header(stat: &Stat) -> Header {
    let mut header = empty(stat.st_mode & 0o7777);
    header.set_uid(stat.st_uid.into());
    header.set_gid(stat.st_gid.into());
    // Times before 1970 become 0.
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
    header
}

/// Returns a header with all numeric fields set.
fn empty(mode: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(0);
    header
}
