//! Detection of mounts below a path. A removal that crossed into a mount would delete files that do not
//! belong to Bellglass.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Returns true if a file system is mounted at or below this path.
pub(super) fn any_below(path: &Path) -> io::Result<bool> {
    let path = match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other?,
    };
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(points(&table).iter().any(|point| point.starts_with(&path)))
}

/// Returns all mount points: the fifth field of each line, in which some bytes are escaped as `\` and three
/// octal digits.
fn points(table: &[u8]) -> Vec<PathBuf> {
    let lines = table.split(|byte| *byte == b'\n');
    let fields = lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    fields.map(|field| PathBuf::from(OsString::from_vec(plain(field)))).collect()
}

fn plain(mut field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let [first, rest @ ..] = field {
        let code = match (first, rest) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) => {
                field = after;
                ((a - b'0') << 6) | ((b - b'0') << 3) | (c - b'0')
            }
            _ => {
                field = rest;
                *first
            }
        };
        bytes.push(code);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_they_are() {
        let table =
            b"22 28 0:20 / /proc rw - proc proc rw\n30 28 0:26 / /a\\040b/\\134c rw shared:9 - tmpfs x rw\n";
        assert_eq!(points(table), [PathBuf::from("/proc"), PathBuf::from("/a b/\\c")]);
    }

    #[test]
    fn a_mount_below_is_seen_and_one_beside_is_not() {
        assert!(any_below(Path::new("/")).unwrap());
        assert!(any_below(Path::new("/proc")).unwrap());
        let directory = tempfile::tempdir().unwrap();
        assert!(!any_below(directory.path()).unwrap());
        assert!(!any_below(&directory.path().join("gone")).unwrap());
    }
}
