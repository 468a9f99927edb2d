//! Requests for contexts. A context is an interpreter that outlives a single cell; its cells are execs.

use api::code::{ContextInfo, ContextSpec, Variable};
use api::server::Page;
use api::{ContextId, SandboxId};
use reqwest::Method;

use crate::client::Client;
use crate::error::Error;
use crate::execs::CODE_WITHIN;
use crate::link::ApiRequest;

impl Client {
    /// Creates a context. A retry does not create a second context.
    ///
    /// # Errors
    /// Returns an error if the request is invalid or if the interpreter failed to start.
    pub async fn create_context(
        &self,
        sandbox: &SandboxId,
        spec: &ContextSpec,
    ) -> Result<ContextInfo, Error> {
        spec.check().map_err(Error::Refused)?;
        let ask =
            ApiRequest::new(Method::POST, format!("/v1/sandboxes/{sandbox}/contexts")).json(spec)?.once()?;
        self.link.call(&ask.within(self.starts_within())).await
    }

    /// Lists the contexts of a sandbox.
    ///
    /// # Errors
    /// Returns an error if the sandbox is gone.
    pub async fn contexts(&self, sandbox: &SandboxId) -> Result<Vec<ContextInfo>, Error> {
        let ask = ApiRequest::get(format!("/v1/sandboxes/{sandbox}/contexts"));
        let page: Page<ContextInfo> = self.link.call(&ask).await?;
        Ok(page.items)
    }

    /// Returns the state of a context.
    ///
    /// # Errors
    /// Returns an error if the context does not exist or if its sandbox is gone.
    pub async fn context(&self, sandbox: &SandboxId, context: &ContextId) -> Result<ContextInfo, Error> {
        self.link.call(&ApiRequest::get(path(sandbox, context))).await
    }

    /// Removes a context and stops the cell that is running in it.
    ///
    /// # Errors
    /// Returns an error if the context does not exist or if its sandbox is gone.
    pub async fn remove_context(&self, sandbox: &SandboxId, context: &ContextId) -> Result<(), Error> {
        self.link.done(&ApiRequest::new(Method::DELETE, path(sandbox, context))).await
    }

    /// Restarts the interpreter of a context. All variables are lost. The request is not retried, because it
    /// cannot safely be repeated: if the connection breaks, the error says that the request may have reached
    /// the server.
    ///
    /// # Errors
    /// Returns an error if the context does not exist or if the interpreter failed to start.
    pub async fn restart_context(
        &self,
        sandbox: &SandboxId,
        context: &ContextId,
    ) -> Result<ContextInfo, Error> {
        let ask = ApiRequest::new(Method::POST, format!("{}/restart", path(sandbox, context)));
        self.link.call(&ask.within(self.starts_within())).await
    }

    /// Interrupts the cell that is running in a context, if any. The variables survive if the cell reacts to
    /// the interrupt. Like a restart, the request is not retried.
    ///
    /// # Errors
    /// Returns an error if the context does not exist or if its sandbox is gone.
    pub async fn interrupt_context(
        &self,
        sandbox: &SandboxId,
        context: &ContextId,
    ) -> Result<ContextInfo, Error> {
        self.link.call(&ApiRequest::new(Method::POST, format!("{}/interrupt", path(sandbox, context)))).await
    }

    /// Lists the variables of a context.
    ///
    /// # Errors
    /// Returns an error if the context does not exist or if a cell is running in it.
    pub async fn variables(&self, sandbox: &SandboxId, context: &ContextId) -> Result<Vec<Variable>, Error> {
        let ask = ApiRequest::get(format!("{}/variables", path(sandbox, context)));
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
