//! Rules about manifests: dependencies between crates, as specified by the table in `docs/architecture.md`,
//! descriptions and lints.

use std::collections::{BTreeMap, BTreeSet};

use crate::tree::File;

/// Crates that `api` must not use, because it has no I/O and no clock.
const IO_CRATES: [&str; 6] = ["async-trait", "hyper", "libc", "rustix", "tokio", "tokio-util"];

/// Crates with their own table of lints, because they contain only tests and measurements.
const TEST_CRATES: [&str; 1] = ["e2e"];
/// Lints that the table of such a crate may omit, because a test may panic, print, and match with a `_` arm.
const TEST_LINTS: [&str; 7] = [
    "expect_used",
    "indexing_slicing",
    "panic",
    "print_stderr",
    "print_stdout",
    "unwrap_used",
    "wildcard_enum_match_arm",
];

/// The crates in the workspace, each with the crates that it may use.
pub(crate) type Layers = BTreeMap<String, BTreeSet<String>>;

/// Parses the table whose columns are `crate`, `is` and `may use`.
pub(crate) fn layers(architecture: &str) -> Layers {
    let mut layers = Layers::new();
    let mut is_table = false;
    for line in architecture.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        match cells.as_slice() {
            ["", "crate", .., "may use", ""] => is_table = true,
            ["", name, .., uses, ""] if is_table && name.starts_with('`') => {
                layers.insert(name.trim_matches('`').to_owned(), quoted(uses));
            }
            ["", _, ..] => {}
            _ => is_table = false,
        }
    }
    layers
}

/// Checks that a crate depends only on crates that its row allows.
pub(crate) fn layering(file: &File, layers: &Layers) -> Vec<String> {
    let name = file.path.trim_start_matches("crates/").trim_end_matches("/Cargo.toml");
    let Some(allowed) = layers.get(name) else {
        return vec![format!("`{name}` has no row in the table of crates in docs/architecture.md")];
    };
    let used = dependencies(&file.text);
    let upward = used.iter().filter(|used| layers.contains_key(*used) && !allowed.contains(*used));
    let mut broken: Vec<String> = upward.map(|used| format!("`{name}` may not use `{used}`")).collect();
    if name == "api" {
        let io = used.iter().filter(|used| IO_CRATES.contains(&used.as_str()));
        broken.extend(io.map(|used| format!("`api` does no I/O: it has no use for `{used}`")));
    }
    broken
}

/// Checks that a crate has a description.
pub(crate) fn description(file: &File) -> Vec<String> {
    let described = file.text.lines().any(|line| line.starts_with("description = \"") && line.len() > 30);
    if described { Vec::new() } else { vec!["no `description`".to_owned()] }
}

/// Checks that a crate uses the lints of the workspace. The own table of a test crate may omit [`TEST_LINTS`].
pub(crate) fn lints(file: &File, workspace: &str) -> Vec<String> {
    if levels(&file.text, "[lints]").contains("[lints] workspace = true") {
        return Vec::new();
    }
    if !TEST_CRATES.iter().any(|name| file.path == format!("crates/{name}/Cargo.toml")) {
        return vec!["no `lints.workspace = true`".to_owned()];
    }
    let own = levels(&file.text, "[lints.");
    let missing = levels(workspace, "[workspace.lints.").into_iter().filter_map(|level| {
        let level = level.replace("[workspace.", "[");
        let is_omitted = TEST_LINTS.iter().any(|lint| level.contains(&format!("] {lint} = ")));
        (!is_omitted && !own.contains(&level)).then_some(level)
    });
    missing.map(|level| format!("no `{level}`, as in the workspace")).collect()
}

/// Returns the lines in the sections whose header begins with a prefix. Each line follows its header.
fn levels(manifest: &str, prefix: &str) -> BTreeSet<String> {
    let (mut levels, mut section) = (BTreeSet::new(), "");
    for line in manifest.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if line.starts_with('[') {
            section = line;
        } else if section.starts_with(prefix) {
            levels.insert(format!("{section} {line}"));
        }
    }
    levels
}

/// Returns the names of all dependencies: normal, dev, build and target-specific dependencies.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut section = String::new();
    for line in manifest.lines().map(str::trim) {
        if let Some(header) = line.strip_prefix('[') {
            section = header.trim_end_matches(']').to_owned();
            // A section for one dependency, such as [dependencies.hyper].
            if let Some((kind, name)) = section.rsplit_once('.')
                && kind.ends_with("dependencies")
            {
                names.insert(name.to_owned());
            }
        } else if section.ends_with("dependencies") && !line.starts_with('#') {
            let name: String =
                line.chars().take_while(|c| c.is_alphanumeric() || "-_".contains(*c)).collect();
            if !name.is_empty() {
                names.insert(name);
            }
        }
    }
    names
}

/// Returns all words in backticks.
fn quoted(text: &str) -> BTreeSet<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[cfg(test)]
const TABLE: &str = "| crate | is | may use |\n|---|---|---|\n| `api` | words | – |\n\
                     | `node` | one machine | `api`, `runtime` |\n| `runtime` | walls | `api` |\n\n| `x` | not | a row |\n";

#[test]
fn the_table_of_layers_is_read() {
    let layers = layers(TABLE);
    assert_eq!(layers.keys().collect::<Vec<_>>(), ["api", "node", "runtime"]);
    assert!(layers["api"].is_empty());
    assert_eq!(layers["node"].iter().collect::<Vec<_>>(), ["api", "runtime"]);
}

#[test]
fn a_crate_that_uses_a_layer_above_it_is_caught() {
    let layers = layers(TABLE);
    for text in [
        "[dependencies]\napi.workspace = true\nnode.workspace = true\n",
        "[dev-dependencies]\nnode = { path = \"../node\" }\n",
        "[target.'cfg(unix)'.dependencies]\nnode = \"1\"\n",
        "[build-dependencies.node]\npath = \"../node\"\n",
    ] {
        let file = File::example("crates/runtime/Cargo.toml", text);
        assert_eq!(layering(&file, &layers), ["`runtime` may not use `node`"], "{text}");
    }
    let fine =
        File::example("crates/node/Cargo.toml", "[dependencies]\napi.workspace = true\nbytes = \"1\"\n");
    assert_eq!(layering(&fine, &layers), Vec::<String>::new());
}

#[test]
fn a_crate_without_a_layer_is_caught() {
    assert_eq!(layering(&File::example("crates/new/Cargo.toml", ""), &layers(TABLE)).len(), 1);
}

#[test]
fn an_api_that_does_io_is_caught() {
    let file = File::example("crates/api/Cargo.toml", "[dependencies]\nserde = \"1\"\ntokio = \"1\"\n");
    assert_eq!(layering(&file, &layers(TABLE)).len(), 1);
}

#[test]
fn a_crate_without_a_description_is_caught() {
    let file = File::example("crates/a/Cargo.toml", "[package]\nname = \"a\"\n");
    assert_eq!(description(&file).len(), 1);
}

#[test]
fn a_crate_with_weaker_lints_than_the_workspace_is_caught() {
    let workspace = "[workspace.lints.rust]\nmissing_docs = \"warn\"\n\n[workspace.lints.clippy]\n# Why.\n\
                     panic = \"warn\"\ntodo = \"warn\"\n";
    let check = |name: &str, text: &str| {
        lints(&File::example(&format!("crates/{name}/Cargo.toml"), text), workspace).len()
    };
    let own = "[lints.rust]\nmissing_docs = \"warn\"\n\n[lints.clippy]\ntodo = \"warn\"\n";
    assert_eq!(check("node", "[lints]\nworkspace = true\n"), 0);
    assert_eq!(check("node", "[package]\nname = \"node\"\n"), 1);
    assert_eq!(check("node", own), 1);
    assert_eq!(check("e2e", own), 0);
    assert_eq!(check("e2e", &own.replace("todo = \"warn\"", "todo = \"allow\"")), 1);
    assert_eq!(check("e2e", "[lints.rust]\nmissing_docs = \"warn\"\n"), 1);
}
