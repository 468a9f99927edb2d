//! IDs of sandboxes, execs, contexts and sessions.
//!
//! A sandbox ID is also used as a host name, a directory name and a cgroup name. It may therefore contain
//! only characters that are valid in all three: lower-case letters and digits. It begins with a letter and
//! has at most [`ID_BYTES_MAX`] characters.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Maximum length of an ID. A DNS label has at most 63 bytes, and must have space for more than the ID: a
/// port (`8080-<id>`) and, in the future, the names of nodes and node groups.
pub const ID_BYTES_MAX: usize = 40;

/// ID or name of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(value_type = String, pattern = "^[a-z][a-z0-9]{0,39}$"))]
#[serde(try_from = "String", into = "String")]
pub struct SandboxId(String);

/// ID of an exec, unique within its sandbox.
// Chosen by the caller, so that a repeated request starts only one exec.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(value_type = String, pattern = "^[a-z][a-z0-9]{0,39}$"))]
#[serde(try_from = "String", into = "String")]
pub struct ExecId(String);

/// ID of a context, unique within its sandbox.
// Chosen by the caller, so that a repeated request creates only one context.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(value_type = String, pattern = "^[a-z][a-z0-9]{0,39}$"))]
#[serde(try_from = "String", into = "String")]
pub struct ContextId(String);

/// ID of a session.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(value_type = String, pattern = "^[a-z][a-z0-9]{0,39}$"))]
#[serde(try_from = "String", into = "String")]
pub struct SessionId(String);

/// Error for text that is not a valid ID.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "{text:?} is not a valid id or name: use at most {ID_BYTES_MAX} lower-case letters and digits, beginning with a letter"
)]
pub struct NotAnId {
    text: String,
}

impl SandboxId {
    /// Returns a new ID made from 16 random bytes: `s` and 25 letters or digits.
    pub fn from_random(bytes: [u8; 16]) -> Self {
        Self(spell('s', bytes))
    }

    /// Returns the ID as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl ExecId {
    /// Returns a new ID made from 16 random bytes: `e` and 25 letters or digits.
    pub fn from_random(bytes: [u8; 16]) -> Self {
        Self(spell('e', bytes))
    }

    /// Returns the ID as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl ContextId {
    /// Returns a new ID made from 16 random bytes: `c` and 25 letters or digits.
    pub fn from_random(bytes: [u8; 16]) -> Self {
        Self(spell('c', bytes))
    }

    /// Returns the ID as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl SessionId {
    /// Returns a new ID made from 16 random bytes: `t` and 25 letters or digits.
    pub fn from_random(bytes: [u8; 16]) -> Self {
        Self(spell('t', bytes))
    }

    /// Returns the ID as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SandboxId {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<Self, NotAnId> {
        check(text).map(Self)
    }
}

impl FromStr for ExecId {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<Self, NotAnId> {
        check(text).map(Self)
    }
}

impl FromStr for ContextId {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<Self, NotAnId> {
        check(text).map(Self)
    }
}

impl FromStr for SessionId {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<Self, NotAnId> {
        check(text).map(Self)
    }
}

impl TryFrom<String> for SandboxId {
    type Error = NotAnId;

    fn try_from(text: String) -> Result<Self, NotAnId> {
        text.parse()
    }
}

impl TryFrom<String> for ExecId {
    type Error = NotAnId;

    fn try_from(text: String) -> Result<Self, NotAnId> {
        text.parse()
    }
}

impl TryFrom<String> for SessionId {
    type Error = NotAnId;

    fn try_from(text: String) -> Result<Self, NotAnId> {
        text.parse()
    }
}

impl TryFrom<String> for ContextId {
    type Error = NotAnId;

    fn try_from(text: String) -> Result<Self, NotAnId> {
        text.parse()
    }
}

impl From<SandboxId> for String {
    fn from(id: SandboxId) -> Self {
        id.0
    }
}

impl From<ExecId> for String {
    fn from(id: ExecId) -> Self {
        id.0
    }
}

impl From<ContextId> for String {
    fn from(id: ContextId) -> Self {
        id.0
    }
}

impl From<SessionId> for String {
    fn from(id: SessionId) -> Self {
        id.0
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for ExecId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for ContextId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn check(text: &str) -> Result<String, NotAnId> {
    let letter_first = text.starts_with(|c: char| c.is_ascii_lowercase());
    let alphabet = text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    if letter_first && alphabet && text.len() <= ID_BYTES_MAX {
        Ok(text.to_owned())
    } else {
        // The text is untrusted and may be long, so it is truncated for the error message.
        Err(NotAnId { text: text.chars().take(2 * ID_BYTES_MAX).collect() })
    }
}

/// Encodes random bytes as an ID of the given kind. In base 36, 25 digits are enough for 128 bits.
fn spell(kind: char, bytes: [u8; 16]) -> String {
    let mut number = u128::from_be_bytes(bytes);
    let mut text = String::with_capacity(26);
    text.push(kind);
    for _ in 0..25 {
        let digit = u32::try_from(number % 36).unwrap_or(0);
        text.push(char::from_digit(digit, 36).unwrap_or('0'));
        number /= 36;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_host_names() {
        for good in ["a", "s0", "abc123", "s".repeat(40).as_str()] {
            assert!(good.parse::<SandboxId>().is_ok(), "{good}");
        }
        let long = "s".repeat(41);
        for bad in ["", "1a", "A", "a-b", "a_b", "../x", "a/b", "a\0b", "a b", "é", "a%2e", long.as_str()] {
            assert!(bad.parse::<SandboxId>().is_err(), "{bad:?}");
            assert!(bad.parse::<ExecId>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn random_ids_are_ids_and_differ() {
        let low = SandboxId::from_random([0; 16]);
        let high = SandboxId::from_random([255; 16]);
        assert!(low.as_str().parse::<SandboxId>().is_ok());
        assert!(high.as_str().parse::<SandboxId>().is_ok());
        assert_ne!(low, high);
    }
}
