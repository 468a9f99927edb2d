//! What a client does with secrets: none of it shows a value.

use api::secret::{PutSecret, Secret, check_name};
use api::server::Page;
use reqwest::Method;

use crate::client::Client;
use crate::error::Error;
use crate::link::Ask;

impl Client {
    /// Keeps a value under a name, in the place of the one before. Can be repeated.
    ///
    /// # Errors
    /// The name or the value is none, or the key's role does not allow it.
    pub async fn put_secret(&self, name: &str, secret: &PutSecret) -> Result<Secret, Error> {
        check_name(name).map_err(Error::Refused)?;
        secret.check().map_err(Error::Refused)?;
        self.link.call(&Ask::new(Method::PUT, format!("/v1/secrets/{name}")).json(secret)?).await
    }

    /// The project's secrets, by name, without their values.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn secrets(&self) -> Result<Vec<Secret>, Error> {
        let page: Page<Secret> = self.link.call(&Ask::get("/v1/secrets")).await?;
        Ok(page.items)
    }

    /// Removes a secret. One that is not there is fine.
    ///
    /// # Errors
    /// The name is none, or the key's role does not allow it.
    pub async fn remove_secret(&self, name: &str) -> Result<(), Error> {
        check_name(name).map_err(Error::Refused)?;
        self.link.done(&Ask::new(Method::DELETE, format!("/v1/secrets/{name}"))).await
    }
}
