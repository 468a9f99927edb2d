//! Partial files: the remains of uploads whose server was killed.

use std::path::Path;
use std::time::{Duration, SystemTime};
use std::{fs, io};

/// Age after which a partial file is removed. A writer must send each chunk within a minute, so an older file
/// has no writer.
pub(super) const ABANDONED_AFTER: Duration = Duration::from_secs(3600);

/// Removes the partial files below a directory that no upload can still be writing.
pub(super) fn sweep(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sweep(&entry.path())?;
        } else if entry.file_name().to_string_lossy().contains('#') {
            let age = SystemTime::now().duration_since(entry.metadata()?.modified()?);
            if age.is_ok_and(|age| age > ABANDONED_AFTER) {
                fs::remove_file(entry.path())?;
            }
        }
    }
    Ok(())
}
