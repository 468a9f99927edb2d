//! Files of a sandbox: what can be asked of them, and what is answered.
//!
//! A path is bytes. It travels percent-encoded in queries and on the channel; in answers it stands as text, beside its exact form
//! where the text is not it. Relative paths begin at `/workspace`. `..` is refused: a path means one place.
//!
//! On the channel a request and its answer are *parts*, each a header and a payload:
//!
//! ```text
//! kind u8 · zero u8 u16 · length u32     (big-endian)
//! request   head: FileAsk       data…   end: {}            without an end it broke off, and nothing half-done is shown as done
//! answer    head: FileAnswer    data…   end: FileEnd       nothing comes after a refusal
//! ```

mod bodies;
mod path;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorCode, Layer, Ran, Retry};
use crate::layer::Compression;
use crate::limits;

pub use bodies::{
    ARCHIVE_TRAILER, Counted, DIGEST_HEADER, EditRequest, FILE_CHANGED, FILE_TRAILER, FILE_WHOLE, HashedFile,
    WatchLine,
};
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
/// Bytes of a header.
pub const PART_HEADER_BYTES: usize = 8;
/// The largest payload of data.
pub const PART_BYTES_MAX: usize = 1 << 20;
/// The content type of an archive.
pub const ARCHIVE: &str = "application/x-tar";

/// What can be asked of the files of a sandbox. All of it happens inside, as the user that code runs as.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case", deny_unknown_fields)]
pub enum FileAsk {
    /// What is at a path. A symlink is not followed.
    Stat {
        /// Where.
        path: FilePath,
    },
    /// What is in a directory, and in those below it down to `depth`, in the order of their names.
    List {
        /// Where.
        path: FilePath,
        /// 1 for the directory alone.
        depth: u32,
        /// The last path of the page before.
        #[serde(default)]
        after: Option<FilePath>,
        /// Entries at most.
        limit: u32,
    },
    /// The bytes of a regular file.
    Read {
        /// Which.
        path: FilePath,
        /// The first byte.
        from: u64,
        /// The first byte that is not wanted any more; the end of the file if there is none.
        #[serde(default)]
        to: Option<u64>,
        /// Only if the file is still this version.
        #[serde(default)]
        version: Option<String>,
    },
    /// Puts the bytes that follow into a file, and makes the directories above it.
    Write {
        /// Which.
        path: FilePath,
        /// With it: the file is written in place from this byte on, and what arrived stays if the rest does not. Without it: the
        /// file is there whole, or as it was before.
        #[serde(default)]
        offset: Option<u64>,
        /// Its permissions; those of the file that is replaced, or 0644.
        #[serde(default)]
        mode: Option<u32>,
        /// The SHA-256 that the whole file must have, as 64 digits. Without an offset it is checked before the file is shown.
        #[serde(default)]
        sha256: Option<String>,
    },
    /// The SHA-256 of a regular file.
    Hash {
        /// Which.
        path: FilePath,
    },
    /// Makes a directory and those above it. One that is there is fine.
    Make {
        /// Where.
        path: FilePath,
    },
    /// Gives a thing another name.
    Move {
        /// What.
        from: FilePath,
        /// Its new name.
        to: FilePath,
        /// Whether a file of that name is replaced.
        replace: bool,
    },
    /// Copies a file or a directory with what is in it.
    Copy {
        /// What.
        from: FilePath,
        /// The copy.
        to: FilePath,
        /// Whether a file of that name is replaced.
        replace: bool,
    },
    /// Removes a thing. One that is not there is fine.
    Remove {
        /// What.
        path: FilePath,
        /// Whether a directory is removed with what is in it.
        all: bool,
    },
    /// Replaces a text in a file that has it exactly once.
    Edit {
        /// Which file.
        path: FilePath,
        /// The text, exactly.
        old: String,
        /// What stands there afterwards.
        new: String,
        /// Replaces it wherever it stands instead.
        #[serde(default)]
        all: bool,
    },
    /// Tells what happens to files from now on. Each data part is a [`FileEvent`].
    Watch {
        /// A directory, or a file.
        path: FilePath,
        /// Whether what is below its directories counts.
        deep: bool,
    },
    /// A directory or a file as an archive.
    Pack {
        /// Which.
        path: FilePath,
        /// How it is packed: not at all, or by gzip.
        compression: Compression,
    },
    /// Puts the archive that follows into a directory, which is made.
    Unpack {
        /// Where.
        path: FilePath,
        /// How it is packed.
        compression: Compression,
    },
}

/// The head of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case", deny_unknown_fields)]
pub enum FileAnswer {
    /// It was refused, or failed. Nothing follows.
    Refused {
        /// Why.
        error: Error,
    },
    /// To `stat`.
    Info {
        /// What is there.
        info: FileInfo,
    },
    /// To `list`.
    Page {
        /// Entries.
        items: Vec<FileInfo>,
        /// Whether there are more after the last.
        more: bool,
    },
    /// To `read`: so many bytes follow.
    Content {
        /// The file as it was opened.
        info: FileInfo,
        /// The first byte that follows.
        from: u64,
        /// The first that does not.
        to: u64,
    },
    /// To `write` and `hash`.
    Whole {
        /// The file as it is.
        info: FileInfo,
        /// The SHA-256 of all its bytes, as 64 digits.
        sha256: String,
    },
    /// To `make`, `move`, `copy` and `remove`.
    Done {
        /// Things that were made or removed.
        count: u64,
    },
    /// To `edit`.
    Edited {
        /// Places that were changed.
        count: u64,
    },
    /// To `watch` and `pack`: data follows.
    Streams,
    /// To `unpack`.
    Unpacked {
        /// What came of it.
        report: ArchiveReport,
    },
}

/// The end of an answer that had data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "end", rename_all = "snake_case", deny_unknown_fields)]
pub enum FileEnd {
    /// Of a `read`.
    Read {
        /// The SHA-256 of the bytes that were sent.
        sha256: String,
        /// Whether the file was written to meanwhile.
        changed: bool,
    },
    /// Of a `pack`.
    Packed {
        /// What came of it.
        report: ArchiveReport,
    },
    /// It cannot go on.
    Failed {
        /// Why.
        error: Error,
    },
}

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

/// The header of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// What the payload is.
    pub kind: PartKind,
    /// How long it is.
    pub length: u32,
}

/// What the payload of a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartKind {
    /// The JSON of a request or an answer.
    Head,
    /// Bytes.
    Data,
    /// The JSON of an end.
    End,
}

/// Why bytes are not a part.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the header of a part is not one")]
pub struct BadPart;

impl FileAsk {
    /// Whether bytes follow the request.
    pub fn sends(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::Unpack { .. })
    }

    /// Whether nothing is changed by it.
    pub fn only_looks(&self) -> bool {
        match self {
            Self::Stat { .. }
            | Self::List { .. }
            | Self::Read { .. }
            | Self::Hash { .. }
            | Self::Watch { .. }
            | Self::Pack { .. } => true,
            Self::Write { .. }
            | Self::Make { .. }
            | Self::Move { .. }
            | Self::Copy { .. }
            | Self::Remove { .. }
            | Self::Edit { .. }
            | Self::Unpack { .. } => false,
        }
    }

    /// Refuses what cannot be done, by name.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), Error> {
        match self {
            Self::List { depth, limit, .. } => {
                within("depth", (*depth).into(), 1, DEPTH_MAX.into())?;
                within("limit", (*limit).into(), 1, PAGE_MAX.into())
            }
            Self::Read { from, to: Some(to), .. } if to < from => Err(Error::invalid(
                format!("the range ends at {to}, before it begins at {from}"),
                "Ask for a range that begins before it ends.",
            )),
            Self::Write { mode: Some(mode), .. } if *mode > 0o777 => Err(Error::invalid(
                format!("the mode {mode:o} has more than permissions"),
                "Use the nine permission bits, such as 420 (0644) or 493 (0755).",
            )),
            Self::Write { sha256: Some(sha256), .. }
                if sha256.len() != 64 || !sha256.bytes().all(|byte| byte.is_ascii_hexdigit()) =>
            {
                Err(Error::invalid("sha256 is not 64 hexadecimal digits", "Mend it, or leave it out."))
            }
            Self::Edit { old, .. } if old.is_empty() => {
                Err(Error::invalid("the text to replace is empty", "Give some text that the file has."))
            }
            Self::Edit { old, new, .. } if old.len() + new.len() > EDIT_TEXT_BYTES_MAX => {
                let bytes = (old.len() + new.len()) as u64;
                Err(limits::exceeded("old and new together, in bytes,", bytes, EDIT_TEXT_BYTES_MAX as u64))
            }
            Self::Pack { compression: Compression::Zstd, .. } => Err(Error::invalid(
                "archives are packed by gzip or not at all",
                "Ask for compression none or gzip.",
            )),
            Self::Stat { .. }
            | Self::Read { .. }
            | Self::Write { .. }
            | Self::Hash { .. }
            | Self::Make { .. }
            | Self::Move { .. }
            | Self::Copy { .. }
            | Self::Remove { .. }
            | Self::Edit { .. }
            | Self::Watch { .. }
            | Self::Pack { .. }
            | Self::Unpack { .. } => Ok(()),
        }
    }
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

impl Part {
    /// The header as bytes.
    pub fn encode(self) -> [u8; PART_HEADER_BYTES] {
        let [l0, l1, l2, l3] = self.length.to_be_bytes();
        let kind = match self.kind {
            PartKind::Head => 1,
            PartKind::Data => 2,
            PartKind::End => 3,
        };
        [kind, 0, 0, 0, l0, l1, l2, l3]
    }

    /// Reads a header.
    ///
    /// # Errors
    /// Anything that [`Part::encode`] would not have written, and payloads over their bound.
    pub fn decode(bytes: [u8; PART_HEADER_BYTES]) -> Result<Self, BadPart> {
        let [kind, 0, 0, 0, l0, l1, l2, l3] = bytes else { return Err(BadPart) };
        let length = u32::from_be_bytes([l0, l1, l2, l3]);
        let (kind, most) = match kind {
            1 => (PartKind::Head, limits::BODY_BYTES_MAX),
            2 => (PartKind::Data, PART_BYTES_MAX),
            3 => (PartKind::End, limits::BODY_BYTES_MAX),
            _ => return Err(BadPart),
        };
        if length as usize > most || length == 0 { Err(BadPart) } else { Ok(Self { kind, length }) }
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

fn within(name: &str, value: u64, least: u64, most: u64) -> Result<(), Error> {
    if value > most {
        return Err(limits::exceeded(name, value, most));
    }
    if value < least {
        return Err(Error::invalid(format!("{name} is {value}"), format!("Ask for {least} or more.")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn whatever_decodes_as_a_part_encodes_to_the_same_bytes(bytes: [u8; PART_HEADER_BYTES]) {
            if let Ok(part) = Part::decode(bytes) {
                prop_assert_eq!(part.encode(), bytes);
            }
        }

        #[test]
        fn no_part_over_its_bound_is_accepted(kind in 0u8..5, length: u32) {
            let [l0, l1, l2, l3] = length.to_be_bytes();
            if let Ok(part) = Part::decode([kind, 0, 0, 0, l0, l1, l2, l3]) {
                prop_assert!(part.length as usize <= limits::BODY_BYTES_MAX);
            }
        }
    }
}
