//! The recipes that ship with Bellglass, and the files that they copy.

use std::path::{Path, PathBuf};

use host::error::Error;

use crate::failed;
use crate::recipe::Recipe;

/// The recipes, by name.
const RECIPES: [(&str, &str); 7] = [
    ("base", include_str!("../../../images/base.toml")),
    ("python", include_str!("../../../images/python.toml")),
    ("node", include_str!("../../../images/node.toml")),
    ("analysis", include_str!("../../../images/analysis.toml")),
    ("interpreter", include_str!("../../../images/interpreter.toml")),
    ("workstation", include_str!("../../../images/workstation.toml")),
    ("code-interpreter-v1", include_str!("../../../images/code-interpreter-v1.toml")),
];

/// The files that the recipes copy.
const FILES: [(&str, &str); 4] = [
    ("fonts/matplotlibrc", include_str!("../../../images/fonts/matplotlibrc")),
    ("interpreter/entrypoint.py", include_str!("../../../images/interpreter/entrypoint.py")),
    ("workstation/rename-user", include_str!("../../../images/workstation/rename-user")),
    ("workstation/sudo", include_str!("../../../images/workstation/sudo")),
];

/// Returns the names of the recipes.
pub fn names() -> [&'static str; RECIPES.len()] {
    RECIPES.map(|(name, _)| name)
}

/// Returns the recipe with this name, if it exists.
///
/// # Errors
/// The recipe is invalid.
pub fn find(name: &str) -> Result<Option<Recipe>, Error> {
    let found = RECIPES.iter().find(|(known, _)| *known == name);
    found.map(|(_, text)| Recipe::parse(text)).transpose()
}

/// Creates a directory below the data directory with the files for the recipes' `copy` steps, and returns its
/// path.
///
/// # Errors
/// The data directory cannot be written.
pub fn lay_out(data: &Path) -> Result<PathBuf, Error> {
    let home = data.join("images");
    for (name, text) in FILES {
        let path = home.join(name);
        // An unchanged file is not rewritten, because another process may be reading it.
        if std::fs::read(&path).is_ok_and(|there| there == text.as_bytes()) {
            continue;
        }
        let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        made.and_then(|()| std::fs::write(&path, text)).map_err(failed("write", &path))?;
    }
    Ok(home)
}
