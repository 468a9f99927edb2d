//! Projects and keys. Every write in this module, except for last-use times, is on disk when its method
//! returns.

use std::collections::HashMap;

use api::account::{Key, Project, Quota};
use sqlx::sqlite::SqliteConnection;

use crate::credential::KeyHash;

use super::read::For;
use super::{Error, Lasting, Store, begin, body, failed, integer, parse};

impl Store {
    /// Creates a project, or changes its quota.
    ///
    /// # Errors
    /// Returns an error if the store does not respond.
    pub async fn put_project(&self, name: &str, quota: &Quota, now_ms: u64) -> Result<Project, Error> {
        const ACT: &str = "save a project";
        let mut connection = self.connection(Lasting::Machine, ACT).await?;
        let mut transaction = begin(&mut connection, ACT).await?;
        let created_at_ms: i64 = sqlx::query_scalar(
            "INSERT INTO projects (name, quota, created_at_ms) VALUES (?, ?, ?)
             ON CONFLICT (name) DO UPDATE SET quota = excluded.quota RETURNING created_at_ms",
        )
        .bind(name)
        .bind(body(name, quota)?)
        .bind(integer(now_ms))
        .fetch_one(&mut *transaction)
        .await
        .map_err(failed(ACT))?;
        transaction.commit().await.map_err(failed(ACT))?;
        self.checkpoint(&mut connection).await;
        Ok(Project { name: name.into(), quota: *quota, created_at_ms: created_at_ms.unsigned_abs() })
    }

    /// Returns all projects, ordered by name.
    ///
    /// # Errors
    /// Returns an error if the store does not respond or a row is damaged.
    pub async fn projects(&self) -> Result<Vec<Project>, Error> {
        const ACT: &str = "list projects";
        let mut reader = self.reader(For::Server, ACT).await?;
        let rows: Vec<(String, String, i64)> =
            sqlx::query_as("SELECT name, quota, created_at_ms FROM projects ORDER BY name")
                .fetch_all(&mut *reader)
                .await
                .map_err(failed(ACT))?;
        rows.into_iter().map(|(name, quota, created_at_ms)| project(name, &quota, created_at_ms)).collect()
    }

    /// Returns a project, if it exists.
    ///
    /// # Errors
    /// Returns an error if the store does not respond or a row is damaged.
    pub async fn project(&self, name: &str) -> Result<Option<Project>, Error> {
        const ACT: &str = "look up a project";
        let mut reader = self.reader(For::Server, ACT).await?;
        let row: Option<(String, i64)> =
            sqlx::query_as("SELECT quota, created_at_ms FROM projects WHERE name = ?")
                .bind(name)
                .fetch_optional(&mut *reader)
                .await
                .map_err(failed(ACT))?;
        row.map(|(quota, created_at_ms)| project(name.to_owned(), &quota, created_at_ms)).transpose()
    }

    /// Saves a new key under the SHA-256 of its secret.
    ///
    /// # Errors
    /// Returns an error if the project does not exist, another key has the same ID or secret, or the store
    /// does not respond.
    pub async fn create_key(&self, key: &Key, secret_hash: &KeyHash) -> Result<(), Error> {
        const ACT: &str = "save a key";
        let mut connection = self.connection(Lasting::Machine, ACT).await?;
        let mut transaction = begin(&mut connection, ACT).await?;
        insert_key(&mut transaction, key, secret_hash, ACT).await?;
        transaction.commit().await.map_err(failed(ACT))?;
        self.checkpoint(&mut connection).await;
        Ok(())
    }

    /// Replaces a key with a new one. The old key then expires after `overlap_ms`, unless it already expires
    /// earlier. Both changes are made in one transaction. Returns false if the old key is no longer valid.
    ///
    /// # Errors
    /// Returns an error if the store does not respond or another key has the new ID or secret.
    pub async fn rotate_key(
        &self,
        old: &str,
        new: (&Key, &KeyHash),
        now_ms: u64,
        overlap_ms: u64,
    ) -> Result<bool, Error> {
        const ACT: &str = "rotate a key";
        let mut connection = self.connection(Lasting::Machine, ACT).await?;
        let mut transaction = begin(&mut connection, ACT).await?;
        // Read the key inside the transaction, so that the earlier expiry applies after two concurrent
        // rotations.
        let text: Option<String> =
            sqlx::query_scalar("SELECT body FROM keys WHERE id = ? AND revoked_at_ms IS NULL")
                .bind(old)
                .fetch_optional(&mut *transaction)
                .await
                .map_err(failed(ACT))?;
        let Some(text) = text else { return Ok(false) };
        let key: Key = parse(old, &text)?;
        if key.expires_at_ms.is_some_and(|expires| expires <= now_ms) {
            return Ok(false);
        }
        let until_ms = now_ms.saturating_add(overlap_ms);
        let until_ms = key.expires_at_ms.map_or(until_ms, |expires| expires.min(until_ms));
        let ending = Key { expires_at_ms: Some(until_ms), last_used_at_ms: None, ..key };
        sqlx::query("UPDATE keys SET body = ? WHERE id = ?")
            .bind(body(old, &ending)?)
            .bind(old)
            .execute(&mut *transaction)
            .await
            .map_err(failed(ACT))?;
        insert_key(&mut transaction, new.0, new.1, ACT).await?;
        transaction.commit().await.map_err(failed(ACT))?;
        self.checkpoint(&mut connection).await;
        Ok(true)
    }

    /// Saves the last-use times of keys, by key ID.
    ///
    /// # Errors
    /// Returns an error if the store does not respond.
    pub async fn keys_used(&self, used_ms: &HashMap<String, u64>) -> Result<(), Error> {
        const ACT: &str = "save when keys were last used";
        let mut connection = self.connection(Lasting::Process, ACT).await?;
        let mut transaction = begin(&mut connection, ACT).await?;
        for (id, at_ms) in used_ms {
            sqlx::query("UPDATE keys SET last_used_at_ms = ? WHERE id = ?")
                .bind(integer(*at_ms))
                .bind(id)
                .execute(&mut *transaction)
                .await
                .map_err(failed(ACT))?;
        }
        transaction.commit().await.map_err(failed(ACT))
    }

    /// Returns all keys that are not revoked, oldest first.
    ///
    /// # Errors
    /// Returns an error if the store does not respond or a row is damaged.
    pub async fn keys(&self) -> Result<Vec<Key>, Error> {
        const ACT: &str = "list keys";
        let mut reader = self.reader(For::Server, ACT).await?;
        let rows: Vec<(String, String, Option<i64>)> = sqlx::query_as(
            "SELECT id, body, last_used_at_ms FROM keys WHERE revoked_at_ms IS NULL ORDER BY created_at_ms, id",
        )
        .fetch_all(&mut *reader)
        .await
        .map_err(failed(ACT))?;
        let known = rows.iter().filter(|(id, _, _)| !self.reserve.refuses(id));
        known
            .map(|(id, body, used)| {
                let key: Key = parse(id, body)?;
                Ok(Key { last_used_at_ms: used.map(i64::unsigned_abs), ..key })
            })
            .collect()
    }

    /// Revokes a key permanently. Returns false if no valid key has this ID. If the store cannot be written,
    /// the server still refuses the key, and saves the revocation in a file beside the store.
    ///
    /// # Errors
    /// Returns an error if the revocation cannot be saved. The key is then refused only until this server
    /// stops.
    pub async fn revoke_key(&self, id: &str, now_ms: u64) -> Result<bool, Error> {
        match self.write_revocation(id, now_ms).await {
            Err(Error::Unavailable { .. }) if !api::defence::is_off("L-11") => {
                self.revoke_anyway(id, now_ms).await
            }
            other => other,
        }
    }

    pub(super) async fn write_revocation(&self, id: &str, now_ms: u64) -> Result<bool, Error> {
        const ACT: &str = "revoke a key";
        let mut connection = self.connection(Lasting::Machine, ACT).await?;
        let mut transaction = begin(&mut connection, ACT).await?;
        let done = sqlx::query("UPDATE keys SET revoked_at_ms = ? WHERE id = ? AND revoked_at_ms IS NULL")
            .bind(integer(now_ms))
            .bind(id)
            .execute(&mut *transaction)
            .await
            .map_err(failed(ACT))?;
        transaction.commit().await.map_err(failed(ACT))?;
        self.checkpoint(&mut connection).await;
        Ok(done.rows_affected() > 0)
    }

    /// Returns true if a key with this ID exists and is not revoked.
    pub(super) async fn has_key(&self, id: &str) -> Result<bool, Error> {
        const ACT: &str = "look up a key";
        let mut reader = self.reader(For::Server, ACT).await?;
        sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM keys WHERE id = ? AND revoked_at_ms IS NULL)")
            .bind(id)
            .fetch_one(&mut *reader)
            .await
            .map_err(failed(ACT))
    }

    /// Returns the key whose secret has this hash, and the key's project, unless the key is revoked. The
    /// caller must check the expiry of the key against the current time.
    ///
    /// # Errors
    /// Returns an error if the store does not respond or a row is damaged.
    pub async fn key_by_hash(&self, hash: &KeyHash) -> Result<Option<(Key, Project)>, Error> {
        const ACT: &str = "look up a key";
        let mut reader = self.reader(For::Stranger, ACT).await?;
        let row: Option<(String, String, String, String, i64)> = sqlx::query_as(
            "SELECT keys.id, keys.body, projects.name, projects.quota, projects.created_at_ms
             FROM keys JOIN projects ON projects.name = keys.project
             WHERE keys.secret_hash = ? AND keys.revoked_at_ms IS NULL",
        )
        .bind(hash.0.as_slice())
        .fetch_optional(&mut *reader)
        .await
        .map_err(failed(ACT))?;
        let row = row.filter(|(id, ..)| !self.reserve.refuses(id));
        let Some((id, body, name, quota, created_at_ms)) = row else { return Ok(None) };
        Ok(Some((parse(&id, &body)?, project(name, &quota, created_at_ms)?)))
    }

    /// Returns true if any key is not revoked.
    ///
    /// # Errors
    /// Returns an error if the store does not respond.
    pub async fn has_keys(&self) -> Result<bool, Error> {
        const ACT: &str = "check whether keys exist";
        let mut reader = self.reader(For::Server, ACT).await?;
        sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM keys WHERE revoked_at_ms IS NULL)")
            .fetch_one(&mut *reader)
            .await
            .map_err(failed(ACT))
    }
}

async fn insert_key(
    transaction: &mut SqliteConnection,
    key: &Key,
    secret_hash: &KeyHash,
    act: &'static str,
) -> Result<(), Error> {
    sqlx::query("INSERT INTO keys (id, project, secret_hash, created_at_ms, body) VALUES (?, ?, ?, ?, ?)")
        .bind(&key.id)
        .bind(&key.project)
        .bind(secret_hash.0.as_slice())
        .bind(integer(key.created_at_ms))
        .bind(body(&key.id, key)?)
        .execute(transaction)
        .await
        .map_err(|error| refused(error, act, &key.project))?;
    Ok(())
}

/// Converts a driver error into a store error, for an insert into a table whose rows belong to projects.
pub(super) fn refused(error: sqlx::Error, act: &'static str, project: &str) -> Error {
    let (foreign, unique) = error
        .as_database_error()
        .map_or((false, false), |error| (error.is_foreign_key_violation(), error.is_unique_violation()));
    match (foreign, unique) {
        (true, _) => Error::NoProject(project.to_owned()),
        (_, true) => Error::Conflict,
        (false, false) => failed(act)(error),
    }
}

fn project(name: String, quota: &str, created_at_ms: i64) -> Result<Project, Error> {
    let quota = parse(&name, quota)?;
    Ok(Project { name, quota, created_at_ms: created_at_ms.unsigned_abs() })
}
