//! What no reader of output expects: bytes that are no text, and text that acts on whoever shows it.

/// Bytes that are no text: every byte, NULs, characters cut in two, forbidden encodings, halves of pairs; and text between them,
/// in which a character that is cut shows.
pub fn bytes() -> Vec<u8> {
    let mut wild: Vec<u8> = (0..=255).collect();
    // Overlong, a surrogate, beyond the last character, a byte that never begins one, a continuation alone, a cut character.
    let parts: [&[u8]; 8] = [
        b"\xc0\x80",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xff\xfe",
        b"\x80\xbf",
        b"\xe2\x98",
        b"\0\0\0\0",
        "\u{feff}☕é😀שלום".as_bytes(),
    ];
    // Every part after every other.
    for first in parts {
        for second in parts {
            wild.extend_from_slice(first);
            wild.extend_from_slice(second);
        }
    }
    wild.extend("☕é😀".repeat(1000).bytes());
    // Ends in the middle of a character.
    wild.extend_from_slice(b"\xf0\x9f\x98");
    wild
}

/// Text that acts on a terminal, on who reads it, or on a table: it clears the screen, sets the title and the clipboard, asks for an
/// answer, turns and hides what follows, goes back to the beginning of the line, and begins a new one.
pub const TEXT: &str = "\u{1b}[2J\u{1b}]0;title\u{7}\u{1b}]52;c;Ym9v\u{7}\u{1b}P+q544e\u{1b}\\\u{1b}[6n\u{9b}31m\u{8}\u{7f}\rover\
    \u{202e}turned\u{2066}\u{61c}\u{200b}\u{e0041}\u{2028}\nforged  row";

/// Whether a terminal, a reader or a table does something with a character instead of showing it; ends of lines too.
pub fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}
