//! Bash contexts: a shell that reads cells from its channel, and keeps its working directory, variables and
//! functions from cell to cell.

use std::collections::BTreeMap;

/// Main loop of the shell. Each cell is sourced, so that its declarations are global and an interrupt can
/// make it return at any point. Descriptor 3 is the channel, which is closed while a cell runs, so that child
/// processes do not inherit it.
const LOOP: &str = r#"while IFS= read -r -d '' -u 3 __cell; do
  trap 'return 130' INT
  printf '{"begun":{}}\0' >&3
  eval "$__cell" 3>&-
  printf '{"done":{"code":%d}}\0' "$?" >&3
done"#;

/// Returns the command line that starts the shell.
pub fn argv() -> Vec<String> {
    ["bash", "--noprofile", "--norc", "-c", LOOP, "bash"].map(str::to_owned).to_vec()
}

/// Command that sources the cell. The cell's text is in a variable, because a process that fed the text to
/// the shell would become its last background job (`$!`).
const SOURCED: &str = r#"source /dev/fd/9 9<<<'eval "$__source"'"#;

/// Encodes a cell for the main loop. The environment variables apply to this cell only.
pub fn cell(source: &str, env: &BTreeMap<String, String>) -> Vec<u8> {
    let variables: String = env.iter().map(|(name, value)| format!("{name}={} ", quoted(value))).collect();
    // Remove NUL bytes: they end a record, and a shell variable cannot contain one.
    let source = source.replace('\0', "");
    let mut bytes = format!("__source={}\n{variables}{SOURCED}", quoted(&source)).into_bytes();
    bytes.push(0);
    bytes
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_cell_holds_is_quoted() {
        let env = BTreeMap::from([("A".to_owned(), "it's".to_owned())]);
        let bytes = cell("echo 'x'", &env);
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(text, format!("__source='echo '\\''x'\\'''\nA='it'\\''s' {SOURCED}\0"));
    }
}
