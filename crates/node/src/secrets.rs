//! Secrets on this machine. Policies contain only their names, and environment variables contain only
//! placeholders. Values stay in the vault: the broker reads a value when a request needs it, and the node
//! never stores it.

use std::sync::Arc;
use std::time::Duration;

use api::exec::ExecSpec;
use api::policy::Policy;
use api::secret::{TRUST_FILE, TRUST_VARIABLES};
use api::{ErrorCode, Layer, Ran, Retry, SandboxId};
use async_trait::async_trait;
pub use egress::authority::{Authority, Error as AuthorityError};
pub use egress::secret::{Keyring, SecretValue, Vault, placeholder};
use tokio::sync::watch;

/// Timeout for the vault to become available. A restarted server takes over sandboxes before it has opened
/// its store, and waits at most this long for the store.
const THERE_WITHIN: Duration = Duration::from_secs(15);

/// A vault that becomes available later. Requests that arrive before that wait for a limited time.
#[derive(Default)]
pub(crate) struct LateVault {
    vault: watch::Sender<Option<Arc<dyn Vault>>>,
}

impl LateVault {
    /// Makes the vault available.
    pub fn set(&self, vault: Arc<dyn Vault>) {
        self.vault.send_replace(Some(vault));
    }

    async fn there(&self) -> Result<Arc<dyn Vault>, api::Error> {
        let mut seen = self.vault.subscribe();
        let there = tokio::time::timeout(THERE_WITHIN, seen.wait_for(Option::is_some)).await;
        there.ok().and_then(Result::ok).and_then(|vault| vault.clone()).ok_or_else(|| api::Error {
            code: ErrorCode::StoreUnavailable,
            message: "the secret store is not available yet".into(),
            layer: Layer::Platform,
            ran: Ran::No,
            retry: Retry::Safe,
            fix: "Retry when the server has started.".into(),
        })
    }
}

#[async_trait]
impl Vault for LateVault {
    async fn secret(&self, project: &str, name: &str) -> Result<Option<SecretValue>, api::Error> {
        self.there().await?.secret(project, name).await
    }

    async fn authority(&self, project: &str) -> Result<Arc<Authority>, api::Error> {
        self.there().await?.authority(project).await
    }
}

/// Adds the placeholders of the bound secrets to the environment of an exec, and the variables that make
/// programs trust the project's authority. Variables that the exec sets itself are kept.
#[must_use]
pub(crate) fn pointed(policy: &Policy, sandbox: &SandboxId, mut spec: ExecSpec) -> ExecSpec {
    if policy.secrets.is_empty() {
        return spec;
    }
    for name in policy.secrets.iter().map(|binding| &binding.name) {
        spec.env.entry(name.clone()).or_insert_with(|| placeholder(sandbox.as_str(), name));
    }
    for variable in TRUST_VARIABLES {
        spec.env.entry(variable.to_owned()).or_insert_with(|| TRUST_FILE.to_owned());
    }
    spec
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exec_has_placeholders_for_what_is_bound_and_its_own_variables_stay() {
        let id: SandboxId = "s1".parse().unwrap();
        let policy = Policy::of_words(&["a.org", "secret:API_KEY=a.org", "secret:OTHER=a.org"]).unwrap();
        let spec = ExecSpec { env: [("OTHER".to_owned(), "own".to_owned())].into(), ..ExecSpec::default() };
        let spec = pointed(&policy, &id, spec);
        assert_eq!(spec.env["API_KEY"], placeholder("s1", "API_KEY"));
        assert_eq!((spec.env["OTHER"].as_str(), spec.env["SSL_CERT_FILE"].as_str()), ("own", TRUST_FILE));
        let closed = pointed(&Policy::default(), &id, ExecSpec::default());
        assert!(closed.env.is_empty(), "who has no secrets trusts nobody more");
    }
}
