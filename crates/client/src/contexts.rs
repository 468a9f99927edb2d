//! What a client does with contexts: interpreters that stay. Their cells are execs.

use api::code::{ContextInfo, ContextSpec, Variable};
use api::server::Page;
use api::{ContextId, SandboxId};
use reqwest::Method;

use crate::client::Client;
use crate::error::Error;
use crate::execs::CODE_WITHIN;
use crate::link::Ask;

impl Client {
    /// Makes a context. However often it has to be asked, one is made.
    ///
    /// # Errors
    /// The request is wrong, or its interpreter could not be started.
    pub async fn create_context(
        &self,
        sandbox: &SandboxId,
        spec: &ContextSpec,
    ) -> Result<ContextInfo, Error> {
        spec.check().map_err(Error::Refused)?;
        let ask = Ask::new(Method::POST, format!("/v1/sandboxes/{sandbox}/contexts")).json(spec)?.once()?;
        self.link.call(&ask.within(self.starts_within())).await
    }

    /// The contexts of a sandbox.
    ///
    /// # Errors
    /// The sandbox is gone.
    pub async fn contexts(&self, sandbox: &SandboxId) -> Result<Vec<ContextInfo>, Error> {
        let ask = Ask::get(format!("/v1/sandboxes/{sandbox}/contexts"));
        let page: Page<ContextInfo> = self.link.call(&ask).await?;
        Ok(page.items)
    }

    /// How a context is doing.
    ///
    /// # Errors
    /// It is not known, or its sandbox is gone.
    pub async fn context(&self, sandbox: &SandboxId, context: &ContextId) -> Result<ContextInfo, Error> {
        self.link.call(&Ask::get(path(sandbox, context))).await
    }

    /// Ends a context, and the cell that runs in it.
    ///
    /// # Errors
    /// It is not known, or its sandbox is gone.
    pub async fn remove_context(&self, sandbox: &SandboxId, context: &ContextId) -> Result<(), Error> {
        self.link.done(&Ask::new(Method::DELETE, path(sandbox, context))).await
    }

    /// Has a context begin anew, without its variables. It cannot be sent twice for safety: when the connection breaks, the
    /// error says that it may have arrived.
    ///
    /// # Errors
    /// It is not known, or its interpreter could not be started.
    pub async fn restart_context(
        &self,
        sandbox: &SandboxId,
        context: &ContextId,
    ) -> Result<ContextInfo, Error> {
        let ask = Ask::new(Method::POST, format!("{}/restart", path(sandbox, context)));
        self.link.call(&ask.within(self.starts_within())).await
    }

    /// Ends the cell that runs in a context, if one does; its variables stay where the cell heeds that. As with a restart.
    ///
    /// # Errors
    /// It is not known, or its sandbox is gone.
    pub async fn interrupt_context(
        &self,
        sandbox: &SandboxId,
        context: &ContextId,
    ) -> Result<ContextInfo, Error> {
        self.link.call(&Ask::new(Method::POST, format!("{}/interrupt", path(sandbox, context)))).await
    }

    /// What a context has in its variables.
    ///
    /// # Errors
    /// It is not known, or runs a cell.
    pub async fn variables(&self, sandbox: &SandboxId, context: &ContextId) -> Result<Vec<Variable>, Error> {
        let ask = Ask::get(format!("{}/variables", path(sandbox, context)));
        let page: Page<Variable> = self.link.call(&ask).await?;
        Ok(page.items)
    }

    fn starts_within(&self) -> std::time::Duration {
        self.link.options.answer_within.max(CODE_WITHIN)
    }
}

fn path(sandbox: &SandboxId, context: &ContextId) -> String {
    format!("/v1/sandboxes/{sandbox}/contexts/{context}")
}
