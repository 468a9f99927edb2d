//! The source text of a run, as the interpreter receives it.

use api::code::Language;
use serde_json::Value;

/// Returns the code to run. Empty code must not fail, so it becomes a statement that has no effect. In Python, a line that starts with `!`
/// is a shell command.
pub(super) fn source(language: Language, code: String) -> String {
    match (code.trim(), language) {
        ("", Language::Python) => "pass".into(),
        ("", Language::Bash) => ":".into(),
        ("", Language::Javascript | Language::Typescript) => ";".into(),
        (_, Language::Python) => shelled(&code),
        (_, Language::Bash | Language::Javascript | Language::Typescript) => code,
    }
}

/// Converts each line that begins with `!` into a shell call, as notebooks do. No valid line of Python begins
/// with `!`.
fn shelled(code: &str) -> String {
    let mut open: Option<&str> = None;
    let mut lines = Vec::new();
    for line in code.lines() {
        let command = line.trim_start().strip_prefix('!').filter(|_| open.is_none());
        match command {
            Some(command) => {
                let indent = line.len() - line.trim_start().len();
                let quoted = Value::from(command.trim()).to_string();
                lines.push(format!("{}__import__(\"os\").system({quoted})", " ".repeat(indent)));
            }
            None => lines.push(line.to_owned()),
        }
        // Lines inside a triple-quoted string are not code, so track where such strings begin and end.
        let mut rest = line;
        loop {
            let next = match open {
                Some(quotes) => rest.find(quotes).map(|at| (at, quotes)),
                None => {
                    ["\"\"\"", "'''"].iter().filter_map(|quotes| Some((rest.find(quotes)?, *quotes))).min()
                }
            };
            let Some((at, quotes)) = next else { break };
            open = if open.is_some() { None } else { Some(quotes) };
            rest = rest.get(at + quotes.len()..).unwrap_or_default();
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_code_runs_in_every_language_and_only_python_has_shell_lines() {
        let all = [Language::Python, Language::Bash, Language::Javascript, Language::Typescript];
        for (language, statement) in all.into_iter().zip(["pass", ":", ";", ";"]) {
            assert_eq!(source(language, " \n".into()), statement);
            let shelled = source(language, "!true".into()) != "!true";
            assert_eq!(shelled, language == Language::Python, "{language:?}");
        }
    }

    #[test]
    fn a_line_with_an_exclamation_mark_is_for_a_shell() {
        let code = "x = 1\nif x:\n  !pip install 'a' \"b\"\ns = \"\"\"\n!no\n\"\"\"\n!ls";
        let shelled = shelled(code);
        let lines: Vec<_> = shelled.lines().collect();
        assert_eq!(lines[2], r#"  __import__("os").system("pip install 'a' \"b\"")"#);
        assert_eq!((lines[4], lines[6]), ("!no", r#"__import__("os").system("ls")"#));
        assert_eq!(super::shelled("print('''a''') # !x"), "print('''a''') # !x");
    }
}
