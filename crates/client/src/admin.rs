//! Administrative requests. Requests for projects, keys and the node need the role `admin`; a request for the
//! server's health needs no key.

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
    /// Returns an error if the key's role does not allow this.
    pub async fn projects(&self) -> Result<Vec<Project>, Error> {
        self.pages("/v1/projects").await
    }

    /// Creates a project, or replaces the quota of an existing one.
    ///
    /// # Errors
    /// Returns an error if the name is invalid or if the key's role does not allow this.
    pub async fn put_project(&self, name: &str, project: &PutProject) -> Result<Project, Error> {
        self.link
            .call(&ApiRequest::new(Method::PUT, format!("/v1/projects/{}", escape(name))).json(project)?)
            .await
    }

    /// Lists all keys, without their secrets.
    ///
    /// # Errors
    /// Returns an error if the key's role does not allow this.
    pub async fn keys(&self) -> Result<Vec<Key>, Error> {
        self.pages("/v1/keys").await
    }

    /// Creates a key. Only the response contains the key's secret. If the connection breaks after the request
    /// was sent, a key may exist whose secret is lost; the error then says so.
    ///
    /// # Errors
    /// Returns an error if the project does not exist or if the key's role does not allow this.
    pub async fn create_key(&self, request: &CreateKey) -> Result<NewKey, Error> {
        self.link.call(&ApiRequest::new(Method::POST, "/v1/keys").json(request)?).await
    }

    /// Creates a replacement for a key. The old key remains valid during the overlap period.
    ///
    /// # Errors
    /// Returns an error if the key does not exist or if the key's role does not allow this.
    pub async fn rotate_key(&self, id: &str, request: RotateKey) -> Result<NewKey, Error> {
        let path = format!("/v1/keys/{}/rotate", escape(id));
        self.link.call(&ApiRequest::new(Method::POST, path).json(&request)?).await
    }

    /// Revokes a key. This is idempotent.
    ///
    /// # Errors
    /// Returns an error if the key does not exist or if the key's role does not allow this.
    pub async fn revoke_key(&self, id: &str) -> Result<(), Error> {
        self.link.done(&ApiRequest::new(Method::DELETE, format!("/v1/keys/{}", escape(id)))).await
    }

    /// Returns the node's status.
    ///
    /// # Errors
    /// Returns an error if the key's role does not allow this.
    pub async fn node(&self) -> Result<NodeStatus, Error> {
        self.link.call(&ApiRequest::get("/v1/node")).await
    }

    /// Starts or ends draining of the node. A draining node accepts no new sandboxes.
    ///
    /// # Errors
    /// Returns an error if the key's role does not allow this.
    pub async fn drain(&self, draining: bool) -> Result<NodeStatus, Error> {
        self.link.call(&ApiRequest::new(Method::PUT, "/v1/node/drain").json(&Drain { draining })?).await
    }

    /// Returns the server's health. Does not retry, because the caller wants the current state.
    ///
    /// # Errors
    /// Returns an error if the server does not respond, or if it is not a Bellglass server.
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
