//! Secrets as the broker knows them: by name, until the moment of use.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::authority::Authority;

/// The value of a secret. It is not shown, written down or sent anywhere by accident: whoever wants it says so.
#[derive(Clone)]
pub struct SecretValue(Zeroizing<String>);

/// Who keeps the secrets of projects. It is asked at the moment of use, so that a change counts from the next request on.
#[async_trait]
pub trait Vault: Send + Sync {
    /// The value of a secret of a project, if it is set.
    async fn secret(&self, project: &str, name: &str) -> Result<Option<SecretValue>, api::Error>;

    /// Who vouches, in the sandboxes of a project, for the hosts to which secrets are bound. Always the same one.
    async fn authority(&self, project: &str) -> Result<Arc<Authority>, api::Error>;
}

/// The secrets that one sandbox may use.
pub struct Keyring {
    vault: Arc<dyn Vault>,
    project: String,
    sandbox: String,
}

impl SecretValue {
    /// A value.
    pub fn new(value: String) -> Self {
        Self(Zeroizing::new(value))
    }

    /// The value itself.
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
    /// The secrets of a project, in one of its sandboxes.
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

/// What stands for a secret in a sandbox: always the same there, another elsewhere, and worth nothing.
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
        // S-06
        let value = SecretValue::new("canary-value".into());
        assert_eq!(format!("{value:?} {:?}", Some(&value)), "[secret] Some([secret])");
        assert_eq!(value.expose(), "canary-value");
    }

    #[test]
    fn a_placeholder_is_that_of_one_sandbox_and_one_name() {
        assert_eq!(placeholder("s1", "A"), placeholder("s1", "A"));
        assert_ne!(placeholder("s1", "A"), placeholder("s2", "A"));
        // None is the beginning of another, so none is replaced by another's value.
        assert!(!placeholder("s1", "A_B").starts_with(&placeholder("s1", "A")));
        assert!(placeholder("s1", "API_KEY").starts_with("bellglass-secret-API_KEY-"));
    }
}
