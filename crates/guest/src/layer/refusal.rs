//! Errors that unpacking returns. Each states the name of the entry or the limit, and the responsible layer.

use std::fmt::Display;

use api::{Error, ErrorCode, Layer, Ran, Retry};
use rustix::io::Errno;

/// Maximum length of a name or a reason in a message, in bytes.
const SHOWN_BYTES: usize = 256;

/// Returns the error for an entry that layers must not contain.
pub fn refused(name: &[u8], why: impl Display) -> Error {
    Error::invalid(
        format!("entry {:?} of the archive {}", shown(name), tame(&why)),
        "Recreate the archive or image without this entry, or with another tool.",
    )
}

/// Returns the error for an archive that cannot be read as a layer.
pub fn broken(why: impl Display) -> Error {
    Error::invalid(
        format!("cannot read the archive: {}", tame(&why)),
        "Recreate the archive or export the image again. If the error persists, use another tool.",
    )
}

/// Returns the error for a layer that exceeds a limit.
pub fn over(what: impl Display, most: impl Display) -> Error {
    Error {
        code: ErrorCode::LimitExceeded,
        message: format!("{what}, the hard maximum is {most}"),
        layer: Layer::Policy,
        ran: Ran::No,
        retry: Retry::Useless,
        fix: "Reduce the size of the image.".into(),
    }
}

/// Returns the error for a system call that failed on a file of the layer.
pub fn failed(act: &str, name: &[u8], errno: Errno) -> Error {
    let mut error = platform(&format!("{act} {:?}", shown(name)), &errno);
    if matches!(errno, Errno::NOSPC | Errno::DQUOT) {
        error.code = ErrorCode::Capacity;
        error.fix = "Free disk space in the data directory of Bellglass, then retry.".into();
    }
    error
}

/// Returns the error for a layer that hides a file of a lower layer, in a tier that cannot create whiteouts.
pub fn no_marks(name: &[u8]) -> Error {
    Error {
        code: ErrorCode::Unsupported,
        message: format!(
            "the layer hides {:?} of a lower layer, and this runtime cannot create whiteouts",
            shown(name)
        ),
        layer: Layer::Platform,
        ran: Ran::No,
        retry: Retry::Useless,
        fix:
            "Import the image with a runtime of the container tier, such as runc. The template can then be used in every tier."
                .into(),
    }
}

/// Returns the error for an operation that failed because of the platform.
pub fn platform(act: &str, cause: &dyn Display) -> Error {
    Error {
        code: ErrorCode::Platform,
        message: format!("cannot {act}: {cause}"),
        layer: Layer::Platform,
        ran: Ran::No,
        retry: Retry::Unknown,
        fix: "Check the disk that contains the data directory of Bellglass, then retry.".into(),
    }
}

/// Replaces control characters in a reason, because an archive could use them to attack a terminal.
fn tame(why: &dyn Display) -> String {
    why.to_string().chars().take(SHOWN_BYTES).map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Formats a name for messages.
fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name.get(..SHOWN_BYTES).unwrap_or(name)).into_owned()
}
