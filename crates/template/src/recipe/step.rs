//! The steps of a recipe, and the validation of their package names, paths, variables and commands.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use api::limits::USER;
use serde::{Deserialize, Serialize};

use crate::sent::SentFiles;

/// Maximum number of packages in one step, and maximum length of a package name in bytes.
const PACKAGES_MAX: usize = 1000;
pub(super) const PACKAGE_BYTES_MAX: usize = 256;
/// Paths that every sandbox covers with its own mounts. Files of a template at these paths would be
/// invisible.
const COVERED: [&str; 7] = ["/proc", "/sys", "/dev", "/tmp", "/workspace", "/home/sandbox", "/.bellglass"];

/// One step of a recipe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Step {
    /// Installs Debian packages.
    Apt(Vec<String>),
    /// Installs Python packages.
    Pip(Vec<String>),
    /// Installs Node packages globally.
    Npm(Vec<String>),
    /// Copies a file or a directory from the recipe's directory.
    Copy(Copy),
    /// Runs a command.
    Run(Command),
    /// Sets variables for the following steps and for every exec.
    Env(BTreeMap<String, String>),
    /// Sets the user of the following `run` steps: `root`, or the sandbox's user.
    User(String),
    /// Sets the working directory of the following `run` steps and of every exec. It is created if it is
    /// missing.
    Workdir(String),
    /// Runs a command as this user, regardless of `user` steps. Cannot be written in a recipe file.
    #[serde(skip)]
    RunAs(String, Command),
    /// Copies files from an archive that a client uploaded. Cannot be written in a recipe file.
    #[serde(skip)]
    Sent(SentFiles),
}

/// The source and the target of a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Copy {
    /// A path below the recipe's directory.
    pub from: String,
    /// The path of the copy itself in the template, not the path of the directory that will contain it.
    pub to: String,
}

/// A command: a script for `/bin/sh`, or a program with its arguments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Command {
    /// A script for `/bin/sh -c`.
    Shell(String),
    /// A program and its arguments.
    Argv(Vec<String>),
}

impl Step {
    /// Returns a short description of the step.
    pub fn what(&self) -> String {
        let (kind, words) = match self {
            Self::Apt(names) => ("apt", names.join(" ")),
            Self::Pip(names) => ("pip", names.join(" ")),
            Self::Npm(names) => ("npm", names.join(" ")),
            Self::Copy(copy) => ("copy", format!("{} to {}", copy.from, copy.to)),
            Self::Run(command) => ("run", command.shown()),
            // The last argument is the text that the user wrote. The arguments before it are a fixed wrapper
            // around this text.
            Self::RunAs(_, command) => ("run", command.argv().pop().unwrap_or_default()),
            Self::Sent(sent) => ("copy", format!("{} to {}", sent.from, sent.to)),
            Self::Env(variables) => ("env", variables.keys().cloned().collect::<Vec<_>>().join(" ")),
            Self::User(name) => ("user", name.clone()),
            Self::Workdir(path) => ("workdir", path.clone()),
        };
        let line: String = words.chars().map(|c| if c.is_control() { ' ' } else { c }).take(60).collect();
        format!("{kind} {line}")
    }

    /// Returns true if the sandbox's user, not root, runs this step. `runs` is true if earlier `user` steps
    /// selected the sandbox's user for `run` steps.
    pub(crate) fn by_user(&self, runs: bool) -> bool {
        match self {
            Self::Run(_) => runs,
            Self::RunAs(user, _) => user != "root",
            Self::Apt(_)
            | Self::Pip(_)
            | Self::Npm(_)
            | Self::Copy(_)
            | Self::Env(_)
            | Self::User(_)
            | Self::Workdir(_)
            | Self::Sent(_) => false,
        }
    }

    /// Validates the step.
    ///
    /// # Errors
    /// The step is invalid. The error states the reason.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Self::Apt(names) => packages(names, debian_word),
            Self::Pip(names) => packages(names, |name| {
                name.chars().all(|c| c.is_ascii_graphic() || c == ' ') && !name.starts_with(['.', '/', ' '])
            }),
            Self::Npm(names) => packages(names, |name| {
                name.chars().all(|c| c.is_ascii_alphanumeric() || "@/._-~^<>=*".contains(c))
                    && !name.starts_with(['.', '/', '~'])
            }),
            Self::Copy(copy) => {
                let inside = Path::new(&copy.from)
                    .components()
                    .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
                if copy.from.is_empty() || !inside {
                    return Err(format!("copies {:?}, which is not below the recipe's directory", copy.from));
                }
                place(&copy.to)
            }
            Self::Run(command) | Self::RunAs(_, command) => command.check(),
            Self::Sent(sent) => sent.check(),
            Self::Env(variables) => match variables.iter().find(|(name, value)| !is_variable(name, value)) {
                Some((name, _)) => Err(format!("sets {name:?}, which is not a valid environment variable")),
                None => Ok(()),
            },
            Self::User(name) if name == "root" || name == USER => Ok(()),
            Self::User(name) => Err(format!("names the user {name:?}, but only `root` and `{USER}` exist")),
            Self::Workdir(path) => {
                let place = absolute(path)?;
                if is_covered(path) && !COVERED.iter().any(|covered| place == Path::new(covered)) {
                    return Err(format!("starts in {path:?}, which does not exist in a new sandbox"));
                }
                Ok(())
            }
        }
    }
}

impl Command {
    /// Returns the program and its arguments.
    pub fn argv(&self) -> Vec<String> {
        match self {
            Self::Shell(text) => vec!["/bin/sh".into(), "-c".into(), text.clone()],
            Self::Argv(words) => words.clone(),
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::Shell(text) => text.clone(),
            Self::Argv(words) => words.join(" "),
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let words = self.argv();
        let empty = words.first().is_none_or(String::is_empty) || words.last().is_none_or(String::is_empty);
        let bad = words.iter().any(|word| word.contains('\0') || word.len() > api::limits::WORD_BYTES_MAX);
        if empty || bad { Err("has no valid command".into()) } else { Ok(()) }
    }
}

/// Returns true if the word can be the name of a Debian package or release, and is neither an option nor a
/// path.
pub(crate) fn debian_word(word: &str) -> bool {
    !word.is_empty()
        && !word.starts_with('-')
        && word.chars().all(|c| c.is_ascii_alphanumeric() || "+-._:=~".contains(c))
}

/// Returns true if every sandbox has its own mount at or above this path. The mount would hide files of a
/// template there.
pub(crate) fn is_covered(path: &str) -> bool {
    COVERED.iter().any(|covered| Path::new(path).starts_with(covered))
}

fn packages(names: &[String], fine: impl Fn(&str) -> bool) -> Result<(), String> {
    if names.is_empty() || names.len() > PACKAGES_MAX {
        return Err(format!("names {} packages, but one step can install 1 to {PACKAGES_MAX}", names.len()));
    }
    let bad = |name: &&String| {
        name.is_empty() || name.starts_with('-') || name.len() > PACKAGE_BYTES_MAX || !fine(name)
    };
    match names.iter().find(bad) {
        Some(name) => Err(format!("names {name:?}, which is not a valid package name")),
        None => Ok(()),
    }
}

/// Returns an error if files at this target path would be invisible in sandboxes.
pub(crate) fn place(path: &str) -> Result<(), String> {
    let parts = absolute(path)?;
    if parts == Path::new("/") || parts == Path::new("/home") || is_covered(path) {
        return Err(format!("writes to {path:?}, which every sandbox hides with its own mount"));
    }
    Ok(())
}

fn absolute(path: &str) -> Result<PathBuf, String> {
    let plain =
        Path::new(path).components().all(|part| matches!(part, Component::Normal(_) | Component::RootDir));
    if path.starts_with('/') && plain && !path.contains('\0') && path.len() < 4096 {
        return Ok(PathBuf::from(path));
    }
    Err(format!("names {path:?}, which is not an absolute path without `..`"))
}

/// Returns true if the name and the value form a valid environment variable.
pub(crate) fn is_variable(name: &str, value: &str) -> bool {
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    starts
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !value.contains('\0')
        && name.len() + value.len() < api::limits::WORD_BYTES_MAX
}
