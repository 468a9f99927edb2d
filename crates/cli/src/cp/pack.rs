//! A directory of this machine as an archive, made while it is sent.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tar::{Builder, EntryType, Header};

/// What came of it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Packed {
    /// Things that are neither files, directories nor symlinks.
    pub skipped: u64,
    /// Files that changed their size while they were read.
    pub changed: u64,
}

/// So many bytes of a file, whatever becomes of it meanwhile.
struct Exactly {
    file: File,
    left: u64,
    short: bool,
}

/// Writes what is in a directory as an archive. Symlinks stay what they are.
///
/// # Errors
/// Something cannot be read, or nobody takes it.
pub fn pack(directory: &Path, to: impl Write) -> io::Result<Packed> {
    let (mut builder, mut packed) = (Builder::new(to), Packed::default());
    // Directories that are still to be gone into, as paths from the first.
    let mut waiting = vec![PathBuf::new()];
    while let Some(inner) = waiting.pop() {
        let mut names: Vec<OsString> = Vec::new();
        for entry in fs::read_dir(directory.join(&inner))? {
            names.push(entry?.file_name());
        }
        names.sort();
        for name in names {
            let path = inner.join(name);
            let known = fs::symlink_metadata(directory.join(&path))?;
            if known.is_dir() {
                builder.append_data(&mut header(&known, EntryType::Directory, 0), &path, io::empty())?;
                waiting.push(path);
            } else if known.is_symlink() {
                let target = fs::read_link(directory.join(&path))?;
                builder.append_link(&mut header(&known, EntryType::Symlink, 0), &path, target)?;
            } else if known.is_file() {
                let file = File::open(directory.join(&path))?;
                let mut content = Exactly { file, left: known.len(), short: false };
                builder.append_data(
                    &mut header(&known, EntryType::Regular, known.len()),
                    &path,
                    &mut content,
                )?;
                packed.changed += u64::from(content.short);
            } else {
                packed.skipped += 1;
            }
        }
    }
    builder.into_inner()?.flush()?;
    Ok(packed)
}

fn header(known: &fs::Metadata, kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(known.permissions().mode() & 0o777);
    // Whoever unpacks it owns it; the fields must still be numbers.
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(u64::try_from(known.mtime()).unwrap_or(0));
    header.set_size(size);
    header
}

impl Read for Exactly {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let buffer = buffer.get_mut(..most).unwrap_or_default();
        let mut count = if self.short { 0 } else { self.file.read(buffer)? };
        if count == 0 && most > 0 {
            // The length was said already: the rest is zeros, and said to be.
            self.short = true;
            buffer.fill(0);
            count = most;
        }
        self.left -= count as u64;
        Ok(count)
    }
}
