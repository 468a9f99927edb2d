//! File operations with errors that name the operation and the path. Removals succeed if the file is already
//! gone.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use crate::Error;

/// Reads a whole text file.
pub(crate) fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|source| failed("read", path, source))
}

/// Reads a whole text file. Returns `None` if the file does not exist, or if the process or cgroup that it
/// describes no longer exists.
pub(crate) fn read_if_there(path: &Path) -> Result<Option<String>, Error> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(failed("read", path, error)),
    }
}

/// Writes a file, and creates it if it does not exist.
pub(crate) fn write(path: &Path, content: &str) -> Result<(), Error> {
    fs::write(path, content).map_err(|source| failed("write", path, source))
}

/// Creates a file that only its owner can read or write.
pub(crate) fn write_private(path: &Path, content: &str) -> Result<(), Error> {
    let mut options = fs::File::options();
    let made =
        std::os::unix::fs::OpenOptionsExt::mode(options.write(true).create_new(true), 0o600).open(path);
    let written = made.and_then(|mut file| io::Write::write_all(&mut file, content.as_bytes()));
    written.map_err(|source| failed("write", path, source))
}

/// Replaces a file's content atomically: a reader sees the old or the new content, never a mix.
pub(crate) fn replace(path: &Path, content: &str) -> Result<(), Error> {
    replace_by(path, content, "")
}

/// Like [`replace`], but for concurrent writers: each writer passes its own suffix for the temporary file.
pub(crate) fn replace_by(path: &Path, content: &str, draft: &str) -> Result<(), Error> {
    let fresh = path.with_extension(format!("new{draft}"));
    write(&fresh, content)?;
    fs::rename(&fresh, path).map_err(|source| failed("rename to", path, source))
}

/// Creates a directory with exactly this mode, regardless of the umask. Sets the mode if the directory
/// already exists.
pub(crate) fn directory(path: &Path, mode: u32) -> Result<(), Error> {
    match DirBuilder::new().mode(mode).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(failed("create directory", path, error)),
    }
    set_mode(path, mode)
}

/// Sets the mode of a path to exactly this value.
pub(crate) fn set_mode(path: &Path, mode: u32) -> Result<(), Error> {
    fs::set_permissions(path, Permissions::from_mode(mode))
        .map_err(|source| failed("set mode of", path, source))
}

/// Changes the owner and group of a path that belongs to this program. Must never be called for a path that
/// guest code can modify.
pub(crate) fn set_owner(path: &Path, uid: u32, gid: u32) -> Result<(), Error> {
    std::os::unix::fs::lchown(path, Some(uid), Some(gid))
        .map_err(|source| failed("set owner of", path, source))
}

/// Unlinks a file or a socket.
pub(crate) fn remove_file(path: &Path) -> Result<(), Error> {
    accept_gone(fs::remove_file(path)).map_err(|source| failed("remove", path, source))
}

/// Removes an empty directory.
pub(crate) fn remove_directory(path: &Path) -> Result<(), Error> {
    accept_gone(fs::remove_dir(path)).map_err(|source| failed("remove directory", path, source))
}

/// Removes a directory with its files and up to `depth` levels of subdirectories with their files.
/// Directories below these levels must be empty, so that a leftover mount makes the removal fail instead of
/// losing the mount's contents.
pub(crate) fn remove_shallow(path: &Path, depth: u32) -> Result<(), Error> {
    each(path, |entry, is_directory| match (is_directory, depth) {
        (false, _) => remove_file(entry),
        (true, 0) => remove_directory(entry),
        (true, _) => remove_shallow(entry, depth - 1),
    })?;
    remove_directory(path)
}

/// Removes the files in a directory whose names `chosen` selects. Subdirectories are kept.
pub(crate) fn remove_files(path: &Path, chosen: impl Fn(&OsStr) -> bool) -> Result<(), Error> {
    each(path, |entry, is_directory| match entry.file_name() {
        Some(name) if !is_directory && chosen(name) => remove_file(entry),
        _ => Ok(()),
    })
}

/// Returns true if the error means that the object no longer exists. A file of a removed cgroup returns
/// `ENODEV`, and a file of an ended process returns `ESRCH`.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ESRCH))
}

/// Builds the error for a failed operation on a path.
pub(crate) fn failed(act: &str, path: &Path, source: io::Error) -> Error {
    Error::System { act: format!("{act} {}", path.display()), source }
}

/// Calls `act` for every entry in a directory, with a flag that is true for subdirectories. Does nothing if
/// the directory does not exist.
fn each(path: &Path, act: impl Fn(&Path, bool) -> Result<(), Error>) -> Result<(), Error> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if is_gone(&error) => return Ok(()),
        Err(error) => return Err(failed("list", path, error)),
    };
    for entry in entries {
        let entry = entry.map_err(|source| failed("list", path, source))?;
        let kind = entry.file_type().map_err(|source| failed("inspect", &entry.path(), source))?;
        act(&entry.path(), kind.is_dir())?;
    }
    Ok(())
}

fn accept_gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if is_gone(&error) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_directory_stops_a_shallow_removal() {
        let home = tempfile::tempdir().unwrap();
        let bundle = home.path().join("bundle");
        fs::create_dir_all(bundle.join("rootfs/etc")).unwrap();
        fs::write(bundle.join("config.json"), "{}").unwrap();
        assert!(remove_shallow(&bundle, 0).is_err(), "rootfs is not empty");
        assert!(bundle.join("rootfs/etc").exists());
        fs::remove_dir(bundle.join("rootfs/etc")).unwrap();
        assert!(remove_shallow(&bundle, 0).is_ok());
        assert!(remove_shallow(&bundle, 0).is_ok(), "already gone is success");
    }

    #[test]
    fn only_chosen_files_are_removed_and_no_directory() {
        let home = tempfile::tempdir().unwrap();
        for name in ["a.disk", "b.disk", "c.lock"] {
            fs::write(home.path().join(name), "").unwrap();
        }
        fs::create_dir(home.path().join("d.disk")).unwrap();
        remove_files(home.path(), |name| name.to_string_lossy().ends_with(".disk")).unwrap();
        let mut left: Vec<_> = fs::read_dir(home.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["c.lock", "d.disk"]);
        assert!(remove_files(&home.path().join("gone"), |_| true).is_ok(), "already gone is success");
    }
}
