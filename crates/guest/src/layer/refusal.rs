//! How unpacking says no: the entry by name, the limit by name, whose doing it was.

use std::fmt::Display;

use api::{Error, ErrorCode, Layer, Ran, Retry};
use rustix::io::Errno;

/// What is shown of a name.
const SHOWN_BYTES: usize = 256;

/// An entry that no layer may have.
pub fn refused(name: &[u8], why: impl Display) -> Error {
    Error::invalid(
        format!("entry {:?} of the archive {}", shown(name), tame(&why)),
        "Recreate the archive or image without this entry, or with another tool.",
    )
}

/// Something that is no layer at all.
pub fn broken(why: impl Display) -> Error {
    Error::invalid(
        format!("cannot read the archive: {}", tame(&why)),
        "Recreate the archive or export the image again. If the error persists, use another tool.",
    )
}

/// A bound that the layer goes over.
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

/// A system call that failed on something of the layer.
pub fn failed(act: &str, name: &[u8], errno: Errno) -> Error {
    let mut error = platform(&format!("{act} {:?}", shown(name)), &errno);
    if matches!(errno, Errno::NOSPC | Errno::DQUOT) {
        error.code = ErrorCode::Capacity;
        error.fix = "Free disk space in the data directory of Bellglass, then retry.".into();
    }
    error
}

/// A mark that hides something of a lower layer and cannot be made in this tier.
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

/// Something of ours that failed.
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

/// A reason without what the archive may have put into it for somebody's terminal.
fn tame(why: &dyn Display) -> String {
    why.to_string().chars().take(SHOWN_BYTES).map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// A name as people can read it.
fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name.get(..SHOWN_BYTES).unwrap_or(name)).into_owned()
}
