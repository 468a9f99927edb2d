//! Presets of a policy: named sets of hosts, restrictions for the packages, and the package files that a
//! sandbox received.

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::limits;

/// Maximum number of packages of one kind that a policy may list, and maximum length of a package name. The
/// maximum length is npm's.
const PACKAGES_MAX: usize = 1000;
const PACKAGE_BYTES_MAX: usize = 214;

/// Named set of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// Python package index, for pip and uv.
    PythonPackages,
    /// npm registry.
    NodePackages,
    /// Debian archive, for apt.
    DebianPackages,
    /// Public Git hosting services, over HTTPS.
    Git,
}

/// Restrictions for the package presets. A list of packages must also include their dependencies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Packages {
    /// Allowed Python packages by name, at most 1,000. If absent, all packages are allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub python: Option<Vec<String>>,
    /// Allowed npm packages by name, at most 1,000. If absent, all packages are allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<Vec<String>>,
    /// Allowed Debian packages by name, at most 1,000. If absent, all packages are allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub debian: Option<Vec<String>>,
    /// Minimum time since a Python or npm file was published, in milliseconds. Default 0. Most malicious packages are discovered soon after
    /// publication.
    pub minimum_age_ms: u64,
}

/// Package file that a sandbox received: an entry of its lock record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
// Renamed because schema names must be unique, and `code::Installed` would otherwise have the same schema
// name.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = PackageFile))]
pub struct Installed {
    /// Preset through which the sandbox received the file.
    pub kind: Preset,
    /// Package name.
    pub package: String,
    /// File name.
    pub file: String,
    /// Hash of the file: `sha256:` and hexadecimal digits. For npm, `sha512-` and base64, as in an npm lock file.
    pub hash: String,
    /// True if the server already had the file and did not fetch it for this sandbox.
    pub cached: bool,
    /// Time when the sandbox received the file, Unix time in milliseconds.
    pub at_ms: u64,
}

impl Preset {
    /// All presets.
    pub const ALL: [Self; 4] = [Self::PythonPackages, Self::NodePackages, Self::DebianPackages, Self::Git];

    /// Returns the name that the wire protocol uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::PythonPackages => "python-packages",
            Self::NodePackages => "node-packages",
            Self::DebianPackages => "debian-packages",
            Self::Git => "git",
        }
    }

    /// Returns the preset with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|preset| preset.name() == name)
    }
}

impl Packages {
    /// Returns the allowed packages of a kind, or `None` if all packages are allowed.
    pub fn only(&self, kind: Preset) -> Option<&Vec<String>> {
        match kind {
            Preset::PythonPackages => self.python.as_ref(),
            Preset::NodePackages => self.node.as_ref(),
            Preset::DebianPackages => self.debian.as_ref(),
            Preset::Git => None,
        }
    }

    pub(super) fn limit(&mut self, kind: Preset, only: Vec<String>) -> Result<(), Error> {
        match kind {
            Preset::PythonPackages => self.python = Some(only),
            Preset::NodePackages => self.node = Some(only),
            Preset::DebianPackages => self.debian = Some(only),
            Preset::Git => {
                return Err(Error::invalid(
                    "the preset git does not take a list of packages",
                    "List hosts instead.",
                ));
            }
        }
        Ok(())
    }

    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        for names in [&self.python, &self.node, &self.debian].into_iter().flatten() {
            if names.is_empty() {
                return Err(Error::invalid(
                    "a list of packages in the policy is empty",
                    "List at least one package, or omit the preset to allow none.",
                ));
            }
            if names.len() > PACKAGES_MAX {
                return Err(limits::exceeded(
                    "the number of packages in a policy",
                    names.len() as u64,
                    PACKAGES_MAX as u64,
                ));
            }
            let plain = |name: &&String| {
                let fits = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._+@/-".contains(&byte));
                name.is_empty() || name.len() > PACKAGE_BYTES_MAX || !fits
            };
            if let Some(wrong) = names.iter().find(plain) {
                return Err(Error::invalid(
                    format!("{wrong:?} is not a valid package name"),
                    "Use the name that the package has in its index, without a version.",
                ));
            }
        }
        Ok(())
    }
}
