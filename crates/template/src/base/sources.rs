//! Finds the package sources that this machine's own apt uses for a release, so that a mirror configured for
//! the machine also serves templates.

use std::fs;
use std::path::Path;

/// Suffixes of the suites of a release: the release itself, its updates between point releases, and its
/// security fixes.
const PARTS: [&str; 3] = ["", "-updates", "-security"];
/// Maximum size of a sources file in bytes. People write these files by hand, so a larger file is not a
/// sources file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Returns the `deb` lines for this release, or none if this machine has no source for the release itself.
pub(super) fn of_this_machine(suite: &str) -> Vec<String> {
    let mut files = vec![Path::new("/etc/apt/sources.list").to_owned()];
    if let Ok(entries) = fs::read_dir("/etc/apt/sources.list.d") {
        let mut more: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        more.sort();
        files.extend(more);
    }
    let mut lines = Vec::new();
    for file in files {
        let small =
            fs::metadata(&file).is_ok_and(|status| status.is_file() && status.len() <= FILE_BYTES_MAX);
        let text = if small { fs::read_to_string(&file).unwrap_or_default() } else { String::new() };
        let found = match file.extension().and_then(|extension| extension.to_str()) {
            Some("list") => one_line(&text, suite),
            Some("sources") => paragraphs(&text, suite),
            _ => Vec::new(),
        };
        lines.extend(found);
    }
    choose(lines, suite)
}

/// Returns the lines, or none if no line provides the release itself. Updates and security fixes are of no
/// use without the release.
fn choose(mut lines: Vec<(String, String)>, suite: &str) -> Vec<String> {
    if !lines.iter().any(|(of, _)| of == suite) {
        return Vec::new();
    }
    lines.dedup();
    lines.into_iter().map(|(_, line)| line).collect()
}

fn belongs(named: &str, suite: &str) -> bool {
    PARTS.iter().any(|part| named.strip_suffix(part).is_some_and(|rest| rest == suite))
}

/// Parses sources in the form `deb [options] URI suite components`, and returns each line with its suite.
fn one_line(text: &str, suite: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let Some(rest) = line.strip_prefix("deb ").map(str::trim) else { continue };
        let (options, rest) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((options, rest)) => (format!("[{}] ", options.trim()), rest),
            None => (String::new(), rest),
        };
        let words: Vec<&str> = rest.split_whitespace().collect();
        if let [uri, named, components @ ..] = words.as_slice()
            && belongs(named, suite)
            && components.contains(&"main")
        {
            found.push(((*named).to_owned(), format!("deb {options}{uri} {named} main")));
        }
    }
    found
}

/// Parses sources in the deb822 format (paragraphs of fields), and returns each source as a line with its
/// suite.
fn paragraphs(text: &str, suite: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let bare: String =
        text.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect();
    for paragraph in bare.split("\n\n") {
        let field = |name: &str| {
            let mut lines = paragraph.lines().skip_while(move |line| {
                let named = line.split_once(':').map(|(named, _)| named);
                !named.is_some_and(|named| named.eq_ignore_ascii_case(name))
            });
            let first = lines.next().and_then(|line| line.split_once(':')).map(|(_, value)| value.trim());
            let more = lines.take_while(|line| line.starts_with([' ', '\t'])).map(str::trim);
            first.map(|first| std::iter::once(first).chain(more).collect::<Vec<_>>().join(" "))
        };
        let words = |name: &str| -> Vec<String> {
            field(name).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
        };
        let off = field("Enabled").is_some_and(|value| value.eq_ignore_ascii_case("no"));
        let has = |name: &str, word: &str| words(name).iter().any(|found| found == word);
        if off || !has("Types", "deb") || !has("Components", "main") {
            continue;
        }
        // A key that is embedded in the paragraph cannot be expressed in a line. apt then uses its default
        // keys.
        let key = field("Signed-By").filter(|key| key.starts_with('/') && !key.contains(' '));
        let options = key.map_or_else(String::new, |key| format!("[signed-by={key}] "));
        for named in words("Suites").into_iter().filter(|named| belongs(named, suite)) {
            for uri in words("URIs") {
                found.push((named.clone(), format!("deb {options}{uri} {named} main")));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_release_are_found_and_no_others() {
        let text = "# deb http://no/debian bookworm main\n\
                    deb http://a/debian bookworm main contrib # here\n\
                    deb [ signed-by=/k.gpg arch=amd64 ] http://a/security bookworm-security main\n\
                    deb http://a/debian bookworm-backports main\n\
                    deb-src http://a/debian bookworm main\n\
                    deb http://packages/x cloud-bookworm main\n\
                    deb http://a/debian bookworm-updates contrib\n";
        assert_eq!(
            choose(one_line(text, "bookworm"), "bookworm"),
            [
                "deb http://a/debian bookworm main",
                "deb [signed-by=/k.gpg arch=amd64] http://a/security bookworm-security main"
            ]
        );
        assert_eq!(choose(one_line(text, "trixie"), "trixie"), Vec::<String>::new());
    }

    #[test]
    fn paragraphs_of_the_release_are_found_and_no_others() {
        let text = "Types: deb\n# a comment\nURIs: http://a/debian\nSuites: bookworm bookworm-updates\n\
                    Components: main\nSigned-By: /k.gpg\n\n\
                    Types: deb\nURIs: http://b/debian\nSuites: bookworm\nComponents: main\nEnabled: no\n\n\
                    Types: deb\nURIs: http://c/debian\nSuites: bookworm-backports\nComponents: main\n\n\
                    Types: deb\nURIs: http://d/debian\nSuites:\n bookworm-security\nComponents: main\nSigned-By:\n -----BEGIN\n";
        assert_eq!(
            choose(paragraphs(text, "bookworm"), "bookworm"),
            [
                "deb [signed-by=/k.gpg] http://a/debian bookworm main",
                "deb [signed-by=/k.gpg] http://a/debian bookworm-updates main",
                "deb http://d/debian bookworm-security main"
            ]
        );
    }
}
