//! The files of the log: the one that is written, those that were full before it, and where the chain ends.
//!
//! ```text
//! audit.log.000001, audit.log.000002, …   full; the oldest are removed when all take more than they may
//! audit.log                               the one that is written
//! audit.log.head                          how many entries there are, and the hash of the last: shows what was cut off at the end
//! ```

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::chain::{Link, hex};

/// A log is spread over so many files, so that a sixteenth of it goes at a time.
const FILES: u64 = 16;
/// The least a file holds: a handful of lines.
const FILE_BYTES_MIN: u64 = 4 << 10;
/// The head, padded, so that it is always overwritten in one piece.
const HEAD_BYTES: usize = 128;

/// How much of the log is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// What all files may take together.
    pub bytes_max: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { bytes_max: 1 << 30 }
    }
}

impl Bounds {
    /// When a file is full.
    pub(super) fn file_bytes(self) -> u64 {
        (self.bytes_max / FILES).max(FILE_BYTES_MIN)
    }

    /// Full files that are kept.
    pub(super) fn files_max(self) -> usize {
        usize::try_from(self.bytes_max / self.file_bytes()).unwrap_or(usize::MAX).saturating_sub(1).max(1)
    }
}

/// The full files, the oldest first, with their numbers.
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

/// The name of a full file.
pub(super) fn numbered(path: &Path, number: u64) -> PathBuf {
    beside(path, &format!(".{number:06}"))
}

/// The name of a file beside the log.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path.as_os_str());
    name.push(suffix);
    name.into()
}

/// Where the chain ended when this was last written. Nothing where that is not known.
pub(super) fn read_head(path: &Path) -> Option<(u64, String)> {
    let text = fs::read_to_string(beside(path, ".head")).ok()?;
    let (seq, head) = text.trim().split_once(' ')?;
    Some((seq.parse().ok()?, head.to_owned()))
}

/// Writes where the chain ends.
pub(super) fn write_head(path: &Path, link: &Link) -> io::Result<()> {
    let mut text = format!("{} {}", link.seq, hex(&link.head)).into_bytes();
    text.resize(HEAD_BYTES - 1, b' ');
    text.push(b'\n');
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).mode(0o600).open(beside(path, ".head"))?;
    file.write_all_at(&text, 0)
}
