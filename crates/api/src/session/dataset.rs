//! Datasets of a session: files that are copied into each of its sandboxes.

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Maximum number of datasets of one session.
pub const DATASETS_MAX: usize = 64;
/// Maximum size of one dataset. A disk of the default size can hold it, with space left for derived files.
pub const DATASET_BYTES_MAX: u64 = 512 << 20;
/// Maximum total size of the datasets of one session.
pub const DATASETS_BYTES_MAX: u64 = 4 << 30;
/// Maximum length of a dataset name, so that the name of the dataset's file is not too long for the file
/// system.
const DATASET_NAME_BYTES_MAX: usize = 200;

/// File that a session copies into its sandboxes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SessionDataset {
    /// Dataset name.
    pub name: String,
    /// Path in the sandbox.
    pub path: String,
    /// Size in bytes.
    pub size_bytes: u64,
}

/// Returns the path of a dataset in the sandbox (requirement A5.01).
///
/// # Errors
/// Returns an error if the name is not a valid dataset name.
pub fn dataset_path(name: &str) -> Result<String, Error> {
    let bad = name.is_empty()
        || name.len() > DATASET_NAME_BYTES_MAX
        || name.chars().any(char::is_control)
        || [".", ".."].contains(&name);
    if bad {
        let shown: String = name.chars().take(DATASET_NAME_BYTES_MAX).collect();
        return Err(Error::invalid(
            format!("{shown:?} is not a valid dataset name"),
            format!("Use 1 to {DATASET_NAME_BYTES_MAX} bytes without control characters."),
        ));
    }
    Ok(format!("/tmp/data/{}.csv", name.replace(['/', ' '], "_")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dataset_is_a_file_of_its_name() {
        // Covers requirement A5.01.
        for (name, path) in [
            ("sales", "/tmp/data/sales.csv"),
            ("a/b c", "/tmp/data/a_b_c.csv"),
            ("../up", "/tmp/data/.._up.csv"),
        ] {
            assert_eq!(dataset_path(name).unwrap(), path);
        }
        for bad in ["", ".", "..", "a\nb", "a\0", &"x".repeat(201)] {
            assert!(dataset_path(bad).is_err(), "{bad:?}");
        }
    }
}
