//! Validated names of entries, and the names reserved for the sandbox.

use api::Error;

use super::refusal::{over, refused};

/// Maximum length of a path: `PATH_MAX` of Linux. No program could open a longer path.
pub const PATH_BYTES_MAX: usize = 4096;
/// Maximum length of a component: `NAME_MAX` of Linux file systems.
const PART_BYTES_MAX: usize = 255;
/// Maximum directory depth. Code that unpacks, removes or mounts a layer holds a descriptor for each level.
pub const DEPTH_MAX: usize = 256;

/// Prefix of the name of an entry that hides a file of the layers below.
pub const HIDES: &[u8] = b".wh.";
/// Name of an entry that hides all entries that its directory has in the layers below.
pub const HIDES_ALL: &[u8] = b".wh..wh..opq";

/// Directories that serve as mount points in a sandbox. In an image, these paths can only be directories. The
/// directories in [`CLOSED`] cannot have entries either.
pub const RESERVED: [&str; 8] =
    ["proc", "sys", "dev", "tmp", "workspace", "home", "home/sandbox", ".bellglass"];
/// Directories in which images cannot have entries.
const CLOSED: [&str; 4] = ["proc", "sys", "dev", ".bellglass"];

/// One component of a path.
pub type PathComponent = Vec<u8>;

/// A path inside the layer, of limited length, without `..` or empty components. The root has no components.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Name {
    /// Components of the path.
    pub parts: Vec<PathComponent>,
}

/// Meaning of the last component of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The name of a file or directory.
    Thing,
    /// Hides the file with this name in the layers below.
    Hides(PathComponent),
    /// Hides all entries of this directory in the layers below.
    HidesAll,
    /// An internal marker of an older union file system, which has no meaning here.
    Note,
}

impl Name {
    /// Parses a name from an archive. A leading slash refers to the layer's root, as it does in all archive
    /// readers.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() > PATH_BYTES_MAX {
            let message = format!("the name of entry {:?} is {} bytes long", start(bytes), bytes.len());
            return Err(over(message, PATH_BYTES_MAX));
        }
        if bytes.contains(&0) {
            return Err(refused(bytes, "has a NUL byte in its name"));
        }
        let parts: Vec<PathComponent> =
            bytes.split(|byte| *byte == b'/').filter(is_part).map(<[u8]>::to_vec).collect();
        if parts.iter().any(|part| part == b"..") {
            return Err(refused(bytes, "has `..` in its name"));
        }
        if parts.iter().any(|part| part.len() > PART_BYTES_MAX) {
            return Err(over(
                format!("a part of the name of entry {:?} is too long", start(bytes)),
                PART_BYTES_MAX,
            ));
        }
        if parts.len() > DEPTH_MAX {
            return Err(over(
                format!("entry {:?} is {} directories deep", start(bytes), parts.len()),
                DEPTH_MAX,
            ));
        }
        Ok(Self { parts })
    }

    /// Returns the name as one path.
    pub fn bytes(&self) -> Vec<u8> {
        self.parts.join(&b'/')
    }

    /// Splits the name into its parents and its last component. Returns `None` for the root.
    pub fn split(&self) -> Option<(&[PathComponent], &PathComponent)> {
        self.parts.split_last().map(|(last, parents)| (parents, last))
    }
}

/// Returns the meaning of the last component of a name.
pub fn meaning(last: &[u8]) -> Result<Meaning, Error> {
    match last.strip_prefix(HIDES) {
        None => Ok(Meaning::Thing),
        Some(_) if last == HIDES_ALL => Ok(Meaning::HidesAll),
        Some(rest) if rest.starts_with(HIDES) => Ok(Meaning::Note),
        Some(b"" | b"." | b"..") => Err(refused(last, "is a whiteout without a valid name")),
        Some(rest) => Ok(Meaning::Hides(rest.to_vec())),
    }
}

/// Returns true if this path is inside a directory that belongs to the sandbox.
pub fn is_closed(path: &[PathComponent]) -> bool {
    path.len() > 1 && path.first().is_some_and(|first| CLOSED.iter().any(|name| name.as_bytes() == first))
}

/// Returns true if only a directory is allowed at this path.
pub fn is_reserved(path: &[PathComponent]) -> bool {
    let joined = path.join(&b'/');
    RESERVED.iter().any(|name| name.as_bytes() == joined)
}

/// Splits a symlink's target into components. Also returns true if the target is absolute.
pub fn target(bytes: &[u8]) -> (bool, Vec<PathComponent>) {
    let parts = bytes.split(|byte| *byte == b'/').filter(is_part).map(<[u8]>::to_vec);
    (bytes.starts_with(b"/"), parts.collect())
}

fn is_part(part: &&[u8]) -> bool {
    !part.is_empty() && *part != b"."
}

/// Returns the beginning of a name that is too long for an error message.
fn start(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.get(..64).unwrap_or(bytes)).into_owned()
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> String {
        String::from_utf8(Name::parse(text.as_bytes()).unwrap().bytes()).unwrap()
    }

    #[test]
    fn names_are_made_plain() {
        for (text, plain) in
            [("./a//b/./c/", "a/b/c"), ("/etc/passwd", "etc/passwd"), ("./", ""), ("///", "")]
        {
            assert_eq!(parsed(text), plain, "{text}");
        }
    }

    #[test]
    fn names_that_lead_out_or_on_for_ever_are_refused() {
        for text in ["..", "../x", "a/../b", "a/..", "a\0b"] {
            assert!(Name::parse(text.as_bytes()).is_err(), "{text:?}");
        }
        let limit = |text: String| Name::parse(text.as_bytes()).unwrap_err().code;
        for text in ["x".repeat(256), "a/".repeat(257), "x/".repeat(2049)] {
            assert_eq!(limit(text), api::ErrorCode::LimitExceeded);
        }
        assert_eq!(Name::parse("a/".repeat(256).as_bytes()).unwrap().parts.len(), 256);
        assert!(Name::parse("x".repeat(255).as_bytes()).is_ok());
    }

    #[test]
    fn marks_are_told_from_names() {
        assert_eq!(meaning(b"wh.a"), Ok(Meaning::Thing));
        assert_eq!(meaning(b".wh.a"), Ok(Meaning::Hides(b"a".to_vec())));
        assert_eq!(meaning(b".wh..wh..opq"), Ok(Meaning::HidesAll));
        assert_eq!(meaning(b".wh..wh.plnk"), Ok(Meaning::Note));
        for bad in [".wh.", ".wh..", ".wh..."] {
            assert!(meaning(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_sandbox_keeps_its_own_paths() {
        let path = |text: &str| Name::parse(text.as_bytes()).unwrap().parts;
        assert!(
            is_closed(&path("proc/1")) && is_closed(&path(".bellglass/guest")) && !is_closed(&path("proc"))
        );
        assert!(
            is_reserved(&path("proc")) && is_reserved(&path("home/sandbox")) && !is_reserved(&path("home/x"))
        );
        assert!(!is_closed(&path("tmp/x")) && !is_reserved(&path("run")));
    }
}
