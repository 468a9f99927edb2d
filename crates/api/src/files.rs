//! Files of a sandbox: what can be asked of them, and what is answered.
//!
//! A path is bytes. It travels percent-encoded in queries and on the channel; in answers it stands as text, beside its exact form
//! where the text is not it. Relative paths begin at `/workspace`. `..` is refused: a path means one place.
//!
//! | module | holds |
//! |---|---|
//! | [`ask`] | what can be asked on the channel, and what is answered |
//! | [`part`] | how both are put into bytes |
//! | [`path`] | paths |
//! | [`hash`] | by which hash bytes are compared |
//! | [`bodies`] | what the public API says besides |

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

/// `PATH_MAX` of Linux, less its NUL.
pub const PATH_BYTES_MAX: usize = 4095;
/// Directories inside each other that are walked: whatever walks holds a descriptor for each.
pub const DEPTH_MAX: u32 = 256;
/// Entries on one page of a listing, unless fewer are asked for.
pub const PAGE_MAX: u32 = 1000;
/// A file that is edited is held in memory, and so are its texts.
pub const EDIT_BYTES_MAX: u64 = 16 << 20;
/// The two texts of an edit together: escaped at worst, they fit a body.
pub const EDIT_TEXT_BYTES_MAX: usize = 1 << 20;
/// No disk is larger. A file that says so is full of holes, and is read in ranges or not at all.
pub const READ_BYTES_MAX: u64 = limits::Limits::MAX.disk_bytes;
/// The content type of an archive.
pub const ARCHIVE: &str = "application/x-tar";

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct FileInfo {
    /// Its path. Bytes that are not UTF-8 are shown as U+FFFD; then `path_encoded` is exact.
    pub path: String,
    /// The exact path, percent-encoded as a query takes it, where `path` is not it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoded: Option<String>,
    /// What it is.
    pub kind: FileKind,
    /// The size of a regular file.
    pub size_bytes: u64,
    /// Its permissions.
    pub mode: u32,
    /// The user it belongs to.
    pub uid: u32,
    /// The group it belongs to.
    pub gid: u32,
    /// When it was last written to.
    pub modified_at_ms: i64,
    /// Another text whenever the file is another or was written to.
    pub version: String,
    /// Where a symlink leads. It is not followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Why nothing more can be said of this entry of a listing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Error>,
}

/// What a thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symlink.
    Symlink,
    /// A FIFO.
    Fifo,
    /// A socket.
    Socket,
    /// A device.
    Device,
    /// It cannot be known.
    Unknown,
}

/// Something that happened to a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct FileEvent {
    /// What happened.
    pub event: Change,
    /// To which file. None where more happened than could be kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The exact path, where `path` is not it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoded: Option<String>,
}

/// What happened to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// It is there now.
    Created,
    /// Its content or its permissions changed.
    Modified,
    /// It is not there any more: removed, or moved away.
    Removed,
    /// More happened than could be kept: list what there is.
    Overflow,
}

/// What came of packing or unpacking an archive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ArchiveReport {
    /// Entries of the archive that were packed or made.
    pub entries: u64,
    /// Bytes of regular files among them.
    pub bytes: u64,
    /// Things that were left out: devices, FIFOs, sockets, and what could not be read.
    pub skipped: u64,
    /// Files that were written to while they were packed.
    pub changed: u64,
}

impl FileInfo {
    /// The exact path.
    ///
    /// # Errors
    /// It is none: whoever sent it broke the protocol.
    pub fn exact(&self) -> Result<FilePath, Error> {
        match &self.path_encoded {
            Some(encoded) => FilePath::decode(encoded),
            None => FilePath::new(self.path.as_bytes()),
        }
    }
}

/// The error for a thing that is no regular file.
pub fn not_regular(path: &str, kind: FileKind) -> Error {
    let what = match kind {
        FileKind::File => "a file",
        FileKind::Directory => "a directory",
        FileKind::Symlink => "a symlink, which is not followed",
        FileKind::Fifo => "a FIFO",
        FileKind::Socket => "a socket",
        FileKind::Device => "a device",
        FileKind::Unknown => "none",
    };
    let fix = match kind {
        FileKind::Directory => "List it, or take it as an archive.",
        FileKind::Symlink => "Look where it leads (`target`) and name that path.",
        FileKind::File | FileKind::Fifo | FileKind::Socket | FileKind::Device | FileKind::Unknown => {
            "Read and write it with a command in the sandbox."
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
