//! Packs a local directory into an archive and sends it at the same time.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tar::{Builder, EntryType, Header};

/// Result of packing a directory.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Packed {
    /// Number of entries that are not files, directories or symlinks.
    pub skipped: u64,
    /// Number of files that were modified while they were read.
    pub changed: u64,
}

/// Reader that returns exactly `left` bytes of a file, even if the file changes while it is read.
struct FixedLengthFile {
    file: File,
    left: u64,
    short: bool,
}

/// Writes the contents of a directory as an archive. Symlinks are stored as symlinks.
///
/// # Errors
/// Returns an error if the receiver has closed the pipe, or an error that names an unreadable entry.
pub fn pack(directory: &Path, to: impl Write) -> io::Result<Packed> {
    let (mut builder, mut packed) = (Builder::new(to), Packed::default());
    // Directories that are still to be packed, relative to the source directory.
    let mut waiting = vec![PathBuf::new()];
    while let Some(inner) = waiting.pop() {
        let within = directory.join(&inner);
        for name in names(&within).map_err(|error| named(&within, &error))? {
            let path = inner.join(name);
            let full = directory.join(&path);
            let known = fs::symlink_metadata(&full).map_err(|error| named(&full, &error))?;
            let is_dir = known.is_dir();
            append(&mut builder, &mut packed, &full, &path, &known).map_err(|error| named(&full, &error))?;
            if is_dir {
                waiting.push(path);
            }
        }
    }
    builder.into_inner()?.flush()?;
    Ok(packed)
}

fn names(directory: &Path) -> io::Result<Vec<OsString>> {
    let entries = fs::read_dir(directory)?;
    let mut names = entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

/// Appends one entry, given its local path and its path in the archive.
fn append(
    builder: &mut Builder<impl Write>,
    packed: &mut Packed,
    full: &Path,
    path: &Path,
    known: &fs::Metadata,
) -> io::Result<()> {
    if known.is_dir() {
        builder.append_data(&mut header(known, EntryType::Directory, 0), path, io::empty())?;
    } else if known.is_symlink() {
        builder.append_link(&mut header(known, EntryType::Symlink, 0), path, fs::read_link(full)?)?;
    } else if known.is_file() {
        let mut content = FixedLengthFile { file: File::open(full)?, left: known.len(), short: false };
        builder.append_data(&mut header(known, EntryType::Regular, known.len()), path, &mut content)?;
        packed.changed += u64::from(content.short || is_changed(known, &content.file.metadata()?));
    } else {
        packed.skipped += 1;
    }
    Ok(())
}

/// Returns true if a file was modified between two calls of `metadata`.
fn is_changed(before: &fs::Metadata, after: &fs::Metadata) -> bool {
    let seen = |known: &fs::Metadata| (known.ino(), known.len(), known.mtime(), known.mtime_nsec());
    seen(before) != seen(after)
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn header(known: &fs::Metadata, kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(known.permissions().mode() & 0o777);
    // The files will belong to the user who unpacks the archive, but the header fields must contain numbers.
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(u64::try_from(known.mtime()).unwrap_or(0));
    header.set_size(size);
    header
}

impl Read for FixedLengthFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let buffer = buffer.get_mut(..most).unwrap_or_default();
        let mut count = if self.short { 0 } else { self.file.read(buffer)? };
        if count == 0 && most > 0 {
            // The header already states the length, so the remaining bytes are filled with zeros, and the
            // file is counted as changed.
            self.short = true;
            buffer.fill(0);
            count = most;
        }
        self.left -= count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writer that modifies a file as soon as it receives the first bytes of an archive.
    struct Meddler<'a> {
        file: &'a Path,
        content: Option<&'a str>,
    }

    impl Write for Meddler<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if let Some(content) = self.content.take() {
                fs::write(self.file, content)?;
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_file_that_is_written_to_meanwhile_is_counted() {
        for (content, wanted) in [(None, 0), (Some("after!"), 1), (Some("grown before"), 1), (Some("cut"), 1)]
        {
            let here = tempfile::tempdir().unwrap();
            let file = here.path().join("a");
            fs::write(&file, "before").unwrap();
            let old = std::time::SystemTime::UNIX_EPOCH;
            File::options().write(true).open(&file).unwrap().set_modified(old).unwrap();
            let packed = pack(here.path(), Meddler { file: &file, content }).unwrap();
            assert_eq!(packed, Packed { skipped: 0, changed: wanted }, "{content:?}");
        }
    }

    #[test]
    fn an_error_names_the_file() {
        let error = pack(Path::new("/no/such/directory"), io::sink()).unwrap_err();
        assert!(error.to_string().contains("/no/such/directory"), "{error}");
    }
}
