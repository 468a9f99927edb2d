//! What the public API says of files besides what the channel does: bodies, lines, headers.

use serde::{Deserialize, Serialize};

use super::{FileEvent, FileInfo, Hash};
use crate::error::Error;

/// The header of the digest of a body, as RFC 9530 has it: `sha-256=:…:`, in base64.
pub const DIGEST_HEADER: &str = "content-digest";
/// The trailer in place of that one where BLAKE3 was asked for, which RFC 9530 has no name for: 64 digits.
pub const BLAKE3_TRAILER: &str = "belljar-blake3";
/// The trailer that says whether a file was read `whole`, or `changed` while it was read.
pub const FILE_TRAILER: &str = "belljar-file";
/// What that trailer says of a file to which nobody wrote meanwhile.
pub const FILE_WHOLE: &str = "whole";
/// What it says of one to which somebody did.
pub const FILE_CHANGED: &str = "changed";

/// The trailer of an archive: its [`super::ArchiveReport`], as JSON.
pub const ARCHIVE_TRAILER: &str = "belljar-archive";

/// A regular file and the hash of all its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct HashedFile {
    /// The file.
    pub file: FileInfo,
    /// The hash of all its bytes.
    #[serde(flatten)]
    pub hash: Hash,
}

/// How many things something was done to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Counted {
    /// So many.
    pub count: u64,
}

/// A text to replace in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct EditRequest {
    /// The text, exactly. It must stand there once.
    pub old: String,
    /// What stands there afterwards.
    pub new: String,
    /// Replaces it wherever it stands instead.
    #[serde(default)]
    pub all: bool,
}

/// One line of what happens to files. The last is `error`; a stream without one was cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum WatchLine {
    /// From here on everything is told. The first line.
    Watching,
    /// Something happened.
    Changed {
        /// What, and to which file.
        #[serde(flatten)]
        event: FileEvent,
    },
    /// Nothing happened for a while.
    Heartbeat,
    /// The stream cannot go on. The last line.
    Error {
        /// Why.
        error: Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Change;

    #[test]
    fn a_line_about_a_file_is_one_flat_object() {
        let event =
            FileEvent { event: Change::Created, path: Some("/workspace/a".into()), path_encoded: None };
        let line = WatchLine::Changed { event };
        let json = serde_json::to_string(&line).unwrap();
        assert_eq!(json, r#"{"type":"changed","event":"created","path":"/workspace/a"}"#);
        assert_eq!(serde_json::from_str::<WatchLine>(&json).unwrap(), line);
    }
}
