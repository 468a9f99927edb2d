//! Fuzz target: credentials as clients send them.

use super::*;

#[test]
fn a_credential_that_parses_prints_back_identically() {
    bolero::check!().with_iterations(1000).for_each(|input: &[u8]| {
        let Ok(text) = std::str::from_utf8(input) else { return };
        if let Some(ticket) = Ticket::parse(text) {
            assert_eq!(ticket.reveal(), text);
            assert!(ApiKey::parse(text).is_none());
        }
        let Some(key) = ApiKey::parse(text) else { return };
        let shown = key.reveal();
        assert_eq!(ApiKey::parse(&shown).unwrap().reveal(), shown);
        assert!(text.ends_with(&shown[KEY_PREFIX.len()..]) && text.ends_with(&key.hint()));
        assert!([0, 4, 8].contains(&(text.len() - DIGITS)), "{text:?}");
        let digits = &shown[KEY_PREFIX.len()..];
        for form in [digits.to_owned(), format!("{E2B_PREFIX}{digits}"), format!("{E2B_PREFIX}{shown}")] {
            assert_eq!(ApiKey::parse(&form).unwrap().hash(), key.hash());
        }
        assert_ne!(key.hash(), KeyHash::of_no_key());
    });
}
