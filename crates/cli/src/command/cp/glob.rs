//! Wildcards in sandbox paths: `*`, `?` and `[a-z]`, in any path component. As in a shell, a leading dot
//! matches only a literal dot.

use api::files::{FileKind, FilePath};
use api::{Error, ErrorCode};
use client::Files;

use super::place::below;
use crate::connect::explain;

/// Maximum number of paths that one pattern may match.
const FOUND_MAX: usize = 100_000;

/// Returns all paths that match a pattern. If a path with exactly this text exists, the text is not treated
/// as a pattern.
///
/// # Errors
/// Returns an error if no path matches, or too many paths match.
pub async fn expand(files: &Files, pattern: &FilePath) -> Result<Vec<FilePath>, Error> {
    if !is_pattern(pattern.as_bytes()) {
        return Ok(vec![pattern.clone()]);
    }
    if unless_closed(files.stat(pattern).await)?.is_some() {
        return Ok(vec![pattern.clone()]);
    }
    let start = FilePath::new(if pattern.as_bytes().starts_with(b"/") { "/" } else { "." })?;
    // The start directory exists in every sandbox, so a failure means that the sandbox does not exist.
    files.stat(&start).await.map_err(|error| explain(&error))?;
    let mut found = vec![start];
    let parts: Vec<&[u8]> =
        pattern.as_bytes().split(|byte| *byte == b'/').filter(|part| !part.is_empty()).collect();
    for (index, part) in parts.iter().enumerate() {
        let is_last = index + 1 == parts.len();
        let mut next = Vec::new();
        for directory in &found {
            if !is_pattern(part) {
                let path = below(directory, part)?;
                // Only the last component needs a check: in a missing directory, later components match
                // nothing.
                if !is_last || unless_closed(files.stat(&path).await)?.is_some() {
                    next.push(path);
                }
                continue;
            }
            for info in unless_closed(files.list(directory, 1).await)?.unwrap_or_default() {
                let path = info.exact()?;
                let name = path.as_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
                if matches(part, name) && (is_last || info.kind == FileKind::Directory) {
                    next.push(below(directory, name)?);
                }
            }
        }
        found = next;
        if found.len() > FOUND_MAX {
            return Err(api::limits::exceeded("the number of files", found.len() as u64, FOUND_MAX as u64));
        }
    }
    if found.is_empty() {
        return Err(Error::not_found(format!("nothing matches {:?}", pattern.text())));
    }
    Ok(found)
}

/// Returns the response, or `None` if the path does not exist, is not a directory or cannot be read, because
/// such a path contains no matches. Any other error fails the whole copy.
fn unless_closed<T>(answer: Result<T, client::Error>) -> Result<Option<T>, Error> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error)
            if matches!(
                error.code(),
                Some(
                    ErrorCode::NotFound | ErrorCode::Conflict | ErrorCode::NotRegular | ErrorCode::Forbidden
                )
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(explain(&error)),
    }
}

fn is_pattern(text: &[u8]) -> bool {
    text.iter().any(|byte| matches!(byte, b'*' | b'?' | b'['))
}

/// Returns true if a name matches a pattern. Backtracks only to the last `*`, so the running time is at most
/// proportional to the product of both lengths.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    if name.starts_with(b".") && !pattern.starts_with(b".") {
        return false;
    }
    let (mut pattern, mut name) = (pattern, name);
    let mut back: Option<(&[u8], &[u8])> = None;
    loop {
        if let Some((b'*', rest)) = pattern.split_first() {
            pattern = rest;
            back = Some((rest, name));
            continue;
        }
        match (one(pattern, name.first()), name.split_first()) {
            (Some(rest), Some((_, tail))) => (pattern, name) = (rest, tail),
            _ if pattern.is_empty() && name.is_empty() => return true,
            _ => {
                let Some((rest, at)) = back else { return false };
                let Some((_, tail)) = at.split_first() else { return false };
                (pattern, name) = (rest, tail);
                back = Some((rest, tail));
            }
        }
    }
}

/// Returns the rest of a pattern if the pattern's first element matches this byte, and `None` otherwise.
fn one<'a>(pattern: &'a [u8], byte: Option<&u8>) -> Option<&'a [u8]> {
    let byte = *byte?;
    let (first, rest) = pattern.split_first()?;
    match first {
        b'?' => Some(rest),
        b'[' => {
            // A set is never empty: a `]` directly after `[` or `[!` is a member of the set.
            let inverted = rest.first() == Some(&b'!');
            let set = if inverted { rest.get(1..)? } else { rest };
            let end = set.iter().skip(1).position(|byte| *byte == b']')? + 1;
            let (set, after) = (set.get(..end)?, set.get(end + 1..)?);
            (in_set(set, byte) != inverted).then_some(after)
        }
        literal => (*literal == byte).then_some(rest),
    }
}

fn in_set(set: &[u8], byte: u8) -> bool {
    let mut rest = set;
    while let Some((first, tail)) = rest.split_first() {
        if let [b'-', last, after @ ..] = tail {
            if (*first..=*last).contains(&byte) {
                return true;
            }
            rest = after;
        } else {
            if *first == byte {
                return true;
            }
            rest = tail;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_path_refuses_is_taken_for_an_empty_one() {
        let refused = |code| Err(client::Error::Refused(Error { code, ..Error::not_found("x") }));
        for code in [ErrorCode::NotFound, ErrorCode::Conflict, ErrorCode::NotRegular, ErrorCode::Forbidden] {
            assert!(unless_closed::<()>(refused(code)).unwrap().is_none());
        }
        for code in [ErrorCode::Unauthorized, ErrorCode::RateLimited, ErrorCode::SandboxLost] {
            assert_eq!(unless_closed::<()>(refused(code)).unwrap_err().code, code);
        }
        assert_eq!(unless_closed(Ok(7)).unwrap(), Some(7));
    }

    #[test]
    fn names_match_as_in_a_shell() {
        for (pattern, name, wanted) in [
            ("*", "a", true),
            ("*", ".a", false),
            (".*", ".a", true),
            ("*.csv", "x.csv", true),
            ("*.csv", "x.csv.gz", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]a]", "]", true),
            ("[", "[", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("**", "", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), wanted, "{pattern} {name}");
        }
        let long = "a".repeat(255);
        assert!(!matches(format!("{}b", "a*".repeat(100)).as_bytes(), long.as_bytes()), "and soon");
    }
}
