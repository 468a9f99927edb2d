//! Tests of the store, each with a real file.

mod account;
mod life;
mod outage;
mod page;
mod request;

use api::account::Quota;
use api::sandbox::{CreateSandbox, EndReason, Sandbox, SandboxState};

use super::{Error, Request, Requested, Store};

/// A store in a temporary directory, with the project `p`.
pub(crate) struct Place {
    pub store: Store,
    pub path: std::path::PathBuf,
    _directory: tempfile::TempDir,
}

impl Place {
    pub(crate) async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bellglass.db");
        let store = Store::open(&path).await.unwrap();
        store.put_project("p", &Quota::default(), 1).await.unwrap();
        Self { store, path, _directory: directory }
    }

    /// Requests a sandbox in the project `p`, with the default quota.
    pub(crate) async fn ask(&self, sandbox: &Sandbox) -> Result<Requested, Error> {
        ask(&self.store, sandbox, &Quota::default(), None).await
    }

    /// Runs an SQL statement on a separate connection.
    pub(crate) async fn meddle(&self, statement: &'static str) {
        use sqlx::{ConnectOptions, Connection};
        let mut connection = super::options(&self.path).connect().await.unwrap();
        sqlx::query(statement).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    }
}

pub(crate) async fn ask(
    store: &Store,
    sandbox: &Sandbox,
    quota: &Quota,
    idempotency: Option<(&str, [u8; 32])>,
) -> Result<Requested, Error> {
    store.request(&Request { sandbox, quota, idempotency }).await
}

/// Returns a sandbox in the project `p` that has not been requested yet.
pub(crate) fn sandbox(id: &str) -> Sandbox {
    Sandbox::asked(id.parse().unwrap(), "p", &CreateSandbox::default(), &Default::default(), 1)
}

pub(crate) fn named(id: &str, name: &str) -> Sandbox {
    Sandbox { name: Some(name.parse().unwrap()), ..sandbox(id) }
}

pub(crate) fn ended(sandbox: &Sandbox, reason: EndReason) -> Sandbox {
    Sandbox { state: reason.state(), reason: Some(reason), ended_at_ms: Some(9), ..sandbox.clone() }
}

pub(crate) fn in_state(sandbox: &Sandbox, state: SandboxState) -> Sandbox {
    Sandbox { state, ..sandbox.clone() }
}
