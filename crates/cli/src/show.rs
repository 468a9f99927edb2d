//! Tables, notes and errors for people, and JSON for programs. Text from a sandbox, a server or a file name
//! is always escaped, so that it can neither control the terminal nor start a new line.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use api::Error;

/// Result of writing to standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The text was written.
    Yes,
    /// The reader has closed its end of the pipe. This is not an error.
    No,
}

/// Prints a note on standard error.
pub fn note(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "bellglass: {}", escape(text));
}

/// Prints an error and its fix on standard error.
pub fn error(error: &Error) {
    let _ = std::io::stderr().lock().write_all(error_text(error).as_bytes());
}

fn error_text(error: &Error) -> String {
    let mut text = format!("bellglass: {}\n", lines(&error.message));
    let _ = writeln!(text, "  fix:   {}", lines(&error.fix));
    let word = |value: serde_json::Result<String>| value.unwrap_or_default().trim_matches('"').to_owned();
    let _ = writeln!(
        text,
        "  code:  {} (layer: {}, ran: {}, retry: {})",
        word(serde_json::to_string(&error.code)),
        word(serde_json::to_string(&error.layer)),
        word(serde_json::to_string(&error.ran)),
        word(serde_json::to_string(&error.retry)),
    );
    text
}

/// Classifies the result of a write to standard output. A broken pipe means that the reader has closed its
/// end. Any other error is a failure.
pub fn heard(written: io::Result<()>) -> Result<Heard, Error> {
    match written {
        Ok(()) => Ok(Heard::Yes),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Heard::No),
        Err(error) => Err(Error::invalid(
            format!("cannot write to standard output: {error}"),
            "Free disk space, or redirect the output. The output written so far is incomplete.",
        )),
    }
}

/// Writes bytes to standard output.
pub fn bytes(bytes: &[u8]) -> Result<(), Error> {
    let mut to = io::stdout().lock();
    heard(to.write_all(bytes).and_then(|()| to.flush())).map(drop)
}

/// Writes text to standard output without buffering. The result states whether standard output still has a
/// reader.
pub fn text(text: &str) -> Result<Heard, Error> {
    let mut to = io::stdout().lock();
    heard(to.write_all(text.as_bytes()).and_then(|()| to.flush()))
}

/// Writes a line to standard output.
pub fn line(line: &str) -> Result<(), Error> {
    text(&format!("{line}\n")).map(drop)
}

/// Writes a value as one line of JSON to standard output.
pub fn json(value: &impl serde::Serialize) -> Result<(), Error> {
    line(&json_text(value)?)
}

/// Writes a JSON value as one line to standard output.
pub fn value(value: &serde_json::Value) -> Result<(), Error> {
    line(&in_numbers(&value.to_string()))
}

/// Returns a value as one line of JSON.
pub fn json_text(value: &impl serde::Serialize) -> Result<String, Error> {
    let text = serde_json::to_string(value).map_err(|error| crate::platform(error.to_string()))?;
    Ok(in_numbers(&text))
}

/// Writes a table to standard output.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> Result<(), Error> {
    text(&table_text(head, rows)).map(drop)
}

/// Formats a table with a header row. Each column is as wide as its widest cell.
pub fn table_text(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.chars().count()).collect();
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| escape(cell)).collect()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let head: Vec<String> = head.iter().map(|cell| cell.to_uppercase()).collect();
    for row in std::iter::once(&head).chain(&rows) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Escapes text so that it stays on one line. Control characters, line breaks, text direction marks and
/// invisible characters are replaced by visible escape sequences.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        let acts = acts(c) && !api::defence::is_off("P-10");
        if acts { escaped.extend(c.escape_default()) } else { escaped.push(c) }
    }
    escaped
}

/// Escapes text that may have several lines. Each line after the first is marked, so that it cannot imitate a
/// line of the error format.
fn lines(text: &str) -> String {
    text.trim_end().lines().map(escape).collect::<Vec<_>>().join("\n  |      ")
}

/// Returns equivalent JSON with numeric escapes for the characters that `acts` detects. Such characters occur
/// only in strings, where both forms have the same meaning.
fn in_numbers(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if acts(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(text, "\\u{unit:04x}");
            }
        } else {
            text.push(c);
        }
    }
    text
}

/// Returns true if a character can affect a terminal or mislead a reader.
fn acts(c: char) -> bool {
    let turns =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let parts = matches!(c, '\u{2028}' | '\u{2029}');
    // Zero-width characters can make different names look identical, and can hide text for an LLM.
    let hides =
        matches!(c, '\u{ad}' | '\u{200b}' | '\u{2060}'..='\u{2064}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}');
    c.is_control() || turns || parts || hides
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Verifies that attack O-08 fails: output of a sandbox cannot control the terminal.
    #[test]
    fn escape_sequences_are_shown_not_obeyed() {
        assert_eq!(escape("a\u{1b}[2Jb"), "a\\u{1b}[2Jb");
        assert_eq!(escape("x\u{202e}y"), "x\\u{202e}y");
        assert_eq!(escape("\u{9b}31m\u{61c}\u{e0041}"), "\\u{9b}31m\\u{61c}\\u{e0041}");
        assert_eq!(escape("plain é ☕ שלום"), "plain é ☕ שלום");
    }

    /// Verifies that attack O-08 fails: a sandbox's output cannot imitate a new line of a table or an error.
    #[test]
    fn a_cell_is_one_line_and_an_error_shows_which_lines_are_its_own() {
        let table = table_text(&["name"], &[vec!["one\nforged\r\u{2028}".into()]]);
        assert_eq!(table, "NAME\none\\nforged\\r\\u{2028}\n");
        let error = api::Error::invalid("first\n  fix:   forged", "Do this.\n");
        assert!(
            error_text(&error).starts_with("bellglass: first\n  |        fix:   forged\n  fix:   Do this.\n")
        );
    }

    #[test]
    fn an_output_is_lost_quietly_only_to_a_reader_who_left() {
        assert_eq!(heard(Err(io::ErrorKind::BrokenPipe.into())).unwrap(), Heard::No);
        assert!(heard(Err(io::ErrorKind::StorageFull.into())).is_err());
    }

    #[test]
    fn json_stays_the_same_value() {
        let value = serde_json::json!({ "a\u{9b}": "x\u{7f}\u{202e}\u{e0041}\"☕\n" });
        let text = in_numbers(&value.to_string());
        assert!(!text.chars().any(acts), "{text:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
