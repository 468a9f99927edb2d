//! Errors of file requests. Each states the operation, the path, the responsible layer, and the fix.

use std::fmt::Write as _;
use std::io;

use api::{Error, ErrorCode, Layer, Ran, Retry};
use rustix::io::Errno;

/// Maximum length of a path in a message, in bytes.
const SHOWN_BYTES: usize = 512;

/// Returns the error for a system call that failed on a path.
pub fn failed(act: &str, path: &[u8], errno: Errno) -> Error {
    let (code, layer, retry, fix) = match errno {
        Errno::NOENT => (
            ErrorCode::NotFound,
            Layer::UserCode,
            Retry::Useless,
            "List the parent directory: the name may be misspelled, or may not exist yet.",
        ),
        Errno::ACCESS | Errno::PERM | Errno::ROFS => (
            ErrorCode::Forbidden,
            Layer::Sandbox,
            Retry::Useless,
            "The sandbox's user cannot access this path that way, or its file system is read-only. Use /workspace, /home/sandbox or /tmp.",
        ),
        Errno::NOSPC | Errno::DQUOT => (
            ErrorCode::LimitExceeded,
            Layer::Policy,
            Retry::Useless,
            "The sandbox's disk is full. Remove files, or create a sandbox with a larger `disk_bytes` or `disk_inodes`.",
        ),
        Errno::FBIG => (ErrorCode::LimitExceeded, Layer::Policy, Retry::Useless, "Write a smaller file."),
        Errno::EXIST
        | Errno::NOTEMPTY
        | Errno::NOTDIR
        | Errno::ISDIR
        | Errno::BUSY
        | Errno::TXTBSY
        | Errno::XDEV => (
            ErrorCode::Conflict,
            Layer::UserCode,
            Retry::Useless,
            "Inspect the path (`stat`, `list`), then remove the existing entry or choose another path.",
        ),
        Errno::NAMETOOLONG | Errno::LOOP | Errno::INVAL | Errno::ILSEQ => (
            ErrorCode::InvalidRequest,
            Layer::UserCode,
            Retry::Useless,
            "Use a path with names of at most 255 bytes each and no symlink loops.",
        ),
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN => {
            (ErrorCode::Capacity, Layer::Sandbox, Retry::Safe, "Retry when the sandbox is less busy.")
        }
        _ => (
            ErrorCode::Platform,
            Layer::Sandbox,
            Retry::Unknown,
            "Retry. If the error persists, inspect the path with a command in the sandbox.",
        ),
    };
    let reason = io::Error::from(errno);
    let message = format!("cannot {act} {}: {reason}", show(path));
    Error { code, message, layer, ran: Ran::No, retry, fix: fix.into() }
}

/// Like [`failed`], but for an I/O error from the standard library.
pub fn failed_io(act: &str, path: &[u8], error: &io::Error) -> Error {
    failed(act, path, error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error))
}

/// Returns the error for a file whose state does not permit the operation.
pub fn conflict(message: String, fix: &str) -> Error {
    Error {
        code: ErrorCode::Conflict,
        message,
        layer: Layer::UserCode,
        ran: Ran::No,
        retry: Retry::Useless,
        fix: fix.into(),
    }
}

/// Formats a path for messages. Escapes special characters, so that a path cannot control a terminal.
pub fn show(path: &[u8]) -> String {
    let shown = String::from_utf8_lossy(path.get(..SHOWN_BYTES).unwrap_or(path));
    let mut text = format!("{shown:?}");
    if path.len() > SHOWN_BYTES {
        let _ = write!(text, " ({} bytes)", path.len());
    }
    text
}
