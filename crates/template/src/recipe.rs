//! Parses and validates recipes, which define templates step by step. This module runs nothing.
//!
//! ```toml
//! from = "base"                                   # a template, an image reference, or { debian = "trixie" }
//! steps = [
//!   { apt = ["fonts-noto-core"] },
//!   { pip = ["numpy==2.2.1"] },
//!   { copy = { from = "app", to = "/opt/app" } },
//!   { run = "python3 -m compileall -q /opt/app" },
//!   { env = { MPLBACKEND = "Agg" } },
//! ]
//! imports = ["numpy"]
//! limits = { memory_bytes = 1073741824 }
//! policy = ["python-packages"]
//! ```
//!
//! Package names, paths and variables are validated and passed as separate words of an argument list; no
//! shell ever interprets them. Only a `run` step given as a string is passed to a shell, because its author
//! wrote it for one.

mod step;

use api::layer::LAYERS_MAX;
use api::limits::WantedLimits;
use api::policy::Policy;
use host::error::Error;
use serde::{Deserialize, Serialize};

use crate::store::Posture;
use crate::{store, unsound};
use step::PACKAGE_BYTES_MAX;

pub use step::{Command, Copy, Step};
pub(crate) use step::{debian_word, is_covered, is_variable, place};

/// Maximum size of a recipe in bytes. Recipes are written by hand.
const RECIPE_BYTES_MAX: usize = 256 * 1024;
/// Maximum number of steps: each may add a layer, and at least one layer is needed for the base below them.
const STEPS_MAX: usize = LAYERS_MAX - 1;
/// Maximum number of modules that are imported in advance.
const IMPORTS_MAX: usize = 256;

/// A validated recipe.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// The base of the first step.
    pub from: Ground,
    /// The steps, in order.
    #[serde(default)]
    pub steps: Vec<Step>,
    /// The command that is started together with every sandbox.
    #[serde(default)]
    pub start: Option<Command>,
    /// The command that must succeed before a sandbox counts as started.
    #[serde(default)]
    pub ready: Option<Command>,
    /// Modules that Python imports in advance. The build imports them once, to check that the import works.
    #[serde(default)]
    pub imports: Vec<String>,
    /// Default limits of sandboxes.
    #[serde(default)]
    pub limits: WantedLimits,
    /// Default egress policy of sandboxes, which also applies while a `run` step runs.
    #[serde(default)]
    pub policy: Vec<String>,
    /// The part of its own file system that a sandbox may change: `run` or `workstation`.
    #[serde(default)]
    pub posture: Posture,
}

/// The base of a recipe.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Ground {
    /// A template by its name, or an image by its reference. Only references contain a `/` or a `:`.
    Named(String),
    /// Debian, installed from its packages.
    Debian(Debian),
}

/// Debian, installed from its packages.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Debian {
    /// The release.
    pub debian: String,
}

impl Recipe {
    /// Parses and validates a recipe.
    ///
    /// # Errors
    /// The text is not a recipe, or one of its values is invalid.
    pub fn parse(text: &str) -> Result<Self, Error> {
        if text.len() > RECIPE_BYTES_MAX {
            return Err(over("the size of the recipe in bytes", text.len(), RECIPE_BYTES_MAX));
        }
        let recipe: Self = toml::from_str(text).map_err(|error| {
            unsound(
                format!("cannot parse the recipe: {}", error.to_string().trim_end()),
                "Fix the recipe at this position. For an example of a recipe, run `bellglass template build --help`.",
            )
        })?;
        recipe.check()?;
        Ok(recipe)
    }

    /// Returns the egress policy of sandboxes.
    ///
    /// # Errors
    /// An entry of the policy is invalid.
    pub fn policy(&self) -> Result<Policy, Error> {
        let policy = Policy::of_words(&self.policy).map_err(Error::Request)?;
        check_policy(&policy)?;
        Ok(policy)
    }

    /// Validates the whole recipe.
    ///
    /// # Errors
    /// One of its values is invalid, or a limit is exceeded.
    pub fn check(&self) -> Result<(), Error> {
        match &self.from {
            Ground::Named(name) if !name.contains(['/', ':']) => store::check_name(name)?,
            Ground::Named(word) if !is_reference(word) => return Err(no_ground(word)),
            Ground::Debian(Debian { debian: word }) if !debian_word(word) => return Err(no_ground(word)),
            Ground::Named(_) | Ground::Debian(_) => {}
        }
        if self.steps.len() > STEPS_MAX {
            return Err(over("the number of steps", self.steps.len(), STEPS_MAX));
        }
        for (index, step) in self.steps.iter().enumerate() {
            step.check().map_err(|why| {
                unsound(format!("step {} ({}) {why}", index + 1, step.what()), "Fix this step.")
            })?;
        }
        for command in self.start.iter().chain(&self.ready) {
            check_command(&command.argv())?;
        }
        check_imports(&self.imports)?;
        self.limits.over(api::limits::Limits::default()).check().map_err(Error::Request)?;
        self.policy().map(drop)
    }
}

/// Validates a `start` or `ready` command.
pub(super) fn check_command(words: &[String]) -> Result<(), Error> {
    let checked = Command::Argv(words.to_vec()).check();
    checked.map_err(|why| unsound(format!("`start` or `ready` {why}"), "Specify the command to run."))
}

/// Validates a directory in which execs start.
pub(super) fn check_directory(path: &str) -> Result<(), Error> {
    Step::Workdir(path.to_owned())
        .check()
        .map_err(|why| unsound(format!("the template {why}"), "Choose another directory."))
}

/// Returns an error if a template cannot have this policy.
pub(super) fn check_policy(policy: &Policy) -> Result<(), Error> {
    policy.check().map_err(Error::Request)?;
    match policy.secrets.first() {
        Some(binding) => Err(unsound(
            format!("secret {} belongs to a project, but templates are shared by all projects", binding.name),
            "Bind the secret when you create a sandbox, or with `bellglass policy`.",
        )),
        None => Ok(()),
    }
}

/// Validates the names of modules to import, and their number.
pub(super) fn check_imports(imports: &[String]) -> Result<(), Error> {
    if imports.len() > IMPORTS_MAX {
        return Err(over("the number of imports", imports.len(), IMPORTS_MAX));
    }
    match imports.iter().find(|name| !is_module(name)) {
        Some(bad) => Err(unsound(
            format!("{bad:?} is not the name of a Python module"),
            "Write the name as in an `import` statement.",
        )),
        None => Ok(()),
    }
}

/// Returns true if the word has only characters of image references, none of which has a meaning in a
/// Containerfile or for a shell.
fn is_reference(word: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-/:@[]".contains(c);
    !word.starts_with('-') && word.chars().all(is_plain)
}

fn no_ground(word: &str) -> Error {
    unsound(format!("{word:?} is not a valid `from`"), "Use an image reference or a Debian release.")
}

fn is_module(name: &str) -> bool {
    let is_word = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    name.len() <= PACKAGE_BYTES_MAX && name.split('.').all(is_word)
}

fn over(what: &str, found: usize, most: usize) -> Error {
    Error::Request(api::limits::exceeded(what, found as u64, most as u64))
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        Recipe::parse(text).unwrap_err().to_api().message
    }

    #[test]
    fn a_recipe_says_what_to_begin_with_and_what_to_do() {
        let recipe = Recipe::parse(
            r#"
            from = { debian = "trixie" }
            steps = [
              { apt = ["git", "libstdc++6"] },
              { pip = ["numpy==2.2.1", "requests[socks] >= 2"] },
              { npm = ["@types/node@22"] },
              { copy = { from = "app/x.py", to = "/opt/x.py" } },
              { user = "sandbox" }, { workdir = "/home/app" }, { workdir = "/workspace" }, { env = { A = "b c" } },
              { run = "echo $A" }, { run = ["echo", "$A"] },
            ]
            start = ["python3", "/opt/x.py"]
            ready = "test -e /tmp/ready"
            imports = ["numpy", "matplotlib.pyplot"]
            limits = { memory_bytes = 1073741824 }
            policy = ["python-packages"]
            "#,
        )
        .unwrap();
        assert_eq!(recipe.from, Ground::Debian(Debian { debian: "trixie".into() }));
        assert_eq!(recipe.steps[9].what(), "run echo $A");
        assert_eq!(recipe.start.unwrap().argv().len(), 2);
        assert_eq!(recipe.ready.unwrap().argv()[0], "/bin/sh");
        assert_eq!(recipe.limits.memory_bytes, Some(1 << 30));
    }

    #[test]
    fn names_that_would_be_options_paths_or_programs_are_refused() {
        // Covers case 86: a word in a recipe that a program would interpret as an option, a path or a
        // program.
        for step in [
            r#"{ apt = ["--allow-unauthenticated"] }"#,
            r#"{ apt = ["git; touch /pwned"] }"#,
            r#"{ apt = ["./evil.deb"] }"#,
            r#"{ apt = [] }"#,
            r#"{ pip = ["--index-url=http://evil"] }"#,
            r#"{ pip = ["-r/etc/passwd"] }"#,
            r#"{ pip = ["a\nb"] }"#,
            r#"{ pip = ["./setup"] }"#,
            r#"{ npm = ["--prefix=/"] }"#,
            r#"{ npm = ["a b"] }"#,
            r#"{ npm = ["git+ssh://x"] }"#,
            r#"{ npm = ["$(id)"] }"#,
            r#"{ copy = { from = "../secret", to = "/opt/x" } }"#,
            r#"{ copy = { from = "/etc/shadow", to = "/opt/x" } }"#,
            r#"{ copy = { from = "x", to = "opt" } }"#,
            r#"{ copy = { from = "x", to = "/opt/../etc" } }"#,
            r#"{ copy = { from = "x", to = "/workspace/x" } }"#,
            r#"{ env = { "A B" = "x" } }"#,
            r#"{ env = { "A=B" = "x" } }"#,
            r#"{ user = "0" }"#,
            r#"{ workdir = "../x" }"#,
            r#"{ workdir = "/workspace/x" }"#,
            r#"{ workdir = "/home/sandbox/x" }"#,
            r#"{ copy = { from = "x", to = "/home/sandbox/x" } }"#,
            r#"{ run = "" }"#,
            r#"{ run = [] }"#,
            r#"{ install = ["x"] }"#,
            r#"{ copy = { from = "x", to = "/opt/x", chown = "1" } }"#,
        ] {
            assert!(Recipe::parse(&format!("from = \"base\"\nsteps = [{step}]")).is_err(), "{step}");
        }
        for whole in [
            "from = \"Base\"",
            "steps = []",
            "from = \"base\"\nimports = [\"os; import sys\"]",
            "from = \"base\"\npolicy = [\"*\"]",
            "from = \"base\"\nlimits = { memory_bytes = 1 }",
            "from = \"base\"\nlimits = { swap = 1 }",
            "from = \"base\"\nunknown = 1",
            "from = { debian = \"trixie\", mirror = \"x\" }",
            "from = { debian = \"trixie\\\\\" }",
            "from = \"docker.io/debian:12\\\\\"",
            "from = \"docker.io/$debian:12\"",
            "from = \"base\"\nstart = []",
        ] {
            assert!(Recipe::parse(whole).is_err(), "{whole}");
        }
        assert!(refused("from = \"base\"\nsteps = [{ user = \"x\" }]").starts_with("step 1 (user x)"));
    }

    #[test]
    fn a_recipe_has_no_more_steps_than_a_template_may_have_layers() {
        let steps = vec!["{ run = \"true\" }"; STEPS_MAX + 1].join(",");
        assert!(refused(&format!("from = \"base\"\nsteps = [{steps}]")).contains("steps"));
    }
}
