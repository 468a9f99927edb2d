//! Rules about Rust files.

use crate::tree::File;

/// Meaningless words, which names must not contain, because they do not describe content.
const EMPTY_WORDS: [&str; 7] = ["util", "utils", "helper", "helpers", "common", "misc", "manager"];
/// Meaningless names. Unlike [`EMPTY_WORDS`], these are allowed as a part of a longer name.
const EMPTY_NAMES: [&str; 1] = ["types"];
/// Suffixes that mark a second version of an existing name.
const EMPTY_ENDINGS: [&str; 2] = ["_inner", "_impl"];
/// Crates that may contain `unsafe`.
const UNSAFE_CRATES: [&str; 2] = ["crates/runtime/", "crates/guest/"];
/// Minimum number of words in a test's name. Two words are only a label, but three can be a sentence.
const WORDS_MIN: usize = 3;

/// Checks that a file begins with a module doc.
pub(crate) fn module_doc(file: &File) -> Vec<String> {
    match file.text.lines().next() {
        Some(line) if line.starts_with("//! ") && line.len() > 8 => Vec::new(),
        _ => vec!["the first line is not a module doc (`//! …`)".to_owned()],
    }
}

/// Checks that a file does not have more than `most` lines.
pub(crate) fn length(file: &File, most: usize) -> Vec<String> {
    let lines = file.text.lines().count();
    if lines > most {
        vec![format!("{lines} lines, the most is {most}: find the noun to split by")]
    } else {
        Vec::new()
    }
}

/// Checks that files, modules and functions have meaningful names.
pub(crate) fn names(file: &File) -> Vec<String> {
    let parts = file.path.trim_end_matches(".rs").split('/').filter(|part| is_empty_name(part));
    let mut broken: Vec<String> = parts.map(|part| format!("`{part}` in the path names nothing")).collect();
    for (number, line) in numbered(&code(&file.text)) {
        let words: Vec<&str> = line.split(|c: char| !is_word(c)).filter(|word| !word.is_empty()).collect();
        for pair in words.windows(2) {
            if let [kind @ ("mod" | "fn"), name] = pair
                && is_empty_name(name)
            {
                broken.push(format!("line {number}: `{kind} {name}` names nothing"));
            }
        }
    }
    broken
}

/// Checks that `unsafe` appears only in the crates that may contain it.
pub(crate) fn unsafe_place(file: &File) -> Vec<String> {
    if UNSAFE_CRATES.iter().any(|krate| file.path.starts_with(krate)) {
        return Vec::new();
    }
    let is_unsafe = |line: &str| line.split(|c: char| !is_word(c)).any(|word| word == "unsafe");
    numbered(&code(&file.text))
        .filter(|(_, line)| is_unsafe(line))
        .map(|(number, _)| format!("line {number}: `unsafe` outside runtime and guest"))
        .collect()
}

/// Checks that each test's name can be a sentence that describes the expected behaviour.
pub(crate) fn test_names(file: &File) -> Vec<String> {
    let code = code(&file.text);
    let mut broken = Vec::new();
    let mut is_test = false;
    for (number, line) in numbered(&code) {
        let line = line.trim();
        if line.starts_with("#[") {
            is_test |= line.starts_with("#[test]") || line.contains("::test]") || line.contains("::test(");
        } else if let Some((_, rest)) = line.split_once("fn ") {
            let name: String = rest.chars().take_while(|c| is_word(*c)).collect();
            if is_test && name.split('_').filter(|word| !word.is_empty()).count() < WORDS_MIN {
                broken.push(format!("line {number}: `{name}` is not a sentence"));
            }
            is_test = false;
        }
    }
    broken
}

/// Returns the names of all functions in a text.
pub(crate) fn functions(text: &str) -> Vec<&str> {
    let after = text.split("fn ").skip(1);
    after
        .filter_map(|rest| rest.split(|c: char| !is_word(c)).next())
        .filter(|name| !name.is_empty())
        .collect()
}

fn is_empty_name(name: &str) -> bool {
    let is_part = name.strip_prefix("part").is_some_and(|rest| rest.parse::<u32>().is_ok());
    is_part
        || EMPTY_NAMES.contains(&name)
        || EMPTY_ENDINGS.iter().any(|ending| name.ends_with(ending))
        || name.split('_').any(|word| EMPTY_WORDS.contains(&word))
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}

/// Returns the text with comments and literals replaced by spaces, so that a rule sees only code. The number
/// of lines stays the same.
pub(crate) fn code(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skipped = comment(rest).or_else(|| string(rest)).or_else(|| character(rest));
        let length = skipped.unwrap_or(first.len_utf8());
        let (taken, left) = rest.split_at(length);
        if skipped.is_some() {
            out.extend(taken.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        } else {
            out.push(first);
            // A quote inside a word does not begin a literal. Consume the whole word, so that a final `r` or
            // `b` is not mistaken for the prefix of a literal.
            if is_word(first) {
                let word = left.find(|c: char| !is_word(c)).unwrap_or(left.len());
                let (word, left) = left.split_at(word);
                out.push_str(word);
                rest = left;
                continue;
            }
        }
        rest = left;
    }
    out
}

/// Returns the length of the comment at the start of the text, or `None` if there is no comment.
fn comment(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    text.starts_with("/*").then(|| text.find("*/").map_or(text.len(), |end| end + 2))
}

/// Returns the length of the string literal, raw or not, at the start of the text, or `None` if there is
/// none.
fn string(text: &str) -> Option<usize> {
    let prefixes = ["br", "cr", "r"];
    for prefix in prefixes {
        let Some(rest) = text.strip_prefix(prefix) else { continue };
        let hashes = rest.chars().take_while(|c| *c == '#').count();
        if rest.get(hashes..)?.starts_with('"') {
            let open = prefix.len() + hashes + 1;
            let close = format!("\"{}", "#".repeat(hashes));
            return Some(text.get(open..)?.find(&close).map_or(text.len(), |end| open + end + close.len()));
        }
    }
    let open = ["\"", "b\"", "c\""].into_iter().find(|open| text.starts_with(open))?.len();
    let mut escaped = false;
    for (index, c) in text.char_indices().skip(open) {
        match c {
            '"' if !escaped => return Some(index + 1),
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    Some(text.len())
}

/// Returns the length of the character literal at the start of the text, or `None` if there is none. A
/// lifetime is not a literal.
fn character(text: &str) -> Option<usize> {
    let open = ["'", "b'"].into_iter().find(|open| text.starts_with(open))?.len();
    let rest = text.get(open..)?;
    let first = rest.chars().next()?;
    if first == '\\' {
        return rest.get(2..)?.find('\'').map(|end| open + 2 + end + 1);
    }
    rest.get(first.len_utf8()..)?.starts_with('\'').then_some(open + first.len_utf8() + 1)
}

#[test]
fn a_file_without_a_module_doc_is_caught() {
    assert_eq!(module_doc(&File::example("crates/a/src/b.rs", "//! Ids of things.\n")), Vec::<String>::new());
    for text in ["", "use std::io;\n//! Late.\n", "// Not a doc.\n", "//!\n"] {
        assert_eq!(module_doc(&File::example("crates/a/src/b.rs", text)).len(), 1, "{text:?}");
    }
}

#[test]
fn a_file_over_the_limit_is_caught() {
    assert_eq!(length(&File::example("a.rs", &"x\n".repeat(600)), 600), Vec::<String>::new());
    assert_eq!(length(&File::example("a.rs", &"x\n".repeat(601)), 600).len(), 1);
}

#[test]
fn names_that_mean_nothing_are_caught() {
    for path in [
        "crates/a/src/utils.rs",
        "crates/a/src/types.rs",
        "crates/common/src/lib.rs",
        "crates/a/src/part2.rs",
    ] {
        assert_eq!(names(&File::example(path, "")).len(), 1, "{path}");
    }
    for text in
        ["mod helpers;", "fn start_inner() {}", "pub mod exec_manager { }", "async fn run_impl(x: u8) {}"]
    {
        assert_eq!(names(&File::example("crates/a/src/b.rs", text)).len(), 1, "{text}");
    }
    let fine = "mod spool; fn partition() {} // mod utils\nlet common = \"fn x_inner\"; impl Fn for X {}";
    assert_eq!(names(&File::example("crates/a/src/mime_types.rs", fine)), Vec::<String>::new());
}

#[test]
fn unsafe_outside_its_crates_is_caught() {
    let text = "#![forbid(unsafe_code)]\n// unsafe\nlet s = \"unsafe {\";\nunsafe { x() }\n";
    assert_eq!(
        unsafe_place(&File::example("crates/node/src/a.rs", text)),
        ["line 4: `unsafe` outside runtime and guest"]
    );
    assert_eq!(unsafe_place(&File::example("crates/guest/src/a.rs", text)), Vec::<String>::new());
}

#[test]
fn a_test_with_a_label_for_a_name_is_caught() {
    let text = "#[test]\nfn works() {}\n#[tokio::test]\nasync fn test_stop() {}\n#[test]\nfn stop_is_idempotent() {}\nfn a() {}\n";
    assert_eq!(test_names(&File::example("a.rs", text)).len(), 2);
}

#[test]
fn comments_and_literals_are_not_code() {
    let text =
        "let a = r#\"x\"y\"#; let b = '\"'; let c: &'static str = \"q\\\"q\"; b'\\''; br\"z\" /* w */ d";
    let code = code(text);
    assert_eq!(code.len(), text.len());
    let words: Vec<&str> = code.split(|c: char| !is_word(c)).filter(|word| !word.is_empty()).collect();
    assert_eq!(words, ["let", "a", "let", "b", "let", "c", "static", "str", "d"]);
}
