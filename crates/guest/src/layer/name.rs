//! The name of an entry, checked, and which names belong to the sandbox itself.

use api::Error;

use super::refusal::{over, refused};

/// `PATH_MAX` of Linux: a longer path could not be opened by anybody.
pub const PATH_BYTES_MAX: usize = 4096;
/// `NAME_MAX` of Linux file systems.
const PART_BYTES_MAX: usize = 255;
/// Directories inside each other: what unpacks, removes and mounts a layer walks it with a descriptor for each.
pub const DEPTH_MAX: usize = 256;

/// What begins the name of an entry that hides something of the layers below.
pub const HIDES: &[u8] = b".wh.";
/// What hides all that the layers below have in this directory.
pub const HIDES_ALL: &[u8] = b".wh..wh..opq";

/// Directories that the sandbox mounts something on, so that no image may have anything else there. Of those in
/// [`CLOSED`] an image has nothing to say at all.
pub const RESERVED: [&str; 8] =
    ["proc", "sys", "dev", "tmp", "workspace", "home", "home/sandbox", ".bellglass"];
/// Directories in which an image may have nothing.
const CLOSED: [&str; 4] = ["proc", "sys", "dev", ".bellglass"];

/// One component of a path.
pub type Part = Vec<u8>;

/// A path inside the layer: no `..`, nothing empty, bounded. No parts at all is the root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Name {
    /// Its components.
    pub parts: Vec<Part>,
}

/// What the last part of a name says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The name of a thing.
    Thing,
    /// The thing of that name in the layers below is hidden.
    Hides(Part),
    /// Everything that the layers below have in this directory is hidden.
    HidesAll,
    /// A note of an old union file system to itself.
    Note,
}

impl Name {
    /// Reads a name as archives spell it. A leading slash means the layer's root, as it does for everybody.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() > PATH_BYTES_MAX {
            let message = format!("the name of entry {:?} is {} bytes long", start(bytes), bytes.len());
            return Err(over(message, PATH_BYTES_MAX));
        }
        if bytes.contains(&0) {
            return Err(refused(bytes, "has a NUL byte in its name"));
        }
        let parts: Vec<Part> =
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

    /// The name as one path.
    pub fn bytes(&self) -> Vec<u8> {
        self.parts.join(&b'/')
    }

    /// The directory and the last part; none for the root.
    pub fn split(&self) -> Option<(&[Part], &Part)> {
        self.parts.split_last().map(|(last, parents)| (parents, last))
    }
}

/// What a last part says.
pub fn meaning(last: &[u8]) -> Result<Meaning, Error> {
    match last.strip_prefix(HIDES) {
        None => Ok(Meaning::Thing),
        Some(_) if last == HIDES_ALL => Ok(Meaning::HidesAll),
        Some(rest) if rest.starts_with(HIDES) => Ok(Meaning::Note),
        Some(b"" | b"." | b"..") => Err(refused(last, "is a whiteout without a valid name")),
        Some(rest) => Ok(Meaning::Hides(rest.to_vec())),
    }
}

/// Whether something at this path would be inside what belongs to the sandbox.
pub fn is_closed(path: &[Part]) -> bool {
    path.len() > 1 && path.first().is_some_and(|first| CLOSED.iter().any(|name| name.as_bytes() == first))
}

/// Whether only a directory may be at this path.
pub fn is_reserved(path: &[Part]) -> bool {
    let joined = path.join(&b'/');
    RESERVED.iter().any(|name| name.as_bytes() == joined)
}

/// The parts of a symlink's target, and whether they begin at the root.
pub fn target(bytes: &[u8]) -> (bool, Vec<Part>) {
    let parts = bytes.split(|byte| *byte == b'/').filter(is_part).map(<[u8]>::to_vec);
    (bytes.starts_with(b"/"), parts.collect())
}

fn is_part(part: &&[u8]) -> bool {
    !part.is_empty() && *part != b"."
}

/// The beginning of a name that is too long to be shown.
fn start(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.get(..64).unwrap_or(bytes)).into_owned()
}

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
