//! Bash contexts: one shell that reads cells from its channel and keeps its directory, variables and
//! functions.

use std::collections::BTreeMap;

/// Main loop of the shell. A cell is sourced, so that its declarations are global, and an interrupt makes it
/// return at any point. The channel, descriptor 3, is closed for its child processes.
const LOOP: &str = r#"while IFS= read -r -d '' -u 3 __cell; do
  trap 'return 130' INT
  printf '{"begun":{}}\0' >&3
  eval "$__cell" 3>&-
  printf '{"done":{"code":%d}}\0' "$?" >&3
done"#;

/// Returns the command line of the shell.
pub fn argv() -> Vec<String> {
    ["bash", "--noprofile", "--norc", "-c", LOOP, "bash"].map(str::to_owned).to_vec()
}

/// Text that the shell sources. The cell itself is in a variable, because a process that passed it on would
/// become the shell's last job, `$!`.
const SOURCED: &str = r#"source /dev/fd/9 9<<<'eval "$__source"'"#;

/// Encodes a cell for the loop. The variables apply to this cell only.
pub fn cell(source: &str, env: &BTreeMap<String, String>) -> Vec<u8> {
    let variables: String = env.iter().map(|(name, value)| format!("{name}={} ", quoted(value))).collect();
    // NUL ends a record, and no shell variable can contain one.
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
