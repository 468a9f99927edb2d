//! Tables and lines for people. What comes from a sandbox or a file name is escaped before a terminal sees it.

use std::fmt::Write as _;
use std::io::Write as _;

/// Says something about the work, on standard error.
pub fn note(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "belljar: {}", escape(text));
}

/// Says why something failed and what to do, on standard error.
pub fn error(error: &api::Error) {
    let mut text = format!("belljar: {}\n", escape(&error.message));
    let _ = writeln!(text, "  fix:   {}", escape(&error.fix));
    let word = |value: serde_json::Result<String>| value.unwrap_or_default().trim_matches('"').to_owned();
    let _ = writeln!(
        text,
        "  code:  {} (layer: {}, ran: {}, retry: {})",
        word(serde_json::to_string(&error.code)),
        word(serde_json::to_string(&error.layer)),
        word(serde_json::to_string(&error.ran)),
        word(serde_json::to_string(&error.retry)),
    );
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// Writes a line to standard output.
pub fn line(text: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}

/// Writes a value as one line of JSON to standard output.
pub fn json(value: &impl serde::Serialize) -> Result<(), api::Error> {
    line(&serde_json::to_string(value).map_err(|error| crate::platform(error.to_string()))?);
    Ok(())
}

/// Writes a table to standard output.
pub fn table(head: &[&str], rows: &[Vec<String>]) {
    let _ = std::io::stdout().lock().write_all(table_text(head, rows).as_bytes());
}

/// A table: a head, rows, columns as wide as their widest cell.
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

/// Makes control characters and text direction visible instead of effective.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if (c.is_control() && c != '\n') || turns {
            escaped.extend(c.escape_unicode());
        } else {
            escaped.push(c);
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    /// O-08: what a sandbox wrote cannot act on the terminal.
    #[test]
    fn escape_sequences_are_shown_not_obeyed() {
        assert_eq!(escape("a\u{1b}[2Jb"), "a\\u{1b}[2Jb");
        assert_eq!(escape("x\u{202e}y"), "x\\u{202e}y");
        assert_eq!(escape("plain é\n"), "plain é\n");
    }
}
