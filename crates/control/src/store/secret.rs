//! Encrypted secrets and certificate authorities. Every write in this module is on disk when its method
//! returns.

use api::secret::{SECRETS_MAX, Secret};

use super::account::refused;
use super::read::For;
use super::{Error, Lasting, Store, begin, failed, integer};

impl Store {
    /// Saves an encrypted value under a name, and replaces any previous value.
    ///
    /// # Errors
    /// Returns an error if the project does not exist, it has the maximum number of secrets, or the store
    /// does not respond.
    pub async fn put_secret(
        &self,
        project: &str,
        name: &str,
        sealed: &[u8],
        now_ms: u64,
    ) -> Result<Secret, Error> {
        const ACT: &str = "save a secret";
        let mut connection = self.connection(Lasting::Machine, ACT).await?;
        let mut transaction = begin(&mut connection, ACT).await?;
        let others: i64 = sqlx::query_scalar("SELECT count(*) FROM secrets WHERE project = ? AND name != ?")
            .bind(project)
            .bind(name)
            .fetch_one(&mut *transaction)
            .await
            .map_err(failed(ACT))?;
        if others >= integer(SECRETS_MAX) {
            return Err(Error::Quota { what: "secrets", most: SECRETS_MAX });
        }
        let created_at_ms: i64 = sqlx::query_scalar(
            "INSERT INTO secrets (project, name, sealed, created_at_ms, changed_at_ms) VALUES (?, ?, ?, ?, ?)
             ON CONFLICT (project, name) DO UPDATE SET sealed = excluded.sealed, changed_at_ms = excluded.changed_at_ms
             RETURNING created_at_ms",
        )
        .bind(project)
        .bind(name)
        .bind(sealed)
        .bind(integer(now_ms))
        .bind(integer(now_ms))
        .fetch_one(&mut *transaction)
        .await
        .map_err(|error| refused(error, ACT, project))?;
        transaction.commit().await.map_err(failed(ACT))?;
        self.checkpoint(&mut connection).await;
        let created_at_ms = created_at_ms.unsigned_abs();
        Ok(Secret { name: name.into(), created_at_ms, changed_at_ms: now_ms })
    }

    /// Returns the secrets of a project, ordered by name, without their values.
    ///
    /// # Errors
    /// Returns an error if the store does not respond.
    pub async fn secrets(&self, project: &str) -> Result<Vec<Secret>, Error> {
        const ACT: &str = "list secrets";
        let mut reader = self.reader(For::Project(project), ACT).await?;
        let rows: Vec<(String, i64, i64)> = sqlx::query_as(
            "SELECT name, created_at_ms, changed_at_ms FROM secrets WHERE project = ? ORDER BY name",
        )
        .bind(project)
        .fetch_all(&mut *reader)
        .await
        .map_err(failed(ACT))?;
        let secret = |(name, created, changed): (String, i64, i64)| Secret {
            name,
            created_at_ms: created.unsigned_abs(),
            changed_at_ms: changed.unsigned_abs(),
        };
        Ok(rows.into_iter().map(secret).collect())
    }

    /// Returns the encrypted value of a secret, if the secret exists.
    ///
    /// # Errors
    /// Returns an error if the store does not respond.
    pub async fn sealed_secret(&self, project: &str, name: &str) -> Result<Option<Vec<u8>>, Error> {
        const ACT: &str = "look up a secret";
        let mut reader = self.reader(For::Project(project), ACT).await?;
        sqlx::query_scalar("SELECT sealed FROM secrets WHERE project = ? AND name = ?")
            .bind(project)
            .bind(name)
            .fetch_optional(&mut *reader)
            .await
            .map_err(failed(ACT))
    }

    /// Removes a secret. Succeeds if the secret does not exist.
    ///
    /// # Errors
    /// Returns an error if the store does not respond.
    pub async fn remove_secret(&self, project: &str, name: &str) -> Result<(), Error> {
        const ACT: &str = "remove a secret";
        let mut connection = self.connection(Lasting::Machine, ACT).await?;
        let mut transaction = begin(&mut connection, ACT).await?;
        sqlx::query("DELETE FROM secrets WHERE project = ? AND name = ?")
            .bind(project)
            .bind(name)
            .execute(&mut *transaction)
            .await
            .map_err(failed(ACT))?;
        transaction.commit().await.map_err(failed(ACT))?;
        self.checkpoint(&mut connection).await;
        Ok(())
    }

    /// Returns true if any project has a secret.
    ///
    /// # Errors
    /// Returns an error if the store does not respond.
    pub async fn has_secrets(&self) -> Result<bool, Error> {
        const ACT: &str = "check whether secrets exist";
        let mut reader = self.reader(For::Server, ACT).await?;
        sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM secrets)")
            .fetch_one(&mut *reader)
            .await
            .map_err(failed(ACT))
    }

    /// Returns the certificate of a project's certificate authority, and its encrypted key.
    ///
    /// # Errors
    /// Returns an error if the store does not respond.
    pub async fn authority(&self, project: &str) -> Result<Option<(String, Vec<u8>)>, Error> {
        const ACT: &str = "look up a certificate authority";
        let mut reader = self.reader(For::Project(project), ACT).await?;
        sqlx::query_as("SELECT certificate, sealed FROM authorities WHERE project = ?")
            .bind(project)
            .fetch_optional(&mut *reader)
            .await
            .map_err(failed(ACT))
    }

    /// Saves the certificate authority of a project, and replaces any previous one.
    ///
    /// # Errors
    /// Returns an error if the project does not exist or the store does not respond.
    pub async fn put_authority(
        &self,
        project: &str,
        certificate: &str,
        sealed: &[u8],
        now_ms: u64,
    ) -> Result<(), Error> {
        const ACT: &str = "save a certificate authority";
        let mut connection = self.connection(Lasting::Machine, ACT).await?;
        let mut transaction = begin(&mut connection, ACT).await?;
        sqlx::query(
            "INSERT INTO authorities (project, certificate, sealed, created_at_ms) VALUES (?, ?, ?, ?)
             ON CONFLICT (project) DO UPDATE SET certificate = excluded.certificate, sealed = excluded.sealed,
             created_at_ms = excluded.created_at_ms",
        )
        .bind(project)
        .bind(certificate)
        .bind(sealed)
        .bind(integer(now_ms))
        .execute(&mut *transaction)
        .await
        .map_err(|error| refused(error, ACT, project))?;
        transaction.commit().await.map_err(failed(ACT))?;
        self.checkpoint(&mut connection).await;
        Ok(())
    }
}
