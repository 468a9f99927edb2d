//! Parses paths from E2B's SDKs, which are absolute or relative to the user's home directory.

use api::Error;
use api::files::FilePath;

/// Parses a path. Relative paths and `~` start at the home directory; an empty path is the home directory.
///
/// # Errors
/// Returns an error if the path is invalid.
pub fn path(text: &str, home: &str) -> Result<FilePath, Error> {
    FilePath::new(absolute(text, home))
}

/// Returns the absolute form of a path as text, for use as a working directory.
pub fn absolute(text: &str, home: &str) -> String {
    let below = match text {
        "" | "~" | "." => return home.to_owned(),
        _ if text.starts_with('/') => return text.to_owned(),
        _ => text.strip_prefix("~/").unwrap_or(text),
    };
    format!("{home}/{}", below.strip_prefix("./").unwrap_or(below))
}

/// Returns the last component of a path.
pub fn name(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_absolute_begins_at_home() {
        for (text, whole) in [
            ("", "/home/user"),
            ("~", "/home/user"),
            (".", "/home/user"),
            ("a/b", "/home/user/a/b"),
            ("./a", "/home/user/a"),
            ("~/a", "/home/user/a"),
            ("~a", "/home/user/~a"),
            ("/tmp/a", "/tmp/a"),
            ("/", "/"),
        ] {
            assert_eq!(absolute(text, "/home/user"), whole);
        }
        assert!(path("a/../b", "/home/user").is_err());
        assert_eq!((name("/a/b/"), name("/"), name("c")), ("b", "", "c"));
    }
}
