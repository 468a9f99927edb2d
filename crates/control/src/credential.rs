//! Secrets that are stored only as hashes: API keys and single-use tickets.
//!
//! Each secret consists of a prefix, which secret scanners recognize, and 256 random bits in lower-case
//! hexadecimal. With that much entropy, a slow hash would be no safer than SHA-256. The prefix is not hashed.
//! Therefore `bgk_KEY`, `e2b_KEY` (which E2B's SDKs require) and `KEY` (which earlier releases created) are
//! forms of the same key.

use node::machine::random;
use sha2::{Digest, Sha256};

use crate::audit::hex;

/// Prefix of an API key.
pub const KEY_PREFIX: &str = "bgk_";
/// Prefix of an API key for E2B's SDKs, which check the form of keys.
pub const E2B_PREFIX: &str = "e2b_";
/// Prefix of a ticket.
pub const TICKET_PREFIX: &str = "bgt_";
/// Number of hexadecimal digits that encode 32 bytes.
const DIGITS: usize = 64;

/// A well-formed API key.
pub struct ApiKey(Digits);

/// A ticket, which permits one operation once.
pub struct Ticket(Digits);

/// The hash under which a key is stored, and the only value by which keys are looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyHash(pub [u8; 32]);

/// The hash under which a ticket is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TicketHash([u8; 32]);

/// 64 lower-case hexadecimal digits.
struct Digits(String);

impl ApiKey {
    /// Creates a random key.
    ///
    /// # Errors
    /// Returns an error if the kernel's random number generator is unavailable.
    pub fn fresh() -> Result<Self, node::Error> {
        Ok(Self(Digits::fresh()?))
    }

    /// Parses a key in any of its forms.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix(E2B_PREFIX).unwrap_or(text);
        Digits::parse(text.strip_prefix(KEY_PREFIX).unwrap_or(text)).map(Self)
    }

    /// Returns the hash under which the key is stored.
    pub fn hash(&self) -> KeyHash {
        KeyHash(self.0.hash())
    }

    /// Returns the text of the key, which is shown to its owner only once.
    pub fn reveal(&self) -> String {
        format!("{KEY_PREFIX}{}", self.0.0)
    }

    /// Returns the last four digits, which help users tell keys apart.
    pub fn hint(&self) -> String {
        self.0.0.chars().skip(DIGITS - 4).collect()
    }
}

impl KeyHash {
    /// Returns a hash that matches no key. The server looks it up for malformed keys, so that they take as
    /// much work as unknown keys.
    pub fn of_no_key() -> Self {
        Self(Sha256::digest("").into())
    }
}

impl Ticket {
    /// Creates a random ticket.
    ///
    /// # Errors
    /// Returns an error if the kernel's random number generator is unavailable.
    pub fn fresh() -> Result<Self, node::Error> {
        Ok(Self(Digits::fresh()?))
    }

    /// Parses a ticket.
    pub fn parse(text: &str) -> Option<Self> {
        Digits::parse(text.strip_prefix(TICKET_PREFIX)?).map(Self)
    }

    /// Returns the hash under which the ticket is stored.
    pub fn hash(&self) -> TicketHash {
        TicketHash(self.0.hash())
    }

    /// Returns the text of the ticket, which is handed out only once.
    pub fn reveal(&self) -> String {
        format!("{TICKET_PREFIX}{}", self.0.0)
    }
}

impl Digits {
    fn fresh() -> Result<Self, node::Error> {
        Ok(Self(hex(&random::<32>()?)))
    }

    fn parse(text: &str) -> Option<Self> {
        let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        (text.len() == DIGITS && text.bytes().all(is_digit)).then(|| Self(text.to_owned()))
    }

    fn hash(&self) -> [u8; 32] {
        Sha256::digest(&self.0).into()
    }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_key_is_the_same_key_and_nothing_else_is_one() {
        let key = ApiKey::fresh().unwrap();
        let shown = key.reveal();
        let digits = shown.strip_prefix(KEY_PREFIX).unwrap();
        for form in [shown.clone(), digits.to_owned(), format!("e2b_{digits}"), format!("e2b_{shown}")] {
            assert!(ApiKey::parse(&form).is_some_and(|parsed| parsed.hash() == key.hash()), "{form}");
        }
        let upper = digits.to_uppercase();
        let ticket = format!("{TICKET_PREFIX}{digits}");
        for wrong in ["", "bgk_", &digits[1..], &format!("{digits}0"), &upper, &ticket, "of project default"]
        {
            assert!(ApiKey::parse(wrong).is_none() || wrong == digits, "{wrong}");
        }
        assert_eq!(key.hint(), digits[60..]);
    }

    #[test]
    fn a_ticket_is_no_key_and_a_key_no_ticket() {
        let (ticket, key) = (Ticket::fresh().unwrap(), ApiKey::fresh().unwrap());
        assert!(ApiKey::parse(&ticket.reveal()).is_none());
        assert!(Ticket::parse(&key.reveal()).is_none());
        assert!(Ticket::parse(&ticket.reveal()).is_some_and(|parsed| parsed.hash() == ticket.hash()));
        assert!(Ticket::parse("").is_none());
    }
}
