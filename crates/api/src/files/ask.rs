//! Requests about a sandbox's files on the channel between node and guest, and their responses.

use serde::{Deserialize, Serialize};

use super::{
    ArchiveReport, DEPTH_MAX, EDIT_TEXT_BYTES_MAX, FileInfo, FilePath, Hash, Hashing, PAGE_MAX, are_digits,
};
use crate::error::Error;
use crate::layer::Compression;
use crate::limits;

/// Request about a sandbox's files. It runs in the sandbox, as the user that runs user code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case", deny_unknown_fields)]
pub enum FileAsk {
    /// Returns the entry at a path. Symlinks are not followed.
    Stat {
        /// Path of the entry.
        path: FilePath,
    },
    /// Lists a directory, and its subdirectories down to `depth`, sorted by name.
    List {
        /// Path of the directory.
        path: FilePath,
        /// Maximum depth. A depth of 1 lists only the directory's own entries.
        depth: u32,
        /// Last path of the previous page.
        #[serde(default)]
        after: Option<FilePath>,
        /// Maximum number of entries.
        limit: u32,
    },
    /// Reads a regular file.
    Read {
        /// Path of the file.
        path: FilePath,
        /// Offset of the first byte.
        from: u64,
        /// Offset after the last byte. Absent for the end of the file.
        #[serde(default)]
        to: Option<u64>,
        /// Required version of the file. The read fails if the file has changed.
        #[serde(default)]
        version: Option<String>,
        /// Algorithm for the hash of the sent bytes.
        #[serde(default, skip_serializing_if = "Hashing::is_default")]
        digest: Hashing,
    },
    /// Writes the data that follows the request to a file, and creates missing parent directories.
    Write {
        /// Path of the file.
        path: FilePath,
        /// Offset at which the data is written in place. If the transfer fails, the bytes received so far
        /// remain in the file. Without an offset, the file is replaced atomically.
        #[serde(default)]
        offset: Option<u64>,
        /// Permissions of the file. Default: those of the replaced file, or 0644.
        #[serde(default)]
        mode: Option<u32>,
        /// Required SHA-256 of the whole file, as 64 hexadecimal digits. Without an offset, it is checked
        /// before the file becomes visible. Only one hash is computed per file, so this field cannot be
        /// combined with a different `digest`.
        #[serde(default)]
        sha256: Option<String>,
        /// Algorithm for the hash of the whole file.
        #[serde(default, skip_serializing_if = "Hashing::is_default")]
        digest: Hashing,
    },
    /// Returns the hash of a regular file.
    Hash {
        /// Path of the file.
        path: FilePath,
        /// Hash algorithm.
        #[serde(default, skip_serializing_if = "Hashing::is_default")]
        digest: Hashing,
    },
    /// Creates a directory and its parents. Succeeds if the directory already exists.
    Make {
        /// Path of the directory.
        path: FilePath,
    },
    /// Moves a file or a directory.
    Move {
        /// Source path.
        from: FilePath,
        /// Target path.
        to: FilePath,
        /// True to replace an existing file at the target path.
        replace: bool,
    },
    /// Copies a file, or a directory with its contents.
    Copy {
        /// Source path.
        from: FilePath,
        /// Target path.
        to: FilePath,
        /// True to replace an existing file at the target path.
        replace: bool,
    },
    /// Removes a file or a directory. Succeeds if the path does not exist.
    Remove {
        /// Path to remove.
        path: FilePath,
        /// True to remove a directory with its contents.
        all: bool,
    },
    /// Replaces text in a file. Unless `all` is set, the text must occur exactly once.
    Edit {
        /// Path of the file.
        path: FilePath,
        /// Text to replace, matched exactly.
        old: String,
        /// Replacement text.
        new: String,
        /// True to replace every occurrence. False if there must be exactly one occurrence.
        #[serde(default)]
        all: bool,
    },
    /// Streams the file changes that occur from now on. Each data part is a [`super::FileEvent`].
    Watch {
        /// Path of a directory or a file.
        path: FilePath,
        /// True to include subdirectories.
        deep: bool,
    },
    /// Returns a directory or a file as an archive.
    Pack {
        /// Path of the directory or the file.
        path: FilePath,
        /// Compression of the archive: none or gzip.
        compression: Compression,
    },
    /// Extracts the archive that follows the request into a directory, which is created if necessary.
    Unpack {
        /// Path of the directory.
        path: FilePath,
        /// Compression of the archive.
        compression: Compression,
    },
}

/// Head of a response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case", deny_unknown_fields)]
pub enum FileAnswer {
    /// The request was rejected or failed. No data follows.
    Refused {
        /// Reason.
        error: Error,
    },
    /// Response to `stat`.
    Info {
        /// Entry at the path.
        info: FileInfo,
    },
    /// Response to `list`.
    Page {
        /// Entries of the page.
        items: Vec<FileInfo>,
        /// True if there are more entries after the last one.
        more: bool,
    },
    /// Response to `read`: the bytes from `from` to `to` follow.
    Content {
        /// File at the time of opening.
        info: FileInfo,
        /// Offset of the first byte.
        from: u64,
        /// Offset after the last byte.
        to: u64,
    },
    /// Response to `write` and `hash`.
    Whole {
        /// Current state of the file.
        info: FileInfo,
        /// Hash of the whole content, with the requested algorithm.
        #[serde(flatten)]
        hash: Hash,
    },
    /// Response to `make`, `move`, `copy` and `remove`.
    Done {
        /// Number of entries that were created, moved, copied or removed.
        count: u64,
    },
    /// Response to `edit`.
    Edited {
        /// Number of replaced occurrences.
        count: u64,
    },
    /// Response to `watch` and `pack`: data follows.
    Streams,
    /// Response to `unpack`.
    Unpacked {
        /// Summary of the extraction.
        report: ArchiveReport,
    },
}

/// End of a response with data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "end", rename_all = "snake_case", deny_unknown_fields)]
pub enum FileEnd {
    /// End of a `read`.
    Read {
        /// Hash of the sent bytes, with the requested algorithm.
        #[serde(flatten)]
        hash: Hash,
        /// True if the file was modified during the read.
        changed: bool,
    },
    /// End of a `pack`.
    Packed {
        /// Summary of the archive.
        report: ArchiveReport,
    },
    /// The operation failed after the head was sent.
    Failed {
        /// Reason.
        error: Error,
    },
}

impl FileAsk {
    /// Returns true if the client sends data after the request.
    pub fn sends(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::Unpack { .. })
    }

    /// Returns true if the request does not change any files.
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

    /// Checks the request.
    ///
    /// # Errors
    /// Returns an error if a field is invalid. The error names the first invalid field.
    pub fn check(&self) -> Result<(), Error> {
        match self {
            Self::List { depth, limit, .. } => {
                within("depth", (*depth).into(), 1, DEPTH_MAX.into())?;
                within("limit", (*limit).into(), 1, PAGE_MAX.into())
            }
            Self::Read { from, to: Some(to), .. } if to < from => Err(Error::invalid(
                format!("the range ends at {to}, before its start at {from}"),
                "Request a range that starts before it ends.",
            )),
            Self::Write { mode: Some(mode), .. } if *mode > 0o777 => Err(Error::invalid(
                format!("mode {mode:o} has bits other than permission bits"),
                "Use the nine permission bits, such as 420 (0644) or 493 (0755).",
            )),
            Self::Write { sha256: Some(sha256), .. } if !are_digits(sha256) => {
                Err(Error::invalid("sha256 is not 64 hexadecimal digits", "Correct the hash, or omit it."))
            }
            Self::Write { sha256: Some(_), digest: Hashing::Blake3, .. } => Err(Error::invalid(
                "sha256 cannot be combined with a BLAKE3 digest",
                "Omit either sha256 or the BLAKE3 digest. With BLAKE3, compare the hash in the response yourself.",
            )),
            Self::Edit { old, .. } if old.is_empty() => Err(Error::invalid(
                "the text to replace is empty",
                "Set `old` to text that the file contains.",
            )),
            Self::Edit { old, new, .. } if old.len() + new.len() > EDIT_TEXT_BYTES_MAX => {
                let bytes = (old.len() + new.len()) as u64;
                Err(limits::exceeded(
                    "the total length of old and new in bytes",
                    bytes,
                    EDIT_TEXT_BYTES_MAX as u64,
                ))
            }
            Self::Pack { compression: Compression::Zstd, .. } => Err(Error::invalid(
                "downloaded archives do not support zstd compression",
                "Use the compression `none` or `gzip`.",
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

fn within(name: &str, value: u64, least: u64, most: u64) -> Result<(), Error> {
    if value > most {
        return Err(limits::exceeded(name, value, most));
    }
    if value < least {
        return Err(Error::invalid(
            format!("{name} is {value}, the minimum is {least}"),
            format!("Use {least} or more."),
        ));
    }
    Ok(())
}
