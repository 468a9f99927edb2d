//! The house rules. Each rule is an ordinary test that checks the repository's files.
//!
//! | module | rules about |
//! |---|---|
//! | [`attacks`] | the folders of `attacks/`: names, titles, ids, the index |
//! | [`defences`] | the defences that test builds can turn off: the table of their attacks, the shipped build |
//! | [`evidence`] | the age of recorded results (warnings only) |
//! | [`source`] | Rust files: module docs, length, names, location of `unsafe`, names of tests |
//! | [`manifest`] | `Cargo.toml`: layering as in `docs/architecture.md`, descriptions, lints |
//! | [`modules`] | the modules of a crate: import cycles |
//! | [`prose`] | documents: links, decisions, the glossary |
//! | [`shape`] | properties of Rust files that must not get worse: methods, names, tuples, lengths |
//! | [`words`] | every file: words and paths that must not be committed |
//!
//! A rule is a pure function that returns a file's violations, so each rule has a test that shows that it
//! detects violations. Rules that never detect violations are removed. `docs/style.md` states the reason for
//! each rule.

mod attacks;
mod defences;
mod evidence;
mod manifest;
mod modules;
mod prose;
mod requirements;
mod shape;
mod source;
mod tree;
mod words;

use std::collections::BTreeMap;

use tree::File;

/// Maximum number of lines in a file. A longer file covers more than one subject.
const LINES_MAX: usize = 600;
/// Maximum number of modules in an import cycle. The modules of a cycle cannot be understood or removed
/// independently of each other.
const CYCLE_MAX: usize = 4;
/// Crates that exceed this maximum, with the size of their largest cycle. These numbers may only decrease.
const CYCLES_LEFT: [(&str, usize); 0] = [];
/// Maximum number of methods that a trait requires.
const METHODS_MAX: usize = 7;
/// Current number of production files with more than 400 lines. The goal is that no file has more.
const LONG_FILES_LEFT: usize = 0;
const LONG_FILE: usize = 400;
/// Current number of declared types whose name is declared in three or more files, per 1,000 type
/// declarations.
const REUSED_PER_THOUSAND_LEFT: usize = 0;
/// Current number of function parameters that destructure a tuple.
const TUPLE_PARAMETERS_LEFT: usize = 0;
/// Maximum number of phrases listed in [`words`] per 10,000 words, in the documents and in the comments of
/// each crate.
const HABITS_MAX: usize = 8;

#[test]
fn every_rust_file_says_first_what_it_is_for() {
    obey(source::module_doc, rust());
}

#[test]
fn no_file_is_too_long_and_the_ten_longest_are_shown() {
    let mut files = rust();
    files.sort_by_key(|file| std::cmp::Reverse(file.text.lines().count()));
    let shown: Vec<String> =
        files.iter().take(10).map(|file| format!("{:>5} {}", file.text.lines().count(), file.path)).collect();
    println!("the ten longest files:\n{}", shown.join("\n"));
    obey(|file| source::length(file, LINES_MAX), files);
}

#[test]
fn every_name_is_a_noun_that_means_something() {
    obey(source::names, rust());
}

#[test]
fn unsafe_stands_only_in_runtime_and_guest() {
    obey(source::unsafe_place, rust());
}

#[test]
fn every_test_is_named_by_a_sentence() {
    obey(source::test_names, rust());
}

#[test]
fn crates_use_only_the_layers_below_them() {
    let files = tree::files().unwrap();
    let architecture = tree::named(&files, "docs/architecture.md").unwrap();
    let layers = manifest::layers(&architecture.text);
    assert!(layers.contains_key("api"), "docs/architecture.md has no table of crates");
    obey(|file| manifest::layering(file, &layers), manifests());
}

#[test]
fn few_modules_import_each_other_in_a_circle() {
    for (name, cycle) in modules::largest_cycles(&rust()) {
        let left = CYCLES_LEFT.iter().find(|(left, _)| *left == name).map(|(_, count)| *count);
        println!("{name}: {} {}", cycle.len(), cycle.join(" "));
        match left {
            Some(left) => {
                assert_eq!(cycle.len(), left, "{name}: write the new number down, if it is smaller")
            }
            None => assert!(cycle.len() <= CYCLE_MAX, "{name}: {}", cycle.join(" ")),
        }
    }
}

#[test]
fn every_trait_requires_few_methods() {
    for file in rust() {
        for (name, required) in shape::required_methods(&file) {
            assert!(required <= METHODS_MAX, "{}: {name} requires {required} methods", file.path);
        }
    }
}

#[test]
fn every_channel_has_a_bound() {
    obey(shape::unbounded_channels, rust().into_iter().filter(shape::is_production).collect());
}

#[test]
fn fewer_files_names_and_tuples_are_left_to_change() {
    let files = rust();
    let long =
        files.iter().filter(|file| shape::is_production(file) && file.text.lines().count() > LONG_FILE);
    held("production files over 400 lines", long.count(), LONG_FILES_LEFT);
    held(
        "parameters that are tuples",
        files.iter().map(shape::tuple_parameters).sum(),
        TUPLE_PARAMETERS_LEFT,
    );
    let (all, reused) = shape::reused_names(&files);
    println!("names of types in three or more files: {reused:?}");
    let declared: usize = reused.values().sum();
    held("reused names of types per 1,000", declared * 1000 / all.max(1), REUSED_PER_THOUSAND_LEFT);
}

#[test]
fn every_crate_says_what_it_is() {
    obey(manifest::description, manifests());
}

#[test]
fn every_crate_uses_the_lints_of_the_workspace() {
    let workspace = std::fs::read_to_string(tree::root().join("Cargo.toml")).unwrap();
    obey(|file| manifest::lints(file, &workspace), manifests());
}

#[test]
fn every_link_leads_to_a_file() {
    let root = tree::root();
    obey(|file| prose::links(file, |path| root.join(path).exists()), ending(".md"));
}

#[test]
fn every_decision_is_one_page_and_says_what_was_rejected() {
    let decisions: Vec<File> =
        ending(".md").into_iter().filter(|file| file.path.starts_with("docs/decisions/")).collect();
    let paths: Vec<&str> = decisions.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(prose::decision_numbers(&paths), Vec::<String>::new());
    obey(prose::decision, decisions);
}

#[test]
fn every_noun_of_the_glossary_is_in_the_code_or_marked_later() {
    let root = tree::root();
    let glossary = ending(".md").into_iter().filter(|file| file.path == "docs/glossary.md").collect();
    obey(|file| prose::glossary(file, |path| root.join(path).exists()), glossary);
}

#[test]
fn every_promise_is_held_by_something_that_exists() {
    let files = tree::files().unwrap();
    let justfile = &tree::named(&files, "justfile").unwrap().text;
    let recipes: Vec<&str> = justfile
        .lines()
        .filter(|line| line.contains(':') && !line.contains(":=") && !line.starts_with([' ', '#']))
        .filter_map(|line| line.split([' ', ':']).next())
        .collect();
    let sources = rust();
    let functions: Vec<&str> = sources.iter().flat_map(|file| source::functions(&file.text)).collect();
    let specification: Vec<File> =
        files.iter().filter(|file| file.path == "docs/specification.md").cloned().collect();
    obey(|file| prose::promises(file, &recipes, &functions), specification.clone());
    obey(prose::measured_promises, specification);
}

/// Prints a warning for each recipe that CI does not run and whose last successful result is old. It does not
/// fail, because only a run of hours can change the result.
#[test]
fn promises_that_ci_does_not_verify_have_recent_evidence() {
    let files = tree::files().unwrap();
    let specification = &tree::named(&files, "docs/specification.md").unwrap().text;
    let ci = std::fs::read_to_string(tree::root().join(".ci/run")).unwrap();
    let recipes = evidence::recipes(specification, &ci);
    assert!(!recipes.is_empty(), "the specification names no recipe outside CI");
    let recorded = tree::named(&files, "docs/evidence.json");
    for warning in
        evidence::warnings(&recipes, recorded, |commit| evidence::commits_since(&tree::root(), commit))
    {
        println!("warning: {warning}");
    }
}

#[test]
fn nothing_unfinished_and_no_path_of_a_build_machine_is_committed() {
    let files = tree::files().unwrap();
    obey(|file| [words::unfinished(file), words::machine_paths(file)].concat(), files);
}

/// Checks that the tests named by requirements exist, that the counts are correct, and that files refer only
/// to existing requirements.
#[test]
fn every_requirement_names_tests_that_exist() {
    let files = tree::files().unwrap();
    let page: Vec<File> = files.iter().filter(|file| file.path == "docs/requirements.md").cloned().collect();
    let has_test = |path: &str, name: &str| {
        let word = if path.ends_with(".py") { "def" } else { "fn" };
        tree::named(&files, path).is_some_and(|file| file.text.contains(&format!("{word} {name}(")))
    };
    obey(|file| requirements::tests(file, has_test), page.clone());
    obey(requirements::counts, page.clone());
    let text = page.first().map(|page| page.text.as_str()).unwrap_or_default();
    let others = files.iter().filter(|file| !file.path.starts_with("crates/house/src/")).cloned().collect();
    obey(|file| requirements::pointers(file, text), others);
}

/// Checks the folders of `attacks/`, their index, and the paths that name them. Recorded samples in
/// `docs/reviews` keep the paths of their time.
#[test]
fn every_attack_has_a_descriptive_folder_and_a_row_in_the_index() {
    let files = tree::files().unwrap();
    assert_eq!(attacks::folders(&files), Vec::<String>::new());
    let readme = files.iter().filter(|file| file.path == "attacks/README.md").cloned().collect();
    obey(|file| attacks::index(file, &files), readme);
    let is_record =
        |file: &&File| file.path.starts_with("docs/reviews/") || file.path.starts_with("crates/house/src/");
    let others = files.iter().filter(|file| !is_record(file)).cloned().collect();
    obey(|file| attacks::paths(file, &files), others);
}

/// Checks the table that `just mutants` writes: each defence that can be turned off has an attack that notices.
#[test]
fn every_defence_that_can_be_turned_off_is_noticed_by_an_attack() {
    let sources: Vec<File> = rust().into_iter().filter(shape::is_production).collect();
    let switches = defences::switches(&sources);
    assert!(!switches.is_empty(), "no source file asks whether a defence is off");
    let page = ending(".md").into_iter().filter(|file| file.path == "docs/defences.md").collect();
    obey(|file| defences::table(file, &switches), page);
}

/// The executable that is shipped is built from `cli` without dev-dependencies. The tests are built with them.
#[test]
fn the_shipped_executable_has_no_switch() {
    let root = tree::root();
    assert_eq!(defences::has_switch(&root, "cli", "normal,build,features"), Some(false));
    assert_eq!(defences::has_switch(&root, "e2e", "all,features"), Some(true), "the control finds no switch");
}

#[test]
fn documents_install_only_packages_that_are_ours() {
    obey(words::installs, ending(".md"));
}

#[test]
fn comments_are_written_in_plain_english() {
    let mut crates = BTreeMap::<String, (usize, usize)>::new();
    for file in rust() {
        let mut parts = file.path.split('/').filter(|part| *part != "crates");
        let (all, count) = words::habits(&words::rust_prose(&file.text));
        let sum = crates.entry(parts.next().unwrap_or_default().to_owned()).or_default();
        *sum = (sum.0 + all, sum.1 + count);
    }
    for (name, (all, count)) in crates {
        println!("{name}: {count} phrases in {all} words of comments");
        assert!(count * 10_000 <= HABITS_MAX * all, "{name}: more than {HABITS_MAX} per 10,000 words");
    }
}

#[test]
fn documents_are_written_in_plain_english() {
    let python = ending(".py").into_iter().filter(|file| file.path.starts_with("sdk/"));
    let prose = python.map(|file| File { text: words::python_prose(&file.text), path: file.path });
    let counted: Vec<(String, usize, usize)> = ending(".md")
        .into_iter()
        .chain(prose)
        .map(|file| {
            let (all, count) = words::habits(&file.text);
            (file.path, all, count)
        })
        .collect();
    let (all, count) = counted.iter().fold((0, 0), |sum, (_, all, count)| (sum.0 + all, sum.1 + count));
    let mut worst = counted;
    worst.sort_by_key(|(_, _, count)| std::cmp::Reverse(*count));
    let shown: Vec<String> =
        worst.iter().take(10).map(|(path, _, count)| format!("{count:>5} {path}")).collect();
    println!("{count} phrases in {all} words; most of them in:\n{}", shown.join("\n"));
    assert!(count * 10_000 <= HABITS_MAX * all, "more than {HABITS_MAX} per 10,000 words");
}

/// Panics unless a figure equals the recorded figure. If the figure has improved, the message asks the
/// developer to record it.
fn held(what: &str, now: usize, recorded: usize) {
    assert!(now <= recorded, "{what}: {now}, more than {recorded}");
    assert!(now == recorded, "{what}: {now}, fewer than {recorded}; record the new figure");
}

/// Panics with a list of all lines in all files that violate a rule. Also panics if there are no files to
/// check, because the rule would then check nothing.
fn obey(rule: impl Fn(&File) -> Vec<String>, files: Vec<File>) {
    assert!(!files.is_empty(), "no file under {} is one that this rule is about", tree::root().display());
    let broken: Vec<String> = files
        .iter()
        .flat_map(|file| rule(file).into_iter().map(|line| format!("{}: {line}", file.path)))
        .collect();
    assert!(broken.is_empty(), "{} places break this rule:\n{}", broken.len(), broken.join("\n"));
}

fn rust() -> Vec<File> {
    ending(".rs").into_iter().filter(is_member).collect()
}

fn manifests() -> Vec<File> {
    ending("/Cargo.toml").into_iter().filter(is_member).collect()
}

/// Returns true if the file belongs to a crate in the workspace.
fn is_member(file: &File) -> bool {
    file.path.starts_with("crates/") || file.path.starts_with("bench/")
}

fn ending(suffix: &str) -> Vec<File> {
    tree::files().unwrap_or_default().into_iter().filter(|file| file.path.ends_with(suffix)).collect()
}
