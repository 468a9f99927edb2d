//! The files of the log: the current file, the full files before it, and the head file, which records the end
//! of the chain.
//!
//! ```text
//! audit.log.000001, audit.log.000002, …   full; the oldest are removed when the files exceed the limit
//! audit.log                               the current file
//! audit.log.head                          number of entries and hash of the last line, to detect truncation
//! ```

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::chain::{ChainEnd, hex};

/// Maximum number of files of a log. Removing the oldest file therefore discards a sixteenth of the log's
/// maximum size.
const FILES: u64 = 16;
/// Lower limit for the size at which a file counts as full. This is enough for several lines.
const FILE_BYTES_MIN: u64 = 4 << 10;
/// Size of the head file. Its content is padded to this length, so that each write replaces the previous
/// content completely.
const HEAD_BYTES: usize = 128;

/// Size limits of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum size of all files together.
    pub bytes_max: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { bytes_max: 1 << 30 }
    }
}

impl Bounds {
    /// Returns the size at which a file is full.
    pub(super) fn file_bytes(self) -> u64 {
        (self.bytes_max / FILES).max(FILE_BYTES_MIN)
    }

    /// Returns the maximum number of full files.
    pub(super) fn files_max(self) -> usize {
        usize::try_from(self.bytes_max / self.file_bytes()).unwrap_or(usize::MAX).saturating_sub(1).max(1)
    }
}

/// Lists the full files with their numbers, oldest first.
pub(super) fn full(path: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let number = entry.file_name().to_str().and_then(|text| {
            let digits = text.strip_prefix(&name)?.strip_prefix('.')?;
            digits.parse::<u64>().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()))
        });
        found.extend(number.map(|number| (number, entry.path())));
    }
    found.sort();
    Ok(found)
}

/// Returns the path of the full file with this number.
pub(super) fn numbered(path: &Path, number: u64) -> PathBuf {
    beside(path, &format!(".{number:06}"))
}

/// Returns the path of a file beside the log: the log's path with this suffix appended.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path.as_os_str());
    name.push(suffix);
    name.into()
}

/// Reads the number of entries and the last hash from the head file. Returns `None` if the file is missing or
/// malformed.
pub(super) fn read_head(path: &Path) -> Option<(u64, String)> {
    let text = fs::read_to_string(beside(path, ".head")).ok()?;
    let (seq, head) = text.trim().split_once(' ')?;
    Some((seq.parse().ok()?, head.to_owned()))
}

/// Writes the end of the chain to the head file.
pub(super) fn write_head(path: &Path, link: &ChainEnd) -> io::Result<()> {
    let mut text = format!("{} {}", link.seq, hex(&link.head)).into_bytes();
    text.resize(HEAD_BYTES - 1, b' ');
    text.push(b'\n');
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).mode(0o600).open(beside(path, ".head"))?;
    file.write_all_at(&text, 0)
}
