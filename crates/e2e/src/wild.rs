//! Hostile output: bytes that are not valid text, and text with control characters.

/// The end of `bytes`: the first bytes of a character.
pub const TRUNCATED: [u8; 3] = *b"\xf0\x9f\x98";

/// Returns bytes that are not valid text: every byte value, NULs, truncated characters, forbidden encodings
/// and unpaired surrogates. Valid text separates these sequences, so that a test can see whether a truncated
/// character affects the text around it.
pub fn bytes() -> Vec<u8> {
    let mut wild: Vec<u8> = (0..=255).collect();
    // An overlong encoding, a surrogate, a code point beyond the last, invalid start bytes, only continuation
    // bytes, and a truncated character; then NULs and valid text.
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
    // Combine every part with every part.
    for first in parts {
        for second in parts {
            wild.extend_from_slice(first);
            wild.extend_from_slice(second);
        }
    }
    wild.extend(tail().bytes());
    wild.extend_from_slice(&TRUNCATED);
    wild
}

/// Returns the valid text near the end of `bytes`. Only `TRUNCATED` follows it.
pub fn tail() -> String {
    "☕é😀".repeat(1000)
}

/// Text that affects a terminal, a human reader or a table. The text clears the screen, sets the title and
/// the clipboard, requests responses from the terminal, reverses and hides the text that follows, returns to
/// the start of the line, and begins a new line.
pub const TEXT: &str = "\u{1b}[2J\u{1b}]0;title\u{7}\u{1b}]52;c;Ym9v\u{7}\u{1b}P+q544e\u{1b}\\\u{1b}[6n\u{9b}31m\u{8}\u{7f}\rover\
    \u{202e}turned\u{2066}\u{61c}\u{200b}\u{e0041}\u{2028}\nforged  row";

/// Returns true if a terminal, a reader or a table acts on a character, instead of displaying it. This
/// includes line breaks.
pub fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}
