//! Hash algorithms and hashes of files.
//!
//! SHA-256 is available everywhere and is the default. On processors without SHA-256 instructions, BLAKE3
//! needs a tenth of SHA-256's processor time. It is intended for transfers in which both ends run Bellglass.

use serde::{Deserialize, Serialize};

/// Number of hexadecimal digits of a hash, for all algorithms.
const DIGITS: usize = 64;

/// Hash algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Hashing {
    /// SHA-256.
    #[default]
    Sha256,
    /// BLAKE3, 32 bytes, without a key.
    Blake3,
}

/// Hash as 64 hexadecimal digits, under the name of its algorithm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Hash {
    /// SHA-256.
    Sha256(String),
    /// BLAKE3 hash, if requested.
    Blake3(String),
}

impl Hashing {
    /// Returns the algorithm with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "sha256" => Some(Self::Sha256),
            "blake3" => Some(Self::Blake3),
            _ => None,
        }
    }

    /// Returns true if this is the default algorithm.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Hash {
    /// Returns the algorithm of the hash.
    pub fn kind(&self) -> Hashing {
        match self {
            Self::Sha256(_) => Hashing::Sha256,
            Self::Blake3(_) => Hashing::Blake3,
        }
    }

    /// Returns the hexadecimal digits.
    pub fn digits(&self) -> &str {
        let (Self::Sha256(digits) | Self::Blake3(digits)) = self;
        digits
    }
}

/// Returns true if the text consists of 64 hexadecimal digits, the form of every hash.
pub fn are_digits(text: &str) -> bool {
    text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{FileAsk, FileEnd, FilePath};

    #[test]
    fn an_answer_has_the_hash_that_was_asked_for_and_no_second_one() {
        let digits = "ab".repeat(32);
        for (name, hash) in
            [("sha256", Hash::Sha256(digits.clone())), ("blake3", Hash::Blake3(digits.clone()))]
        {
            let json = format!(r#"{{"end":"read","{name}":"{digits}","changed":false}}"#);
            let end = FileEnd::Read { hash: hash.clone(), changed: false };
            assert_eq!(serde_json::from_str::<FileEnd>(&json).unwrap(), end);
            assert_eq!(serde_json::to_string(&end).unwrap(), json);
            assert_eq!(Hashing::from_name(name), Some(hash.kind()));
        }
        for lie in [
            r#"{"end":"read","changed":false}"#,
            r#"{"end":"read","sha256":"a","blake3":"a","changed":false}"#,
            r#"{"end":"read","sha256":"a","changed":false,"more":1}"#,
            r#"{"end":"read","md5":"a","changed":false}"#,
        ] {
            assert!(serde_json::from_str::<FileEnd>(lie).is_err(), "{lie}");
        }
    }

    /// Verifies that SHA-256 requests omit `digest`: older guests know only SHA-256 and reject new fields.
    #[test]
    fn a_request_for_sha256_does_not_speak_of_kinds() {
        let ask = |digest| FileAsk::Hash { path: FilePath::new("a").unwrap(), digest };
        let json = serde_json::to_string(&ask(Hashing::Sha256)).unwrap();
        assert_eq!(json, r#"{"ask":"hash","path":"a"}"#);
        assert_eq!(serde_json::from_str::<FileAsk>(&json).unwrap(), ask(Hashing::Sha256));
        let json = serde_json::to_string(&ask(Hashing::Blake3)).unwrap();
        assert_eq!(json, r#"{"ask":"hash","path":"a","digest":"blake3"}"#);
    }
}
