//! The parts of an output stream that are kept for an answer: its beginning, its end and its length.

use std::collections::VecDeque;

/// Maximum size of one stream in an answer, in bytes (requirement A3.02).
pub const TEXT_BYTES_MAX: usize = 10_240;
/// Maximum size of a UTF-8 character. A character is omitted if truncation would split it.
const CHARACTER_BYTES_MAX: usize = 4;
const KEPT: usize = TEXT_BYTES_MAX + CHARACTER_BYTES_MAX;

/// Beginning and end of a stream.
#[derive(Clone, Debug, Default)]
pub struct Capture {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
}

impl Capture {
    /// Adds the next bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let room = KEPT - self.head.len();
        self.head.extend(bytes.iter().take(room));
        let last = bytes.len().saturating_sub(KEPT);
        self.tail.extend(bytes.iter().skip(last));
        let over = self.tail.len().saturating_sub(KEPT);
        self.tail.drain(..over);
    }

    /// Counts bytes that were written but not kept.
    pub fn skip(&mut self, bytes: u64) {
        self.total += bytes;
    }

    /// Returns the length of the stream in bytes.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns the beginning of the stream as at most [`TEXT_BYTES_MAX`] bytes of text, and true if the
    /// stream was truncated.
    pub fn beginning(&self) -> (String, bool) {
        let is_all = self.total <= TEXT_BYTES_MAX as u64;
        let bytes = if is_all { self.head.as_slice() } else { whole_end(&self.head) };
        let text = String::from_utf8_lossy(bytes);
        let cut = floor(&text, TEXT_BYTES_MAX);
        (text.get(..cut).unwrap_or_default().to_owned(), !is_all || cut < text.len())
    }

    /// Returns the end of the stream as text, and true if the stream was truncated. `line`, if given, becomes
    /// the last line. The text has at most [`TEXT_BYTES_MAX`] bytes, including this line.
    pub fn ending(&self, line: Option<&str>) -> (String, bool) {
        let is_all = self.total <= TEXT_BYTES_MAX as u64;
        let (front, back) = self.tail.as_slices();
        let bytes = [front, back].concat();
        let bytes = if is_all { bytes.as_slice() } else { whole_beginning(&bytes) };
        let mut text = String::from_utf8_lossy(bytes).into_owned();
        if let Some(line) = line {
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            text.push_str(line);
            text.push('\n');
        }
        let over = text.len().saturating_sub(TEXT_BYTES_MAX);
        let cut = (over..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(over);
        (text.split_off(cut), !is_all || cut > 0)
    }
}

/// Truncates bytes to the maximum size, and removes an incomplete character from the end.
fn whole_end(bytes: &[u8]) -> &[u8] {
    let bytes = bytes.get(..TEXT_BYTES_MAX.min(bytes.len())).unwrap_or(bytes);
    match bytes.utf8_chunks().last() {
        // Only an incomplete character is removed. Other invalid bytes remain, and appear as replacement
        // characters.
        Some(chunk) if is_begun(chunk.invalid()) => {
            bytes.get(..bytes.len() - chunk.invalid().len()).unwrap_or(bytes)
        }
        Some(_) | None => bytes,
    }
}

/// Returns true if these bytes are the beginning of an incomplete character.
fn is_begun(bytes: &[u8]) -> bool {
    !bytes.is_empty() && std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

/// Keeps the last bytes up to the maximum size, and removes an incomplete character from their beginning.
fn whole_beginning(bytes: &[u8]) -> &[u8] {
    let from = bytes.len().saturating_sub(TEXT_BYTES_MAX);
    let rest = bytes.get(from..).unwrap_or(bytes);
    let parts = rest.iter().take(CHARACTER_BYTES_MAX - 1).take_while(|byte| **byte & 0xc0 == 0x80).count();
    rest.get(parts..).unwrap_or(rest)
}

/// Returns the last character boundary at or before this offset.
fn floor(text: &str, at: usize) -> usize {
    let at = at.min(text.len());
    (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(bytes: &[u8], pieces: usize) -> Capture {
        let mut capture = Capture::default();
        for piece in bytes.chunks(pieces) {
            capture.push(piece);
        }
        capture
    }

    #[test]
    fn what_fits_is_all_of_it() {
        // Covers requirement A3.02.
        let text = "é".repeat(TEXT_BYTES_MAX / 2);
        let capture = of(text.as_bytes(), 7);
        assert_eq!(capture.beginning(), (text.clone(), false));
        assert_eq!(capture.ending(None), (text, false));
    }

    #[test]
    fn what_does_not_fit_is_cut_between_characters_and_said_so() {
        // Requirement A3.02: standard output keeps its beginning, and standard error keeps its end.
        let text = "☕".repeat(TEXT_BYTES_MAX);
        let capture = of(text.as_bytes(), 100);
        let (beginning, cut) = capture.beginning();
        assert!(cut && beginning.chars().all(|c| c == '☕') && beginning.len() > TEXT_BYTES_MAX - 3);
        let (ending, cut) = capture.ending(Some("over"));
        assert!(cut && ending.ends_with("☕\nover\n") && ending.len() <= TEXT_BYTES_MAX);
        assert!(ending.starts_with('☕') && ending.len() > TEXT_BYTES_MAX - 3, "{}", ending.len());
    }

    #[test]
    fn bytes_that_are_no_text_are_replaced() {
        // Covers requirement A3.01.
        let capture = of(b"a\xffb", 1);
        assert_eq!(capture.beginning(), ("a\u{fffd}b".to_owned(), false));
        let (text, cut) = of(&[0xff; TEXT_BYTES_MAX], 999).beginning();
        assert!(cut && text.len() <= TEXT_BYTES_MAX, "each byte has become three");
    }

    #[test]
    fn a_line_of_ours_stands_on_a_line_of_its_own() {
        assert_eq!(of(b"a", 1).ending(Some("over")).0, "a\nover\n");
        assert_eq!(of(b"a\n", 1).ending(Some("over")).0, "a\nover\n");
        assert_eq!(of(b"", 1).ending(Some("over")).0, "over\n");
    }

    proptest! {
        #[test]
        fn an_answer_is_never_longer_than_it_may_be(
            bytes in prop::collection::vec(any::<u8>(), 0..30_000), pieces in 1_usize..5000,
        ) {
            let capture = of(&bytes, pieces);
            prop_assert_eq!(capture.total(), bytes.len() as u64);
            prop_assert!(capture.beginning().0.len() <= TEXT_BYTES_MAX);
            prop_assert!(capture.ending(Some("over")).0.len() <= TEXT_BYTES_MAX);
        }
    }
}
