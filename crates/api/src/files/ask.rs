//! What can be asked of the files of a sandbox on its channel, and what is answered.

use serde::{Deserialize, Serialize};

use super::{
    ArchiveReport, DEPTH_MAX, EDIT_TEXT_BYTES_MAX, FileInfo, FilePath, Hash, Hashing, PAGE_MAX, are_digits,
};
use crate::error::Error;
use crate::layer::Compression;
use crate::limits;

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
        /// By which hash what is sent is told.
        #[serde(default, skip_serializing_if = "Hashing::is_default")]
        digest: Hashing,
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
        /// The SHA-256 that the whole file must have, as 64 digits. Without an offset it is checked before the file is shown. One
        /// hash is made of a file: it goes with no other `digest`.
        #[serde(default)]
        sha256: Option<String>,
        /// By which hash the whole file is told.
        #[serde(default, skip_serializing_if = "Hashing::is_default")]
        digest: Hashing,
    },
    /// The hash of a regular file.
    Hash {
        /// Which.
        path: FilePath,
        /// Of which kind.
        #[serde(default, skip_serializing_if = "Hashing::is_default")]
        digest: Hashing,
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
    /// Tells what happens to files from now on. Each data part is a [`super::FileEvent`].
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
        /// The hash of all its bytes, of the kind that was asked for.
        #[serde(flatten)]
        hash: Hash,
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
        /// The hash of the bytes that were sent, of the kind that was asked for.
        #[serde(flatten)]
        hash: Hash,
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
