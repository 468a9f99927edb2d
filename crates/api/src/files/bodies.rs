//! Bodies, stream lines and headers for file requests in the public API. Node and guest do not use them.

use serde::{Deserialize, Serialize};

use super::{FileEvent, FileInfo, Hash};
use crate::error::Error;

/// Header with the digest of a body, in the format of RFC 9530: `sha-256=:…:`, in base64.
pub const DIGEST_HEADER: &str = "content-digest";
/// Trailer with the BLAKE3 hash, as 64 hexadecimal digits. For BLAKE3, it replaces [`DIGEST_HEADER`], because
/// RFC 9530 does not define BLAKE3.
pub const BLAKE3_TRAILER: &str = "bellglass-blake3";
/// Trailer with the state of a file after a read: [`FILE_WHOLE`] or [`FILE_CHANGED`].
pub const FILE_TRAILER: &str = "bellglass-file";
/// Value of [`FILE_TRAILER`] if the file was not modified during the read.
pub const FILE_WHOLE: &str = "whole";
/// Value of [`FILE_TRAILER`] if the file was modified during the read.
pub const FILE_CHANGED: &str = "changed";

/// Trailer of an archive with its [`super::ArchiveReport`], as JSON.
pub const ARCHIVE_TRAILER: &str = "bellglass-archive";

/// Regular file and the hash of its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct HashedFile {
    /// File.
    pub file: FileInfo,
    /// Hash of the whole content.
    #[serde(flatten)]
    pub hash: Hash,
}

/// Number of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Counted {
    /// Number of entries created, moved, copied or removed, or of occurrences replaced.
    pub count: u64,
}

/// Text replacement in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct EditRequest {
    /// Text to replace. It must occur exactly once, unless `all` is set. `old` and `new` together have at most 1 MiB.
    pub old: String,
    /// Replacement text.
    pub new: String,
    /// Replace every occurrence. Default false.
    #[serde(default)]
    pub all: bool,
}

/// Line of a watch stream. The last line is `error`; a stream that ends without this line was interrupted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum WatchLine {
    /// This is the first line of the stream. All changes after this line are reported.
    Watching,
    /// A file changed.
    Changed {
        /// Type of change and path.
        #[serde(flatten)]
        event: FileEvent,
    },
    /// Keep-alive, sent while there is nothing else to report.
    Heartbeat,
    /// Error that ends the stream. It is the last line.
    Error {
        /// Reason.
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
