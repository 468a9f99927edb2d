//! Sources and targets of a copy: local paths, paths in a sandbox, and standard input or output.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use api::files::FilePath;
use api::{Error, SandboxId};

/// Source or target of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyLocation {
    /// Path on this machine.
    Here(PathBuf),
    /// Path in a sandbox.
    There {
        /// Sandbox.
        sandbox: SandboxId,
        /// Path, which may contain wildcards.
        path: FilePath,
    },
    /// Standard input or output.
    Pipe,
}

impl CopyLocation {
    /// Parses `SANDBOX:PATH`, `-`, or a local path. A local path with a colon in its first component must be
    /// written as `./a:b`.
    ///
    /// # Errors
    /// Returns an error if the part before the colon is not a valid sandbox or the rest is not a valid path.
    pub fn parse(text: &OsStr) -> Result<Self, Error> {
        let bytes = text.as_bytes();
        if bytes == b"-" {
            return Ok(Self::Pipe);
        }
        let colon = bytes.iter().position(|byte| *byte == b':');
        let slash = bytes.iter().position(|byte| *byte == b'/').unwrap_or(bytes.len());
        let Some(colon) = colon.filter(|colon| *colon < slash) else { return Ok(Self::Here(text.into())) };
        let (name, path) = bytes.split_at(colon);
        let sandbox = std::str::from_utf8(name).ok().and_then(|name| name.parse().ok());
        let sandbox = sandbox.ok_or_else(|| {
            Error::invalid(
                format!("{:?} is not a sandbox id or name", String::from_utf8_lossy(name)),
                "Write SANDBOX:PATH, or prefix a local file that has a colon in its name with ./.",
            )
        })?;
        let path = match path.get(1..).unwrap_or_default() {
            b"" => FilePath::new(".")?,
            path => FilePath::new(path)?,
        };
        Ok(Self::There { sandbox, path })
    }
}

impl CopyLocation {
    /// Returns the name that the copy has in a target directory, or `None` if only the contents are copied.
    pub fn name(&self) -> Option<&[u8]> {
        match self {
            Self::Here(path) => {
                let bytes = path.as_os_str().as_bytes();
                let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
                // `Path` treats `dir/.` like `dir`, but in a copy, `dir/.` means only the contents of the
                // directory.
                let inner = bytes.get(..end).unwrap_or_default().ends_with(b"/.");
                path.file_name().filter(|_| !inner).map(OsStr::as_bytes)
            }
            Self::There { path, .. } => last_name(path),
            Self::Pipe => None,
        }
    }
}

impl fmt::Display for CopyLocation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here(path) => path.display().fmt(formatter),
            Self::There { sandbox, path } => write!(formatter, "{sandbox}:{}", path.text()),
            Self::Pipe => formatter.write_str("-"),
        }
    }
}

/// Returns the last component of a path in a sandbox, or `None` for paths without a name, such as the root.
/// The result is always a single component, so that a sandbox cannot choose a different directory on this
/// machine.
pub fn last_name(path: &FilePath) -> Option<&[u8]> {
    let name = path.as_bytes().rsplit(|byte| *byte == b'/').find(|name| !name.is_empty() && *name != b".")?;
    (name != b"..").then_some(name)
}

/// Returns the path of an entry in a directory of a sandbox.
pub fn below(directory: &FilePath, name: &[u8]) -> Result<FilePath, Error> {
    let directory = directory.as_bytes();
    let directory = directory.strip_suffix(b"/").unwrap_or(directory);
    FilePath::new([directory, b"/", name].concat())
}

/// Converts a name to a local file name.
pub fn local_name(name: &[u8]) -> OsString {
    OsString::from_vec(name.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> CopyLocation {
        CopyLocation::parse(OsStr::new(text)).unwrap()
    }

    #[test]
    fn a_colon_before_the_first_slash_names_a_sandbox() {
        let there = |sandbox: &str, path: &str| CopyLocation::There {
            sandbox: sandbox.parse().unwrap(),
            path: FilePath::new(path).unwrap(),
        };
        assert_eq!(parse("build:a/b"), there("build", "a/b"));
        assert_eq!(parse("build:/etc/x:y"), there("build", "/etc/x:y"));
        assert_eq!(parse("build:"), there("build", "."));
        assert_eq!(parse("./a:b"), CopyLocation::Here("./a:b".into()));
        assert_eq!(parse("-"), CopyLocation::Pipe);
        assert!(CopyLocation::parse(OsStr::new("C:x")).is_err());
        assert!(CopyLocation::parse(OsStr::new("build:../x")).is_err());
    }

    #[test]
    fn a_dot_at_the_end_means_what_is_inside() {
        for (path, wanted) in [
            ("dir", Some("dir")),
            ("dir/", Some("dir")),
            ("a/dir.", Some("dir.")),
            ("dir/.", None),
            ("dir/.//", None),
            (".", None),
            ("a/..", None),
            ("/", None),
        ] {
            let place = parse(path);
            assert_eq!(place.name(), wanted.map(str::as_bytes), "{path}");
        }
    }

    #[test]
    fn what_a_sandbox_named_is_one_name_here() {
        let name = |path: &str| last_name(&FilePath::new(path).unwrap()).map(<[u8]>::to_vec);
        assert_eq!(name("/workspace/a/"), Some(b"a".to_vec()));
        assert_eq!(name("a/./"), Some(b"a".to_vec()));
        assert_eq!(name("/"), None);
        assert_eq!(name("."), None);
    }
}
