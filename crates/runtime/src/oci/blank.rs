//! Blank disks: formatted disk images, one for each disk size, that are created once and then copied for each
//! new disk.
//!
//! A fresh file system has only a few written blocks, so copying them is twenty times faster than formatting.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use api::limits::Limits;
use rustix::fs::SeekFrom;

use crate::Error;
use crate::files::{self, failed};

/// Maximum number of stored blank disks. Disks of any further size are formatted each time, so that requests
/// for many different sizes cannot fill the host's disk.
const KEPT_MAX: usize = 64;
/// Size of the copy buffer. A blank disk has only a few runs of written blocks, and most runs are a single
/// block long.
const COPY_BYTES: usize = 64 << 10;

/// Copies the blank disk of the requested size into `disk`, the file at `path`. If there is no such blank
/// disk, calls `format` to create it at a path next to the disk, and then moves it to the directory `blanks`
/// unless that directory is full.
pub(crate) fn copy_into(
    disk: &File,
    path: &Path,
    blanks: &Path,
    limits: &Limits,
    format: impl FnOnce(&Path) -> Result<(), Error>,
) -> Result<(), Error> {
    let kept = blanks.join(format!("{}-{}.img", limits.disk_bytes, limits.disk_inodes));
    let blank = match File::open(&kept) {
        Ok(blank) => blank,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            files::directory(blanks, 0o700)?;
            let fresh = path.with_file_name("blank.img");
            let blank = make(&fresh, limits, format)?;
            if fs::read_dir(blanks).is_ok_and(|kept| kept.count() < KEPT_MAX) {
                fs::rename(&fresh, &kept).map_err(|source| failed("keep", &kept, source))?;
            } else {
                files::remove_file(&fresh)?;
            }
            blank
        }
        Err(error) => return Err(failed("open", &kept, error)),
    };
    copy(&blank, disk).map_err(|source| failed("copy a blank disk to", path, source))
}

/// Creates a blank disk, and flushes it to the host's disk before the caller moves it to its final path.
fn make(
    path: &Path,
    limits: &Limits,
    format: impl FnOnce(&Path) -> Result<(), Error>,
) -> Result<File, Error> {
    let file = File::create_new(path).map_err(|source| failed("make", path, source))?;
    file.set_len(limits.disk_bytes).map_err(|source| failed("size", path, source))?;
    format(path)?;
    file.sync_all().map_err(|source| failed("write", path, source))?;
    File::open(path).map_err(|source| failed("open", path, source))
}

/// Copies a sparse file's data but not its holes. The rest of `to` must already read as zeros.
fn copy(from: &File, to: &File) -> io::Result<()> {
    let mut buffer = vec![0; COPY_BYTES];
    let mut at = 0;
    loop {
        at = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(from, SeekFrom::Hole(at))?;
        while at < end {
            let most = usize::try_from(end - at).unwrap_or(usize::MAX).min(COPY_BYTES);
            let part = buffer.get_mut(..most).unwrap_or_default();
            from.read_exact_at(part, at)?;
            to.write_all_at(part, at)?;
            at += most as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_reads_as_what_was_copied_and_the_second_is_not_made() {
        let home = tempfile::tempdir().unwrap();
        let limits = Limits { disk_bytes: 8 << 20, ..Limits::default() };
        let blanks = home.path().join("disks");
        for (number, makes) in [(0, true), (1, false)] {
            let path = home.path().join(format!("disk{number}"));
            let disk = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
            disk.set_len(limits.disk_bytes).unwrap();
            let mut made = false;
            copy_into(&disk, &path, &blanks, &limits, |blank| {
                made = true;
                let blank = File::options().write(true).open(blank).unwrap();
                blank.write_all_at(b"head", 0).unwrap();
                blank.write_all_at(b"tail", (8 << 20) - 4).unwrap();
                Ok(())
            })
            .unwrap();
            assert_eq!(made, makes);
            let bytes = fs::read(&path).unwrap();
            assert!(bytes.starts_with(b"head") && bytes.ends_with(b"tail") && bytes.len() == 8 << 20);
            assert_eq!(bytes.iter().filter(|byte| **byte != 0).count(), 8);
        }
    }
}
