//! Secrets, which the broker knows only by name until they are used.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::authority::Authority;

/// The value of a secret. It cannot be displayed, logged or serialized by accident: access is explicit,
/// through `expose`.
#[derive(Clone)]
pub struct SecretValue(Zeroizing<String>);

/// The store of the projects' secrets. The broker reads a secret each time it is used, so a change takes
/// effect with the next request.
#[async_trait]
pub trait Vault: Send + Sync {
    /// Returns the value of a project's secret, if it is set.
    async fn secret(&self, project: &str, name: &str) -> Result<Option<SecretValue>, api::Error>;

    /// Returns the certificate authority that a project's sandboxes trust for hosts with bound secrets. A
    /// project always has the same authority.
    async fn authority(&self, project: &str) -> Result<Arc<Authority>, api::Error>;
}

/// The secrets that one sandbox may use.
pub struct Keyring {
    vault: Arc<dyn Vault>,
    project: String,
    sandbox: String,
}

impl SecretValue {
    /// Wraps a value.
    pub fn new(value: String) -> Self {
        Self(Zeroizing::new(value))
    }

    /// Returns the plain value.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("[secret]")
    }
}

impl Keyring {
    /// Creates the keyring for one of a project's sandboxes.
    pub fn new(vault: Arc<dyn Vault>, project: &str, sandbox: &str) -> Self {
        Self { vault, project: project.to_owned(), sandbox: sandbox.to_owned() }
    }

    pub(crate) async fn secret(&self, name: &str) -> Result<Option<SecretValue>, api::Error> {
        self.vault.secret(&self.project, name).await
    }

    pub(crate) async fn authority(&self) -> Result<Arc<Authority>, api::Error> {
        self.vault.authority(&self.project).await
    }

    pub(crate) fn placeholder(&self, name: &str) -> String {
        placeholder(&self.sandbox, name)
    }
}

/// Returns the placeholder that stands for a secret in a sandbox. It is constant within a sandbox, differs
/// between sandboxes, and is useless elsewhere.
pub fn placeholder(sandbox: &str, name: &str) -> String {
    let hash = Sha256::digest(format!("{sandbox}/{name}"));
    let end: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("bellglass-secret-{name}-{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_not_shown_by_accident() {
        // Covers attack S-06.
        let value = SecretValue::new("canary-value".into());
        assert_eq!(format!("{value:?} {:?}", Some(&value)), "[secret] Some([secret])");
        assert_eq!(value.expose(), "canary-value");
    }

    #[test]
    fn a_placeholder_is_that_of_one_sandbox_and_one_name() {
        assert_eq!(placeholder("s1", "A"), placeholder("s1", "A"));
        assert_ne!(placeholder("s1", "A"), placeholder("s2", "A"));
        // No placeholder is a prefix of another, so none is replaced by another secret's value.
        assert!(!placeholder("s1", "A_B").starts_with(&placeholder("s1", "A")));
        assert!(placeholder("s1", "API_KEY").starts_with("bellglass-secret-API_KEY-"));
    }
}
