//! An image on disk: an archive or a directory, whose members are read by name.
//!
//! For an archive, only an index of the members' positions is built. Documents are small and are read whole;
//! layers are passed on unmodified. Nothing is unpacked here.

mod member;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use host::error::Error;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use sha2::{Digest, Sha256};

use crate::{failed, layers, unsound};
use member::{Member, index};

/// Maximum size of a document in bytes. The largest configurations, with the history of a long build, have
/// tens of thousands of bytes.
const DOCUMENT_BYTES_MAX: u64 = 4 << 20;
/// Maximum length of a chain of links between members. Old archives represent duplicate layers as links,
/// usually with a single link.
const LINKS_MAX: usize = 4;

/// An image on disk.
pub(super) enum Package {
    /// An image in one archive file, with the positions of its members.
    Archive { file: Arc<File>, members: HashMap<String, Member> },
    /// An image in a directory.
    Directory(PathBuf),
}

/// A reader of one member.
pub(super) struct Blob {
    file: Arc<File>,
    offset: u64,
    left: u64,
    /// Total size in bytes.
    pub(super) size: u64,
}

impl Package {
    /// Opens an image.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let (file, is_directory) = open(path)?;
        if is_directory {
            return Ok(Self::Directory(path.to_owned()));
        }
        let mut first = [0; 6];
        let count = file.read_at(&mut first, 0).map_err(failed("read", path))?;
        if let Some(tool) = packed(first.get(..count).unwrap_or_default()) {
            return Err(unsound(
                format!("{} is compressed", path.display()),
                &format!("Decompress the file with `{tool}` and import the result."),
            ));
        }
        let members = index(&file)?;
        Ok(Self::Archive { file: Arc::new(file), members })
    }

    /// Returns true if a member with this name exists.
    pub(super) fn has(&self, name: &str) -> bool {
        match self {
            Self::Archive { members, .. } => members.contains_key(name),
            Self::Directory(path) => path.join(name).is_file(),
        }
    }

    /// Reads a whole document. If a digest is given, the document must match it.
    pub(super) fn document(&self, name: &str, digest: Option<&str>) -> Result<Vec<u8>, Error> {
        let mut blob = self.blob(name)?;
        if blob.size > DOCUMENT_BYTES_MAX {
            return Err(Error::Request(api::limits::exceeded(
                &format!("the size of {name:?} in bytes"),
                blob.size,
                DOCUMENT_BYTES_MAX,
            )));
        }
        let mut bytes = Vec::new();
        blob.read_to_end(&mut bytes).map_err(failed("read", Path::new(name)))?;
        let found = format!("sha256:{}", layers::hexadecimal(&Sha256::digest(&bytes)));
        match digest {
            Some(digest) if digest != found => Err(mismatch(name, digest, &found)),
            _ => Ok(bytes),
        }
    }

    /// Opens a member of any size.
    pub(super) fn blob(&self, name: &str) -> Result<Blob, Error> {
        let missing = || unsound(format!("the image has no part {name:?}"), "Export the image again.");
        match self {
            Self::Archive { file, members } => {
                let mut member = members.get(name).ok_or_else(missing)?;
                for _ in 0..LINKS_MAX {
                    match member {
                        Member::Content { offset, size } => {
                            return Ok(Blob {
                                file: Arc::clone(file),
                                offset: *offset,
                                left: *size,
                                size: *size,
                            });
                        }
                        Member::Same(other) => member = members.get(other).ok_or_else(missing)?,
                    }
                }
                Err(missing())
            }
            Self::Directory(path) => {
                // Names come from the image, so they are resolved only below the image's directory.
                let (directory, _) = open(path)?;
                let flags = OFlags::NONBLOCK | OFlags::CLOEXEC;
                let below = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
                let path = path.join(name);
                let file = rustix::fs::openat2(&directory, name, flags, Mode::empty(), below)
                    .map_err(|errno| failed("open", &path)(errno.into()))?;
                let (file, is_directory) = plain(file.into(), &path)?;
                let size = file.metadata().map_err(failed("read", &path))?.len();
                if is_directory {
                    return Err(missing());
                }
                Ok(Blob { file: Arc::new(file), offset: 0, left: size, size })
            }
        }
    }
}

impl Blob {
    /// Returns the first bytes without consuming them.
    pub(super) fn first(&self) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        let start = Self { file: Arc::clone(&self.file), ..*self };
        start.take(6).read_to_end(&mut bytes).map_err(failed("read", Path::new("the image")))?;
        Ok(bytes)
    }
}

impl Read for Blob {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let count = self.file.read_at(buffer.get_mut(..most).unwrap_or_default(), self.offset)?;
        if count == 0 && most > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.offset += count as u64;
        self.left = self.left.saturating_sub(count as u64);
        Ok(count)
    }
}

/// Opens a regular file or a directory, without blocking on a FIFO or a device.
fn open(path: &Path) -> Result<(File, bool), Error> {
    let flags = OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())
        .map_err(|errno| failed("open", path)(errno.into()))
        .map(File::from)?;
    plain(file, path)
}

/// Returns the file. The flag is true for a directory and false for a regular file. Other types are refused.
fn plain(file: File, path: &Path) -> Result<(File, bool), Error> {
    let kind = file.metadata().map_err(failed("read", path))?.file_type();
    if kind.is_file() || kind.is_dir() {
        return Ok((file, kind.is_dir()));
    }
    Err(unsound(format!("{} is not a file or directory", path.display()), "Use the path of an image."))
}

fn packed(first: &[u8]) -> Option<&'static str> {
    match first {
        [0x1f, 0x8b, ..] => Some("gunzip"),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some("unzstd"),
        [0xfd, b'7', b'z', b'X', b'Z', 0] => Some("unxz"),
        _ => None,
    }
}

/// Returns the error for a part that does not match its digest or size.
pub(super) fn mismatch(name: &str, expected: &str, found: &str) -> Error {
    unsound(
        format!("part {:?} of the image does not match: expected {expected}, found {found}", shown(name)),
        "The image is damaged or was modified. Export the image again.",
    )
}

pub(super) fn shown(text: &str) -> String {
    text.chars().take(256).collect()
}

#[cfg(test)]
mod tests {
    use super::member::MEMBERS_MAX;
    use super::*;

    fn archive(build: impl FnOnce(&mut tar::Builder<Vec<u8>>)) -> tempfile::NamedTempFile {
        let mut builder = tar::Builder::new(Vec::new());
        build(&mut builder);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), builder.into_inner().unwrap()).unwrap();
        file
    }

    fn add(builder: &mut tar::Builder<Vec<u8>>, name: &str, content: &str) {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, content.as_bytes()).unwrap();
    }

    fn link(builder: &mut tar::Builder<Vec<u8>>, name: &str, target: &str) {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        builder.append_link(&mut header, name, target).unwrap();
    }

    #[test]
    fn members_are_read_by_name() {
        let long = format!("{}/layer.tar", "d".repeat(150));
        let file = archive(|builder| {
            add(builder, "./index.json", "{}");
            add(builder, &long, "content");
            link(builder, "other/layer.tar", &format!("../{long}"));
        });
        let package = Package::open(file.path()).unwrap();
        assert!(package.has("index.json") && !package.has("oci-layout"));
        for name in [&long, "other/layer.tar"] {
            assert_eq!(package.document(name, None).unwrap(), b"content");
        }
        assert!(package.document("index.json", Some("sha256:0")).is_err());
        assert!(package.blob("gone").is_err());
    }

    #[test]
    fn no_name_leads_out_of_a_directory() {
        let directory = tempfile::tempdir().unwrap();
        let inside = directory.path().join("image");
        std::fs::create_dir_all(&inside).unwrap();
        std::fs::write(directory.path().join("secret"), "x").unwrap();
        std::fs::write(inside.join("fine"), "x").unwrap();
        std::os::unix::fs::symlink("../secret", inside.join("link")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, inside.join("pipe"), rustix::fs::FileType::Fifo, Mode::RWXU, 0)
            .unwrap();
        let package = Package::open(&inside).unwrap();
        assert!(package.blob("fine").is_ok());
        let absolute = directory.path().join("secret");
        for name in ["../secret", "link", "pipe", ".", absolute.to_str().unwrap()] {
            assert!(package.blob(name).is_err(), "{name}");
        }
    }

    #[test]
    fn archives_that_go_on_for_ever_are_refused() {
        let circle = archive(|builder| {
            link(builder, "a", "b");
            link(builder, "b", "a");
        });
        assert!(Package::open(circle.path()).unwrap().blob("a").is_err());
        let many =
            archive(|builder| (0..=MEMBERS_MAX).for_each(|number| add(builder, &number.to_string(), "")));
        assert_eq!(Package::open(many.path()).err().unwrap().to_api().code, api::ErrorCode::LimitExceeded);
        let huge = archive(|builder| add(builder, "index.json", &" ".repeat((4 << 20) + 1)));
        let error = Package::open(huge.path()).unwrap().document("index.json", None).unwrap_err();
        assert_eq!(error.to_api().code, api::ErrorCode::LimitExceeded);
        let twice = archive(|builder| {
            add(builder, "a", "1");
            add(builder, "./a", "2");
        });
        assert!(Package::open(twice.path()).is_err());
    }

    #[test]
    fn a_compressed_archive_is_named_as_such() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [0x1f, 0x8b, 8, 0, 0, 0, 0]).unwrap();
        assert!(Package::open(file.path()).err().unwrap().to_api().fix.contains("gunzip"));
    }
}
