//! Datasets: files that a project stores, copied into sandboxes before anything runs in them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::files::FilePath;
use crate::limits;

/// Maximum number of datasets of one project.
pub const DATASETS_MAX: usize = 1000;
/// Maximum size of one dataset.
pub const DATASET_BYTES_MAX: u64 = 8 << 30;
/// Maximum number of datasets that a create request can copy into one sandbox.
pub const PUT_MAX: usize = 64;
/// Maximum length of a dataset name.
const NAME_BYTES_MAX: usize = 63;

/// File that a project stores, to be copied into sandboxes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Dataset {
    /// Dataset name: lower-case letters, digits, `.`, `_` and `-`, beginning with a letter or digit, at most 63 characters.
    pub name: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// SHA-256 of the content, 64 hexadecimal digits.
    pub sha256: String,
    /// Time of the upload by the server's clock, Unix time in milliseconds.
    pub created_at_ms: u64,
}

/// Checks a dataset name.
///
/// # Errors
/// Returns `invalid_request` if the name is not a valid dataset name.
pub fn check_name(name: &str) -> Result<(), Error> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let first = name.bytes().next().is_some_and(plain);
    let rest = name.bytes().all(|byte| plain(byte) || matches!(byte, b'.' | b'_' | b'-'));
    if first && rest && name.len() <= NAME_BYTES_MAX {
        return Ok(());
    }
    let shown: String = name.chars().take(NAME_BYTES_MAX).collect();
    Err(Error::invalid(
        format!("{shown:?} is not a valid dataset name"),
        format!(
            "Use at most {NAME_BYTES_MAX} lower-case letters, digits, '.', '_' and '-', starting with a letter or a digit."
        ),
    ))
}

/// Checks the datasets of a create request: their number, their paths in the sandbox and their names.
///
/// # Errors
/// Returns an error if there are too many entries, or an error that describes the first invalid entry.
pub fn check_places(places: &BTreeMap<String, String>) -> Result<(), Error> {
    if places.len() > PUT_MAX {
        return Err(limits::exceeded("the number of datasets", places.len() as u64, PUT_MAX as u64));
    }
    for (path, name) in places {
        FilePath::new(path.as_bytes())?;
        check_name(name)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_piece_of_any_path() {
        for good in ["a", "0", "sales-2024.csv", "a..b", "x_1"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        let long = "a".repeat(64);
        for bad in ["", ".", "..", "-a", "A", "a/b", "a%2fb", "a\0", "ä", "a b", long.as_str()] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn places_are_paths_and_few() {
        let one = |path: &str, name: &str| BTreeMap::from([(path.to_owned(), name.to_owned())]);
        assert!(check_places(&one("data/a.csv", "a.csv")).is_ok());
        assert!(check_places(&one("../a", "a")).is_err());
        assert!(check_places(&one("", "a")).is_err());
        assert!(check_places(&one("a", "A")).is_err());
        let many = (0..65).map(|number| (format!("f{number}"), "a".to_owned())).collect();
        assert!(check_places(&many).is_err());
    }
}
