//! Paths of files in a sandbox, as unambiguous sequences of bytes.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::PATH_BYTES_MAX;
use crate::error::Error;
use crate::limits;

/// Valid path in a sandbox: not empty, of bounded length, without NUL bytes and without `..`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilePath(Vec<u8>);

impl FilePath {
    /// Creates a path from bytes.
    ///
    /// # Errors
    /// Returns an error if the path is empty, too long, or contains a NUL byte or `..`.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, Error> {
        let bytes = bytes.into();
        let wrong = |why: &str, fix: &str| Err(Error::invalid(format!("the path {why}"), fix));
        if bytes.is_empty() {
            return wrong("is empty", "Use the path of a file or a directory, such as /workspace/data.csv.");
        }
        if bytes.len() > PATH_BYTES_MAX {
            return Err(limits::exceeded(
                "the length of the path in bytes",
                bytes.len() as u64,
                PATH_BYTES_MAX as u64,
            ));
        }
        if bytes.contains(&0) {
            return wrong("contains a NUL byte", "Remove the NUL byte, which no file name can contain.");
        }
        let climbs = bytes.split(|byte| *byte == b'/').any(|part| part == b"..");
        if climbs && !crate::defence::is_off("P-01") {
            return wrong("contains `..`", "Use a path without `..`, absolute or relative to /workspace.");
        }
        Ok(Self(bytes))
    }

    /// Decodes a percent-encoded path. Bytes that are not encoded are accepted as they are.
    ///
    /// # Errors
    /// Returns an error if the path contains a `%` that is not followed by two hexadecimal digits, or
    /// [`FilePath::new`] rejects the decoded path.
    pub fn decode(text: &str) -> Result<Self, Error> {
        let mut bytes = Vec::with_capacity(text.len().min(PATH_BYTES_MAX));
        let mut rest = text.bytes();
        while let Some(byte) = rest.next() {
            if byte != b'%' {
                bytes.push(byte);
                continue;
            }
            let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
            let (Some(high), Some(low)) = (digit(), digit()) else {
                return Err(Error::invalid(
                    "the path has a `%` without two hexadecimal digits",
                    "Percent-encode the path.",
                ));
            };
            bytes.push(u8::try_from(high * 16 + low).unwrap_or_default());
        }
        Self::new(bytes)
    }

    /// Returns the percent-encoded path.
    pub fn encode(&self) -> String {
        encode(&self.0)
    }

    /// Returns the bytes of the path.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the path as text, with U+FFFD for bytes that are not UTF-8.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }
}

impl fmt::Debug for FilePath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&String::from_utf8_lossy(&self.0), formatter)
    }
}

impl Serialize for FilePath {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.encode())
    }
}

impl<'de> Deserialize<'de> for FilePath {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::decode(&text).map_err(serde::de::Error::custom)
    }
}

/// Returns bytes as text. If the bytes are not valid UTF-8, the text is not exact, and the function also
/// returns the bytes in percent-encoded form.
pub fn shown(bytes: &[u8]) -> (String, Option<String>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (text.to_owned(), None),
        Err(_) => (String::from_utf8_lossy(bytes).into_owned(), Some(encode(bytes))),
    }
}

fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => {
                text.push(char::from(*byte));
            }
            byte => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_path_that_means_two_places_or_none_is_refused() {
        // Covers attack P-01.
        for text in ["", "..", "../x", "a/../b", "%2e%2e%2f", "..%00", "a%00b", "%", "%2", "%zz"] {
            assert!(FilePath::decode(text).is_err(), "{text:?}");
        }
        assert!(FilePath::new(vec![b'x'; PATH_BYTES_MAX + 1]).is_err());
        for text in [".", "/", "a", "...", "..a", "%252e%252e%252f", "a\u{2215}b", "%FF%FE", "-rf"] {
            assert!(FilePath::decode(text).is_ok(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn every_name_round_trips(bytes in proptest::collection::vec(1u8.., 1..300)) {
            // Covers attack P-10.
            if let Ok(path) = FilePath::new(bytes.clone()) {
                let decoded = FilePath::decode(&path.encode()).unwrap();
                prop_assert_eq!(decoded.as_bytes(), &bytes[..]);
                let json = serde_json::to_string(&path).unwrap();
                prop_assert_eq!(serde_json::from_str::<FilePath>(&json).unwrap(), path);
                let (text, exact) = shown(&bytes);
                let again = exact.map_or_else(|| FilePath::new(text), |exact| FilePath::decode(&exact)).unwrap();
                prop_assert_eq!(again.as_bytes(), &bytes[..]);
            }
        }
    }
}
