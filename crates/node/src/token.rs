//! Tokens of a sandbox: random values that give access to its ports or its agent. Each kind has its own type.
//!
//! No token is derived from another token or from any other value, so one token reveals nothing about the
//! others. Tokens are stored in clear text, in journal files with mode 0600, because clients request them
//! again and E2B's file signatures are verified with one of them. A token never appears in a log: its `Debug`
//! output contains none of its digits.

use std::fmt;
use std::marker::PhantomData;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use host::error::Error;

/// Kind of the token that gives access to all ports of a sandbox and to nothing else. It appears in URLs and
/// cookies that users share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllPorts;

/// Kind of the token that gives access to the agent to which E2B's SDKs connect: commands, code and files. It
/// is also the key of E2B's file signatures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agent;

/// Kind of the token that E2B's SDKs send to ports and to the contexts of the code interpreter. It cannot run
/// code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic;

/// A token of one kind. An empty token gives access to nothing.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token<K> {
    digits: String,
    #[serde(skip)]
    kind: PhantomData<K>,
}

impl<K> Token<K> {
    /// Returns a fresh token: 32 random bytes in hexadecimal.
    ///
    /// # Errors
    /// The kernel's random number generator is unavailable.
    pub fn fresh() -> Result<Self, Error> {
        let digits = host::machine::random::<32>()?.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { digits, kind: PhantomData })
    }

    /// Returns true if `shown` is this token. The comparison takes the same time regardless of where the two
    /// differ.
    pub fn is(&self, shown: impl AsRef<[u8]>) -> bool {
        !self.is_empty() && same(shown.as_ref(), self.digits.as_bytes())
    }

    /// Returns true if the token is empty, as in a record from a release without tokens of this kind.
    pub fn is_empty(&self) -> bool {
        self.digits.is_empty()
    }

    /// Returns the digits, for callers with permission to see them.
    pub fn reveal(&self) -> &str {
        &self.digits
    }
}

impl<K> fmt::Debug for Token<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "Token(none)" } else { "Token(…)" })
    }
}

/// Returns true if two secrets are equal. The time depends only on their lengths, because all bytes of their
/// hashes are compared.
pub fn same(one: &[u8], other: &[u8]) -> bool {
    let (one, other) = (Sha256::digest(one), Sha256::digest(other));
    one.iter().zip(other.iter()).fold(0, |differs, (one, other)| differs | (one ^ other)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_itself_only_and_an_empty_one_opens_nothing() {
        let (one, other) = (Token::<AllPorts>::fresh().unwrap(), Token::<AllPorts>::fresh().unwrap());
        assert_eq!(one.reveal().len(), 64);
        assert!(one.is(one.reveal()) && !one.is(other.reveal()) && !one.is(""));
        assert!(!one.is(&one.reveal()[1..]));
        assert!(!Token::<AllPorts>::default().is(""));
    }

    #[test]
    fn no_digit_of_a_token_is_in_its_debug_form() {
        let token = Token::<Agent>::fresh().unwrap();
        assert_eq!(format!("{token:?}"), "Token(…)");
        assert_eq!(serde_json::to_string(&token).unwrap(), format!("\"{}\"", token.reveal()));
    }
}
