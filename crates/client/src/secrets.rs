//! Requests for secrets. No response contains a secret's value.

use api::secret::{PutSecret, Secret, check_name};
use api::server::Page;
use reqwest::Method;

use crate::client::Client;
use crate::error::Error;
use crate::link::ApiRequest;

impl Client {
    /// Stores a value under a name. Replaces an existing value. This is idempotent.
    ///
    /// # Errors
    /// Returns an error if the name or the value is invalid or if the key's role does not allow this.
    pub async fn put_secret(&self, name: &str, secret: &PutSecret) -> Result<Secret, Error> {
        check_name(name).map_err(Error::Refused)?;
        secret.check().map_err(Error::Refused)?;
        self.link.call(&ApiRequest::new(Method::PUT, format!("/v1/secrets/{name}")).json(secret)?).await
    }

    /// Lists the project's secrets, sorted by name, without their values.
    ///
    /// # Errors
    /// Returns an error if the server does not respond.
    pub async fn secrets(&self) -> Result<Vec<Secret>, Error> {
        let page: Page<Secret> = self.link.call(&ApiRequest::get("/v1/secrets")).await?;
        Ok(page.items)
    }

    /// Removes a secret. Succeeds even if the secret does not exist.
    ///
    /// # Errors
    /// Returns an error if the name is invalid or if the key's role does not allow this.
    pub async fn remove_secret(&self, name: &str) -> Result<(), Error> {
        check_name(name).map_err(Error::Refused)?;
        self.link.done(&ApiRequest::new(Method::DELETE, format!("/v1/secrets/{name}"))).await
    }
}
