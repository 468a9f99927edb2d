//! Requests about the files of a sandbox, and their responses.
//!
//! A path is a sequence of bytes. In queries and on the channel between node and guest, it is
//! percent-encoded. Responses contain it as text, and also in its exact, percent-encoded form if it is not
//! valid UTF-8. Relative paths start at `/workspace`. Paths with `..` are rejected, so that every path has
//! exactly one meaning.
//! | module | holds |
//! |---|---|
//! | [`ask`] | requests and responses on the channel |
//! | [`part`] | encoding of requests and responses on the channel |
//! | [`path`] | paths |
//! | [`hash`] | hash algorithms and hashes |
//! | [`bodies`] | bodies, stream lines and headers that only the public API uses |

mod ask;
mod bodies;
mod hash;
mod part;
mod path;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorCode, Layer, Ran, Retry};
use crate::limits;

pub use ask::{FileAnswer, FileAsk, FileEnd};
pub use bodies::{
    ARCHIVE_TRAILER, BLAKE3_TRAILER, Counted, DIGEST_HEADER, EditRequest, FILE_CHANGED, FILE_TRAILER,
    FILE_WHOLE, HashedFile, WatchLine,
};
pub use hash::{Hash, Hashing, are_digits};
pub use part::{BadPart, PART_BYTES_MAX, PART_HEADER_BYTES, Part, PartKind};
pub use path::{FilePath, shown};

/// Maximum length of a path: `PATH_MAX` of Linux without the terminating NUL.
pub const PATH_BYTES_MAX: usize = 4095;
/// Maximum depth of a directory walk. A walk holds one open descriptor per level.
pub const DEPTH_MAX: u32 = 256;
/// Maximum number of entries on one page of a listing.
pub const PAGE_MAX: u32 = 1000;
/// Maximum size of a file that can be edited. An edit holds the whole file in memory.
pub const EDIT_BYTES_MAX: u64 = 16 << 20;
/// Maximum total size of an edit's two texts. Even with every byte escaped, they fit into one request body.
pub const EDIT_TEXT_BYTES_MAX: usize = 1 << 20;
/// Maximum number of bytes that one read or hash request can cover, which is the size of the largest disk. A
/// larger file must be sparse and can be read only in ranges.
pub const READ_BYTES_MAX: u64 = limits::Limits::MAX.disk_bytes;
/// Content type of an archive.
pub const ARCHIVE: &str = "application/x-tar";

/// File, directory or other entry at a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct FileInfo {
    /// Path. Bytes that are not UTF-8 are shown as U+FFFD; `path_encoded` then has the exact path.
    pub path: String,
    /// Exact path, percent-encoded for use in a query. Present only if `path` is not exact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoded: Option<String>,
    /// Type of the entry.
    pub kind: FileKind,
    /// Size of a regular file in bytes.
    pub size_bytes: u64,
    /// Permission bits.
    pub mode: u32,
    /// User ID of the owner.
    pub uid: u32,
    /// Group ID.
    pub gid: u32,
    /// Time of the last modification, Unix time in milliseconds.
    pub modified_at_ms: i64,
    /// Version of the file. It changes when the file is modified or replaced.
    pub version: String,
    /// Target of a symlink. Symlinks are not followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Reason why this entry of a listing has no further details.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Error>,
}

/// Type of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symlink.
    Symlink,
    /// FIFO.
    Fifo,
    /// Socket.
    Socket,
    /// Device.
    Device,
    /// Not known.
    Unknown,
}

/// Change of a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct FileEvent {
    /// Type of change.
    pub event: Change,
    /// Path of the file. Absent for `overflow`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Exact path, percent-encoded. Present only if `path` is not exact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoded: Option<String>,
}

/// Type of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// The file now exists.
    Created,
    /// The content or the permissions changed.
    Modified,
    /// The file was removed or moved away.
    Removed,
    /// Events were dropped. List the directory for its current content.
    Overflow,
}

/// Summary of an archive that was created or extracted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ArchiveReport {
    /// Number of entries that were archived or extracted.
    pub entries: u64,
    /// Total size in bytes of the regular files that were archived or extracted.
    pub bytes: u64,
    /// Number of entries that were skipped: devices, FIFOs, sockets and unreadable files.
    pub skipped: u64,
    /// Number of files that were modified while they were archived.
    pub changed: u64,
}

impl FileInfo {
    /// Returns the exact path.
    ///
    /// # Errors
    /// Returns an error if the path is invalid, in which case the sender violated the protocol.
    pub fn exact(&self) -> Result<FilePath, Error> {
        match &self.path_encoded {
            Some(encoded) => FilePath::decode(encoded),
            None => FilePath::new(self.path.as_bytes()),
        }
    }
}

/// Returns the error for a path that is not a regular file.
pub fn not_regular(path: &str, kind: FileKind) -> Error {
    let what = match kind {
        FileKind::File => "a file",
        FileKind::Directory => "a directory",
        FileKind::Symlink => "a symlink, which is not followed",
        FileKind::Fifo => "a FIFO",
        FileKind::Socket => "a socket",
        FileKind::Device => "a device",
        FileKind::Unknown => "of unknown type",
    };
    let fix = match kind {
        FileKind::Directory => "List the directory, or download it as an archive.",
        FileKind::Symlink => "Use the path in the `target` of the symlink instead.",
        FileKind::File | FileKind::Fifo | FileKind::Socket | FileKind::Device | FileKind::Unknown => {
            "Read or write this file with a command in the sandbox."
        }
    };
    Error {
        code: ErrorCode::NotRegular,
        message: format!("{path:?} is not a regular file but {what}"),
        layer: Layer::UserCode,
        ran: Ran::No,
        retry: Retry::Useless,
        fix: fix.into(),
    }
}
