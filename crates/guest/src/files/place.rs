//! The location of a file: an open directory, and a name in it.
//!
//! Symlinks in the directory part of a path are followed, as they are for any program in the sandbox. A
//! symlink at the last name is never followed. Recursive operations walk from descriptor to descriptor and
//! follow no symlinks.

use std::os::fd::OwnedFd;

use api::Error;
use api::files::{self, FileInfo, FileKind, FilePath, not_regular};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::failure::{failed, show};

/// Base of relative paths, and working directory of this process.
const WORKSPACE: &[u8] = b"/workspace";

/// Prefix of the names of temporary files.
const TEMPORARY: &str = ".bellglass-";
/// Flags for opening a directory from which other files are opened.
pub const DIRECTORY: OFlags =
    OFlags::DIRECTORY.union(OFlags::PATH).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A name in an open directory.
pub struct FileLocation {
    /// The directory.
    pub parent: OwnedFd,
    /// The name; `.` for a directory without one, such as `/`.
    pub name: Vec<u8>,
    /// Absolute path.
    pub path: Vec<u8>,
}

impl FileLocation {
    /// Locates a path: opens the directory that contains the path's last name.
    pub fn find(path: &FilePath) -> Result<Self, Error> {
        let (whole, above, name) = split(path);
        let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
        let parent = rustix::fs::openat(CWD, above.as_slice(), flags, Mode::empty())
            .map_err(|errno| failed("open the parent directory of", &whole, errno))?;
        Ok(Self { parent, name, path: whole })
    }

    /// Like [`FileLocation::find`], but creates missing parent directories first.
    pub fn find_or_make(path: &FilePath) -> Result<Self, Error> {
        match Self::find(path) {
            Err(error) if error.code == api::ErrorCode::NotFound => {
                let (_, above, _) = split(path);
                super::tree::make(&above)?;
                Self::find(path)
            }
            found => found,
        }
    }

    /// Returns the status of the file, without following a symlink.
    pub fn stat(&self) -> Result<Stat, Errno> {
        rustix::fs::statat(&self.parent, self.name.as_slice(), AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Returns a full description of the file, without following a symlink.
    pub fn info(&self) -> Result<FileInfo, Error> {
        let stat = self.stat().map_err(|errno| failed("inspect", &self.path, errno))?;
        Ok(self.describe(&stat))
    }

    /// Describes the file at this location, given its status.
    pub fn describe(&self, stat: &Stat) -> FileInfo {
        let mut info = describe(&self.path, stat);
        if info.kind == FileKind::Symlink {
            info.target = target(&self.parent, &self.name);
        }
        info
    }

    /// Opens the file at this location. Returns an error for anything but a regular file, and never blocks.
    pub fn open(&self, flags: OFlags) -> Result<(OwnedFd, Stat), Error> {
        let refuse = |stat: &Stat| not_regular(&String::from_utf8_lossy(&self.path), kind(stat));
        let fault = |errno| failed("open", &self.path, errno);
        let before = self.stat().map_err(fault)?;
        let follows = api::defence::is_off("P-02");
        if kind(&before) != FileKind::File && !follows {
            return Err(refuse(&before));
        }
        let bound = if follows { OFlags::empty() } else { OFlags::NOFOLLOW };
        let safe = bound | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.parent, self.name.as_slice(), flags | safe, Mode::empty())
            .map_err(fault)?;
        // Check the opened file again: it may have been replaced since the first check.
        let stat = rustix::fs::fstat(&file).map_err(fault)?;
        if kind(&stat) != FileKind::File {
            return Err(refuse(&stat));
        }
        Ok((file, stat))
    }

    /// Returns the permissions of an existing regular file, or `None` if there is no file. Returns an error
    /// for any other kind of file.
    pub fn replaceable(&self) -> Result<Option<u32>, Error> {
        if self.name == b"." {
            return Err(not_regular(&String::from_utf8_lossy(&self.path), FileKind::Directory));
        }
        match self.stat() {
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(failed("inspect", &self.path, errno)),
            Ok(stat) if kind(&stat) == FileKind::File => Ok(Some(stat.st_mode & 0o777)),
            Ok(stat) => Err(not_regular(&String::from_utf8_lossy(&self.path), kind(&stat))),
        }
    }

    /// Returns a random name for a temporary file in the same directory.
    pub fn beside(&self) -> Result<Vec<u8>, Error> {
        let mut bytes = [0; 8];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
            .map_err(|errno| failed("create a temporary name next to", &self.path, errno))?;
        Ok(format!("{TEMPORARY}{:016x}", u64::from_ne_bytes(bytes)).into_bytes())
    }
}

/// Returns true if a name has the form that [`FileLocation::beside`] generates.
pub fn is_temporary(name: &[u8]) -> bool {
    name.strip_prefix(TEMPORARY.as_bytes())
        .is_some_and(|rest| rest.len() == 16 && rest.iter().all(u8::is_ascii_hexdigit))
}

/// Describes a file, except for a symlink's target.
pub fn describe(path: &[u8], stat: &Stat) -> FileInfo {
    let (text, exact) = files::shown(path);
    let kind = kind(stat);
    FileInfo {
        path: text,
        path_encoded: exact,
        kind,
        size_bytes: if kind == FileKind::File { u64::try_from(stat.st_size).unwrap_or(0) } else { 0 },
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        modified_at_ms: stat
            .st_mtime
            .saturating_mul(1000)
            .saturating_add_unsigned(stat.st_mtime_nsec / 1_000_000),
        version: version(stat),
        target: None,
        error: None,
    }
}

/// Describes a directory entry whose status cannot be read.
pub fn unseen(path: &[u8], error: Error) -> FileInfo {
    let (text, exact) = files::shown(path);
    FileInfo {
        path: text,
        path_encoded: exact,
        kind: FileKind::Unknown,
        size_bytes: 0,
        mode: 0,
        uid: 0,
        gid: 0,
        modified_at_ms: 0,
        version: String::new(),
        target: None,
        error: Some(error),
    }
}

/// Returns a string that changes whenever the file is replaced or written to. It contains the ctime, which
/// programs cannot set.
pub fn version(stat: &Stat) -> String {
    format!("{:x}-{:x}-{:x}.{:x}", stat.st_ino, stat.st_size, stat.st_ctime, stat.st_ctime_nsec)
}

/// Returns the kind of a file.
pub fn kind(stat: &Stat) -> FileKind {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice | FileType::BlockDevice => FileKind::Device,
        FileType::Unknown => FileKind::Unknown,
    }
}

/// Returns the target of a symlink, as text.
pub fn target(parent: &OwnedFd, name: &[u8]) -> Option<String> {
    let target = rustix::fs::readlinkat(parent, name, Vec::new()).ok()?;
    Some(String::from_utf8_lossy(target.as_bytes()).into_owned())
}

/// Opens a directory by its name, and refuses a symlink. On gVisor, opening a symlink as a directory follows
/// it regardless of the flags, so the result is compared with the status read before.
pub fn enter(parent: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = DIRECTORY.difference(OFlags::PATH) | OFlags::RDONLY | OFlags::NONBLOCK;
    if api::defence::is_off("P-05") {
        return rustix::fs::openat(parent, name, flags.difference(OFlags::NOFOLLOW), Mode::empty());
    }
    let seen = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if kind(&seen) != FileKind::Directory {
        return Err(Errno::NOTDIR);
    }
    let directory = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    let opened = rustix::fs::fstat(&directory)?;
    let same = (opened.st_dev, opened.st_ino) == (seen.st_dev, seen.st_ino);
    if same { Ok(directory) } else { Err(Errno::NOTDIR) }
}

/// Appends a name to a path.
pub fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    [path, b"/", name].concat()
}

/// Splits a path into its absolute form, its parent directory as this process opens it, and its last name.
fn split(path: &FilePath) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
    let absolute = path.as_bytes().starts_with(b"/");
    let parts: Vec<&[u8]> = path
        .as_bytes()
        .split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty() && *part != b".")
        .collect();
    let root: &[u8] = if absolute { b"" } else { WORKSPACE };
    let whole = parts.iter().fold(root.to_vec(), |path, part| [&path, &b"/"[..], part].concat());
    let whole = if whole.is_empty() { b"/".to_vec() } else { whole };
    let begin: &[u8] = if absolute { b"/" } else { b"." };
    match parts.split_last() {
        None => (whole, begin.to_vec(), b".".to_vec()),
        Some((name, above)) => {
            let above = above.iter().fold(begin.to_vec(), |path, part| join(&path, part));
            (whole, above, name.to_vec())
        }
    }
}

/// Returns the error for a tree that is too deep to walk.
pub fn too_deep(path: &[u8]) -> Error {
    api::limits::exceeded(
        &format!("the directory depth of {}", show(path)),
        u64::from(files::DEPTH_MAX) + 1,
        files::DEPTH_MAX.into(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_directory_and_a_name() {
        for (path, whole, above, name) in [
            ("/", "/", "/", "."),
            (".", "/workspace", ".", "."),
            ("a", "/workspace/a", ".", "a"),
            ("./a//b/", "/workspace/a/b", "./a", "b"),
            ("/etc/passwd", "/etc/passwd", "/etc", "passwd"),
            ("/etc", "/etc", "/", "etc"),
        ] {
            let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
            let (got, directory, last) = split(&FilePath::new(path).unwrap());
            assert_eq!((text(got), text(directory), text(last)), (whole.into(), above.into(), name.into()));
        }
    }
}
