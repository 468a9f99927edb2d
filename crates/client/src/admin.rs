//! What a key of the role `admin` may do, and what needs no key: projects, keys, the node, the server's health.

use api::account::{CreateKey, Key, NewKey, Project, PutProject, RotateKey};
use api::limits;
use api::server::{Drain, Health, NodeStatus};
use reqwest::Method;

use crate::client::{Client, escape};
use crate::error::Error;
use crate::link::Ask;

impl Client {
    /// All projects.
    ///
    /// # Errors
    /// The key's role does not allow it.
    pub async fn projects(&self) -> Result<Vec<Project>, Error> {
        self.pages("/v1/projects").await
    }

    /// Makes a project, or gives it another quota.
    ///
    /// # Errors
    /// The name is none, or the key's role does not allow it.
    pub async fn put_project(&self, name: &str, project: &PutProject) -> Result<Project, Error> {
        self.link.call(&Ask::new(Method::PUT, format!("/v1/projects/{}", escape(name))).json(project)?).await
    }

    /// All keys, without their secrets.
    ///
    /// # Errors
    /// The key's role does not allow it.
    pub async fn keys(&self) -> Result<Vec<Key>, Error> {
        self.pages("/v1/keys").await
    }

    /// Makes a key. Its secret is said once; a connection that breaks after the request was sent may leave a key that
    /// nobody knows the secret of, and the error says so.
    ///
    /// # Errors
    /// There is no such project, or the key's role does not allow it.
    pub async fn create_key(&self, request: &CreateKey) -> Result<NewKey, Error> {
        self.link.call(&Ask::new(Method::POST, "/v1/keys").json(request)?).await
    }

    /// Makes a new key in place of another, which still works for the overlap.
    ///
    /// # Errors
    /// There is no such key, or the key's role does not allow it.
    pub async fn rotate_key(&self, id: &str, request: RotateKey) -> Result<NewKey, Error> {
        let path = format!("/v1/keys/{}/rotate", escape(id));
        self.link.call(&Ask::new(Method::POST, path).json(&request)?).await
    }

    /// Makes a key worthless. Can be repeated.
    ///
    /// # Errors
    /// There is no such key, or the key's role does not allow it.
    pub async fn revoke_key(&self, id: &str) -> Result<(), Error> {
        self.link.done(&Ask::new(Method::DELETE, format!("/v1/keys/{}", escape(id)))).await
    }

    /// How the machine is doing.
    ///
    /// # Errors
    /// The key's role does not allow it.
    pub async fn node(&self) -> Result<NodeStatus, Error> {
        self.link.call(&Ask::get("/v1/node")).await
    }

    /// Has the machine refuse new sandboxes, or take them again.
    ///
    /// # Errors
    /// The key's role does not allow it.
    pub async fn drain(&self, draining: bool) -> Result<NodeStatus, Error> {
        self.link.call(&Ask::new(Method::PUT, "/v1/node/drain").json(&Drain { draining })?).await
    }

    /// Whether the server works. Asked once: how it is now is the question.
    ///
    /// # Errors
    /// It does not answer, or it is not a server of ours.
    pub async fn health(&self) -> Result<Health, Error> {
        let ask = Ask::get("/healthz");
        let response = self.link.send(&ask).await.map_err(|failure| failure.error)?;
        let status = response.status();
        let body =
            self.link.body(&ask, response, limits::BODY_BYTES_MAX).await.map_err(|failure| failure.error)?;
        serde_json::from_slice(&body)
            .map_err(|error| self.link.protocol(format!("malformed response {status} to /healthz: {error}")))
    }
}
