//! The packages that each sandbox received, as lines in a file beside its record.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use api::SandboxId;
use api::policy::Installed;
use host::error::Error;

use super::{Journal, failed};

/// Maximum size of the package list of one sandbox in bytes: enough for about ten thousand packages.
const PACKAGES_BYTES_MAX: u64 = 4 << 20;

impl Journal {
    /// Records that a sandbox received a package.
    ///
    /// # Errors
    /// A file system operation failed, or the list has reached its maximum size.
    pub fn add_package(&self, id: &SandboxId, installed: &Installed) -> Result<(), Error> {
        let path = self.packages_path(id);
        // Each line begins with its newline, because the previous line may be incomplete if a server was
        // killed while it wrote that line.
        let mut line = vec![b'\n'];
        serde_json::to_writer(&mut line, installed)
            .map_err(io::Error::from)
            .map_err(failed("write", &path))?;
        let mut options = OpenOptions::new();
        let mut file =
            options.append(true).create(true).mode(0o600).open(&path).map_err(failed("open", &path))?;
        if file.metadata().map_err(failed("inspect", &path))?.len() > PACKAGES_BYTES_MAX {
            return Err(failed("write", &path)(io::ErrorKind::FileTooLarge.into()));
        }
        file.write_all(&line).map_err(failed("write", &path))
    }

    /// Returns the packages that a sandbox received.
    ///
    /// # Errors
    /// A file system operation failed.
    pub fn packages(&self, id: &SandboxId) -> Result<Vec<Installed>, Error> {
        let path = self.packages_path(id);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(failed("read", &path))?,
        };
        // Skips incomplete lines that killed servers left behind.
        Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    pub(super) fn packages_path(&self, id: &SandboxId) -> PathBuf {
        self.named(id, "packages")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::policy::Preset;

    #[test]
    fn a_package_after_an_incomplete_line_is_not_lost() {
        let data = tempfile::tempdir().unwrap();
        let journal = Journal::open(data.path()).unwrap();
        let id: SandboxId = "a".parse().unwrap();
        let package = |name: &str| Installed {
            kind: Preset::PythonPackages,
            package: name.into(),
            file: String::new(),
            hash: String::new(),
            cached: false,
            at_ms: 1,
        };
        journal.add_package(&id, &package("first")).unwrap();
        // Simulates a server that is killed while it writes the next line.
        let mut file = fs::File::options().append(true).open(data.path().join("node/a.packages")).unwrap();
        file.write_all(b"\n{\"kind\":").unwrap();
        journal.add_package(&id, &package("second")).unwrap();
        let names: Vec<String> = journal.packages(&id).unwrap().into_iter().map(|one| one.package).collect();
        assert_eq!(names, ["first", "second"]);
    }
}
