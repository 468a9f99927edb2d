//! Rules about the modules of a crate: import cycles.
//!
//! A module is a file or directory directly below `src`. An import has the form `crate::name`, where the name
//! is a module, or an item that the crate's root reexports from a module.

use std::collections::{BTreeMap, BTreeSet};

use super::tree::File;

/// The modules of a crate, each with the modules that it imports.
type Graph<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// Returns the largest import cycle of each crate.
pub(crate) fn largest_cycles(files: &[File]) -> BTreeMap<String, Vec<String>> {
    let mut crates: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    for file in files {
        let Some((name, path)) = file.path.strip_prefix("crates/").and_then(|path| path.split_once("/src/"))
        else {
            continue;
        };
        crates.entry(name).or_default().push((path, &file.text));
    }
    crates.into_iter().map(|(name, files)| (name.to_owned(), largest_cycle(&graph(&files)))).collect()
}

fn graph<'a>(files: &[(&'a str, &'a str)]) -> Graph<'a> {
    let module = |path: &'a str| path.split('/').next().unwrap_or(path).trim_end_matches(".rs");
    let mut graph: Graph<'_> = files.iter().map(|(path, _)| (module(path), BTreeSet::new())).collect();
    let root = files.iter().find(|(path, _)| *path == "lib.rs").map_or("", |(_, text)| text);
    graph.retain(|name, _| !["lib", "main", "bin"].contains(name));
    let mut exported = BTreeMap::new();
    for statement in root.split(';') {
        let Some((_, path)) = statement.split_once("pub use ") else { continue };
        let Some((from, names)) = path.split_once("::") else { continue };
        exported.extend(words(names).map(|name| (name, from)));
    }
    for (path, text) in files {
        let production = text.split("#[cfg(test)]\nmod ").next().unwrap_or(text);
        let code = production.lines().filter(|line| !line.trim_start().starts_with("//"));
        let mut imported = BTreeSet::new();
        for line in statements(code) {
            for (at, _) in line.match_indices("crate::") {
                let after = line.get(at + "crate::".len()..).unwrap_or_default();
                match after.strip_prefix('{') {
                    Some(group) => imported.extend(first_words(group)),
                    None => imported.extend(words(after).next().map(str::to_owned)),
                }
            }
        }
        let own = module(path);
        let known: Vec<&str> = imported
            .into_iter()
            .map(|name| exported.get(name.as_str()).map_or(name.clone(), |from| (*from).to_owned()))
            .filter_map(|name| graph.keys().find(|module| **module == name).copied())
            .filter(|name| *name != own)
            .collect();
        if let Some(edges) = graph.get_mut(own) {
            edges.extend(known);
        }
    }
    graph
}

/// Returns the lines of code. An import that spans several lines becomes one line.
fn statements<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut all = Vec::new();
    let mut open: Option<String> = None;
    for line in lines {
        let mut whole = open.take().unwrap_or_default();
        whole.push_str(line);
        if whole.contains("use crate::{") && !whole.contains(';') {
            open = Some(whole);
        } else {
            all.push(whole);
        }
    }
    all
}

/// Returns the first word of each item in a group of imports.
fn first_words(group: &str) -> Vec<String> {
    let (mut depth, mut parts) = (0_u32, vec![String::new()]);
    for letter in group.chars() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => parts.push(String::new()),
            _ if depth == 0 => parts.last_mut().into_iter().for_each(|part| part.push(letter)),
            _ => {}
        }
    }
    parts.iter().filter_map(|part| words(part).next().map(str::to_owned)).collect()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_').filter(|word| !word.is_empty())
}

fn largest_cycle(graph: &Graph<'_>) -> Vec<String> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        graph.keys().map(|module| (*module, reachable(graph, module))).collect();
    let reaches = |from: &str, to: &str| reached.get(from).is_some_and(|all| all.contains(to));
    let cycle_of = |module: &str| -> Vec<String> {
        graph
            .keys()
            .filter(|other| reaches(module, other) && reaches(other, module))
            .map(|name| (*name).to_owned())
            .collect()
    };
    graph.keys().map(|module| cycle_of(module)).max_by_key(Vec::len).unwrap_or_default()
}

fn reachable<'a>(graph: &Graph<'a>, from: &str) -> BTreeSet<&'a str> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(module) = open.pop() {
        for next in graph.get(module).into_iter().flatten() {
            if seen.insert(*next) {
                open.push(next);
            }
        }
    }
    seen
}

#[test]
fn a_cycle_is_found_also_through_the_root_of_the_crate() {
    let file = |name: &str, text: &str| File::example(&format!("crates/node/src/{name}"), text);
    let mut files = vec![
        file("lib.rs", "mod a;\nmod b;\nmod c;\nmod d;\npub use c::{Shown, Other};\n"),
        file("a.rs", "use crate::b::B;\n"),
        file("b/inner.rs", "use crate::{\n    Shown,\n    d::{self, D},\n};\n"),
        file("c.rs", "fn c() { crate::a::a() }\n"),
        file("d.rs", "// crate::a\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n"),
    ];
    assert_eq!(largest_cycles(&files)["node"], ["a", "b", "c"]);
    files[3].text.clear();
    assert_eq!(largest_cycles(&files)["node"], Vec::<String>::new());
}
