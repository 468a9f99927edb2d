//! Administrative requests: projects, keys and the node, which need the role `admin`, and the server's
//! health, which needs no key.

use api::account::{CreateKey, Key, NewKey, Project, PutProject, RotateKey};
use api::limits;
use api::server::{Drain, Health, NodeStatus};
use reqwest::Method;

use crate::client::{Client, escape};
use crate::error::Error;
use crate::link::ApiRequest;

impl Client {
    /// Lists all projects.
    ///
    /// # Errors
    /// The key's role does not allow this.
    pub async fn projects(&self) -> Result<Vec<Project>, Error> {
        self.pages("/v1/projects").await
    }

    /// Creates a project, or replaces its quota.
    ///
    /// # Errors
    /// The name is invalid, or the key's role does not allow this.
    pub async fn put_project(&self, name: &str, project: &PutProject) -> Result<Project, Error> {
        self.link
            .call(&ApiRequest::new(Method::PUT, format!("/v1/projects/{}", escape(name))).json(project)?)
            .await
    }

    /// Lists all keys, without their secrets.
    ///
    /// # Errors
    /// The key's role does not allow this.
    pub async fn keys(&self) -> Result<Vec<Key>, Error> {
        self.pages("/v1/keys").await
    }

    /// Creates a key. The response is the only place where its secret is shown. If the connection breaks
    /// after the request was sent, a key may exist whose secret is lost; the error reports this.
    ///
    /// # Errors
    /// The project does not exist, or the key's role does not allow this.
    pub async fn create_key(&self, request: &CreateKey) -> Result<NewKey, Error> {
        self.link.call(&ApiRequest::new(Method::POST, "/v1/keys").json(request)?).await
    }

    /// Creates a replacement for a key. The old key remains valid for the overlap.
    ///
    /// # Errors
    /// The key does not exist, or the key's role does not allow this.
    pub async fn rotate_key(&self, id: &str, request: RotateKey) -> Result<NewKey, Error> {
        let path = format!("/v1/keys/{}/rotate", escape(id));
        self.link.call(&ApiRequest::new(Method::POST, path).json(&request)?).await
    }

    /// Revokes a key. Can be repeated.
    ///
    /// # Errors
    /// The key does not exist, or the key's role does not allow this.
    pub async fn revoke_key(&self, id: &str) -> Result<(), Error> {
        self.link.done(&ApiRequest::new(Method::DELETE, format!("/v1/keys/{}", escape(id)))).await
    }

    /// Returns the status of the node.
    ///
    /// # Errors
    /// The key's role does not allow this.
    pub async fn node(&self) -> Result<NodeStatus, Error> {
        self.link.call(&ApiRequest::get("/v1/node")).await
    }

    /// Drains the node, so that it accepts no new sandboxes, or ends the drain.
    ///
    /// # Errors
    /// The key's role does not allow this.
    pub async fn drain(&self, draining: bool) -> Result<NodeStatus, Error> {
        self.link.call(&ApiRequest::new(Method::PUT, "/v1/node/drain").json(&Drain { draining })?).await
    }

    /// Returns the health of the server. The request is not retried, because the caller wants the current
    /// state.
    ///
    /// # Errors
    /// The server does not respond, or it is not a Bellglass server.
    pub async fn health(&self) -> Result<Health, Error> {
        let ask = ApiRequest::get("/healthz");
        let response = self.link.send(&ask).await.map_err(|failure| failure.error)?;
        let status = response.status();
        let body =
            self.link.body(&ask, response, limits::BODY_BYTES_MAX).await.map_err(|failure| failure.error)?;
        serde_json::from_slice(&body)
            .map_err(|error| self.link.protocol(format!("malformed response {status} to /healthz: {error}")))
    }
}
