//! Secrets that are kept as hashes only: API keys, and tickets that are used once.
//!
//! Each is 256 random bits in lower-case hexadecimal behind a prefix by which secret scanners find it. With that much entropy a
//! slow hash would protect nothing more than SHA-256. The prefix is no part of what is hashed: `bgk_KEY`, `e2b_KEY` (the form
//! that E2B's SDKs insist on) and the bare digits of earlier releases name the same key.

use node::machine::random;
use sha2::{Digest, Sha256};

use crate::audit::hex;

/// Before an API key.
pub const KEY_PREFIX: &str = "bgk_";
/// Before an API key, where E2B's SDKs check its form.
pub const E2B_PREFIX: &str = "e2b_";
/// Before a ticket.
pub const TICKET_PREFIX: &str = "bgt_";
/// 32 bytes in hexadecimal.
const DIGITS: usize = 64;

/// An API key as a request shows it. Anything else in its place was refused.
pub struct ApiKey(Digits);

/// A ticket: whoever shows it may do one thing, once.
pub struct Ticket(Digits);

/// The hash under which a key is stored, and the only thing that is looked up for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyHash(pub [u8; 32]);

/// The hash under which a ticket is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TicketHash([u8; 32]);

/// 64 lower-case hexadecimal digits.
struct Digits(String);

impl ApiKey {
    /// A fresh key.
    ///
    /// # Errors
    /// The kernel has no random bytes.
    pub fn fresh() -> Result<Self, node::Error> {
        Ok(Self(Digits::fresh()?))
    }

    /// The key that a text is, in any of its forms.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix(E2B_PREFIX).unwrap_or(text);
        Digits::parse(text.strip_prefix(KEY_PREFIX).unwrap_or(text)).map(Self)
    }

    /// What is stored of it.
    pub fn hash(&self) -> KeyHash {
        KeyHash(self.0.hash())
    }

    /// The key as its owner is shown it, once.
    pub fn reveal(&self) -> String {
        format!("{KEY_PREFIX}{}", self.0.0)
    }

    /// Its last four digits, by which people tell keys apart.
    pub fn hint(&self) -> String {
        self.0.0.chars().skip(DIGITS - 4).collect()
    }
}

impl KeyHash {
    /// A hash that no key has, to look up where a text is no key: that costs as much as a key that is not known.
    pub fn of_no_key() -> Self {
        Self(Sha256::digest("").into())
    }
}

impl Ticket {
    /// A fresh ticket.
    ///
    /// # Errors
    /// The kernel has no random bytes.
    pub fn fresh() -> Result<Self, node::Error> {
        Ok(Self(Digits::fresh()?))
    }

    /// The ticket that a text is.
    pub fn parse(text: &str) -> Option<Self> {
        Digits::parse(text.strip_prefix(TICKET_PREFIX)?).map(Self)
    }

    /// What is remembered of it.
    pub fn hash(&self) -> TicketHash {
        TicketHash(self.0.hash())
    }

    /// The ticket as it is handed out, once.
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
