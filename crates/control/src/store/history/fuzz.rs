//! Fuzz target: cursors of pages.

use super::*;

#[test]
fn a_cursor_that_parses_prints_back_identically() {
    bolero::check!().with_iterations(1000).for_each(|input: &[u8]| {
        let Ok(text) = std::str::from_utf8(input) else { return };
        let Ok(cursor) = Cursor::parse(text) else { return };
        assert_eq!(cursor.spell(), text);
        assert!(integer(cursor.created_at_ms) >= 0);
    });
}
