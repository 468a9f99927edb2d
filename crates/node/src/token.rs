//! Tokens of a sandbox: random values that open its ports or its agent, each kind a type of its own.
//!
//! No token is derived from another or from anything else, so whoever holds one knows nothing of the others. They are kept as
//! they are, in the journal's files of mode 0600, because clients ask for them again and E2B's file signatures are verified with
//! one. A token never appears in a log: its `Debug` form has no digit of it.

use std::fmt;
use std::marker::PhantomData;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use host::error::Error;

/// Opens all ports of a sandbox, and nothing else. It stands in addresses and cookies that are passed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Port;

/// Opens the agent that E2B's SDKs talk to: commands, code and files. It is the key of E2B's file signatures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agent;

/// What E2B's SDKs send to ports and to the contexts of the code interpreter. It runs no code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic;

/// A token of one kind. An empty one opens nothing.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token<K> {
    digits: String,
    #[serde(skip)]
    kind: PhantomData<K>,
}

impl<K> Token<K> {
    /// A fresh token: 32 random bytes in hexadecimal.
    ///
    /// # Errors
    /// The kernel has no random bytes.
    pub fn fresh() -> Result<Self, Error> {
        let digits = host::machine::random::<32>()?.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { digits, kind: PhantomData })
    }

    /// Whether a text is this token. The time it takes does not depend on where they differ.
    pub fn is(&self, shown: impl AsRef<[u8]>) -> bool {
        !self.is_empty() && same(shown.as_ref(), self.digits.as_bytes())
    }

    /// Whether it opens nothing, as in a record of a release that had no such token.
    pub fn is_empty(&self) -> bool {
        self.digits.is_empty()
    }

    /// Its digits, for a caller who may have it.
    pub fn reveal(&self) -> &str {
        &self.digits
    }
}

impl<K> fmt::Debug for Token<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "Token(none)" } else { "Token(…)" })
    }
}

/// Whether two secrets are equal, in a time that depends on their lengths only: hashes are compared, and all of their bytes.
pub fn same(one: &[u8], other: &[u8]) -> bool {
    let (one, other) = (Sha256::digest(one), Sha256::digest(other));
    one.iter().zip(other.iter()).fold(0, |differs, (one, other)| differs | (one ^ other)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_itself_only_and_an_empty_one_opens_nothing() {
        let (one, other) = (Token::<Port>::fresh().unwrap(), Token::<Port>::fresh().unwrap());
        assert_eq!(one.reveal().len(), 64);
        assert!(one.is(one.reveal()) && !one.is(other.reveal()) && !one.is(""));
        assert!(!one.is(&one.reveal()[1..]));
        assert!(!Token::<Port>::default().is(""));
    }

    #[test]
    fn no_digit_of_a_token_is_in_its_debug_form() {
        let token = Token::<Agent>::fresh().unwrap();
        assert_eq!(format!("{token:?}"), "Token(…)");
        assert_eq!(serde_json::to_string(&token).unwrap(), format!("\"{}\"", token.reveal()));
    }
}
