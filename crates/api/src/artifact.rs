//! Artifacts: files that a run created or changed, kept after its sandbox is gone.
//!
//! The request that starts an exec names the folders to scan and sets limits on the kept files. Every new or
//! changed file is kept as an item, listed as left out, or at least counted: no file is omitted silently.

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::files::FilePath;
use crate::id::{ExecId, SandboxId};
use crate::limits;

/// Maximum number of folders that are scanned for one exec.
pub const FOLDERS_MAX: usize = 8;
/// Default maximum number of files kept from one exec (requirement A6.04).
pub const COUNT: u32 = 20;
/// Maximum value of [`Keep::count_max`]. The names of this many files still fit into one response.
pub const COUNT_MAX: u32 = 1000;
/// Default maximum size of one kept file (requirement A5.09).
pub const FILE_BYTES: u64 = 10_000_000;
/// Maximum value of [`Keep::file_bytes_max`].
pub const FILE_BYTES_MAX: u64 = 1 << 30;
/// Default maximum total size of the files kept from one exec.
pub const BYTES: u64 = 100_000_000;
/// Maximum value of [`Keep::bytes_max`].
pub const BYTES_MAX: u64 = 4 << 30;
/// Maximum number of folder entries that one scan lists. The folders are scanned once before the run and once
/// after it.
pub const LISTED_MAX: usize = 10_000;
/// Maximum number of left-out files that are listed. Further files are only counted.
pub const LEFT_OUT_MAX: usize = 100;
/// Maximum time for which a request waits for a collection to finish.
pub const WAIT_MS_MAX: u64 = 60_000;
/// Directory against which relative paths are resolved.
const WORKSPACE: &str = "/workspace";
/// MIME type of files with an unknown extension.
const ANY: &str = "application/octet-stream";

/// Selection of the files to keep when an exec has ended: files in the given folders that are new or changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Keep {
    /// Folders from which files are collected, including their subfolders. There must be 1 to 8 folders. A missing folder counts as empty.
    pub folders: Vec<String>,
    /// Maximum number of files. Default 20, maximum 1,000.
    #[serde(default = "count")]
    pub count_max: u32,
    /// Maximum size of one file in bytes. Default 10 MB, maximum 1 GiB.
    #[serde(default = "file_bytes")]
    pub file_bytes_max: u64,
    /// Maximum total size in bytes. Default 100 MB, maximum 4 GiB.
    #[serde(default = "bytes")]
    pub bytes_max: u64,
}

/// File kept from an exec.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Artifact {
    /// Number of the artifact within its exec. Use it to download the artifact.
    pub number: u32,
    /// Path relative to the folder that contained the file.
    pub name: String,
    /// Full path. Bytes that are not UTF-8 are shown as U+FFFD; `path_encoded` then has the exact path.
    pub path: String,
    /// Exact path, percent-encoded. Present only if `path` is not exact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoded: Option<String>,
    /// MIME type, derived from the file extension.
    pub mime: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// SHA-256 of the content, 64 hexadecimal digits.
    pub sha256: String,
}

/// New or changed file that was not kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LeftOut {
    /// Full path.
    pub path: String,
    /// Exact path, percent-encoded. Present only if `path` is not exact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoded: Option<String>,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Reason.
    pub why: Why,
}

/// Reason why a file was not kept. There are no other values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// `count_max` was reached, or the names would not fit into one response.
    TooMany,
    /// The file is larger than `file_bytes_max`.
    TooLarge,
    /// The total size would exceed `bytes_max`.
    TooMuch,
    /// The file could not be read.
    Unreadable,
    /// The file was modified or removed during every attempt to read it.
    Changing,
    /// The machine has no space for it.
    NoRoom,
}

/// Files kept from one exec.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Artifacts {
    /// Sandbox in which the exec ran.
    pub sandbox: SandboxId,
    /// Exec ID.
    pub exec: ExecId,
    /// True while the exec is running or its files are being collected. Repeat the request later.
    pub pending: bool,
    /// True if the exec had ended and all folders were scanned completely.
    pub complete: bool,
    /// Kept files, sorted by path.
    pub items: Vec<Artifact>,
    /// Number of new or changed regular files, including files that were not kept.
    pub found: u64,
    /// The first 100 files that were not kept.
    pub left_out: Vec<LeftOut>,
    /// Number of files that were not kept, in addition to the files in `left_out`.
    pub more_left_out: u64,
    /// True if the folders have more than 10,000 entries. The entries beyond this limit were not examined.
    pub unseen: bool,
    /// Expiry of the artifacts by the server's clock, Unix time in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<u64>,
    /// Reason why the collection is incomplete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Error>,
}

impl Keep {
    /// Returns a selection of these folders with the default limits.
    pub fn folders(folders: Vec<String>) -> Self {
        Self { folders, count_max: COUNT, file_bytes_max: FILE_BYTES, bytes_max: BYTES }
    }

    /// Checks the number of folders, the limits and the paths.
    ///
    /// # Errors
    /// Returns an error if a value is invalid. The error names the first invalid field.
    pub fn check(&self) -> Result<(), Error> {
        if self.folders.is_empty() {
            return Err(Error::invalid(
                "artifacts.folders is empty",
                "List the folders that the command writes to, such as /workspace/output.",
            ));
        }
        for (name, value, most) in [
            ("the number of artifacts.folders", self.folders.len() as u64, FOLDERS_MAX as u64),
            ("artifacts.count_max", self.count_max.into(), COUNT_MAX.into()),
            ("artifacts.file_bytes_max", self.file_bytes_max, FILE_BYTES_MAX),
            ("artifacts.bytes_max", self.bytes_max, BYTES_MAX),
        ] {
            if value > most {
                return Err(limits::exceeded(name, value, most));
            }
        }
        self.roots().map(drop)
    }

    /// Returns the folders as absolute, sorted paths. Omits folders below other folders of the list, so that
    /// no folder is scanned twice.
    ///
    /// # Errors
    /// Returns an error if a folder is not a valid path.
    pub fn roots(&self) -> Result<Vec<FilePath>, Error> {
        let mut wholes = self.folders.iter().map(|folder| whole(folder)).collect::<Result<Vec<_>, _>>()?;
        wholes.sort();
        let all = wholes.clone();
        wholes.dedup();
        wholes.retain(|path| !all.iter().any(|above| path != above && below(above, path).is_some()));
        Ok(wholes)
    }
}

impl Artifacts {
    /// Returns the initial state for an exec, before any file has been collected.
    pub fn pending(sandbox: SandboxId, exec: ExecId) -> Self {
        Self {
            sandbox,
            exec,
            pending: true,
            complete: false,
            items: Vec::new(),
            found: 0,
            left_out: Vec::new(),
            more_left_out: 0,
            unseen: false,
            expires_at_ms: None,
            error: None,
        }
    }

    /// Returns the final state for an exec whose files can no longer be collected, with the reason.
    pub fn lost(sandbox: SandboxId, exec: ExecId, error: Error) -> Self {
        Self { pending: false, error: Some(error), ..Self::pending(sandbox, exec) }
    }
}

impl Why {
    /// Returns the name that the wire protocol uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::TooMany => "too_many",
            Self::TooLarge => "too_large",
            Self::TooMuch => "too_much",
            Self::Unreadable => "unreadable",
            Self::Changing => "changing",
            Self::NoRoom => "no_room",
        }
    }
}

/// Returns the MIME type of a file, derived from its extension (requirement A5.10).
pub fn mime(name: &str) -> &'static str {
    let name = name.rsplit('/').next().unwrap_or(name);
    // A name such as `.png`, with nothing before the dot, has no extension.
    let Some((before, ending)) = name.rsplit_once('.') else { return ANY };
    if before.is_empty() {
        return ANY;
    }
    match ending.to_ascii_lowercase().as_str() {
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "svg" => "image/svg+xml",
        "csv" => "text/csv",
        "json" => "application/json",
        "txt" => "text/plain",
        "html" => "text/html",
        "pdf" => "application/pdf",
        _ => ANY,
    }
}

/// Returns the part of `path` below `folder`, or `None` if `path` is not below `folder`.
pub fn below<'a>(folder: &FilePath, path: &'a FilePath) -> Option<&'a [u8]> {
    let folder = folder.as_bytes();
    let rest = path.as_bytes().strip_prefix(folder)?;
    if folder.ends_with(b"/") { Some(rest) } else { rest.strip_prefix(b"/") }
}

/// Returns the absolute form of a path, without `.` and empty components.
fn whole(text: &str) -> Result<FilePath, Error> {
    let path = FilePath::new(text)?;
    let relative = !path.as_bytes().starts_with(b"/");
    let mut bytes = if relative { WORKSPACE.as_bytes().to_vec() } else { Vec::new() };
    for part in path.as_bytes().split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".") {
        bytes.push(b'/');
        bytes.extend_from_slice(part);
    }
    if bytes.is_empty() {
        bytes.push(b'/');
    }
    FilePath::new(bytes)
}

fn count() -> u32 {
    COUNT
}

fn file_bytes() -> u64 {
    FILE_BYTES
}

fn bytes() -> u64 {
    BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folders(names: &[&str]) -> Keep {
        Keep::folders(names.iter().map(|name| (*name).to_owned()).collect())
    }

    #[test]
    fn what_is_not_said_has_the_defaults_of_the_requirements() {
        // Covers requirements A5.09 and A6.04.
        let keep: Keep = serde_json::from_str(r#"{"folders":["/tmp/output"]}"#).unwrap();
        assert_eq!(keep, folders(&["/tmp/output"]));
        assert_eq!((keep.count_max, keep.file_bytes_max, keep.bytes_max), (20, 10_000_000, 100_000_000));
        assert_eq!(keep.check(), Ok(()));
        assert!(serde_json::from_str::<Keep>(r#"{"folders":["/a"],"all":true}"#).is_err());
    }

    #[test]
    fn what_is_too_much_or_no_path_is_refused_by_name() {
        for (keep, word) in [
            (folders(&[]), "folders"),
            (folders(&["a"; 9]), "folders"),
            (Keep { count_max: 1001, ..folders(&["a"]) }, "count_max"),
            (Keep { file_bytes_max: FILE_BYTES_MAX + 1, ..folders(&["a"]) }, "file_bytes_max"),
            (Keep { bytes_max: BYTES_MAX + 1, ..folders(&["a"]) }, "bytes_max"),
            (folders(&["/workspace/../etc"]), ".."),
            (folders(&[""]), "empty"),
        ] {
            let error = keep.check().unwrap_err();
            assert!(error.message.contains(word), "{}", error.message);
        }
    }

    #[test]
    fn no_folder_is_looked_at_twice() {
        let roots = |names: &[&str]| {
            let roots = folders(names).roots().unwrap();
            roots.iter().map(FilePath::text).collect::<Vec<_>>()
        };
        assert_eq!(roots(&["out", "/workspace//out/", "./out/deep"]), ["/workspace/out"]);
        assert_eq!(
            roots(&["/workspace/outer", "out", "/tmp"]),
            ["/tmp", "/workspace/out", "/workspace/outer"]
        );
        assert_eq!(roots(&["/", "/tmp"]), ["/"]);
        assert_eq!(roots(&["."]), ["/workspace"]);
    }

    #[test]
    fn a_type_is_that_of_the_ending() {
        // Covers requirement A5.10.
        for (name, wanted) in [
            ("plot.png", "image/png"),
            ("a/b/photo.JPG", "image/jpeg"),
            ("x.jpeg", "image/jpeg"),
            ("x.svg", "image/svg+xml"),
            ("table.csv", "text/csv"),
            ("x.tar.json", "application/json"),
            ("notes.txt", "text/plain"),
            ("page.html", "text/html"),
            ("paper.pdf", "application/pdf"),
            ("x.exe", ANY),
            (".png", ANY),
            ("png", ANY),
            ("dir.png/x", ANY),
        ] {
            assert_eq!(mime(name), wanted, "{name}");
        }
    }
}
